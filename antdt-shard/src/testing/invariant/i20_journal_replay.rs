//! The log is the ledger without its leases: replaying it gives the same state, and replaying any beginning
//! of it gives a state with balanced accounts and with no more samples done than there were.

use std::collections::BTreeSet;

use antdt_core::Epoch;

use super::{CheckResult, Moment};
use crate::ledger::{Record, Recovery};
use crate::spec::DatasetSpec;

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let book = &moment.model.book;
    holds!(moment.journal.fold == *moment.after.snapshot, "the log differs from what happened");
    holds!(book.written == book.account, "what is done was not written down, or too much was");
    Ok(())
}

/// Every beginning of a log. At the end of a history, for it looks at every moment of it once more.
pub(crate) fn check_every_prefix(spec: &DatasetSpec, log: &[Record]) -> CheckResult {
    let mut recovery = Recovery::new(spec.clone()).map_err(|error| error.to_string())?;
    let mut acked = 0;
    for record in log {
        recovery.apply(record).map_err(|error| format!("{record:?} does not follow: {error}"))?;
        let snapshot = recovery.snapshot();
        let counts = snapshot.counts();
        holds!(counts.balance() && counts.doing == 0, "after {record:?}: {counts:?}");
        if !matches!(record, Record::Restored(_)) {
            holds!(counts.acked >= acked, "{record:?} takes an ack back");
        }
        acked = counts.acked;
        let (waiting, given_up) = (snapshot.waiting(), snapshot.given_up());
        let once: BTreeSet<_> = waiting.keys().chain(&given_up).collect();
        same!(once.len(), waiting.len() + given_up.len(), "a shard is in two states after {record:?}");
        let sums = (0..spec.epoch_limit()).filter_map(|epoch| snapshot.epoch_counts(Epoch(epoch)));
        same!(sums.map(|counts| counts.acked).sum::<u64>(), acked, "the sum of the epochs after {record:?}");
    }
    Ok(())
}
