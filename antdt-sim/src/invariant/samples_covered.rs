//! Checks that every sample of every epoch is acknowledged once: the next holder of a shard continues exactly
//! where it was acknowledged, and a job that ends well has acknowledged or given up all of them.
//!
//! Samples that were computed and not acknowledged when their holder ended are computed again: at least once,
//! repeats only past an acknowledged offset. [`committed_once`](super::committed_once) checks that none of
//! these repeats is in the model.
//!
//! Source: our design; `AntDT` promises the same of its shards.

use antdt_core::JobTime;
use antdt_shard::DatasetSpec;

use super::Invariant;
use super::leases::{Leases, Move, Progress, shard};
use crate::happening::Happening;

/// Checks that every sample of every epoch is acknowledged once; see the [module](self).
#[derive(Debug)]
pub struct SamplesCovered {
    leases: Leases,
    progress: Progress,
}

impl SamplesCovered {
    /// Returns the invariant for a ledger of this data set.
    pub fn new(spec: &DatasetSpec) -> Self {
        Self { leases: Leases::default(), progress: Progress::new(spec) }
    }
}

impl Invariant for SamplesCovered {
    fn name(&self) -> &'static str {
        "samples_covered"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        self.progress.saw(what)?;
        if let Happening::Ended(Ok(())) = what {
            let (acked, given_up) = (self.progress.acked(), self.progress.quarantined());
            if let Some(total) = self.progress.total().filter(|total| *total != acked + given_up) {
                return Err(format!(
                    "the job ended well with {acked} samples acknowledged and {given_up} given up of {total}"
                ));
            }
        }
        for moved in self.leases.saw(what) {
            if let Move::Granted(holder, grant) = moved {
                let acked = self.progress.offset(grant.key);
                if grant.resume_at != acked {
                    let (shard, at) = (shard(grant.key), grant.resume_at);
                    return Err(format!(
                        "{holder} is to begin {shard} at {at}, but {acked} are acknowledged"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{History, grant, holder, spec};
    use super::*;

    #[test]
    fn an_heir_begins_where_the_dead_was_acknowledged() {
        let mut history = History::new(SamplesCovered::new(&spec()));
        history.granted(holder(0), 1, &[grant(1, 0, 0)]).recorded_ack(0, 4);
        history.lost(holder(0));
        history.granted(holder(1), 1, &[grant(2, 0, 4)]).holds();
        history.lost(holder(1));
        history.granted(holder(2), 1, &[grant(3, 0, 0)]).fails("at 0, but 4 are acknowledged");
    }

    #[test]
    fn a_job_that_ends_well_has_seen_all() {
        let mut history = History::new(SamplesCovered::new(&spec()));
        history.recorded_ack(0, 10).recorded_ack(1, 10).recorded_ack(2, 10);
        history.ended(Ok(())).holds();
        let mut history = History::new(SamplesCovered::new(&spec()));
        history.recorded_ack(0, 10);
        history.ended(Err("stopped".to_owned())).holds();
        history.ended(Ok(())).fails("with 10 samples acknowledged and 0 given up of 30");
    }
}
