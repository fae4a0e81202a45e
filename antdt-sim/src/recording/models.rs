//! Models of a simulation that are taken from a recorded job.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{DetRng, DeviceClass, Exit, Holder, JobTime, NodeId, Role};

use super::Facts;
use crate::model::{Compute, Fault, Faults, Scheduler};

/// Compute model from a recorded job: a worker takes as long for a sample as it did at the same time of the
/// recording, and after the end of the recording as its median.
///
/// The times were measured under the recorded plans and restarts. The model assumes that the time of a batch is
/// proportional to its samples.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedCompute {
    workers: BTreeMap<NodeId, Series>,
    devices: BTreeMap<NodeId, DeviceClass>,
    batch_sizes_max: BTreeMap<NodeId, u32>,
    /// Of a worker that was not recorded: the median of the medians.
    median: f64,
    /// The hardware of such a worker: that of the one whose median it is.
    device: DeviceClass,
}

/// Nanoseconds for a sample.
#[derive(Debug, Clone, PartialEq)]
struct Series {
    /// By end of the batch.
    batches: Vec<(JobTime, f64)>,
    median: f64,
}

impl RecordedCompute {
    /// Returns the compute model of a recorded job; `None` if no batch was recorded.
    pub fn new(facts: &Facts) -> Option<Self> {
        let mut workers = BTreeMap::new();
        for (node, batches) in &facts.batches {
            let batches: Vec<(JobTime, f64)> =
                batches.iter().filter_map(|batch| Some((batch.end, batch.nanos_per_sample()?))).collect();
            if let Some(median) = median(batches.iter().map(|(_, nanos)| *nanos)) {
                workers.insert(*node, Series { batches, median });
            }
        }
        let mut medians: Vec<(f64, NodeId)> =
            workers.iter().map(|(node, series)| (series.median, *node)).collect();
        medians.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let (median, typical) = *medians.get(medians.len() / 2)?;
        let devices = facts.devices.clone();
        let device = devices.get(&typical).cloned().unwrap_or_default();
        let batch_sizes_max = facts.batch_sizes_max.clone();
        Some(Self { workers, devices, batch_sizes_max, median, device })
    }

    /// Returns the nanoseconds that the worker takes for a sample at this time.
    pub fn nanos_per_sample(&self, at: JobTime, worker: NodeId) -> f64 {
        let Some(series) = self.workers.get(&worker) else { return self.median };
        // The batch that was computed at that moment is the first one that ended after it.
        let index = series.batches.partition_point(|(end, _)| *end <= at);
        series.batches.get(index).map_or(series.median, |(_, nanos)| *nanos)
    }
}

impl Compute for RecordedCompute {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time of many days is exact to the nanosecond"
    )]
    fn time(&mut self, at: JobTime, holder: Holder, samples: u64, _rng: &mut DetRng) -> Duration {
        if holder.node.role == Role::Server {
            // What the workers waited for it is in their reports, as time of sending and receiving.
            return Duration::ZERO;
        }
        let nanos = self.nanos_per_sample(at, holder.node) * samples as f64;
        Duration::from_nanos(nanos.round() as u64)
    }

    fn device(&self, node: NodeId) -> DeviceClass {
        match node.role {
            Role::Worker => self.devices.get(&node).unwrap_or(&self.device).clone(),
            Role::Server => self.devices.get(&node).cloned().unwrap_or_default(),
        }
    }

    fn batch_size_max(&self, node: NodeId) -> Option<u32> {
        self.batch_sizes_max.get(&node).copied()
    }
}

/// Scheduler model from a recorded job: each incarnation takes as long to start, and then to join the others,
/// as the recorded one did. An incarnation that was not recorded takes the median of all.
///
/// These times are taken from the recording because they depend on the machine: on one with a hypervisor that
/// reclaims memory, the first job after a pause took 0.6 to 1 s from registration to the first join, and the
/// next one 0.03 s.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedStarts {
    start: ByHolder,
    ready: ByHolder,
}

/// Times of lives, and what is taken for the others.
#[derive(Debug, Clone, PartialEq)]
struct ByHolder {
    lives: BTreeMap<Holder, Duration>,
    median: Duration,
}

impl ByHolder {
    fn new(times: impl Iterator<Item = (Holder, Duration)>) -> Option<Self> {
        let lives: BTreeMap<Holder, Duration> = times.collect();
        let mut times: Vec<Duration> = lives.values().copied().collect();
        times.sort_unstable();
        let median = *times.get(times.len() / 2)?;
        Some(Self { lives, median })
    }

    fn of(&self, life: Holder) -> Duration {
        self.lives.get(&life).copied().unwrap_or(self.median)
    }
}

impl RecordedStarts {
    /// Returns the scheduler of a recorded job; `None` if no process registered.
    pub fn new(facts: &Facts) -> Option<Self> {
        let start = facts.starts.iter().filter_map(|start| Some((start.life, start.took?)));
        let ready = facts.starts.iter().filter_map(|start| Some((start.life, start.ready?)));
        let none = ByHolder { lives: BTreeMap::new(), median: Duration::ZERO };
        Some(Self { start: ByHolder::new(start)?, ready: ByHolder::new(ready).unwrap_or(none) })
    }
}

impl Scheduler for RecordedStarts {
    fn start(&mut self, _at: JobTime, life: Holder, _rng: &mut DetRng) -> Option<Duration> {
        Some(self.start.of(life))
    }

    fn ready(&mut self, _at: JobTime, life: Holder, _rng: &mut DetRng) -> Duration {
        self.ready.of(life)
    }
}

/// Fault model from a recorded job: the ends of worker processes that were not ordered, at the times at which
/// the master learnt of them.
#[derive(Debug, Clone)]
pub struct RecordedFaults {
    faults: std::vec::IntoIter<(JobTime, Fault)>,
}

impl PartialEq for RecordedFaults {
    fn eq(&self, other: &Self) -> bool {
        self.faults.as_slice() == other.faults.as_slice()
    }
}

impl RecordedFaults {
    /// Returns the faults of a recorded job; the model is empty if there were none.
    pub fn new(facts: &Facts) -> Self {
        let surprising = facts.ends.iter().filter(|end| !end.expected && end.life.node.role == Role::Worker);
        let fault = |end: &super::EndFact| {
            let node = end.life.node;
            let fault = match end.exit {
                Exit::Retryable { code } | Exit::Unretryable { code } => Fault::Exit(node, code),
                Exit::Killed { .. }
                | Exit::OutOfMemory
                | Exit::Silent
                | Exit::NotStarted
                | Exit::Finished => Fault::Crash(node),
            };
            (end.at, fault)
        };
        Self { faults: surprising.map(fault).collect::<Vec<_>>().into_iter() }
    }
}

impl Faults for RecordedFaults {
    fn next(&mut self, _rng: &mut DetRng) -> Option<(JobTime, Fault)> {
        self.faults.next()
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
