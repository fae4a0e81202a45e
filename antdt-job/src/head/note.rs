//! [`Note`]: what a head tells of the job, besides what it has done.

use std::time::Duration;

use antdt_core::{BatchReport, Holder, Metrics, ModelDistance, NodeId, Plan, PlanVersion};

use crate::evaluation::EvaluationEntry;

/// What happened in a job, as its head tells the report, the console and other sinks.
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
        /// Kind of the event.
        kind: EventKind,
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
    /// A checkpoint is complete. The value is the time from the moment at which its copies existed.
    Stored(Duration),
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

macro_rules! event_kinds {
    ($($(#[$doc:meta])+ $kind:ident $name:literal,)+) => {
        /// Kind of a [`Note::Event`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        pub enum EventKind {
            $($(#[$doc])+ #[cfg_attr(feature = "serde", serde(rename = $name))] $kind,)+
        }

        impl EventKind {
            /// Returns the name of the kind in reports and recordings.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

event_kinds! {
    /// A node has joined the job.
    Joined "joined",
    /// A worker has left as it was asked to.
    Left "left",
    /// A node has seen the end of the data, or has ended after it.
    Finished "finished",
    /// A node has missed heartbeats.
    Late "late",
    /// A worker's training thread makes no progress.
    Stalled "stalled",
    /// A node is dead, hangs or is silent.
    Lost "lost",
    /// The platform takes a node back.
    Preempted "preempted",
    /// The job goes on without a node.
    Retired "retired",
    /// The restart of a node has ended, well or not.
    Restart "restart",
    /// The job goes back to an earlier checkpoint, or has.
    Rollback "rollback",
    /// A node has become a straggler.
    Straggler "straggler",
    /// All workers have become slower, none more than the others.
    GlobalSlowdown "global-slowdown",
    /// A link has become slower than usual.
    SlowLink "slow-link",
    /// A node, a link or the job is as fast as before.
    Recovered "recovered",
    /// A worker has run out of memory, and gets smaller batches.
    Memory "memory",
    /// The members of a group have changed.
    Membership "membership",
    /// All workers have switched to a plan.
    Plan "plan",
    /// The step time of a plan was measured, and is compared with its forecast.
    Forecast "forecast",
    /// The policy has decided on no action.
    None "none",
    /// A checkpoint has ended: it is complete, or a newer one is.
    Checkpoint "checkpoint",
    /// A checkpoint was not taken or not written.
    NoCheckpoint "no-checkpoint",
    /// What was asked for cannot be done.
    Refused "refused",
}
