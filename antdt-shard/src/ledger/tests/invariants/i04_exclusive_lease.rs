//! A shard has at most one live lease; the name of a lease is never used again, nor is a generation.

use std::collections::BTreeSet;

use super::Moment;

pub(super) fn check(moment: &Moment<'_>) {
    let (real, book) = (&moment.real.ledger, &moment.model.book);
    let mut keys = BTreeSet::new();
    for lease in real.outstanding() {
        assert!(keys.insert(lease.key), "{:?} has two holders", lease.key);
        let own = book.live.get(&lease.lease);
        let own = own.unwrap_or_else(|| panic!("{lease:?} should have ended"));
        assert_eq!((lease.holder, lease.key, lease.offset), (own.holder, own.grant.key, own.offset));
    }
    let (old, new) = book.grants.split_at(book.grants.len() - book.facts.granted.len());
    for (at, (grant, _)) in new.iter().enumerate() {
        assert_eq!(grant.lease.generation, book.generation);
        let used = old.iter().chain(&new[..at]).any(|(before, _)| before.lease == grant.lease);
        assert!(!used, "lease {} was used before", grant.lease);
    }
    let begins = u64::from(moment.call.ends_a_generation());
    assert_eq!(real.generation().0, moment.real.before.generation().0 + begins, "{:?}", moment.call);
}
