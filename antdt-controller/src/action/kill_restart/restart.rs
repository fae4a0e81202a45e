//! [`RestartSaga`]: the restart of one node, step by step.
//!
//! ```text
//! Draining ── left, ended or deadline ──▶ Killing ── ended ──▶ Pending ── started ──▶ Starting ── registered ──▶ Rejoined
//!                                            └── deadline ──────┴── deadline, ended ──┴──▶ Failed
//! ```
//!
//! The old incarnation is fenced before it is killed, even if it drained in order: from then on none of its
//! messages changes anything. Both effects come out of one mutation, and effects are carried out in order, so
//! there is no state in between.
//!
//! If it turns out that only the old incarnation has the model, that incarnation is not killed:
//! [`RestartEvent::Needed`].
//!
//! Every event names an incarnation. Repeated, late and reordered events, and those of other incarnations,
//! change nothing; so there is at most one kill and one launch per action, and the replacement can never be
//! hit.

use std::collections::VecDeque;
use std::time::Duration;

use antdt_core::{ActionId, ActionOutcome, Holder, JobTime, Machine, NodeAction, NodeActionKind};

/// How soon a life that may not be killed now is looked at again. No process waits for the restart, and a check costs nothing.
const NEEDED_FOR: Duration = Duration::from_secs(1);

/// Time limits of the steps of a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartConfig {
    /// Limit from the kill to the report that the process ended. Default 10 s.
    pub kill_limit: Duration,
    /// Limit from the request for a new process to its start. Default 300 s: a cluster may have to find a
    /// place for the process.
    pub pending_limit: Duration,
    /// Limit from the start of the process to its registration. Default 120 s: frameworks are slow to load.
    pub starting_limit: Duration,
}

impl Default for RestartConfig {
    fn default() -> Self {
        Self {
            kill_limit: Duration::from_secs(10),
            pending_limit: Duration::from_secs(300),
            starting_limit: Duration::from_secs(120),
        }
    }
}

/// State of a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartState {
    /// The old incarnation may finish its batch.
    Draining,
    /// The old incarnation is fenced and was killed; the launcher has not reported its end yet.
    Killing,
    /// A new process was requested.
    Pending,
    /// The new process runs and has not registered yet.
    Starting,
    /// The new incarnation has registered: the restart succeeded.
    Rejoined,
    /// The restart was given up.
    Failed,
}

/// An input of a [`RestartSaga`]. Each names the incarnation that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartEvent {
    /// The incarnation must not be killed now, because only it has the model. It may still leave by itself.
    Needed(Holder),
    /// The incarnation committed its last batch and gave its leases back.
    Drained(Holder),
    /// The process of this incarnation ended.
    Exited(Holder),
    /// The process of this incarnation runs.
    Started(Holder),
    /// The process of this incarnation could not be started.
    LaunchFailed(Holder),
    /// The incarnation registered with the master.
    Registered(Holder),
}

/// Effect that the driver of a [`RestartSaga`] must carry out.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RestartEffect {
    /// Ask the incarnation to finish its batch, give its leases back and leave.
    Drain(Holder),
    /// Refuse every message of this incarnation from now on, and let others have its leases.
    Fence(Holder),
    /// Kill the process of this incarnation.
    Kill(Holder),
    /// Start a process for this incarnation.
    Launch(Holder),
    /// Report the outcome to the [`Dispatcher`](crate::Dispatcher).
    Outcome(ActionOutcome),
}

/// The restart of one node, as a state machine.
#[derive(Debug, Clone)]
pub struct RestartSaga {
    id: ActionId,
    config: RestartConfig,
    begun: JobTime,
    old: Holder,
    state: RestartState,
    deadline: Option<JobTime>,
    effects: VecDeque<RestartEffect>,
}

impl RestartSaga {
    /// Begins a restart: returns the saga, whose first effect asks the old incarnation to drain.
    pub fn begin(now: JobTime, action: &NodeAction, config: RestartConfig) -> Self {
        // A kind that is unknown here drains at once: a restart is the least that every kind includes.
        let drain = match action.kind {
            NodeActionKind::KillRestart { drain } => drain,
            _ => Duration::ZERO,
        };
        Self {
            id: action.id,
            config,
            begun: now,
            old: action.target,
            state: RestartState::Draining,
            deadline: Some(now + drain),
            effects: VecDeque::from([RestartEffect::Drain(action.target)]),
        }
    }

    /// Returns the id of the action that asked for the restart.
    pub const fn id(&self) -> ActionId {
        self.id
    }

    /// Returns the state of the restart.
    pub const fn state(&self) -> RestartState {
        self.state
    }

    /// Returns whether the restart has succeeded or was given up.
    pub const fn is_over(&self) -> bool {
        matches!(self.state, RestartState::Rejoined | RestartState::Failed)
    }

    /// Returns the incarnation that is replaced.
    pub const fn old(&self) -> Holder {
        self.old
    }

    /// Returns the incarnation that replaces the old one.
    pub const fn replacement(&self) -> Holder {
        Holder::new(self.old.node, self.old.incarnation.next())
    }

    /// Applies an event at `now`; the effects that follow from it are queued.
    pub fn event(&mut self, now: JobTime, event: RestartEvent) {
        use RestartState as S;
        let (old, new) = (self.old, self.replacement());
        match (self.state, event) {
            (S::Draining, RestartEvent::Needed(holder)) if holder == old => {
                self.deadline = self.deadline.map(|deadline| deadline.max(now + NEEDED_FOR));
            }
            (S::Draining, RestartEvent::Drained(holder)) if holder == old => self.kill(now),
            // It ended by itself: there is nothing to kill, but it is fenced all the same.
            (S::Draining, RestartEvent::Exited(holder)) if holder == old => {
                self.effects.push_back(RestartEffect::Fence(old));
                self.launch(now);
            }
            (S::Killing, RestartEvent::Exited(holder)) if holder == old => self.launch(now),
            (S::Pending, RestartEvent::Started(holder)) if holder == new => {
                self.state = S::Starting;
                self.deadline = Some(now + self.config.starting_limit);
            }
            // The news of its start may be overtaken by its registration.
            (S::Pending | S::Starting, RestartEvent::Registered(holder)) if holder == new => {
                let outcome =
                    ActionOutcome::Restarted { id: self.id, holder: new, took: now.since(self.begun) };
                self.finish(S::Rejoined, outcome);
            }
            (S::Pending | S::Starting, RestartEvent::Exited(holder)) if holder == new => {
                self.fail(format!("{new} ended before it registered"));
            }
            (S::Pending | S::Starting, RestartEvent::LaunchFailed(holder)) if holder == new => {
                self.fail(format!("{new} could not be started"));
            }
            // Repeated, late, reordered, or about another life.
            (S::Draining | S::Killing | S::Pending | S::Starting | S::Rejoined | S::Failed, _) => {}
        }
    }

    fn kill(&mut self, now: JobTime) {
        self.effects.extend([RestartEffect::Fence(self.old), RestartEffect::Kill(self.old)]);
        self.state = RestartState::Killing;
        self.deadline = Some(now + self.config.kill_limit);
    }

    fn launch(&mut self, now: JobTime) {
        self.effects.push_back(RestartEffect::Launch(self.replacement()));
        self.state = RestartState::Pending;
        self.deadline = Some(now + self.config.pending_limit);
    }

    fn fail(&mut self, why: String) {
        let outcome = ActionOutcome::RestartFailed { id: self.id, why };
        self.finish(RestartState::Failed, outcome);
    }

    fn finish(&mut self, state: RestartState, outcome: ActionOutcome) {
        self.state = state;
        self.deadline = None;
        self.effects.push_back(RestartEffect::Outcome(outcome));
    }
}

impl Machine for RestartSaga {
    type Event = RestartEvent;
    type Answer = ();
    type Effect = RestartEffect;

    fn handle(&mut self, now: JobTime, event: RestartEvent) {
        self.event(now, event);
    }

    fn poll_effect(&mut self) -> Option<RestartEffect> {
        self.effects.pop_front()
    }

    fn deadline(&self) -> Option<JobTime> {
        self.deadline
    }

    fn on_deadline(&mut self, now: JobTime) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        let new = self.replacement();
        match self.state {
            RestartState::Draining => self.kill(now),
            RestartState::Killing => self.fail(format!("{} did not end after it was killed", self.old)),
            RestartState::Pending => {
                self.fail(format!("{new} was not started in {:?}", self.config.pending_limit));
            }
            RestartState::Starting => {
                // It may be stuck: the next life must not meet it.
                self.effects.extend([RestartEffect::Fence(new), RestartEffect::Kill(new)]);
                self.fail(format!(
                    "{new} did not register within {:?} of its start",
                    self.config.starting_limit
                ));
            }
            RestartState::Rejoined | RestartState::Failed => {}
        }
    }
}

#[cfg(test)]
mod tests;
