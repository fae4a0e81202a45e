//! Checks that acknowledged samples stay acknowledged: a complete shard is never granted again, nothing more
//! is recorded of it, and no shard goes back.
//!
//! Source: our design; that samples are done once is what `AntDT` promises of its sharding service.

use antdt_core::JobTime;
use antdt_shard::DatasetSpec;

use super::Invariant;
use super::leases::{Leases, Move, Progress, shard};
use crate::happening::Happening;

/// Checks that acknowledged samples stay acknowledged; see the [module](self).
#[derive(Debug)]
pub struct DoneIsFinal {
    leases: Leases,
    progress: Progress,
}

impl DoneIsFinal {
    /// Returns the invariant for a ledger of this data set.
    pub fn new(spec: &DatasetSpec) -> Self {
        Self { leases: Leases::default(), progress: Progress::new(spec) }
    }
}

impl Invariant for DoneIsFinal {
    fn name(&self) -> &'static str {
        "done_is_final"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        self.progress.saw(what)?;
        for moved in self.leases.saw(what) {
            if let Move::Granted(holder, grant) = moved
                && self.progress.is_done(grant.key)
            {
                return Err(format!("{}, which is complete, is granted to {holder}", shard(grant.key)));
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
    fn a_complete_shard_stays_complete() {
        let mut history = History::new(DoneIsFinal::new(&spec()));
        history.granted(holder(0), 1, &[grant(1, 0, 0)]);
        history.recorded_ack(0, 4).recorded_ack(0, 10).holds();
        history.granted(holder(1), 1, &[grant(2, 0, 0)]).fails("which is complete, is granted");
    }

    #[test]
    fn no_shard_goes_back() {
        let mut history = History::new(DoneIsFinal::new(&spec()));
        history.recorded_ack(0, 4).holds();
        history.recorded_ack(0, 3).fails("up to 3 of 10 samples after 4");
        let mut history = History::new(DoneIsFinal::new(&spec()));
        history.recorded_ack(0, 10).holds();
        history.recorded_ack(0, 10).fails("is complete, and something is recorded");
    }
}
