//! The order of the samples within a shard follows from seed, epoch and index: not from the worker that holds
//! it, and not from the time.

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let book = &moment.model.book;
    for (grant, holder) in &book.facts.granted {
        if let Some((before, _)) = book.grants.iter().find(|(before, _)| before.key == grant.key) {
            same!(before.seed, grant.seed, "the order of {:?} follows {holder}", grant.key);
        }
        let of_another = book.grants.iter().find(|(other, _)| other.key != grant.key);
        if let Some((other, _)) = of_another.filter(|(other, _)| other.seed.is_some()) {
            holds!(other.seed != grant.seed, "{:?} and {:?} have one order", other.key, grant.key);
        }
    }
    Ok(())
}
