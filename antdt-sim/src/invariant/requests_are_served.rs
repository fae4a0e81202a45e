//! Every call that waits for the master is answered, unless the caller or the job ended meanwhile; and no answer comes without a waiting call.
//! The same holds for the generator of groups, which may repeat an answer.
//!
//! Source: our design.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use antdt_core::{Holder, JobTime};
use antdt_groups::{GeneratorEffect, GeneratorEvent, GroupKey, Taken};
use antdt_job::{HeadAnswer, HeadEffect, HeadEvent};

use super::Invariant;
use crate::happening::Happening;

/// What a worker waits to be told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    Group,
    Commit(u64),
    /// That many averages.
    Average(u64),
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group => f.write_str("a group"),
            Self::Commit(step) => write!(f, "the commit of step {step}"),
            Self::Average(request) => write!(f, "the end of its request {request} to average"),
        }
    }
}

/// Checks that every call that waits for the master is answered; see the [module](self).
#[derive(Debug, Default)]
pub struct RequestsAreServed {
    /// Waiting calls with the time at which they began. An old copy of a call is a separate entry, answered beside the newer one.
    waiting: BTreeMap<(Holder, Asked), JobTime>,
    /// Those whose end the master may not know of yet.
    dead: BTreeSet<Holder>,
    /// The group whose commit answers a request to average.
    last: BTreeMap<Holder, (GroupKey, u64)>,
    calm: bool,
    ended: bool,
}

impl RequestsAreServed {
    fn served(&mut self, holder: Holder, what: Asked) -> Result<(), String> {
        match self.waiting.remove(&(holder, what)) {
            Some(_) => Ok(()),
            None if self.dead.contains(&holder) => Ok(()),
            None => Err(format!("{holder} is told of {what} and did not ask")),
        }
    }

    fn group(&mut self, at: JobTime, event: &GeneratorEvent) {
        match event {
            GeneratorEvent::Request { holder, sequence } => {
                self.waiting.insert((*holder, Asked::Average(*sequence)), at);
            }
            GeneratorEvent::Lost { holder } => {
                // With it all older lives.
                let older = |who: &Holder| who.node == holder.node && who.incarnation <= holder.incarnation;
                self.waiting.retain(|(who, _), _| !older(who));
            }
            GeneratorEvent::Hello { holder, .. } => {
                self.waiting.retain(|(who, _), _| who.node != holder.node);
            }
            GeneratorEvent::Done { .. } | GeneratorEvent::Bye { .. } => {}
        }
    }

    fn group_effect(&mut self, effect: &GeneratorEffect) {
        match effect {
            GeneratorEffect::Go { to, request, go, last: true } => {
                self.last.insert(*to, (go.key, *request));
            }
            GeneratorEffect::Skip { to, request } => {
                self.waiting.remove(&(*to, Asked::Average(*request)));
            }
            GeneratorEffect::Commit { to, group } => {
                if let Some((_, request)) = self.last.get(to).filter(|(last, _)| last == group) {
                    self.waiting.remove(&(*to, Asked::Average(*request)));
                }
            }
            GeneratorEffect::Go { .. }
            | GeneratorEffect::Abort { .. }
            | GeneratorEffect::Membership { .. } => {}
        }
    }

    fn waits_no_more(&mut self, holder: Holder) {
        self.waiting.retain(|(who, _), _| *who != holder);
    }
}

impl Invariant for RequestsAreServed {
    fn name(&self) -> &'static str {
        "requests_are_served"
    }

    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match what {
            Happening::Head(HeadEvent::Join { holder, .. }, HeadAnswer::Parked) => {
                self.waiting.insert((*holder, Asked::Group), at);
            }
            Happening::Head(HeadEvent::Ready { holder, step, .. }, HeadAnswer::Parked) => {
                self.waiting.insert((*holder, Asked::Commit(*step)), at);
            }
            Happening::Effect(HeadEffect::Joined(holder, _)) => return self.served(*holder, Asked::Group),
            Happening::Effect(HeadEffect::Committed(holder, commit)) => {
                return self.served(*holder, Asked::Commit(commit.asked));
            }
            Happening::Head(HeadEvent::Leave { holder, .. }, _) => self.waits_no_more(*holder),
            Happening::Head(HeadEvent::Exited(holder, ..), _) => {
                self.waits_no_more(*holder);
                self.dead.remove(holder);
            }
            Happening::Group(event, Ok(Taken::New)) => self.group(at, event),
            Happening::GroupEffect(effect) => self.group_effect(effect),
            Happening::Died(holder) => {
                self.dead.insert(*holder);
            }
            Happening::Calm => self.calm = true,
            Happening::Ended(result) => self.ended = result.is_err(),
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, at: JobTime) -> Result<(), String> {
        match self.waiting.iter().find(|((holder, _), _)| !self.dead.contains(holder)) {
            Some(((holder, asked), since)) if self.calm && !self.ended => {
                Err(format!("{holder} has waited for {asked} since {since}, until {at}"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use antdt_core::{MembershipVersion, PlanVersion, Readiness, Standing, StepCommit};
    use antdt_groups::{Go, GroupOrigin};

    use super::super::testing::{History, holder, joined, plan};
    use super::*;

    fn join(index: u32) -> HeadEvent {
        HeadEvent::Join { holder: holder(index), standing: Standing::default() }
    }

    fn answer(index: u32) -> HeadEffect {
        HeadEffect::Joined(holder(index), Box::new(joined(1, &[], plan(1, &[]), 0)))
    }

    #[test]
    fn who_waits_is_answered_or_ends() {
        let mut history = History::new(RequestsAreServed::default());
        history.saw(&Happening::Calm);
        history.head(&join(0), &HeadAnswer::Parked).head(&join(1), &HeadAnswer::Parked);
        history.effect(&answer(0)).saw(&Happening::Died(holder(1))).finish().holds();
        history.head(&join(0), &HeadAnswer::Parked).finish().fails("worker-0#0 has waited for a group");
    }

    #[test]
    fn who_wants_to_average_is_answered_by_the_last_group_or_by_a_skip() {
        let request = |index, sequence| GeneratorEvent::Request { holder: holder(index), sequence };
        let key = |order| GroupKey { order, attempt: 0 };
        let go = |order, last| {
            let members = Box::new([holder(0), holder(1)]);
            let (kind, deadline) = (GroupOrigin::Division, JobTime::NEVER);
            let membership = MembershipVersion(2);
            let go = Go { key: key(order), kind, membership, members, deadline };
            GeneratorEffect::Go { to: holder(0), request: 1, go: Arc::new(go), last }
        };
        let mut history = History::new(RequestsAreServed::default());
        history.saw(&Happening::Calm);
        for index in 0..3 {
            history.saw(&Happening::Group(&request(index, 1), &Ok(Taken::New)));
        }
        history.saw(&Happening::GroupEffect(&GeneratorEffect::Skip { to: holder(1), request: 1 }));
        history.saw(&Happening::Group(&GeneratorEvent::Lost { holder: holder(2) }, &Ok(Taken::New)));
        history.saw(&Happening::GroupEffect(&go(3, false)));
        history.saw(&Happening::GroupEffect(&GeneratorEffect::Commit { to: holder(0), group: key(3) }));
        history.saw(&Happening::GroupEffect(&go(4, true)));
        let mut answered = History::new(RequestsAreServed::default());
        std::mem::swap(&mut answered, &mut history);
        answered.saw(&Happening::GroupEffect(&GeneratorEffect::Commit { to: holder(0), group: key(4) }));
        answered.finish().holds();
        history.saw(&Happening::Calm).saw(&Happening::Group(&request(0, 1), &Ok(Taken::New)));
        history.saw(&Happening::GroupEffect(&go(3, false)));
        history.saw(&Happening::GroupEffect(&GeneratorEffect::Commit { to: holder(0), group: key(3) }));
        history.finish().fails("worker-0#0 has waited for the end of its request 1 to average");
    }

    #[test]
    fn nobody_is_answered_who_did_not_ask() {
        let mut history = History::new(RequestsAreServed::default());
        history.head(&join(0), &HeadAnswer::Parked).effect(&answer(0)).holds();
        history.effect(&answer(0)).fails("did not ask");
    }

    #[test]
    fn an_old_copy_of_a_question_is_answered_beside_the_newer_one() {
        let ready = |step| HeadEvent::Ready {
            holder: holder(0),
            step,
            readiness: Readiness { samples: 0, end_of_data: false, plan: PlanVersion(0), acks: vec![] },
        };
        let commit = |step| {
            let contributors = BTreeMap::new().into();
            let commit = StepCommit {
                step,
                contributors,
                samples: 0,
                apply: None,
                end: false,
                asked: step,
                counted: false,
            };
            HeadEffect::Committed(holder(0), Box::new(commit))
        };
        let mut history = History::new(RequestsAreServed::default());
        history.head(&ready(1), &HeadAnswer::Parked).head(&ready(0), &HeadAnswer::Parked);
        history.effect(&commit(0)).effect(&commit(1)).holds();
        history.effect(&commit(1)).fails("is told of the commit of step 1 and did not ask");
    }
}
