//! The offset of a shard never goes back except by restore or restart, and a refused call changes nothing.

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    if moment.call.ends_a_generation() {
        return Ok(());
    }
    for (key, (offset, _)) in &moment.before.waiting {
        let now = moment.after.waiting.get(key).map(|(now, _)| now);
        holds!(now.is_none_or(|now| now >= offset), "{key:?} goes back from {offset} to {now:?}");
    }
    holds!(
        !moment.reply.is_refusal() || moment.before == moment.after,
        "a call was refused and changed something"
    );
    Ok(())
}
