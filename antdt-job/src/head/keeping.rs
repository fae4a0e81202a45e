//! Checkpoints of a job as its head takes them, and the end of a job that waits for one.

use std::time::Duration;

use antdt_core::{CheckpointId, Counts, Holder, JobTime, NodeId};

use super::checkpoints::{Checkpoints, Rested};
use super::core::Phase;
use super::{EventKind, Head, HeadAnswer, Note};

/// How long a job that was told to stop may take for its checkpoint.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(30);

impl Head {
    /// Begins a checkpoint that is due, or one that is asked for. Not once the job is over: its processes end, which looks as if
    /// their platform took them back, and servers close their connections.
    pub(super) fn begin_checkpoint(&mut self, now: JobTime, asked: bool) {
        if self.core.phase == Phase::Over {
            return;
        }
        let Counts { acked, total, .. } = self.core.counts;
        let Some(checkpoints) = &mut self.checkpoints else { return };
        if checkpoints.is_busy() || !(asked || checkpoints.is_due(now, acked, total)) {
            return;
        }
        // A worker that is about to leave is no help.
        let stays = |holder: &Holder| !self.core.draining.contains(holder) && self.mode.may_keep(*holder);
        let Some(first) = self.core.joined.iter().find(stays) else { return };
        let keeper = self.core.capabilities().waits_for_a_keeper().then_some(first);
        checkpoints.begin(now, keeper, acked, total);
    }

    /// Tells the mode when a checkpoint begins to wait for its keeper, and when its copies exist or it is given up.
    pub(super) fn note_keeping(&mut self, now: JobTime) {
        let keeping = self.checkpoints.as_ref().is_some_and(Checkpoints::is_gathering);
        if keeping != std::mem::replace(&mut self.keeping, keeping) {
            self.mode.keeping(now, &mut self.core, keeping);
        }
    }

    pub(super) fn rest(&mut self, now: JobTime, holder: Holder, checkpoint: CheckpointId) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        let told = match &mut self.checkpoints {
            Some(checkpoints) => checkpoints.rests(holder, checkpoint, self.core.joined.iter()),
            None => Some(Rested { holder, checkpoint, keep: false }),
        };
        self.tell_rested(now, told);
        HeadAnswer::Parked
    }

    pub(super) fn tell_rested(&mut self, now: JobTime, told: impl IntoIterator<Item = Rested>) {
        for told in told {
            self.core.tell_rested(told);
        }
        self.let_held_join(now);
    }

    pub(super) fn cut(&mut self, now: JobTime, checkpoint: CheckpointId, taken: Result<(), String>) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        let told = checkpoints.cut(now, checkpoint, taken.is_ok());
        if let Err(why) = taken {
            if checkpoints.last_of_all() == Some(checkpoint) {
                checkpoints.without_last();
            }
            // Servers end with the job, and what is copied from them then is for nothing.
            if self.core.phase != Phase::Over {
                self.lacks_checkpoint(now, None, format!("checkpoint {checkpoint} was not taken: {why}"));
            }
            self.keep_servers(now, checkpoint, &why);
            self.last_ended = Some((checkpoint, Err(why)));
        }
        self.tell_rested(now, told);
        self.end_if_done(now);
    }

    pub(super) fn stored(&self, checkpoint: CheckpointId) -> HeadAnswer {
        if self.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.may_complete(checkpoint)) {
            return HeadAnswer::Noted;
        }
        HeadAnswer::Refused(format!("checkpoint {checkpoint} was given up"))
    }

    pub(super) fn kept(&mut self, now: JobTime, checkpoint: CheckpointId, outcome: Result<String, String>) {
        let Some(checkpoints) = &self.checkpoints else { return };
        let is_kept = outcome.is_ok();
        if let Some(took) = checkpoints.writes_for(now, checkpoint).filter(|_| is_kept) {
            self.core.checkpoint_time = Some(took);
            self.core.note(now, Note::Stored(took));
        }
        let overtaken = checkpoints.overtaken(checkpoint);
        match (&outcome, overtaken) {
            (Ok(place), _) => {
                let text = format!("checkpoint {checkpoint} is complete: {place}");
                self.core.event(now, None, EventKind::Checkpoint, text);
            }
            (Err(_), Some(newer)) => {
                let text =
                    format!("checkpoint {checkpoint} is given up: {newer}, which is newer, is complete");
                self.core.event(now, None, EventKind::Checkpoint, text);
            }
            (Err(why), None) => {
                self.lacks_checkpoint(now, None, format!("checkpoint {checkpoint} was not written: {why}"));
            }
        }
        match &outcome {
            Ok(_) => self.hand_over(now, checkpoint),
            Err(why) => self.keep_servers(now, checkpoint, why),
        }
        self.last_ended = Some((checkpoint, outcome));
        let Some(checkpoints) = &mut self.checkpoints else { return };
        let told = checkpoints.ended(now, checkpoint, is_kept);
        self.tell_rested(now, told);
        if is_kept {
            self.end_preempted();
        }
        self.end_if_done(now);
    }

    /// A worker is gone that may have been waited for.
    pub(super) fn gone_from_checkpoint(&mut self, now: JobTime, holder: Holder) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        // Otherwise servers write, and its end changes nothing for them.
        let writes = self.core.config.sync.capabilities().workers_have_model();
        let told = checkpoints.gone(now, holder, writes, self.core.joined.iter());
        self.tell_rested(now, told);
        self.stop_if_kept(now);
    }

    /// Gives up a checkpoint that takes too long, and a stop that waits for one.
    pub(super) fn checkpoint_deadline(&mut self, now: JobTime) {
        if let Some(checkpoint) =
            self.checkpoints.as_mut().and_then(|checkpoints| checkpoints.give_up_last(now))
        {
            let text = format!("the last checkpoint, {checkpoint}, was given up: it took too long");
            self.lacks_checkpoint(now, None, text);
            self.end_if_done(now);
        }
        if let Some(checkpoints) = &mut self.checkpoints
            && checkpoints.deadline().is_some_and(|at| at <= now)
        {
            let checkpoint = checkpoints.attempt_id();
            let told = checkpoints.give_up(now);
            let text = format!("checkpoint {checkpoint} was given up: it took too long");
            self.lacks_checkpoint(now, None, text);
            self.keep_servers(now, checkpoint, "it took too long");
            self.last_ended = Some((checkpoint, Err("it took too long".to_owned())));
            self.tell_rested(now, told);
        }
        self.stop_if_kept(now);
    }

    /// Ends the job for good, after its checkpoint if it can take one.
    pub(super) fn stop(&mut self, now: JobTime, why: String) {
        let can = self.stopping.is_none()
            && self.checkpoints.is_some()
            && self.core.phase == Phase::Running
            && self.core.started;
        if can && !self.core.is_complete() {
            self.begin_checkpoint(now, true);
        }
        let busy = self.checkpoints.as_ref().is_some_and(Checkpoints::is_busy);
        // A resumed job goes on from a checkpoint of the end, and evaluates nothing before it.
        if can && (busy || self.is_keeping_last() || self.core.is_evaluating()) {
            self.stopping = Some((now + STOP_LIMIT, why));
        } else {
            self.stopped(why);
        }
    }

    /// Whether the checkpoint is under way that the worker takes that saw the end of the data.
    pub(super) fn is_keeping_last(&self) -> bool {
        self.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.last_of_all().is_some())
    }

    pub(super) fn stop_if_kept(&mut self, now: JobTime) {
        // The data may have come to its end meanwhile: then the last checkpoint and the evaluation are waited for, too.
        let under_way = self.checkpoints.as_ref().and_then(|checkpoints| {
            checkpoints.is_busy().then(|| checkpoints.attempt_id()).or_else(|| checkpoints.last_of_all())
        });
        let busy = under_way.is_some() || self.core.is_evaluating();
        if let Some((_, why)) = self.stopping.take_if(|(until, _)| !busy || *until <= now) {
            if let Some(checkpoint) = under_way {
                let text =
                    format!("checkpoint {checkpoint} was given up: a job that ends does not wait longer");
                self.lacks_checkpoint(now, None, text);
            }
            self.stopped(why);
        }
    }

    /// The job ends because it was told to stop, or to go on in another mode.
    pub(super) fn stopped(&mut self, why: String) {
        match self.next_mode.take() {
            Some(mode) => self.core.go_on(mode),
            None => self.core.fail(why),
        }
    }

    pub(super) fn end_if_done(&mut self, now: JobTime) {
        if !self.is_keeping_last() && self.core.is_done() {
            self.enter_evaluation(now);
        }
        self.stop_if_kept(now);
        if !self.is_keeping_last() && self.core.is_done() && self.ends_with_epoch(now) {
            self.core.end(now);
        }
    }

    /// There is no checkpoint that is newer than the newest, as the text says.
    pub(super) fn lacks_checkpoint(&mut self, now: JobTime, node: Option<NodeId>, text: String) {
        self.no_checkpoint = Some(text.clone());
        self.core.event(now, node, EventKind::NoCheckpoint, text);
    }
}
