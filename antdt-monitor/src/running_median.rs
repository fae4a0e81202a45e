//! [`RunningMedian`]: the median of the newest values, without looking at all of them.

use std::collections::VecDeque;

/// The newest values, up to so many, and their lower median.
///
/// They are kept in the order of their age and in ascending order, so a new value costs two binary searches and one move
/// of memory, and the median nothing. To select it anew is O(n) with each question, and goes through all of a window that
/// lies far from everything else in memory, as with thousands of nodes each does.
#[derive(Debug, Clone)]
pub(crate) struct RunningMedian<T> {
    most: usize,
    /// Oldest first.
    by_age: VecDeque<T>,
    /// The same values, ascending.
    by_size: Vec<T>,
}

impl<T: Ord + Copy> RunningMedian<T> {
    /// Of nothing yet, and of `most` values at most.
    pub(crate) const fn new(most: usize) -> Self {
        Self { most, by_age: VecDeque::new(), by_size: Vec::new() }
    }

    /// Takes a value in; the oldest of a full window goes.
    pub(crate) fn push(&mut self, value: T) {
        let full = self.by_age.len() >= self.most;
        let oldest = if full { self.by_age.pop_front() } else { None };
        let to = self.by_size.partition_point(|other| *other <= value);
        if let Some(oldest) = oldest {
            // Only what lies between the two places moves.
            let from = self.by_size.partition_point(|other| *other < oldest);
            if from < to {
                self.by_size.copy_within(from + 1..to, from);
                self.by_size[to - 1] = value;
            } else {
                self.by_size.copy_within(to..from, to + 1);
                self.by_size[to] = value;
            }
        } else {
            let len = self.by_size.len();
            if len == self.by_size.capacity() {
                // Doubled as usual, but never beyond what is needed: there is one for each node.
                let more = len.max(4).min(self.most - len);
                self.by_size.reserve_exact(more);
                self.by_age.reserve_exact(more);
            }
            self.by_size.insert(to, value);
        }
        self.by_age.push_back(value);
    }

    /// Number of values.
    pub(crate) const fn len(&self) -> usize {
        self.by_size.len()
    }

    /// The values in ascending order.
    pub(crate) fn ascending(&self) -> &[T] {
        &self.by_size
    }

    /// The values, the newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &T> {
        self.by_age.iter().rev()
    }

    /// Drops all but the newest values.
    pub(crate) fn keep_newest(&mut self, count: usize) {
        self.by_age.drain(..self.by_age.len().saturating_sub(count));
        self.by_size.clear();
        self.by_size.extend(&self.by_age);
        self.by_size.sort_unstable();
    }

    /// The [lower median](crate::stats::lower_median); `None` of nothing.
    pub(crate) fn get(&self) -> Option<T> {
        let middle = self.by_size.len().checked_sub(1)? / 2;
        self.by_size.get(middle).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::stats::lower_median;

    proptest! {
        #[test]
        fn it_is_the_median_of_the_newest_values(
            most in 1_usize..12,
            values in proptest::collection::vec(0_u8..10, 0..60),
        ) {
            let mut running = RunningMedian::new(most);
            let mut newest = VecDeque::new();
            prop_assert_eq!(running.get(), None);
            for value in values {
                running.push(value);
                newest.push_back(value);
                if newest.len() > most {
                    newest.pop_front();
                }
                let mut all: Vec<u8> = newest.iter().copied().collect();
                prop_assert_eq!(running.get(), lower_median(&mut all));
                all.sort_unstable();
                prop_assert_eq!(&running.by_size, &all);
                prop_assert!(running.by_size.capacity() <= most, "no more memory than it needs");
            }
        }
    }
}
