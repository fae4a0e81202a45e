//! [`StepLog`] and [`BatchLog`]: the durations of synchronous steps, and of the batches of a worker, under the newest plan.

use std::collections::VecDeque;
use std::time::Duration;

use antdt_core::{BatchReport, BatchView, PlanVersion, StepView};

use crate::running_median::RunningMedian;
use crate::stats::lower_median_of;

/// Steps that may be incomplete at a time: reports of a worker come up to a heartbeat later than those of another. 64 bounds
/// the memory; a step that is older counts for nothing.
const OPEN_MAX: usize = 64;

/// Newest steps that a median is taken over.
const NEWEST: usize = 32;

#[derive(Debug, Clone, Copy, Default)]
struct Open {
    iteration: u64,
    plan: PlanVersion,
    reports: u64,
    wall: Duration,
    busy: Duration,
}

/// Puts the reports of each step together. A step is complete when every worker has reported it.
#[derive(Debug, Clone)]
pub(crate) struct StepLog {
    open: [Open; OPEN_MAX],
    plan: PlanVersion,
    steps: u32,
    times: RunningMedian<Duration>,
    overheads: RunningMedian<Duration>,
}

impl Default for StepLog {
    fn default() -> Self {
        Self {
            open: [Open::default(); OPEN_MAX],
            plan: PlanVersion(0),
            steps: 0,
            times: RunningMedian::new(NEWEST),
            overheads: RunningMedian::new(NEWEST),
        }
    }
}

impl StepLog {
    /// A worker of `workers` reports its part of a step.
    pub(crate) fn push(&mut self, report: &BatchReport, workers: u64) {
        let iteration = report.iteration.0;
        let slot = usize::try_from(iteration % OPEN_MAX as u64).expect("less than the number of slots");
        let open = &mut self.open[slot];
        if open.reports > 0 && iteration < open.iteration {
            return;
        }
        if open.reports == 0 || iteration > open.iteration || report.plan > open.plan {
            *open = Open { iteration, plan: report.plan, ..Open::default() };
        }
        open.reports += 1;
        open.wall = open.wall.max(report.wall());
        open.busy = open.busy.max(report.data_wait + report.compute);
        if open.reports != workers || report.plan < self.plan {
            return;
        }
        if open.plan > self.plan {
            self.plan = open.plan;
            self.steps = 0;
            self.times = RunningMedian::new(NEWEST);
            self.overheads = RunningMedian::new(NEWEST);
        }
        self.steps = self.steps.saturating_add(1);
        self.times.push(open.wall);
        self.overheads.push(open.wall.saturating_sub(open.busy));
    }

    /// What is known; `None` before the first complete step.
    pub(crate) fn view(&self) -> Option<StepView> {
        let (time, overhead) = (self.times.get()?, self.overheads.get()?);
        Some(StepView { plan: self.plan, steps: self.steps, time, overhead })
    }
}

/// What the whole batches of a worker take under the newest plan that it reported a batch of.
#[derive(Debug, Clone)]
pub(crate) struct BatchLog {
    plan: PlanVersion,
    samples: u64,
    micro_batches: u32,
    batches: u32,
    /// Nanoseconds of computing.
    times: RunningMedian<u64>,
    /// Nanoseconds of waiting for data in the same batches, oldest first: their median is only asked for in a diagnosis.
    waits: VecDeque<u64>,
}

impl Default for BatchLog {
    fn default() -> Self {
        let (times, waits) = (RunningMedian::new(NEWEST), VecDeque::new());
        Self { plan: PlanVersion(0), samples: 0, micro_batches: 1, batches: 0, times, waits }
    }
}

impl BatchLog {
    /// The worker reports a batch. One with fewer samples than another one under the plan is not whole.
    pub(crate) fn push(&mut self, report: &BatchReport) {
        let known = (self.plan, self.samples);
        if report.samples == 0 || (report.plan, report.samples) < known {
            return;
        }
        if (report.plan, report.samples) > known {
            let (plan, samples, micro_batches) = (report.plan, report.samples, report.micro_batches);
            *self = Self { plan, samples, micro_batches, ..Self::default() };
        }
        self.batches = self.batches.saturating_add(1);
        if self.waits.len() == NEWEST {
            self.waits.pop_front();
        }
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.times.push(nanos(report.compute));
        self.waits.push_back(nanos(report.data_wait));
    }

    /// Share of a batch's own time that the worker waits for data; 0 before the first batch.
    pub(crate) fn data_wait_share(&self) -> f64 {
        let wait = lower_median_of(NEWEST, self.waits.iter().copied());
        let (Some(compute), Some(wait)) = (self.times.get(), wait) else { return 0.0 };
        let [compute, wait] = [compute, wait].map(Duration::from_nanos);
        let own = (compute + wait).as_secs_f64();
        if own > 0.0 { wait.as_secs_f64() / own } else { 0.0 }
    }

    /// What is known; `None` before the first batch.
    pub(crate) fn view(&self) -> Option<BatchView> {
        let samples = u32::try_from(self.samples).unwrap_or(u32::MAX);
        let (plan, micro_batches, batches) = (self.plan, self.micro_batches, self.batches);
        let compute = Duration::from_nanos(self.times.get()?);
        Some(BatchView { plan, samples, micro_batches, compute, batches })
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Holder, Incarnation, Iteration, NodeId, Phase};

    use super::*;

    fn report(worker: u32, iteration: u64, plan: u64, compute_ms: u64, wall_ms: u64) -> BatchReport {
        BatchReport {
            holder: Holder::new(NodeId::worker(worker), Incarnation(0)),
            sequence: iteration,
            iteration: Iteration(iteration),
            plan: PlanVersion(plan),
            phase: Phase::Train,
            samples: 1,
            micro_batches: 1,
            data_wait: Duration::ZERO,
            compute: Duration::from_millis(compute_ms),
            communicate: Duration::from_millis(wall_ms - compute_ms),
            barrier_wait: Duration::ZERO,
        }
    }

    #[test]
    fn whole_batches_of_the_newest_plan_are_what_a_worker_takes() {
        let mut log = BatchLog::default();
        assert_eq!(log.view(), None);
        let batch = |plan, samples, ms| BatchReport { samples, ..report(0, 1, plan, ms, ms) };
        log.push(&batch(1, 4, 8));
        // The first one was short; so is the one after it, and it says nothing.
        for ms in [20, 26, 22] {
            log.push(&batch(1, 10, ms));
        }
        log.push(&batch(1, 3, 1));
        let seen = |log: &BatchLog| {
            let view = log.view().unwrap();
            (view.plan.0, view.samples, view.micro_batches, view.compute.as_millis(), view.batches)
        };
        assert_eq!(seen(&log), (1, 10, 1, 22, 3));
        log.push(&BatchReport { micro_batches: 2, ..batch(2, 8, 30) });
        log.push(&batch(1, 10, 20));
        assert_eq!(seen(&log), (2, 8, 2, 30, 1), "what comes late is of the plan before");
    }

    #[test]
    fn waiting_for_data_is_told_apart_from_computing() {
        let mut log = BatchLog::default();
        assert_eq!(log.data_wait_share(), 0.0);
        for wait_ms in [30, 31, 2000] {
            log.push(&BatchReport { data_wait: Duration::from_millis(wait_ms), ..report(0, 1, 1, 69, 69) });
        }
        assert!((log.data_wait_share() - 0.31).abs() < 1e-9, "{}", log.data_wait_share());
    }

    fn seen(log: &StepLog) -> Option<(u64, u32, u128, u128)> {
        log.view().map(|view| (view.plan.0, view.steps, view.time.as_millis(), view.overhead.as_millis()))
    }

    #[test]
    fn a_step_is_complete_when_every_worker_reported_it_in_whatever_order() {
        let mut log = StepLog::default();
        for (worker, iteration) in [(0, 1), (0, 2), (0, 3), (1, 1)] {
            log.push(&report(worker, iteration, 1, 10, 43), 2);
        }
        assert_eq!(seen(&log), Some((1, 1, 43, 33)));
        log.push(&report(1, 2, 1, 40, 44), 2);
        log.push(&report(1, 3, 1, 40, 44), 2);
        assert_eq!(seen(&log), Some((1, 3, 44, 4)), "the slowest worker computes 40 ms of 44");
    }

    #[test]
    fn a_new_plan_begins_anew_and_late_reports_of_the_one_before_count_for_nothing() {
        let mut log = StepLog::default();
        log.push(&report(0, 1, 1, 10, 40), 2);
        log.push(&report(0, 2, 1, 10, 40), 2);
        log.push(&report(1, 1, 1, 10, 40), 2);
        log.push(&report(0, 3, 2, 10, 20), 2);
        log.push(&report(1, 3, 2, 10, 20), 2);
        assert_eq!(seen(&log), Some((2, 1, 20, 10)));
        log.push(&report(1, 2, 1, 10, 40), 2);
        assert_eq!(seen(&log), Some((2, 1, 20, 10)));
    }
}
