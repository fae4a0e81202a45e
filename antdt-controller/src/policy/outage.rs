//! [`Outage`]: what it costs a job that all its servers hand their parameters over.

use std::time::Duration;

use antdt_core::{ClusterView, NodeStatus, NodeView, Pace, Reason, StragglerKind};

/// What it costs a job that all its servers hand their parameters over.
pub(super) struct Outage {
    /// How long all workers stand still, in seconds.
    stops: f64,
    /// Part of a step in which they wait for servers, at most.
    pub(super) waits: f64,
}

impl Outage {
    /// The outage for the sake of this server.
    ///
    /// # Errors
    /// Why none is thought of.
    pub(super) fn of(view: &ClusterView, server: &NodeView, pause: Duration) -> Result<Self, Reason> {
        let id = server.id;
        let is = if server.pace.is_straggler() { "is slow" } else { "is slow no more" };
        let not = |why: &str| Err(Reason::Other(format!("{id} {is}; {why}")));
        if !view.hands_over {
            return not("the job takes no checkpoints, through which it could hand its parameters over");
        }
        let passes = server.pace.is_straggler() && server.pace != Pace::Straggler(StragglerKind::Persistent);
        if server.status != NodeStatus::Running || passes {
            return not("nothing is done while that may pass");
        }
        let Some(step) = view.step.filter(|step| !step.time.is_zero()) else {
            return not("how long workers wait for it is not known in this sync mode");
        };
        let Some(checkpoint) = view.checkpoint_time else {
            return not("how long the job would stand still is not known before its first checkpoint");
        };
        let waits = step.overhead.as_secs_f64() / step.time.as_secs_f64();
        // Reading a checkpoint is taken to need as long as writing it.
        let stops = view.scheduler.start_delay + pause + checkpoint * 2;
        Ok(Self { stops: stops.as_secs_f64(), waits })
    }

    /// How long the job must go on for the outage to pay, if it saves this part of the time that workers wait for servers.
    pub(super) fn break_even(&self, saves: f64) -> Duration {
        Duration::try_from_secs_f64(self.stops / (self.waits * saves)).unwrap_or(Duration::MAX)
    }
}
