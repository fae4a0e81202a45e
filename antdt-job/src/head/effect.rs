//! [`HeadEffect`]: what the driver of a head carries out.

use std::sync::Arc;

use antdt_controller::action::ActionValues;
use antdt_core::{
    CheckpointId, Contribution, Holder, JobTime, Joined, PushMark, RollbackId, ServerWeights, StepCommit,
};

use super::{HeadRecord, Note};
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
    /// Hand this note to every sink of the job. No other effect depends on it.
    Note {
        /// Job time of what the note tells of.
        at: JobTime,
        /// What happened.
        note: Note,
    },
}
