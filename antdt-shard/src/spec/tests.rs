use antdt_core::{Epoch, NodeId};

use super::*;

fn valid() -> DatasetSpec {
    DatasetSpec::new("clicks", 1_000, 10)
}

#[test]
fn every_setting_that_makes_no_sense_is_refused_by_name() {
    assert_eq!(valid().validate(), Ok(()));
    let refused = [
        (DatasetSpec { name: String::new(), ..valid() }, "name"),
        (DatasetSpec { name: "x".repeat(256), ..valid() }, "name"),
        (DatasetSpec { num_samples: 0, ..valid() }, "num_samples"),
        (DatasetSpec { cut: Cut::Every(0), ..valid() }, "shard_len"),
        (DatasetSpec { cut: Cut::Every((1 << 32) + 1), ..valid() }, "shard_len"),
        (DatasetSpec { cut: Cut::At([].into()), ..valid() }, "last end of cut"),
        (DatasetSpec { cut: Cut::At([0, 1_000].into()), ..valid() }, "cut[0]"),
        (DatasetSpec { cut: Cut::At([5, 5, 1_000].into()), ..valid() }, "cut[1]"),
        (DatasetSpec { cut: Cut::At([999].into()), ..valid() }, "last end of cut"),
        (DatasetSpec { cut: Cut::At([1_000, 1_001].into()), ..valid() }, "last end of cut"),
        (DatasetSpec { epochs: Epochs::Finite(0), ..valid() }, "epochs"),
        (DatasetSpec { num_samples: u64::MAX / 2, epochs: Epochs::Finite(3), ..valid() }, "epochs"),
        (DatasetSpec { epoch_overlap: 9, ..valid() }, "epoch_overlap"),
        (DatasetSpec { max_data_faults: 0, ..valid() }, "max_data_faults"),
        (DatasetSpec { max_leases_per_holder: 0, ..valid() }, "max_leases_per_holder"),
        (DatasetSpec { assignment: Assignment::Static { workers: 0 }, ..valid() }, "workers"),
        (DatasetSpec { assignment: Assignment::Static { workers: u32::MAX }, ..valid() }, "workers"),
    ];
    for (spec, field) in refused {
        assert_eq!(spec.validate().unwrap_err().field, field);
    }
}

#[test]
fn the_largest_data_sets_are_accepted() {
    let largest = DatasetSpec { num_samples: u64::MAX, epochs: Epochs::Finite(1), ..valid() };
    assert_eq!(largest.validate(), Ok(()));
    assert_eq!(largest.shard(largest.shard_count() - 1).end, u64::MAX);
    assert_eq!(largest.shard(u64::MAX).len(), 0);
    let endless = DatasetSpec { epochs: Epochs::Infinite, ..largest };
    assert_eq!(endless.validate(), Ok(()));
    assert_eq!(endless.epoch_limit(), 1, "no more than can be counted");
}

#[test]
fn shares_cover_the_order_of_an_epoch_evenly() {
    for workers in [1, 2, 3, 7, 100, 101] {
        let spec = DatasetSpec { assignment: Assignment::Static { workers }, ..valid() };
        let mut next = 0;
        for share in 0..workers {
            let (start, end) = spec.share_bounds(share);
            assert_eq!(start, next);
            let even = spec.shard_count() / u64::from(workers);
            assert!((even..=even + 1).contains(&(end - start)));
            next = end;
        }
        assert_eq!(next, spec.shard_count());
        assert_eq!(spec.share_of(NodeId::worker(workers)), None);
    }
}

#[test]
fn the_seed_of_samples_differs_by_epoch_and_shard() {
    let key = |epoch, index| ShardKey { epoch: Epoch(epoch), index };
    let spec = valid();
    assert_ne!(spec.sample_seed(key(0, 1)), spec.sample_seed(key(1, 0)));
    assert_ne!(spec.sample_seed(key(0, 0)), spec.sample_seed(key(0, 1)));
    assert_eq!(DatasetSpec { shuffle: Shuffle::Shards, ..spec }.sample_seed(key(0, 0)), None);
}

#[test]
fn the_default_length_keeps_the_tail_of_a_slow_worker_within_one_percent() {
    for (num_samples, batch, workers) in
        [(1_000_000, 1_024, 4), (100_000_000, 4_096, 20), (5_000_000, 128, 1)]
    {
        let len = shard_len_default(num_samples, batch, workers);
        // The slowest at a quarter of its peers' speed 1: a shard takes it 4·len, the epoch N / (n - 3/4).
        let epoch = num_samples as f64 / (f64::from(workers) - 0.75);
        let (tail, floor) = (4.0 * len as f64, u64::from(batch.div_ceil(workers)));
        assert!(len == floor || tail <= 0.01 * epoch + 4.0, "{tail} of {epoch}");
        assert!(len <= 10 * u64::from(batch));
    }
    assert_eq!(shard_len_default(0, 0, 0), 1, "always a legal length");
}

#[test]
fn the_default_cap_lets_a_batch_straddle_its_shards() {
    for (shard_len, batch) in [(1, 1), (64, 256), (10, 4_096), (10_240, 1_024), (7, 100)] {
        let cap = u64::from(max_leases_default(shard_len, batch));
        // Worst case: two batches, and the first begins at the last sample of a shard.
        let spanned = 1 + (2 * u64::from(batch) - 1).div_ceil(shard_len);
        assert!(cap >= spanned, "{cap} leases for {spanned} shards");
    }
}
