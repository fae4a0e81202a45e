//! A part of a range set: the unit that copies of the set share until one of them changes it.

use std::collections::VecDeque;
use std::iter;
use std::sync::Arc;

use super::bits::{Bits, WINDOW};

/// Runs of a chunk at which it is cut in two or becomes bits: as runs it takes as much memory as a window as bits.
pub(super) const RUNS_MAX: usize = 512;
/// Runs of a chunk below which bits become runs again, and runs are put to their neighbours: far enough from
/// `RUNS_MAX` that one position that comes and goes cannot cause either each time.
pub(super) const RUNS_MIN: usize = RUNS_MAX / 4;

/// The numbers from `start` on: those of one window if they are bits, and all up to the next chunk if they are runs.
#[derive(Clone)]
pub(super) struct Chunk {
    /// A multiple of [`WINDOW`].
    pub(super) start: u64,
    pub(super) form: Form,
}

#[derive(Clone)]
pub(super) enum Form {
    /// Start and end (exclusive) of runs that ascend and do not touch.
    Runs(Arc<VecDeque<(u64, u64)>>),
    /// Distances from the start of the chunk.
    Bits(Arc<Bits>),
}

/// The start of the window in which a number lies.
pub(super) const fn window(number: u64) -> u64 {
    number - number % WINDOW
}

/// The run that holds the number, or the first one behind it.
fn seek(runs: &VecDeque<(u64, u64)>, number: u64) -> usize {
    runs.partition_point(|(_, end)| *end <= number)
}

impl Chunk {
    pub(super) fn of(start: u64, runs: VecDeque<(u64, u64)>) -> Self {
        Self { start, form: Form::Runs(Arc::new(runs)) }
    }

    /// Whether a number that is not below `start`, and below the start of the next chunk, is this chunk's to hold.
    pub(super) fn covers(&self, number: u64) -> bool {
        match self.form {
            Form::Runs(_) => true,
            Form::Bits(_) => number - self.start < WINDOW,
        }
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        match &self.form {
            Form::Runs(runs) => runs.get(seek(runs, number)).is_some_and(|(start, _)| *start <= number),
            Form::Bits(bits) => bits.contains(number - self.start),
        }
    }

    /// The first number, of a chunk that has one.
    pub(super) fn first(&self) -> Option<u64> {
        match &self.form {
            Form::Runs(runs) => runs.front().map(|(start, _)| *start),
            Form::Bits(bits) => Some(self.start + bits.first()),
        }
    }

    /// The number behind the last one.
    pub(super) fn end(&self) -> Option<u64> {
        match &self.form {
            Form::Runs(runs) => runs.back().map(|(_, end)| *end),
            Form::Bits(bits) => Some(self.start + bits.end()),
        }
    }

    /// Start and end (exclusive) of each run, ascending.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut next = 0;
        iter::from_fn(move || match &self.form {
            Form::Runs(runs) => {
                let run = runs.get(next as usize).copied();
                next += 1;
                run
            }
            Form::Bits(bits) => {
                let (start, end) = bits.run_from(next)?;
                next = end;
                Some((self.start + start, self.start + end))
            }
        })
    }

    /// Takes the first number out, of a chunk that has one.
    pub(super) fn pop_first(&mut self) -> Option<u64> {
        match &mut self.form {
            Form::Runs(runs) => {
                let runs = Arc::make_mut(runs);
                let (start, end) = runs.front_mut()?;
                let first = *start;
                *start += 1;
                if *start == *end {
                    runs.pop_front();
                }
                Some(first)
            }
            Form::Bits(bits) => {
                let bits = Arc::make_mut(bits);
                let first = bits.first();
                bits.remove(first);
                Some(self.start + first)
            }
        }
    }

    /// Takes a number out; `false`, and nothing is copied, if it was not there.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        match &mut self.form {
            Form::Runs(runs) => {
                let at = seek(runs, number);
                let Some((start, end)) = runs.get(at).copied().filter(|(start, _)| *start <= number) else {
                    return false;
                };
                let runs = Arc::make_mut(runs);
                match (start == number, end == number + 1) {
                    (true, true) => drop(runs.remove(at)),
                    (true, false) => runs[at].0 = number + 1,
                    (false, true) => runs[at].1 = number,
                    (false, false) => {
                        runs[at].1 = number;
                        runs.insert(at + 1, (number + 1, end));
                    }
                }
            }
            Form::Bits(bits) => {
                if !bits.contains(number - self.start) {
                    return false;
                }
                Arc::make_mut(bits).remove(number - self.start);
            }
        }
        true
    }

    /// Puts a number in that is not there.
    pub(super) fn insert(&mut self, number: u64) {
        match &mut self.form {
            Form::Runs(runs) => {
                let at = seek(runs, number);
                let runs = Arc::make_mut(runs);
                let joins_before = at > 0 && runs[at - 1].1 == number;
                let joins_behind = runs.get(at).is_some_and(|(start, _)| *start == number + 1);
                match (joins_before, joins_behind) {
                    (true, true) => {
                        runs[at].0 = runs[at - 1].0;
                        runs.remove(at - 1);
                    }
                    (true, false) => runs[at - 1].1 = number + 1,
                    (false, true) => runs[at].0 = number,
                    (false, false) => runs.insert(at, (number, number + 1)),
                }
            }
            Form::Bits(bits) => Arc::make_mut(bits).insert(number - self.start),
        }
    }

    /// Puts a run behind all others, as much of it as this chunk covers, and says where that ends.
    pub(super) fn push(&mut self, start: u64, end: u64) -> u64 {
        match &mut self.form {
            Form::Runs(runs) => {
                Arc::make_mut(runs).push_back((start, end));
                end
            }
            Form::Bits(bits) => {
                let start = start - self.start;
                // Compared as distances, for the last window of all ends behind the last number.
                let len = (end - self.start).min(WINDOW);
                Arc::make_mut(bits).fill(start, len);
                self.start + len
            }
        }
    }

    /// Bytes it holds, for tests.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let counts = 2 * size_of::<usize>();
        counts
            + match &self.form {
                Form::Runs(runs) => {
                    size_of::<VecDeque<(u64, u64)>>() + runs.capacity() * size_of::<(u64, u64)>()
                }
                Form::Bits(_) => size_of::<Bits>(),
            }
    }
}
