//! Cases that `cargo xtask mutants` found to be missing: each ends a defect that every other test let live.

use antdt_core::{
    Ack, Epoch, FetchOutcome, Generation, Grant, Held, Holder, Incarnation, LeaseId, Machine, NodeId,
    RequestId, ShardKey,
};

use crate::error::{ExchangeError, FetchError};
use crate::ledger::{Effect, Record, Recovery, ShardLedger};
use crate::spec::{Assignment, DatasetSpec, Epochs};

const G1: Generation = Generation(1);
const G2: Generation = Generation(2);
const G3: Generation = Generation(3);

fn spec(num_samples: u64) -> DatasetSpec {
    DatasetSpec::new("survivors", num_samples, 4)
}

fn worker(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(0))
}

/// A ledger with as many workers.
fn begun(spec: DatasetSpec, workers: u32) -> ShardLedger {
    let mut ledger = ShardLedger::new(spec, G1).unwrap();
    for index in 0..workers {
        ledger.register(worker(index)).unwrap();
    }
    ledger
}

fn grant(ledger: &mut ShardLedger, index: u32, request: u64) -> Grant {
    match ledger.fetch(worker(index), ledger.generation(), RequestId(request)) {
        Ok(FetchOutcome::Granted(grant)) => grant,
        other => panic!("worker {index} was answered {other:?}"),
    }
}

fn records(ledger: &mut ShardLedger) -> Vec<Record> {
    let effects = std::iter::from_fn(|| ledger.poll_effect());
    let record = |effect| if let Effect::Record(record) = effect { Some(record) } else { None };
    effects.filter_map(record).collect()
}

fn held(grant: &Grant, offset: u64) -> Held {
    Held { lease: grant.lease, key: grant.key, offset }
}

fn adopted(ledger: &mut ShardLedger, index: u32, held: &[Held]) -> Vec<bool> {
    let registered = ledger.register_holding(worker(index), held).unwrap();
    registered.adopted.iter().map(Option::is_some).collect()
}

#[test]
fn the_samples_of_a_shard_are_shuffled_anew_in_each_epoch() {
    let mut ledger = begun(DatasetSpec { epochs: Epochs::Finite(2), ..spec(4) }, 1);
    let first = grant(&mut ledger, 0, 1);
    ledger.ack(worker(0), Ack { lease: first.lease, offset: 4 }).unwrap();
    let second = grant(&mut ledger, 0, 2);
    assert_eq!(first.key.index, second.key.index);
    assert_ne!(first.seed, second.seed);
}

#[test]
fn a_log_that_lacks_an_epoch_or_begins_twice_is_refused() {
    let spec = DatasetSpec { epochs: Epochs::Finite(4), epoch_overlap: 3, ..spec(8) };
    let mut recovery = Recovery::new(spec.clone()).unwrap();
    recovery.apply(&Record::GenerationStarted { generation: G1 }).unwrap();
    recovery.apply(&Record::EpochOpened { share: 0, epoch: Epoch(0) }).unwrap();
    let base = Recovery::new(spec).unwrap().snapshot();
    for record in [
        Record::EpochOpened { share: 0, epoch: Epoch(2) },
        Record::EpochOpened { share: 0, epoch: Epoch(0) },
        Record::Base(Box::new(base)),
    ] {
        assert!(recovery.apply(&record).is_err(), "{record:?}");
    }
    recovery.apply(&Record::EpochOpened { share: 0, epoch: Epoch(1) }).unwrap();
}

#[test]
fn adopted_leases_outlive_the_next_restart_too() {
    let mut first = begun(spec(8), 1);
    let grant = grant(&mut first, 0, 1);
    let mut log = records(&mut first);
    let mut second = ShardLedger::recover(spec(8), log.clone(), G2).unwrap();
    assert_eq!(adopted(&mut second, 0, &[held(&grant, 1)]), [true]);
    log.extend(records(&mut second));
    assert_eq!(ShardLedger::recover(spec(8), log, G3).unwrap().counts().acked, 1);
}

#[test]
fn adoption_keeps_to_the_cap() {
    let spec = DatasetSpec { max_leases_per_holder: 1, ..spec(8) };
    let mut before = begun(spec.clone(), 1);
    let first = held(&grant(&mut before, 0, 1), 1);
    let second = Held { key: ShardKey { index: 1 - first.key.index, ..first.key }, ..first };
    let mut after = ShardLedger::recover(spec, records(&mut before), G2).unwrap();
    assert_eq!(adopted(&mut after, 0, &[first, second]), [true, false]);
}

#[test]
fn a_lease_of_this_generation_is_not_adopted() {
    let mut ledger = begun(spec(8), 1);
    let given_back = grant(&mut ledger, 0, 1);
    ledger.release(worker(0), &[Ack { lease: given_back.lease, offset: 0 }]).unwrap();
    // Another one presents it, in its first registration.
    assert_eq!(adopted(&mut ledger, 1, &[held(&given_back, 1)]), [false]);
    assert_eq!((ledger.counts().acked, ledger.counts().doing), (0, 0));
    let to_come = Held { lease: LeaseId { generation: G2, sequence: 1 }, ..held(&given_back, 1) };
    assert_eq!(adopted(&mut ledger, 2, &[to_come]), [false]);
}

#[test]
fn a_share_of_another_worker_is_not_adopted() {
    let spec = DatasetSpec { assignment: Assignment::Static { workers: 2 }, ..spec(16) };
    let mut before = begun(spec.clone(), 2);
    // Both have begun the epoch.
    let (of_zero, of_one) = (held(&grant(&mut before, 0, 1), 1), held(&grant(&mut before, 1, 1), 1));
    let mut after = ShardLedger::recover(spec, records(&mut before), G2).unwrap();
    assert_eq!(adopted(&mut after, 1, &[of_zero, of_one]), [false, true]);
}

#[test]
fn leases_held_when_the_ledger_was_set_back_are_void() {
    let mut ledger = begun(spec(8), 1);
    let first = grant(&mut ledger, 0, 1);
    // The snapshot knows the shard, in which it waits.
    let snapshot = ledger.snapshot();
    ledger.restore(&snapshot, G2).unwrap();
    let log = records(&mut ledger);
    assert_eq!(adopted(&mut ledger, 0, &[held(&first, 3)]), [false]);
    let mut later = ShardLedger::recover(spec(8), log, G3).unwrap();
    assert_eq!(adopted(&mut later, 0, &[held(&first, 3)]), [false], "the log remembers");
    assert_eq!((ledger.counts().acked, later.counts().acked), (0, 0));
}

#[test]
fn a_call_whose_fetch_is_refused_counts_no_ack() {
    let mut ledger = begun(spec(8), 1);
    let first = grant(&mut ledger, 0, 5);
    let ack = Ack { lease: first.lease, offset: 4 };
    let error = ledger.exchange(worker(0), G1, RequestId(4), &[ack], 1).unwrap_err();
    assert!(matches!(error, ExchangeError::Fetch(FetchError::OldRequest { .. })), "{error}");
    assert_eq!(ledger.counts().acked, 0);
}

#[test]
fn the_only_lease_of_a_holder_is_not_called_back_and_none_is_for_himself() {
    let mut ledger = begun(DatasetSpec { max_leases_per_holder: 3, ..spec(8) }, 1);
    let first = grant(&mut ledger, 0, 1);
    grant(&mut ledger, 0, 2);
    let alone = ledger.exchange(worker(0), G1, RequestId(3), &[], 1).unwrap();
    assert!(matches!(alone.fetched, Some(FetchOutcome::Wait { .. })));
    assert!(alone.recalled.is_empty(), "only he himself waits: {alone:?}");

    ledger.register(worker(1)).unwrap();
    ledger.exchange(worker(1), G1, RequestId(1), &[], 1).unwrap();
    let nothing = Ack { lease: first.lease, offset: 0 };
    let told = |ledger: &mut ShardLedger| {
        ledger.exchange(worker(0), G1, RequestId(3), &[nothing], 0).unwrap().recalled
    };
    let recalled = told(&mut ledger);
    assert_eq!(recalled.len(), 1);
    ledger.release(worker(0), &[Ack { lease: recalled[0], offset: 0 }]).unwrap();
    assert!(told(&mut ledger).is_empty(), "he would have nothing to do");
}

#[test]
fn waiting_workers_hear_that_the_ledger_was_set_back() {
    let mut ledger = begun(spec(4), 2);
    let snapshot = ledger.snapshot();
    grant(&mut ledger, 0, 1);
    let told = ledger.fetch(worker(1), G1, RequestId(1));
    assert!(matches!(told, Ok(FetchOutcome::Wait { .. })));
    records(&mut ledger);
    ledger.restore(&snapshot, G2).unwrap();
    let effects: Vec<Effect> = std::iter::from_fn(|| ledger.poll_effect()).collect();
    assert_eq!(effects.last(), Some(&Effect::Wake));
}
