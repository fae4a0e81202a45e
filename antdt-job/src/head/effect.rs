//! [`HeadEffect`]: what the driver of a head carries out.

use std::sync::Arc;

use antdt_controller::action::ActionValues;
use antdt_core::{
    BatchReport, CheckpointId, Contribution, Holder, JobTime, Joined, Metrics, ModelDistance, NodeId, Plan,
    PlanVersion, PushMark, RollbackId, ServerWeights, StepCommit,
};

use super::HeadRecord;
use crate::evaluation::EvaluationEntry;
use crate::mode::SyncMode;

/// Effect that the driver must carry out, in the order in which the head returns them.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum HeadEffect {
    /// Start a process for this incarnation of a node.
    Launch(Holder),
    /// End the process of this incarnation of a node.
    Kill(Holder),
    /// Carry out these action values of the plan in force in the cluster, by
    /// [`action::order`](antdt_controller::action::order). Incarnations that are launched later must follow
    /// them.
    Order(ActionValues),
    /// Tell the ledger to count these samples as committed, because their worker is dead or the master
    /// commits for all workers.
    Settle(Contribution),
    /// Give the leases of this worker back to the ledger.
    LedgerLost(Holder),
    /// Answer this worker, which waits to join. Workers that get the same answer share it, so that a driver
    /// can encode it once.
    Joined(Holder, Arc<Joined>),
    /// Answer this worker, which waits for the commit of its step.
    Committed(Holder, Box<StepCommit>),
    /// Tell this worker that a rollback has undone the step whose commit it waits for; it must join again.
    Undone(Holder),
    /// Set the ledger back to the newest checkpoint, or to the start of the job; servers that are launched
    /// later start from there. The driver reports the result by [`HeadEvent::RolledBack`](super::HeadEvent::RolledBack).
    RollBack(RollbackId),
    /// Have the ledger end the data after this many epochs, until another such effect. Without one the ledger hands out all
    /// epochs.
    Epochs(u32),
    /// The job has this number of servers from now on: those that are launched later share the parameters
    /// among so many. Emitted while none is up.
    Servers(u32),
    /// The servers have these weights from now on: those that are launched later divide the parameters by
    /// them. Emitted while none is up. Until the first such effect all servers have the same weight.
    Weights(ServerWeights),
    /// Answer a worker that has paused for a checkpoint.
    Rested {
        /// Worker and incarnation that has paused.
        holder: Holder,
        /// Number of the checkpoint.
        checkpoint: CheckpointId,
        /// `true` if the worker must copy the model, or make the servers copy theirs, before its next step;
        /// `false` if it goes on at once.
        keep: bool,
        /// Pushes that count and that the servers may still have to apply before they copy their parts.
        pushes: Arc<[PushMark]>,
    },
    /// Store this state for a successor of the master, durably, before any later effect is carried out. Only
    /// a [journaled](super::Head::journaled) head emits it.
    Record(Box<HeadRecord>),
    /// End the job's processes, and start it again in this sync mode from its newest checkpoint: it goes on, though this head is
    /// over.
    GoOn(SyncMode),
    /// The job is over: `Ok` if all samples are committed, otherwise the reason.
    End(Result<(), String>),
    /// Add an entry to the log and the report. No other effect depends on it.
    Note {
        /// Job time of the entry.
        at: JobTime,
        /// Content of the entry.
        note: Note,
    },
}

/// Entry of the report of a job.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Note {
    /// The job took an action, or refused to take it.
    Action {
        /// Name of the action, such as `ADJUST_BS` or `KILL_RESTART`.
        kind: &'static str,
        /// Node that the action concerns, or `all`.
        target: String,
        /// Reason, for the user.
        reason: String,
    },
    /// An event that is no action, such as a node that joins or is lost.
    Event {
        /// Node that the event concerns; `None` for the whole job.
        node: Option<NodeId>,
        /// Kind of the event, in one word.
        kind: &'static str,
        /// Text for the user.
        text: String,
    },
    /// An incarnation of a node was launched.
    Launched(Holder),
    /// A plan was published to the nodes.
    Published(Plan),
    /// A plan has come into force on a node.
    Applied(NodeId, PlanVersion),
    /// Reports of one heartbeat, oldest first, each with the sum of its samples' losses.
    Batches(Vec<(BatchReport, f64)>),
    /// A worker averaged its model with all others. The value is the distance between its model before the
    /// average and the average.
    Averaged(NodeId, ModelDistance),
    /// Every sample of the job is committed.
    Completed,
    /// A worker has evaluated the model.
    Evaluated {
        /// Number of held-out samples.
        samples: u64,
        /// Metrics of the evaluation.
        metrics: Metrics,
    },
    /// The evaluation between two epochs, or at the end of such a job, is over; it may have had no sample.
    EpochEvaluated(EvaluationEntry),
    /// The job goes on after an evaluation, up to the end of this epoch.
    NextEpochs(u32),
    /// The job ends before its last epoch, for the reason in the text.
    StoppedEarly(String),
    /// The job has chosen its sync mode, or cannot any more, as the text says.
    ModeChosen {
        /// The mode and the reason, for the user.
        text: String,
        /// Whether the steps were measured; otherwise the job ended before.
        measured: bool,
    },
}

impl Note {
    /// Kind of the event that a checkpoint was not taken or not written; its text says why.
    pub const NO_CHECKPOINT: &'static str = "no-checkpoint";
}
