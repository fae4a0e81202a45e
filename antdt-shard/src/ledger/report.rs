//! What a ledger reports of live leases, and of shards that were given up.

use antdt_core::{Holder, LeaseId, SampleRange, ShardKey};

use super::ShardLedger;

/// A live lease in a report: its holder, its shard and the progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Outstanding {
    /// Id of the lease.
    pub lease: LeaseId,
    /// Worker and incarnation that holds the lease.
    pub holder: Holder,
    /// Shard that is leased.
    pub key: ShardKey,
    /// Number of samples of the shard that are done.
    pub offset: u64,
    /// Number of samples in the shard.
    pub len: u64,
}

/// A shard that was given up after too many data faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Quarantined {
    /// Shard that was given up.
    pub key: ShardKey,
    /// Samples of the shard in the data set. The first `offset` of them, in the permuted order, were trained.
    pub samples: SampleRange,
    /// Offset up to which samples were trained before the shard was given up.
    pub offset: u64,
}

impl ShardLedger {
    /// Returns the live leases, oldest first; O(leases · log leases).
    pub fn outstanding(&self) -> impl Iterator<Item = Outstanding> {
        self.standing.leases_by_age().into_iter().map(|(holder, lease)| Outstanding {
            lease: LeaseId { generation: self.standing.generation, sequence: lease.sequence },
            holder,
            key: lease.taken.key,
            offset: lease.taken.begun.offset,
            len: lease.taken.len,
        })
    }

    /// Returns the quarantined shards.
    pub fn quarantined(&self) -> impl Iterator<Item = Quarantined> {
        self.book.quarantined().map(|given_up| Quarantined {
            key: given_up.key,
            samples: self.book.spec.shard(given_up.key.index),
            offset: given_up.offset,
        })
    }
}
