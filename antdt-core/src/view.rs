//! The state of a job as a policy sees it: an immutable value, so that a decision is a pure function of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::capability::Capabilities;
use crate::id::{Incarnation, MembershipVersion, NodeId, PlanVersion};
use crate::node::{DeviceClass, NodeStatus};
use crate::weights::ServerWeights;

/// Kind of a straggler, by how long it has been slow and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum StragglerKind {
    /// The node's hardware is slow: a constant property, and never a reason to restart.
    Deterministic,
    /// The node was slow in the short window of recent batches.
    Transient,
    /// The node was slow through the long window of recent batches.
    Persistent,
}

/// The monitor's verdict on a node's speed, against its peers of the same role and device class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Pace {
    /// Too little is known: the node is warming up, or there are too few batches or peers.
    #[default]
    Unknown,
    /// The node is as fast as its peers.
    Normal,
    /// The node is faster than its peers.
    Leader,
    /// The node is slower than its peers.
    Straggler(StragglerKind),
}

impl Pace {
    /// Returns the name of the verdict in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Normal => "normal",
            Self::Leader => "leader",
            Self::Straggler(StragglerKind::Deterministic) => "deterministic",
            Self::Straggler(StragglerKind::Transient) => "transient",
            Self::Straggler(StragglerKind::Persistent) => "persistent",
        }
    }

    /// Returns whether the node is slower than its peers.
    pub const fn is_straggler(self) -> bool {
        matches!(self, Self::Straggler(_))
    }
}

/// Estimate of a node's speed from its batches since its pace last changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PaceEstimate {
    /// Median compute time per sample.
    pub sample_time: Duration,
    /// Standard deviation of the logarithm of one batch's time per sample: 0.1 is noise of 10 %.
    pub spread: f64,
    /// Number of batches that the median is taken over, at least 2.
    pub batches: u32,
}

/// Durations of a worker's batches under one plan; batches shorter than the plan says, as at the end of the
/// data, are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchView {
    /// Plan under which the batches were computed.
    pub plan: PlanVersion,
    /// Number of samples in a batch.
    pub samples: u32,
    /// Number of micro-batches of a batch, at least 1.
    pub micro_batches: u32,
    /// Median compute time of a batch.
    pub compute: Duration,
    /// Number of batches.
    pub batches: u32,
}

/// Duration of the synchronous steps that were completed under the newest plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StepView {
    /// Plan under which the steps were computed.
    pub plan: PlanVersion,
    /// Number of steps.
    pub steps: u32,
    /// Median duration of a step.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub time: Duration,
    /// Median, over these steps, of the part of a step in which its slowest worker did not compute:
    /// communication and the commit.
    #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
    pub overhead: Duration,
}

/// State of one node, as a policy sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView {
    /// Id of the node.
    pub id: NodeId,
    /// Incarnation of the node.
    pub incarnation: Incarnation,
    /// Device class of the node.
    pub device: DeviceClass,
    /// Name of the host that the node runs on, as the node reports it; empty before the node has registered.
    pub host: Arc<str>,
    /// Stage of the node's life.
    pub status: NodeStatus,
    /// Samples per batch of the node in the plan in force; 0 for a server.
    pub batch_size: u32,
    /// Number of micro-batches per batch of the node in the plan in force, at least 1.
    pub micro_batches: u32,
    /// Smallest batch, or micro-batch, that the node accepts, in samples.
    pub batch_size_min: u32,
    /// Largest batch, or micro-batch, that the node accepts, in samples.
    pub batch_size_max: u32,
    /// Verdict of the monitor on the node's pace.
    pub pace: Pace,
    /// Median compute time per sample over the short window; `None` while too little is known.
    pub sample_time_short: Option<Duration>,
    /// Median compute time per sample over the long window; `None` while too little is known.
    pub sample_time_long: Option<Duration>,
    /// Estimate of the time per sample from the batches since the last change of pace; `None` before the
    /// second batch after the warm-up.
    pub estimate: Option<PaceEstimate>,
    /// Durations of the node's batches under the newest plan; `None` before the first.
    pub batch: Option<BatchView>,
    /// The node's time per sample divided by the median of its peers, in the short window; 1 is as fast as
    /// the peers. `None` while unknown.
    pub slowness_ratio: Option<f64>,
    /// Share of the long window in which the node was slow, 0 to 1.
    pub slow_fraction_long: f64,
    /// Time since the newest report of the node; `None` before the first.
    pub last_report_age: Option<Duration>,
    /// Number of earlier incarnations of the node.
    pub restarts: u32,
    /// Whether the node is the chief, the worker that is restarted only if the user's settings allow it.
    pub chief: bool,
}

/// Progress of a job: samples done, samples expected, and the rate.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Progress {
    /// Number of committed samples.
    pub committed: u64,
    /// Number of samples to commit in all: samples of the data set times epochs.
    pub expected: u64,
    /// Samples per second of all workers, over the short window of recent batches.
    pub samples_per_second: f64,
}

impl Progress {
    /// Returns the expected time to the end at the present rate; `None` while the rate is unknown.
    pub fn remaining(&self) -> Option<Duration> {
        #[allow(clippy::cast_precision_loss, reason = "an estimate")]
        let left = self.expected.saturating_sub(self.committed) as f64;
        (self.samples_per_second > 0.0)
            .then(|| Duration::try_from_secs_f64(left / self.samples_per_second).unwrap_or(Duration::MAX))
    }
}

/// How long the cluster takes to start a node, from the job's own history of starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SchedulerView {
    /// Expected time from the request for a node to its first batch.
    pub start_delay: Duration,
    /// Whether nodes are hard to get at present.
    pub busy: bool,
}

/// State of the whole job, as a policy sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterView {
    /// Running number of the control tick.
    pub tick: u64,
    /// Capabilities of the sync mode at present, with the number of workers that a step need not wait for.
    pub mode: Capabilities,
    /// Whether the job continues while a node is away.
    pub elastic: bool,
    /// Version of the set of live nodes.
    pub membership: MembershipVersion,
    /// Whether nodes joined or left since the last tick.
    pub membership_changed: bool,
    /// Newest plan that is in force.
    pub plan: PlanVersion,
    /// Whether a plan is published and not yet in force.
    pub plan_pending: bool,
    /// Values of other actions in the plan in force, as texts by the action's name.
    pub actions: Arc<BTreeMap<String, String>>,
    /// Hosts that workers may be started on, by the names that nodes give; empty if the launcher cannot choose.
    pub hosts: Arc<BTreeSet<String>>,
    /// Samples per synchronous step; the sum of all batch sizes.
    pub global_batch_size: u32,
    /// Workers, by id.
    pub workers: Vec<NodeView>,
    /// Parameter servers, by id.
    pub servers: Vec<NodeView>,
    /// Weights of the servers: how much of the model each holds.
    pub server_weights: ServerWeights,
    /// Whether servers can be restarted: they hand their parameters over to their next lives through a
    /// checkpoint, for which all workers wait.
    pub hands_over: bool,
    /// Time that it took to write the newest checkpoint; `None` before the first of this master.
    pub checkpoint_time: Option<Duration>,
    /// Durations of the steps under the newest plan; `None` before the first, and in modes whose workers do
    /// not wait for each other.
    pub step: Option<StepView>,
    /// Progress of the job.
    pub progress: Progress,
    /// Behaviour of the cluster scheduler.
    pub scheduler: SchedulerView,
}

impl ClusterView {
    /// Returns whether the model would survive the loss of this worker: always where no worker has parameters as a whole,
    /// otherwise if another live worker has the model. A worker that has reported no batch yet does not count, because it
    /// may not have the model yet.
    pub fn has_model_without(&self, worker: NodeId) -> bool {
        !self.mode.workers_have_model()
            || self.live_workers().any(|other| other.id != worker && other.last_report_age.is_some())
    }

    /// Returns the workers that are running.
    pub fn live_workers(&self) -> impl Iterator<Item = &NodeView> {
        self.workers.iter().filter(|node| node.status == NodeStatus::Running)
    }
}
