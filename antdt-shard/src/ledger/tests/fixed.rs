use antdt_core::{Ack, Epoch, FetchOutcome, Generation, Holder};

use super::pair::{Pair, small, worker};
use crate::error::RegisterError;
use crate::ledger::ShardLedger;
use crate::spec::{Assignment, DatasetSpec, Epochs, Shuffle};

fn fixed(num_samples: u64, shard_len: u64, workers: u32, epochs: u32) -> DatasetSpec {
    DatasetSpec {
        assignment: Assignment::Static { workers },
        epochs: Epochs::Finite(epochs),
        shuffle: Shuffle::None,
        max_leases_per_holder: 1,
        ..small(num_samples, shard_len)
    }
}

/// Trains all that a worker can have now; the indices of its shards, with their epochs.
fn train(pair: &mut Pair, holder: Holder, requests: &mut u64) -> Vec<(u32, u64)> {
    let mut shards = Vec::new();
    loop {
        *requests += 1;
        let Some(FetchOutcome::Granted(grant)) = pair.fetch(holder, *requests) else { return shards };
        shards.push((grant.key.epoch.0, grant.key.index));
        pair.ack(holder, &[Ack { lease: grant.lease, offset: grant.len }]);
    }
}

#[test]
fn each_worker_trains_its_own_part_and_takes_no_other() {
    let mut pair = Pair::new(fixed(10, 1, 3, 2));
    let mut requests = 0;
    for index in [0, 2] {
        pair.register(worker(index, 0));
    }
    // No barrier between workers: each goes on to its next epoch at its own pace.
    assert_eq!(
        train(&mut pair, worker(0, 0), &mut requests),
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    );
    assert_eq!(
        train(&mut pair, worker(2, 0), &mut requests),
        [(0, 6), (0, 7), (0, 8), (0, 9), (1, 6), (1, 7), (1, 8), (1, 9)]
    );
    assert_eq!(pair.ledger().counts().todo, 6, "the missing worker's part stays where it is");
    pair.register(worker(1, 0));
    assert_eq!(
        train(&mut pair, worker(1, 0), &mut requests),
        [(0, 3), (0, 4), (0, 5), (1, 3), (1, 4), (1, 5)]
    );
    assert!(pair.ledger().is_finished());
}

#[test]
fn another_life_of_the_node_continues_its_part() {
    let mut pair = Pair::new(fixed(12, 3, 2, 1));
    pair.register(worker(0, 0));
    pair.register(worker(1, 0));
    pair.fetch(worker(0, 0), 1);
    pair.ack(worker(0, 0), &[Ack { lease: pair.grants()[0].0.lease, offset: 2 }]);
    pair.lose(worker(0, 0));
    let mut requests = 1;
    assert_eq!(train(&mut pair, worker(1, 0), &mut requests), [(0, 2), (0, 3)], "a lost shard is not stolen");
    pair.register(worker(0, 1));
    pair.fetch(worker(0, 1), 1);
    let grant = pair.newest();
    assert_eq!((grant.key.index, grant.resume_at), (0, 2));
    pair.drain();
}

#[test]
fn a_worker_beyond_the_shares_is_refused() {
    let mut ledger = ShardLedger::new(fixed(10, 1, 3, 1), Generation(1)).unwrap();
    let error = ledger.register(worker(3, 0)).unwrap_err();
    assert_eq!(error, RegisterError::NoShare { node: worker(3, 0).node, workers: 3 });
}

#[test]
fn more_workers_than_shards_leaves_some_with_nothing_but_the_end() {
    let mut pair = Pair::new(fixed(2, 1, 5, 2));
    let mut requests = 0;
    let mut trained = 0;
    for index in 0..5 {
        pair.register(worker(index, 0));
        trained += train(&mut pair, worker(index, 0), &mut requests).len();
    }
    assert_eq!(trained, 4);
    for index in 0..5 {
        requests += 1;
        assert_eq!(pair.fetch(worker(index, 0), requests), Some(FetchOutcome::EndOfData));
    }
    assert_eq!(pair.ledger().epoch_counts(Epoch(1)).unwrap().acked, 2);
}

#[test]
fn the_end_comes_to_all_at_once() {
    let mut pair = Pair::new(fixed(4, 2, 2, 1));
    pair.register(worker(0, 0));
    pair.register(worker(1, 0));
    let mut requests = 0;
    train(&mut pair, worker(0, 0), &mut requests);
    assert!(matches!(pair.fetch(worker(0, 0), requests + 1), Some(FetchOutcome::Wait { .. })));
    train(&mut pair, worker(1, 0), &mut requests);
    assert!(pair.ledger().is_finished());
    assert_eq!(pair.fetch(worker(0, 0), requests + 2), Some(FetchOutcome::EndOfData));
}
