//! In which order the shards of an epoch are handed out.

use antdt_core::{Permutation, Seed};

/// A permutation of the shards of one epoch, computed and never stored: O(1) memory for any number of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardOrder {
    len: u64,
    permutation: Option<Permutation>,
}

impl ShardOrder {
    pub(crate) fn new(seed: Option<Seed>, len: u64) -> Self {
        Self { len, permutation: seed.map(|seed| Permutation::new(seed, len)) }
    }

    /// Number of shards.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no shard.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Index of the shard at `position`.
    ///
    /// # Panics
    /// If `position` is not below [`len`](Self::len).
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.len, "position {position} is outside an epoch of {} shards", self.len);
        self.permutation.as_ref().map_or(position, |order| order.at(position))
    }

    /// Position of the shard with this index; `None` if there is no such shard. O(shards) when they are shuffled, for
    /// the permutation is computed in one direction only.
    pub(crate) fn position_of(&self, index: u64) -> Option<u64> {
        if self.permutation.is_none() {
            return (index < self.len).then_some(index);
        }
        (0..self.len).find(|position| self.at(*position) == index)
    }
}
