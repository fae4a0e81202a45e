//! Checks that every sample is in exactly one state (acknowledged, waiting, leased or given up), and that the
//! ledger's counts equal those of an observer that adds up the ledger's answers.
//!
//! Source: our design.

use antdt_core::{Counts, JobTime};
use antdt_job::HeadEvent;
use antdt_shard::DatasetSpec;
use antdt_shard::ledger::{Answer, Record};

use super::Invariant;
use super::leases::{Leases, Progress};
use crate::happening::Happening;

/// Checks that every sample is in exactly one place; see the [module](self).
#[derive(Debug)]
pub struct SamplesAccounted {
    leases: Leases,
    progress: Progress,
    /// What the master was told last.
    told: Counts,
}

impl SamplesAccounted {
    /// Returns the invariant for a ledger of this data set.
    pub fn new(spec: &DatasetSpec) -> Self {
        Self { leases: Leases::default(), progress: Progress::new(spec), told: Counts::default() }
    }

    fn check(&self, counts: Counts) -> Result<(), String> {
        if !counts.balance() {
            return Err(format!("the counts do not add up: {counts:?}"));
        }
        let total = self.progress.total().unwrap_or(counts.total);
        let (acked, quarantined) = (self.progress.acked(), self.progress.quarantined());
        let doing = self.leases.doing();
        let todo = total.saturating_sub(acked + quarantined + doing);
        let mine = Counts { total, acked, todo, doing, quarantined };
        if counts != mine {
            return Err(format!("the ledger counts {counts:?}; its answers add up to {mine:?}"));
        }
        Ok(())
    }
}

impl Invariant for SamplesAccounted {
    fn name(&self) -> &'static str {
        "samples_accounted"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        self.leases.saw(what);
        self.progress.saw(what)?;
        match what {
            Happening::Record(Record::Restored(_)) => {
                self.told = Counts::default();
                Ok(())
            }
            Happening::Ledger(_, Answer::Status(status)) => self.check(status.counts),
            Happening::Head(HeadEvent::Tick(Some(counts)), _) => {
                let before = std::mem::replace(&mut self.told, *counts);
                if !counts.balance() || counts.acked < before.acked || counts.acked > self.progress.acked() {
                    return Err(format!("the master is told {counts:?} after {before:?}"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::AckOutcome;

    use super::super::testing::{History, ack, grant, holder, spec};
    use super::*;

    #[test]
    fn the_ledgers_account_is_that_of_its_answers() {
        let mut history = History::new(SamplesAccounted::new(&spec()));
        history.generation(1);
        history.granted(holder(0), 1, &[grant(1, 0, 0), grant(2, 1, 0)]);
        history.recorded_ack(0, 4).settled(holder(0), &[ack(1, 4)], &[AckOutcome::Accepted]);
        let counts = Counts { total: 30, acked: 4, todo: 10, doing: 16, quarantined: 0 };
        history.status(counts).holds();
        history.lost(holder(0));
        history.status(counts).fails("its answers add up to");
    }

    #[test]
    fn a_sample_that_is_nowhere_is_missed() {
        let mut history = History::new(SamplesAccounted::new(&spec()));
        history.status(Counts { total: 30, todo: 30, ..Counts::default() }).holds();
        history.status(Counts { total: 30, todo: 29, ..Counts::default() }).fails("do not add up");
    }
}
