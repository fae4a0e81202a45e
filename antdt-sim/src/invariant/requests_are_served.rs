//! Whoever waits for the master is answered, unless he or the job ended meanwhile; and nobody is answered who does not wait.
//!
//! Source: our design.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{Holder, JobTime};
use antdt_job::{HeadAnswer, HeadEffect, HeadEvent};

use super::Invariant;
use crate::happening::Happening;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct RequestsAreServed {
    waiting: BTreeMap<Holder, (&'static str, JobTime)>,
    /// Those whose end the master may not know of yet.
    dead: BTreeSet<Holder>,
    calm: bool,
    ended: bool,
}

impl RequestsAreServed {
    fn served(&mut self, holder: Holder, what: &'static str) -> Result<(), String> {
        match self.waiting.remove(&holder) {
            Some((asked, _)) if asked == what => Ok(()),
            Some((asked, _)) => Err(format!("{holder} asked to be told of {asked} and is told of {what}")),
            None if self.dead.contains(&holder) => Ok(()),
            None => Err(format!("{holder} is told of {what} and did not ask")),
        }
    }
}

impl Invariant for RequestsAreServed {
    fn name(&self) -> &'static str {
        "requests_are_served"
    }

    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match what {
            Happening::Head(HeadEvent::Join { holder, .. }, HeadAnswer::Parked) => {
                self.waiting.insert(*holder, ("a group", at));
            }
            Happening::Head(HeadEvent::Ready { holder, .. }, HeadAnswer::Parked) => {
                self.waiting.insert(*holder, ("a commit", at));
            }
            Happening::Effect(HeadEffect::Joined(holder, _)) => return self.served(*holder, "a group"),
            Happening::Effect(HeadEffect::Committed(holder, _)) => return self.served(*holder, "a commit"),
            Happening::Head(HeadEvent::Leave { holder, .. }, _) => {
                self.waiting.remove(holder);
            }
            Happening::Head(HeadEvent::Exited(holder, ..), _) => {
                self.waiting.remove(holder);
                self.dead.remove(holder);
            }
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
        match self.waiting.iter().find(|(holder, _)| !self.dead.contains(holder)) {
            Some((holder, (asked, since))) if self.calm && !self.ended => {
                Err(format!("{holder} has waited for {asked} since {since}, until {at}"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Standing;

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
    fn nobody_is_answered_who_did_not_ask() {
        let mut history = History::new(RequestsAreServed::default());
        history.head(&join(0), &HeadAnswer::Parked).effect(&answer(0)).holds();
        history.effect(&answer(0)).fails("did not ask");
    }
}
