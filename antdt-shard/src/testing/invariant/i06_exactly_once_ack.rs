//! Every sample is counted at most once, whatever messages are repeated, late or sent by dead workers, and
//! only if the holder of its lease acknowledges it. A restore takes back what was counted after the snapshot;
//! a restart takes back what was not in the log.

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let facts = &moment.model.book.facts;
    same!(facts.twice, [], "samples were counted twice");
    same!(facts.unfounded, [], "samples were counted or lent without a lease that says so");
    let done = moment.model.book.account.samples.len() as u64;
    same!(moment.after.counts().acked, done, "samples that are done");
    if !moment.call.ends_a_generation() {
        let counted: u64 = facts.counted.iter().map(|(_, from, to)| to - from).sum();
        let (before, after) = (moment.before.counts().acked, moment.after.counts().acked);
        same!(after, before + counted, "samples that are done");
    }
    Ok(())
}
