//! The leases of one holder, oldest first.

use antdt_core::NearQueue;

use super::book::Taken;

/// A lease. Whose it is and of which life of the service says where it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lease {
    /// Its number: higher than those of all older ones.
    pub(super) sequence: u64,
    /// Samples that were done when it was granted.
    pub(super) resumed_at: u64,
    pub(super) taken: Taken,
}

/// Its holder trains the oldest two, which lie in place; what concerns them is O(1). Another one of k is found in O(log k) and
/// ended in O(k).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Leases(NearQueue<Lease>);

impl Leases {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Lease> {
        self.0.iter()
    }

    pub(super) fn get(&self, sequence: u64) -> Option<&Lease> {
        self.0.get(self.place(sequence)?)
    }

    pub(super) fn get_mut(&mut self, sequence: u64) -> Option<&mut Lease> {
        let place = self.place(sequence)?;
        self.0.get_mut(place)
    }

    /// Adds one that is newer than all others.
    pub(super) fn push(&mut self, lease: Lease) {
        self.0.push_back(lease);
    }

    /// Ends one.
    pub(super) fn remove(&mut self, sequence: u64) -> Option<Lease> {
        let place = self.place(sequence)?;
        self.0.remove(place)
    }

    fn place(&self, sequence: u64) -> Option<usize> {
        self.0.place_of_key(&sequence, |lease| lease.sequence)
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Epoch, ShardKey};

    use super::super::book::Place;
    use super::super::pass::Begun;
    use super::*;

    fn lease(sequence: u64) -> Lease {
        let place = Place { epoch: Epoch(0), position: sequence };
        let key = ShardKey { epoch: Epoch(0), index: sequence };
        let taken = Taken { share: 0, place, key, len: 10, begun: Begun::default() };
        Lease { sequence, resumed_at: 0, taken }
    }

    #[test]
    fn they_are_kept_in_the_order_of_their_numbers_whichever_ends_first() {
        for ends in [[2, 5, 7, 9], [9, 7, 5, 2], [5, 2, 9, 7], [7, 9, 2, 5]] {
            let mut leases = Leases::default();
            let mut left = vec![2, 5, 7, 9];
            left.iter().for_each(|sequence| leases.push(lease(*sequence)));
            for end in ends {
                assert!(leases.iter().map(|lease| lease.sequence).eq(left.iter().copied()));
                assert!(leases.iter().rev().map(|lease| lease.sequence).eq(left.iter().rev().copied()));
                assert_eq!(leases.len(), left.len());
                for sequence in 0..12 {
                    let found = left.contains(&sequence).then(|| lease(sequence));
                    assert_eq!(leases.get(sequence), found.as_ref());
                    assert_eq!(leases.get_mut(sequence).cloned(), found);
                }
                assert_eq!((leases.remove(end), leases.remove(end)), (Some(lease(end)), None));
                left.retain(|sequence| *sequence != end);
            }
            assert_eq!((leases.len(), leases.iter().next()), (0, None));
        }
    }
}
