//! [`Probe`]: what the first steps of a job cost, for the choice of its sync mode.

use std::collections::BTreeMap;

use antdt_core::{BatchReport, NodeId, Role};
use antdt_job::SyncMode;
use antdt_job::choice::{ChosenMode, Left, Measured, choose};

/// First reports of each worker that are left out: connections are made, and caches are empty.
const SKIPPED: usize = 2;

/// Reports of each worker that are measured.
const STEPS: usize = 8;

/// What a job chooses its mode by, besides what is measured.
#[derive(Debug, Clone)]
pub(super) struct Chooser {
    /// The first is that in which the job begins.
    pub(super) modes: Vec<SyncMode>,
    pub(super) workers: u32,
    /// Of the modes that have some.
    pub(super) servers: u32,
    /// Seconds that a message takes, if the links are emulated.
    pub(super) latency: f64,
    /// Size of the model, in units of what a step changes.
    pub(super) whole: f64,
    pub(super) global_batch_size: u32,
    /// Why the job cannot go on in another mode, if it cannot.
    pub(super) fixed: Option<&'static str>,
}

/// The first reports of each worker: seconds of computing, and of everything that it does with others.
#[derive(Debug, Clone, Default)]
pub(super) struct Probe {
    reports: BTreeMap<NodeId, Vec<(f64, f64)>>,
    /// When the first of the reports came, in seconds of the job.
    began_s: Option<f64>,
}

impl Probe {
    pub(super) fn note(&mut self, at_s: f64, report: &BatchReport) {
        if report.holder.node.role != Role::Worker || report.samples == 0 {
            return;
        }
        self.began_s.get_or_insert(at_s);
        let reports = self.reports.entry(report.holder.node).or_default();
        if reports.len() < SKIPPED + STEPS {
            reports.push((report.compute.as_secs_f64(), report.communicate.as_secs_f64()));
        }
    }

    /// Chooses, once enough is measured. `left` are the samples that are left.
    pub(super) fn choose(&self, chooser: &Chooser, left: u64) -> Option<ChosenMode> {
        let enough: Vec<&[(f64, f64)]> = (0..chooser.workers)
            .map_while(|worker| self.reports.get(&NodeId::worker(worker))?.get(SKIPPED..SKIPPED + STEPS))
            .collect();
        if enough.len() < chooser.workers as usize {
            return None;
        }
        // A report is of one exchange, with all steps before it.
        let every = f64::from(chooser.modes[0].traffic(chooser.workers, chooser.servers).every);
        let compute = enough
            .iter()
            .map(|reports| reports.iter().map(|(compute, _)| compute / every).collect())
            .collect();
        // Who comes last waits for nobody.
        let least = |step: usize| enough.iter().map(|reports| reports[step].1).fold(f64::INFINITY, f64::min);
        let measured = Measured {
            compute,
            transfer: (0..STEPS).map(least).collect(),
            latency: chooser.latency,
            whole: chooser.whole,
            servers: chooser.servers,
        };
        #[allow(clippy::cast_precision_loss, reason = "an estimate")]
        let steps = left as f64 / f64::from(chooser.global_batch_size);
        // A checkpoint and the end of all processes, then as long as this job took to begin.
        let switch = 2.0 * self.began_s.unwrap_or_default();
        choose(&measured, &chooser.modes, Left { steps, switch }).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use antdt_core::{Holder, Incarnation, Iteration, Phase, PlanVersion};

    use super::*;

    fn report(worker: u32, sequence: u64, compute: u64, communicate: u64) -> BatchReport {
        BatchReport {
            holder: Holder { node: NodeId::worker(worker), incarnation: Incarnation(0) },
            sequence,
            iteration: Iteration(sequence),
            plan: PlanVersion(1),
            phase: Phase::Train,
            samples: 8,
            micro_batches: 1,
            data_wait: Duration::ZERO,
            compute: Duration::from_millis(compute),
            communicate: Duration::from_millis(communicate),
            barrier_wait: Duration::ZERO,
        }
    }

    #[test]
    fn transfers_are_those_of_the_worker_that_waits_least_and_the_first_steps_do_not_count() {
        let chooser = Chooser {
            modes: ["allreduce", "local-sgd=8"].map(|mode| mode.parse().unwrap()).to_vec(),
            workers: 2,
            servers: 0,
            latency: 0.0,
            whole: 1.0,
            global_batch_size: 16,
            fixed: None,
        };
        let mut probe = Probe::default();
        for step in 0..10 {
            // The first two steps take ten times as long.
            let slow = if step < 2 { 10 } else { 1 };
            probe.note(1.0, &report(0, step, 100 * slow, 340 * slow));
            assert!(probe.choose(&chooser, 1600).is_none(), "worker 1 is not known");
            probe.note(1.5, &report(1, step, 300 * slow, 140 * slow));
        }
        let choice = probe.choose(&chooser, 1600).unwrap();
        let expected = [0.44, 0.3 + 0.14 / 8.0];
        for (found, expected) in choice.seconds.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
        // 100 steps of 0.12 s less pay for twice the second that it took to begin.
        assert_eq!(choice.at, 1, "{}", choice.why);
        assert_eq!(probe.choose(&chooser, 160).unwrap().at, 0, "10 steps do not");
    }
}
