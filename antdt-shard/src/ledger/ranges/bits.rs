//! A window of positions, one bit each.

/// Positions of a window. What is copied when a window is written for the first time after the set was copied, so a
/// larger one makes copies of the set faster and this pause longer: with 2¹⁶ it is 8 KiB, about a microsecond.
pub(super) const WINDOW: u64 = 1 << 16;
const WORD: usize = u64::BITS as usize;
const WORDS: usize = WINDOW as usize / WORD;

/// A set of numbers below [`WINDOW`].
#[derive(Debug, Clone)]
pub(super) struct Bits {
    run_count: usize,
    // Index of the first and of the last word that is not 0.
    low: usize,
    high: usize,
    words: [u64; WORDS],
}

impl Bits {
    /// The numbers of these runs, which ascend and do not touch.
    pub(super) fn of(runs: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut bits = Self { run_count: 0, low: WORDS - 1, high: 0, words: [0; WORDS] };
        for (start, end) in runs {
            bits.fill(start, end);
        }
        bits
    }

    /// Number of runs.
    pub(super) const fn run_count(&self) -> usize {
        self.run_count
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.words[number as usize / WORD] & bit(number) != 0
    }

    /// The first number, of a set that has one.
    pub(super) fn first(&self) -> u64 {
        (self.low * WORD) as u64 + u64::from(self.words[self.low].trailing_zeros())
    }

    /// The number behind the last one, of a set that has one.
    pub(super) fn end(&self) -> u64 {
        ((self.high + 1) * WORD) as u64 - u64::from(self.words[self.high].leading_zeros())
    }

    /// The first run of which a number is at least `from`, cut off in front of `from`.
    pub(super) fn run_from(&self, from: u64) -> Option<(u64, u64)> {
        let start = self.find(from, 0)?;
        Some((start, self.find(start, !0).unwrap_or(WINDOW)))
    }

    /// The first position, from this one on, whose bit is set in the words exclusive-or `flip`.
    fn find(&self, from: u64, flip: u64) -> Option<u64> {
        let mut index = from as usize / WORD;
        let mut word = (self.words.get(index)? ^ flip) & !(bit(from) - 1);
        while word == 0 {
            index += 1;
            word = self.words.get(index)? ^ flip;
        }
        Some((index * WORD) as u64 + u64::from(word.trailing_zeros()))
    }

    /// Puts a run in that touches no other.
    pub(super) fn fill(&mut self, start: u64, end: u64) {
        let (first, last) = (start as usize / WORD, (end - 1) as usize / WORD);
        let (head, tail) = (!(bit(start) - 1), !0 >> (WORD - 1 - (end - 1) as usize % WORD));
        if first == last {
            self.words[first] |= head & tail;
        } else {
            self.words[first] |= head;
            self.words[first + 1..last].fill(!0);
            self.words[last] |= tail;
        }
        (self.low, self.high) = (self.low.min(first), self.high.max(last));
        self.run_count += 1;
    }

    /// Puts a number in that is not there.
    pub(super) fn insert(&mut self, number: u64) {
        let word = number as usize / WORD;
        self.words[word] |= bit(number);
        (self.low, self.high) = (self.low.min(word), self.high.max(word));
        self.run_count = self.run_count + 1 - self.neighbours(number);
    }

    /// Takes a number out that is there.
    pub(super) fn remove(&mut self, number: u64) {
        self.words[number as usize / WORD] &= !bit(number);
        self.run_count = self.run_count + self.neighbours(number) - 1;
        while self.low < self.high && self.words[self.low] == 0 {
            self.low += 1;
        }
        while self.low < self.high && self.words[self.high] == 0 {
            self.high -= 1;
        }
    }

    fn neighbours(&self, number: u64) -> usize {
        let before = number > 0 && self.contains(number - 1);
        let behind = number + 1 < WINDOW && self.contains(number + 1);
        usize::from(before) + usize::from(behind)
    }
}

const fn bit(number: u64) -> u64 {
    1 << (number % u64::BITS as u64)
}
