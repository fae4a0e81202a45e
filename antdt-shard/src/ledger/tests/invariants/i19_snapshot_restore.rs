//! A snapshot is the ledger without its leases: what was out waits at its offset. Set back to it the ledger goes on from
//! there, grants again what was acknowledged after it and nothing from before, and forgets no fence. It survives its way
//! through bytes.

use std::collections::BTreeSet;

use antdt_core::{Ack, Generation};

use super::Moment;
use crate::ledger::tests::call::Call;
use crate::ledger::tests::cases::all;
use crate::ledger::tests::pair::{Pair, small, worker};
use crate::ledger::{LedgerSnapshot, ShardLedger};
use crate::spec::{DatasetSpec, Shuffle};

pub(super) fn check(moment: &Moment<'_>) {
    let (ledger, book) = (&moment.real.ledger, &moment.model.book);
    let snapshot = ledger.snapshot();
    let (counts, now) = (snapshot.counts(), ledger.counts());
    assert_eq!((counts.acked, counts.quarantined), (now.acked, now.quarantined));
    assert_eq!((counts.todo, counts.doing), (now.todo + now.doing, 0));
    let bytes = snapshot.to_bytes();
    assert_eq!(LedgerSnapshot::from_bytes(&bytes, &book.spec).as_ref(), Ok(&snapshot));

    let mut again = ShardLedger::new(book.spec.clone(), Generation(1)).unwrap();
    again.restore(&snapshot, ledger.generation().next()).unwrap();
    let waiting: BTreeSet<_> = again.book.todo().map(|(key, begun)| (key, begun.offset)).collect();
    let waited = ledger.book.todo().map(|(key, begun)| (key, begun.offset));
    let out = ledger.outstanding().map(|lease| (lease.key, lease.offset));
    assert_eq!(waiting, waited.chain(out).collect(), "what was out waits");

    if matches!(moment.call, Call::Restore { .. }) {
        assert_eq!(ledger.outstanding().count(), 0);
        assert!(ledger.standing.members.is_empty(), "everybody has to register");
        let forgotten = moment
            .real
            .before
            .book
            .fences
            .iter()
            .find(|(node, through)| ledger.book.fences.get(*node).is_none_or(|fence| fence < *through));
        assert_eq!(forgotten, None, "a fence survives every restore");
    }
}

#[test]
fn a_restore_repeats_what_came_after_the_snapshot_and_nothing_from_before() {
    let mut pair = Pair::new(DatasetSpec { shuffle: Shuffle::None, ..small(12, 4) });
    pair.register(worker(0, 0));
    pair.fetch(worker(0, 0), 1);
    let first = pair.newest();
    pair.ack(worker(0, 0), &[Ack { lease: first.lease, offset: 3 }]);
    pair.say(&Call::Keep);
    pair.ack(worker(0, 0), &[all(&first)]);
    pair.lose(worker(0, 0));
    pair.restore(0);
    assert!(!pair.register(worker(0, 0)), "a fence survives every restore");
    assert!(pair.register(worker(0, 1)));
    pair.fetch(worker(0, 1), 1);
    let again = pair.newest();
    assert_eq!((again.key.index, again.resume_at, again.lease.generation), (0, 3, Generation(2)));
    pair.drain();
}
