//! [`GroupMember`]: a worker's side of averaging in groups.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use antdt_core::{Holder, InvalidValue, JobTime, Machine};

use crate::message::{GeneratorEffect, GeneratorError, GeneratorEvent, Go, GroupKey, ReduceOutcome, Taken};

/// An input of a [`GroupMember`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberEvent {
    /// The worker has applied a step to its own model and asks to average.
    Synchronize,
    /// The worker's part in this group ended, with this outcome.
    Over(GroupKey, ReduceOutcome),
    /// The worker has nothing more to train and wants to leave.
    Leave,
    /// A message of the generator arrived.
    Told(GeneratorEffect),
    /// The generator answered a message.
    Answered(GeneratorEvent, Result<Taken, GeneratorError>),
}

/// Effect that the worker must carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberEffect {
    /// Send this message to the generator.
    Send(GeneratorEvent),
    /// Compute the average with the members of this group, without changing the model. An average that is
    /// still being computed for another group is void and may be stopped.
    Reduce(Arc<Go>),
    /// Replace the model by the average of this group.
    Apply(GroupKey),
    /// Discard the average of this group; its computation may be stopped.
    Discard(GroupKey),
    /// Continue training.
    Resume,
    /// The worker has left, and the generator knows that.
    Left,
    /// The generator refuses this incarnation, with this error: the worker must exit.
    Fenced(GeneratorError),
}

/// Where a member is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// The worker has said hello.
    Joining,
    /// The worker trains by itself.
    Training,
    /// The worker waits for a group.
    Waiting,
    /// The worker averages in this group; the flag says whether that answers its request.
    Reducing(GroupKey, bool),
    /// The worker has reported its part in this group; the flag says whether that answers its request.
    Reported(GroupKey, ReduceOutcome, bool),
    /// The worker has said goodbye.
    Leaving,
    /// The worker has left, or was declared lost.
    Over,
}

/// A worker's side of the protocol with the [`GroupGenerator`](crate::GroupGenerator). It repeats messages
/// that are not answered, ignores old ones, and adopts an average only when it is committed.
#[derive(Debug, Clone)]
#[doc(alias = "GroupSource")]
pub struct GroupMember {
    holder: Holder,
    host: u32,
    again_after: Duration,
    phase: Phase,
    /// Requests made.
    sequence: u64,
    /// The newest group that it ran.
    newest: Option<GroupKey>,
    /// When it says again what it waits for the answer to.
    again: Option<JobTime>,
    effects: VecDeque<MemberEffect>,
}

impl GroupMember {
    /// Returns a member that starts with a hello to the generator; `host` is the number of its host. It
    /// repeats messages that are not answered within `again_after`.
    ///
    /// # Errors
    /// If `again_after` is 0.
    pub fn new(now: JobTime, holder: Holder, host: u32, again_after: Duration) -> Result<Self, InvalidValue> {
        if again_after.is_zero() {
            return Err(InvalidValue::new("again_after", "0s", "longer than 0; 1 s is usual"));
        }
        let mut member = Self {
            holder,
            host,
            again_after,
            phase: Phase::Joining,
            sequence: 0,
            newest: None,
            again: None,
            effects: VecDeque::new(),
        };
        member.say(now);
        Ok(member)
    }

    /// Returns the node and its incarnation.
    pub const fn holder(&self) -> Holder {
        self.holder
    }

    /// Returns whether the worker is training and waits for nothing, so that it may ask to average or leave.
    pub fn is_training(&self) -> bool {
        self.phase == Phase::Training
    }

    /// Says what it waits for the answer to.
    fn say(&mut self, now: JobTime) {
        let holder = self.holder;
        let message = match &self.phase {
            Phase::Joining => GeneratorEvent::Hello { holder, host: self.host },
            Phase::Waiting => GeneratorEvent::Request { holder, sequence: self.sequence },
            Phase::Reported(group, outcome, _) => {
                GeneratorEvent::Done { holder, group: *group, outcome: *outcome }
            }
            Phase::Leaving => GeneratorEvent::Bye { holder },
            Phase::Training | Phase::Reducing(..) | Phase::Over => {
                self.again = None;
                return;
            }
        };
        self.effects.push_back(MemberEffect::Send(message));
        self.again = Some(now + self.again_after);
    }

    fn enter(&mut self, now: JobTime, phase: Phase) {
        self.phase = phase;
        self.say(now);
    }

    /// Waits on for the answer to its request, which the generator has.
    fn wait(&mut self, now: JobTime) {
        self.phase = Phase::Waiting;
        self.again = Some(now + self.again_after);
    }

    /// Trains on: the request is answered.
    fn resume(&mut self, now: JobTime) {
        self.enter(now, Phase::Training);
        self.effects.push_back(MemberEffect::Resume);
    }

    fn told(&mut self, now: JobTime, effect: GeneratorEffect) {
        match effect {
            GeneratorEffect::Go { to, request, go, last } => {
                let current = to == self.holder && request == self.sequence && self.newest < Some(go.key);
                let ready = match &self.phase {
                    Phase::Waiting => true,
                    // It had not reported, so that group can only have been aborted.
                    Phase::Reducing(..) => true,
                    // It is run again, so it was aborted.
                    Phase::Reported(group, ..) => group.order == go.key.order,
                    Phase::Joining | Phase::Training | Phase::Leaving | Phase::Over => false,
                };
                if current && ready {
                    self.void();
                    self.newest = Some(go.key);
                    self.enter(now, Phase::Reducing(go.key, last));
                    self.effects.push_back(MemberEffect::Reduce(go));
                }
            }
            GeneratorEffect::Skip { to, request } => {
                let open = match &self.phase {
                    Phase::Waiting | Phase::Reducing(..) => true,
                    // What it failed to average is not committed. Of what it has averaged it must learn.
                    Phase::Reported(_, outcome, _) => matches!(outcome, ReduceOutcome::Failed { .. }),
                    Phase::Joining | Phase::Training | Phase::Leaving | Phase::Over => false,
                };
                if to == self.holder && request == self.sequence && open {
                    self.void();
                    self.resume(now);
                }
            }
            GeneratorEffect::Commit { to, group } => match self.phase {
                Phase::Reported(reported, ReduceOutcome::Reduced, last)
                    if to == self.holder && reported == group =>
                {
                    self.effects.push_back(MemberEffect::Apply(group));
                    if last {
                        self.resume(now);
                    } else {
                        self.wait(now);
                    }
                }
                _ => {}
            },
            GeneratorEffect::Abort { to, group, .. } => match self.phase {
                Phase::Reported(current, ..) | Phase::Reducing(current, _)
                    if to == self.holder && current == group =>
                {
                    self.void();
                    self.wait(now);
                }
                _ => {}
            },
            GeneratorEffect::Membership { .. } => {}
        }
    }

    /// The average that it makes or has made will not be committed.
    fn void(&mut self) {
        if let Phase::Reducing(group, _) | Phase::Reported(group, ..) = self.phase {
            self.effects.push_back(MemberEffect::Discard(group));
        }
    }

    fn answered(&mut self, now: JobTime, to: GeneratorEvent, answer: Result<Taken, GeneratorError>) {
        if to.holder() != self.holder || self.phase == Phase::Over {
            return;
        }
        match (answer, to) {
            (Ok(_), GeneratorEvent::Hello { .. }) if self.phase == Phase::Joining => self.resume(now),
            (Ok(_), GeneratorEvent::Bye { .. }) if self.phase == Phase::Leaving => {
                self.enter(now, Phase::Over);
                self.effects.push_back(MemberEffect::Left);
            }
            // Its farewell has arrived, and an old message after it.
            (Err(GeneratorError::Fenced { .. }), _) if self.phase == Phase::Leaving => {}
            // There is no place for it yet.
            (Err(GeneratorError::Full { .. } | GeneratorError::Open { .. }), _) | (Ok(_), _) => {}
            (Err(error), _) => {
                self.void();
                self.enter(now, Phase::Over);
                self.effects.push_back(MemberEffect::Fenced(error));
            }
        }
    }
}

impl Machine for GroupMember {
    type Event = MemberEvent;
    type Answer = ();
    type Effect = MemberEffect;

    fn handle(&mut self, now: JobTime, event: MemberEvent) {
        match event {
            MemberEvent::Synchronize if self.phase == Phase::Training => {
                self.sequence += 1;
                self.enter(now, Phase::Waiting);
            }
            MemberEvent::Leave if self.phase == Phase::Training => self.enter(now, Phase::Leaving),
            MemberEvent::Over(group, outcome) => match self.phase {
                Phase::Reducing(current, last) if current == group => {
                    self.enter(now, Phase::Reported(group, outcome, last));
                }
                // Another group runs by now.
                _ => {}
            },
            // It waits for an answer.
            MemberEvent::Synchronize | MemberEvent::Leave => {}
            MemberEvent::Told(effect) => self.told(now, effect),
            MemberEvent::Answered(to, answer) => self.answered(now, to, answer),
        }
    }

    fn poll_effect(&mut self) -> Option<MemberEffect> {
        self.effects.pop_front()
    }

    fn deadline(&self) -> Option<JobTime> {
        self.again
    }

    fn on_deadline(&mut self, now: JobTime) {
        if self.again.is_some_and(|at| at <= now) {
            self.say(now);
        }
    }
}

#[cfg(test)]
mod tests;
