//! The processes of the workers of a trial: from their start to their end.

use antdt_agent::BeatReply;
use antdt_core::{Barrier, CheckpointId, Exit, Holder, Joined, Metrics};

use super::life::Stage;
use super::{Breach, MOMENT, MOMENT_NANOS, Trial};
use crate::head::{HeadAnswer, HeadEvent};
use crate::testing::invariant::Invariant;
use crate::worker::{Call, End, Reply};

impl Trial<'_> {
    pub(super) fn is_able(&self, holder: Holder) -> bool {
        self.lives.get(&holder).filter(|life| !life.hangs).is_some_and(|life| match life.stage {
            Stage::Starting => true,
            Stage::Training => life.coming.is_some() || life.keeps.is_some() || life.may_finish(),
            Stage::Leaving { .. } | Stage::Evaluating | Stage::Exiting => true,
        })
    }

    /// A process does the next thing.
    pub(super) fn act(&mut self, holder: Holder) -> Result<(), Breach> {
        let reaches = self.reaches_servers(holder);
        let Some(life) = self.lives.get_mut(&holder).filter(|_| self.end.is_none()) else { return Ok(()) };
        match life.stage {
            Stage::Starting => {
                self.tell(HeadEvent::Started(holder))?;
                let answer = self.register(holder)?;
                let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
                if let HeadAnswer::Registered { plan, .. } = answer {
                    life.session.beat_answered(self.now, BeatReply { plan, ..BeatReply::default() });
                    life.stage = Stage::Training;
                    life.coming = Some(Reply::Begin.into());
                } else {
                    life.stage = Stage::Exiting;
                }
            }
            Stage::Training if life.keeps.is_some() => self.keep(holder)?,
            Stage::Training => self.train(holder)?,
            Stage::Leaving { end_of_data, can_evaluate } => {
                let answer = self.tell(HeadEvent::Leave { holder, end_of_data, can_evaluate })?;
                let (evaluate, checkpoint) = match answer {
                    HeadAnswer::Left { evaluate, checkpoint, pushes, .. } => {
                        self.count(&pushes)?;
                        (evaluate, checkpoint)
                    }
                    _ => (false, None),
                };
                if (evaluate || checkpoint.is_some()) && !self.reaches_servers(holder) {
                    return self.fails(holder, checkpoint);
                }
                if let Some(checkpoint) = checkpoint {
                    self.is_exact(holder, checkpoint)?;
                    // Before it goes on, it waits until its part is written.
                    self.written.push((checkpoint, None));
                }
                self.enter_stage(holder, if evaluate { Stage::Evaluating } else { Stage::Exiting });
            }
            Stage::Evaluating if !reaches => self.fails(holder, None)?,
            Stage::Evaluating => {
                self.tell(HeadEvent::Evaluated { holder, samples: 1, metrics: Metrics::default() })?;
                self.enter_stage(holder, Stage::Exiting);
            }
            Stage::Exiting => {
                self.remove(holder);
                self.tell(HeadEvent::Exited(holder, Exit::Finished, Vec::new()))?;
            }
        }
        Ok(())
    }

    /// A worker that has left fails at the checkpoint that it is to take, or at the evaluation.
    pub(super) fn fails(&mut self, holder: Holder, checkpoint: Option<CheckpointId>) -> Result<(), Breach> {
        if let Some(checkpoint) = checkpoint {
            self.tell(HeadEvent::Cut { checkpoint, taken: Err("a server is gone".to_owned()) })?;
        }
        self.remove(holder);
        self.tell(HeadEvent::Exited(holder, Exit::Retryable { code: Exit::CODE_RETRY }, Vec::new()))?;
        Ok(())
    }

    pub(super) fn enter_stage(&mut self, holder: Holder, stage: Stage) {
        if let Some(life) = self.lives.get_mut(&holder) {
            life.stage = stage;
        }
    }

    /// The training loop gets the reply that is there, and makes its next call.
    pub(super) fn train(&mut self, holder: Holder) -> Result<(), Breach> {
        self.now = self.now + MOMENT;
        let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
        // An answer of the master may be on its way when the gradient is there.
        if life.may_finish() && (life.coming.is_none() || (self.now.0 / MOMENT_NANOS).is_multiple_of(3)) {
            life.coming = Some(life.finished().into());
        }
        let Some(coming) = life.coming.take() else { return Ok(()) };
        if let Some(parts) = coming.parts {
            life.prepared = Some(parts);
        }
        match &coming.reply {
            Reply::Entered => life.trained = true,
            Reply::Joined(joined) => {
                life.connected.clone_from(&self.servers);
                if joined.rollback > life.rollback {
                    life.rollback = joined.rollback;
                    life.trained = !joined.finished && joined.next_step == 0;
                    life.model = None;
                    life.prepared = None;
                    life.advanced.clear();
                    life.beside = None;
                }
                life.trained |= !self.capabilities.forms_groups() && !joined.finished;
            }
            _ => {}
        }
        let call = life.worker.step(self.now, &mut life.session, &coming.reply);
        life.call = Some(call.clone());
        if let Reply::Joined(joined) = &coming.reply
            && !joined.finished
            && self.capabilities.forms_groups()
            // One that asks again takes it for the answer to an earlier question.
            && !matches!(call, Call::Join(_))
        {
            self.goes_on(holder, joined)?;
        }
        self.begin(holder, call)
    }

    /// A worker goes on in a new group, with the model that it has or with that of another member.
    pub(super) fn goes_on(&mut self, holder: Holder, joined: &Joined) -> Result<(), Breach> {
        let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
        if !joined.commit_prepared {
            life.prepared = None;
        }
        let to_apply = life.prepared.as_ref().is_some_and(|(step, _)| step + 1 == joined.next_step);
        let before =
            std::mem::replace(&mut life.model, joined.next_step.checked_sub(1 + u64::from(to_apply)));
        let own_steps = self.capabilities.barrier == Barrier::Peers;
        let (same, after) = (own_steps || !life.trained || before == life.model, life.model);
        self.holds(Invariant::SameModel, same, || {
            format!("{holder} has step {before:?}, and goes on with members that have step {after:?}")
        })
    }
    pub(super) fn stopped(&mut self, holder: Holder, end: &End) -> Result<(), Breach> {
        let stage = match end {
            End::EndOfData { trained } => {
                let undone = self.lives.get(&holder).is_some_and(|life| life.rollback < self.rollback);
                self.holds(Invariant::NoEarlyEnd, undone || self.service.is_done(), || {
                    format!("{holder} says that the data has ended at {:?}", self.service.counts())
                })?;
                Stage::Leaving { end_of_data: true, can_evaluate: *trained }
            }
            End::Drained => Stage::Leaving { end_of_data: false, can_evaluate: false },
            End::Failed(why) => {
                self.holds(Invariant::NeverConfused, false, || format!("{holder} stops: {why}"))?;
                Stage::Exiting
            }
        };
        self.leave_group(holder);
        self.overtaken.remove(&holder);
        self.enter_stage(holder, stage);
        Ok(())
    }
}
