//! Invariant 27: with integers for gradients, the step that workers take together is the step of one process, bit for bit, for any
//! batch sizes and any number of micro-batches, by every all-reduce and with servers.

use antdt_agent::{Batch, MicroBatch};
use antdt_collective::ReduceOp;
use antdt_collective::schedule::{
    Algorithm, Direct, DoubleTree, HalvingDoubling, RecursiveDoubling, Ring, Schedule, interpret,
};
use antdt_core::{
    Generation, Holder, Incarnation, Iteration, NodeId, ParamLayout, Rank, Seed, ServerWeights,
};
use antdt_model::{
    CommitToken, Partition, PartitionConfig, Push, Replica, SparseGradient, Staleness, UpdateRule,
};
use antdt_shard::{DatasetSpec, ShardLedger, Shuffle};
use antdt_tests::Feeder;
use proptest::prelude::*;

const LEN: usize = 6;

/// Gradient of a sample: integers up to 1000, so that no sum of 250 of them is rounded.
fn gradient(sample: u64) -> [f32; LEN] {
    let mut rng = Seed(27).derive_number(sample).rng();
    #[allow(clippy::cast_precision_loss, reason = "at most 2000")]
    [(); LEN].map(|()| rng.below(2001) as f32 - 1000.0)
}

fn add(sum: &mut [f32], samples: impl IntoIterator<Item = u64>) {
    for sample in samples {
        sum.iter_mut().zip(gradient(sample)).for_each(|(sum, value)| *sum += value);
    }
}

fn holder(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(0))
}

/// Batches of these sizes, which are all samples of an epoch.
fn batches(sizes: &[u64], seed: u64) -> Vec<Batch> {
    // Shards of one sample: what one worker holds of a longer one no other worker can take.
    let mut spec = DatasetSpec::new("train", sizes.iter().sum(), 1);
    (spec.shuffle, spec.seed, spec.max_leases_per_holder) = (Shuffle::ShardsAndSamples, Seed(seed), 256);
    let mut ledger = ShardLedger::new(spec, Generation(1)).unwrap();
    let take = |(index, size): (u32, &u64)| {
        ledger.register(holder(index)).unwrap();
        Feeder::default().take(&mut ledger, Generation(1), holder(index), *size)
    };
    (0..).zip(sizes).map(take).collect()
}

/// Parameters after one step with this sum of gradients.
fn stepped(rule: &UpdateRule, sum: &[f32], samples: u64) -> Vec<u32> {
    let mut replica = Replica::new(&ParamLayout::dense(LEN), rule, Seed(1), vec![0.5; LEN]).unwrap();
    replica.apply(sum, &SparseGradient::default(), samples).unwrap();
    replica.dense().iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn i27_the_step_of_all_workers_is_that_of_one_process_for_any_batches_and_micro_batches(
        workers in prop::collection::vec((0_u64..40, 1_u32..6), 1..7), seed in any::<u64>()
    ) {
        let sizes: Vec<u64> = workers.iter().map(|(size, _)| *size).collect();
        prop_assume!(sizes.iter().sum::<u64>() > 0);
        let batches = batches(&sizes, seed);
        let samples: u64 = batches.iter().map(Batch::len).sum();
        prop_assert_eq!(samples, sizes.iter().sum::<u64>());
        // Each worker adds up its micro-batches.
        let sums: Vec<Vec<f32>> = batches.iter().zip(&workers).map(|(batch, (_, count))| {
            let mut sum = vec![0.0; LEN];
            for index in 0..*count {
                let mut piece = vec![0.0; LEN];
                add(&mut piece, batch.piece(MicroBatch { index, count: *count }).samples());
                sum.iter_mut().zip(piece).for_each(|(sum, value)| *sum += value);
            }
            sum
        }).collect();
        // One process takes the whole epoch in the order of the data set.
        let mut whole = vec![0.0; LEN];
        add(&mut whole, 0..samples);
        for name in ["sgd", "adam"] {
            let rule = UpdateRule::named(name, 0.1).unwrap();
            let expected = stepped(&rule, &whole, samples);
            let world = u32::try_from(sums.len()).unwrap();
            let algorithms: [&dyn Algorithm; 5] = [&Ring, &Direct, &RecursiveDoubling, &HalvingDoubling, &DoubleTree { segments: 2 }];
            for algorithm in algorithms {
                let schedules: Vec<Schedule> =
                    (0..world).map(|rank| algorithm.schedule(Rank(rank), world, LEN)).collect();
                let mut buffers = sums.clone();
                interpret(&schedules, &mut buffers, ReduceOp::Sum).unwrap();
                for reduced in &buffers {
                    prop_assert_eq!(&stepped(&rule, reduced, samples), &expected, "{}", algorithm.name());
                }
            }
            let mut server = Partition::new(&PartitionConfig {
                layout: ParamLayout::dense(LEN),
                rule,
                seed: Seed(1),
                server: 0,
                servers: 1,
                weights: ServerWeights::default(),
                staleness: Staleness::Synchronous,
            }).unwrap();
            server.init_dense(vec![0.5; LEN]).unwrap();
            let pushes = (0..).zip(sums.iter().zip(&sizes)).filter(|(_, (_, samples))| **samples > 0);
            let mut contributors = Vec::new();
            for (index, (dense, samples)) in pushes {
                let push = Push { samples: *samples, dense: dense.clone(), ..Push::default() };
                server.push(holder(index), Iteration(0), push).unwrap();
                contributors.push(holder(index));
            }
            server.commit(&CommitToken { step: Iteration(0), contributors, samples, everyone: true }).unwrap();
            let (mut dense, mut rows) = (Vec::new(), Vec::new());
            server.pull(&[], &mut dense, &mut rows).unwrap();
            let served: Vec<u32> = dense.iter().map(|value| value.to_bits()).collect();
            prop_assert_eq!(&served, &expected, "servers");
        }
    }
}
