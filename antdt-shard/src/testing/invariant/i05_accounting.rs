//! For each epoch and for the job every sample is done, waits, is leased, or was given up.

use antdt_core::Counts;

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let book = &moment.model.book;
    let counts = moment.after.counts();
    holds!(counts.balance(), "the accounts do not balance: {counts:?}");
    let mut sum = Counts::default();
    let (of_epochs, beyond) = moment.after.epochs.split_at(book.spec.epoch_limit() as usize);
    for (epoch, of_epoch) in of_epochs.iter().enumerate() {
        let Some(of_epoch) = of_epoch.filter(|c| c.balance() && c.total == book.spec.num_samples) else {
            return Err(format!("the accounts of epoch {epoch} do not balance: {of_epoch:?}"));
        };
        sum.total += of_epoch.total;
        sum.acked += of_epoch.acked;
        sum.todo += of_epoch.todo;
        sum.doing += of_epoch.doing;
        sum.quarantined += of_epoch.quarantined;
    }
    same!(counts, sum, "the job is the sum of its epochs");
    same!(beyond, [None], "there is no such epoch");
    let doing: u64 = moment.after.outstanding.iter().map(|lease| lease.len - lease.offset).sum();
    same!(counts.doing, doing, "samples under a lease");
    Ok(())
}
