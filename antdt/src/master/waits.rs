//! [`Waits`]: where the time of the workers' batches went, in all.
//!
//! A collective operation is waiting and exchanging in one, so that a worker cannot tell the two apart. All workers leave a
//! common step together, and the one that arrives last waits for none: the least time that any worker spent with others in a step
//! is what the exchange took, and what another worker spent beyond it was waiting. The same holds where models are averaged after
//! several steps. In modes without common steps the workers' own account stands: there they wait for the master or for partners.
//!
//! [`StepArrival`](antdt_monitor::StepArrival) divides the newest steps of one plan likewise, as medians; this is the sum over the job.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{BatchReport, NodeId};

use crate::report::WorkerTimes;

/// Steps that are kept until all workers have reported them. A heartbeat of 0.5 s brings 512 steps of 1 ms; of a step that is older, the
/// reports that are still missing are divided by themselves, into no waiting.
const OPEN_MAX: usize = 512;

/// A step that workers may still report.
#[derive(Debug, Clone)]
struct Open {
    /// The least time with others of those who have reported.
    least: Duration,
    workers: Vec<NodeId>,
}

/// The parts of the time of all batches, by worker.
#[derive(Debug, Clone, Default)]
pub(super) struct Waits {
    totals: BTreeMap<NodeId, Totals>,
    open: BTreeMap<u64, Open>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    compute: Duration,
    data_wait: Duration,
    /// Communicating and waiting together.
    with_others: Duration,
    communicate: Duration,
}

impl Waits {
    /// Adds a batch. `in_common`: its step is one of all workers.
    pub(super) fn push(&mut self, report: &BatchReport, in_common: bool) {
        let node = report.holder.node;
        let with_others = report.communicate + report.barrier_wait;
        let totals = self.totals.entry(node).or_default();
        totals.compute += report.compute;
        totals.data_wait += report.data_wait;
        totals.with_others += with_others;
        if !in_common {
            totals.communicate += report.communicate;
            return;
        }
        let step = report.iteration.0;
        let newly = || Open { least: with_others, workers: Vec::new() };
        let open = self.open.entry(step).or_insert_with(newly);
        open.least = open.least.min(with_others);
        open.workers.push(node);
        while self.open.len() > OPEN_MAX {
            let Some((_, open)) = self.open.pop_first() else { break };
            self.close(&open);
        }
    }

    /// Steps are numbered anew from here on.
    pub(super) fn restart(&mut self) {
        for open in std::mem::take(&mut self.open).into_values() {
            self.close(&open);
        }
    }

    fn close(&mut self, open: &Open) {
        for worker in &open.workers {
            self.totals.entry(*worker).or_default().communicate += open.least;
        }
    }

    /// What it came to for each worker.
    pub(super) fn ended(mut self) -> BTreeMap<NodeId, WorkerTimes> {
        self.restart();
        let times = |totals: Totals| WorkerTimes {
            compute_s: totals.compute.as_secs_f64(),
            data_wait_s: totals.data_wait.as_secs_f64(),
            communicate_s: totals.communicate.as_secs_f64(),
            barrier_wait_s: totals.with_others.saturating_sub(totals.communicate).as_secs_f64(),
        };
        self.totals.into_iter().map(|(node, totals)| (node, times(totals))).collect()
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Holder, Incarnation, Iteration, Phase, PlanVersion};

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// Of a worker that computes for so many milliseconds, then is with others.
    fn report(worker: u32, step: u64, compute: u64, with_others: (u64, u64)) -> BatchReport {
        BatchReport {
            holder: Holder::new(NodeId::worker(worker), Incarnation(0)),
            sequence: step + 1,
            iteration: Iteration(step),
            plan: PlanVersion(1),
            phase: Phase::Train,
            samples: 8,
            micro_batches: 1,
            data_wait: MS(1),
            compute: MS(compute),
            communicate: MS(with_others.0),
            barrier_wait: MS(with_others.1),
        }
    }

    fn of(reports: &[BatchReport], in_common: bool) -> Vec<[u64; 4]> {
        let mut waits = Waits::default();
        reports.iter().for_each(|report| waits.push(report, in_common));
        let ms = |seconds: f64| (seconds * 1e3).round() as u64;
        let told =
            |it: WorkerTimes| [it.compute_s, it.data_wait_s, it.communicate_s, it.barrier_wait_s].map(ms);
        waits.ended().into_values().map(told).collect()
    }

    #[test]
    fn in_a_common_step_the_last_worker_to_arrive_waits_for_none() {
        // Steps of 50 ms, of which the exchange takes 9 and 4 ms. In the second one the other worker is slow.
        let reports = [
            report(0, 0, 10, (39, 0)),
            report(1, 0, 40, (9, 0)),
            report(0, 1, 45, (4, 0)),
            // All with others, however the worker itself divides it.
            report(1, 1, 20, (20, 9)),
        ];
        let expected = [[55, 2, 13, 30], [60, 2, 13, 25]];
        assert_eq!(of(&reports, true), expected);
        // In whatever order they arrive: a heartbeat has several steps of one worker.
        let [a, b, c, d] = reports;
        assert_eq!(of(&[b, d, a, c], true), expected);
    }

    #[test]
    fn without_common_steps_the_account_is_the_workers_own() {
        let reports = [report(0, 0, 10, (5, 30)), report(1, 0, 40, (5, 0)), report(0, 1, 10, (4, 1))];
        assert_eq!(of(&reports, false), [[20, 2, 9, 31], [40, 1, 5, 0]]);
    }

    #[test]
    fn steps_with_one_number_before_and_after_a_rollback_are_two() {
        let mut waits = Waits::default();
        waits.push(&report(0, 0, 10, (30, 0)), true);
        waits.restart();
        waits.push(&report(1, 0, 10, (5, 0)), true);
        let times = waits.ended();
        assert!(times.values().all(|it| it.barrier_wait_s == 0.0), "{times:?}");
    }

    #[test]
    fn memory_is_bounded_and_the_parts_stay_whole() {
        let steps = 3 * OPEN_MAX as u64;
        let mut waits = Waits::default();
        for step in 0..steps {
            waits.push(&report(0, step, 10, (30, 0)), true);
            assert!(waits.open.len() <= OPEN_MAX);
        }
        let times = waits.ended()[&NodeId::worker(0)];
        let whole = times.compute_s + times.data_wait_s + times.communicate_s + times.barrier_wait_s;
        assert!((whole - 0.041 * steps as f64).abs() < 1e-6, "{times:?}");
    }
}
