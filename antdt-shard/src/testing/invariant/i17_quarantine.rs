//! A shard is quarantined after exactly `max_data_faults` data faults, with its remaining samples; a job that
//! may not lose so many samples grants nothing more.

use std::collections::BTreeMap;

use antdt_core::ShardKey;

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let (view, book) = (moment.after, &moment.model.book);
    let given_up = view.quarantined.iter().map(|shard| (shard.key, shard.samples.len() - shard.offset));
    let given_up: BTreeMap<ShardKey, u64> = given_up.collect();
    same!(given_up, book.account.given_up(&book.spec), "given up if and only if there were enough faults");
    for (key, (_, faults)) in &view.waiting {
        same!(*faults, book.account.faults(*key), "data faults of {key:?}");
    }
    let lost: u64 = given_up.values().sum();
    let limit = book.spec.quarantine_limit();
    same!(view.status.failed, lost > limit, "failed, with {lost} samples given up of {limit}");
    holds!(
        lost <= limit || moment.call.asks().is_none() || book.facts.granted.is_empty(),
        "a grant though {lost} samples are given up"
    );
    Ok(())
}
