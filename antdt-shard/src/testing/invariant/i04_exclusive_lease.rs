//! A shard has at most one live lease, and no lease id or generation is used twice.

use std::collections::BTreeSet;

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let book = &moment.model.book;
    let mut keys = BTreeSet::new();
    for own in book.live.values() {
        holds!(keys.insert(own.grant.key), "{:?} was granted to two holders", own.grant.key);
    }
    let mut keys = BTreeSet::new();
    for lease in &moment.after.outstanding {
        holds!(keys.insert(lease.key), "{:?} has two holders", lease.key);
        let Some(own) = book.live.get(&lease.lease) else {
            return Err(format!("{lease:?} should have ended"));
        };
        let is = (lease.holder, lease.key, lease.offset);
        same!(is, (own.holder, own.grant.key, own.offset), "lease {}", lease.lease);
    }
    let (old, new) = book.grants.split_at(book.grants.len() - book.facts.granted.len());
    for (at, (grant, _)) in new.iter().enumerate() {
        same!(grant.lease.generation, book.generation, "{grant:?} is of another generation");
        let used = old.iter().chain(&new[..at]).any(|(before, _)| before.lease == grant.lease);
        holds!(!used, "lease {} was used before", grant.lease);
    }
    let begins = u64::from(moment.call.ends_a_generation());
    let (before, after) = (moment.before.status.generation, moment.after.status.generation);
    same!(after.0, before.0 + begins, "the generation");
    Ok(())
}
