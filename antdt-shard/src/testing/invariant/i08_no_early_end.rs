//! No worker is told the end of the data while a worker holds a lease, a shard waits or an epoch is unopened;
//! and after the end nothing is granted in the same generation.

use antdt_core::FetchOutcome;

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let book = &moment.model.book;
    if moment.reply.fetched() == Some(FetchOutcome::EndOfData) {
        holds!(moment.after.outstanding.is_empty(), "the end while somebody holds a lease");
        holds!(moment.after.todo().is_empty(), "the end while a shard waits");
        let counts = moment.after.counts();
        same!(counts.acked + counts.quarantined, counts.total, "the end before the last epoch");
    }
    // The event that ended it grants nothing either.
    holds!(!book.ended || book.facts.granted.is_empty(), "a grant after the end");
    Ok(())
}
