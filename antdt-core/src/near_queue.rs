//! [`NearQueue`]: a queue whose first two entries lie in place.

use std::collections::{VecDeque, vec_deque};
use std::iter::{Chain, Flatten};

/// A queue whose first two entries lie where the queue itself lies, and only further ones somewhere else.
///
/// There is one for each worker in tables of thousands of workers, where each is far from everything else in memory.
/// Mostly only its front is of interest, and reading it should touch one place in memory.
///
/// Whatever concerns the first two is O(1); another one of n is removed in O(n).
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
    /// A queue of nothing.
    pub const fn new() -> Self {
        Self { near: [None, None], rest: VecDeque::new() }
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.near.iter().flatten().count() + self.rest.len()
    }

    /// Whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.near[0].is_none()
    }

    /// The entry with so many before it.
    pub fn get(&self, place: usize) -> Option<&T> {
        match self.near.get(place) {
            Some(entry) => entry.as_ref(),
            None => self.rest.get(place - self.near.len()),
        }
    }

    /// The entry with so many before it, to change it.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        match place.checked_sub(self.near.len()) {
            None => self.near[place].as_mut(),
            Some(place) => self.rest.get_mut(place),
        }
    }

    /// Adds an entry behind all others.
    pub fn push_back(&mut self, value: T) {
        match self.near.iter_mut().find(|entry| entry.is_none()) {
            Some(entry) => *entry = Some(value),
            None => self.rest.push_back(value),
        }
    }

    /// Takes the entry out that has so many before it.
    pub fn remove(&mut self, place: usize) -> Option<T> {
        let [first, second] = &mut self.near;
        match place {
            0 => std::mem::replace(first, std::mem::replace(second, self.rest.pop_front())),
            1 => std::mem::replace(second, self.rest.pop_front()),
            _ => self.rest.remove(place - 2),
        }
    }

    /// Where the entry with this key is, in a queue whose keys ascend: O(log n), O(1) for the first two.
    pub fn place_of_key<K: Ord>(&self, key: &K, key_of: impl Fn(&T) -> K) -> Option<usize> {
        let near = self.near.iter().flatten().position(|entry| key_of(entry) == *key);
        near.or_else(|| Some(self.rest.binary_search_by_key(key, key_of).ok()? + self.near.len()))
    }

    /// Keeps the entries that `keep` says `true` to, which may change them; O(n).
    pub fn retain_mut(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        for mut entry in std::mem::take(self) {
            if keep(&mut entry) {
                self.push_back(entry);
            }
        }
    }

    /// All entries, the first one first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.near.iter().flatten().chain(&self.rest)
    }

    /// All entries, the first one first, to change them.
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
    fn it_holds_what_a_list_would_in_the_same_order() {
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
