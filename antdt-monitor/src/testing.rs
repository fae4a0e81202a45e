//! Synthetic jobs for tests of rules and policies without a cluster: batch reports from a table of speeds.

use std::time::Duration;

use antdt_core::{
    BatchReport, DeviceClass, Holder, Incarnation, Iteration, JobTime, NodeId, NodeInfo, Pace, Phase,
    PlanVersion, StragglerKind,
};

use crate::detector::StragglerDetector;
use crate::rule::{Evidence, Rule};

/// Checks what every pace rule promises: slower is never judged faster, verdicts depend on the evidence
/// alone, and no verdict is `Straggler(Deterministic)`, which only the detector gives.
///
/// # Errors
/// The evidence for which the rule breaks a promise.
pub fn check_rule(rule: &Rule) -> Result<(), String> {
    let ratios: Vec<f64> = (1..=80).map(|tenth| f64::from(tenth) / 10.0).collect();
    let mut slow = false;
    for ratio in &ratios {
        if slow && !rule.is_slow(*ratio) {
            return Err(format!("slow below a ratio of {ratio}, and not at it"));
        }
        slow = rule.is_slow(*ratio);
    }
    let currents = [
        Pace::Unknown,
        Pace::Normal,
        Pace::Leader,
        Pace::Straggler(StragglerKind::Transient),
        Pace::Straggler(StragglerKind::Persistent),
    ];
    for (ratio_short, ratio_long) in
        ratios.iter().flat_map(|short| ratios.iter().map(move |long| (*short, *long)))
    {
        for (slow_fraction_long, current) in
            [0.0, 0.5, 1.0].into_iter().flat_map(|f| currents.map(|c| (f, c)))
        {
            let ratio_by_chance = 1.1;
            let evidence = Evidence { ratio_short, ratio_by_chance, ratio_long, slow_fraction_long };
            let verdict = rule.judge(&evidence, current);
            if matches!(verdict, Pace::Unknown | Pace::Straggler(StragglerKind::Deterministic)) {
                return Err(format!("{verdict:?} is no verdict on a node: {evidence:?}, {current:?}"));
            }
            if rule.judge(&evidence, current) != verdict {
                return Err(format!("two verdicts on {evidence:?}, {current:?}"));
            }
        }
    }
    Ok(())
}

/// A worker of a [`SyntheticJob`].
#[derive(Debug, Clone, PartialEq)]
pub struct SyntheticWorker {
    /// Device class of the worker's node.
    pub device: DeviceClass,
    /// Compute time of one sample of a healthy worker.
    pub sample_time: Duration,
    /// Number of samples in each batch of the worker.
    pub batch_size: u32,
    /// Incarnation of the worker's node.
    pub incarnation: Incarnation,
    sequence: u64,
    free_at: JobTime,
}

impl SyntheticWorker {
    /// Returns a healthy worker.
    pub fn new(sample_time: Duration, batch_size: u32) -> Self {
        Self {
            device: DeviceClass::default(),
            sample_time,
            batch_size,
            incarnation: Incarnation(0),
            sequence: 0,
            free_at: JobTime::ZERO,
        }
    }
}

/// Simulated workers that report batches, in synchronous steps or each at its own pace. Time advances only by
/// the batches themselves.
#[derive(Debug, Clone, PartialEq)]
pub struct SyntheticJob {
    /// The workers; the position of a worker is the index of its node.
    pub workers: Vec<SyntheticWorker>,
    /// Whether each step ends when the slowest worker is done.
    pub synchronous: bool,
    /// Version of the plan that the reports name.
    pub plan: PlanVersion,
    /// Job time of the last report.
    pub now: JobTime,
    iteration: u64,
}

impl SyntheticJob {
    /// Returns a job whose workers have these times per sample and a common batch size.
    pub fn new(synchronous: bool, batch_size: u32, sample_times: &[Duration]) -> Self {
        Self {
            workers: sample_times.iter().map(|time| SyntheticWorker::new(*time, batch_size)).collect(),
            synchronous,
            plan: PlanVersion(1),
            now: JobTime::ZERO,
            iteration: 0,
        }
    }

    /// Returns the node and incarnation of a worker.
    pub fn holder(&self, index: usize) -> Holder {
        let node = NodeId::worker(u32::try_from(index).expect("a test has few workers"));
        Holder::new(node, self.workers[index].incarnation)
    }

    /// Registers a worker with the detector, as the worker does when it starts.
    pub fn join(&self, detector: &mut StragglerDetector, index: usize) {
        detector.node_joined(self.now, &self.info(index));
    }

    /// Returns the information with which a worker registers.
    pub fn info(&self, index: usize) -> NodeInfo {
        NodeInfo {
            holder: self.holder(index),
            host: "localhost".to_owned(),
            device: self.workers[index].device.clone(),
            memory_bytes: None,
            batch_size_min: 1,
            batch_size_max: u32::MAX,
        }
    }

    /// Registers all workers with the detector.
    pub fn join_all(&self, detector: &mut StragglerDetector) {
        for index in 0..self.workers.len() {
            self.join(detector, index);
        }
    }

    /// Returns the next batch reports of the job. `slowdown` returns how many times slower a worker is at a
    /// moment; 1 is healthy.
    ///
    /// A synchronous job returns one report of each worker; any other job returns the one report that is due
    /// next.
    pub fn next(&mut self, slowdown: impl Fn(usize, JobTime) -> f64) -> Vec<BatchReport> {
        let compute = |job: &Self, index: usize, at: JobTime| {
            let worker = &job.workers[index];
            worker.sample_time.mul_f64(slowdown(index, at)) * worker.batch_size
        };
        if self.synchronous {
            let times: Vec<Duration> = (0..self.workers.len()).map(|i| compute(self, i, self.now)).collect();
            let step = times.iter().max().copied().unwrap_or_default();
            self.now = self.now + step;
            self.iteration += 1;
            times.iter().enumerate().map(|(index, time)| self.report(index, *time, step - *time)).collect()
        } else {
            // The worker that started its batch at `free_at` and is done first reports next.
            let done = |index: usize| {
                let start = self.workers[index].free_at;
                (start + compute(self, index, start), index)
            };
            let Some((at, index)) = (0..self.workers.len()).map(done).min() else { return Vec::new() };
            let time = at.since(self.workers[index].free_at);
            self.workers[index].free_at = at;
            self.now = self.now.max(at);
            vec![self.report(index, time, Duration::ZERO)]
        }
    }

    /// Feeds a detector with reports until the job's time is `until`.
    pub fn run(
        &mut self,
        detector: &mut StragglerDetector,
        until: JobTime,
        slowdown: impl Fn(usize, JobTime) -> f64,
    ) {
        while self.now < until && !self.workers.is_empty() {
            for report in self.next(&slowdown) {
                detector.report(self.now, &report);
            }
        }
    }

    fn report(&mut self, index: usize, compute: Duration, barrier_wait: Duration) -> BatchReport {
        let holder = self.holder(index);
        let worker = &mut self.workers[index];
        worker.sequence += 1;
        BatchReport {
            holder,
            sequence: worker.sequence,
            iteration: Iteration(if self.synchronous { self.iteration } else { worker.sequence }),
            plan: self.plan,
            phase: Phase::Train,
            samples: u64::from(worker.batch_size),
            micro_batches: 1,
            data_wait: Duration::ZERO,
            compute,
            communicate: Duration::ZERO,
            barrier_wait,
        }
    }
}
