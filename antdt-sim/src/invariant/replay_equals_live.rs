//! Checks that the state of the ledger, except its leases, follows from its records alone: every change is
//! recorded before the answer to it is sent, and a service that is started again from its log has the same
//! state as before.
//!
//! Source: event sourcing; our design.

use std::collections::BTreeMap;

use antdt_core::{AckOutcome, Counts, Incarnation, JobTime, NodeId, Role};
use antdt_shard::ledger::{Answer, Event, LedgerStatus, Record, Recovery};
use antdt_shard::{DatasetSpec, RecoverError};

use super::Invariant;
use super::leases::{Leases, Progress, shard};
use crate::happening::Happening;

/// Records after which the accounts are compared at the next opportunity: a comparison copies what is waiting.
const COMPARED_AFTER: u32 = 64;

/// Checks that the ledger's records give its state again; see the [module](self).
#[derive(Debug)]
pub struct ReplayEqualsLive {
    fold: Recovery,
    leases: Leases,
    progress: Progress,
    fences: BTreeMap<NodeId, Incarnation>,
    /// Records since the last comparison.
    records: u32,
}

impl ReplayEqualsLive {
    /// Returns the invariant for a ledger of this data set.
    ///
    /// # Errors
    /// If the settings of the data set are invalid.
    pub fn new(spec: &DatasetSpec) -> Result<Self, RecoverError> {
        Ok(Self {
            fold: Recovery::new(spec.clone())?,
            leases: Leases::default(),
            progress: Progress::new(spec),
            fences: BTreeMap::new(),
            records: COMPARED_AFTER,
        })
    }

    fn record(&mut self, record: &Record) -> Result<(), String> {
        self.records += 1;
        if let Record::Fenced { node, through } = record {
            let fence = self.fences.entry(*node).or_insert(*through);
            *fence = (*fence).max(*through);
        }
        self.fold.apply(record).map_err(|error| format!("the log does not fold: {error}"))
    }

    /// What was said was written down before.
    fn answered(&self, event: &Event, answer: &Answer) -> Result<(), String> {
        let (acks, outcomes) = match (event, answer) {
            (Event::Exchange { acks, .. }, Answer::Exchange(Ok(exchanged))) => {
                (&acks[..], &exchanged.outcomes[..])
            }
            (Event::Settle { acks, .. } | Event::Release { acks, .. }, Answer::Ack(Ok(outcomes))) => {
                (&acks[..], &outcomes[..])
            }
            (Event::Fail { ack, .. }, Answer::Fail(Ok(outcome))) => {
                (std::slice::from_ref(ack), std::slice::from_ref(outcome))
            }
            (Event::WorkerLost { holder }, Answer::WorkerLost) if holder.node.role == Role::Worker => {
                let through = self.fences.get(&holder.node);
                if through.is_none_or(|through| *through < holder.incarnation) {
                    return Err(format!("the end of {holder} is not recorded"));
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        for (ack, outcome) in acks.iter().zip(outcomes) {
            let Some(lease) = self.leases.get(ack.lease).filter(|_| *outcome == AckOutcome::Accepted) else {
                continue;
            };
            let (key, recorded) = (lease.grant.key, self.progress.offset(lease.grant.key));
            if recorded < ack.offset {
                let (shard, offset) = (shard(key), ack.offset);
                return Err(format!("{shard} counts up to {offset}, but is recorded up to {recorded}"));
            }
        }
        Ok(())
    }

    fn compare(&mut self, live: &LedgerStatus) -> Result<(), String> {
        self.records = 0;
        let folded = self.fold.snapshot();
        // Leases are not recorded: what is out waits in the fold.
        let todo = live.counts.todo + live.counts.doing;
        let counts = Counts { todo, doing: 0, ..live.counts };
        if folded.counts() != counts || folded.generation() != Some(live.generation) {
            return Err(format!(
                "the records add up to {:?} in generation {:?}, the ledger is at {counts:?} in {}",
                folded.counts(),
                folded.generation(),
                live.generation
            ));
        }
        Ok(())
    }
}

impl Invariant for ReplayEqualsLive {
    fn name(&self) -> &'static str {
        "replay_equals_live"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        self.progress.saw(what)?;
        match what {
            Happening::Record(record) => self.record(record)?,
            Happening::Ledger(_, Answer::Status(status))
                if self.records >= COMPARED_AFTER || status.finished =>
            {
                self.compare(status)?;
            }
            Happening::Ledger(_, Answer::Snapshot(snapshot)) if self.fold.snapshot() != **snapshot => {
                return Err("the records do not add up to the snapshot of the ledger".to_owned());
            }
            Happening::Ledger(_, Answer::Status(_) | Answer::Snapshot(_)) => {}
            Happening::Ledger(event, answer) => self.answered(event, answer)?,
            _ => {}
        }
        self.leases.saw(what);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Ack, Generation, RequestId};
    use antdt_shard::ShardLedger;
    use antdt_shard::ledger::Effect;

    use antdt_core::Machine;

    use super::super::testing::{History, ack, holder, spec};
    use super::*;

    /// Tells the checker what a ledger does, but for some of its records.
    fn tell(
        ledger: &mut ShardLedger,
        history: &mut History<ReplayEqualsLive>,
        event: &Event,
        keep: impl Fn(&Record) -> bool,
    ) {
        let answer = ledger.handle(JobTime::ZERO, event.clone());
        while let Some(effect) = ledger.poll_effect() {
            if let Effect::Record(record) = effect
                && keep(&record)
            {
                history.saw(&Happening::Record(&record));
            }
        }
        history.ledger(event, &answer);
    }

    fn story(keep: impl Fn(&Record) -> bool + Copy) -> History<ReplayEqualsLive> {
        let mut ledger = ShardLedger::new(spec(), Generation(1)).unwrap();
        let mut history = History::new(ReplayEqualsLive::new(&spec()).unwrap());
        let (holder, generation) = (holder(0), Generation(1));
        let ask = |request, acks: Vec<Ack>| {
            let request = RequestId(request);
            Event::Exchange { holder, generation, request, acks: acks.into(), want: 1 }
        };
        tell(&mut ledger, &mut history, &Event::Register { holder, held: vec![] }, keep);
        tell(&mut ledger, &mut history, &ask(1, vec![]), keep);
        tell(&mut ledger, &mut history, &ask(2, vec![ack(1, 10)]), keep);
        tell(&mut ledger, &mut history, &ask(3, vec![ack(2, 7)]), keep);
        tell(&mut ledger, &mut history, &Event::Status, keep);
        tell(&mut ledger, &mut history, &Event::Snapshot, keep);
        tell(&mut ledger, &mut history, &Event::WorkerLost { holder }, keep);
        tell(&mut ledger, &mut history, &Event::Snapshot, keep);
        history
    }

    #[test]
    fn the_records_of_a_ledger_add_up_to_it() {
        story(|_| true).holds();
    }

    #[test]
    fn a_record_that_is_missing_is_missed() {
        let not_seven = |record: &Record| !matches!(record, Record::Acked { offset: 7, .. });
        story(not_seven).fails("counts up to 7, but is recorded up to 0");
        story(|record| !matches!(record, Record::Fenced { .. }))
            .fails("the end of worker-0#0 is not recorded");
        story(|record| !matches!(record, Record::EpochOpened { .. })).fails("the log does not fold");
    }
}
