//! [`Evaluations`]: the ends of epochs after which a job evaluates its model and goes on.
//!
//! The ledger hands out the epochs up to the next evaluation. At their end workers leave as at the end of a job: one takes a
//! checkpoint and evaluates the model, and all of them ask to join again. What was found decides whether the job ends early.
//! Otherwise the ledger hands out further epochs, and the job goes on from that checkpoint as after a rollback: workers keep their
//! processes, servers start again with the parameters of the checkpoint.
//!
//! Source: our design.

use std::collections::BTreeSet;

use antdt_core::{CheckpointId, Counts, Holder, JobTime, Metrics, NodeStatus};

use super::checkpoints::Checkpoints;
use super::core::Phase;
use super::{Head, HeadAnswer, HeadEffect, Note};
use crate::evaluation::{EarlyStopping, EvalEvery, EvaluationEntry, EvaluationVerdict};

/// Settings of the evaluations between the epochs of a job.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EvaluationSchedule {
    /// Number of epochs from one evaluation to the next, at least 1.
    pub every: u32,
    /// Number of epochs of the job.
    pub epochs: u32,
    /// Number of samples of one epoch, at least 1.
    pub samples: u64,
    /// Number of samples of the job that are done when it begins.
    pub done: u64,
    /// Rule by which the job ends early; `None` if it trains all epochs.
    pub stopping: Option<EarlyStopping>,
    /// Evaluations that the job has behind it, in order; one without samples is not tried again.
    pub earlier: Vec<EvaluationEntry>,
}

/// What follows the end of an epoch.
#[derive(Debug, PartialEq, Eq)]
enum AfterEpoch {
    /// The job goes on, up to the end of this epoch.
    GoOn(u32),
    /// The job is over.
    End,
    /// The job is over before its last epoch, for this reason.
    EndEarly(String),
    /// The job has failed.
    Fail(String),
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub(super) struct Evaluations {
    schedule: EvaluationSchedule,
    /// The epoch after which the model is evaluated next.
    until: u32,
    found: Vec<EvaluationEntry>,
    /// What the evaluation after that epoch found: samples and metrics.
    last: Option<(u64, Metrics)>,
    /// The checkpoint with the model at the end of that epoch, once one is to be taken.
    checkpoint: Option<CheckpointId>,
    /// Lives that have left at the end of that epoch and ask to join again.
    waiting: BTreeSet<Holder>,
}

impl Evaluations {
    pub(super) fn new(schedule: EvaluationSchedule) -> Self {
        let found = schedule.earlier.clone();
        let (last, checkpoint, waiting) = (None, None, BTreeSet::new());
        let mut evaluations = Self { until: 0, found, last, checkpoint, waiting, schedule };
        evaluations.until = evaluations.next(evaluations.schedule.done);
        evaluations
    }

    /// The epoch up to whose end a job trains of which so many samples are done: that of an evaluation which it lacks comes first.
    fn next(&self, done: u64) -> u32 {
        let EvaluationSchedule { every, epochs, samples, .. } = self.schedule;
        let epoch = u32::try_from(done / samples.max(1)).unwrap_or(u32::MAX);
        let every = EvalEvery::Epochs(every);
        let lacks = done == samples * u64::from(epoch)
            && every.is_after(epoch, epochs)
            && !self.found.iter().any(|found| found.epoch == epoch);
        if lacks { epoch } else { every.next(epoch, epochs) }
    }

    /// The epoch after which the model is evaluated next.
    pub(super) const fn until(&self) -> u32 {
        self.until
    }

    /// Goes on where an earlier master was.
    pub(super) const fn continue_until(&mut self, until: u32) {
        if until > 0 {
            self.until = until;
        }
    }

    /// Whether epochs follow the one after which the model is evaluated next.
    pub(super) const fn is_between_epochs(&self) -> bool {
        self.until < self.schedule.epochs
    }

    /// The job has gone back to where so many samples are done. Returns whether another evaluation is next now.
    pub(super) fn set_back(&mut self, counts: Counts) -> bool {
        let next = self.next(counts.acked + counts.quarantined);
        std::mem::replace(&mut self.until, next) != next
    }

    /// A worker takes this checkpoint at the end of the epoch.
    pub(super) fn takes(&mut self, checkpoint: Option<CheckpointId>) {
        self.checkpoint = checkpoint.or(self.checkpoint);
    }

    /// A life has left at the end of the epoch, and asks to join again.
    pub(super) fn wait(&mut self, holder: Holder) {
        self.waiting.insert(holder);
    }

    /// Whether this life waits for the end of an evaluation.
    pub(super) fn is_waiting(&self, holder: Holder) -> bool {
        self.waiting.contains(&holder)
    }

    /// The job goes back: what the end of an epoch has begun is void.
    pub(super) fn forget(&mut self) {
        (self.last, self.checkpoint) = (None, None);
        self.waiting.clear();
    }

    /// Takes the lives out that wait.
    fn take_waiting(&mut self) -> BTreeSet<Holder> {
        std::mem::take(&mut self.waiting)
    }

    /// Enters what the evaluation after this epoch found, if it is over. Returns whether it was not entered before.
    fn enter(&mut self, newest: Option<CheckpointId>) -> bool {
        let epoch = self.until;
        let (samples, metrics) = self.last.take().unwrap_or_default();
        let is_new = !self.found.iter().any(|found| found.epoch == epoch);
        if is_new {
            self.found.retain(|found| found.epoch < epoch);
            let newest = newest.map(|checkpoint| checkpoint.0);
            self.found.push(EvaluationEntry::of(epoch, newest, samples, &metrics));
        }
        is_new
    }

    /// What follows, now that the evaluation is over. `newest` is the newest complete checkpoint, and `failure` why there is none that
    /// is newer.
    fn after_epoch(&self, newest: Option<CheckpointId>, failure: Option<&str>) -> AfterEpoch {
        let has_found = self.found.last().is_some_and(|last| last.epoch == self.until && last.samples > 0);
        let judge = |rule: &EarlyStopping| rule.judge(&self.found);
        match self.schedule.stopping.as_ref().filter(|_| has_found).map(judge) {
            Some(EvaluationVerdict::Unknown(why)) => return AfterEpoch::Fail(why),
            Some(EvaluationVerdict::Stop(why)) if self.is_between_epochs() => {
                return AfterEpoch::EndEarly(why);
            }
            Some(EvaluationVerdict::Stop(_) | EvaluationVerdict::GoOn) | None => {}
        }
        if !self.is_between_epochs() {
            return AfterEpoch::End;
        }
        if self.checkpoint.is_none() || newest < self.checkpoint {
            let (epoch, why) = (self.until, failure.unwrap_or("none was taken"));
            return AfterEpoch::Fail(format!(
                "the model after epoch {epoch} is in no checkpoint, from which the job could go on: {why}"
            ));
        }
        AfterEpoch::GoOn(EvalEvery::Epochs(self.schedule.every).next(self.until, self.schedule.epochs))
    }
}

impl Head {
    /// Whether a worker that sees the end of the data now is to join again after an evaluation.
    pub(super) fn is_between_epochs(&self) -> bool {
        self.core.phase == Phase::Running
            && self.evaluations.as_ref().is_some_and(Evaluations::is_between_epochs)
    }

    /// A worker has evaluated the model.
    pub(super) fn evaluated(
        &mut self,
        now: JobTime,
        holder: Holder,
        samples: u64,
        metrics: Metrics,
    ) -> HeadAnswer {
        if self.core.evaluator == Some(holder) && !self.core.evaluated {
            if let Some(evaluations) = &mut self.evaluations {
                evaluations.last = Some((samples, metrics.clone()));
            }
            self.core.note(now, Note::Evaluated { samples, metrics });
            self.core.evaluated = true;
            self.end_if_done(now);
        }
        HeadAnswer::Noted
    }

    /// All workers have left: enters what was found, for the report and for a job that goes on from here.
    pub(super) fn enter_evaluation(&mut self, now: JobTime) {
        let newest = self.checkpoints.as_ref().and_then(Checkpoints::newest);
        if let Some(evaluations) = &mut self.evaluations
            && evaluations.enter(newest)
            && let Some(entry) = evaluations.found.last().cloned()
        {
            self.core.note(now, Note::EpochEvaluated(entry));
        }
    }

    /// All workers have left at the end of the data, and what was to be evaluated is. Returns whether the job is over with that.
    pub(super) fn ends_with_epoch(&mut self, now: JobTime) -> bool {
        let newest = self.checkpoints.as_ref().and_then(Checkpoints::newest);
        let Some(evaluations) = &self.evaluations else { return true };
        match evaluations.after_epoch(newest, self.no_checkpoint.as_deref()) {
            AfterEpoch::End => true,
            AfterEpoch::EndEarly(why) => {
                self.core.note(now, Note::StoppedEarly(why));
                self.core.note(now, Note::Completed);
                for (holder, _) in std::mem::take(&mut self.held_joins) {
                    self.core.send_home(holder);
                }
                true
            }
            AfterEpoch::Fail(why) => {
                self.core.fail(why);
                false
            }
            AfterEpoch::GoOn(next) => {
                self.go_on_until(now, next);
                false
            }
        }
    }

    /// The job goes on after an evaluation, from the checkpoint that was evaluated.
    fn go_on_until(&mut self, now: JobTime, next: u32) {
        let Some(evaluations) = &mut self.evaluations else { return };
        let epoch = std::mem::replace(&mut evaluations.until, next);
        for holder in evaluations.take_waiting() {
            let node = &self.core.nodes[holder.node];
            let is_here =
                node.incarnation == holder.incarnation && node.status == NodeStatus::Finished && !node.exited;
            let Some(registered) = node.registered.as_ref().filter(|_| is_here) else { continue };
            if self.core.evaluator != Some(holder) {
                self.core.detector.node_joined(now, &registered.info);
            }
            self.core.set_status(holder.node, NodeStatus::Running);
            self.core.membership.register(holder);
        }
        self.core.changes += 1;
        self.core.note(now, Note::NextEpochs(next));
        self.core.effects.push_back(HeadEffect::Epochs(next));
        self.core.rollbacks.want(format!("the model after epoch {epoch} is evaluated"));
        self.begin_rollback(now);
    }

    /// Has the ledger hand out epochs up to the next evaluation, if the job has evaluations.
    pub(super) fn hand_out(&mut self) {
        if let Some(evaluations) = &self.evaluations {
            self.core.effects.push_back(HeadEffect::Epochs(evaluations.until()));
        }
    }

    /// The job has gone back: another evaluation may be next.
    pub(super) fn set_evaluations_back(&mut self) {
        let counts = self.core.counts;
        if self.evaluations.as_mut().is_some_and(|evaluations| evaluations.set_back(counts)) {
            self.core.changes += 1;
            self.hand_out();
        }
    }
}
