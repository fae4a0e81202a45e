//! Checks that the end of the data is not announced while a sample waits or is leased; after the first
//! announcement, nothing is granted any more; and the job does not count as complete before. A job that goes
//! back begins anew. Where the data end after some of the epochs for now, the samples of those are meant.
//!
//! Source: our design, against a defect of `DLRover`'s data sharding service, whose workers are told "end" while an epoch is out.

use std::collections::BTreeSet;

use antdt_core::{FetchOutcome, Generation, Holder, JobTime, LeaseId};
use antdt_job::{HeadEffect, HeadEvent, Note};
use antdt_shard::DatasetSpec;
use antdt_shard::ledger::{Answer, Event, Record};

use super::Invariant;
use super::leases::Progress;
use crate::happening::Happening;

/// Checks that the end of the data is not announced while a sample waits or is leased; see the [module](self).
#[derive(Debug)]
pub struct NoEarlyEnd {
    progress: Progress,
    /// The life of the service that has said so.
    said: Option<Generation>,
    /// The newest lease that was granted.
    newest: Option<LeaseId>,
    /// Workers that were let in since the job went back, if it did. The others speak of an end that is undone.
    since: Option<BTreeSet<Holder>>,
    /// Samples of one epoch, and of the epochs that are handed out for now.
    epoch: u64,
    handed_out: u64,
}

impl NoEarlyEnd {
    /// Returns the invariant for a ledger of this data set.
    pub fn new(spec: &DatasetSpec) -> Self {
        Self {
            progress: Progress::new(spec),
            said: None,
            newest: None,
            since: None,
            epoch: spec.num_samples,
            handed_out: u64::MAX,
        }
    }

    fn must_be_finished(&self, what: &str) -> Result<(), String> {
        let (acked, quarantined) = (self.progress.acked(), self.progress.quarantined());
        if self.progress.is_finished() || acked + quarantined >= self.handed_out {
            return Ok(());
        }
        let total = self.progress.total().unwrap_or(u64::MAX);
        Err(format!("{what} with {acked} samples acknowledged and {quarantined} given up of {total}"))
    }
}

impl Invariant for NoEarlyEnd {
    fn name(&self) -> &'static str {
        "no_early_end"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        self.progress.saw(what)?;
        match what {
            Happening::Record(Record::Restored(_)) => {
                self.since = Some(BTreeSet::new());
                Ok(())
            }
            Happening::Effect(HeadEffect::Joined(holder, _)) => {
                if let Some(since) = &mut self.since {
                    since.insert(*holder);
                }
                Ok(())
            }
            Happening::Ledger(Event::EndAfter { epochs }, _) => {
                self.handed_out = self.epoch.saturating_mul(u64::from(*epochs));
                Ok(())
            }
            Happening::Ledger(_, Answer::Exchange(Ok(exchanged))) => match exchanged.fetched {
                Some(FetchOutcome::EndOfData) => {
                    self.said = Some(self.progress.generation);
                    self.must_be_finished("the end of the data is announced")
                }
                // A late copy of an old question is given its old answer again.
                Some(FetchOutcome::Granted(grant))
                    if self.said == Some(grant.lease.generation) && Some(grant.lease) > self.newest =>
                {
                    Err(format!("lease {} is granted after the end of the data", grant.lease))
                }
                _ => {
                    self.newest = self.newest.max(exchanged.grants().map(|grant| grant.lease).max());
                    Ok(())
                }
            },
            Happening::Head(HeadEvent::Leave { holder, end_of_data: true, .. }, _)
                if self.since.as_ref().is_none_or(|since| since.contains(holder)) =>
            {
                self.must_be_finished(&format!("{holder} leaves at the end of the data"))
            }
            Happening::Effect(HeadEffect::Note { note: Note::Completed, .. }) => {
                self.must_be_finished("the job counts as complete")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_job::HeadAnswer;
    use antdt_shard::ShardLedger;

    use super::super::testing::{History, grant, holder, joined, plan, spec};
    use super::*;

    #[test]
    fn the_end_is_announced_when_all_is_acknowledged() {
        let mut history = History::new(NoEarlyEnd::new(&spec()));
        history.generation(1);
        history.recorded_ack(0, 10).recorded_ack(1, 10);
        history.granted(holder(0), 1, &[grant(3, 2, 0)]);
        history.recorded_ack(2, 10);
        history.fetched(holder(0), 2, FetchOutcome::EndOfData).holds();
        // A late copy of the question that was answered with it.
        history.granted(holder(0), 1, &[grant(3, 2, 0)]).holds();
        history.granted(holder(1), 1, &[grant(4, 2, 0)]).fails("after the end of the data");
    }

    #[test]
    fn the_end_for_now_is_announced_when_the_epochs_handed_out_are_acknowledged() {
        let mut history = History::new(NoEarlyEnd::new(&spec()));
        let none = Event::EndAfter { epochs: 0 };
        history.generation(1).recorded_ack(0, 10);
        history.saw(&Happening::Ledger(&none, &Answer::Frozen));
        history.fetched(holder(0), 1, FetchOutcome::EndOfData).holds();
        let all = Event::EndAfter { epochs: 1 };
        history.saw(&Happening::Ledger(&all, &Answer::Frozen));
        history.fetched(holder(0), 2, FetchOutcome::EndOfData).fails("the end of the data is announced");
    }

    #[test]
    fn a_job_that_goes_back_begins_anew_and_a_worker_that_has_seen_an_end_before_may_leave() {
        let start = ShardLedger::new(spec(), Generation(1)).unwrap().snapshot();
        let leave = |index| HeadEvent::Leave { holder: holder(index), end_of_data: true, can_evaluate: true };
        let mut history = History::new(NoEarlyEnd::new(&spec()));
        history.generation(1).recorded_ack(0, 10).recorded_ack(1, 10).recorded_ack(2, 10);
        history.saw(&Happening::Record(&Record::Restored(Box::new(start)))).generation(2);
        history.head(&leave(0), &HeadAnswer::Fenced).holds();
        history.effect(&HeadEffect::Joined(holder(1), joined(1, &[], plan(1, &[]), 0).into()));
        history.head(&leave(1), &HeadAnswer::Fenced).fails("leaves at the end of the data with 0 samples");
    }

    #[test]
    fn one_shard_early_is_too_early() {
        let mut history = History::new(NoEarlyEnd::new(&spec()));
        history.recorded_ack(0, 10).recorded_ack(1, 10).recorded_ack(2, 9);
        history.fetched(holder(0), 2, FetchOutcome::EndOfData).fails("29 samples acknowledged");
        let note = HeadEffect::Note { at: JobTime::ZERO, note: Note::Completed };
        let mut history = History::new(NoEarlyEnd::new(&spec()));
        history.effect(&note).fails("counts as complete with 0 samples");
    }
}
