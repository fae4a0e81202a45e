//! The ledger answers every event as the naive model does, writes down the same, and then is in the same state.

use std::collections::BTreeMap;

use antdt_core::Epoch;

use super::Moment;
use crate::ledger::Record;
use crate::testing::Note;

pub(super) fn check(moment: &Moment<'_>) {
    let Moment { call, expected, reply, model, real } = moment;
    assert_eq!(reply, expected, "{call:?}");
    let (ledger, naive) = (&real.ledger, &model.naive);
    assert_eq!(ledger.counts(), naive.counts(), "{call:?}");
    let epochs = model.book.spec.epoch_limit();
    for epoch in 0..=epochs {
        let epoch = Epoch(epoch);
        assert_eq!(ledger.epoch_counts(epoch), naive.epoch_counts(epoch), "epoch {epoch} after {call:?}");
    }
    assert_eq!(ledger.is_finished(), naive.is_finished());
    assert_eq!(ledger.outstanding().collect::<Vec<_>>(), naive.outstanding(), "{call:?}");
    let todo: BTreeMap<_, _> =
        ledger.book.todo().map(|(key, begun)| (key, (begun.offset, begun.faults))).collect();
    assert_eq!(todo, naive.todo(), "{call:?}");
    let given_up: BTreeMap<_, _> = ledger.quarantined().map(|q| (q.key, q.offset)).collect();
    assert_eq!(given_up, naive.quarantined(), "{call:?}");

    // A different epoch with each record, and one that the job does not have.
    let epoch = Epoch(real.log.len() as u32 % (epochs + 1));
    let missing = naive.missing(epoch);
    assert_eq!(ledger.missing(epoch, usize::MAX), missing, "after {call:?}");
    let some = ledger.missing(epoch, 2);
    let longest = (0..model.book.spec.shard_count()).map(|index| model.book.spec.shard(index).len()).max();
    assert!(some.iter().map(|m| m.samples.len()).sum::<u64>() <= 2 * longest.unwrap());
    assert_eq!(some.is_empty(), missing.is_empty());
    for part in some {
        let whole = |m: &&crate::ledger::Missing| {
            m.why == part.why && m.samples.start <= part.samples.start && part.samples.end <= m.samples.end
        };
        assert!(missing.iter().any(|m| whole(&m)), "{part:?} is not in {missing:?}");
    }

    assert_eq!(real.log.len(), naive.notes().len(), "{call:?} left other records: {:?}", real.log.last());
    // The newest ones: no event leaves more.
    for (record, note) in real.log.iter().zip(naive.notes()).rev().take(9) {
        match (record, note) {
            (Record::Restored(_), Note::Restored(_)) => {}
            (record, Note::Record(expected)) => assert_eq!(record, expected, "{call:?}"),
            (record, note) => panic!("{record:?} was written down instead of {note:?}"),
        }
    }
}
