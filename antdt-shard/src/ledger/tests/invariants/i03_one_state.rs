//! Each shard of an open epoch is in one state: it waits, is leased, is done, or was given up.

use std::collections::BTreeSet;

use antdt_core::ShardKey;

use super::Moment;

pub(super) fn check(moment: &Moment<'_>) {
    let ledger = &moment.real.ledger;
    let mut seen: BTreeSet<ShardKey> = BTreeSet::new();
    let mut once = |key: ShardKey| assert!(seen.insert(key), "{key:?} is in two states");
    moment.todo().for_each(&mut once);
    ledger.outstanding().for_each(|lease| once(lease.key));
    ledger.quarantined().for_each(|given_up| once(given_up.key));
    let waiting: u64 = (0..moment.model.workers()).map(|share| ledger.book.waiting(share)).sum();
    assert_eq!(waiting, moment.todo().count() as u64, "they are counted as they are listed");
    let book = &moment.model.book;
    for key in seen {
        assert!(book.account.offset(key) < book.spec.shard(key.index).len(), "{key:?} is done as well");
    }
    assert_eq!(ledger.outstanding().count(), book.live.len());
}
