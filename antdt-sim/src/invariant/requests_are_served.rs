//! Checks that every call that waits for the master is answered, unless the caller or the job has ended, and
//! that no answer comes without a waiting call.
//!
//! Source: our design.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use antdt_core::{Holder, JobTime};
use antdt_job::{HeadAnswer, HeadEffect, HeadEvent};

use super::Invariant;
use crate::happening::Happening;

/// What a worker waits to be told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    Group,
    Commit(u64),
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group => f.write_str("a group"),
            Self::Commit(step) => write!(f, "the commit of step {step}"),
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
            Happening::Effect(HeadEffect::Undone(holder)) => {
                self.waiting.retain(|(who, asked), _| who != holder || *asked == Asked::Group);
            }
            // A worker that waited for the master before asks this one.
            Happening::TakenOver => self.waiting.clear(),
            Happening::Head(HeadEvent::Leave { holder, .. }, _) => self.waits_no_more(*holder),
            Happening::Head(HeadEvent::Exited(holder, ..), _) => {
                self.waits_no_more(*holder);
                self.dead.remove(holder);
            }
            Happening::Died(holder) => {
                self.dead.insert(*holder);
            }
            Happening::Calm => self.calm = true,
            Happening::Ended(result) => self.ended = result.is_err(),
            Happening::AllCrashed => self.ended = true,
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
    use antdt_core::{PlanVersion, Readiness, Standing, StepCommit};

    use super::super::testing::{History, holder, joined, plan};
    use super::*;

    fn join(index: u32) -> HeadEvent {
        HeadEvent::Join { holder: holder(index), standing: Standing::default() }
    }

    fn answer(index: u32) -> HeadEffect {
        HeadEffect::Joined(holder(index), joined(1, &[], plan(1, &[]), 0).into())
    }

    #[test]
    fn a_waiting_worker_is_answered_or_ends() {
        let mut history = History::new(RequestsAreServed::default());
        history.saw(&Happening::Calm);
        history.head(&join(0), &HeadAnswer::Parked).head(&join(1), &HeadAnswer::Parked);
        history.effect(&answer(0)).saw(&Happening::Died(holder(1))).finish().holds();
        history.head(&join(0), &HeadAnswer::Parked).finish().fails("worker-0#0 has waited for a group");
    }

    #[test]
    fn a_step_that_is_undone_is_an_answer_to_it_and_not_to_a_wish_for_a_group() {
        let readiness = Readiness { samples: 0, end_of_data: false, plan: PlanVersion(0), acks: vec![] };
        let ready = HeadEvent::Ready { holder: holder(0), step: 1, readiness };
        let mut history = History::new(RequestsAreServed::default());
        history.saw(&Happening::Calm);
        history.head(&ready, &HeadAnswer::Parked).effect(&HeadEffect::Undone(holder(1)));
        history.finish().fails("worker-0#0 has waited for the commit of step 1");
        let mut history = History::new(RequestsAreServed::default());
        history.saw(&Happening::Calm);
        history.head(&ready, &HeadAnswer::Parked).effect(&HeadEffect::Undone(holder(0))).finish().holds();
        history.head(&join(0), &HeadAnswer::Parked).effect(&HeadEffect::Undone(holder(0)));
        history.finish().fails("worker-0#0 has waited for a group");
    }

    #[test]
    fn a_worker_that_waited_for_the_master_before_asks_the_next_one() {
        let mut history = History::new(RequestsAreServed::default());
        history.saw(&Happening::Calm).head(&join(0), &HeadAnswer::Parked).saw(&Happening::TakenOver);
        history.finish().holds();
        history.effect(&answer(0)).fails("did not ask");
    }

    #[test]
    fn no_worker_is_answered_that_did_not_ask() {
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
            let commit = StepCommit { step, asked: step, everyone: true, ..StepCommit::default() };
            HeadEffect::Committed(holder(0), Box::new(commit))
        };
        let mut history = History::new(RequestsAreServed::default());
        history.head(&ready(1), &HeadAnswer::Parked).head(&ready(0), &HeadAnswer::Parked);
        history.effect(&commit(0)).effect(&commit(1)).holds();
        history.effect(&commit(1)).fails("is told of the commit of step 1 and did not ask");
    }
}
