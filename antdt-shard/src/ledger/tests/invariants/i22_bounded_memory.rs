//! What is remembered follows what waits (as ranges), what is out and the members; not what is done, and not how many
//! epochs there were.

use antdt_core::{Ack, Counts, Epoch, FetchOutcome, Generation, Grant, Holder, RequestId, Seed};

use crate::ledger::tests::cases::{all, drained, grant, ledger};
use crate::ledger::tests::pair::worker;
use crate::spec::{DatasetSpec, Epochs};

#[test]
fn an_endless_data_set_never_ends_and_never_grows() {
    let spec = DatasetSpec { epochs: Epochs::Infinite, ..DatasetSpec::new("d", 7, 2) };
    let mut ledger = ledger(spec);
    ledger.register(worker(0, 0)).unwrap();
    for request in 1..=4_000 {
        let grant = grant(&mut ledger, worker(0, 0), request);
        ledger.ack(worker(0, 0), all(&grant)).unwrap();
        drained(&mut ledger);
    }
    assert_eq!(ledger.counts(), Counts { total: 7_000, acked: 7_000, ..Counts::default() });
    assert_eq!(ledger.epoch_counts(Epoch(999)).unwrap().acked, 7);
    assert_eq!(ledger.epoch_counts(Epoch(1_000)).unwrap().todo, 7);
    assert!(!ledger.is_finished());
    assert_eq!(ledger.book.entries(), 0, "closed epochs leave nothing behind");
}

#[test]
fn memory_follows_outstanding_shards_not_finished_ones() {
    // 10^12 shards cannot be listed anywhere.
    let spec = DatasetSpec { max_leases_per_holder: 4, ..DatasetSpec::new("d", 10_u64.pow(15), 1_000) };
    let mut ledger = ledger(spec);
    let mut rng = Seed(9).rng();
    let mut out: Vec<(Holder, Grant)> = Vec::new();
    for index in 0..8 {
        ledger.register(worker(index, 0)).unwrap();
    }
    for request in 1..=20_000 {
        let holder = worker(u32::try_from(rng.below(8)).unwrap(), 0);
        if let Ok(FetchOutcome::Granted(grant)) = ledger.fetch(holder, Generation(1), RequestId(request)) {
            out.push((holder, grant));
        }
        if out.len() > 20 {
            let (holder, grant) = out.swap_remove(usize::try_from(rng.below(out.len() as u64)).unwrap());
            let offset = if rng.below(4) == 0 {
                rng.below(grant.len - grant.resume_at) + grant.resume_at
            } else {
                grant.len
            };
            ledger.release(holder, &[Ack { lease: grant.lease, offset }]).unwrap();
        }
        drained(&mut ledger);
        assert!(ledger.snapshot().book.entries() <= 2 * (8 * 4 + 1), "{}", ledger.snapshot().book.entries());
    }
    assert!(ledger.counts().acked > 1_000_000);
}
