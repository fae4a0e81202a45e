use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{
    Ack, AckOutcome, Counts, Epoch, FetchOutcome, Generation, Grant, Holder, Incarnation, JobTime, Machine,
    NodeId, RequestId, Seed, ShardKey,
};

use super::pair::{Pair, small, worker};
use crate::error::{AckError, FetchError, RecoverError, RegisterError};
use crate::ledger::{Answer, Effect, Event, Record, Recovery, ShardLedger};
use crate::spec::{DatasetSpec, Epochs, OnQuarantine, Shuffle};

const G1: Generation = Generation(1);

pub(super) fn ledger(spec: DatasetSpec) -> ShardLedger {
    ShardLedger::new(spec, G1).unwrap()
}

pub(super) fn drained(ledger: &mut ShardLedger) -> Vec<Effect> {
    std::iter::from_fn(|| ledger.poll_effect()).collect()
}

pub(super) fn grant(ledger: &mut ShardLedger, holder: Holder, request: u64) -> Grant {
    match ledger.fetch(holder, ledger.generation(), RequestId(request)) {
        Ok(FetchOutcome::Granted(grant)) => grant,
        other => panic!("{holder} was answered {other:?}"),
    }
}

fn all(grant: &Grant) -> Ack {
    Ack { lease: grant.lease, offset: grant.len }
}

/// Fetches and completes one shard after the other; the keys in the order of hand-out.
fn hand_out(spec: DatasetSpec) -> Vec<ShardKey> {
    let mut ledger = ledger(spec);
    ledger.register(worker(0, 0)).unwrap();
    let mut keys = Vec::new();
    for request in 1.. {
        match ledger.fetch(worker(0, 0), G1, RequestId(request)).unwrap() {
            FetchOutcome::Granted(grant) => {
                keys.push(grant.key);
                ledger.ack(worker(0, 0), all(&grant)).unwrap();
            }
            FetchOutcome::EndOfData => break,
            other => panic!("{other:?}"),
        }
    }
    keys
}

#[test]
fn shards_partition_the_data_set() {
    for (samples, len) in [(1, 1), (1, 9), (10, 3), (12, 3), (7, 7), (1_000, 7)] {
        let spec = DatasetSpec::new("d", samples, len);
        let mut next = 0;
        for index in 0..spec.shard_count() {
            let shard = spec.shard(index);
            assert_eq!(shard.start, next);
            assert!(!shard.is_empty() && (shard.len() == len || index + 1 == spec.shard_count()));
            next = shard.end;
        }
        assert_eq!(next, samples);
        assert!(spec.shard(spec.shard_count()).is_empty());
    }
}

#[test]
fn each_epoch_is_handed_out_in_its_own_seeded_order() {
    let spec = DatasetSpec { epochs: Epochs::Finite(2), seed: Seed(5), ..DatasetSpec::new("d", 100, 3) };
    let keys = hand_out(spec.clone());
    assert_eq!(keys, hand_out(spec.clone()), "equal seeds give equal orders");
    assert_ne!(keys, hand_out(DatasetSpec { seed: Seed(6), ..spec.clone() }));
    let (first, second) = keys.split_at(34);
    assert!(first.iter().all(|key| key.epoch == Epoch(0)) && second.iter().all(|key| key.epoch == Epoch(1)));
    let indices = |keys: &[ShardKey]| keys.iter().map(|key| key.index).collect::<Vec<_>>();
    assert_ne!(indices(first), indices(second), "epochs differ");
    for pass in [first, second] {
        assert_eq!(indices(pass).into_iter().collect::<BTreeSet<_>>(), (0..34).collect());
    }
    let plain = hand_out(DatasetSpec { shuffle: Shuffle::None, ..spec });
    assert_eq!(indices(&plain), (0..34).chain(0..34).collect::<Vec<_>>());
}

#[test]
fn the_order_of_samples_belongs_to_the_shard() {
    let spec = DatasetSpec { seed: Seed(5), ..DatasetSpec::new("d", 100, 50) };
    let mut ledger = ledger(spec);
    for holder in [worker(0, 0), worker(1, 0)] {
        ledger.register(holder).unwrap();
    }
    let first = grant(&mut ledger, worker(0, 0), 1);
    ledger.release(worker(0, 0), &[Ack { lease: first.lease, offset: 20 }]).unwrap();
    let second = grant(&mut ledger, worker(1, 0), 1);
    assert_eq!((second.key, second.seed, second.resume_at), (first.key, first.seed, 20));
    let order = first.order();
    let done: BTreeSet<u64> = (0..20).map(|offset| first.sample(order.as_ref(), offset)).collect();
    let left: BTreeSet<u64> = (20..50).map(|offset| second.sample(second.order().as_ref(), offset)).collect();
    assert!(done.is_disjoint(&left));
    assert_eq!(
        done.union(&left).copied().collect::<BTreeSet<_>>(),
        (first.start..first.start + 50).collect()
    );
}

#[test]
fn a_lost_node_returns_its_shards() {
    let mut pair = Pair::new(small(10, 4));
    pair.register(worker(0, 0));
    pair.register(worker(1, 0));
    pair.fetch(worker(0, 0), G1, 1);
    let (first, _) = pair.grants[0];
    pair.ack(worker(0, 0), &[Ack { lease: first.lease, offset: 2 }]);
    pair.lose(worker(0, 0));
    assert!(pair.woke, "somebody may be waiting for it");
    assert_eq!(pair.real.counts(), Counts { total: 10, acked: 2, todo: 8, ..Counts::default() });
    pair.fetch(worker(1, 0), G1, 1);
    let (again, _) = pair.grants[1];
    assert_eq!((again.key, again.resume_at), (first.key, 2), "it comes before all that nobody has had");
}

#[test]
fn an_epoch_waits_for_its_last_lease() {
    let spec = DatasetSpec { epochs: Epochs::Finite(2), shuffle: Shuffle::None, ..small(8, 4) };
    let mut pair = Pair::new(spec);
    pair.register(worker(0, 0));
    pair.register(worker(1, 0));
    pair.fetch(worker(0, 0), G1, 1);
    pair.fetch(worker(1, 0), G1, 1);
    let [(slow, _), (fast, _)] = pair.grants[..] else { panic!() };
    pair.ack(worker(1, 0), &[all(&fast)]);
    assert!(!pair.woke, "there is nothing new to have");
    assert!(matches!(pair.fetch(worker(1, 0), G1, 2), Some(FetchOutcome::Wait { .. })));
    pair.ack(worker(0, 0), &[all(&slow)]);
    assert!(pair.woke, "the next epoch can open");
    pair.fetch(worker(1, 0), G1, 2);
    assert_eq!(pair.grants[2].0.key.epoch, Epoch(1));
}

#[test]
fn with_an_overlap_the_next_epoch_opens_at_the_tail_and_no_further() {
    let spec = DatasetSpec { epochs: Epochs::Finite(3), epoch_overlap: 1, ..small(4, 4) };
    let mut pair = Pair::new(spec);
    for index in 0..3 {
        pair.register(worker(index, 0));
        pair.fetch(worker(index, 0), G1, 1);
    }
    let epochs: Vec<Epoch> = pair.grants.iter().map(|(grant, _)| grant.key.epoch).collect();
    assert_eq!(epochs, [Epoch(0), Epoch(1)], "the third waits");
    // The middle epoch ends first; the one after it may open while the first is still out.
    pair.ack(worker(1, 0), &[all(&pair.grants[1].0)]);
    pair.fetch(worker(2, 0), G1, 2);
    assert_eq!(pair.grants[2].0.key.epoch, Epoch(2));
    pair.drain();
}

#[test]
fn the_end_comes_after_the_last_ack_and_stays() {
    let mut pair = Pair::new(small(4, 4));
    pair.register(worker(0, 0));
    pair.register(worker(1, 0));
    pair.fetch(worker(0, 0), G1, 1);
    assert!(matches!(pair.fetch(worker(1, 0), G1, 1), Some(FetchOutcome::Wait { .. })));
    pair.ack(worker(0, 0), &[all(&pair.grants[0].0)]);
    assert!(pair.woke && pair.real.is_finished());
    for request in 2..5 {
        assert_eq!(pair.fetch(worker(1, 0), G1, request), Some(FetchOutcome::EndOfData));
    }
}

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
fn memory_follows_what_is_out_not_what_is_done() {
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
        if let Ok(FetchOutcome::Granted(grant)) = ledger.fetch(holder, G1, RequestId(request)) {
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

#[test]
fn equal_events_give_equal_ledgers_and_records() {
    let play = || {
        let spec = DatasetSpec { seed: Seed(3), ..small(40, 3) };
        let mut ledger = ledger(spec);
        for (node, life) in [(2, 0), (0, 0), (1, 0), (0, 1)] {
            ledger.register(worker(node, life)).unwrap();
        }
        let a = grant(&mut ledger, worker(2, 0), 1);
        let b = grant(&mut ledger, worker(0, 1), 1);
        ledger.ack(worker(2, 0), Ack { lease: a.lease, offset: 1 }).unwrap();
        ledger.fail(worker(0, 1), Ack { lease: b.lease, offset: 2 }).unwrap();
        ledger.worker_lost(worker(2, 0));
        (format!("{:?}", ledger.snapshot()), drained(&mut ledger))
    };
    assert_eq!(play(), play());
}

#[test]
fn infrastructure_failures_are_free_and_data_faults_are_counted() {
    let spec = DatasetSpec { max_data_faults: 3, ..small(4, 4) };
    let mut pair = Pair::new(spec);
    for life in 0..50 {
        pair.register(worker(0, life));
        pair.fetch(worker(0, life), G1, 1);
        pair.lose(worker(0, life));
    }
    assert_eq!(pair.real.quarantined().count(), 0);
    pair.register(worker(0, 50));
    for request in 1..=3 {
        assert_eq!(pair.real.quarantined().count(), 0);
        pair.fetch(worker(0, 50), G1, request);
        let (grant, _) = *pair.grants.last().unwrap();
        pair.fail(worker(0, 50), Ack { lease: grant.lease, offset: 1 });
    }
    let shard = pair.real.quarantined().next().unwrap();
    assert_eq!((shard.key.index, shard.samples.len(), shard.offset), (0, 4, 1));
    assert_eq!(pair.real.counts(), Counts { total: 4, acked: 1, quarantined: 3, ..Counts::default() });
}

#[test]
fn a_job_that_must_not_lose_samples_grants_nothing_after_a_quarantine() {
    let spec = DatasetSpec { max_data_faults: 1, shuffle: Shuffle::None, ..small(8, 4) };
    let mut ledger = ledger(spec);
    ledger.register(worker(0, 0)).unwrap();
    let poison = grant(&mut ledger, worker(0, 0), 1);
    ledger.fail(worker(0, 0), Ack { lease: poison.lease, offset: 1 }).unwrap();
    assert!(drained(&mut ledger).contains(&Effect::Wake), "those who wait must hear of it");
    let error = ledger.fetch(worker(0, 0), G1, RequestId(2)).unwrap_err();
    assert_eq!(error, FetchError::Quarantined { key: poison.key, samples: 3, limit: 0 });
    assert!(ledger.status().failed && !ledger.status().finished);
}

#[test]
fn a_job_that_may_lose_some_samples_goes_on_up_to_its_bound() {
    let on_quarantine = OnQuarantine::Continue { max_samples: 4 };
    let spec = DatasetSpec { max_data_faults: 1, shuffle: Shuffle::None, on_quarantine, ..small(12, 4) };
    let mut ledger = ledger(spec);
    ledger.register(worker(0, 0)).unwrap();
    let first = grant(&mut ledger, worker(0, 0), 1);
    ledger.fail(worker(0, 0), Ack { lease: first.lease, offset: 0 }).unwrap();
    let second = grant(&mut ledger, worker(0, 0), 2);
    ledger.fail(worker(0, 0), Ack { lease: second.lease, offset: 3 }).unwrap();
    let error = ledger.fetch(worker(0, 0), G1, RequestId(3)).unwrap_err();
    assert!(matches!(error, FetchError::Quarantined { samples: 5, limit: 4, .. }), "{error}");
}

#[test]
fn a_holder_has_no_more_leases_than_it_may() {
    let mut ledger = ledger(DatasetSpec { max_leases_per_holder: 2, ..small(10, 1) });
    ledger.register(worker(0, 0)).unwrap();
    let first = grant(&mut ledger, worker(0, 0), 1);
    grant(&mut ledger, worker(0, 0), 2);
    assert_eq!(ledger.fetch(worker(0, 0), G1, RequestId(3)), Ok(FetchOutcome::AtLimit));
    ledger.ack(worker(0, 0), all(&first)).unwrap();
    grant(&mut ledger, worker(0, 0), 4);
}

#[test]
fn a_wrong_ack_among_several_leaves_no_trace() {
    let mut ledger = ledger(DatasetSpec { shuffle: Shuffle::None, ..small(10, 4) });
    ledger.register(worker(0, 0)).unwrap();
    let (a, b) = (grant(&mut ledger, worker(0, 0), 1), grant(&mut ledger, worker(0, 0), 2));
    let at = |grant: &Grant, offset| Ack { lease: grant.lease, offset };
    let before = ledger.counts();
    let wrong = [
        (vec![], AckError::Empty),
        (vec![at(&a, 2), at(&b, 5)], AckError::OffsetOutOfRange { lease: b.lease, offset: 5, len: 4 }),
        (vec![at(&a, 3), at(&a, 2)], AckError::OffsetRegression { lease: a.lease, offset: 2, have: 3 }),
    ];
    for (acks, error) in wrong {
        assert_eq!(ledger.ack_all(worker(0, 0), &acks), Err(error.clone()));
        assert_eq!(ledger.release(worker(0, 0), &acks), Err(error));
        assert_eq!(ledger.counts(), before);
    }
    ledger.ack(worker(0, 0), at(&a, 2)).unwrap();
    let back = ledger.ack(worker(0, 0), at(&a, 1)).unwrap_err();
    assert_eq!(back, AckError::OffsetRegression { lease: a.lease, offset: 1, have: 2 });
    let fault = ledger.fail(worker(0, 0), at(&a, 4)).unwrap_err();
    assert_eq!(
        fault,
        AckError::OffsetOutOfRange { lease: a.lease, offset: 4, len: 4 },
        "nothing is left to fail"
    );
}

#[test]
fn the_master_settles_for_a_dead_holder_while_its_lease_lives() {
    let mut ledger = ledger(small(4, 4));
    ledger.register(worker(0, 0)).unwrap();
    let grant = grant(&mut ledger, worker(0, 0), 1);
    let part = Ack { lease: grant.lease, offset: 3 };
    assert_eq!(ledger.settle(worker(0, 0), &[part]), Ok(vec![AckOutcome::Accepted]));
    ledger.worker_lost(worker(0, 0));
    assert_eq!(ledger.settle(worker(0, 0), &[all(&grant)]), Ok(vec![AckOutcome::StaleLease]));
    assert_eq!(ledger.counts().acked, 3);
}

#[test]
fn a_repeated_last_ack_is_recognised_while_the_life_lasts() {
    let mut ledger = ledger(small(12, 4));
    ledger.register(worker(0, 0)).unwrap();
    let grant = grant(&mut ledger, worker(0, 0), 1);
    for _ in 0..3 {
        assert_eq!(ledger.ack(worker(0, 0), all(&grant)), Ok(AckOutcome::Accepted));
        assert_eq!(ledger.counts().acked, 4);
    }
    let part = Ack { lease: grant.lease, offset: 3 };
    assert_eq!(
        ledger.ack(worker(0, 0), part),
        Ok(AckOutcome::StaleLease),
        "only the same ack is its repetition"
    );
    ledger.register(worker(0, 1)).unwrap();
    assert_eq!(ledger.ack(worker(0, 0), all(&grant)), Ok(AckOutcome::StaleLease));
    assert_eq!(ledger.ack(worker(0, 1), all(&grant)), Ok(AckOutcome::StaleLease));
}

#[test]
fn who_may_not_take_part_is_told_why() {
    let mut ledger = ledger(small(4, 4));
    let server = Holder::new(NodeId::server(0), Incarnation(0));
    assert_eq!(ledger.register(server), Err(RegisterError::NotAWorker { node: server.node }));
    assert_eq!(
        ledger.fetch(worker(0, 0), G1, RequestId(1)),
        Err(FetchError::UnknownHolder { holder: worker(0, 0) })
    );
    let wrong = ledger.fetch(worker(0, 0), Generation(7), RequestId(1)).unwrap_err();
    assert_eq!(wrong, FetchError::WrongGeneration { given: Generation(7), current: G1 });
    ledger.worker_lost(worker(0, 3));
    let fenced = ledger.register(worker(0, 3)).unwrap_err();
    assert_eq!(fenced, RegisterError::Fenced { holder: worker(0, 3), through: Incarnation(3) });
    assert_eq!(
        fenced.to_string(),
        "worker-0#3 is fenced: lives through 3 have ended; exit and start as a later incarnation"
    );
    ledger.register(worker(0, 4)).unwrap();
    ledger.worker_lost(worker(0, 2));
    grant(&mut ledger, worker(0, 4), 1); // A late message about an older life does not touch the new one.
}

#[test]
fn the_last_life_of_all_can_be_fenced_too() {
    let mut ledger = ledger(small(4, 4));
    let last = worker(0, u32::MAX);
    ledger.register(last).unwrap();
    ledger.worker_lost(last);
    assert!(ledger.register(last).is_err());
}

#[test]
fn a_new_generation_voids_leases_and_keeps_what_is_done() {
    let spec = small(8, 4);
    let mut first = ledger(spec.clone());
    first.register(worker(0, 0)).unwrap();
    let (done, part) = (grant(&mut first, worker(0, 0), 1), grant(&mut first, worker(0, 0), 2));
    first.ack(worker(0, 0), all(&done)).unwrap();
    first.ack(worker(0, 0), Ack { lease: part.lease, offset: 1 }).unwrap();
    let log: Vec<Record> = drained(&mut first)
        .into_iter()
        .filter_map(|effect| if let Effect::Record(record) = effect { Some(record) } else { None })
        .collect();

    let used = ShardLedger::recover(spec.clone(), log.clone(), G1).unwrap_err();
    assert_eq!(used, RecoverError::GenerationNotNewer { given: G1, last: G1 });
    let mut second = ShardLedger::recover(spec, log, Generation(2)).unwrap();
    assert_eq!(second.counts(), Counts { total: 8, acked: 5, todo: 3, ..Counts::default() });
    assert_eq!(second.ack(worker(0, 0), all(&part)), Ok(AckOutcome::StaleLease));
    assert!(matches!(
        second.fetch(worker(0, 0), G1, RequestId(3)),
        Err(FetchError::WrongGeneration { current: Generation(2), .. })
    ));
    second.register(worker(0, 0)).unwrap();
    let again = grant(&mut second, worker(0, 0), 1);
    assert_eq!((again.key, again.resume_at), (part.key, 1));
    assert_ne!(again.lease, part.lease);
}

#[test]
fn every_prefix_of_the_log_is_a_valid_ledger_with_no_more_done() {
    let spec = DatasetSpec { epochs: Epochs::Finite(2), ..small(9, 2) };
    let mut live = ledger(spec.clone());
    let mut rng = Seed(4).rng();
    live.register(worker(0, 0)).unwrap();
    for request in 1..60 {
        if let Ok(FetchOutcome::Granted(grant)) = live.fetch(worker(0, 0), G1, RequestId(request)) {
            let offset = grant.resume_at + rng.below(grant.len - grant.resume_at + 1);
            live.release(worker(0, 0), &[Ack { lease: grant.lease, offset }]).unwrap();
        }
    }
    let log = drained(&mut live);
    let mut recovery = Recovery::new(spec).unwrap();
    let mut acked = 0;
    for effect in &log {
        let Effect::Record(record) = effect else { continue };
        recovery.apply(record).unwrap();
        let counts = recovery.snapshot().counts();
        assert!(counts.balance() && counts.acked >= acked && counts.acked <= live.counts().acked);
        acked = counts.acked;
    }
    assert_eq!(recovery.snapshot(), live.snapshot());
}

#[test]
fn a_record_that_does_not_follow_is_refused_and_changes_nothing() {
    let spec = DatasetSpec { epochs: Epochs::Finite(2), ..small(9, 2) };
    let mut recovery = Recovery::new(spec).unwrap();
    let epoch = Epoch(0);
    for record in [
        Record::GenerationStarted { generation: G1 },
        Record::EpochOpened { share: 0, epoch },
        Record::Acked { epoch, position: 0, offset: 1 },
    ] {
        recovery.apply(&record).unwrap();
    }
    let before = recovery.snapshot();
    let other = ledger(DatasetSpec::new("other", 9, 2)).snapshot();
    for record in [
        Record::GenerationStarted { generation: G1 },
        Record::EpochOpened { share: 0, epoch },
        Record::EpochOpened { share: 0, epoch: Epoch(1) },
        Record::EpochOpened { share: 1, epoch },
        Record::Acked { epoch, position: 0, offset: 1 },
        Record::Acked { epoch, position: 0, offset: 3 },
        Record::Acked { epoch, position: 5, offset: 1 },
        Record::Acked { epoch, position: u64::MAX, offset: 1 },
        Record::Acked { epoch: Epoch(1), position: 0, offset: 1 },
        Record::Failed { epoch: Epoch(1), position: 0 },
        Record::Failed { epoch, position: 5 },
        Record::Restored(Box::new(other)),
    ] {
        assert!(recovery.apply(&record).is_err(), "{record:?}");
        assert_eq!(recovery.snapshot(), before, "{record:?}");
    }
}

#[test]
fn a_restore_repeats_what_came_after_the_snapshot_and_nothing_from_before() {
    let mut pair = Pair::new(DatasetSpec { shuffle: Shuffle::None, ..small(12, 4) });
    pair.register(worker(0, 0));
    pair.fetch(worker(0, 0), G1, 1);
    pair.ack(worker(0, 0), &[Ack { lease: pair.grants[0].0.lease, offset: 3 }]);
    pair.keep_snapshot();
    pair.ack(worker(0, 0), &[all(&pair.grants[0].0)]);
    pair.lose(worker(0, 0));
    pair.restore(0);
    assert!(!pair.register(worker(0, 0)), "a fence survives every restore");
    assert!(pair.register(worker(0, 1)));
    pair.fetch(worker(0, 1), Generation(2), 1);
    let (again, _) = pair.grants[1];
    assert_eq!((again.key.index, again.resume_at, again.lease.generation), (0, 3, Generation(2)));
    pair.drain();
}

#[test]
fn the_makespan_of_unequal_workers_keeps_its_bound() {
    // N / sum(v) + P * S / v_min, with one worker four times slower than three others.
    let (samples, len) = (100_000_u64, 100);
    let speeds = [400_u64, 400, 400, 100];
    let mut ledger = ledger(DatasetSpec::new("d", samples, len));
    let mut free_at: BTreeMap<(u64, u32), ()> = BTreeMap::new();
    for worker_index in 0..4 {
        ledger.register(worker(worker_index, 0)).unwrap();
        free_at.insert((0, worker_index), ());
    }
    let (mut end, mut request) = (0, 0);
    let mut holding: BTreeMap<u32, Grant> = BTreeMap::new();
    while let Some(((now, index), ())) = free_at.pop_first() {
        if let Some(done) = holding.remove(&index) {
            ledger.ack(worker(index, 0), all(&done)).unwrap();
            end = now;
        }
        request += 1;
        if let FetchOutcome::Granted(grant) = ledger.fetch(worker(index, 0), G1, RequestId(request)).unwrap()
        {
            holding.insert(index, grant);
            free_at.insert((now + grant.len * 1_000_000 / speeds[index as usize], index), ());
        }
    }
    assert!(ledger.is_finished());
    let bound = samples * 1_000_000 / speeds.iter().sum::<u64>() + len * 1_000_000 / 100;
    assert!(end <= bound, "{end} us is more than {bound} us");
    assert!(end * 100 <= samples * 1_000_000 / 1_300 * 102, "within 2 % of the ideal");
}

#[test]
fn the_machine_says_what_the_methods_say() {
    let spec = small(8, 4);
    let mut direct = ledger(spec.clone());
    let mut machine = ledger(spec);
    let holder = worker(0, 0);
    let now = JobTime::ZERO;
    assert_eq!(machine.handle(now, Event::Register { holder }), Answer::Register(direct.register(holder)));
    let fetch = Event::Fetch { holder, generation: G1, request: RequestId(1) };
    let outcome = direct.fetch(holder, G1, RequestId(1));
    assert_eq!(machine.handle(now, fetch), Answer::Fetch(outcome.clone()));
    let Ok(FetchOutcome::Granted(grant)) = outcome else { panic!() };
    let acks = vec![Ack { lease: grant.lease, offset: 1 }];
    let outstanding: Vec<_> = machine.outstanding().collect();
    assert_eq!(machine.handle(now, Event::Outstanding), Answer::Outstanding(outstanding));
    assert_eq!(
        machine.handle(now, Event::Ack { holder, acks: acks.clone() }),
        Answer::Ack(direct.ack_all(holder, &acks))
    );
    assert_eq!(machine.handle(now, Event::Status), Answer::Status(direct.status()));
    let fail = Event::Fail { holder, ack: acks[0] };
    assert_eq!(machine.handle(now, fail), Answer::Fail(direct.fail(holder, acks[0])));
    assert_eq!(
        machine.handle(now, Event::Release { holder, acks: acks.clone() }),
        Answer::Ack(direct.release(holder, &acks))
    );
    assert_eq!(machine.handle(now, Event::WorkerLost { holder }), Answer::WorkerLost);
    direct.worker_lost(holder);
    let counts = machine.handle(now, Event::EpochCounts { epoch: Epoch(0) });
    assert_eq!(counts, Answer::EpochCounts(direct.epoch_counts(Epoch(0))));
    assert_eq!(machine.handle(now, Event::Quarantined), Answer::Quarantined(vec![]));
    let snapshot = Box::new(direct.snapshot());
    assert_eq!(machine.handle(now, Event::Snapshot), Answer::Snapshot(snapshot.clone()));
    let restore = Event::Restore { snapshot: snapshot.clone(), generation: Generation(2) };
    assert_eq!(machine.handle(now, restore), Answer::Restore(direct.restore(&snapshot, Generation(2))));
    assert_eq!(machine.deadline(), None);
    assert_eq!(drained(&mut machine), drained(&mut direct));
}
