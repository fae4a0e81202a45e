//! For each epoch and for the job every sample is done, waits, is leased, or was given up.

use antdt_core::{Counts, Epoch};

use super::Moment;

pub(super) fn check(moment: &Moment<'_>) {
    let (real, book) = (&moment.real.ledger, &moment.model.book);
    let counts = real.counts();
    assert!(counts.balance(), "{counts:?}");
    assert_eq!(counts.acked, book.account.samples.len() as u64);
    let mut sum = Counts::default();
    for epoch in 0..book.spec.epoch_limit() {
        let of_epoch = real.epoch_counts(Epoch(epoch)).unwrap();
        assert!(of_epoch.balance() && of_epoch.total == book.spec.num_samples, "epoch {epoch}: {of_epoch:?}");
        sum.total += of_epoch.total;
        sum.acked += of_epoch.acked;
        sum.todo += of_epoch.todo;
        sum.doing += of_epoch.doing;
        sum.quarantined += of_epoch.quarantined;
    }
    assert_eq!(counts, sum);
    assert_eq!(real.epoch_counts(Epoch(book.spec.epoch_limit())), None);
    let doing: u64 = real.outstanding().map(|lease| lease.len - lease.offset).sum();
    assert_eq!(counts.doing, doing);
}
