//! What is being handed out: shards, leases on them, and fragments of them in a batch.

use std::time::Duration;

use smallvec::SmallVec;

use crate::id::{Epoch, Generation, LeaseId};
use crate::seed::{Permutation, Seed};

/// Samples `start..end` of a data set: end exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SampleRange {
    /// First sample.
    pub start: u64,
    /// One past the last sample.
    pub end: u64,
}

impl SampleRange {
    /// Number of samples.
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it holds no sample.
    pub const fn is_empty(&self) -> bool {
        self.end <= self.start
    }
}

/// Which shard: the `index`-th piece of the data set, in one pass over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ShardKey {
    /// The pass.
    pub epoch: Epoch,
    /// The piece, in the order of the data set.
    pub index: u64,
}

/// When samples count as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Delivery {
    /// Acknowledged after their update was committed: a crash may repeat them.
    #[default]
    AtLeastOnce,
    /// Acknowledged when handed to the trainer: a crash may skip them.
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
    /// The right to train it.
    pub lease: LeaseId,
    /// The shard.
    pub key: ShardKey,
    /// First sample of the shard in the data set.
    pub start: u64,
    /// Samples in the shard.
    pub len: u64,
    /// Samples `0..resume_at` of the permuted order are done already.
    pub resume_at: u64,
    /// Order within the shard; `None` is the order of the data set.
    pub seed: Option<Seed>,
}

impl Grant {
    /// The order of the samples within the shard; build it once per shard, then ask [`sample`](Self::sample).
    pub fn order(&self) -> Option<Permutation> {
        self.seed.map(|seed| Permutation::new(seed, self.len))
    }

    /// The number, in the data set, of the sample at `offset` of this shard.
    ///
    /// # Panics
    /// If `offset` is not below `len`.
    pub fn sample(&self, order: Option<&Permutation>, offset: u64) -> u64 {
        assert!(offset < self.len, "offset {offset} is outside a shard of {}", self.len);
        self.start + order.map_or(offset, |order| order.at(offset))
    }
}

/// What a fetch is answered with. `Wait`, `EndOfData` and an unreachable service are three different things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FetchOutcome {
    /// A shard to train.
    Granted(Grant),
    /// Nothing now, but a peer's shard may still come back or the next epoch may open.
    Wait {
        /// When to ask again at the latest.
        #[cfg_attr(feature = "serde", serde(with = "crate::time::nanoseconds"))]
        retry_after: Duration,
    },
    /// Every sample of every epoch is accounted for. Final within a generation.
    EndOfData,
    /// The holder has as many leases as it may have.
    AtLimit,
}

/// Samples `0..offset` (permuted order) of a leased shard are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Ack {
    /// The lease they were trained under.
    pub lease: LeaseId,
    /// One past the last sample that is done.
    pub offset: u64,
}

/// Acks that are said together: one for each lease that a batch takes from, which is mostly one and seldom more than two.
/// So many lie in place, and nothing is allocated for them.
pub type Acks = SmallVec<[Ack; 2]>;

/// One outcome for each of some [`Acks`].
pub type AckOutcomes = SmallVec<[AckOutcome; 16]>;

/// A lease of an earlier generation, as its holder remembers it: what it presents when the service was restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Held {
    /// The lease.
    pub lease: LeaseId,
    /// The shard.
    pub key: ShardKey,
    /// Samples `0..offset` of the permuted order are part of the model.
    pub offset: u64,
}

/// What a registration is answered with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Registered {
    /// The present life of the service.
    pub generation: Generation,
    /// One for each lease that was presented, in order: the lease that takes its place, or `None` if it is void and
    /// what was not acknowledged of it may be trained by another worker.
    pub adopted: Vec<Option<Grant>>,
}

/// What a call that acknowledges and asks for more at once is answered with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Exchanged {
    /// One for each ack, in order.
    pub outcomes: AckOutcomes,
    /// The answer to the first shard that was asked for; `None` if none was.
    pub fetched: Option<FetchOutcome>,
    /// Further shards, if the first was granted. They can be fewer than were asked for.
    pub more: Vec<Grant>,
    /// Leases that another worker could begin at once: give them back unless a sample of them was handed out. Ignoring
    /// it is safe and makes the tail longer.
    pub recalled: Vec<LeaseId>,
}

impl Exchanged {
    /// Every shard that was granted, in the order in which they should be trained.
    pub fn grants(&self) -> impl Iterator<Item = Grant> {
        let first = match self.fetched {
            Some(FetchOutcome::Granted(grant)) => Some(grant),
            _ => None,
        };
        first.into_iter().chain(self.more.iter().copied())
    }
}

/// What an ack was answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AckOutcome {
    /// Counted.
    Accepted,
    /// The lease ended: the holder must drop it and not count the samples.
    StaleLease,
}

/// A piece of one leased shard inside a batch: offsets `from..to` of the permuted order.
///
/// It names its samples by the grant, and computes their numbers only when they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Fragment {
    /// The lease, as it was granted.
    pub grant: Grant,
    /// First offset, inclusive.
    pub from: u64,
    /// Last offset, exclusive.
    pub to: u64,
}

impl Fragment {
    /// Number of samples.
    pub const fn len(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }

    /// Whether it holds no sample.
    pub const fn is_empty(&self) -> bool {
        self.to <= self.from
    }

    /// The ack that is due once the batch is committed.
    pub const fn ack(&self) -> Ack {
        Ack { lease: self.grant.lease, offset: self.to }
    }

    /// Numbers of its samples in the data set, in the order of training.
    ///
    /// # Panics
    /// If it reaches beyond its shard.
    pub fn samples(&self) -> impl Iterator<Item = u64> + use<> {
        let (grant, order) = (self.grant, self.grant.order());
        (self.from..self.to).map(move |offset| grant.sample(order.as_ref(), offset))
    }

    /// Whether this sample of the data set is one of its own.
    pub fn contains(&self, sample: u64) -> bool {
        let Some(place) = sample.checked_sub(self.grant.start).filter(|place| *place < self.grant.len) else {
            return false;
        };
        let offset = self.grant.order().map_or(place, |order| order.position_of(place));
        (self.from..self.to).contains(&offset)
    }
}

/// Sample accounting. In every state `acked + todo + doing + quarantined == total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counts {
    /// Samples of all epochs of a finite job: rows times epochs. Of the opened epochs when there is no end.
    pub total: u64,
    /// Committed.
    pub acked: u64,
    /// Waiting for a holder, unopened epochs included.
    pub todo: u64,
    /// Leased and not yet acknowledged.
    pub doing: u64,
    /// Given up after too many data faults.
    pub quarantined: u64,
}

impl Counts {
    /// Whether the identity holds.
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
