//! The order in which an epoch's shards are handed out is a permutation fixed by seed and epoch: a request
//! gets those of the waiting shards that come first in it.

use antdt_core::ShardKey;

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    if moment.call.asks().is_none() || moment.model.book.facts.granted.is_empty() {
        return Ok(());
    }
    let place = |key: ShardKey| moment.place(key).map(|(share, position)| (share, key.epoch, position));
    let granted: Vec<_> = moment.model.book.facts.granted.iter().map(|(grant, _)| place(grant.key)).collect();
    holds!(granted.is_sorted(), "granted out of order: {granted:?}");
    let Some(Some(last)) = granted.last().copied() else { return Ok(()) };
    let todo = moment.after.todo();
    let mut places = todo.keys().filter_map(|key| place(*key));
    let passed_over = places.find(|waits| waits.0 == last.0 && *waits < last);
    same!(passed_over, None, "a shard was passed over for {last:?}");
    Ok(())
}
