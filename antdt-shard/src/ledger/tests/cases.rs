use antdt_core::{
    Ack, AckOutcome, Epoch, FetchOutcome, Generation, Grant, Holder, JobTime, Machine, RequestId, ShardKey,
};

use super::pair::{small, worker};
use crate::ledger::{Answer, Effect, Event, Record, ShardLedger};
use crate::spec::DatasetSpec;

const G1: Generation = Generation(1);

pub(super) fn ledger(spec: DatasetSpec) -> ShardLedger {
    ShardLedger::new(spec, G1).unwrap()
}

pub(super) fn drained(ledger: &mut ShardLedger) -> Vec<Effect> {
    std::iter::from_fn(|| ledger.poll_effect()).collect()
}

pub(super) fn records(ledger: &mut ShardLedger) -> Vec<Record> {
    let record = |effect| match effect {
        Effect::Record(record) => Some(record),
        Effect::Wake => None,
    };
    drained(ledger).into_iter().filter_map(record).collect()
}

pub(super) fn grant(ledger: &mut ShardLedger, holder: Holder, request: u64) -> Grant {
    match ledger.fetch(holder, ledger.generation(), RequestId(request)) {
        Ok(FetchOutcome::Granted(grant)) => grant,
        other => panic!("{holder} was answered {other:?}"),
    }
}

pub(super) fn all(grant: &Grant) -> Ack {
    Ack { lease: grant.lease, offset: grant.len }
}

/// Fetches and completes one shard after the other; the keys in the order of hand-out.
pub(super) fn hand_out(spec: DatasetSpec) -> Vec<ShardKey> {
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
fn the_machine_answers_as_the_methods_do() {
    let spec = small(8, 4);
    let mut direct = ledger(spec.clone());
    let mut machine = ledger(spec);
    let holder = worker(0, 0);
    let now = JobTime::ZERO;
    assert_eq!(
        machine.handle(now, Event::Register { holder, held: vec![] }),
        Answer::Register(direct.register_holding(holder, &[]))
    );
    let exchange =
        Event::Exchange { holder, generation: G1, request: RequestId(1), acks: vec![].into(), want: 2 };
    let outcome = direct.exchange(holder, G1, RequestId(1), &[], 2);
    assert_eq!(machine.handle(now, exchange), Answer::Exchange(outcome.clone()));
    let Some(FetchOutcome::Granted(grant)) = outcome.unwrap().fetched else { panic!() };
    let acks = vec![Ack { lease: grant.lease, offset: 1 }];
    let outstanding: Vec<_> = machine.outstanding().collect();
    assert_eq!(machine.handle(now, Event::Outstanding), Answer::Outstanding(outstanding));
    assert_eq!(
        machine.handle(now, Event::Settle { holder, acks: acks.clone() }),
        Answer::Ack(direct.settle(holder, &acks))
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
    let missing = machine.handle(now, Event::Missing { epoch: Epoch(0), shards: 9 });
    assert_eq!(missing, Answer::Missing(direct.missing(Epoch(0), 9)));
    assert_eq!(machine.deadline(), None);
    assert_eq!(drained(&mut machine), drained(&mut direct));
}
