//! The ledger gives the answer of the naive model to every event, writes the same records, and then is in the
//! same state.

use std::collections::BTreeMap;

use antdt_core::Epoch;

use super::{CheckResult, Moment};
use crate::ledger::{Missing, Record};
use crate::testing::Note;

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let (view, naive, spec) = (moment.after, &moment.model.naive, moment.spec());
    let Moment { reply, expected, .. } = moment;
    holds!(reply.agrees(expected), "it was answered {reply:?} instead of {expected:?}");
    same!(view.counts(), naive.counts(), "the counts");
    for (epoch, counts) in view.epochs.iter().enumerate() {
        let of_naive = naive.epoch_counts(Epoch(u32::try_from(epoch).unwrap_or(u32::MAX)));
        same!(*counts, of_naive, "the counts of epoch {epoch}");
    }
    same!(view.status.finished, naive.is_finished(), "finished");
    same!(view.outstanding, naive.outstanding(), "the leases");
    same!(view.todo(), naive.todo(), "the shards that wait");
    let given_up: BTreeMap<_, _> = view.quarantined.iter().map(|shard| (shard.key, shard.offset)).collect();
    same!(given_up, naive.quarantined(), "the shards that were given up");

    let missing = naive.missing(moment.epoch);
    same!(moment.missing, missing, "what is missing");
    let longest = (0..spec.shard_count()).map(|index| spec.shard(index).len()).max().unwrap_or(0);
    let some = moment.missing_some;
    holds!(some.iter().map(|part| part.samples.len()).sum::<u64>() <= 2 * longest, "too much of two shards");
    same!(some.is_empty(), missing.is_empty(), "whether anything is missing");
    for part in some {
        let whole = |whole: &&Missing| {
            whole.why == part.why
                && whole.samples.start <= part.samples.start
                && part.samples.end <= whole.samples.end
        };
        holds!(missing.iter().any(|m| whole(&m)), "{part:?} is not in {missing:?}");
    }

    let notes = naive.notes();
    same!(moment.journal.records, notes.len(), "records, of which the last are {:?}", moment.journal.newest);
    for (record, note) in moment.journal.newest.iter().rev().zip(notes.iter().rev()) {
        match (record, note) {
            (Record::Restored(_), Note::Restored(_)) => {}
            (record, Note::Record(expected)) => same!(record, expected, "what was written down"),
            (record, note @ Note::Restored(_)) => {
                return Err(format!("{record:?} was written down instead of {note:?}"));
            }
        }
    }
    Ok(())
}
