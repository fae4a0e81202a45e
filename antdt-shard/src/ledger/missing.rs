//! Samples that are not done: the report of a job that ends early or gives samples up.

use std::collections::BTreeMap;

use antdt_core::{Epoch, SampleRange, ShardKey};

use super::ShardLedger;
use super::pass::Begun;

/// Reason why a sample is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum MissingWhy {
    /// The sample's shard waits for a worker.
    Waiting,
    /// A worker holds a lease on the sample's shard and has not acknowledged the sample.
    Leased,
    /// The sample's shard was quarantined after too many data faults.
    Quarantined,
}

/// A run of consecutive samples of one epoch that are not done, for one common reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Missing {
    /// Epoch of the samples.
    pub epoch: Epoch,
    /// Indices of the samples in the data set.
    pub samples: SampleRange,
    /// Reason why the samples are missing.
    pub why: MissingWhy,
}

impl ShardLedger {
    /// Returns the samples of one epoch that are not done, in the order of the data set, with neighbours
    /// merged. It reports on at most `shards` shards, so that the answer about an epoch that has not begun
    /// stays small.
    ///
    /// O(shards · log), and O(length) for each shard of which a part is done in shuffled order.
    pub fn missing(&self, epoch: Epoch, shards: usize) -> Vec<Missing> {
        let book = &self.book;
        if epoch.0 >= book.spec.epoch_limit() {
            return Vec::new();
        }
        let mut left: BTreeMap<u64, (u64, MissingWhy)> = BTreeMap::new();
        let order = book.spec.shard_order(epoch);
        for share in &book.shares {
            let room = shards.saturating_sub(left.len());
            if share.opened <= epoch.0 {
                let fresh = (share.start..share.end).take(room);
                left.extend(fresh.map(|position| (order.at(position), (0, MissingWhy::Waiting))));
            } else if let Some(pass) = share.open.iter().find(|pass| pass.epoch() == epoch) {
                let waiting = |(position, begun): (u64, Begun)| {
                    (order.at(position), (begun.offset, MissingWhy::Waiting))
                };
                left.extend(pass.todo().take(room).map(waiting));
            }
        }
        let given_up = book.quarantined().filter(|g| g.key.epoch == epoch);
        let given_up = given_up.map(|g| (g.key.index, (g.offset, MissingWhy::Quarantined)));
        left.extend(given_up.take(shards.saturating_sub(left.len())).collect::<Vec<_>>());
        let leased = self.standing.leases_by_age();
        let leased = leased.iter().map(|(_, lease)| &lease.taken).filter(|t| t.key.epoch == epoch);
        let leased = leased.map(|t| (t.key.index, (t.begun.offset, MissingWhy::Leased)));
        left.extend(leased.take(shards.saturating_sub(left.len())).collect::<Vec<_>>());

        let mut missing: Vec<Missing> = Vec::new();
        for (index, (offset, why)) in left {
            for samples in self.samples_from(ShardKey { epoch, index }, offset) {
                match missing.last_mut() {
                    Some(last) if last.samples.end == samples.start && last.why == why => {
                        last.samples.end = samples.end;
                    }
                    _ => missing.push(Missing { epoch, samples, why }),
                }
            }
        }
        missing
    }

    /// The samples of a shard from an offset of its permuted order on, as ranges of the data set.
    fn samples_from(&self, key: ShardKey, offset: u64) -> Vec<SampleRange> {
        let shard = self.book.spec.shard(key.index);
        let order =
            self.book.spec.sample_seed(key).map(|seed| antdt_core::Permutation::new(seed, shard.len()));
        let Some(order) = order.filter(|_| offset > 0) else {
            return vec![SampleRange { start: shard.start + offset, end: shard.end }];
        };
        let mut samples: Vec<u64> = (offset..shard.len()).map(|at| shard.start + order.at(at)).collect();
        samples.sort_unstable();
        let mut ranges: Vec<SampleRange> = Vec::new();
        for sample in samples {
            match ranges.last_mut() {
                Some(last) if last.end == sample => last.end += 1,
                _ => ranges.push(SampleRange { start: sample, end: sample + 1 }),
            }
        }
        ranges
    }
}
