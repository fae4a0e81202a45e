//! [`GradientStream`]: all-reduces the dense gradient while the backward pass still runs.
//!
//! Where the dense parameters lie on a device ([`lift`](crate::worker::lift)), so do the buckets: each group of a gradient that is there is copied
//! to its bucket within the device, and the sums stay there for the step.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt_agent::{Buffer, GradientError, GradientSink, TrainError};
use antdt_collective::CollectiveError;
use antdt_collective::bucket::{Buckets, FIRST_BUCKET_BYTES};
use antdt_collective::runtime::flat::{FlatError, FlatMemory};
use antdt_collective::runtime::{
    AbortHandle, BucketMemory, Communicator, LayerMemory, Reducer, ReducerError, ReducerParts,
};
use antdt_core::ParamLayout;

use crate::worker::WorkerError;
use crate::worker::lift;

/// The buckets in which the groups of a layout travel; `None` where they all fit into one, so that there is nothing to
/// overlap: the gradient is then reduced by the training thread, without a hand-over. If `always`, one is a plan as well.
pub(super) fn plan(layout: &ParamLayout, bucket_bytes: usize, always: bool) -> Option<Buckets> {
    let lens: Vec<usize> = layout.groups().iter().map(|group| group.len).collect();
    let plan = Buckets::plan(&lens, bucket_bytes, FIRST_BUCKET_BYTES.min(bucket_bytes));
    (plan.buckets().len() > 1 || always && layout.dense_len() > 0).then_some(plan)
}

/// The memory of the buckets, on the device: `memory`, if it is there.
pub(super) fn on_device(
    mut memory: BucketMemory,
    plan: &Buckets,
    flat: &dyn FlatMemory,
) -> Result<BucketMemory, TrainError> {
    match memory.places(plan) {
        Some(_) => Ok(memory),
        None => BucketMemory::on_device(plan, |len_bytes| flat.region(len_bytes)).map_err(lift::failed),
    }
}

/// Takes the gradient of one batch. Each bucket is reduced on a thread of its own as soon as its groups are there.
///
/// The trainer never sees a failure of the group: it goes on, and [`finish`](Self::finish) says what went wrong.
#[derive(Debug)]
pub(super) struct GradientStream<C: Communicator + 'static> {
    reducer: Reducer<C>,
    /// Where the buckets are, if that is on a device.
    flat: Option<Arc<dyn FlatMemory>>,
    abort: AbortHandle,
    failed: Option<ReducerError>,
}

/// What comes back from a stream.
pub(super) struct Streamed<C> {
    /// The communicator, to go on with or to leave the group with, what the buckets' compressors keep, and the buckets' memory
    /// for the next step.
    pub(super) parts: ReducerParts<C>,
    /// The dense sums over all members, unless they lie in the buckets on a device; or why the group broke.
    pub(super) sums: Result<Option<Vec<f32>>, WorkerError>,
}

impl<C: Communicator + 'static> GradientStream<C> {
    /// Begins a batch with what came back from the stream before: compressors are those of the plan's buckets, or none. `flat` says that the buckets are in memory of its device.
    pub(super) fn begin(
        parts: ReducerParts<C>,
        plan: &Buckets,
        abort: AbortHandle,
        flat: Option<Arc<dyn FlatMemory>>,
    ) -> Result<Self, CollectiveError> {
        let reducer = Reducer::resume(parts, plan.clone(), abort.clone())?;
        Ok(Self { reducer, flat, abort, failed: None })
    }

    /// Copies a group to its bucket on the device.
    fn submit_there(
        &mut self,
        flat: &dyn FlatMemory,
        group: usize,
        sums: Buffer<'_>,
    ) -> Result<Result<(), ReducerError>, TrainError> {
        let from = match sums {
            Buffer::Device(values) => Some(values.address()?),
            _ => None,
        };
        let mut failed = None;
        let submitted = self.reducer.submit_by(group, sums.len(), |place| {
            let copied = match (place, from) {
                (LayerMemory::Device(place), Some(from)) => flat.copy(from, place.address, sums.len()),
                (LayerMemory::Device(place), None) => match sums.host() {
                    Ok(values) => flat.put(values, place.address),
                    Err(error) => Err(FlatError::Device(error.to_string())),
                },
                // A group without parameters.
                _ if sums.is_empty() => Ok(()),
                _ => Err(FlatError::Device("a bucket lies on the host".to_owned())),
            };
            copied.map_err(|error| {
                let what = error.to_string();
                failed = Some(error);
                CollectiveError::Io { what, kind: io::ErrorKind::Other }
            })
        });
        // This worker's own failure, of which it ends.
        failed.map_or(Ok(submitted), |error| Err(lift::failed(error)))
    }

    /// Waits until all buckets are reduced. `timeout` is the limit of one collective call.
    pub(super) fn finish(
        mut self,
        layout: &ParamLayout,
        timeout: Duration,
    ) -> Result<Streamed<C>, WorkerError> {
        // Each bucket is a call with its own limit; the last one began at most as late as now.
        let calls = u32::try_from(self.reducer.buckets().buckets().len()).unwrap_or(u32::MAX);
        let deadline = Instant::now()
            + timeout.saturating_mul(calls.saturating_add(1)).min(Duration::from_secs(1 << 30));
        let outcome = match self.failed.take() {
            Some(error) => Err(error),
            None => self.reducer.finish(deadline),
        };
        let outcome = outcome.and_then(|()| {
            if self.flat.is_some() {
                return Ok(None);
            }
            let mut dense = vec![0.0; layout.dense_len()];
            for (group, (place, _)) in layout.ranges().enumerate() {
                dense[place].copy_from_slice(self.reducer.wait(group, deadline)?);
            }
            Ok(Some(dense))
        });
        let sums = match outcome {
            Ok(dense) => Ok(dense),
            Err(ReducerError::Collective(error)) => Err(error.into()),
            Err(error @ ReducerError::Bucket(_)) => Err(TrainError::Model(error.to_string()).into()),
            Err(error) => {
                // The thread has ended, or is later than any call may be: no caller can wait for this group any more.
                let reason = error.to_string();
                self.abort.abort(reason.clone());
                Err(CollectiveError::Aborted { by: None, culprit: None, reason }.into())
            }
        };
        let ended = |error: ReducerError| WorkerError::Loop(error.to_string());
        Ok(Streamed { parts: self.reducer.into_parts().map_err(ended)?, sums })
    }

    /// Gives the step up: the other members stop waiting for it.
    pub(super) fn cancel(self, why: &str) -> Result<ReducerParts<C>, WorkerError> {
        self.abort.abort(why);
        self.reducer.into_parts().map_err(|error| WorkerError::Loop(error.to_string()))
    }
}

impl<C: Communicator + 'static> GradientSink for GradientStream<C> {
    fn group(&mut self, group: usize, sums: Buffer<'_>) -> Result<(), TrainError> {
        let submitted = match self.flat.clone() {
            Some(flat) => self.submit_there(&*flat, group, sums)?,
            None => self.reducer.submit(group, sums.host()?),
        };
        match submitted {
            Ok(()) => {}
            Err(ReducerError::Bucket(error)) => return Err(TrainError::Model(error.to_string())),
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
        Ok(())
    }

    fn rows(&mut self, sums: Buffer<'_>) -> Result<(), TrainError> {
        if sums.is_empty() {
            return Ok(());
        }
        // Rows have a home of their own.
        Err(GradientError::Length { what: "rows".to_owned(), got: sums.len(), expected: 0 }.into())
    }

    fn takes_device(&self) -> bool {
        self.flat.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use antdt_collective::runtime::{BucketMemory, CommunicatorConfig, MemTransport, ScheduledCommunicator};
    use antdt_collective::{Compression, Compressor, Member};
    use antdt_core::{Holder, Incarnation, MembershipVersion, NodeId, ParamGroup, Seed};

    use super::*;

    type Comm = ScheduledCommunicator<MemTransport>;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn members(world: u32) -> Vec<(Comm, AbortHandle)> {
        let aborts: Vec<AbortHandle> = (0..world).map(|_| AbortHandle::new().unwrap()).collect();
        let member = |rank| {
            let holder = Holder::new(NodeId::worker(rank), Incarnation(0));
            Member { holder, address: "127.0.0.1:1".parse().unwrap() }
        };
        let members: Vec<Member> = (0..world).map(member).collect();
        let transports = MemTransport::group(MembershipVersion(1), &members, &aborts).unwrap();
        let communicator = |transport| ScheduledCommunicator::new(transport, CommunicatorConfig::default());
        transports.into_iter().map(communicator).zip(aborts).collect()
    }

    fn parts(communicator: Comm) -> ReducerParts<Comm> {
        ReducerParts { communicator, compressors: Vec::new(), memory: BucketMemory::default() }
    }

    fn layout() -> ParamLayout {
        let group = |(index, len)| ParamGroup::trainable(format!("layer {index}"), len);
        ParamLayout::new([3, 40, 1, 20, 5].into_iter().enumerate().map(group).collect(), Vec::new()).unwrap()
    }

    /// Whole numbers, whose sums are exact in any order.
    fn gradient(rank: u32, step: u64) -> Vec<f32> {
        let mut rng = Seed(u64::from(rank)).derive_number(step).rng();
        (0..layout().dense_len()).map(|_| (rng.normal() * 100.0).round() as f32).collect()
    }

    fn hand_over(stream: &mut GradientStream<Comm>, dense: &[f32], order: &[usize]) {
        let ranges: Vec<_> = layout().ranges().map(|(range, _)| range).collect();
        for group in order {
            stream.group(*group, Buffer::Host(&dense[ranges[*group].clone()])).unwrap();
        }
    }

    #[test]
    fn a_model_that_fits_into_one_bucket_has_nothing_to_overlap() {
        assert_eq!(plan(&layout(), 1 << 20, false), None);
        assert_eq!(plan(&ParamLayout::dense(0), 0, false), None);
        assert_eq!(plan(&ParamLayout::dense(1 << 20), 1 << 10, false), None, "one group is one bucket");
        assert_eq!(plan(&layout(), 80, false).unwrap().buckets().len(), 3);
        assert_eq!(plan(&layout(), 1 << 20, true).unwrap().buckets().len(), 1, "which a device has, too");
        assert_eq!(plan(&ParamLayout::dense(0), 0, true), None);
    }

    #[test]
    fn members_get_the_sums_of_every_step_in_any_order_of_their_groups() {
        for (bucket_bytes, compress) in [(0, false), (80, false), (80, true)] {
            let plan = plan(&layout(), bucket_bytes, false).unwrap();
            // All values travel: nothing is left out.
            let form: Compression = "topk=1".parse().unwrap();
            let (plan, layout) = (&plan, &layout());
            thread::scope(|scope| {
                for (rank, (communicator, abort)) in (0..3).zip(members(3)) {
                    scope.spawn(move || {
                        let each = plan.buckets().iter().filter(|_| compress);
                        let compressors: Vec<Compressor> = each.map(|_| Compressor::new(form)).collect();
                        let mut parts =
                            ReducerParts { communicator, compressors, memory: BucketMemory::default() };
                        for step in 0..4_usize {
                            let mut order = [4, 3, 2, 1, 0];
                            order.rotate_left(step * (1 + rank as usize) % 5);
                            let abort = abort.clone();
                            let mut stream = GradientStream::begin(parts, plan, abort, None).unwrap();
                            hand_over(&mut stream, &gradient(rank, step as u64), &order);
                            let streamed = stream.finish(layout, TIMEOUT).unwrap();
                            parts = streamed.parts;
                            let all = [0, 1, 2].map(|rank| gradient(rank, step as u64));
                            let sums: Vec<f32> =
                                (0..layout.dense_len()).map(|i| all.iter().map(|g| g[i]).sum()).collect();
                            assert_eq!(streamed.sums.unwrap(), Some(sums), "step {step}");
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn a_group_that_breaks_in_the_backward_pass_is_known_when_the_gradient_is_finished() {
        let plan = plan(&layout(), 0, false).unwrap();
        let (plan, layout, over) = (&plan, &layout(), &Barrier::new(2));
        thread::scope(|scope| {
            for (rank, (communicator, abort)) in (0..2).zip(members(2)) {
                scope.spawn(move || {
                    let mut stream = GradientStream::begin(parts(communicator), plan, abort, None).unwrap();
                    if rank == 0 {
                        stream.group(4, Buffer::Host(&[1.0; 5])).unwrap();
                        over.wait();
                        drop(stream);
                    } else {
                        over.wait();
                        // The trainer does not notice.
                        hand_over(&mut stream, &gradient(1, 0), &[4, 3, 2, 1, 0]);
                        let streamed = stream.finish(layout, TIMEOUT).unwrap();
                        let error = streamed.sums.unwrap_err();
                        assert!(matches!(error, WorkerError::Collective(_)), "{error}");
                    }
                });
            }
        });
    }

    #[test]
    fn a_trainer_that_leaves_a_group_out_fails_by_its_own_fault_and_the_others_do_not_wait() {
        let plan = plan(&layout(), 0, false).unwrap();
        let (plan, layout) = (&plan, &layout());
        thread::scope(|scope| {
            for (rank, (communicator, abort)) in (0..2).zip(members(2)) {
                scope.spawn(move || {
                    let mut stream = GradientStream::begin(parts(communicator), plan, abort, None).unwrap();
                    let order: &[usize] = if rank == 0 { &[4, 3, 1, 0] } else { &[4, 3, 2, 1, 0] };
                    hand_over(&mut stream, &gradient(rank, 0), order);
                    let error = stream.finish(layout, TIMEOUT).unwrap().sums.unwrap_err();
                    assert_eq!(matches!(error, WorkerError::Train(_)), rank == 0, "{error}");
                });
            }
        });
    }
}
