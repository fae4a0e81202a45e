//! Shards, leases on them, and fragments of them in a batch.

use std::time::Duration;

use smallvec::SmallVec;

use crate::id::{Epoch, Generation, LeaseId};
use crate::seed::{Permutation, Seed};

/// A range of samples of a data set, `start..end`, end exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SampleRange {
    /// Index of the first sample.
    pub start: u64,
    /// Index of the last sample, plus one.
    pub end: u64,
}

impl SampleRange {
    /// Returns the number of samples.
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Returns whether the range has no sample.
    pub const fn is_empty(&self) -> bool {
        self.end <= self.start
    }
}

/// Identity of a shard: the `index`-th piece of the data set, in one pass over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ShardKey {
    /// Pass over the data.
    pub epoch: Epoch,
    /// Index of the piece, in the order of the data set.
    pub index: u64,
}

/// Whether a worker acknowledges samples before or after their update of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Delivery {
    /// The worker acknowledges samples after their update was committed: a crash may repeat samples.
    #[default]
    AtLeastOnce,
    /// The worker acknowledges samples when they are handed to the trainer: a crash may skip samples.
    AtMostOnce,
}

/// A lease on a shard, as granted.
///
/// The shard covers samples `start..start + len` of the data set. Offsets count in the *permuted* order of the
/// shard, which is a pure function of `seed` (already derived for this shard), never of the holder: a second
/// holder resumes at `resume_at` and sees exactly the samples that the first one did not commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Grant {
    /// Id of the lease.
    pub lease: LeaseId,
    /// Shard that the lease is on.
    pub key: ShardKey,
    /// Index of the shard's first sample in the data set.
    pub start: u64,
    /// Number of samples in the shard.
    pub len: u64,
    /// Offset at which to continue: samples `0..resume_at` of the permuted order are done already.
    pub resume_at: u64,
    /// Seed of the order within the shard; `None` is the order of the data set.
    pub seed: Option<Seed>,
}

impl Grant {
    /// Returns the order of the samples within the shard, for [`sample`](Self::sample); `None` is the order
    /// of the data set. The caller computes it once per shard.
    pub fn order(&self) -> Option<Permutation> {
        self.seed.map(|seed| Permutation::new(seed, self.len))
    }

    /// Returns the index, in the data set, of the sample at `offset` of this shard.
    ///
    /// # Panics
    /// If `offset` is not below `len`.
    pub fn sample(&self, order: Option<&Permutation>, offset: u64) -> u64 {
        assert!(offset < self.len, "offset {offset} is outside a shard of {}", self.len);
        self.start + order.map_or(offset, |order| order.at(offset))
    }
}

/// Answer of the shard service to a request for a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FetchOutcome {
    /// The service grants the worker a lease on this shard.
    Granted(Grant),
    /// No shard is free now, but a peer's shard may come back or the next epoch may open: the worker must ask
    /// again.
    Wait {
        /// Longest time after which the worker should ask again.
        #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
        retry_after: Duration,
    },
    /// Every sample of every epoch is acknowledged or given up. The answer is final within a generation of
    /// the service.
    EndOfData,
    /// The worker holds as many leases as it may: it must acknowledge or release some first.
    AtLimit,
}

/// Acknowledgement that samples `0..offset` (permuted order) of a leased shard are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Ack {
    /// Lease under which the samples were trained.
    pub lease: LeaseId,
    /// Offset of the last sample that is done, plus one.
    pub offset: u64,
}

/// Acks that are sent together, one for each lease that a batch takes samples from. Up to two are stored
/// without an allocation.
pub type Acks = SmallVec<[Ack; 2]>;

/// The outcomes of some [`Acks`], in the same order.
pub type AckOutcomes = SmallVec<[AckOutcome; 16]>;

/// A lease of an earlier generation that a worker presents when it registers after a restart of the shard
/// service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Held {
    /// Id of the lease.
    pub lease: LeaseId,
    /// Shard that the lease was on.
    pub key: ShardKey,
    /// Samples `0..offset` of the permuted order are part of the model.
    pub offset: u64,
}

impl Held {
    /// Returns the acknowledgement of the lease's samples that are part of the model.
    pub const fn ack(&self) -> Ack {
        Ack { lease: self.lease, offset: self.offset }
    }
}

/// Answer to a registration with the shard service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Registered {
    /// Current generation of the service.
    pub generation: Generation,
    /// Result for each presented lease, in order: the lease that replaces it, or `None` if it is void.
    /// Another worker may then train the samples of it that were not acknowledged.
    pub adopted: Vec<Option<Grant>>,
}

/// Answer to a call that acknowledges samples and asks for shards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Exchanged {
    /// Outcome of each ack, in the order of the acks.
    pub outcomes: AckOutcomes,
    /// Answer to the request for the first shard; `None` if the call asked for no shard.
    pub fetched: Option<FetchOutcome>,
    /// Leases on further shards, if the first was granted. They may be fewer than the call asked for.
    pub more: Vec<Grant>,
    /// Leases on shards that another worker could begin at once. The worker should release each of them
    /// unless one of its samples is in a batch already; ignoring them is safe but makes the end of the epoch
    /// longer.
    pub recalled: Vec<LeaseId>,
}

impl Exchanged {
    /// Returns every lease that was granted, in the order in which they should be trained.
    pub fn grants(&self) -> impl Iterator<Item = Grant> {
        let first = match self.fetched {
            Some(FetchOutcome::Granted(grant)) => Some(grant),
            _ => None,
        };
        first.into_iter().chain(self.more.iter().copied())
    }
}

/// Answer to an ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AckOutcome {
    /// The samples count as done.
    Accepted,
    /// The lease has ended: the samples do not count, and the worker must drop the lease.
    StaleLease,
}

/// Part of a batch: the samples at offsets `from..to`, in permuted order, of one leased shard.
///
/// A fragment refers to its samples by the lease, and computes their indices only when they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Fragment {
    /// Lease that the samples belong to.
    pub grant: Grant,
    /// First offset, inclusive.
    pub from: u64,
    /// Last offset, exclusive.
    pub to: u64,
}

impl Fragment {
    /// Returns the number of samples.
    pub const fn len(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }

    /// Returns whether the fragment has no sample.
    pub const fn is_empty(&self) -> bool {
        self.to <= self.from
    }

    /// Returns the ack to send once the batch is committed.
    pub const fn ack(&self) -> Ack {
        Ack { lease: self.grant.lease, offset: self.to }
    }

    /// Returns the indices of the fragment's samples in the data set, in the order of training.
    ///
    /// # Panics
    /// If the fragment reaches beyond its shard.
    pub fn samples(&self) -> impl Iterator<Item = u64> + use<> {
        let (grant, order) = (self.grant, self.grant.order());
        (self.from..self.to).map(move |offset| grant.sample(order.as_ref(), offset))
    }

    /// Returns whether the sample with this index in the data set is in the fragment.
    pub fn contains(&self, sample: u64) -> bool {
        let Some(place) = sample.checked_sub(self.grant.start).filter(|place| *place < self.grant.len) else {
            return false;
        };
        let offset = self.grant.order().map_or(place, |order| order.position_of(place));
        (self.from..self.to).contains(&offset)
    }
}

/// Number of samples in each state. Always `acked + todo + doing + quarantined == total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counts {
    /// Number of samples in all epochs of a finite job: samples of the data set times epochs. With infinite
    /// epochs, the samples of the opened epochs.
    pub total: u64,
    /// Samples that are acknowledged.
    pub acked: u64,
    /// Samples that wait for a worker, those of unopened epochs included.
    pub todo: u64,
    /// Samples that are leased and not yet acknowledged.
    pub doing: u64,
    /// Samples that were given up after too many data faults.
    pub quarantined: u64,
}

impl Counts {
    /// Returns whether the states add up to the total.
    pub const fn balance(&self) -> bool {
        self.acked + self.todo + self.doing + self.quarantined == self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fragment_contains_exactly_its_samples() {
        let lease = LeaseId { generation: Generation(1), sequence: 1 };
        let key = ShardKey { epoch: Epoch(0), index: 0 };
        for seed in [None, Some(Seed(7))] {
            let grant = Grant { lease, key, start: 100, len: 40, resume_at: 0, seed };
            let fragment = Fragment { grant, from: 5, to: 17 };
            let samples: Vec<u64> = fragment.samples().collect();
            assert_eq!(samples.len() as u64, fragment.len());
            for sample in 90..150 {
                assert_eq!(fragment.contains(sample), samples.contains(&sample), "{sample} {seed:?}");
            }
        }
    }
}
