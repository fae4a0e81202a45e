//! The shards of an epoch are disjoint and cover the data set; none is empty, and of even ones only the last is shorter.

use crate::spec::{Cut, DatasetSpec};

fn check_cut(spec: &DatasetSpec) {
    let mut next = 0;
    for index in 0..spec.shard_count() {
        let shard = spec.shard(index);
        assert_eq!(shard.start, next);
        assert!(!shard.is_empty());
        if let Cut::Every(len) = spec.cut {
            assert!(shard.len() == len || index + 1 == spec.shard_count());
        }
        next = shard.end;
    }
    assert_eq!(next, spec.num_samples);
    assert!(spec.shard(spec.shard_count()).is_empty() && spec.shard(u64::MAX).is_empty());
}

#[test]
fn shards_partition_the_data_set() {
    for (samples, len) in [(1, 1), (1, 9), (10, 3), (12, 3), (7, 7), (1_000, 7)] {
        check_cut(&DatasetSpec::new("d", samples, len));
    }
    for ends in [vec![1], vec![9], vec![1, 2, 3], vec![5, 6, 100]] {
        let samples = *ends.last().unwrap();
        check_cut(&DatasetSpec { cut: Cut::At(ends.into()), ..DatasetSpec::new("d", samples, 1) });
    }
}
