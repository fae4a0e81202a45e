//! The order in which the shards of an epoch are handed out.

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

    /// Returns the number of shards in the epoch.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the epoch has no shard.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the index, in the data set, of the shard that is handed out at `position`.
    ///
    /// # Panics
    /// If `position` is not below [`len`](Self::len).
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.len, "position {position} is outside an epoch of {} shards", self.len);
        self.permutation.as_ref().map_or(position, |order| order.at(position))
    }

    /// Position of the shard with this index; `None` if there is no such shard.
    pub(crate) fn position_of(&self, index: u64) -> Option<u64> {
        let position = || self.permutation.as_ref().map_or(index, |order| order.position_of(index));
        (index < self.len).then(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_is_found_at_its_position_and_no_other_is() {
        for (seed, len) in [(None, 10), (Some(Seed(1)), 1), (Some(Seed(2)), 1_000)] {
            let order = ShardOrder::new(seed, len);
            assert!((0..len).all(|position| order.position_of(order.at(position)) == Some(position)));
            assert_eq!((order.position_of(len), order.position_of(u64::MAX)), (None, None));
        }
    }

    #[test]
    fn a_shard_of_a_large_epoch_is_found_without_a_search() {
        let order = ShardOrder::new(Some(Seed(3)), 10_u64.pow(15));
        assert_eq!(order.position_of(order.at(123_456_789)), Some(123_456_789));
    }
}
