//! All-reduce of ranks that read each other's memory.
//!
//! Rank `r` folds chunk `r` of everybody, from where it lies, in order of rank and in one pass; then all copy the chunks
//! that others have folded. Two rounds, whatever the length and the number of ranks.
//!
//! In a [`Buffer`](super::Buffer), whose memory all read, a rank reads `S` bytes and writes `S/n`, then reads and writes
//! `(n-1)/n·S`. In the caller's own buffer it first copies the others' chunks into memory that they read, has its own
//! chunk folded there, and copies that in the end: `(n-1)/n·S + S/n` more read and written. What was copied is also the way
//! back: a call that breaks off leaves the buffer as it was.
//!
//! Rejected: results written into everybody's memory at once, which saves the reading of the second round, and lets a rank
//! that wakes up late overwrite what is no longer its business. A schedule's rounds
//! ([`Direct`](crate::schedule::Direct)), where each of the others' chunks is a message of its own: they are folded one
//! after the other, or kept until they can be, in as many rounds as it takes to find them in the cache again, and with
//! more ranks than cores each round is a change of who runs.
//!
//! Source: our design.

use antdt_core::Rank;

use crate::element::Element;
use crate::error::CollectiveError;
use crate::kernel;
use crate::op::ReduceOp;
use crate::runtime::transport::{Exchange, Fold, Incoming, Merge, Outgoing, Sink, Transport};
use crate::schedule::{Span, split_even};

/// The algorithm in frames. It is none that a schedule names.
pub(super) const CODE: u8 = 19;

/// Bytes of a chunk from which it is taken. Shorter messages go through a ring sooner than they are offered.
pub(super) const CHUNK_MIN_BYTES: usize = 16 << 10;

/// From this length of a buffer on, what is copied goes past the caches.
pub(super) const STREAM_MIN_BYTES: usize = 8 << 20;

/// The reduction of every rank's `from`, in `into`. Both lie where all others read them.
///
/// # Errors
/// As [`Transport::exchange`]; `into` then holds anything.
pub(super) fn run_into<E: Element>(
    transport: &mut impl Transport,
    call: Exchange,
    from: &[E],
    into: &mut [E],
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    let chunks = Chunks::of::<E>(transport, from.len());
    let (before, mine, after) = chunks.split_mut(into);
    chunks.collect(transport, &call, chunks.split(from), mine, op)?;
    chunks.spread(transport, call, mine, before, after)
}

/// The reduction of every rank's `from`, which may lie anywhere, in `into`, which lies where all others read it.
///
/// # Errors
/// As [`Transport::exchange`]; `into` then holds anything.
pub(super) fn run_from<E: Element>(
    transport: &mut impl Transport,
    call: Exchange,
    from: &[E],
    into: &mut [E],
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    let chunks = Chunks::of::<E>(transport, from.len());
    let (before, own, after) = chunks.split(from);
    let (into_before, mine, into_after) = chunks.split_mut(into);
    chunks.copy(into_before, before);
    chunks.copy(into_after, after);
    chunks.collect(transport, &call, (into_before, own, into_after), mine, op)?;
    // What the others have read makes room for what they have made of it.
    chunks.spread(transport, call, mine, into_before, into_after)
}

/// Replaces `data` by the reduction of every rank's `data`. `log` is as long, and lies where all others read it.
///
/// # Errors
/// As [`Transport::exchange`]; `data` is then as it was.
pub(super) fn run_in_place<E: Element>(
    transport: &mut impl Transport,
    call: Exchange,
    data: &mut [E],
    log: &mut [E],
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    let chunks = Chunks::of::<E>(transport, data.len());
    let (before, own, after) = chunks.split_mut(data);
    let (log_before, mine, log_after) = chunks.split_mut(log);
    chunks.copy(log_before, before);
    chunks.copy(log_after, after);
    chunks.collect(transport, &call, (log_before, own, log_after), mine, op)?;
    if let Err(error) = chunks.spread(transport, call, mine, before, after) {
        chunks.copy(before, log_before);
        chunks.copy(after, log_after);
        return Err(error);
    }
    chunks.copy(own, mine);
    Ok(())
}

/// Who has which part.
struct Chunks {
    me: Rank,
    spans: Vec<Span>,
    streams: bool,
}

impl Chunks {
    fn of<E>(transport: &impl Transport, len: usize) -> Self {
        let group = transport.group();
        let spans = split_even(len, group.world() as usize);
        Self { me: group.me(), spans, streams: len * size_of::<E>() >= STREAM_MIN_BYTES }
    }

    fn mine(&self) -> Span {
        self.spans[self.me.0 as usize]
    }

    // What lies before this rank's chunk, the chunk, and what lies behind it.
    fn split<'a, E>(&self, all: &'a [E]) -> (&'a [E], &'a [E], &'a [E]) {
        let (before, rest) = all.split_at(self.mine().start);
        let (mine, after) = rest.split_at(self.mine().len);
        (before, mine, after)
    }

    fn split_mut<'a, E>(&self, all: &'a mut [E]) -> (&'a mut [E], &'a mut [E], &'a mut [E]) {
        let (before, rest) = all.split_at_mut(self.mine().start);
        let (mine, after) = rest.split_at_mut(self.mine().len);
        (before, mine, after)
    }

    fn others(&self) -> impl Iterator<Item = (Rank, usize)> {
        let lens = (0..).map(Rank).zip(self.spans.iter().map(|span| span.len));
        lens.filter(|(rank, _)| *rank != self.me)
    }

    // The first round: the total of this rank's chunk, in `mine`.
    fn collect<E: Element>(
        &self,
        transport: &mut impl Transport,
        call: &Exchange,
        (before, own, after): (&[E], &[E], &[E]),
        mine: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let mut rest = (before, after);
        let sends = self.others().map(|(to, len)| {
            let side = if to < self.me { &mut rest.0 } else { &mut rest.1 };
            let (chunk, left) = side.split_at(len);
            *side = left;
            Outgoing { to, bytes: bytemuck::cast_slice(chunk) }
        });
        let sends: Vec<Outgoing<'_>> = sends.collect();
        let mut total = Total { me: self.me, own, into: mine, op };
        transport.collect(call, &sends, &mut total)?;
        if op == ReduceOp::Mean {
            kernel::divide(mine, self.spans.len() as u32);
        }
        Ok(())
    }

    // The second round: the totals of all other chunks.
    fn spread<E: Element>(
        &self,
        transport: &mut impl Transport,
        mut call: Exchange,
        mine: &[E],
        before: &mut [E],
        after: &mut [E],
    ) -> Result<(), CollectiveError> {
        call.tag.round += 1;
        let bytes = bytemuck::cast_slice(mine);
        let sends: Vec<Outgoing<'_>> = self.others().map(|(to, _)| Outgoing { to, bytes }).collect();
        let mut rest = (before, after);
        let mut copies = Vec::with_capacity(sends.len());
        for (from, len) in self.others() {
            let side = if from < self.me { &mut rest.0 } else { &mut rest.1 };
            let (chunk, left) = std::mem::take(side).split_at_mut(len);
            *side = left;
            copies.push((from, Copied { into: bytemuck::cast_slice_mut(chunk), streams: self.streams }));
        }
        let receives = copies.iter_mut().map(|(from, copy)| Incoming { from: *from, sink: Sink::Fold(copy) });
        transport.exchange(&call, &sends, &mut receives.collect::<Vec<_>>())
    }

    fn copy<E: Element>(&self, into: &mut [E], from: &[E]) {
        copy(bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from), self.streams);
    }
}

/// Past the caches or through them.
pub(super) fn copy(into: &mut [u8], from: &[u8], streams: bool) {
    if streams {
        kernel::stream(into, from);
    } else {
        into.copy_from_slice(from);
    }
}

/// The total of one chunk.
struct Total<'a, E> {
    me: Rank,
    own: &'a [E],
    into: &'a mut [E],
    op: ReduceOp,
}

impl<E: Element> Merge for Total<'_, E> {
    fn len_bytes(&self) -> usize {
        size_of_val(self.into)
    }

    fn merge(&mut self, at: usize, pieces: &[&[u8]]) {
        let len = pieces.first().map_or(0, |piece| piece.len()) / size_of::<E>();
        let start = at / size_of::<E>();
        let (own, into) = (&self.own[start..start + len], &mut self.into[start..start + len]);
        let me = self.me.0 as usize;
        let aligned: Result<Vec<&[E]>, _> =
            pieces.iter().map(|piece| bytemuck::try_cast_slice(piece)).collect();
        if let Ok(mut operands) = aligned {
            operands.insert(me, own);
            return kernel::reduce_all_into(self.op, into, &operands);
        }
        // As they came: of another transport, which keeps them anywhere.
        let mut operands: Vec<&[u8]> = pieces.to_vec();
        operands.insert(me, bytemuck::cast_slice(own));
        bytemuck::cast_slice_mut(into).copy_from_slice(operands[0]);
        for operand in &operands[1..] {
            kernel::reduce_bytes(self.op, into, operand);
        }
    }
}

/// Another rank's chunk.
struct Copied<'a> {
    into: &'a mut [u8],
    streams: bool,
}

impl Fold for Copied<'_> {
    fn len_bytes(&self) -> usize {
        self.into.len()
    }

    fn fold(&mut self, at: usize, bytes: &[u8]) {
        copy(&mut self.into[at..at + bytes.len()], bytes, self.streams);
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use half::{bf16, f16};

    use super::*;
    use crate::runtime::testing::{
        CountTransport, Fault, FaultTransport, PATIENT, on_all, on_all_with, shm_members,
    };
    use crate::runtime::{Communicator, CommunicatorConfig, ScheduledCommunicator};

    // A chunk for each, and one that is shorter by an element.
    fn len<E>(world: u32) -> usize {
        world as usize * (CHUNK_MIN_BYTES / size_of::<E>() + 77) - 1
    }

    // All ways of a call, each rank in its own, against the loop over all operands in order of rank.
    fn agrees<E: Element + Debug>(world: u32, op: ReduceOp, operand: impl Fn(Rank, usize) -> E + Sync) {
        let of = |me: Rank| -> Vec<E> { (0..len::<E>(world)).map(|i| operand(me, i)).collect() };
        let mut expected = of(Rank(0));
        for rank in 1..world {
            kernel::reduce(op, &mut expected, &of(Rank(rank)));
        }
        if op == ReduceOp::Mean {
            kernel::divide(&mut expected, world);
        }
        for unanimous in [false, true] {
            let config = CommunicatorConfig { unanimous, ..CommunicatorConfig::default() };
            let results = on_all_with(shm_members(world).0, config, |me, communicator| {
                let mut results = Vec::new();
                for turn in 0..3 {
                    let mut data = of(me);
                    match (me.0 + turn) % 3 {
                        0 => communicator.all_reduce(&mut data, op).unwrap(),
                        1 => {
                            let mut into = vec![E::default(); data.len()];
                            communicator.all_reduce_into(&data, &mut into, op).unwrap();
                            data = into;
                        }
                        _ => {
                            let mut buffer = communicator.buffer(data.len()).unwrap();
                            buffer.copy_from_slice(&data);
                            communicator.all_reduce_buffer(&mut buffer, op).unwrap();
                            data.copy_from_slice(&buffer);
                        }
                    }
                    results.push(data);
                }
                results
            });
            for result in results.iter().flatten() {
                let same = bytemuck::cast_slice::<E, u8>(result) == bytemuck::cast_slice::<E, u8>(&expected);
                assert!(same, "{op} of {} over {world}, unanimous: {unanimous}", E::TYPE);
            }
        }
    }

    #[test]
    fn every_way_of_a_call_folds_all_operands_in_order_of_rank() {
        // Of two zeros the kernels take the second one: the order can be seen.
        let zero = |me: Rank, i: usize| if (me.0 as usize + i).is_multiple_of(3) { 0.0_f32 } else { -0.0 };
        let spread = |me: Rank, i: usize| (0.1 + i as f64) * 10_f64.powi(8 * (me.0 as i32 % 3));
        for world in 2..=5 {
            agrees(world, ReduceOp::Min, zero);
            agrees(world, ReduceOp::Max, |me, i| f16::from_f32(zero(me, i)));
            agrees(world, ReduceOp::Sum, spread);
            agrees(world, ReduceOp::Sum, |me, i| bf16::from_f64(0.1 * spread(me, i)));
            agrees(world, ReduceOp::Mean, |me, i| spread(me, i) as f32);
            agrees(world, ReduceOp::Prod, |me, i| (i % 100) as i64 - i64::from(me.0));
            agrees(world, ReduceOp::Sum, |me, i| (i % 251) as u8 + me.0 as u8);
        }
    }

    #[test]
    fn it_is_two_rounds_whatever_the_length() {
        for len in [1_usize << 15, 3 << 20] {
            let (transports, traffic): (Vec<_>, Vec<_>) =
                shm_members(4).0.into_iter().map(CountTransport::new).unzip();
            on_all(transports, PATIENT, |_, communicator| {
                communicator.all_reduce(&mut vec![1_i32; len], ReduceOp::Sum).unwrap();
            });
            assert!(traffic.iter().all(|traffic| traffic.exchanges() == 2), "{len}");
        }
    }

    #[test]
    fn a_call_that_breaks_off_in_either_round_has_changed_nothing() {
        for world in [2, 3, 4] {
            for (fault, before) in [
                (Fault::GivesUp, 0),
                (Fault::GivesUp, 1),
                (Fault::Dies, 1),
                (Fault::DiesWithin, 0),
                (Fault::DiesWithin, 1),
            ] {
                let (transports, _aborts) = shm_members(world);
                let faults = transports.into_iter().enumerate().map(|(rank, transport)| {
                    FaultTransport::new(transport, fault, if rank == 1 { before } else { u64::MAX })
                });
                std::thread::scope(|scope| {
                    for (me, transport) in faults.enumerate() {
                        scope.spawn(move || {
                            let mut communicator =
                                ScheduledCommunicator::new(transport, CommunicatorConfig::default());
                            let mut data: Vec<f32> =
                                (0..len::<f32>(world)).map(|i| (i + me) as f32).collect();
                            let operand = data.clone();
                            let done = communicator.all_reduce(&mut data, ReduceOp::Sum);
                            // Who has all that it needs may be done before the other one breaks off.
                            assert!(done.is_err() || before == 1 && me != 1, "{fault:?} {before}: rank {me}");
                            assert_eq!(done.is_err(), data == operand, "{fault:?} {before}: rank {me}");
                        });
                    }
                });
            }
        }
    }
}
