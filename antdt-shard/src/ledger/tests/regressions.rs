//! Source: `antdt.md` §10.2, whose numbers the names carry; each was run or read there in `DLRover` 7c3e964.
//! Not here, because there is nothing in this crate that could have them: 7 (a hook that never saves), 11 (the
//! streaming manager), 12 (locks: one task owns a ledger), 13 (a missing method). 10 (a second registration with
//! other parameters) is `two_data_sets_of_one_name_are_refused` among the runtime's tests.

use antdt_core::{Ack, AckOutcome, Epoch, FetchOutcome, Generation, RequestId, Seed};

use super::cases::{grant, ledger};
use super::pair::{small, worker};
use crate::error::FetchError;
use crate::ledger::ShardLedger;
use crate::spec::{DatasetSpec, Epochs, Shuffle};

const G1: Generation = Generation(1);

#[test]
fn d01_a_shard_that_killed_four_workers_is_still_trained() {
    let mut ledger = ledger(small(2, 1));
    for life in 0..4 {
        ledger.register(worker(0, life)).unwrap();
        grant(&mut ledger, worker(0, life), 1);
        ledger.worker_lost(worker(0, life));
    }
    ledger.register(worker(0, 4)).unwrap();
    for request in 1..=2 {
        let grant = grant(&mut ledger, worker(0, 4), request);
        ledger.ack(worker(0, 4), Ack { lease: grant.lease, offset: 1 }).unwrap();
    }
    assert!(ledger.is_finished());
    assert_eq!((ledger.counts().acked, ledger.counts().quarantined), (2, 0));
}

#[test]
fn d02_a_late_report_of_a_dead_worker_does_not_complete_the_shard_of_its_new_holder() {
    let mut ledger = ledger(small(4, 4));
    ledger.register(worker(0, 0)).unwrap();
    ledger.register(worker(1, 0)).unwrap();
    let old = grant(&mut ledger, worker(0, 0), 1);
    ledger.worker_lost(worker(0, 0));
    let new = grant(&mut ledger, worker(1, 0), 1);
    assert_eq!(new.key, old.key);
    assert_ne!(new.lease, old.lease, "a lease is never used again");
    assert_eq!(ledger.ack(worker(0, 0), Ack { lease: old.lease, offset: 4 }), Ok(AckOutcome::StaleLease));
    assert_eq!(ledger.ack(worker(0, 0), Ack { lease: new.lease, offset: 4 }), Ok(AckOutcome::StaleLease));
    assert_eq!(ledger.counts().acked, 0);
    assert_eq!(ledger.ack(worker(1, 0), Ack { lease: new.lease, offset: 4 }), Ok(AckOutcome::Accepted));
}

#[test]
fn d03_a_process_restarted_in_place_leaves_no_shard_behind() {
    let mut ledger = ledger(small(4, 4));
    ledger.register(worker(0, 0)).unwrap();
    let before = grant(&mut ledger, worker(0, 0), 1);
    // Nobody reports the death: the registration of the next life is enough.
    ledger.register(worker(0, 1)).unwrap();
    assert_eq!(grant(&mut ledger, worker(0, 1), 1).key, before.key);
}

#[test]
fn d04_waiting_the_end_and_an_error_are_three_different_answers() {
    let mut ledger = ledger(small(4, 4));
    let ask = |ledger: &mut ShardLedger, request| ledger.fetch(worker(1, 0), G1, RequestId(request));
    assert_eq!(ask(&mut ledger, 1), Err(FetchError::UnknownHolder { holder: worker(1, 0) }));
    ledger.register(worker(0, 0)).unwrap();
    ledger.register(worker(1, 0)).unwrap();
    let grant = grant(&mut ledger, worker(0, 0), 1);
    assert!(matches!(ask(&mut ledger, 1), Ok(FetchOutcome::Wait { .. })));
    ledger.ack(worker(0, 0), Ack { lease: grant.lease, offset: 4 }).unwrap();
    assert_eq!(ask(&mut ledger, 1), Ok(FetchOutcome::EndOfData));
}

#[test]
fn d05_a_lost_shard_goes_before_the_next_epoch() {
    let spec = DatasetSpec { epochs: Epochs::Finite(2), epoch_overlap: 1, ..small(2, 1) };
    let mut ledger = ledger(spec);
    ledger.register(worker(0, 0)).unwrap();
    ledger.register(worker(1, 0)).unwrap();
    let lost = grant(&mut ledger, worker(0, 0), 1);
    let done = grant(&mut ledger, worker(1, 0), 1);
    ledger.ack(worker(1, 0), Ack { lease: done.lease, offset: 1 }).unwrap();
    assert_eq!(grant(&mut ledger, worker(1, 0), 2).key.epoch, Epoch(1));
    ledger.worker_lost(worker(0, 0));
    assert_eq!(grant(&mut ledger, worker(1, 0), 3).key, lost.key);
}

#[test]
fn d06_a_restart_keeps_the_counts_and_the_offsets_and_uses_no_lease_again() {
    let spec = DatasetSpec { shuffle: Shuffle::None, ..small(100, 10) };
    let mut ledger = ledger(spec);
    ledger.register(worker(0, 0)).unwrap();
    let old = grant(&mut ledger, worker(0, 0), 1);
    ledger.ack(worker(0, 0), Ack { lease: old.lease, offset: 7 }).unwrap();
    let snapshot = ledger.snapshot();
    ledger.restore(&snapshot, Generation(2)).unwrap();
    assert_eq!(ledger.counts().acked, 7);
    ledger.register(worker(1, 0)).unwrap();
    let new = grant(&mut ledger, worker(1, 0), 1);
    assert_eq!((new.key, new.resume_at), (old.key, 7));
    assert_eq!(ledger.ack(worker(0, 0), Ack { lease: old.lease, offset: 10 }), Ok(AckOutcome::StaleLease));
    assert_eq!(ledger.ack(worker(1, 0), Ack { lease: old.lease, offset: 10 }), Ok(AckOutcome::StaleLease));
}

#[test]
fn d08_a_large_data_set_is_shuffled_as_a_whole_and_the_same_each_time() {
    let spec = DatasetSpec { seed: Seed(1), ..DatasetSpec::new("d", 10_000_000, 10) };
    let order = spec.shard_order(Epoch(0));
    assert_eq!(order, spec.shard_order(Epoch(0)));
    // DLRover permutes windows of 50,000 shards: its first 50,000 come from the first twentieth.
    let beyond = (0..50_000).filter(|position| order.at(*position) >= 50_000).count();
    assert!(beyond > 45_000, "{beyond}");
}

#[test]
fn d09_a_data_set_that_cannot_be_cut_is_refused_at_once() {
    for (num_samples, shard_len) in [(0, 1), (1, 0), (0, 0)] {
        assert!(ShardLedger::new(DatasetSpec::new("d", num_samples, shard_len), G1).is_err());
    }
}

#[test]
fn d14_a_shorter_last_shard_and_endless_epochs_are_counted_right() {
    let spec = DatasetSpec { epochs: Epochs::Infinite, ..DatasetSpec::new("d", 10, 4) };
    assert_eq!(spec.shard_count(), 3);
    let ledger = ShardLedger::new(spec, G1).unwrap();
    assert_eq!(ledger.counts().total, 0, "what has not begun is not expected");
    assert!(!ledger.is_finished());
}
