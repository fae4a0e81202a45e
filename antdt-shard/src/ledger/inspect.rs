//! The view of a ledger snapshot that the test suite's invariants check.

use std::collections::BTreeMap;

use antdt_core::{Counts, Epoch, Incarnation, NodeId, ShardKey};

use super::LedgerSnapshot;

impl LedgerSnapshot {
    /// The shards that wait, those that were out among them, with their offsets and faults; O(waiting shards).
    pub(crate) fn waiting(&self) -> BTreeMap<ShardKey, (u64, u32)> {
        self.book.todo().map(|(key, begun)| (key, (begun.offset, begun.faults))).collect()
    }

    /// The newest life of each node that ended.
    pub(crate) const fn fences(&self) -> &BTreeMap<NodeId, Incarnation> {
        &self.book.fences
    }

    /// The shards that were given up.
    pub(crate) fn given_up(&self) -> Vec<ShardKey> {
        self.book.quarantined().map(|given_up| given_up.key).collect()
    }

    /// The counts of an epoch; `None` if the job has no such epoch.
    pub(crate) fn epoch_counts(&self, epoch: Epoch) -> Option<Counts> {
        self.book.account().epoch(epoch)
    }

    /// Unclosed epochs of the share that has most.
    pub(crate) fn open_epochs(&self) -> usize {
        self.book.open_epochs().max().unwrap_or_default()
    }
}
