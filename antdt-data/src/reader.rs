//! The reader of a worker's batches: it reads by range, in bounded memory.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use antdt_core::SampleRange;

use crate::cuts::Cuts;
use crate::error::ReadError;
use crate::rows::Rows;
use crate::splitter::Splitter;

/// Blocks that a read may go over although none of their samples was asked for. Of a shard, a batch names samples
/// here and there; one longer read is cheaper than two, and a batch that is small against its shard leaves few gaps of
/// this length.
const GAP_BLOCKS: u64 = 4;

/// Samples read at once, at most.
const READ_LEN_MAX: u64 = 1 << 16;

/// Reads samples by number, in any order, with few and large reads of the data set.
///
/// The samples are cut into blocks. The reader finds the blocks of a batch, reads those that it does not
/// hold, and keeps them for later batches. Blocks that are close together are read with one read of at most 65,536
/// samples. A batch of a permuted shard touches nearly all of the shard's blocks, so a shard of that many samples is
/// read with one read at its first batch.
///
/// Memory: the least recently used blocks are dropped as soon as the reader holds more than its budget. A
/// batch whose own blocks exceed the budget is read all the same, and its blocks are dropped afterwards.
#[derive(Debug)]
pub struct Reader<S: Splitter> {
    data: S,
    blocks: Cuts,
    budget_bytes: usize,
    /// What is held, by its first sample; disjoint.
    held: BTreeMap<u64, Held<S::Rows>>,
    held_bytes: usize,
    /// Batches so far.
    batches: u64,
}

#[derive(Debug)]
struct Held<R> {
    rows: R,
    len_bytes: usize,
    /// The last batch that used it.
    used: u64,
}

impl<S: Splitter> Reader<S> {
    /// Returns a reader of `data` in blocks of about `block_len` samples, which keeps about `budget_bytes`
    /// bytes of rows in memory.
    ///
    /// Blocks should be short compared with a shard, and long compared with the smallest read of the data
    /// set: 256 rows for [`Delimited`](crate::Delimited), some thousand for `Parquet`.
    pub fn new(data: S, block_len: NonZeroU64, budget_bytes: usize) -> Self {
        let blocks = data.cuts(block_len);
        Self { data, blocks, budget_bytes, held: BTreeMap::new(), held_bytes: 0, batches: 0 }
    }

    /// Returns the data set that the reader reads from.
    pub const fn data(&self) -> &S {
        &self.data
    }

    /// Returns the memory of the rows that the reader holds, in bytes.
    pub const fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Calls `each` with the number and content of each sample of a batch, in the order of `samples`.
    ///
    /// # Errors
    /// If a sample does not exist or cannot be read; `each` is then not called at all. The rows that the
    /// reader holds in memory stay valid, so the next batch may succeed.
    pub fn read(
        &mut self,
        samples: &[u64],
        mut each: impl for<'r> FnMut(u64, <S::Rows as Rows>::Row<'r>),
    ) -> Result<(), ReadError> {
        self.load(samples)?;
        for &sample in samples {
            let row = self.holding(sample).and_then(|held| held.rows.row(sample));
            each(sample, row.ok_or_else(|| self.out_of_range(sample))?);
        }
        Ok(())
    }

    /// Holds the blocks of all `samples`.
    fn load(&mut self, samples: &[u64]) -> Result<(), ReadError> {
        self.batches += 1;
        let mut missing = Vec::new();
        for &sample in samples {
            let batch = self.batches;
            let held = self.held.range_mut(..=sample).next_back().map(|(_, held)| held);
            match held.filter(|held| sample < held.rows.range().end) {
                Some(held) => held.used = batch,
                None => missing.push(self.blocks.shard_of(sample).ok_or_else(|| self.out_of_range(sample))?),
            }
        }
        missing.sort_unstable_by_key(|block| block.start);
        missing.dedup();
        let mut missing = missing.into_iter().peekable();
        while let Some(mut range) = missing.next() {
            while let Some(next) = missing.next_if(|next| self.may_join(range, *next)) {
                range.end = next.end;
            }
            let rows = self.data.read(range)?;
            let len_bytes = rows.len_bytes();
            self.held_bytes += len_bytes;
            self.held.insert(range.start, Held { rows, len_bytes, used: self.batches });
            self.drop_oldest();
        }
        Ok(())
    }

    /// Whether one read should cover both: they are near, and nothing between them is held already.
    fn may_join(&self, range: SampleRange, next: SampleRange) -> bool {
        let near = next.start - range.end <= GAP_BLOCKS.saturating_mul(next.len());
        let short = next.end - range.start <= READ_LEN_MAX;
        near && short && self.held.range(range.end..next.start).next().is_none()
    }

    /// Drops what no sample of this batch needs, the longest unused first, until the budget is kept.
    fn drop_oldest(&mut self) {
        while self.held_bytes > self.budget_bytes {
            let oldest = self.held.iter().min_by_key(|(_, held)| held.used);
            let Some(start) = oldest.filter(|(_, held)| held.used < self.batches).map(|(start, _)| *start)
            else {
                return;
            };
            if let Some(held) = self.held.remove(&start) {
                self.held_bytes -= held.len_bytes;
            }
        }
    }

    fn holding(&self, sample: u64) -> Option<&Held<S::Rows>> {
        self.held.range(..=sample).next_back().map(|(_, held)| held)
    }

    fn out_of_range(&self, sample: u64) -> ReadError {
        let range = SampleRange { start: sample, end: sample.saturating_add(1) };
        ReadError::OutOfRange { range, num_samples: self.data.num_samples() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use antdt_core::{Permutation, Seed};
    use proptest::prelude::*;

    use super::*;
    use crate::rows::ByteRows;

    const SAMPLES: u64 = 1000;

    /// Samples that are their own numbers; remembers what was read, and fails to read sample 999.
    #[derive(Debug, Default)]
    struct Watched(Mutex<Vec<SampleRange>>);

    impl Splitter for Watched {
        type Rows = ByteRows;

        fn num_samples(&self) -> u64 {
            SAMPLES
        }

        fn cuts(&self, target_len: NonZeroU64) -> Cuts {
            Cuts::even(SAMPLES, target_len)
        }

        fn read(&self, range: SampleRange) -> Result<ByteRows, ReadError> {
            self.0.lock().unwrap().push(range);
            let mut rows = ByteRows::starting_at(range.start);
            for sample in range.start..range.end {
                if sample == 999 {
                    return Err(ReadError::Empty { sample, path: "999".into() });
                }
                rows.push(&sample.to_le_bytes());
            }
            Ok(rows)
        }
    }

    fn reader(block_len: u64, budget_bytes: usize) -> Reader<Watched> {
        Reader::new(Watched::default(), NonZeroU64::new(block_len).unwrap(), budget_bytes)
    }

    /// Reads samples, checks them, and says what was read of the data set for them.
    fn read(reader: &mut Reader<Watched>, samples: &[u64]) -> Result<Vec<(u64, u64)>, ReadError> {
        let mut seen = Vec::new();
        let done = reader.read(samples, |sample, row| {
            assert_eq!(row, sample.to_le_bytes());
            seen.push(sample);
        });
        let held: usize = reader.held.values().map(|held| held.len_bytes).sum();
        assert_eq!(reader.held_bytes(), held);
        done?;
        assert_eq!(seen, samples);
        Ok(reader.data().0.lock().unwrap().drain(..).map(|range| (range.start, range.end)).collect())
    }

    #[test]
    fn a_shard_is_read_once_however_its_samples_are_permuted() {
        let mut reader = reader(10, usize::MAX);
        let order = Permutation::new(Seed(1), 200);
        let shard: Vec<u64> = (0..200).map(|at| 300 + order.at(at)).collect();
        assert_eq!(read(&mut reader, &shard[..60]).unwrap(), [(300, 500)]);
        assert_eq!(read(&mut reader, &shard[60..]).unwrap(), []);
        // What was read before is not read again, nor read over.
        assert_eq!(read(&mut reader, &[299, 510, 5]).unwrap(), [(0, 10), (290, 300), (510, 520)]);
        assert_eq!(read(&mut reader, &[520, 570, 630]).unwrap(), [(520, 580), (630, 640)]);
    }

    #[test]
    fn the_block_used_longest_ago_is_dropped_when_the_budget_is_spent() {
        // A block is 8 bytes of content and 16 of its place for each sample, at least.
        let mut reader = reader(1, 100);
        let one = 8 + 16;
        assert_eq!(read(&mut reader, &[10, 20, 30]).unwrap().len(), 3);
        assert!(reader.held_bytes() >= 3 * one);
        read(&mut reader, &[10]).unwrap();
        for sample in (100..200).step_by(10) {
            read(&mut reader, &[10, sample]).unwrap();
            assert!(reader.held_bytes() <= 100 || reader.held.len() <= 2, "{}", reader.held_bytes());
        }
        assert_eq!(read(&mut reader, &[10]).unwrap(), [], "what each batch needs is kept");
        assert_eq!(read(&mut reader, &[20]).unwrap(), [(20, 21)], "what none needed is not");
    }

    #[test]
    fn a_batch_larger_than_the_budget_is_read_all_the_same() {
        let mut reader = reader(10, 1);
        let all: Vec<u64> = (0..900).rev().collect();
        assert_eq!(read(&mut reader, &all).unwrap(), [(0, 900)]);
        read(&mut reader, &[950]).unwrap();
        assert_eq!(reader.held.len(), 1);
    }

    #[test]
    fn a_sample_that_cannot_be_read_does_not_end_the_reader() {
        let mut reader = reader(10, usize::MAX);
        assert_eq!(read(&mut reader, &[0, 999]).unwrap_err().sample(), 999);
        assert_eq!(read(&mut reader, &[1000]).unwrap_err().sample(), 1000);
        read(&mut reader, &[5, 980]).unwrap();
    }

    proptest! {
        #[test]
        fn any_batches_are_read_with_their_own_content(
            block in 1_u64..50, budget in 0_usize..20_000,
            batches in prop::collection::vec(prop::collection::vec(0_u64..900, 0..40), 0..30),
        ) {
            let mut reader = reader(block, budget);
            for batch in batches {
                read(&mut reader, &batch).unwrap();
                let ranges: Vec<_> = reader.held.values().map(|held| held.rows.range()).collect();
                prop_assert!(ranges.is_sorted_by(|a, b| a.end <= b.start), "{ranges:?}");
            }
        }
    }
}
