//! The end is announced when every sample of every epoch is done or was given up, and not before.

use antdt_core::FetchOutcome;

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let book = &moment.model.book;
    let given_up = book.account.given_up(&book.spec).values().sum::<u64>();
    let accounted = book.account.samples.len() as u64 + given_up;
    let all = book.spec.num_samples * u64::from(book.spec.epoch_limit());
    same!(moment.after.status.finished, accounted == all, "finished, with {accounted} of {all} samples");
    if moment.reply.fetched() == Some(FetchOutcome::EndOfData) {
        same!(accounted, all, "the end of the data was announced before all samples were accounted for");
    }
    Ok(())
}
