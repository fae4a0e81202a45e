//! [`Rollbacks`]: returns of the running job to its newest checkpoint, when the model is lost but the job is not.
//!
//! The model is lost with a server, of which each has a part, or with the last worker that has a replica. Then model and ledger
//! go back to one moment together: the newest checkpoint, or the start of the job if there is none. What was trained since is
//! undone and trained again, so that every sample is in the final model once for each epoch.
//!
//! Workers keep their processes. Each takes part again with its next question for a group; until it has done so, it speaks of
//! what is undone, and nothing that it says counts.
//!
//! Source: rollback recovery from a coordinated checkpoint (Chandy and Lamport, 1985; recalled); the rest is our design.

use std::sync::Arc;
use std::time::Duration;

use antdt_controller::Relaunch;
use antdt_core::{Counts, Exit, Holder, JobTime, NodeStatus, RollbackId};

use super::core::Phase;
use super::timers::Timers;
use super::{EventKind, Head, HeadEffect, lives};

/// How long it may take to find the newest checkpoint, to verify it, and to set the ledger back: as long as to write one.
const RESTORE_LIMIT: Duration = Duration::from_secs(1800);

/// State of the job that the ledger was set back to.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RolledBack {
    /// Location of the checkpoint that models start from; `None` if they start from the job's initial
    /// parameters.
    pub checkpoint: Option<Arc<str>>,
    /// Sample counts of the ledger after the rollback.
    pub counts: Counts,
    /// Description of the state, for the user.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The job trains.
    Over,
    /// The ledger is being set back.
    Restoring {
        /// The answer is due by then.
        until: JobTime,
    },
    /// The ledger is set back, and servers start from the checkpoint.
    Starting,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub(super) struct Rollbacks {
    newest: RollbackId,
    stage: Stage,
    /// Why one is to begin.
    wanted: Option<String>,
    checkpoint: Option<Arc<str>>,
    /// Lives to be started when the ledger is set back, and how long to wait before.
    launches: (Vec<Holder>, Duration),
}

impl Rollbacks {
    pub(super) const fn new() -> Self {
        Self {
            newest: RollbackId(0),
            stage: Stage::Over,
            wanted: None,
            checkpoint: None,
            launches: (Vec::new(), Duration::ZERO),
        }
    }

    /// Rollbacks up to this one began under an earlier master.
    pub(super) const fn continue_after(&mut self, newest: RollbackId) {
        self.newest = newest;
    }

    /// Number of the newest one; 0 before the first.
    pub(super) const fn newest(&self) -> RollbackId {
        self.newest
    }

    /// Place of the checkpoint that models start from.
    pub(super) fn checkpoint(&self) -> Option<Arc<str>> {
        self.checkpoint.clone()
    }

    /// Whether one is wanted or under way: no worker trains.
    pub(super) const fn is_busy(&self) -> bool {
        self.wanted.is_some() || !matches!(self.stage, Stage::Over)
    }

    /// The model is lost; one that begins soon is reason enough for all.
    pub(super) fn want(&mut self, why: String) {
        self.wanted.get_or_insert(why);
    }

    /// Takes out why one is to begin, if one is.
    pub(super) const fn take_wanted(&mut self) -> Option<String> {
        self.wanted.take()
    }

    /// Begins one. It replaces one that is under way: the checkpoint is looked for again.
    pub(super) fn begin(&mut self, now: JobTime) -> RollbackId {
        self.newest = self.newest.next();
        self.stage = Stage::Restoring { until: now + RESTORE_LIMIT };
        self.launches.1 = Duration::ZERO;
        self.newest
    }

    /// This life is to be started when the ledger is set back, and no life before so much time has passed then.
    pub(super) fn launch_later(&mut self, holder: Holder, after: Duration) {
        self.launches.0.retain(|other| other.node != holder.node);
        self.launches.0.push(holder);
        self.launches.1 = self.launches.1.max(after);
    }

    /// The ledger is set back. Returns which lives to start after which time; `None` if it is no answer to the newest rollback.
    pub(super) fn restored(
        &mut self,
        rollback: RollbackId,
        checkpoint: Option<Arc<str>>,
    ) -> Option<(Vec<Holder>, Duration)> {
        if rollback != self.newest || !matches!(self.stage, Stage::Restoring { .. }) {
            return None;
        }
        self.stage = Stage::Starting;
        self.checkpoint = checkpoint;
        Some(std::mem::take(&mut self.launches))
    }

    /// The servers are up, or there are none. Returns whether that ends a rollback.
    pub(super) fn started(&mut self) -> bool {
        let ends = self.stage == Stage::Starting && self.wanted.is_none();
        if ends {
            self.stage = Stage::Over;
        }
        ends
    }

    /// Whether the ledger is still to be set back.
    pub(super) const fn is_restoring(&self) -> bool {
        matches!(self.stage, Stage::Restoring { .. })
    }

    /// When the ledger must be set back.
    pub(super) const fn deadline(&self) -> Option<JobTime> {
        match self.stage {
            Stage::Restoring { until } => Some(until),
            Stage::Starting | Stage::Over => None,
        }
    }
}

impl Head {
    /// Begins the rollback that is wanted, if one is: from now on nothing counts that was trained since the checkpoint.
    pub(super) fn begin_rollback(&mut self, now: JobTime) {
        let Some(why) = self.core.rollbacks.take_wanted() else { return };
        if self.core.phase == Phase::Over {
            return;
        }
        let rollback = self.core.rollbacks.begin(now);
        let handover = self.handover.take();
        if let Some(evaluations) = &mut self.evaluations {
            evaluations.forget();
        }
        let text = match &handover {
            Some(handover) if handover.is_taken() => {
                format!("{why}; all servers start again from the checkpoint that was taken for it")
            }
            _ => format!("{why}; the job goes back to its newest checkpoint"),
        };
        self.core.event(now, None, EventKind::Rollback, text);
        let told = self.checkpoints.as_mut().map_or_else(Vec::new, |checkpoints| checkpoints.roll_back(now));
        self.doubts = Timers::new();
        self.mode.set_back(now, &mut self.core);
        for (old, next) in self.core.set_back(now) {
            // Its end, however late the news of it, is that of an older life.
            self.core.effects.push_back(HeadEffect::Kill(old));
            self.restarts.give_up(old.node);
            self.core.rollbacks.launch_later(next, Duration::ZERO);
            self.restarts.forget(old);
        }
        if let Some(handover) = handover {
            for next in self.core.resize_servers(handover.servers()) {
                self.core.rollbacks.launch_later(next, Duration::ZERO);
            }
            self.core.reweigh_servers(handover.weights());
        }
        // A worker that stands still goes on when no server is left that would take a push.
        for told in told {
            self.core.tell_rested(told);
        }
        self.core.effects.push_back(HeadEffect::RollBack(rollback));
        self.stop_if_kept(now);
    }

    /// The ledger was set back: starts what is missing.
    pub(super) fn rolled_back(
        &mut self,
        now: JobTime,
        rollback: RollbackId,
        outcome: Result<RolledBack, String>,
    ) {
        let is_asked = rollback == self.core.rollbacks.newest() && self.core.rollbacks.is_restoring();
        if !is_asked || self.core.phase == Phase::Over {
            return;
        }
        let RolledBack { checkpoint, counts, text } = match outcome {
            Ok(to) => to,
            Err(why) => {
                self.core.fail(format!("the model was lost, and the job cannot go back: {why}"));
                return;
            }
        };
        self.core.counts = counts;
        self.core.event(now, None, EventKind::Rollback, text);
        self.set_evaluations_back();
        let Some((launches, after)) = self.core.rollbacks.restored(rollback, checkpoint) else { return };
        for holder in launches {
            // What the job did meanwhile stands: a worker that it wants no more, and a newer life of one it wants again.
            let node = &self.core.nodes[holder.node];
            let is_newer = node.incarnation > holder.incarnation
                || (node.incarnation == holder.incarnation && node.status != NodeStatus::Lost);
            if node.retired || is_newer {
                continue;
            }
            self.restarts.launch_at(now + after, holder);
        }
        self.launch_due_nodes(now);
        if self.core.knows_servers() {
            self.go_on(now);
        }
    }

    /// The servers are known, if the job has any: workers may begin, or begin again.
    pub(super) fn go_on(&mut self, now: JobTime) {
        self.core.rollbacks.started();
        if self.core.rollbacks.is_busy() {
            return;
        }
        self.servers_began(now);
        let started = self.core.started;
        self.mode.go_on(now, &mut self.core);
        self.note_start(now, started);
        self.let_held_join(now);
    }

    pub(super) fn rollback_deadline(&mut self, now: JobTime) {
        if self.core.rollbacks.deadline().is_some_and(|at| at <= now) {
            self.core.fail("the model was lost, and it took too long to set the ledger back".to_owned());
        }
        for (node, holder) in self.doubts.take_due(now) {
            self.held_joins.retain(|(other, _)| *other != holder);
            let text = format!("{holder} cannot reach a server that others can; it is started again");
            self.core.event(now, Some(node), EventKind::Lost, text);
            // Its exit, which the launcher tells, does the rest.
            self.core.effects.push_back(HeadEffect::Kill(holder));
        }
    }

    /// The end of a server, or of the worker with the only copy of the model: it is started again within its budget, and the job
    /// goes back.
    pub(super) fn model_ended(&mut self, now: JobTime, holder: Holder, exit: Exit, tail: &[String]) {
        let lost = format!(
            "{} ended ({exit}), and the parameters it held with it{}",
            holder.node,
            lives::last_words(tail)
        );
        if !self.core.config.can_roll_back {
            self.core.fail(lost);
            return;
        }
        match self.restarts.exited(holder, exit) {
            Relaunch::Repeated => {}
            Relaunch::Again { after, reason, holder: next } => {
                self.core.action(now, "RESTART", holder.node.to_string(), reason.to_string());
                self.core.rollbacks.want(lost);
                self.begin_rollback(now);
                self.core.rollbacks.launch_later(next, after);
            }
            Relaunch::Finished | Relaunch::Hopeless(_) => self.core.fail(lost),
            Relaunch::Exhausted(_) => {
                let limit = self.core.config.max_restarts;
                let text = format!("{lost}; it was restarted {limit} times already (--max-restarts)");
                self.core.fail(text);
            }
        }
    }
}
