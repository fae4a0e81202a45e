//! A set of positions: small whatever is in it, and cheap to copy.
//!
//! The set is cut into chunks, in order. Where there are few holes a chunk is a list of runs, of any length; where there
//! are many it is a bitmap of one window of positions. Copies of the set share their chunks, and a copy that changes a chunk
//! that is shared copies that one first. So a snapshot of an epoch that is full of holes costs its owner one count for
//! each chunk, and not a walk over the holes.
//!
//! Cost, with h holes among n positions: memory is at most about 40 bytes for each hole and at most about a bit for each
//! position, whichever is less; no hole is one run, for any n. Every call is O(log h) and moves at most 8 KiB. A copy is
//! O(chunks), and a chunk is some hundred holes, or 2¹⁶ positions. Measured (`benches/ledger.rs`): 10⁷ holes anywhere
//! in 10⁸ positions are 17 MiB, copied in about 50 µs; as a `BTreeMap` of runs they were 250 MiB and 570 ms.
//!
//! Rejected: a `BTreeMap` of runs, which copies every hole; a tree of shared nodes down to the bits, which copies in
//! O(1) but pays for a path of nodes with every lone hole of a large epoch; fixed windows, for the same reason.
//!
//! Source: our design; the two forms of a chunk are those of Roaring bitmaps (recalled), the windows are not fixed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::{fmt, iter};

use self::bits::{Bits, WINDOW};
use self::chunk::{Chunk, Form, RUNS_MAX, RUNS_MIN, window};

mod bits;
mod chunk;

/// Numbers below `u64::MAX`, in runs that do not touch.
#[derive(Clone, Default)]
pub(crate) struct RangeSet {
    len: u64,
    run_count: usize,
    // Ascending, none empty. Each window is in one chunk. Runs of two chunks may touch.
    chunks: VecDeque<Chunk>,
}

impl RangeSet {
    /// The numbers `start..end`.
    pub(crate) fn of(start: u64, end: u64) -> Self {
        let mut set = Self::default();
        set.push(start, end);
        set
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many numbers are in the set.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Number of runs.
    pub(crate) const fn run_count(&self) -> usize {
        self.run_count
    }

    /// Start and end (exclusive) of each run, ascending.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut parts = self.chunks.iter().flat_map(Chunk::runs).peekable();
        iter::from_fn(move || {
            let (start, mut end) = parts.next()?;
            while let Some((_, further)) = parts.next_if(|(next, _)| *next == end) {
                end = further;
            }
            Some((start, end))
        })
    }

    /// Whether the number is in the set.
    pub(crate) fn contains(&self, number: u64) -> bool {
        self.home(number).is_some_and(|index| self.chunks[index].contains(number))
    }

    pub(crate) fn first(&self) -> Option<u64> {
        self.chunks.front()?.first()
    }

    /// Adds a run behind all others; `false`, and nothing is changed, if it is empty or touches or precedes one.
    pub(crate) fn push(&mut self, start: u64, end: u64) -> bool {
        let last = self.chunks.back().and_then(Chunk::end);
        if start >= end || last.is_some_and(|last| last >= start) {
            return false;
        }
        self.len += end - start;
        self.run_count += 1;
        let mut from = start;
        while from < end {
            let index = self.home_or_new(from);
            from = self.chunks[index].push(from, end);
            self.settle(index);
        }
        true
    }

    pub(crate) fn pop_first(&mut self) -> Option<u64> {
        let first = self.chunks.front_mut()?.pop_first()?;
        self.settle(0);
        self.len -= 1;
        if self.first() != Some(first + 1) {
            self.run_count -= 1;
        }
        Some(first)
    }

    /// Takes a number out; `false` if it was not there.
    pub(crate) fn remove(&mut self, number: u64) -> bool {
        // A log is read again in the order, or nearly, in which its shards were granted: no search is needed then.
        if self.first() == Some(number) {
            return self.pop_first().is_some();
        }
        let Some(index) = self.home(number) else { return false };
        if !self.chunks[index].remove(number) {
            return false;
        }
        self.len -= 1;
        self.run_count = self.run_count + self.neighbours(index, number) - 1;
        self.settle(index);
        true
    }

    /// Puts a number in that is not there.
    pub(crate) fn insert(&mut self, number: u64) {
        debug_assert!(!self.contains(number) && number < u64::MAX, "{number} is there, or is no position");
        let index = self.home_or_new(number);
        self.chunks[index].insert(number);
        self.len += 1;
        self.run_count = self.run_count + 1 - self.neighbours(index, number);
        self.settle(index);
    }

    /// The chunk that covers a number.
    fn home(&self, number: u64) -> Option<usize> {
        let behind = self.chunks.partition_point(|chunk| chunk.start <= number);
        behind.checked_sub(1).filter(|index| self.chunks[*index].covers(number))
    }

    /// As [`home`](Self::home); if there is none, the chunk behind the gap is extended, or an empty one is put there.
    fn home_or_new(&mut self, number: u64) -> usize {
        if let Some(index) = self.home(number) {
            return index;
        }
        let index = self.chunks.partition_point(|chunk| chunk.start <= number);
        match self.chunks.get_mut(index) {
            Some(Chunk { start, form: Form::Runs(_) }) => *start = window(number),
            _ => self.chunks.insert(index, Chunk::of(window(number), VecDeque::new())),
        }
        index
    }

    /// How many of the two numbers beside one in this chunk are there: 0 to 2.
    fn neighbours(&self, index: usize, number: u64) -> usize {
        let holds = |beside: u64| {
            if window(beside) == window(number) {
                self.chunks[index].contains(beside)
            } else {
                self.contains(beside)
            }
        };
        usize::from(number > 0 && holds(number - 1)) + usize::from(holds(number + 1))
    }

    /// Restores the rules of the chunks after a change of one of them.
    fn settle(&mut self, index: usize) {
        let chunk = &mut self.chunks[index];
        match &chunk.form {
            Form::Runs(runs) if runs.is_empty() => drop(self.chunks.remove(index)),
            Form::Runs(runs) if runs.len() >= RUNS_MAX => self.split(index),
            Form::Runs(runs) if runs.len() < RUNS_MIN => self.join(index),
            Form::Bits(bits) if bits.run_count() < RUNS_MIN => {
                *chunk = Chunk::of(chunk.start, chunk.runs().collect());
                self.join(index);
            }
            Form::Runs(_) | Form::Bits(_) => {}
        }
    }

    /// Makes bits of a chunk with many runs if they lie in one window, and cuts it in two otherwise.
    fn split(&mut self, index: usize) {
        let chunk = &mut self.chunks[index];
        let Form::Runs(runs) = &mut chunk.form else { return };
        let (Some((first, _)), Some((_, end))) = (runs.front(), runs.back()) else { return };
        let (low, high) = (window(*first), window(end - 1));
        if low == high {
            let bits = Bits::of(runs.iter().map(|(start, end)| (start - low, end - low)));
            *chunk = Chunk { start: low, form: Form::Bits(Arc::new(bits)) };
            return;
        }
        let middle = window(runs[runs.len() / 2].0);
        let cut = if middle > low { middle } else { low + WINDOW };
        let left = Arc::make_mut(runs);
        let mut right = left.split_off(left.partition_point(|(start, _)| *start < cut));
        if let Some((_, end)) = left.back_mut().filter(|(_, end)| *end > cut) {
            right.push_front((cut, *end));
            *end = cut;
        }
        left.shrink_to_fit();
        self.chunks.insert(index + 1, Chunk::of(cut, right));
        // Together they have too many runs to be joined again; one of them may still have too many for itself.
        self.settle(index + 1);
        self.settle(index);
    }

    /// Puts a chunk of few runs together with its neighbours, as far as these are runs and few too.
    fn join(&mut self, index: usize) {
        for left in [Some(index), index.checked_sub(1)].into_iter().flatten() {
            let Some(Form::Runs(right)) = self.chunks.get(left + 1).map(|chunk| &chunk.form) else {
                continue;
            };
            let right = Arc::clone(right);
            let Form::Runs(left_runs) = &mut self.chunks[left].form else { continue };
            if left_runs.len() + right.len() > RUNS_MAX / 2 {
                continue;
            }
            let runs = Arc::make_mut(left_runs);
            for (start, end) in right.iter().copied() {
                match runs.back_mut() {
                    Some((_, last)) if *last == start => *last = end,
                    _ => runs.push_back((start, end)),
                }
            }
            self.chunks.remove(left + 1);
        }
    }

    /// Bytes it holds, those that it shares with copies included; for tests.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Chunk>() + self.chunks.iter().map(Chunk::bytes).sum::<usize>()
    }
}

/// Sets of the same numbers are equal, however they came to be and whatever their chunks are.
impl PartialEq for RangeSet {
    fn eq(&self, other: &Self) -> bool {
        (self.len, self.run_count) == (other.len, other.run_count) && self.runs().eq(other.runs())
    }
}

impl Eq for RangeSet {}

impl fmt::Debug for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.runs()).finish()
    }
}

#[cfg(test)]
mod tests;
