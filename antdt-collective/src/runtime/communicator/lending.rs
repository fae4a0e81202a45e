//! All-reduce of ranks that share memory.
//!
//! Rank `r` folds chunk `r` of every rank, in place, in order of rank and in one pass, and writes the total
//! to the memory of each of them. One round, whatever the length and the number of ranks.
//!
//! In a [`CommunicatorBuffer`](super::CommunicatorBuffer), which has memory for operand and result, a rank
//! reads `S` bytes and writes `S`: its own chunk of all operands, and of all results. The caller's own buffer
//! is not shared: a rank first copies the others' chunks into memory that they reach, where they also write
//! their totals, and copies all of the result in the end: `(n-1)/n·S + S` more read and written. Until then
//! the caller's buffer is as it was, whatever happens.
//!
//! A cache line that one rank has written and another one reads moves to the other's cache, and is costly to
//! get back before that cache has evicted it: writing 32 KiB that a peer had read took 5 to 18 µs, and less
//! than 1 µs if the peer had written them meanwhile (2 cores of an AMD EPYC). So a total goes where its
//! operand was: each line is read and then written by one rank, read and then written by the other. Rejected
//! for that: totals that all others read where they were made, which is a round more. In a program that does
//! nothing else, 256 KiB of two ranks took 44 µs that way, and 11 to 13 µs this way.
//!
//! A late rank may write its total after its peers have aborted. So memory that was lent in a call that
//! failed is not used again. Rejected: a schedule's rounds ([`Direct`](crate::schedule::Direct)), where each
//! of the others' chunks is a message of its own: they are folded one after the other, or kept until they can
//! be, in as many rounds as it takes to find them in the cache again, and with more ranks than cores each
//! round switches the running process.
//!
//! Source: our design.

use antdt_core::Rank;
use smallvec::SmallVec;

use crate::element::Element;
use crate::error::CollectiveError;
use crate::kernel;
use crate::op::ReduceOp;
use crate::runtime::transport::{Exchange, Loan, Merge, Piece, Transport};
use crate::schedule::{Span, split_even};

/// The algorithm in frames. It is none that a schedule names.
pub(super) const CODE: u8 = 19;

/// Bytes of a chunk from which it is taken. Shorter messages go through a ring sooner than they are lent.
pub(super) const CHUNK_MIN_BYTES: usize = 16 << 10;

/// From this length of a buffer on, what is copied goes past the caches.
pub(super) const STREAM_MIN_BYTES: usize = 8 << 20;

/// Bytes of a total that are made in the nearest cache before they go to all receivers.
const BLOCK_BYTES: usize = 4 << 10;

/// The reduction of every rank's `from`, in `into`, which the transport owns; so it does `from`, or that is copied first.
///
/// # Errors
/// As [`Transport::trade`]; neither `into` nor a `from` of the transport's may then be used again.
pub(super) fn run<E: Element>(
    transport: &mut impl Transport,
    call: &Exchange,
    from: Operand<'_, E>,
    into: &mut [E],
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    let group = transport.group();
    let (me, world) = (group.me(), group.world());
    let spans = split_even(into.len(), world as usize);
    let streams = size_of_val(into) >= STREAM_MIN_BYTES;
    let Span { start, len } = spans[me.0 as usize];
    let (Operand::Owned(operand) | Operand::Elsewhere(operand)) = from;
    let (before, rest) = into.split_at_mut(start);
    let (mine, after) = rest.split_at_mut(len);
    if matches!(from, Operand::Elsewhere(_)) {
        copy(bytemuck::cast_slice_mut(before), bytemuck::cast_slice(&operand[..start]), streams);
        copy(bytemuck::cast_slice_mut(after), bytemuck::cast_slice(&operand[start + len..]), streams);
    }
    let mut loans = Vec::with_capacity(spans.len() - 1);
    let mut rest = (before, after);
    for (to, span) in (0..).map(Rank).zip(&spans).filter(|(to, _)| *to != me) {
        let side = if to < me { &mut rest.0 } else { &mut rest.1 };
        let (chunk, left) = std::mem::take(side).split_at_mut(span.len);
        *side = left;
        let apart = matches!(from, Operand::Owned(_)).then(|| bytemuck::cast_slice(&operand[span.range()]));
        loans.push(Loan { to, from: apart, into: bytemuck::cast_slice_mut(chunk) });
    }
    let own = &operand[start..start + len];
    let mut total = Total { me: me.0 as usize, world, own, into: mine, op, streams };
    transport.trade(call, &mut loans, &mut total)
}

/// Where an operand is.
#[derive(Clone, Copy)]
pub(super) enum Operand<'a, E> {
    /// Operand in memory of the transport.
    Owned(&'a [E]),
    /// Operand in other memory.
    Elsewhere(&'a [E]),
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
    me: usize,
    world: u32,
    own: &'a [E],
    into: &'a mut [E],
    op: ReduceOp,
    streams: bool,
}

impl<E: Element> Total<'_, E> {
    // Of the bytes of all ranks, in order of rank.
    fn fold(&self, into: &mut [E], operands: &[&[u8]]) {
        let aligned: Result<SmallVec<[&[E]; 8]>, _> =
            operands.iter().map(|operand| bytemuck::try_cast_slice(operand)).collect();
        if let Ok(operands) = aligned {
            kernel::reduce_all_into(self.op, into, &operands);
        } else {
            // As they came: of another transport, which keeps them anywhere.
            bytemuck::cast_slice_mut(into).copy_from_slice(operands[0]);
            for operand in &operands[1..] {
                kernel::reduce_bytes(self.op, into, operand);
            }
        }
        if self.op == ReduceOp::Mean {
            kernel::divide(into, self.world);
        }
    }

    // Straight to all that want it, past the caches; `false`, and nothing done, where an answer goes where its message is.
    fn stream(&mut self, start: usize, pieces: &mut [Piece<'_>]) -> bool {
        let mut operands: SmallVec<[&[E]; 8]> = SmallVec::with_capacity(pieces.len() + 1);
        let mut places: SmallVec<[&mut [E]; 8]> = SmallVec::with_capacity(pieces.len() + 1);
        for piece in pieces {
            let Piece::Apart { from, into } = piece else { return false };
            let both = (bytemuck::try_cast_slice(from), bytemuck::try_cast_slice_mut(into));
            let (Ok(operand), Ok(place)) = both else { return false };
            operands.push(operand);
            places.push(place);
        }
        let range = start..start + operands[0].len();
        operands.insert(self.me, &self.own[range.clone()]);
        places.push(&mut self.into[range]);
        kernel::stream_all_into(self.op, &mut places, &operands);
        true
    }
}

impl<E: Element> Merge for Total<'_, E> {
    fn len_bytes(&self) -> usize {
        size_of_val(self.into)
    }

    fn merge(&mut self, at: usize, pieces: &mut [Piece<'_>]) {
        let len = pieces.first().map_or(0, |piece| piece.bytes().len());
        if self.streams && self.op != ReduceOp::Mean && self.stream(at / size_of::<E>(), pieces) {
            return;
        }
        let mut block = [0_u64; BLOCK_BYTES / 8];
        for start in (0..len).step_by(BLOCK_BYTES) {
            let range = start..len.min(start + BLOCK_BYTES);
            let own = (at + range.start) / size_of::<E>()..(at + range.end) / size_of::<E>();
            let total: &mut [E] = &mut bytemuck::cast_slice_mut(&mut block)[..own.len()];
            let others = pieces.iter().map(|piece| &piece.bytes()[range.clone()]);
            let mut operands: SmallVec<[&[u8]; 8]> = others.collect();
            operands.insert(self.me, bytemuck::cast_slice(&self.own[own.clone()]));
            self.fold(total, &operands);
            drop(operands);
            let total = bytemuck::cast_slice(total);
            copy(bytemuck::cast_slice_mut(&mut self.into[own]), total, self.streams);
            for piece in &mut *pieces {
                // Where the message was is in a cache now.
                let streams = self.streams && matches!(piece, Piece::Apart { .. });
                if let Some(answer) = piece.answer() {
                    copy(&mut answer[range.clone()], total, streams);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::sync::Barrier;

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
    fn lending_is_one_round_at_any_length() {
        for len in [1_usize << 15, 3 << 20] {
            let (transports, traffic): (Vec<_>, Vec<_>) =
                shm_members(4).0.into_iter().map(CountTransport::new).unzip();
            on_all(transports, PATIENT, |_, communicator| {
                communicator.all_reduce(&mut vec![1_i32; len], ReduceOp::Sum).unwrap();
            });
            assert!(traffic.iter().all(|traffic| traffic.exchanges() == 1), "{len}");
        }
    }

    #[test]
    fn a_call_that_breaks_off_has_changed_nothing() {
        for world in [2, 3, 4] {
            for fault in [Fault::GivesUp, Fault::Dies, Fault::DiesWithin] {
                for in_buffer in [false, true] {
                    let (transports, _aborts) = shm_members(world);
                    let faults = transports.into_iter().enumerate().map(|(rank, transport)| {
                        FaultTransport::new(transport, fault, if rank == 1 { 1 } else { u64::MAX })
                    });
                    // An abort in the second call would break off the first one of a slower member.
                    let between = Barrier::new(world as usize);
                    std::thread::scope(|scope| {
                        for (me, transport) in faults.enumerate() {
                            let between = &between;
                            scope.spawn(move || {
                                let mut communicator =
                                    ScheduledCommunicator::new(transport, CommunicatorConfig::default());
                                let operand: Vec<f32> =
                                    (0..len::<f32>(world)).map(|i| (i + me) as f32).collect();
                                let mut data = communicator.buffer(operand.len()).unwrap();
                                data.copy_from_slice(&operand);
                                let mut heap = operand.clone();
                                // The first one comes off, the second one does not.
                                communicator.all_reduce_buffer(&mut data, ReduceOp::Sum).unwrap();
                                between.wait();
                                data.copy_from_slice(&operand);
                                if in_buffer {
                                    communicator.all_reduce_buffer(&mut data, ReduceOp::Sum).unwrap_err();
                                } else {
                                    communicator.all_reduce(&mut heap, ReduceOp::Sum).unwrap_err();
                                }
                                assert!(*data == *operand && heap == operand, "{fault:?}: rank {me}");
                            });
                        }
                    });
                }
            }
        }
    }

    #[test]
    fn a_buffer_of_a_group_that_broke_serves_in_the_next_one() {
        for unanimous in [false, true] {
            let config = CommunicatorConfig { unanimous, ..CommunicatorConfig::default() };
            let (first, _aborts) = shm_members(2);
            let (second, _later) = shm_members(2);
            std::thread::scope(|scope| {
                for (me, (first, second)) in first.into_iter().zip(second).enumerate() {
                    scope.spawn(move || {
                        let left = if me == 1 { 0 } else { u64::MAX };
                        let mut communicator = ScheduledCommunicator::new(
                            FaultTransport::new(first, Fault::GivesUp, left),
                            config,
                        );
                        let mut buffer = communicator.buffer(40_000).unwrap();
                        buffer.fill(1.0 + me as f32);
                        communicator.all_reduce_buffer(&mut buffer, ReduceOp::Sum).unwrap_err();
                        drop(communicator);
                        // There is no result to be taken over.
                        buffer.adopt();
                        let mut communicator = ScheduledCommunicator::new(second, config);
                        for expected in [3.0, 6.0] {
                            communicator.all_reduce_buffer(&mut buffer, ReduceOp::Sum).unwrap();
                            assert!(buffer.len() == 40_000 && buffer.iter().all(|value| *value == expected));
                        }
                    });
                }
            });
        }
    }
}
