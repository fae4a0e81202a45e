//! [`Member`]: the worker half of modes whose model lives in the workers.
//!
//! A member goes through rounds. What it does by itself in one is the [`Round`] of the mode; then all members combine what they
//! bring in two operations. The first gives every member the result (*prepared*), the second says that all have it
//! (*applied*). What a death in between decides is described at `antdt_controller::Membership`.
//!
//! Where models mix, each member averages its own with those of its [`Partners`] only. Then there is no model of all until the members
//! make it: in a *whole* step all average with all. One follows each step after which a member needs it: the keeper of a checkpoint,
//! those that leave or wait for others to come, and all at the end of the data. The mean of all models is the same before and after.

use std::fmt;
use std::sync::Arc;

use antdt_agent::{Batch, Part, SessionState};
use antdt_collective::lanes::{Lanes, Verdict};
use antdt_core::{Holder, Joined, MembershipVersion, Rank, Standing, StepResult};

use crate::mode::{Turn, WorkerHalf};
use crate::worker::{Call, End, Peers, Reply, WorkerCore};

/// Which members average their models in a step, where models mix.
pub(crate) trait Partners: fmt::Debug + Send + Sync {
    /// The members whose models make up that of `me` after this step, in order of rank, `me` among them. `members` are those of the
    /// group and their addresses, in order of rank.
    ///
    /// If `a` is a partner of `b`, then `b` is one of `a`; and the shares of each member's model in those of all add up to one:
    /// then the mean of all models does not change. A member that is not alone in the group has another partner than itself: all commit
    /// a step together, and what it trained in the step would be lost with it.
    fn of(&self, step: u64, me: Rank, members: &[(Holder, String)]) -> Vec<Rank>;
}

/// What a member does by itself until it combines with the others.
///
/// Methods that return `Option<Call>` return `None` when the member has all that it brings to this round.
pub(crate) trait Round: fmt::Debug + Clone + Send + 'static {
    /// Begins or goes on with the round.
    fn begin(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Option<Call>;

    /// A batch is in memory; it may be empty.
    fn loaded(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Option<Call>;

    /// What has to come before the member brings what it has; `None` if nothing.
    fn before_combining(&mut self, _core: &mut WorkerCore) -> Option<Call> {
        None
    }

    /// The batch holds a sample that cannot be read: whether the round ends here. Then it takes the batch back, which is
    /// read again in the next round.
    fn ends_before_fault(&mut self, core: &mut WorkerCore) -> bool;

    /// The reply to a call of the round; the reply itself if it is none.
    fn answered(
        &mut self,
        core: &mut WorkerCore,
        turn: &mut Turn<'_>,
        reply: &Reply,
    ) -> Result<Option<Call>, ()>;

    /// The samples that the member brings.
    fn batch<'a>(&'a self, core: &'a WorkerCore) -> &'a Batch;

    /// Sum of the losses of these samples.
    fn loss_sum(&self, core: &WorkerCore) -> f64;

    /// The group broke, and what was brought is in no model: gives the samples back to be read again, unless the round
    /// keeps what it has done.
    fn aborted(&mut self, core: &mut WorkerCore);

    /// What was brought is in the model of all, and its samples are committed. Nothing of it is kept.
    fn committed(&mut self);

    /// The job went back to a checkpoint, and all that was done is undone. Nothing of it is kept.
    fn rolled_back(&mut self) {
        self.committed();
    }
}

/// What the reply that comes next answers.
#[derive(Debug, Clone, PartialEq, Default)]
enum At {
    /// The round's own call.
    #[default]
    Round,
    /// The survivors have the round that a group broke in; the new group is entered when it is part of the model.
    Settling(Box<Joined>),
    /// The round that was settled is acknowledged.
    Acking(Box<Joined>),
    /// A checkpoint is taken; the next round follows.
    Resting,
    Entering {
        /// Whether a member of the group has a trained model.
        has_source: bool,
    },
    Combining,
    Agreeing,
    Applying(Verdict),
    /// The round is acknowledged.
    Finishing(Verdict),
}

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(crate) struct Member<R> {
    at: At,
    round: R,
    /// The worker has the job's model, which a replacement takes from a survivor.
    trained: bool,
    /// No other worker is in the group.
    alone: bool,
    /// Its rank in the group. The first member stays with the model when all others leave at once.
    rank: Option<Rank>,
    /// The worker was ordered to leave before this round began, and may.
    draining: bool,
    /// The round whose result is here but not yet part of the model.
    prepared: Option<StepResult>,
    /// The newest round in the model.
    applied: Option<StepResult>,
    /// The newest group that the worker was told of.
    group: MembershipVersion,
    /// A call to its other members failed.
    broken: bool,
    /// Its members and their addresses, in order of rank.
    members: Arc<[(Holder, String)]>,
    /// Where models mix: the partners of each average.
    partners: Option<Arc<dyn Partners>>,
    /// Where models mix: all members average with all in the step under way.
    whole: bool,
    /// Where models mix: the model is the mean of all, and no step was taken since.
    is_mean: bool,
}

impl<R: Round> Member<R> {
    pub(crate) fn new(round: R) -> Self {
        Self {
            at: At::default(),
            round,
            members: Arc::default(),
            partners: None,
            whole: false,
            is_mean: false,
            trained: false,
            alone: false,
            rank: None,
            draining: false,
            prepared: None,
            applied: None,
            group: MembershipVersion(0),
            broken: false,
        }
    }

    /// A member that averages with a few others in each step.
    pub(crate) fn mixing(round: R, partners: impl Partners + 'static) -> Self {
        Self { partners: Some(Arc::new(partners)), ..Self::new(round) }
    }

    /// Whether the worker's model is that of the job, as far as it knows.
    const fn has_model_of_all(&self) -> bool {
        self.partners.is_none() || self.is_mean
    }

    /// The members that the worker combines with in the step under way.
    fn peers(&self, core: &WorkerCore) -> Peers {
        match (&self.partners, self.rank) {
            (Some(partners), Some(me)) if !self.whole => {
                Peers::Few(partners.of(core.steps(), me, &self.members))
            }
            _ => Peers::All,
        }
    }

    fn ask(&mut self, core: &mut WorkerCore, at: At, call: Call) -> Call {
        self.at = at;
        core.call(call)
    }

    fn enter(&mut self, core: &mut WorkerCore, joined: Box<Joined>) -> Call {
        core.switch().regroup(joined.membership, &joined.plan);
        self.alone = joined.members.len() == 1;
        let me = (0..).zip(joined.members.iter()).find(|(_, (holder, _))| *holder == core.holder());
        self.rank = me.map(|(rank, _)| Rank(rank));
        self.members = Arc::clone(&joined.members);
        (self.whole, self.is_mean) = (self.alone, false);
        self.ask(core, At::Entering { has_source: joined.source.is_some() }, Call::Enter(joined))
    }

    /// The round that was left open is part of the model.
    fn settled(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, joined: Box<Joined>) -> Call {
        match self.commit(core) {
            Some(call) => {
                self.at = At::Acking(joined);
                core.feed(call)
            }
            None => {
                self.at = At::Acking(joined);
                self.fed(core, turn)
            }
        }
    }

    /// The prepared round is part of the model: returns what acknowledges its samples.
    fn commit(&mut self, core: &mut WorkerCore) -> Option<Call> {
        self.applied = self.prepared.take();
        let batch = self.round.batch(core).clone();
        self.round.committed();
        core.commit_batch(&batch)
    }

    /// A call to the other members failed. Those that still wait in one hear it from the master.
    fn join_from_broken(&mut self, core: &mut WorkerCore) -> Call {
        self.broken = true;
        core.join(self.standing())
    }

    /// The worker is in the group and has its model.
    fn entered(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, has_source: bool) -> Call {
        if has_source && !self.trained {
            // It has the model after this step, but no part in it.
            let step = core.steps().saturating_sub(1);
            self.applied = Some(StepResult { step, contributions: [].into() });
        }
        self.trained = true;
        core.note_plans(turn);
        self.begin(core, turn)
    }

    fn begin(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        if core.is_undone(turn) {
            return core.join(self.standing());
        }
        if self.has_model_of_all()
            && let Some(checkpoint) = turn.session.take_checkpoint()
        {
            core.restart_meter(turn);
            return self.ask(core, At::Resting, Call::Rest(checkpoint));
        }
        self.is_mean = false;
        self.at = At::Round;
        core.offer_plan(turn);
        // A worker that is alone has the only copy of the model. In a larger group all have it once a round was made there.
        self.draining = turn.session.state() == SessionState::Draining && !self.alone;
        let call = self.round.begin(core, turn);
        self.go_on(core, turn, call)
    }

    /// The round's next call, or what the member brings.
    fn go_on(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, call: Option<Call>) -> Call {
        match call.or_else(|| self.round.before_combining(core)) {
            Some(call) => call,
            None => {
                core.enter(turn, Part::Communicate);
                let (batch, peers) = (self.round.batch(core), self.peers(core));
                let (samples, acks) = (batch.len(), core.acks_of(batch));
                let combine = Call::Combine { step: core.steps(), samples, acks, peers };
                self.ask(core, At::Combining, combine)
            }
        }
    }

    /// Everything that was brought is here, but no member knows yet which others have it.
    fn combined(&mut self, core: &mut WorkerCore, turn: &Turn<'_>, result: StepResult) -> Call {
        self.prepared = Some(result);
        let lanes = Lanes {
            samples: self.round.batch(core).len(),
            end_of_data: core.end_of_data(),
            plan_ready: core.switch().ready(),
            reform: self.draining || turn.session.reform(),
            leaving: self.draining,
            whole: self.partners.is_some() && !self.whole && turn.session.is_checkpoint_due(),
            loss_sum: self.round.loss_sum(core),
        };
        self.ask(core, At::Agreeing, Call::Agree(lanes))
    }

    /// The round is done.
    fn finish(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, verdict: &Verdict) -> Call {
        self.at = At::Round;
        if !core.computes_beside() {
            core.report_computed(turn);
        }
        core.set_step(core.steps() + 1);
        if let Some(version) = verdict.plan_agreed {
            core.switch().agreed(version);
        }
        core.note_plans(turn);
        core.set_idle(verdict.samples == 0);
        if self.partners.is_some() {
            // Whatever needs one model of all comes after a step that makes it.
            self.is_mean = std::mem::replace(&mut self.whole, self.alone);
            let is_needed = verdict.whole || verdict.reform || verdict.samples == 0;
            if is_needed && !self.is_mean {
                self.whole = true;
                return self.begin(core, turn);
            }
        }
        if verdict.end_of_data && verdict.samples == 0 {
            core.over(End::EndOfData { trained: true })
        } else if verdict.reform && self.draining && !(verdict.all_leaving && self.rank == Some(Rank(0))) {
            core.over(End::Drained)
        } else if verdict.reform {
            core.join(self.standing())
        } else {
            self.begin(core, turn)
        }
    }
}

impl<R: Round> WorkerHalf for Member<R> {
    fn standing(&self) -> Standing {
        let (applied, prepared) = (self.applied.clone(), self.prepared.clone());
        Standing { group: self.group, applied, prepared, broken: self.broken }
    }

    fn knows(&self, joined: &Joined) -> bool {
        !joined.finished && joined.membership <= self.group
    }

    fn rolled_back(&mut self) {
        (self.trained, self.prepared, self.applied) = (false, None, None);
        self.round.rolled_back();
    }

    /// A group was formed. What the last one left open is decided first.
    fn joined(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, joined: &Joined) -> Call {
        if joined.finished {
            return core.over(End::EndOfData { trained: self.trained && self.has_model_of_all() });
        }
        turn.session.regrouped();
        let joined = Box::new(joined.clone());
        (self.group, self.broken) = (joined.membership, false);
        core.set_step(joined.next_step);
        if let Some(prepared) = &self.prepared {
            if joined.commit_prepared && prepared.step + 1 == joined.next_step {
                return self.ask(core, At::Settling(joined), Call::Apply);
            }
            self.prepared = None;
            self.round.aborted(core);
        }
        self.enter(core, joined)
    }

    fn loaded(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        let call = self.round.loaded(core, turn);
        self.go_on(core, turn, call)
    }

    fn before_fault(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Option<Call> {
        self.round.ends_before_fault(core).then(|| self.go_on(core, turn, None))
    }

    fn answered(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, reply: &Reply) -> Call {
        match (std::mem::take(&mut self.at), reply) {
            (At::Settling(joined), Reply::Applied) => self.settled(core, turn, joined),
            (At::Resting, Reply::Rested) => {
                core.rested(turn);
                self.begin(core, turn)
            }
            (At::Entering { .. }, Reply::Broken) => self.join_from_broken(core),
            (At::Entering { has_source }, Reply::Entered) => self.entered(core, turn, has_source),
            // The result is not here. A draining worker meets the others too.
            (At::Combining, Reply::Broken) => {
                self.round.aborted(core);
                core.restart_meter(turn);
                self.join_from_broken(core)
            }
            (At::Combining, Reply::Combined(result)) => self.combined(core, turn, result.clone()),
            // The result is here: the others may have it, and commit it.
            (At::Agreeing, Reply::Broken) => {
                core.restart_meter(turn);
                self.join_from_broken(core)
            }
            (At::Agreeing, Reply::Agreed(verdict)) => self.ask(core, At::Applying(*verdict), Call::Apply),
            // All members contributed to the control values, so all have the result; it is part of the model.
            (At::Applying(verdict), Reply::Applied) => {
                self.at = At::Finishing(verdict);
                match self.commit(core) {
                    Some(call) => core.feed(call),
                    None => self.fed(core, turn),
                }
            }
            // The master broke the group up while the member waited at its gate.
            (At::Round, Reply::Broken) => {
                self.round.aborted(core);
                core.restart_meter(turn);
                core.join(self.standing())
            }
            (At::Round, reply) => match self.round.answered(core, turn, reply) {
                Ok(call) => self.go_on(core, turn, call),
                Err(()) => core.not_an_answer(reply, &self.round),
            },
            (at, reply) => core.not_an_answer(reply, &at),
        }
    }

    fn fed(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        match std::mem::take(&mut self.at) {
            At::Acking(joined) => self.enter(core, joined),
            At::Finishing(verdict) => self.finish(core, turn, &verdict),
            // The round gave something back before it began.
            At::Round => {
                let call = self.round.begin(core, turn);
                self.go_on(core, turn, call)
            }
            at => core.fail(format!("the shard service answered what was not asked, while {at:?}")),
        }
    }

    fn clone_box(&self) -> Box<dyn WorkerHalf> {
        Box::new(self.clone())
    }
}
