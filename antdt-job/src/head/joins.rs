//! Workers that ask for a group or a commit, and those that wait until they are let in.

use antdt_core::{Holder, JobTime, Readiness, Role, Standing};

use super::checkpoints::Checkpoints;
use super::core::Phase;
use super::{Head, HeadAnswer};

impl Head {
    pub(super) fn join(&mut self, now: JobTime, holder: Holder, standing: Standing) -> HeadAnswer {
        let waits = self.waits_for_evaluation(holder);
        if !(self.core.may_ask(holder) || waits) || holder.node.role != Role::Worker {
            return HeadAnswer::Fenced;
        }
        if self.core.phase == Phase::Over {
            self.core.send_home(holder);
            return HeadAnswer::Parked;
        }
        // It was let in, and comes back because it has lost a server. If that has ended, the news of it is on its way.
        let doubts = self.core.capabilities().needs_servers()
            && standing.group.0 > 0
            && self.core.joined.contains(holder)
            && !self.core.is_undone(holder)
            && !self.core.rollbacks.is_busy();
        if doubts {
            let limit = self.core.config.monitor.liveness.lost_after.saturating_mul(2);
            self.doubts.set(holder.node, now + limit, holder);
        }
        if doubts || waits || self.holds_joins() {
            self.held_joins.retain(|(other, _)| *other != holder);
            self.held_joins.push((holder, standing));
            return HeadAnswer::Parked;
        }
        self.let_join(now, holder, standing);
        HeadAnswer::Parked
    }

    /// Whether a worker has left at the end of an epoch, whose evaluation is not over.
    fn waits_for_evaluation(&self, holder: Holder) -> bool {
        self.core.is_current(holder)
            && self.evaluations.as_ref().is_some_and(|evaluations| evaluations.is_waiting(holder))
    }

    /// Whether workers that come have to wait, for a checkpoint or a rollback.
    pub(super) fn holds_joins(&self) -> bool {
        self.core.rollbacks.is_busy() || self.checkpoints.as_ref().is_some_and(Checkpoints::holds_joins)
    }

    pub(super) fn let_held_join(&mut self, now: JobTime) {
        if self.holds_joins() {
            return;
        }
        for (holder, standing) in std::mem::take(&mut self.held_joins) {
            if self.doubts.contains(holder.node) || self.waits_for_evaluation(holder) {
                self.held_joins.push((holder, standing));
            } else if self.core.is_current(holder) && self.core.phase == Phase::Running {
                self.let_join(now, holder, standing);
            }
        }
    }

    pub(super) fn let_join(&mut self, now: JobTime, holder: Holder, standing: Standing) {
        let started = self.core.started;
        self.mode.joining(now, &mut self.core, holder, standing);
        self.note_start(now, started);
    }

    /// Tells the checkpoints that training began, if it had not `before`.
    pub(super) fn note_start(&mut self, now: JobTime, before: bool) {
        if !before
            && self.core.started
            && let Some(checkpoints) = &mut self.checkpoints
        {
            checkpoints.started(now, self.core.counts.acked, self.core.counts.total);
        }
    }

    pub(super) fn ready(
        &mut self,
        now: JobTime,
        holder: Holder,
        step: u64,
        readiness: Readiness,
    ) -> HeadAnswer {
        if !self.core.may_ask(holder) {
            return HeadAnswer::Fenced;
        }
        if self.core.is_undone(holder) {
            return HeadAnswer::Undone;
        }
        match self.mode.ready(now, &mut self.core, holder, step, readiness) {
            Ok(()) => HeadAnswer::Parked,
            Err(why) => HeadAnswer::Refused(why),
        }
    }
}
