//! The virtual clock: what is due, in order of time.
//!
//! What is due at the same moment comes out in the order in which it went in, so that one seed gives one history.
//!
//! Time never goes back, which makes this cheaper than a heap: what is due lies in buckets by the highest digit, to base
//! 64, in which its time differs from the clock's, and by the value of that digit. When the clock comes to a bucket, what
//! is in it moves on to lower digits, in order. A thing moves as many times as it has digits that tell it from others,
//! and each move is a copy to the end of a list, wherever a heap would walk through memory. A bucket of which all is due
//! at one moment, as all answers to one walk over the workers are, does not move at all: its list is what is due.
//!
//! Source: the radix heap of Ahuja, Mehlhorn, Orlin and Tarjan, 1990 (recalled), with 64 buckets a digit.

use std::collections::VecDeque;

use antdt_core::JobTime;

/// Bits of a digit.
const DIGIT: u32 = 6;

/// Values of a digit.
const VALUES: usize = 1 << DIGIT;

/// Digits of a time.
const LEVELS: usize = u64::BITS.div_ceil(DIGIT) as usize;

/// Things that are due, earliest first.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// When the thing was due that came out last.
    now: JobTime,
    /// What is due now.
    due: VecDeque<(JobTime, T)>,
    /// By level: which buckets hold something.
    used: [u64; LEVELS],
    /// By level and value.
    buckets: Vec<Bucket<T>>,
    /// Emptied lists. The one that was used last is used first, for it is in the processor's cache.
    spare: Vec<Vec<(JobTime, T)>>,
}

/// Things whose times have the same digit at the same level.
#[derive(Debug)]
struct Bucket<T> {
    /// When the first and the last of them is due, if there is any.
    first: JobTime,
    last: JobTime,
    /// In the order in which they went in.
    list: Vec<(JobTime, T)>,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        let empty = || Bucket { first: JobTime::NEVER, last: JobTime::ZERO, list: Vec::new() };
        let buckets = std::iter::repeat_with(empty).take(LEVELS * VALUES).collect();
        Self { now: JobTime::ZERO, due: VecDeque::new(), used: [0; LEVELS], buckets, spare: Vec::new() }
    }

    /// Puts a thing in; it is due now if its time has passed.
    pub(crate) fn push(&mut self, at: JobTime, what: T) {
        if at <= self.now {
            self.due.push_back((at, what));
            return;
        }
        let level = ((u64::BITS - 1 - (at.0 ^ self.now.0).leading_zeros()) / DIGIT) as usize;
        let value = (at.0 >> (DIGIT as usize * level)) as usize % VALUES;
        let bucket = &mut self.buckets[level * VALUES + value];
        if self.used[level] & 1 << value == 0 {
            self.used[level] |= 1 << value;
            let list = self.spare.pop().unwrap_or_default();
            *bucket = Bucket { first: at, last: at, list };
        }
        (bucket.first, bucket.last) = (bucket.first.min(at), bucket.last.max(at));
        bucket.list.push((at, what));
    }

    pub(crate) fn pop(&mut self) -> Option<(JobTime, T)> {
        if let Some((_, what)) = self.due.pop_front() {
            return Some((self.now, what));
        }
        let level = self.used.iter().position(|used| *used != 0)?;
        let value = self.used[level].trailing_zeros() as usize;
        self.used[level] &= !(1 << value);
        let Bucket { first, last, list } = &mut self.buckets[level * VALUES + value];
        let (first, last, mut list) = (*first, *last, std::mem::take(list));
        self.now = first;
        if list.len() == 1 {
            let alone = list.pop();
            self.spare.push(list);
            return alone;
        }
        if first == last {
            list = std::mem::replace(&mut self.due, list.into()).into();
        } else {
            // Nothing comes back into this bucket: its times have the digit of the new time there.
            list.drain(..).for_each(|(at, what)| self.push(at, what));
        }
        self.spare.push(list);
        self.due.pop_front().map(|(_, what)| (self.now, what))
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_earliest_entry_comes_first_and_of_equals_the_one_added_first() {
        let mut queue = Queue::new();
        for (at, what) in [(5, 'd'), (1, 'a'), (5, 'e'), (1, 'b'), (3, 'c')] {
            queue.push(JobTime(at), what);
        }
        let out: Vec<(u64, char)> =
            std::iter::from_fn(|| queue.pop()).map(|(at, what)| (at.0, what)).collect();
        assert_eq!(out, [(1, 'a'), (1, 'b'), (3, 'c'), (5, 'd'), (5, 'e')]);
    }

    #[test]
    fn equals_that_move_on_to_a_lower_digit_keep_their_order() {
        let mut queue = Queue::new();
        // All in one bucket of the second digit, until the clock comes to it.
        for (at, what) in [(70, 'b'), (65, 'a'), (70, 'c'), (70, 'd')] {
            queue.push(JobTime(at), what);
        }
        let out: String = std::iter::from_fn(|| queue.pop()).map(|(_, what)| what).collect();
        assert_eq!(out, "abcd");
    }

    #[test]
    fn the_last_moment_of_all_is_a_time_like_others() {
        let mut queue = Queue::new();
        queue.push(JobTime::NEVER, 'b');
        queue.push(JobTime(1), 'a');
        assert_eq!(queue.pop(), Some((JobTime(1), 'a')));
        assert_eq!(queue.pop(), Some((JobTime::NEVER, 'b')));
        assert_eq!(queue.pop(), None);
    }

    proptest! {
        /// Against a heap with running numbers; of what is put in, some is due at once, some soon, some late.
        #[test]
        fn the_queue_gives_the_order_of_a_heap(moves in prop::collection::vec((0_u32..44, 0_u64..64, 0_usize..3), 1..400)) {
            let (mut queue, mut heap) = (Queue::new(), BinaryHeap::new());
            let (mut now, mut number) = (0, 0_u32);
            for (scale, size, pops) in moves {
                number += 1;
                let at = now + (size << scale) / 64;
                queue.push(JobTime(at), number);
                heap.push(Reverse((at, number)));
                for _ in 0..pops {
                    let expected = heap.pop().map(|Reverse((at, number))| (JobTime(at), number));
                    prop_assert_eq!(queue.pop(), expected);
                    now = expected.map_or(now, |(at, _)| at.0);
                }
            }
            while let Some(Reverse((at, number))) = heap.pop() {
                prop_assert_eq!(queue.pop(), Some((JobTime(at), number)));
            }
            prop_assert!(queue.pop().is_none());
        }
    }
}
