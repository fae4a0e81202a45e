//! [`ModeChoice`]: what the first steps of a job cost, and the sync mode in which it goes on for that reason.
//!
//! A job whose mode is not to stay takes a checkpoint and ends; its driver starts it again, in the other mode, from there.
//!
//! Source: the model of costs is [`choice`](crate::choice).

use std::collections::BTreeMap;

use antdt_core::{BatchReport, JobTime, NodeId, Role};

use super::{Head, HeadEffect, Note};
use crate::choice::{ChosenMode, Left, Measured, choose};
use crate::mode::SyncMode;

/// First reports of each worker that are left out: connections are made, and caches are empty.
const SKIPPED: usize = 2;

/// Reports of each worker that are measured.
const STEPS: usize = 8;

/// Settings of a job that chooses its sync mode by the cost of its first steps.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ModeChoice {
    /// Modes to choose from, at least one; the first is that in which the job begins.
    pub modes: Vec<SyncMode>,
    /// Number of servers of the modes that have some.
    pub servers: u32,
    /// Seconds that a message takes; 0 if unknown.
    pub latency: f64,
    /// Size of the model divided by the size of what a step changes; at least 1.
    pub whole: f64,
    /// Reason why the job cannot go on in another mode; `None` if it can.
    pub fixed: Option<String>,
}

/// The first reports of each worker: seconds of computing, and of everything that it does with others.
#[derive(Debug, Clone)]
pub(super) struct Probe {
    choice: ModeChoice,
    workers: u32,
    global_batch_size: u32,
    reports: BTreeMap<NodeId, Vec<(f64, f64)>>,
    /// When the first of the reported batches ended.
    began: Option<JobTime>,
}

impl Probe {
    pub(super) const fn new(choice: ModeChoice, workers: u32, global_batch_size: u32) -> Self {
        Self { choice, workers, global_batch_size, reports: BTreeMap::new(), began: None }
    }

    /// Reports of one heartbeat, oldest first; the newest ended just before `now`.
    pub(super) fn note(&mut self, now: JobTime, reports: &[(BatchReport, f64)]) {
        let mut end = now;
        for (report, _) in reports.iter().skip(1) {
            end = end - report.wall();
        }
        for (report, _) in reports {
            if report.holder.node.role != Role::Worker || report.samples == 0 {
                continue;
            }
            self.began.get_or_insert(end);
            let reports = self.reports.entry(report.holder.node).or_default();
            if reports.len() < SKIPPED + STEPS {
                reports.push((report.compute.as_secs_f64(), report.communicate.as_secs_f64()));
            }
        }
    }

    /// Chooses, once enough is measured. `left` are the samples that are left.
    fn choose(&self, left: u64) -> Option<ChosenMode> {
        let Self { choice, workers, global_batch_size, reports, began } = self;
        let enough: Vec<&[(f64, f64)]> = (0..*workers)
            .map_while(|worker| reports.get(&NodeId::worker(worker))?.get(SKIPPED..SKIPPED + STEPS))
            .collect();
        if enough.len() < *workers as usize {
            return None;
        }
        // A report is of one exchange, with all steps before it.
        let every = f64::from(choice.modes[0].traffic(*workers, choice.servers).every);
        let compute = enough
            .iter()
            .map(|reports| reports.iter().map(|(compute, _)| compute / every).collect())
            .collect();
        // The worker that comes last waits for no other one.
        let least = |step: usize| enough.iter().map(|reports| reports[step].1).fold(f64::INFINITY, f64::min);
        let measured = Measured {
            compute,
            transfer: (0..STEPS).map(least).collect(),
            latency: choice.latency,
            whole: choice.whole,
            servers: choice.servers,
        };
        #[allow(clippy::cast_precision_loss, reason = "an estimate")]
        let steps = left as f64 / f64::from(*global_batch_size);
        // A checkpoint and the end of all processes, then as long as this job took to begin.
        let switch = 2.0 * began.map_or(0.0, |began| began.since_start().as_secs_f64());
        choose(&measured, &choice.modes, Left { steps, switch }).ok()
    }
}

impl Head {
    /// Chooses the sync mode, once enough is measured. A job that goes on in another one stops for that, after a checkpoint.
    pub(super) fn choose_mode(&mut self, now: JobTime) {
        let counts = self.core.counts;
        let left = counts.total.saturating_sub(counts.acked);
        let Some(chosen) = self.probe.as_ref().and_then(|probe| probe.choose(left)) else { return };
        let Some(Probe { choice: ModeChoice { modes, fixed, .. }, .. }) = self.probe.take() else { return };
        let text = match &fixed {
            Some(why) if chosen.at != 0 => {
                format!("--sync auto: goes on in {}, since {why}; {}", modes[0], chosen.why)
            }
            _ => format!("--sync auto: {}", chosen.why),
        };
        self.core.note(now, Note::ModeChosen { text, measured: true });
        if chosen.at != 0 && fixed.is_none() {
            let mode = modes[chosen.at].clone();
            let why = format!("goes on with --sync {mode}");
            self.next_mode = Some(mode);
            self.stop(now, why);
        }
    }

    /// The job is over: says so of a choice that was not made.
    pub(super) fn end_choice(&mut self, now: JobTime) {
        if let Some(Probe { choice: ModeChoice { modes, .. }, .. }) = self.probe.take() {
            let mode = &modes[0];
            let text = format!("--sync auto: {mode}, since the job ended before its steps were measured");
            let note = Note::ModeChosen { text, measured: false };
            // Before the end itself.
            self.core.effects.push_front(HeadEffect::Note { at: now, note });
        }
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
        let choice = ModeChoice {
            modes: ["allreduce", "local-sgd=8"].map(|mode| mode.parse().unwrap()).to_vec(),
            servers: 0,
            latency: 0.0,
            whole: 1.0,
            fixed: None,
        };
        let mut probe = Probe::new(choice, 2, 16);
        let at = |millis| JobTime::from_duration(Duration::from_millis(millis));
        for step in 0..10 {
            // The first two steps take ten times as long.
            let slow = if step < 2 { 10 } else { 1 };
            probe.note(at(1_000), &[(report(0, step, 100 * slow, 340 * slow), 0.0)]);
            assert!(probe.choose(1600).is_none(), "worker 1 is not known");
            probe.note(at(1_500), &[(report(1, step, 300 * slow, 140 * slow), 0.0)]);
        }
        let choice = probe.choose(1600).unwrap();
        let expected = [0.44, 0.3 + 0.14 / 8.0];
        for (found, expected) in choice.seconds.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
        // 100 steps of 0.12 s less pay for twice the second that it took to begin.
        assert_eq!(choice.at, 1, "{}", choice.why);
        assert_eq!(probe.choose(160).unwrap().at, 0, "10 steps do not");
    }
}
