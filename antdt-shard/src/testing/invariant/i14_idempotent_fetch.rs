//! Repeating the last request that was answered with grants returns the same grants, and allocates nothing.

use super::{CheckResult, Moment};
use crate::testing::call::Call;

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let Some(first) = &moment.model.book.facts.repeated else { return Ok(()) };
    if moment.reply.is_refusal() {
        return Ok(()); // For its acks, or for its generation.
    }
    // The question for one hears of the first.
    let heard = if let Call::Fetch { .. } = moment.call { &first[..1] } else { first };
    same!(moment.reply.grants(), heard, "the repetition of a question was answered otherwise");
    let had = |lease: &_| moment.before.outstanding.iter().any(|before| before.lease == *lease);
    let new = moment.after.outstanding.iter().map(|lease| lease.lease).find(|lease| !had(lease));
    same!(new, None, "a repetition allocates nothing");
    Ok(())
}
