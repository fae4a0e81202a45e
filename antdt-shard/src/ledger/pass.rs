//! One share's pass over one epoch: which shards wait, and which are leased.

use std::collections::BTreeMap;

use antdt_core::{Epoch, Seed, ShardKey};

use super::ranges::RangeSet;
use crate::order::ShardOrder;
use crate::spec::{Cut, DatasetSpec};

/// Progress of an unfinished shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Begun {
    /// Samples `0..offset` of its permuted order are done.
    pub(crate) offset: u64,
    /// Data faults it has had.
    pub(crate) faults: u32,
}

/// The state of the shards at some positions of an epoch's order.
///
/// A position is in exactly one of: `untouched` or `begun` (TODO), a lease (DOING, counted in `doing`), the
/// ledger's list of quarantined shards, or none of these, which is DONE. What is done is never stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pass {
    epoch: Epoch,
    order: ShardOrder,
    samples: Option<Seed>,
    /// Where the last shard stands, if it is the only one that can differ in length from the first.
    last: Option<u64>,
    pub(super) untouched: RangeSet,
    pub(super) begun: BTreeMap<u64, Begun>,
    doing: u64,
}

impl Pass {
    pub(crate) fn open(spec: &DatasetSpec, epoch: Epoch, start: u64, end: u64) -> Self {
        Self::resume(spec, epoch, RangeSet::of(start, end), BTreeMap::new())
    }

    /// A pass of which only these shards are left.
    pub(super) fn resume(
        spec: &DatasetSpec,
        epoch: Epoch,
        untouched: RangeSet,
        begun: BTreeMap<u64, Begun>,
    ) -> Self {
        let order = spec.shard_order(epoch);
        let last = match spec.cut {
            Cut::Every(_) => order.position_of(order.len() - 1),
            Cut::At(_) => None,
        };
        Self { epoch, order, last, samples: spec.epoch_sample_seed(epoch), untouched, begun, doing: 0 }
    }

    pub(crate) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(crate) fn key(&self, position: u64) -> ShardKey {
        ShardKey { epoch: self.epoch, index: self.order.at(position) }
    }

    /// Samples of the shard at `position`: nearly always without computing which shard it is, which would be most of the
    /// cost of reading a log.
    pub(crate) fn len_at(&self, spec: &DatasetSpec, position: u64) -> u64 {
        let as_the_first = self.last.is_some_and(|last| last != position);
        spec.shard(if as_the_first { 0 } else { self.order.at(position) }).len()
    }

    pub(crate) fn sample_seed(&self, key: ShardKey) -> Option<Seed> {
        self.samples.map(|seed| seed.derive_number(key.index))
    }

    /// Position, in the order, of the shard with this index; `None` if there is no such shard.
    pub(crate) fn position_of(&self, index: u64) -> Option<u64> {
        self.order.position_of(index)
    }

    /// Shards that wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.untouched.len() + self.begun.len() as u64
    }

    pub(crate) fn has_todo(&self) -> bool {
        !self.untouched.is_empty() || !self.begun.is_empty()
    }

    /// Whether every shard reached its end.
    pub(crate) fn is_closed(&self) -> bool {
        self.doing == 0 && !self.has_todo()
    }

    /// Takes the waiting shard that comes first in the epoch's order. One that came back is thus in front of all
    /// that no worker has had yet: the epoch closes sooner, and no shard goes stale.
    pub(crate) fn take_first(&mut self) -> Option<(u64, Begun)> {
        let begun = self.begun.first_key_value().map(|(position, _)| *position);
        let taken = match (self.untouched.first(), begun) {
            (Some(fresh), Some(begun)) if fresh > begun => self.begun.pop_first(),
            (Some(_), _) => self.untouched.pop_first().map(|position| (position, Begun::default())),
            (None, _) => self.begun.pop_first(),
        }?;
        self.doing += 1;
        Some(taken)
    }

    /// Takes the shard at `position` if it waits.
    pub(crate) fn take(&mut self, position: u64) -> Option<Begun> {
        let begun = self.begun.remove(&position);
        let taken = begun.or_else(|| self.untouched.remove(position).then(Begun::default))?;
        self.doing += 1;
        Some(taken)
    }

    /// A shard that was taken waits again.
    pub(crate) fn put_back(&mut self, position: u64, begun: Begun) {
        self.doing -= 1;
        if begun == Begun::default() {
            self.untouched.insert(position);
        } else {
            self.begun.insert(position, begun);
        }
    }

    /// A shard that was taken is done or given up.
    pub(crate) fn end(&mut self) {
        self.doing -= 1;
    }

    /// Every waiting shard; O(waiting shards) to go through.
    pub(crate) fn todo(&self) -> impl Iterator<Item = (u64, Begun)> {
        let fresh = self.untouched.runs().flat_map(|(start, end)| start..end);
        fresh.map(|position| (position, Begun::default())).chain(self.begun.iter().map(|(p, b)| (*p, *b)))
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.untouched.run_count() + self.begun.len()
    }
}
