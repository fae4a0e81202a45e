//! Reports of a worker or server about its work.

use std::fmt;
use std::time::Duration;

use crate::id::{Holder, Iteration, PlanVersion};

/// Activity of a node during a batch; only [`Phase::Train`] is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Phase {
    /// Ordinary training.
    #[default]
    Train,
    /// Evaluating the model.
    Evaluate,
    /// Writing or reading a checkpoint.
    Checkpoint,
    /// Measuring its own speed.
    Profile,
}

/// Activity of a worker's training thread in which it waits for no other process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Work {
    /// Reading the samples of a batch.
    Loading,
    /// Computing a gradient or applying one.
    Training,
    /// Evaluating the model, or copying it.
    Evaluating,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loading => "reading",
            Self::Training => "training",
            Self::Evaluating => "evaluating",
        })
    }
}

/// A lack of progress: a worker's training thread has been at one activity for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Stall {
    /// Activity of the thread.
    pub work: Work,
    /// Time since its last progress.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub lasts: Duration,
}

impl Stall {
    /// Shortest duration of a stall that is reported.
    pub const LEAST: Duration = Duration::from_millis(500);
}

/// What the system says about the load of a node's host and the bounds of its process. Each figure is `None` where the system does not say it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeLoad {
    /// Stretch of time, up to when it was reported, that the shares are of.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub over: Duration,
    /// CPUs that the process's control group may use.
    pub cpu_quota: Option<f64>,
    /// Share of that time in which the quota kept from a CPU what wanted to run, 0 to 1: the sum over CPUs, at most all of the time.
    pub cpu_throttled: Option<f64>,
    /// Share of the time of all CPUs of the host in which they were busy, 0 to 1.
    pub host_busy: Option<f64>,
    /// Bytes in use of the memory that binds the process most, that of its control group or of its host.
    pub memory_used: Option<u64>,
    /// Bytes of that memory in all.
    pub memory_bound: Option<u64>,
}

/// How far a worker's model was from the average that replaced it.
#[doc(alias = "consensus distance")]
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ModelDistance {
    /// Number of the average, the same for all workers that made it.
    pub average: u64,
    /// Euclidean distance of the worker's flat parameters to those of the average, divided by the norm of these.
    pub relative: f64,
}

/// Times of one batch of a worker, or of one period of service of a server.
///
/// The parts of the time are disjoint: `data_wait + compute + communicate + barrier_wait` is the batch's wall
/// time. Only `compute` says something about the node itself: under BSP all nodes have the same total.
#[doc(alias = "BPT")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BatchReport {
    /// Node and incarnation that reports.
    pub holder: Holder,
    /// Running number of the node's reports; repeated or older ones are dropped.
    pub sequence: u64,
    /// Step that the batch belonged to.
    pub iteration: Iteration,
    /// Plan in force while it was computed.
    pub plan: PlanVersion,
    /// What the node was doing.
    pub phase: Phase,
    /// Samples in the batch; for a server, bytes served.
    pub samples: u64,
    /// Micro-batches in which the batch was computed, at least 1.
    #[cfg_attr(feature = "serde", serde(default = "one", skip_serializing_if = "is_one"))]
    pub micro_batches: u32,
    /// Time spent waiting for shards and reading rows.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub data_wait: Duration,
    /// Time from "batch in memory" to "gradient ready"; for a server, time spent serving.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub compute: Duration,
    /// Time spent sending and receiving parameters and gradients.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub communicate: Duration,
    /// Time spent waiting for peers, where that can be told from sending.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub barrier_wait: Duration,
}

#[cfg(feature = "serde")]
const fn one() -> u32 {
    1
}

#[cfg(feature = "serde")]
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_one(count: &u32) -> bool {
    *count == 1
}

impl BatchReport {
    /// Returns the batch's wall time.
    pub fn wall(&self) -> Duration {
        self.data_wait + self.compute + self.communicate + self.barrier_wait
    }

    /// Returns the local compute time per sample, the only measure of pace; `None` for an empty batch.
    #[doc(alias = "tau")]
    pub fn sample_time(&self) -> Option<Duration> {
        let samples = u32::try_from(self.samples.max(1)).unwrap_or(u32::MAX);
        (self.samples > 0).then(|| self.compute / samples)
    }
}
