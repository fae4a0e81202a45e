//! [`NearQueue`]: a queue that stores its first two entries in itself.

use std::collections::{VecDeque, vec_deque};
use std::iter::{Chain, Flatten};

/// A queue that stores its first two entries in itself, and allocates memory only for further ones.
///
/// It is meant for tables with one queue for each of thousands of workers, where each is far from everything
/// else in memory. Mostly only the front of a queue is of interest, and reading it should touch one place in
/// memory.
///
/// Operations on the first two entries are O(1); removing another one of n is O(n).
///
/// ```
/// use antdt_core::NearQueue;
///
/// let mut queue: NearQueue<u32> = [3, 4, 8, 9].into_iter().collect();
/// assert_eq!(queue.place_of_key(&8, |value| *value), Some(2));
/// assert_eq!((queue.remove(0), queue.get(1), queue.len()), (Some(3), Some(&8), 3));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearQueue<T> {
    /// The first two; the second only if there is a first.
    near: [Option<T>; 2],
    /// Empty unless there are two before it.
    rest: VecDeque<T>,
}

impl<T> NearQueue<T> {
    /// Returns an empty queue.
    pub const fn new() -> Self {
        Self { near: [None, None], rest: VecDeque::new() }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.near.iter().flatten().count() + self.rest.len()
    }

    /// Returns whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.near[0].is_none()
    }

    /// Returns the entry at a place, counted from 0; `None` beyond the last.
    pub fn get(&self, place: usize) -> Option<&T> {
        match self.near.get(place) {
            Some(entry) => entry.as_ref(),
            None => self.rest.get(place - self.near.len()),
        }
    }

    /// Returns the entry at a place, counted from 0, for changes; `None` beyond the last.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        match place.checked_sub(self.near.len()) {
            None => self.near[place].as_mut(),
            Some(place) => self.rest.get_mut(place),
        }
    }

    /// Appends an entry at the end.
    pub fn push_back(&mut self, value: T) {
        match self.near.iter_mut().find(|entry| entry.is_none()) {
            Some(entry) => *entry = Some(value),
            None => self.rest.push_back(value),
        }
    }

    /// Removes and returns the entry at a place, counted from 0.
    pub fn remove(&mut self, place: usize) -> Option<T> {
        let [first, second] = &mut self.near;
        match place {
            0 => std::mem::replace(first, std::mem::replace(second, self.rest.pop_front())),
            1 => std::mem::replace(second, self.rest.pop_front()),
            _ => self.rest.remove(place - 2),
        }
    }

    /// Returns the place of the entry with this key, in a queue whose keys ascend: O(log n), O(1) for the
    /// first two.
    pub fn place_of_key<K: Ord>(&self, key: &K, key_of: impl Fn(&T) -> K) -> Option<usize> {
        let near = self.near.iter().flatten().position(|entry| key_of(entry) == *key);
        near.or_else(|| Some(self.rest.binary_search_by_key(key, key_of).ok()? + self.near.len()))
    }

    /// Keeps only the entries for which `keep` returns `true`; `keep` may change them. O(n).
    pub fn retain_mut(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        for mut entry in std::mem::take(self) {
            if keep(&mut entry) {
                self.push_back(entry);
            }
        }
    }

    /// Returns all entries, the first one first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.near.iter().flatten().chain(&self.rest)
    }

    /// Returns all entries, the first one first, to change them.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> {
        self.near.iter_mut().flatten().chain(&mut self.rest)
    }
}

impl<T> Default for NearQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> IntoIterator for NearQueue<T> {
    type Item = T;
    type IntoIter = Chain<Flatten<std::array::IntoIter<Option<T>, 2>>, vec_deque::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.near.into_iter().flatten().chain(self.rest)
    }
}

impl<T> FromIterator<T> for NearQueue<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let mut queue = Self::new();
        entries.into_iter().for_each(|entry| queue.push_back(entry));
        queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;

    #[test]
    fn a_near_queue_holds_the_entries_of_a_list_in_the_same_order() {
        let mut rng = Seed(1).rng();
        let (mut queue, mut list) = (NearQueue::new(), Vec::new());
        for value in 0..3000_u64 {
            let place = usize::try_from(rng.below(7)).unwrap();
            match rng.below(9) {
                0..4 => {
                    queue.push_back(value);
                    list.push(value);
                }
                4 if rng.below(9) == 0 => {
                    queue.retain_mut(|value| !value.is_multiple_of(3));
                    list.retain(|value| !value.is_multiple_of(3));
                }
                5 => {
                    queue.iter_mut().for_each(|value| *value += 1);
                    list.iter_mut().for_each(|value| *value += 1);
                }
                _ => {
                    let gone = (place < list.len()).then(|| list.remove(place));
                    assert_eq!(queue.remove(place), gone);
                }
            }
            assert_eq!((queue.len(), queue.is_empty()), (list.len(), list.is_empty()));
            assert_eq!(queue.get(place), list.get(place));
            assert_eq!(queue.get_mut(place).copied(), list.get(place).copied());
            assert!(queue.iter().eq(&list) && queue.iter().rev().eq(list.iter().rev()));
            list.dedup();
            queue = list.iter().copied().collect();
            let key = list.get(place).copied().unwrap_or(value + 5000);
            assert_eq!(queue.place_of_key(&key, |value| *value), list.iter().position(|value| *value == key));
            assert!(queue.clone().into_iter().eq(list.iter().copied()));
        }
    }
}
