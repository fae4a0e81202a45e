//! [`StepLog`] and [`BatchLog`]: the durations of synchronous steps, and of the batches of a worker, under the newest plan; from
//! both, [`StepArrival`]: the worker that comes last to the steps, and how long each waits for it.
//!
//! All workers leave a step together. A worker's own time in the next one, waiting for data and computing, is therefore when it
//! *arrives*, and what follows the last arrival is the exchange. So its time with others divides into waiting for them
//! and exchanging, though no collective operation can tell the two apart.

use std::collections::VecDeque;
use std::time::Duration;

use antdt_core::{BatchReport, BatchView, NodeId, PlanVersion, StepView};

use crate::running_median::RunningMedian;
use crate::stats::lower_median_of;

/// Steps that may be incomplete at a time: reports of a worker come up to a heartbeat later than those of another. 64 bounds
/// the memory; a step that is older counts for nothing.
const OPEN_MAX: usize = 64;

/// Newest steps that a median is taken over.
const NEWEST: usize = 32;

/// When a worker comes to the steps that it takes together with others.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StepArrival {
    /// Median time in a step that the worker waits for others to arrive.
    #[cfg_attr(feature = "serde", serde(with = "antdt_core::time::nanoseconds"))]
    pub barrier_wait: Duration,
    /// Median time in a step that follows the last arrival: communication and the commit.
    #[cfg_attr(feature = "serde", serde(with = "antdt_core::time::nanoseconds"))]
    pub communicate: Duration,
    /// Share of the newest steps to which the worker came last, 0 to 1.
    pub last_share: f64,
    /// Median time, over these steps, by which it came after the last but one; 0 if it never came last.
    #[cfg_attr(feature = "serde", serde(with = "antdt_core::time::nanoseconds"))]
    pub holds_up: Duration,
}

#[derive(Debug, Clone, Copy, Default)]
struct Open {
    iteration: u64,
    plan: PlanVersion,
    reports: u64,
    wall: Duration,
    /// The worker that arrived last, and when; and the arrival before that.
    last: Option<NodeId>,
    busy: Duration,
    before: Duration,
}

impl Open {
    fn arrives(&mut self, worker: NodeId, busy: Duration) {
        // Of workers that arrive at once the first one by id is the last, in whatever order they report.
        if busy > self.busy || (busy == self.busy && self.last.is_none_or(|last| worker < last)) {
            self.before = self.busy;
            (self.last, self.busy) = (Some(worker), busy);
        } else {
            self.before = self.before.max(busy);
        }
    }
}

/// Puts the reports of each step together. A step is complete when every worker has reported it.
#[derive(Debug, Clone)]
pub(crate) struct StepLog {
    open: [Open; OPEN_MAX],
    plan: PlanVersion,
    steps: u32,
    times: RunningMedian<Duration>,
    overheads: RunningMedian<Duration>,
    /// The last arrival in each of the same steps, and how long it was after the one before, oldest first.
    last: VecDeque<(NodeId, Duration)>,
}

impl Default for StepLog {
    fn default() -> Self {
        Self {
            open: [Open::default(); OPEN_MAX],
            plan: PlanVersion(0),
            steps: 0,
            times: RunningMedian::new(NEWEST),
            overheads: RunningMedian::new(NEWEST),
            last: VecDeque::new(),
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
        open.arrives(report.holder.node, report.data_wait + report.compute);
        if open.reports != workers || report.plan < self.plan {
            return;
        }
        if open.plan > self.plan {
            self.plan = open.plan;
            self.steps = 0;
            self.times = RunningMedian::new(NEWEST);
            self.overheads = RunningMedian::new(NEWEST);
            self.last.clear();
        }
        if let Some(last) = open.last {
            if self.last.len() == NEWEST {
                self.last.pop_front();
            }
            self.last.push_back((last, open.busy - open.before));
        }
        self.steps = self.steps.saturating_add(1);
        self.times.push(open.wall);
        self.overheads.push(open.wall.saturating_sub(open.busy));
    }

    /// When the worker with these batches comes to the steps; `None` before the first complete step, and before its first
    /// batch under the plan.
    #[allow(clippy::cast_precision_loss, reason = "a share of few steps")]
    pub(crate) fn arrival(&self, worker: NodeId, batches: &BatchLog) -> Option<StepArrival> {
        let (overhead, own) = (self.overheads.get()?, batches.with_others()?);
        let late = self.last.iter().filter(|(last, _)| *last == worker).map(|(_, by)| *by);
        let times = late.clone().count();
        let communicate = overhead.min(own);
        Some(StepArrival {
            barrier_wait: own - communicate,
            communicate,
            last_share: times as f64 / self.last.len().max(1) as f64,
            holds_up: lower_median_of(NEWEST, late).unwrap_or_default(),
        })
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
    /// Nanoseconds of waiting for data in the same batches, and of everything that is done with others, oldest first: their
    /// medians are only asked for in a diagnosis.
    waits: VecDeque<(u64, u64)>,
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
        self.waits.push_back((nanos(report.data_wait), nanos(report.communicate + report.barrier_wait)));
    }

    /// Time of a batch that the worker communicates and waits for others.
    fn with_others(&self) -> Option<Duration> {
        lower_median_of(NEWEST, self.waits.iter().map(|(_, others)| *others)).map(Duration::from_nanos)
    }

    /// Share of a batch's own time that the worker waits for data; 0 before the first batch.
    pub(crate) fn data_wait_share(&self) -> f64 {
        let wait = lower_median_of(NEWEST, self.waits.iter().map(|(data, _)| *data));
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
    fn a_worker_takes_whole_batches_of_the_newest_plan() {
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
    fn a_step_is_complete_when_every_worker_reported_it_in_any_order() {
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
    fn the_worker_that_others_wait_for_follows_from_their_arrivals() {
        let (mut log, mut batches) = (StepLog::default(), [(); 3].map(|()| BatchLog::default()));
        assert_eq!(log.arrival(NodeId::worker(0), &batches[0]), None);
        // Workers compute 10, 30 and 40 ms of a step, and all leave it after 43 ms; in the fifth step worker 0 is last.
        for iteration in 1..=5 {
            let own = if iteration == 5 { [41, 30, 40] } else { [10, 30, 40] };
            for worker in [2, 0, 1] {
                let report = report(worker, iteration, 1, own[worker as usize], 43);
                batches[worker as usize].push(&report);
                log.push(&report, 3);
            }
        }
        let seen = |worker: u32| {
            let it = log.arrival(NodeId::worker(worker), &batches[worker as usize]).unwrap();
            let ms = [it.barrier_wait, it.communicate, it.holds_up].map(|time| time.as_millis());
            (ms, (it.last_share * 5.0).round())
        };
        assert_eq!(seen(0), ([30, 3, 1], 1.0), "it waits for the others, but for once");
        assert_eq!(seen(1), ([10, 3, 0], 0.0));
        assert_eq!(seen(2), ([0, 3, 10], 4.0), "all wait for it, worker 1 for 10 ms");
    }

    #[test]
    fn of_workers_that_arrive_at_once_the_same_one_is_last_in_any_order_of_reports() {
        let last = |order: [u32; 3]| {
            let mut open = Open::default();
            order
                .into_iter()
                .for_each(|worker| open.arrives(NodeId::worker(worker), Duration::from_millis(7)));
            (open.last, open.busy - open.before)
        };
        assert_eq!(last([0, 1, 2]), (Some(NodeId::worker(0)), Duration::ZERO));
        assert_eq!(last([2, 1, 0]), last([0, 1, 2]));
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
