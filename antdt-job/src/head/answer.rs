//! [`HeadAnswer`]: what the sender of an event is told at once.

use std::sync::Arc;
use std::time::Duration;

use antdt_agent::BeatReply;
use antdt_core::{CheckpointId, Plan, PushMark};

use super::{AskedCheckpoint, Diagnosis};

/// Answer that the sender of an event gets at once.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HeadAnswer {
    /// The registration is accepted.
    Registered {
        /// Interval at which the node must send heartbeats.
        #[cfg_attr(feature = "serde", serde(with = "antdt_core::time::nanoseconds"))]
        heartbeat: Duration,
        /// Newest plan that names the node; `None` if there is none.
        plan: Option<Plan>,
    },
    /// Answer to [`HeadEvent::Heartbeat`](super::HeadEvent::Heartbeat).
    Beat(Box<BeatReply>),
    /// The call stays open; a later [`HeadEffect`](super::HeadEffect) answers it.
    Parked,
    /// Answer to [`HeadEvent::Leave`](super::HeadEvent::Leave).
    Left {
        /// Whether the worker must evaluate the model on the held-out samples.
        evaluate: bool,
        /// Last checkpoint of the job, which the worker must take before it evaluates; `None` if there is
        /// none to take.
        checkpoint: Option<CheckpointId>,
        /// Pushes that count and that the servers may still have to apply before that.
        pushes: Arc<[PushMark]>,
        /// Whether the worker must join again after that, because epochs may follow; otherwise it exits.
        #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "std::ops::Not::not"))]
        goes_on: bool,
    },
    /// The event was handled; it needs no answer.
    Noted,
    /// Answer to [`HeadEvent::Tick`](super::HeadEvent::Tick), for the progress line.
    Seen(Seen),
    /// Answer to [`HeadEvent::Scale`](super::HeadEvent::Scale) and [`HeadEvent::ScaleServers`](super::HeadEvent::ScaleServers): the number of workers, or of servers, is
    /// changing.
    Scaled {
        /// Number before the change.
        before: u32,
    },
    /// Answer to [`HeadEvent::Checkpoint`](super::HeadEvent::Checkpoint).
    Checkpointed {
        /// Number of the checkpoint.
        checkpoint: CheckpointId,
        /// State of the checkpoint.
        state: AskedCheckpoint,
    },
    /// Answer to [`HeadEvent::Diagnose`](super::HeadEvent::Diagnose).
    Diagnosed(Box<Diagnosis>),
    /// The request was refused, for the reason in the text.
    Refused(String),
    /// Answer to a worker whose step a rollback has undone: the worker must join again.
    Undone,
    /// The sender was declared dead, or replaced by a newer incarnation, and must exit.
    Fenced,
}

/// State of the job at a tick, for the progress line.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Seen {
    /// Samples per second of all workers together, over the monitor's short window.
    pub samples_per_second: f64,
    /// Number of workers that take part.
    pub members: usize,
    /// Number of stragglers, of workers and servers.
    pub stragglers: usize,
}
