//! Defects of other ledgers, numbered: each was run, or read, in the shard manager of `DLRover` 7c3e964.
//!
//! 10 (a second registration with other parameters) is `two_data_sets_of_one_name_are_refused` among the runtime's
//! tests. Two cannot occur here, so there is nothing to run. 12, dictionaries that two threads use without the lock:
//! the ledger changes through `&mut self` only, and one task owns it. 13, a call of a method that does not exist: it
//! does not compile.

use std::collections::BTreeSet;

use antdt_core::{Ack, AckOutcome, CheckpointId, Epoch, FetchOutcome, Generation, RequestId, Seed};

use super::cases::{grant, ledger};
use super::pair::{small, worker};
use crate::error::{DecodeError, FetchError};
use crate::ledger::{LedgerCut, LedgerSnapshot, ShardLedger};
use crate::spec::{Assignment, DatasetSpec, Epochs, Shuffle};

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
    // No report of the death: the registration of the next life is enough.
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
fn d07_a_cut_can_always_be_written_and_one_that_is_not_there_is_an_error_that_says_so() {
    let spec = small(10, 4);
    let mut first = ledger(spec.clone());
    // At every moment of a job: before it began, with leases out, at its end.
    let mut committed = 0;
    for request in 0.. {
        let cut = first.cut(CheckpointId(request), committed).unwrap();
        let read = LedgerCut::from_bytes(&cut.to_bytes(), &spec).unwrap();
        assert_eq!((read.binding(), read.snapshot()), (cut.binding(), cut.snapshot()));
        first.register(worker(0, 0)).unwrap();
        match first.fetch(worker(0, 0), G1, RequestId(request)).unwrap() {
            FetchOutcome::Granted(grant) => {
                assert!(first.cut(CheckpointId(request), committed + grant.len).is_err(), "not acknowledged");
                first.cut(CheckpointId(request), committed).unwrap();
                first.ack(worker(0, 0), Ack { lease: grant.lease, offset: grant.len }).unwrap();
                committed += grant.len;
            }
            other => {
                assert_eq!((other, committed), (FetchOutcome::EndOfData, 10));
                break;
            }
        }
    }
    for nothing in [&b""[..], b"{}", b"no such file"] {
        let error = LedgerCut::from_bytes(nothing, &spec).unwrap_err();
        assert!(matches!(error, DecodeError::Truncated { .. } | DecodeError::NotACut), "{error}");
    }
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
fn d11_no_shard_is_listed_twice_the_tail_is_dispatched_and_an_empty_part_does_no_harm() {
    // 11 samples in shards of 4, endlessly; then in parts for more workers than there are shards.
    let endless = DatasetSpec { epochs: Epochs::Infinite, ..small(11, 4) };
    let parts = DatasetSpec { assignment: Assignment::Static { workers: 7 }, ..small(11, 4) };
    for (spec, workers) in [(endless, 1), (parts, 7)] {
        let mut ledger = ledger(spec.clone());
        let mut trained = BTreeSet::new();
        for index in 0..workers {
            ledger.register(worker(index, 0)).unwrap();
            for request in 1..=30 {
                let fetched = ledger.fetch(worker(index, 0), G1, RequestId(request)).unwrap();
                // In the middle of a shard, too: every state can be written down, and none of it is forgotten.
                let bytes = ledger.snapshot().to_bytes();
                assert_eq!(LedgerSnapshot::from_bytes(&bytes, &spec).unwrap(), ledger.snapshot());
                let FetchOutcome::Granted(grant) = fetched else { break };
                for sample in grant.start..grant.start + grant.len {
                    assert!(trained.insert((grant.key.epoch, sample)), "{sample} comes twice in an epoch");
                }
                ledger.ack(worker(index, 0), Ack { lease: grant.lease, offset: grant.len }).unwrap();
            }
        }
        let first: Vec<u64> = trained.iter().filter(|(epoch, _)| epoch.0 == 0).map(|(_, s)| *s).collect();
        assert_eq!(first, (0..11).collect::<Vec<_>>());
        assert_eq!(ledger.is_finished(), spec.epochs != Epochs::Infinite);
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
