//! What a worker of a trial calls for: which calls are allowed, and the driver that carries them out.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_agent::{Batch, MicroBatch};
use antdt_collective::lanes::Lanes;
use antdt_core::{
    Ack, AckPoint, Acks, Barrier, CheckpointId, Fragment, Held, Holder, Joined, PushMark, Readiness,
    RequestId, Standing,
};

use super::group::{Part, TrialGroup};
use super::life::{Life, Stage};
use super::{Breach, OLD_JOINS, Trial};
use crate::head::{HeadAnswer, HeadEvent};
use crate::testing::invariant::Invariant;
use crate::worker::{Call, End, LoopDriver, Peers, Reply};

/// The reply to a call that is answered at once, or a broken promise.
type Reached = Result<Option<Reply>, Breach>;

impl Trial<'_> {
    /// A worker makes a call.
    pub(super) fn begin(&mut self, holder: Holder, call: Call) -> Result<(), Breach> {
        self.allowed(holder, &call)?;
        let reply = call.carry_out(&mut Thread { trial: self, holder })?;
        if let (Some(reply), Some(life)) = (reply, self.lives.get_mut(&holder)) {
            life.coming = Some(reply.into());
        }
        Ok(())
    }

    fn allowed(&self, holder: Holder, call: &Call) -> Result<(), Breach> {
        let c = self.capabilities;
        let allowed = match call {
            Call::Combine { peers: Peers::Few(_), .. } => c.mixes() && c.waits_for_all(),
            Call::Combine { peers: Peers::Apart { .. }, .. } => c.mixes() && c.barrier == Barrier::Peers,
            Call::Enter(_) => c.forms_groups(),
            Call::Combine { .. } | Call::Agree(_) => c.forms_groups() && c.steps_in_common(),
            Call::Apply => c.forms_groups() || !c.steps_in_common(),
            Call::Pull | Call::Push { .. } => c.needs_servers(),
            Call::Ready { .. } | Call::ReadyBeside { .. } => {
                c.late_workers_stay() || c.acks == AckPoint::Commit
            }
            Call::ComputeBeside | Call::Finish => c.averages_models() || c.late_workers_stay(),
            Call::Advance | Call::Revert => c.averages_models(),
            // What the master commits, it acknowledges too.
            Call::Exchange { acks, .. } => acks.is_empty() || c.acks != AckPoint::Commit,
            Call::Join(_)
            | Call::Register(_)
            | Call::Release(_)
            | Call::Fail { .. }
            | Call::Sleep(_)
            | Call::Load(_)
            | Call::LoadPiece(..)
            | Call::Compute
            | Call::Rest(_)
            | Call::Stop(_) => true,
        };
        self.holds(Invariant::Capabilities, allowed, || {
            format!("{holder} asks for {call:?}, where the mode says {c:?}")
        })
    }
}

/// The training thread of a worker of a trial, which makes a call. A call takes no time: it is answered at
/// once, or when the master or the other members of a group answer it.
struct Thread<'t, 'a> {
    trial: &'t mut Trial<'a>,
    holder: Holder,
}

impl Thread<'_, '_> {
    fn life(&mut self) -> Option<&mut Life> {
        self.trial.lives.get_mut(&self.holder)
    }

    /// Asks the master something that it answers when it has decided.
    fn ask(&mut self, event: HeadEvent) -> Reached {
        match self.trial.tell(event)? {
            HeadAnswer::Parked => Ok(None),
            HeadAnswer::Undone => Ok(Some(Reply::Broken)),
            _ => {
                self.trial.enter_stage(self.holder, Stage::Exiting);
                Ok(None)
            }
        }
    }

    /// Comes to the next operation of its group.
    fn meet(&mut self, part: Part) -> Reached {
        self.trial.meet(self.holder, part)?;
        Ok(None)
    }

    /// Gives leases back, with what is done of them.
    fn give_back(&mut self, acks: &[Ack]) -> Reached {
        if !self.trial.service.knows(self.holder) {
            return Ok(Some(Reply::ServiceRestarted));
        }
        self.trial.service.release(self.holder, acks);
        self.trial.acked_is_in_model(self.holder)?;
        Ok(Some(Reply::Released))
    }

    /// What is loaded is computed on the model as it is now. Returns the number of samples.
    fn take_piece(&mut self) -> u64 {
        let Some(life) = self.life() else { return 0 };
        let piece = std::mem::take(&mut life.piece);
        let samples = piece.len();
        life.gradient_of = Some(life.model);
        life.batch.fragments.extend(piece.fragments);
        samples
    }

    /// What the worker combines is whole, of its model, and of the plan in force. Returns the samples.
    fn contribution(&self, samples: u64) -> Result<Vec<Fragment>, Breach> {
        let (trial, holder) = (&*self.trial, self.holder);
        let averages = trial.capabilities.averages_models();
        let Some(life) = trial.lives.get(&holder) else { return Ok(Vec::new()) };
        let is_here = samples == 0 || life.beside.is_none() || averages;
        trial.holds(Invariant::NeverConfused, is_here, || {
            format!("{holder} combines a gradient that is being computed")
        })?;
        let (begun, applied) = (life.begun, life.worker.actions().0);
        trial.holds(Invariant::SameModel, begun == applied || averages, || {
            format!("{holder} takes a step under plan {applied}, and has carried out plan {begun}")
        })?;
        let (of, now) = (life.gradient_of, life.model);
        trial.holds(Invariant::SameModel, samples == 0 || of == Some(now) || averages, || {
            format!("{holder} brings a gradient of the model of step {of:?} to one of step {now:?}")
        })?;
        Ok(match averages {
            true => life.advanced.clone(),
            // A late gradient stays where it is.
            false if samples == 0 => Vec::new(),
            false => life.batch.fragments.to_vec(),
        })
    }
}

impl LoopDriver for Thread<'_, '_> {
    type Answer = Reached;

    fn join(&mut self, standing: Standing) -> Reached {
        let (trial, holder) = (&mut *self.trial, self.holder);
        trial.leave_group(holder);
        if trial.has_forgotten {
            trial.never_comes(holder);
        }
        trial.overtaken.remove(&holder);
        trial.joins.push_back((holder, standing.clone()));
        if trial.joins.len() > OLD_JOINS {
            trial.joins.pop_front();
        }
        self.ask(HeadEvent::Join { holder, standing })
    }

    fn ready(&mut self, step: u64, readiness: Readiness) -> Reached {
        let (trial, holder) = (&mut *self.trial, self.holder);
        // It asks for its next step.
        trial.overtaken.remove(&holder);
        let makes_step = match trial.capabilities.mixes() {
            true => readiness.samples > 0,
            // A worker that asks for its turn has pushed nothing yet.
            false => !readiness.acks.is_empty(),
        };
        let is_pushed = makes_step && trial.capabilities.acks == AckPoint::Commit;
        if let Some(life) = trial.lives.get(&holder).filter(|_| is_pushed) {
            let made = match trial.capabilities.averages_models() {
                true => life.advanced.clone(),
                false => life.batch.fragments.to_vec(),
            };
            trial.ready.insert((step, holder), made);
        }
        self.ask(HeadEvent::Ready { holder, step, readiness })
    }

    /// The history says when the gradient is there: see [`Trial::train`].
    fn ready_beside(&mut self, step: u64, readiness: Readiness) -> Reached {
        self.ready(step, readiness)
    }

    fn rest(&mut self, checkpoint: CheckpointId) -> Reached {
        self.ask(HeadEvent::Rest { holder: self.holder, checkpoint })
    }

    fn register(&mut self, held: Vec<Held>) -> Reached {
        Ok(Some(Reply::Registered(self.trial.service.register(self.holder, &held))))
    }

    fn exchange(&mut self, _: RequestId, acks: Acks, want: u32, _: Duration) -> Reached {
        if !self.trial.service.knows(self.holder) {
            return Ok(Some(Reply::ServiceRestarted));
        }
        let exchanged = self.trial.service.exchange(self.holder, &acks, want);
        self.trial.acked_is_in_model(self.holder)?;
        Ok(Some(Reply::Exchanged(exchanged)))
    }

    fn release(&mut self, acks: Vec<Ack>) -> Reached {
        self.give_back(&acks)
    }

    fn fail(&mut self, at: Ack, _why: String) -> Reached {
        self.give_back(&[at])
    }

    fn sleep(&mut self, _time: Duration) -> Reached {
        Ok(Some(Reply::Slept))
    }

    fn load(&mut self, batch: Batch, micro: MicroBatch) -> Reached {
        let Some(life) = self.life() else { return Ok(None) };
        life.begun = life.worker.actions().0;
        life.piece = batch.piece(micro);
        if micro.is_first() {
            life.batch = Batch::default();
        }
        // A gradient without a waiter is dropped.
        life.beside = None;
        let first = life.piece.samples().next();
        Ok(Some(match first.filter(|_| std::mem::take(&mut life.unreadable)) {
            Some(sample) => {
                life.batch = Batch::default();
                life.piece = Batch::default();
                Reply::Unreadable { sample, why: "torn".to_owned() }
            }
            None => Reply::Loaded,
        }))
    }

    fn pull(&mut self) -> Reached {
        if !self.trial.reaches_servers(self.holder) {
            return Ok(Some(Reply::Broken));
        }
        self.trial.begins_step(self.holder)?;
        Ok(Some(Reply::Pulled))
    }

    fn compute(&mut self) -> Reached {
        Ok(Some(Reply::Computed { samples: self.take_piece(), loss_sum: 0.5 }))
    }

    fn compute_beside(&mut self) -> Reached {
        let samples = self.take_piece();
        if let Some(life) = self.life() {
            life.beside = Some(samples);
        }
        Ok(Some(Reply::Computing))
    }

    fn finish(&mut self) -> Reached {
        let holder = self.holder;
        let Some(life) = self.life() else { return Ok(None) };
        let reply = life.finished();
        self.trial.holds(Invariant::NeverConfused, reply != Reply::Broken, || {
            format!("{holder} waits for a gradient that was not begun")
        })?;
        Ok(Some(reply))
    }

    fn enter(&mut self, joined: Box<Joined>) -> Reached {
        let version = (joined.membership, 0);
        let members = || joined.members.iter().map(|(member, _)| *member).collect();
        let new = || TrialGroup { members: members(), parts: BTreeMap::new(), broken: false };
        self.trial.groups.entry(version).or_insert_with(new);
        if let Some(life) = self.life() {
            life.group = Some(version);
        }
        self.meet(Part::Enter)
    }

    fn combine(&mut self, step: u64, samples: u64, acks: Acks, peers: Peers) -> Reached {
        let fragments = self.contribution(samples)?;
        if let Peers::Apart { group, ranks } = &peers
            && !self.trial.goes_apart(self.holder, *group, ranks)
        {
            self.trial.break_off(self.holder);
            return Ok(None);
        }
        self.meet(Part::Combine { step, acks, fragments, peers })
    }

    fn agree(&mut self, lanes: Lanes) -> Reached {
        self.meet(Part::Agree(lanes))
    }

    fn apply(&mut self) -> Reached {
        let (trial, holder) = (&mut *self.trial, self.holder);
        if !trial.capabilities.needs_servers() {
            trial.apply(holder)?;
        } else if trial.reaches_servers(holder) {
            trial.count(&[PushMark { holder, step: None }])?;
        } else {
            return Ok(Some(Reply::Broken));
        }
        Ok(Some(Reply::Applied))
    }

    fn push(&mut self, _step: u64, _samples: u64) -> Reached {
        let is_there = self.trial.reaches_servers(self.holder);
        Ok(Some(if is_there { Reply::Pushed } else { Reply::Broken }))
    }

    fn advance(&mut self) -> Reached {
        let holder = self.holder;
        let is_here = self.life().is_none_or(|life| life.beside.is_none());
        self.trial.holds(Invariant::NeverConfused, is_here, || {
            format!("{holder} applies a gradient that is being computed")
        })?;
        if let Some(life) = self.life() {
            let batch = life.batch.fragments.to_vec();
            life.advanced.extend(batch);
            life.of_all = false;
        }
        Ok(Some(Reply::Advanced))
    }

    fn revert(&mut self) -> Reached {
        if let Some(life) = self.life() {
            life.advanced.clear();
        }
        Ok(Some(Reply::Reverted))
    }

    fn stop(&mut self, end: End) -> Reached {
        self.trial.stopped(self.holder, &end)?;
        Ok(None)
    }
}
