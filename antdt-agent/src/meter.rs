//! [`Meter`]: divides the time of each batch into waiting for data, computing, communicating and waiting for
//! peers.

use std::time::Duration;

use antdt_core::{BatchReport, Holder, Iteration, JobTime, Phase, PlanVersion};

/// A part of a batch's time, by what the training loop does; each moment belongs to one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Waiting for shards, or reading samples.
    DataWait,
    /// Computing the gradient.
    Compute,
    /// Sending and receiving parameters and gradients.
    Communicate,
    /// Waiting for the other workers at a barrier.
    BarrierWait,
}

/// Splits the wall time of a batch into its parts. Every moment between [`new`](Self::new) and
/// [`finish`](Self::finish) belongs to exactly one part.
#[derive(Debug, Clone)]
pub struct Meter {
    holder: Holder,
    sequence: u64,
    since: JobTime,
    part: Part,
    /// Nanoseconds.
    spent: [u64; 4],
    /// The first batch with samples was reported.
    warm: bool,
    /// Step and plan of the newest batch.
    newest: (Iteration, PlanVersion),
}

impl Meter {
    /// Returns a meter for one incarnation of a node. Its first batch starts at `now`, waiting for data.
    pub const fn new(holder: Holder, now: JobTime) -> Self {
        Self {
            holder,
            sequence: 0,
            since: now,
            part: Part::DataWait,
            spent: [0; 4],
            warm: false,
            newest: (Iteration(0), PlanVersion(0)),
        }
    }

    /// Assigns the time from `now` on to `part`, until the next call.
    pub fn enter(&mut self, now: JobTime, part: Part) {
        let spent = &mut self.spent[self.part as usize];
        *spent = spent.saturating_add(now.0.saturating_sub(self.since.0));
        (self.since, self.part) = (now, part);
    }

    /// Moves `time`, which the caller measured, from the part that is running to `to`.
    pub fn reassign(&mut self, time: Duration, to: Part) {
        // Taken out of the running part when it is closed: move the start forward.
        self.since = self.since + time;
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.spent[to as usize] = self.spent[to as usize].saturating_add(time);
    }

    /// Ends the batch at `now`, starts the next one, and returns the report of the one that ended. The first one
    /// with samples is told as [`Phase::WarmUp`].
    pub fn finish(
        &mut self,
        now: JobTime,
        iteration: Iteration,
        plan: PlanVersion,
        samples: u64,
        micro_batches: u32,
    ) -> BatchReport {
        let phase = if samples == 0 || self.warm { Phase::Train } else { Phase::WarmUp };
        self.warm |= samples > 0;
        self.newest = (iteration, plan);
        self.end(now, phase, samples, micro_batches)
    }

    /// Ends at `now` an activity besides training, which began with the last [`restart`](Self::restart) or report, starts the
    /// next batch, and returns the report of the activity. All its time counts as [`Part::Compute`].
    pub fn finish_activity(&mut self, now: JobTime, phase: Phase) -> BatchReport {
        self.part = Part::Compute;
        self.end(now, phase, 0, 1)
    }

    fn end(&mut self, now: JobTime, phase: Phase, samples: u64, micro_batches: u32) -> BatchReport {
        self.enter(now, Part::DataWait);
        self.sequence += 1;
        let [data_wait, compute, communicate, barrier_wait] =
            std::mem::take(&mut self.spent).map(Duration::from_nanos);
        let (iteration, plan) = self.newest;
        BatchReport {
            holder: self.holder,
            sequence: self.sequence,
            iteration,
            plan,
            phase,
            samples,
            micro_batches,
            data_wait,
            compute,
            communicate,
            barrier_wait,
        }
    }

    /// Discards the running batch, which was aborted, and starts another one at `now`.
    pub fn restart(&mut self, now: JobTime) {
        (self.since, self.part, self.spent) = (now, Part::DataWait, [0; 4]);
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, NodeId};

    use super::*;

    const MS: fn(u64) -> JobTime = |ms| JobTime(ms * 1_000_000);

    #[test]
    fn the_parts_add_up_to_the_wall_time_of_the_batch() {
        let holder = Holder::new(NodeId::worker(0), Incarnation(0));
        let mut meter = Meter::new(holder, MS(10));
        meter.enter(MS(12), Part::Compute);
        meter.enter(MS(20), Part::Communicate);
        meter.reassign(Duration::from_millis(3), Part::BarrierWait);
        meter.enter(MS(25), Part::Compute);
        let report = meter.finish(MS(26), Iteration(4), PlanVersion(1), 8, 2);
        assert_eq!((report.samples, report.micro_batches), (8, 2));
        assert_eq!(report.data_wait, Duration::from_millis(2));
        assert_eq!(report.compute, Duration::from_millis(9));
        assert_eq!(report.communicate, Duration::from_millis(2));
        assert_eq!(report.barrier_wait, Duration::from_millis(3));
        assert_eq!(report.sample_time(), Some(Duration::from_micros(1125)));
        let next = meter.finish(MS(30), Iteration(5), PlanVersion(1), 0, 1);
        assert_eq!((next.sequence, next.data_wait), (2, Duration::from_millis(4)));
        assert_eq!(next.sample_time(), None);
    }

    #[test]
    fn the_first_batch_with_samples_is_the_warm_up_and_other_activities_are_told_as_such() {
        let mut meter = Meter::new(Holder::new(NodeId::worker(0), Incarnation(0)), MS(0));
        let mut finish = |ms, samples| {
            meter.enter(MS(ms - 1), Part::Compute);
            meter.finish(MS(ms), Iteration(ms), PlanVersion(3), samples, 1).phase
        };
        assert_eq!([finish(2, 0), finish(4, 8), finish(6, 8)], [Phase::Train, Phase::WarmUp, Phase::Train]);
        meter.restart(MS(10));
        let rest = meter.finish_activity(MS(17), Phase::Checkpoint);
        assert_eq!((rest.phase, rest.samples, rest.sequence), (Phase::Checkpoint, 0, 4));
        assert_eq!((rest.compute, rest.wall()), (Duration::from_millis(7), Duration::from_millis(7)));
        assert_eq!((rest.iteration, rest.plan), (Iteration(6), PlanVersion(3)), "the step before it");
        let next = meter.finish(MS(20), Iteration(7), PlanVersion(3), 8, 1);
        assert_eq!((next.phase, next.wall()), (Phase::Train, Duration::from_millis(3)));
    }

    #[test]
    fn an_aborted_batch_leaves_no_trace() {
        let mut meter = Meter::new(Holder::new(NodeId::worker(0), Incarnation(0)), MS(0));
        meter.enter(MS(5), Part::Compute);
        meter.restart(MS(9));
        assert_eq!(meter.finish(MS(10), Iteration(0), PlanVersion(0), 1, 1).compute, Duration::ZERO);
    }
}
