//! A shard that is granted again resumes at its acknowledged offset, so that its holders together deliver
//! each sample once as acknowledged.

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let book = &moment.model.book;
    for (grant, holder) in &book.facts.granted {
        same!(grant.resume_at, book.account.offset(grant.key), "{holder} resumes elsewhere: {grant:?}");
    }
    for adopted in moment.reply.adopted() {
        same!(adopted.resume_at, book.account.offset(adopted.key), "adopted elsewhere: {adopted:?}");
    }
    Ok(())
}
