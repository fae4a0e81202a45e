//! Reports of a worker or server about its work.

use std::fmt;
use std::time::Duration;

use crate::id::{Holder, Iteration, NodeId, PlanVersion};

/// Activity of a node during the time that a report is about; the node's pace follows from [`Phase::Train`] only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Phase {
    /// The node trains as usual.
    #[default]
    Train,
    /// The node evaluates the model.
    Evaluate,
    /// The node stands still for a checkpoint, or trains a batch while it writes one.
    Checkpoint,
    /// The node trains its first batch: caches fill, memory is touched for the first time, code is compiled.
    WarmUp,
}

/// Activity of a worker's training thread in which it waits for no other process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Work {
    /// The thread reads the samples of a batch.
    Loading,
    /// The thread computes or applies a gradient.
    Training,
    /// The thread evaluates the model, or copies it.
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

/// A training thread that makes no progress with its present activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Stall {
    /// Activity in which the thread stalls.
    pub work: Work,
    /// Time since the thread's last progress.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub lasts: Duration,
}

impl Stall {
    /// Shortest duration of a stall that is reported.
    pub const LEAST: Duration = Duration::from_millis(500);
}

/// Load of a node's host, and limits of the node's control group, as the operating system reports them. A
/// figure is `None` where the system does not report it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeLoad {
    /// Length of the period before the report that the shares are measured over.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub over: Duration,
    /// Number of CPUs that the process's control group may use.
    pub cpu_quota: Option<f64>,
    /// Share of the period, 0 to 1, in which the CPU quota kept runnable threads from running: the sum over
    /// all CPUs, at most the whole period.
    pub cpu_throttled: Option<f64>,
    /// Share of the time of all the host's CPUs in which they were busy, 0 to 1; steal is part of it.
    pub host_busy: Option<f64>,
    /// Share of the time of all the host's CPUs in which the host was a guest whose CPUs were wanted but given to other guests
    /// (steal), 0 to 1.
    pub host_steal: Option<f64>,
    /// Share of the time of all the host's CPUs that the node's process used, 0 to 1.
    pub own_busy: Option<f64>,
    /// Bytes in use of the memory that limits the process most: that of its control group or of its host.
    pub memory_used: Option<u64>,
    /// Size in bytes of the memory that limits the process most.
    pub memory_bound: Option<u64>,
    /// Load of the GPU that the process computes on, as the GPU's driver reports it; `None` without one.
    pub gpu: Option<GpuLoad>,
}

/// Load of one GPU, by all processes that use it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GpuLoad {
    /// Number of the GPU on its host, as the driver counts.
    pub index: u32,
    /// Share of the driver's newest period of measurement, at most a second, in which the GPU computed, 0 to 1.
    pub busy: f64,
    /// Bytes of the GPU's memory that are in use.
    pub memory_used: u64,
    /// Size of the GPU's memory in bytes.
    pub memory_bound: u64,
}

/// Bytes that a node sent to one peer since its last report of that peer, and the time that they took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LinkReport {
    /// Node that the bytes went to.
    pub to: NodeId,
    /// Number of bytes.
    pub bytes: u64,
    /// Time that the network took for the bytes. The time in which the sender had nothing to send is no part
    /// of it, nor the time in which the receiver had no room.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub time: Duration,
}

/// Distance between a worker's model and the average that replaced it.
#[doc(alias = "consensus distance")]
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ModelDistance {
    /// Number of the average, the same for all workers that took part in it.
    pub average: u64,
    /// Euclidean distance between the worker's flat parameters and those of the average, divided by the norm
    /// of the average.
    pub relative: f64,
}

/// Times of one batch of a worker, or of one period of service of a server.
///
/// The parts of the time are disjoint: `data_wait + compute + communicate + barrier_wait` is the batch's wall
/// time. Only `compute` is a property of the node itself: under BSP all nodes have the same total.
#[doc(alias = "BPT")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BatchReport {
    /// Node and incarnation that reports.
    pub holder: Holder,
    /// Running number of the node's reports; the monitor drops repeated and older ones.
    pub sequence: u64,
    /// Step that the batch belonged to.
    pub iteration: Iteration,
    /// Plan in force while the batch was computed.
    pub plan: PlanVersion,
    /// Activity of the node during the batch.
    pub phase: Phase,
    /// Number of samples that were trained, 0 if the time went to something else; for a server, the number of bytes
    /// served.
    pub samples: u64,
    /// Number of micro-batches in which the batch was computed, at least 1.
    #[cfg_attr(feature = "serde", serde(default = "one", skip_serializing_if = "is_one"))]
    pub micro_batches: u32,
    /// Time spent waiting for shards and reading rows.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub data_wait: Duration,
    /// Time from "batch in memory" to "gradient ready"; for a server, time spent serving; without samples, the time
    /// of the activity that [`phase`](Self::phase) names.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub compute: Duration,
    /// Time spent sending and receiving parameters and gradients.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub communicate: Duration,
    /// Time spent waiting for peers, where the node can tell it from the time spent sending.
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

    /// Returns whether the time went to a step of the training, with samples or without.
    pub fn is_step(&self) -> bool {
        self.samples > 0 || self.phase == Phase::Train
    }

    /// Returns the compute time per sample, the only measure of pace; `None` for an empty batch.
    #[doc(alias = "tau")]
    pub fn sample_time(&self) -> Option<Duration> {
        let samples = u32::try_from(self.samples.max(1)).unwrap_or(u32::MAX);
        (self.samples > 0).then(|| self.compute / samples)
    }
}
