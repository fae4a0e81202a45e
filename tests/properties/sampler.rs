//! A job whose workers have different batch sizes is stopped and goes on with other workers.
//!
//! Samplers that remember how many samples were done, and suppose that all ranks did as many, lose what the slow ones had
//! not reached and repeat what the fast ones had passed: 40 and 40 of the first 320 samples with batches of 4, 8, 8 and
//! 12. Source: measured with Horovod's and `DLRover`'s elastic samplers, 10 steps and a resume.

use std::collections::BTreeSet;

use antdt_core::{CheckpointId, Generation, Holder, Incarnation, NodeId};
use antdt_shard::{Cut, DatasetSpec, LedgerCut, ShardLedger, Shuffle};
use antdt_tests::{Feeder, Oracle};

const SAMPLES: u64 = 640;
const BATCHES: [u64; 4] = [4, 8, 8, 12];
const STEPS: u64 = 10;

fn holder(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(0))
}

/// Trains so many steps, or to the end, with one worker for each batch size. Whether it came to the end.
fn train(ledger: &mut ShardLedger, first: u32, batches: &[u64], steps: u64, model: &mut Oracle) -> bool {
    let generation = ledger.generation();
    let mut workers: Vec<(Holder, Feeder)> =
        (first..).zip(batches).map(|(index, _)| (holder(index), Feeder::default())).collect();
    for (holder, _) in &workers {
        ledger.register(*holder).expect("it is new");
    }
    for _ in 0..steps {
        let mut taken = Vec::new();
        for ((holder, feeder), want) in workers.iter_mut().zip(batches) {
            taken.push(feeder.take(ledger, generation, *holder, *want));
        }
        for ((holder, feeder), batch) in workers.iter_mut().zip(taken) {
            model.apply(batch.samples());
            feeder.batcher.commit(&batch);
            if !batch.is_empty() {
                ledger.ack_all(*holder, &batch.acks()).expect("it holds what it acknowledges");
            }
        }
        if workers.iter().all(|(_, feeder)| feeder.end_of_data) {
            return true;
        }
    }
    false
}

/// What a sampler with one cursor does: rank `r` of `n` reads every `n`-th sample, and all go on behind as many as were
/// done in all.
fn with_one_cursor() -> (usize, usize) {
    let ranks = BATCHES.len() as u64;
    let read =
        (0..ranks).zip(BATCHES).flat_map(|(rank, batch)| (0..batch * STEPS).map(move |at| rank + at * ranks));
    let read: BTreeSet<u64> = read.collect();
    let passed: BTreeSet<u64> = (0..read.len() as u64).collect();
    (passed.difference(&read).count(), read.difference(&passed).count())
}

#[test]
fn a_job_with_unequal_batches_goes_on_with_other_workers_and_loses_and_repeats_nothing() {
    assert_eq!(with_one_cursor(), (40, 40), "lost and repeated by a sampler with one cursor");

    let even = DatasetSpec { max_leases_per_holder: 6, ..DatasetSpec::new("sampler", SAMPLES, 10) };
    let uneven =
        Cut::At((1..=64).map(|shard| if shard % 2 == 0 { shard * 10 } else { shard * 10 - 7 }).collect());
    let plain = DatasetSpec { shuffle: Shuffle::None, ..even.clone() };
    for spec in [even.clone(), plain, DatasetSpec { cut: uneven, ..even }] {
        let mut model = Oracle::default();
        let mut before = ShardLedger::new(spec.clone(), Generation(1)).expect("a valid data set");
        assert!(!train(&mut before, 0, &BATCHES, STEPS, &mut model));
        // All that was trained is acknowledged, so the two halves are of one moment.
        let cut = before.cut(CheckpointId(1), 320).expect("a boundary of steps");

        for batches in [&[5, 27][..], &[32], &[12, 8, 8, 4], &[1, 1, 1, 2, 3, 5, 8, 13]] {
            let mut model = model.clone();
            let cut = LedgerCut::from_bytes(&cut.to_bytes(), &spec).expect("what was written is read");
            let mut after = ShardLedger::new(spec.clone(), Generation(1)).expect("a valid data set");
            after.restore_cut(&cut, &cut.binding(), Generation(2)).expect("they belong together");
            assert!(train(&mut after, 9, batches, SAMPLES, &mut model), "it does not end");
            model.assert_exact(SAMPLES, 1);
        }
    }
}
