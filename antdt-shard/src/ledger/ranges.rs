//! A set of positions, run-length coded.

use std::collections::BTreeMap;

/// Numbers in disjoint runs that do not touch. O(runs) memory, O(log runs) for each call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RangeSet {
    // End (exclusive) to start (inclusive): taking the first number changes a value, not a key.
    runs: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// The numbers `start..end`.
    pub(crate) fn of(start: u64, end: u64) -> Self {
        Self { runs: if start < end { BTreeMap::from([(end, start)]) } else { BTreeMap::new() } }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Start and end (exclusive) of each run, ascending.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.runs.iter().map(|(end, start)| (*start, *end))
    }

    /// Whether the number is in the set.
    pub(crate) fn contains(&self, number: u64) -> bool {
        let run = number.checked_add(1).and_then(|next| self.runs.range(next..).next());
        run.is_some_and(|(_, start)| *start <= number)
    }

    /// Adds a run behind all others; `false`, and nothing is changed, if it is empty or touches or precedes one.
    pub(crate) fn push(&mut self, start: u64, end: u64) -> bool {
        let free = self.runs.last_key_value().is_none_or(|(last, _)| *last < start);
        let fits = free && start < end;
        if fits {
            self.runs.insert(end, start);
        }
        fits
    }

    /// Number of runs.
    pub(crate) fn run_count(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn first(&self) -> Option<u64> {
        self.runs.first_key_value().map(|(_, start)| *start)
    }

    pub(crate) fn pop_first(&mut self) -> Option<u64> {
        let mut run = self.runs.first_entry()?;
        let first = *run.get();
        if first + 1 == *run.key() {
            run.remove();
        } else {
            *run.get_mut() = first + 1;
        }
        Some(first)
    }

    /// Takes a number out; `false` if it was not there.
    pub(crate) fn remove(&mut self, number: u64) -> bool {
        // The first run that ends after the number is the only one that can hold it.
        let Some((end, start)) = self.runs.range(number.saturating_add(1)..).next().map(|(e, s)| (*e, *s))
        else {
            return false;
        };
        if start > number {
            return false;
        }
        if number + 1 == end {
            self.runs.remove(&end);
        } else {
            self.runs.insert(end, number + 1);
        }
        if start < number {
            self.runs.insert(number, start);
        }
        true
    }

    /// Puts a number in that is not there.
    pub(crate) fn insert(&mut self, number: u64) {
        let start = self.runs.remove(&number).unwrap_or(number);
        let next = self.runs.range(number + 1..).next().map(|(end, start)| (*end, *start));
        match next {
            Some((end, next_start)) if next_start == number + 1 => self.runs.insert(end, start),
            _ => self.runs.insert(number + 1, start),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use antdt_core::Seed;

    use super::*;

    #[test]
    fn a_range_set_is_a_set() {
        let mut rng = Seed(1).rng();
        for len in 1..40 {
            let mut set = RangeSet::of(0, len);
            let mut naive: BTreeSet<u64> = (0..len).collect();
            for _ in 0..400 {
                let number = rng.below(len);
                if rng.below(8) == 0 {
                    assert_eq!(set.pop_first(), naive.pop_first());
                } else if naive.contains(&number) {
                    assert!(set.remove(number));
                    assert!(!set.remove(number));
                    naive.remove(&number);
                } else {
                    assert!(!set.remove(number));
                    set.insert(number);
                    naive.insert(number);
                }
                assert_eq!(set.first(), naive.first().copied());
                assert_eq!(set.is_empty(), naive.is_empty());
                assert!((0..=len).all(|n| set.contains(n) == naive.contains(&n)));
                let mut rebuilt = RangeSet::default();
                assert!(set.runs().all(|(start, end)| rebuilt.push(start, end)));
                assert_eq!(rebuilt, set);
                let spelt: Vec<u64> = set.runs().flat_map(|(start, end)| start..end).collect();
                assert_eq!(spelt, naive.iter().copied().collect::<Vec<_>>());
                let runs: Vec<(u64, u64)> = set.runs().collect();
                assert_eq!(runs.len(), set.run_count());
                if let Some((start, end)) = runs.last() {
                    assert!(
                        !rebuilt.push(*start, *end) && !rebuilt.push(*end, *end + 1),
                        "it touches the last"
                    );
                    assert!(!rebuilt.push(*end + 1, *end + 1), "it is empty");
                }
                assert!(runs.windows(2).all(|w| w[0].1 < w[1].0), "runs touch: {runs:?}");
            }
        }
    }
}
