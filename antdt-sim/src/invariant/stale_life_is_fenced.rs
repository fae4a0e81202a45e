//! Checks that an incarnation which was declared dead changes nothing any more, at the ledger or at the
//! master, whatever messages it sends, and that a lease which has ended has no effect any more.
//!
//! Source: fencing by incarnation, our design after Chubby's sequencers (Burrows 2006, recalled).

use std::collections::BTreeMap;

use antdt_core::{AckOutcome, Holder, Incarnation, JobTime, NodeId};
use antdt_job::{HeadAnswer, HeadEffect, HeadEvent};
use antdt_shard::ledger::{Answer, Event};

use super::Invariant;
use super::leases::{Leases, Move};
use crate::happening::Happening;

/// Checks that an incarnation which was declared dead has no effect any more; see the [module](self).
#[derive(Debug, Default)]
pub struct StaleLifeIsFenced {
    leases: Leases,
    /// Newest life of each node that the master gave up.
    given_up: BTreeMap<NodeId, Incarnation>,
}

impl StaleLifeIsFenced {
    fn at_the_ledger(&self, event: &Event, answer: &Answer) -> Result<(), String> {
        let (holder, listened) = match (event, answer) {
            (Event::Register { holder, .. }, Answer::Register(answer)) => (holder, answer.is_ok()),
            (Event::Exchange { holder, .. }, Answer::Exchange(answer)) => (holder, answer.is_ok()),
            (Event::Settle { holder, .. } | Event::Release { holder, .. }, Answer::Ack(Ok(outcomes))) => {
                (holder, outcomes.contains(&AckOutcome::Accepted))
            }
            (Event::Fail { holder, .. }, Answer::Fail(Ok(outcome))) => {
                (holder, *outcome == AckOutcome::Accepted)
            }
            _ => return Ok(()),
        };
        match self.leases.fence(*holder) {
            Some(through) if listened => {
                let node = holder.node;
                Err(format!("the ledger listens to {holder}, though {node} is fenced through life {through}"))
            }
            _ => Ok(()),
        }
    }

    fn at_the_master(&self, event: &HeadEvent, answer: &HeadAnswer) -> Result<(), String> {
        let holder = match event {
            HeadEvent::Register(registration) => registration.info.holder,
            HeadEvent::Heartbeat { holder, .. }
            | HeadEvent::Join { holder, .. }
            | HeadEvent::Ready { holder, .. }
            | HeadEvent::Leave { holder, .. } => *holder,
            _ => return Ok(()),
        };
        if self.is_given_up(holder) && !matches!(answer, HeadAnswer::Fenced) {
            return Err(format!("the master answers {holder}, which it gave up, with {answer:?}"));
        }
        Ok(())
    }

    fn is_given_up(&self, holder: Holder) -> bool {
        self.given_up.get(&holder.node).is_some_and(|through| *through >= holder.incarnation)
    }

    /// Where a life begins, those before it are over.
    fn older_are_given_up(&mut self, holder: Holder) {
        if let Some(before) = holder.incarnation.0.checked_sub(1) {
            self.give_up(Holder::new(holder.node, Incarnation(before)));
        }
    }

    fn give_up(&mut self, holder: Holder) {
        let through = self.given_up.entry(holder.node).or_insert(holder.incarnation);
        *through = holder.incarnation.max(*through);
    }
}

impl Invariant for StaleLifeIsFenced {
    fn name(&self) -> &'static str {
        "stale_life_is_fenced"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match what {
            Happening::Ledger(event, answer) => self.at_the_ledger(event, answer)?,
            Happening::Head(event, answer) => self.at_the_master(event, answer)?,
            Happening::Effect(HeadEffect::LedgerLost(holder)) => self.give_up(*holder),
            Happening::Effect(HeadEffect::Launch(holder)) => self.older_are_given_up(*holder),
            _ => {}
        }
        for moved in self.leases.saw(what) {
            if let Move::Odd(holder, ack) = moved {
                return Err(format!(
                    "an ack of lease {} by {holder} counts, who has no such lease",
                    ack.lease
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{PlanVersion, Standing};

    use super::super::testing::{History, ack, grant, holder, life};
    use super::*;

    #[test]
    fn i34_the_dead_may_speak_but_are_not_heard() {
        let mut history = History::new(StaleLifeIsFenced::default());
        history.granted(holder(0), 1, &[grant(1, 0, 0)]);
        history.settled(holder(0), &[ack(1, 4)], &[AckOutcome::Accepted]);
        history.lost(holder(0));
        history.settled(holder(0), &[ack(1, 6)], &[AckOutcome::StaleLease]).holds();
        history.settled(holder(0), &[ack(1, 6)], &[AckOutcome::Accepted]).fails("fenced through life 0");
        let mut history = History::new(StaleLifeIsFenced::default());
        history.register(life(0, 2)).holds();
        history.register(life(0, 1)).fails("fenced through life 1");
    }

    #[test]
    fn no_worker_acknowledges_the_lease_of_another() {
        let mut history = History::new(StaleLifeIsFenced::default());
        history.granted(holder(0), 1, &[grant(1, 0, 0)]);
        history.settled(holder(0), &[ack(1, 10)], &[AckOutcome::Accepted]);
        history.settled(holder(0), &[ack(1, 10)], &[AckOutcome::Accepted]).holds();
        history.settled(holder(1), &[ack(1, 10)], &[AckOutcome::Accepted]).fails("has no such lease");
    }

    #[test]
    fn the_master_fences_a_life_that_it_gave_up() {
        let join = HeadEvent::Join { holder: holder(0), standing: Standing::default() };
        let beat = HeadEvent::heartbeat(holder(0), vec![], PlanVersion(0), (PlanVersion(0), 0));
        let mut history = History::new(StaleLifeIsFenced::default());
        history.head(&join, &HeadAnswer::Parked);
        history.effect(&HeadEffect::LedgerLost(holder(0)));
        history.head(&beat, &HeadAnswer::Fenced).holds();
        history.head(&join, &HeadAnswer::Parked).fails("which it gave up");
    }

    #[test]
    fn the_master_fences_the_lives_before_the_one_that_it_launches() {
        let join =
            |incarnation| HeadEvent::Join { holder: life(0, incarnation), standing: Standing::default() };
        let mut history = History::new(StaleLifeIsFenced::default());
        history.head(&join(0), &HeadAnswer::Parked).effect(&HeadEffect::Launch(life(0, 1)));
        history.head(&join(0), &HeadAnswer::Fenced).head(&join(1), &HeadAnswer::Parked).holds();
        history.head(&join(0), &HeadAnswer::Parked).fails("which it gave up");
    }
}
