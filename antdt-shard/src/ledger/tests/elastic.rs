//! Several shards in one call, recall, adoption after a restart, freezing, cuts, and what is missing.

use std::collections::BTreeMap;

use antdt_core::{
    Ack, AckOutcome, CheckpointId, Delivery, Epoch, FetchOutcome, Generation, Grant, Held, JobTime, Machine,
    RequestId, SampleRange, ShardKey,
};

use super::cases::{all, drained, grant, hand_out, ledger, records};
use super::pair::{Pair, small, worker};
use crate::error::{CutError, RecoverError};
use crate::ledger::{Effect, LedgerCut, LedgerSnapshot, Missing, MissingWhy, Record, ShardLedger};
use crate::spec::{Assignment, Cut, DatasetSpec, Epochs, Shuffle};
use crate::testing::call::Call;

const G1: Generation = Generation(1);

/// What a holder remembers of a lease, `offset` samples of which it has trained.
fn held(grant: &Grant, offset: u64) -> Held {
    Held { lease: grant.lease, key: grant.key, offset }
}

#[test]
fn a_worker_that_outlives_a_restart_goes_on_with_its_leases() {
    let spec = DatasetSpec { max_leases_per_holder: 3, ..small(40, 10) };
    let mut before = ledger(spec.clone());
    let (zero, one) = (worker(0, 0), worker(1, 0));
    for holder in [zero, one] {
        before.register(holder).unwrap();
    }
    let (first, second) = (grant(&mut before, zero, 1), grant(&mut before, zero, 2));
    let third = grant(&mut before, one, 1);
    before.ack(zero, Ack { lease: first.lease, offset: 4 }).unwrap();
    let records: Vec<Record> = records(&mut before);
    // The last ack is lost with the service.
    let kept = records.len() - 1;
    let mut after = ShardLedger::recover(spec, records[..kept].to_vec(), Generation(2)).unwrap();

    let presented = [held(&first, 4), held(&second, 0), held(&third, 10)];
    let registered = after.register_holding(zero, &presented).unwrap();
    let adopted = registered.adopted.clone();
    assert_eq!(adopted[0].map(|g| (g.key, g.resume_at)), Some((first.key, 4)));
    assert_eq!(adopted[1].map(|g| (g.key, g.resume_at)), Some((second.key, 0)));
    assert_eq!(adopted[2], None, "it says that all of the third is done, so there is nothing to hold");
    assert_eq!(after.counts().acked, 14, "what it committed counts, whether or not its ack arrived");
    assert_eq!(after.register_holding(zero, &presented).unwrap(), registered, "the answer was lost");
    // Its rightful holder finds that it is done.
    assert_eq!(after.register_holding(one, &[held(&third, 0)]).unwrap().adopted, [None]);
    assert_eq!(after.counts().acked, 14);
}

#[test]
fn a_waiting_worker_hears_that_presented_leases_were_the_end() {
    let assignment = Assignment::Static { workers: 2 };
    let mut pair = Pair::new(DatasetSpec { assignment, ..small(20, 10) });
    let (zero, one) = (worker(0, 0), worker(1, 0));
    pair.register(one);
    pair.fetch(one, 1);
    let last = pair.newest();
    pair.restart(0);
    pair.register(zero);
    pair.fetch(zero, 1);
    pair.ack(zero, &[all(&pair.newest())]);
    assert!(matches!(pair.fetch(zero, 2), Some(FetchOutcome::Wait { .. })), "the other part is not done");
    pair.say(&Call::Register { holder: one, held: vec![held(&last, 10)] });
    assert!(pair.real.woke());
    assert_eq!(pair.fetch(zero, 2), Some(FetchOutcome::EndOfData));
}

#[test]
fn a_late_repetition_of_a_registration_adopts_nothing_behind_its_holders_back() {
    let spec = small(20, 10);
    let mut before = ledger(spec.clone());
    let zero = worker(0, 0);
    before.register(zero).unwrap();
    let first = grant(&mut before, zero, 1);
    let mut after = ShardLedger::recover(spec, records(&mut before), Generation(2)).unwrap();
    let presented = [held(&first, 0)];
    let adopted = after.register_holding(zero, &presented).unwrap().adopted[0].unwrap();
    after.release(zero, &[Ack { lease: adopted.lease, offset: 0 }]).unwrap();
    assert_eq!(after.register_holding(zero, &presented).unwrap().adopted, [None]);
    assert_eq!(after.counts().doing, 0);
}

#[test]
fn nothing_is_adopted_that_went_into_a_model_that_is_no_more() {
    let mut ledger = ledger(small(20, 10));
    let zero = worker(0, 0);
    ledger.register(zero).unwrap();
    let snapshot = ledger.snapshot();
    let first = grant(&mut ledger, zero, 1);
    ledger.restore(&snapshot, Generation(2)).unwrap();
    assert_eq!(ledger.register_holding(zero, &[held(&first, 7)]).unwrap().adopted, [None]);
    assert_eq!(ledger.counts().acked, 0);
    // Not after one more restart either: the log remembers.
    let records = records(&mut ledger);
    let mut later = ShardLedger::recover(small(20, 10), records, Generation(3)).unwrap();
    assert_eq!(later.register_holding(zero, &[held(&first, 7)]).unwrap().adopted, [None]);
}

#[test]
fn an_offset_that_the_ledger_is_beyond_is_not_adopted() {
    let spec = small(10, 10);
    let mut before = ledger(spec.clone());
    let zero = worker(0, 0);
    before.register(zero).unwrap();
    let first = grant(&mut before, zero, 1);
    before.ack(zero, Ack { lease: first.lease, offset: 5 }).unwrap();
    let mut after = ShardLedger::recover(spec, records(&mut before), Generation(2)).unwrap();
    for offset in [4, 11] {
        let mut after = after.clone();
        assert_eq!(after.register_holding(zero, &[held(&first, offset)]).unwrap().adopted, [None]);
        assert_eq!((after.counts().acked, after.counts().todo), (5, 5));
    }
    assert!(after.register_holding(zero, &[held(&first, 5)]).unwrap().adopted[0].is_some());
}

#[test]
fn one_call_acknowledges_and_gets_several_shards_and_its_repetition_changes_nothing() {
    let spec = DatasetSpec { max_leases_per_holder: 4, ..small(100, 1) };
    let mut ledger = ledger(spec);
    let zero = worker(0, 0);
    ledger.register(zero).unwrap();
    let taken = ledger.exchange(zero, G1, RequestId(1), &[], 9).unwrap();
    let grants: Vec<Grant> = taken.grants().collect();
    assert_eq!(grants.len(), 4, "no more than it may hold");
    let acks: Vec<Ack> = grants[..3].iter().map(all).collect();
    let more = ledger.exchange(zero, G1, RequestId(2), &acks, 2).unwrap();
    assert_eq!((more.outcomes.as_slice(), more.grants().count()), (&[AckOutcome::Accepted; 3][..], 2));
    let counts = ledger.counts();
    assert_eq!(ledger.exchange(zero, G1, RequestId(2), &acks, 2).unwrap(), more);
    assert_eq!((ledger.counts(), counts.acked, counts.doing), (counts, 3, 3));
    // A wrong ack leaves no trace, neither of itself nor of the question.
    let wrong = [Ack { lease: grants[3].lease, offset: 2 }];
    assert!(ledger.exchange(zero, G1, RequestId(3), &wrong, 1).is_err());
    assert_eq!(ledger.counts(), counts);
}

#[test]
fn near_the_end_no_worker_takes_more_than_half_of_its_equal_part() {
    let spec = DatasetSpec { max_leases_per_holder: 99, ..small(40, 1) };
    let mut ledger = ledger(spec);
    for index in 0..4 {
        ledger.register(worker(index, 0)).unwrap();
    }
    let taken = |ledger: &mut ShardLedger, index, request| {
        ledger.exchange(worker(index, 0), G1, RequestId(request), &[], 99).unwrap().grants().count()
    };
    assert_eq!(taken(&mut ledger, 0, 1), 4, "39 wait behind the first for four holders");
    assert_eq!(taken(&mut ledger, 1, 1), 4);
    let mut request = 2;
    while ledger.counts().todo > 0 {
        let half = usize::try_from(ledger.counts().todo).unwrap() / 8;
        assert!(taken(&mut ledger, request as u32 % 4, request) <= half.max(1));
        request += 1;
    }
}

#[test]
fn shards_that_no_worker_began_are_called_back_for_waiting_workers() {
    let spec = DatasetSpec { max_leases_per_holder: 4, ..small(40, 10) };
    let mut ledger = ledger(spec);
    let (zero, one) = (worker(0, 0), worker(1, 0));
    ledger.register(zero).unwrap();
    let grants: Vec<Grant> = (1..5).map(|request| grant(&mut ledger, zero, request)).collect();
    let begun = [Ack { lease: grants[3].lease, offset: 1 }];
    assert_eq!(ledger.exchange(zero, G1, RequestId(0), &begun, 0).unwrap().recalled, [], "nobody waits");
    ledger.register(one).unwrap();
    assert!(matches!(ledger.fetch(one, G1, RequestId(1)), Ok(FetchOutcome::Wait { .. })));
    let first = [Ack { lease: grants[0].lease, offset: 1 }];
    let recalled = ledger.exchange(zero, G1, RequestId(0), &first, 0).unwrap().recalled;
    assert_eq!(recalled, [grants[2].lease], "the newest that was not begun, and one for the one who waits");
    ledger.release(zero, &[Ack { lease: recalled[0], offset: 0 }]).unwrap();
    assert_eq!(grant(&mut ledger, one, 1).key, grants[2].key);
    assert_eq!(
        ledger.exchange(zero, G1, RequestId(0), &first, 0).unwrap().recalled,
        [],
        "nobody waits any more"
    );
}

#[test]
fn a_frozen_ledger_counts_acks_and_grants_nothing_until_its_deadline() {
    let mut ledger = ledger(small(20, 10));
    let zero = worker(0, 0);
    ledger.register(zero).unwrap();
    let first = grant(&mut ledger, zero, 1);
    let at = |seconds| JobTime::from_duration(std::time::Duration::from_secs(seconds));
    ledger.freeze(at(5));
    drained(&mut ledger);
    assert!(matches!(ledger.fetch(zero, G1, RequestId(2)), Ok(FetchOutcome::Wait { .. })));
    ledger.ack(zero, all(&first)).unwrap();
    assert_eq!((ledger.counts().acked, ledger.deadline()), (10, Some(at(5))));
    drained(&mut ledger);
    ledger.on_deadline(at(4));
    assert!(drained(&mut ledger).is_empty());
    ledger.on_deadline(at(5));
    assert_eq!(drained(&mut ledger), [Effect::Wake], "those who wait hear of it");
    assert!(matches!(ledger.fetch(zero, G1, RequestId(2)), Ok(FetchOutcome::Granted(_))));
    assert_eq!(ledger.deadline(), None);
}

#[test]
fn a_cut_is_taken_only_when_the_model_has_the_samples_that_the_ledger_counts() {
    let spec = small(20, 10);
    let mut ledger = ledger(spec.clone());
    let zero = worker(0, 0);
    ledger.register(zero).unwrap();
    let first = grant(&mut ledger, zero, 1);
    let lease = first.lease;
    ledger.ack(zero, Ack { lease, offset: 4 }).unwrap();
    for committed in [3, 5] {
        let refused = ledger.cut(CheckpointId(1), committed).unwrap_err();
        assert_eq!(refused, CutError::NotQuiesced { committed, acked: 4 });
    }
    let early = ledger.cut(CheckpointId(1), 4).unwrap();
    ledger.ack(zero, Ack { lease, offset: 6 }).unwrap();
    let late = ledger.cut(CheckpointId(2), 6).unwrap();
    let model = early.binding();

    let refused = ledger.restore_cut(&late, &model, Generation(2)).unwrap_err();
    assert!(matches!(refused, RecoverError::CutMismatch { .. }), "{refused}");
    assert_eq!((ledger.counts().acked, ledger.generation()), (6, G1), "nothing was changed");
    // In another process, by other workers.
    let bytes = early.to_bytes();
    let early = LedgerCut::from_bytes(&bytes, &spec).unwrap();
    let mut resumed = ShardLedger::new(spec, G1).unwrap();
    resumed.restore_cut(&early, &model.to_string().parse().unwrap(), Generation(2)).unwrap();
    let seven = worker(7, 0);
    resumed.register(seven).unwrap();
    let again = match resumed.fetch(seven, Generation(2), RequestId(1)).unwrap() {
        FetchOutcome::Granted(grant) => grant,
        other => panic!("{other:?}"),
    };
    assert_eq!((again.key, again.resume_at), (first.key, 4));
    // A worker that trained into the model that was given up has nothing to present.
    assert_eq!(resumed.register_holding(zero, &[held(&first, 6)]).unwrap().adopted, [None]);
}

#[test]
fn a_job_that_ends_early_can_say_which_samples_it_owes() {
    let spec = DatasetSpec { shuffle: Shuffle::ShardsAndSamples, epochs: Epochs::Finite(2), ..small(40, 10) };
    let mut ledger = ledger(spec);
    let zero = worker(0, 0);
    ledger.register(zero).unwrap();
    let (first, second) = (grant(&mut ledger, zero, 1), grant(&mut ledger, zero, 2));
    ledger.ack(zero, all(&first)).unwrap();
    ledger.ack(zero, Ack { lease: second.lease, offset: 3 }).unwrap();
    let missing = ledger.missing(Epoch(0), 100);
    let ids = |missing: &[Missing]| -> Vec<u64> {
        missing.iter().flat_map(|m| m.samples.start..m.samples.end).collect()
    };
    let order = second.order();
    let done: Vec<u64> = (0..first.len)
        .map(|at| first.start + at)
        .chain((0..3).map(|at| second.sample(order.as_ref(), at)))
        .collect();
    let expected: Vec<u64> = (0..40).filter(|id| !done.contains(id)).collect();
    assert_eq!(ids(&missing), expected, "every sample once, in the order of the data set");
    assert!(missing.iter().any(|m| m.why == MissingWhy::Leased));
    assert!(missing.windows(2).all(|w| w[0].samples.end < w[1].samples.start || w[0].why != w[1].why));
    let whole =
        Missing { epoch: Epoch(1), samples: SampleRange { start: 0, end: 40 }, why: MissingWhy::Waiting };
    assert_eq!(ledger.missing(Epoch(1), 100), [whole], "an epoch that nobody opened");
    assert_eq!(ledger.missing(Epoch(2), 100), []);
    assert_eq!(ids(&ledger.missing(Epoch(1), 2)).len(), 20, "no more shards than were asked for");
}

#[test]
fn uneven_shards_are_handed_out_as_they_were_cut() {
    let spec = DatasetSpec { cut: Cut::At([1, 7, 8, 20].into()), epochs: Epochs::Finite(2), ..small(20, 1) };
    let lengths =
        |keys: &[ShardKey]| -> Vec<u64> { keys.iter().map(|key| spec.shard(key.index).len()).collect() };
    let keys = hand_out(spec.clone());
    let mut of_an_epoch = lengths(&keys[..4]);
    of_an_epoch.sort_unstable();
    assert_eq!(of_an_epoch, [1, 1, 6, 12]);
    let mut ledger = ledger(spec.clone());
    ledger.register(worker(0, 0)).unwrap();
    let first = grant(&mut ledger, worker(0, 0), 1);
    ledger.ack(worker(0, 0), all(&first)).unwrap();
    let bytes = ledger.snapshot().to_bytes();
    assert_eq!(LedgerSnapshot::from_bytes(&bytes, &spec).unwrap(), ledger.snapshot());
    let other = DatasetSpec { cut: Cut::At([1, 7, 9, 20].into()), ..spec };
    assert!(LedgerSnapshot::from_bytes(&bytes, &other).is_err(), "cut elsewhere");
}

/// With `Delivery::AtMostOnce` the ledger does the same; the holder acknowledges before it trains.
#[test]
fn a_worker_that_acknowledges_before_it_trains_may_skip_samples_and_repeats_none() {
    let spec = DatasetSpec { delivery: Delivery::AtMostOnce, ..small(10, 10) };
    let mut ledger = ledger(spec);
    let (zero, one) = (worker(0, 0), worker(1, 0));
    ledger.register(zero).unwrap();
    ledger.register(one).unwrap();
    let first = grant(&mut ledger, zero, 1);
    // Handed to the trainer, acknowledged, and lost with it before the update.
    ledger.ack(zero, Ack { lease: first.lease, offset: 6 }).unwrap();
    ledger.worker_lost(zero);
    let rest = grant(&mut ledger, one, 1);
    assert_eq!(
        (rest.key, rest.resume_at),
        (first.key, 6),
        "the six that were in flight come to nobody again"
    );
    ledger.ack(one, all(&rest)).unwrap();
    assert!(ledger.is_finished());
}

/// Trains what one life is granted until the end of the data, each sample once; shards whose number `stop` names are left where
/// they are, after that many samples.
fn train(ledger: &mut ShardLedger, holder: antdt_core::Holder, trained: &mut BTreeMap<u64, u32>, stop: u64) {
    ledger.register(holder).unwrap();
    let generation = ledger.generation();
    for request in 1_u64.. {
        let grant = match ledger.fetch(holder, generation, RequestId(request)).unwrap() {
            FetchOutcome::Granted(grant) => grant,
            FetchOutcome::EndOfData => return,
            other => panic!("{other:?}"),
        };
        let to = if request == stop { grant.resume_at + 3 } else { grant.len };
        let order = grant.order();
        for at in grant.resume_at..to {
            *trained.entry(grant.sample(order.as_ref(), at)).or_default() += 1;
        }
        ledger.ack(holder, Ack { lease: grant.lease, offset: to }).unwrap();
        if request == stop {
            return;
        }
    }
}

#[test]
fn data_end_after_the_epochs_that_are_handed_out_for_now() {
    let spec = DatasetSpec { epochs: Epochs::Finite(3), ..small(40, 10) };
    let (mut ledger, mut trained) = (ledger(spec), BTreeMap::new());
    for (life, (epochs, acked)) in (0..).zip([(1, 40), (1, 40), (2, 80), (7, 120)]) {
        ledger.end_after(epochs);
        train(&mut ledger, worker(0, life), &mut trained, u64::MAX);
        assert_eq!((ledger.counts().acked, ledger.is_finished()), (acked, true), "{epochs}");
        assert_eq!(ledger.counts().total, 120);
    }
    assert!((0..40).all(|sample| trained[&sample] == 3), "{trained:?}");
}

#[test]
fn another_job_goes_on_with_its_own_lives_and_more_epochs_and_every_sample_is_trained_as_often_as_there_are_epochs()
 {
    for (stop, more) in [(1, 0), (3, 2), (7, 1), (9, 0)] {
        let spec = |epochs| DatasetSpec {
            shuffle: Shuffle::ShardsAndSamples,
            epochs: Epochs::Finite(epochs),
            ..small(47, 10)
        };
        let (mut trained, mut before) = (BTreeMap::new(), ledger(spec(2)));
        // The old job's worker 0 was restarted seven times, and its last life was lost.
        train(&mut before, worker(0, 7), &mut trained, stop);
        before.worker_lost(worker(0, 7));
        let snapshot = before.snapshot().continued(spec(2 + more)).unwrap();
        let mut after = ShardLedger::new(spec(2 + more), G1).unwrap();
        after.restore(&snapshot, Generation(2)).unwrap();
        let counts = after.counts();
        assert_eq!(counts.total, 47 * u64::from(2 + more));
        assert_eq!(
            (counts.acked, counts.todo),
            (before.counts().acked, counts.total - before.counts().acked)
        );
        train(&mut after, worker(0, 0), &mut trained, u64::MAX);
        assert_eq!(after.counts().acked, counts.total);
        assert!((0..47).all(|sample| trained[&sample] == 2 + more), "{stop} {more}: {trained:?}");
        // Its own checkpoints are read back.
        let bytes = snapshot.to_bytes();
        assert_eq!(LedgerSnapshot::from_bytes(&bytes, &spec(2 + more)), Ok(snapshot));
    }
}

#[test]
fn a_job_that_would_hand_out_other_data_does_not_go_on_from_a_checkpoint() {
    let spec = DatasetSpec { epochs: Epochs::Finite(3), ..small(40, 10) };
    let mut begun = ledger(spec.clone());
    train(&mut begun, worker(0, 0), &mut BTreeMap::new(), 9);
    let snapshot = begun.snapshot();
    for (other, why) in [
        (
            DatasetSpec { name: "other".to_owned(), ..spec.clone() },
            format!("name of the data set = other: must be as before: {}", spec.name),
        ),
        (DatasetSpec { num_samples: 41, ..spec.clone() }, "samples = 41: must be as before: 40".to_owned()),
        (
            DatasetSpec { cut: Cut::Every(20), ..spec.clone() },
            "shards = 20 samples each: must be as before: 10 samples each".to_owned(),
        ),
        (
            DatasetSpec { cut: Cut::At([10, 40].into()), ..spec.clone() },
            "shards = 2 of lengths that the data suggest: must be as before: 10 samples each".to_owned(),
        ),
        (
            DatasetSpec { shuffle: Shuffle::None, ..spec.clone() },
            "shuffle = none: must be as before: of the shards and of the samples in each".to_owned(),
        ),
        (
            DatasetSpec { seed: antdt_core::Seed(77), ..spec.clone() },
            format!("seed of the order = 77: must be as before: {}", spec.seed.0),
        ),
        (
            DatasetSpec { assignment: Assignment::Static { workers: 2 }, ..spec.clone() },
            "assignment of shards = static, to 2 workers: must be as before: dynamic".to_owned(),
        ),
        (
            DatasetSpec { epochs: Epochs::Finite(2), ..spec.clone() },
            "epochs = 2: must be at least 3: as many have begun".to_owned(),
        ),
        (
            DatasetSpec { epochs: Epochs::Infinite, ..spec.clone() },
            "epochs = without end: must be as before: 3".to_owned(),
        ),
    ] {
        let error = snapshot.continued(other).unwrap_err().to_string();
        assert_eq!(error, why);
    }
    let at = |ends: [u64; 2]| DatasetSpec { cut: Cut::At(ends.into()), ..spec.clone() };
    let error = ledger(at([10, 40])).snapshot().continued(at([20, 40])).unwrap_err().to_string();
    assert_eq!(error, "shards = changed: must be as before: 2 of lengths that the data suggest");
}
