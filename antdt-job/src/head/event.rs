//! [`HeadEvent`]: what a head is told.

use antdt_core::{
    BatchReport, CheckpointId, Counts, Exit, Holder, LinkReport, Metrics, ModelDistance, NodeId, NodeInfo,
    NodeLoad, PlanVersion, Readiness, RollbackId, Stall, Standing,
};

use super::RolledBack;
#[cfg(feature = "serde")]
use super::settings;

/// What a node sends when it registers with the master.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Registration {
    /// Identity and capabilities of the node.
    pub info: NodeInfo,
    /// Address of the node's data plane, "host:port"; empty if it has none.
    pub data_address: String,
    /// Process id of the node on its host, for messages to the user.
    pub process_id: u32,
}

/// An input of the head: a call of a node, a change of a process, a tick, or a command of the user. The
/// driver passes it on.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HeadEvent {
    /// The job begins: the head launches all nodes.
    Begin,
    /// A node registers.
    Register(Registration),
    /// Heartbeat of a node, with its reports since the last one.
    Heartbeat {
        /// Node and incarnation that sent the heartbeat.
        holder: Holder,
        /// The node's batches since its last heartbeat, oldest first, each with the sum of its samples'
        /// losses.
        #[cfg_attr(feature = "serde", serde(deserialize_with = "settings::read_reports"))]
        reports: Vec<(BatchReport, f64)>,
        /// Newest plan that the node has received.
        plan_ready: PlanVersion,
        /// Version of the plan in force on the node, and the step of the node from which on it is in force.
        plan_applied: (PlanVersion, u64),
        /// What else the node has to say, in order.
        #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
        news: Vec<NodeNews>,
    },
    /// [`NodeNews::Stalled`] by itself.
    Stalled {
        /// Worker and incarnation whose training thread stalls.
        holder: Holder,
        /// The work of the training thread, and the time that it has made no progress.
        stall: Stall,
    },
    /// [`NodeNews::Loaded`] by itself.
    Loaded {
        /// Node and incarnation that sent the report.
        holder: Holder,
        /// The reported load.
        load: NodeLoad,
    },
    /// [`NodeNews::Transferred`] by itself.
    Transferred {
        /// Worker and incarnation that sent the report.
        holder: Holder,
        /// Bytes and times, by peer.
        links: Vec<LinkReport>,
    },
    /// [`NodeNews::Averaged`] by itself.
    Averaged {
        /// Worker and incarnation that averaged.
        holder: Holder,
        /// Distance of the worker's model from the average, before it took the average over.
        distance: ModelDistance,
    },
    /// [`NodeNews::Preempted`] by itself.
    Preempted(Holder),
    /// A worker asks to take part in the training.
    Join {
        /// Worker and incarnation that asks.
        holder: Holder,
        /// Group and model that the worker has.
        standing: Standing,
    },
    /// A worker's push of a step is on all servers.
    Ready {
        /// Worker and incarnation that pushed.
        holder: Holder,
        /// Step that the push belongs to.
        step: u64,
        /// Samples and acknowledgements of the push.
        readiness: Readiness,
    },
    /// A worker stops training.
    Leave {
        /// Worker and incarnation that stops.
        holder: Holder,
        /// `true` if no samples are left, `false` if the worker was drained.
        end_of_data: bool,
        /// Whether the worker can evaluate: it has the model and held-out samples.
        can_evaluate: bool,
    },
    /// A worker has evaluated the model.
    Evaluated {
        /// Worker and incarnation that evaluated the model.
        holder: Holder,
        /// Number of held-out samples.
        samples: u64,
        /// Metrics of the evaluation.
        #[cfg_attr(feature = "serde", serde(default))]
        metrics: Metrics,
    },
    /// A worker has paused between two steps for a checkpoint.
    Rest {
        /// Worker and incarnation that has paused.
        holder: Holder,
        /// Checkpoint for which the worker was asked to pause.
        checkpoint: CheckpointId,
    },
    /// Model and ledger were copied for a checkpoint, or could not be.
    Cut {
        /// Number of the checkpoint.
        checkpoint: CheckpointId,
        /// `Err` with the reason if the copies could not be made.
        taken: Result<(), String>,
    },
    /// Everything of a checkpoint is stored except its manifest, which must follow only if the answer is
    /// [`HeadAnswer::Noted`](super::HeadAnswer::Noted): the head may have given it up, and then its ledger and its copies may be of
    /// different moments.
    Stored {
        /// Number of the checkpoint.
        checkpoint: CheckpointId,
    },
    /// A checkpoint was written, or could not be written.
    Kept {
        /// Number of the checkpoint.
        checkpoint: CheckpointId,
        /// Location of the checkpoint, or the reason why it could not be written.
        outcome: Result<String, String>,
    },
    /// The ledger was set back to a checkpoint, or could not be set back.
    RolledBack {
        /// Number of the rollback.
        rollback: RollbackId,
        /// State that the ledger was set back to, or the reason why it could not be.
        outcome: Result<RolledBack, String>,
    },
    /// The launcher has started the process of this incarnation.
    Started(Holder),
    /// The launcher has learned the host of this incarnation, which was not known when it was launched.
    Placed {
        /// Node and incarnation that was placed.
        holder: Holder,
        /// The launcher's name of the host; it counts in place of the one that the node gives.
        host: String,
    },
    /// The launcher could not start the process of this incarnation, for the reason in the text.
    LaunchFailed(Holder, String),
    /// The process of this incarnation ended; the strings are the last lines of its output.
    Exited(Holder, Exit, Vec<String>),
    /// A control tick, with the sample counts of the ledger; `None` if the job has no ledger.
    Tick(Option<Counts>),
    /// The user asks for this number of workers.
    Scale {
        /// Number of workers, at least 1.
        workers: u32,
    },
    /// The user asks for this number of parameter servers.
    ScaleServers {
        /// Number of servers, at least 1.
        servers: u32,
    },
    /// The user asks for another life of this worker, in place of the one that takes part now.
    Restart(NodeId),
    /// The user asks for a checkpoint now, or, with the number of an earlier answer, for the state of that
    /// checkpoint.
    Checkpoint(Option<CheckpointId>),
    /// The user asks which nodes are slow, and what was done about them. Changes nothing.
    Diagnose,
    /// The user asks the job to end, for the reason in the text.
    Stop(String),
}

impl HeadEvent {
    /// Returns the [heartbeat](Self::Heartbeat) of a node that has nothing else to say.
    pub const fn heartbeat(
        holder: Holder,
        reports: Vec<(BatchReport, f64)>,
        plan_ready: PlanVersion,
        plan_applied: (PlanVersion, u64),
    ) -> Self {
        Self::Heartbeat { holder, reports, plan_ready, plan_applied, news: Vec::new() }
    }
}

/// What a node says with a heartbeat besides its reports of batches.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum NodeNews {
    /// The platform has told this incarnation of the node to leave, and will end it soon.
    Preempted,
    /// The training thread of the worker makes no progress for so long, though its heartbeats arrive.
    Stalled(Stall),
    /// Load of the node, as its operating system measures it.
    Loaded(NodeLoad),
    /// Bytes that the worker sent to its peers, and the time that they took.
    Transferred(Vec<LinkReport>),
    /// The worker has averaged its model with those of all other workers; the value is the distance of its model from the average,
    /// before it took the average over.
    Averaged(ModelDistance),
}
