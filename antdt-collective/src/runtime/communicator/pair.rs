//! All-reduce of two ranks that read each other's memory, in the caller's own buffer.
//!
//! Each rank copies its operand, segment by segment, into memory that the other one reads in place, and folds
//! the other's copy into the buffer while that part of it is still in a cache: recursive doubling, which for
//! two ranks is one round. The copies also undo a call that breaks off, because they hold the buffer's
//! earlier content.
//!
//! Cost `S` read and written for the copies, past the caches, `2S` read and `S` written to fold: 4 passes
//! over memory. Rejected for two ranks: the result made in shared memory and copied out in the end, which is
//! 5 passes and a half, of which one goes through a ring whose lines both cores write in turn; where the two
//! have no cache in common that alone takes longer than all of this. Rejected for more: every rank would read
//! every buffer.
//!
//! Source: our design.

use super::execution::FoldInto;
use crate::element::Element;
use crate::error::CollectiveError;
use crate::kernel;
use crate::op::ReduceOp;
use crate::runtime::transport::{Exchange, Incoming, Outgoing, Sink, Transport};
use crate::schedule::{Algorithm, RecursiveDoubling, Step};

/// The algorithm in frames. It is none that a schedule names, since its segments are cut here.
pub(super) const CODE: u8 = 18;

/// Bytes from which it is taken: four segments. Shorter buffers stay in the caches whatever is done with them.
pub(super) const MIN_BYTES: usize = 4 * SEGMENT_BYTES;

/// Bytes copied and folded at a time. Twice as much falls out of the nearer caches and costs a twelfth of the time of 16 MiB
/// and 64 MiB; half as much costs as many more waits for each other, and gains nothing. Nor does copying one segment ahead.
const SEGMENT_BYTES: usize = 1 << 20;

/// Replaces `data` by the reduction of both ranks' `data`. `log` is as long, and lies where the other reads it.
///
/// # Errors
/// As [`Transport::exchange`]; `data` is then as it was.
pub(super) fn run<E: Element>(
    transport: &mut impl Transport,
    mut call: Exchange,
    data: &mut [E],
    log: &mut [E],
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    let me = transport.group().me();
    let segment = SEGMENT_BYTES / size_of::<E>();
    let mut begin = 0;
    while begin < data.len() {
        let end = data.len().min(begin + segment);
        let (into, copy) = (&mut data[begin..end], &mut log[begin..end]);
        kernel::stream(bytemuck::cast_slice_mut(copy), bytemuck::cast_slice(into));
        let mut sends = Vec::with_capacity(1);
        let mut folding = None;
        for step in RecursiveDoubling.schedule(me, 2, into.len()).rounds.concat() {
            match step {
                Step::Send { to, .. } => sends.push(Outgoing { to, bytes: bytemuck::cast_slice(copy) }),
                Step::RecvReduce { from, .. } => folding = Some((from, false)),
                Step::RecvReduceLeft { from, .. } => folding = Some((from, true)),
                Step::RecvCopy { .. } => {}
            }
        }
        let (from, left) = folding.expect("both of a pair receive");
        let mut fold = FoldInto { into, own: None, left, op };
        let exchanged =
            transport.exchange(&call, &sends, &mut [Incoming { from, sink: Sink::Fold(&mut fold) }]);
        if let Err(error) = exchanged {
            data[..end].copy_from_slice(&log[..end]);
            return Err(error);
        }
        call.tag.round += 1;
        begin = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use antdt_core::Rank;
    use half::f16;

    use super::*;
    use crate::group::Group;
    use crate::runtime::region::Region;
    use crate::runtime::testing::{Fault, FaultTransport, PATIENT, on_all, shm_members};
    use crate::runtime::{Communicator, CommunicatorConfig, MixedTransport, ScheduledCommunicator};

    // Some whole segments, and one that ends within a line.
    fn len<E>() -> usize {
        MIN_BYTES / size_of::<E>() + 1003
    }

    // Both ranks' results, against the loop over rank 0's operand and then rank 1's.
    fn agrees<E: Element + Debug>(op: ReduceOp, operand: impl Fn(Rank, usize) -> E + Sync) {
        let of = |me: Rank| -> Vec<E> { (0..len::<E>()).map(|i| operand(me, i)).collect() };
        let results = on_all(shm_members(2).0, PATIENT, |me, communicator| {
            let mut data = of(me);
            communicator.all_reduce(&mut data, op).unwrap();
            data
        });
        let mut expected = of(Rank(0));
        kernel::reduce(op, &mut expected, &of(Rank(1)));
        if op == ReduceOp::Mean {
            kernel::divide(&mut expected, 2);
        }
        for result in results {
            let same = bytemuck::cast_slice::<E, u8>(&result) == bytemuck::cast_slice::<E, u8>(&expected);
            assert!(same, "{op} of {}", E::TYPE);
        }
    }

    #[test]
    fn both_of_a_pair_fold_in_order_of_rank() {
        // Of two zeros the kernels take the second one: the order can be seen.
        let zero = |me: Rank, i: usize| if (me.0 as usize + i).is_multiple_of(2) { 0.0_f32 } else { -0.0 };
        agrees(ReduceOp::Min, zero);
        agrees(ReduceOp::Max, |me, i| f16::from_f32(zero(me, i)));
        agrees(ReduceOp::Sum, |me, i| 0.1 + f64::from(me.0) * i as f64);
        agrees(ReduceOp::Mean, |me, i| 0.1 + (i % 1000) as f32 / (1.0 + me.0 as f32));
        agrees(ReduceOp::Prod, |me, i| (i % 100) as i64 - i64::from(me.0));
        agrees(ReduceOp::Sum, |me, i| (i % 251) as u8 + me.0 as u8);
    }

    #[test]
    fn a_pair_that_breaks_off_at_any_segment_has_changed_nothing() {
        let segments = (len::<f32>() * size_of::<f32>()).div_ceil(SEGMENT_BYTES) as u64;
        let config = CommunicatorConfig { timeout: PATIENT, ..CommunicatorConfig::default() };
        for after in 0..segments {
            let (transports, _aborts) = shm_members(2);
            let faults = transports.into_iter().enumerate().map(|(rank, transport)| {
                let left = if rank == 0 { u64::MAX } else { after };
                FaultTransport::new(transport, Fault::GivesUp, left)
            });
            std::thread::scope(|scope| {
                for (me, transport) in faults.enumerate() {
                    scope.spawn(move || {
                        let mut communicator = ScheduledCommunicator::new(transport, config);
                        let mut data = vec![1.0 + me as f32; len::<f32>()];
                        communicator.all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
                        assert!(data.iter().all(|value| *value == 1.0 + me as f32), "after {after}");
                    });
                }
            });
        }
    }

    // Breaks off when all of a segment is folded, which is as late as one can.
    struct BreaksOff {
        inner: MixedTransport,
        after: u64,
    }

    impl Transport for BreaksOff {
        fn group(&self) -> &Group {
            self.inner.group()
        }
        fn exchange(
            &mut self,
            call: &Exchange,
            sends: &[Outgoing<'_>],
            receives: &mut [Incoming<'_>],
        ) -> Result<(), CollectiveError> {
            self.inner.exchange(call, sends, receives)?;
            match self.after.checked_sub(1) {
                Some(after) => self.after = after,
                None => {
                    let reason = "no disk is left".to_owned();
                    return Err(self.fail(CollectiveError::Aborted { by: None, culprit: None, reason }));
                }
            }
            Ok(())
        }
        fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
            self.inner.region(len_bytes)
        }
        fn lends(&self) -> bool {
            self.inner.lends()
        }
        fn fail(&mut self, error: CollectiveError) -> CollectiveError {
            self.inner.fail(error)
        }
    }

    #[test]
    fn a_segment_that_is_folded_when_the_pair_breaks_off_is_given_back() {
        let segments = (len::<f32>() * size_of::<f32>()).div_ceil(SEGMENT_BYTES) as u64;
        let config = CommunicatorConfig { timeout: PATIENT, ..CommunicatorConfig::default() };
        for after in 0..segments {
            let (transports, _aborts) = shm_members(2);
            std::thread::scope(|scope| {
                for (me, inner) in transports.into_iter().enumerate() {
                    scope.spawn(move || {
                        let after = if me == 0 { after } else { u64::MAX };
                        let mut communicator = ScheduledCommunicator::new(BreaksOff { inner, after }, config);
                        let mut data = vec![1.0 + me as f32; len::<f32>()];
                        let done = communicator.all_reduce(&mut data, ReduceOp::Sum);
                        // Of the last segment the other one has all that it needs.
                        assert!(done.is_err() || me == 1);
                        let held = if done.is_ok() { 3.0 } else { 1.0 + me as f32 };
                        assert!(data.iter().all(|value| *value == held), "rank {me}");
                    });
                }
            });
        }
    }
}
