//! Each shard of an open epoch is in one state: it waits, is leased, is done, or was given up.

use std::collections::BTreeSet;

use antdt_core::ShardKey;

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let mut seen: BTreeSet<ShardKey> = moment.after.todo().into_keys().collect();
    let leased = moment.after.outstanding.iter().map(|lease| lease.key);
    let given_up = moment.after.quarantined.iter().map(|given_up| given_up.key);
    for key in leased.chain(given_up) {
        holds!(seen.insert(key), "{key:?} is in two states");
    }
    let book = &moment.model.book;
    for key in seen {
        holds!(book.account.offset(key) < book.spec.shard(key.index).len(), "{key:?} is done as well");
    }
    same!(moment.after.outstanding.len(), book.live.len(), "leases");
    Ok(())
}
