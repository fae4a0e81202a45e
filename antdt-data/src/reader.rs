//! What a worker reads its batches with: whole shards, kept while batches are cut from them.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use antdt_core::SampleRange;

use crate::cuts::Cuts;
use crate::error::ReadError;
use crate::rows::Rows;
use crate::splitter::Splitter;

/// Reads samples by number, in any order, with one read of the data set per shard.
///
/// A batch names samples of one shard in a permuted order, or of two where it straddles them. The reader loads a shard
/// when its first sample is asked for and keeps the `keep` shards that were used last, so memory is bounded by `keep`
/// shards. `keep` should be the number of leases that a worker holds at once, and at least 2.
#[derive(Debug)]
pub struct Reader<S: Splitter> {
    data: S,
    cuts: Cuts,
    keep: NonZeroUsize,
    /// The one used last is at the front.
    kept: VecDeque<S::Rows>,
}

impl<S: Splitter> Reader<S> {
    /// A reader of `data`, cut as the master cut it.
    pub const fn new(data: S, cuts: Cuts, keep: NonZeroUsize) -> Self {
        Self { data, cuts, keep, kept: VecDeque::new() }
    }

    /// What it reads from.
    pub const fn data(&self) -> &S {
        &self.data
    }

    /// Calls `each` with the samples of a batch, in the order of `samples`.
    ///
    /// # Errors
    /// If a sample does not exist or cannot be read; `each` may have seen the samples before it. What is kept stays
    /// valid, so the next batch may succeed.
    pub fn read(
        &mut self,
        samples: &[u64],
        mut each: impl for<'r> FnMut(u64, <S::Rows as Rows>::Row<'r>),
    ) -> Result<(), ReadError> {
        for &sample in samples {
            self.load(sample)?;
            let row = self.kept.front().and_then(|rows| rows.row(sample));
            each(sample, row.ok_or_else(|| self.out_of_range(sample))?);
        }
        Ok(())
    }

    /// Brings the shard of a sample to the front.
    fn load(&mut self, sample: u64) -> Result<(), ReadError> {
        let has = |rows: &S::Rows| rows.range().start <= sample && sample < rows.range().end;
        match self.kept.iter().position(has) {
            Some(0) => {}
            Some(at) => {
                let rows = self.kept.remove(at).expect("it was found there");
                self.kept.push_front(rows);
            }
            None => {
                let shard = self.cuts.shard_of(sample).ok_or_else(|| self.out_of_range(sample))?;
                // Room is made first, so that no more than `keep` shards are ever in memory.
                self.kept.truncate(self.keep.get() - 1);
                self.kept.push_front(self.data.read(shard)?);
            }
        }
        Ok(())
    }

    fn out_of_range(&self, sample: u64) -> ReadError {
        let range = SampleRange { start: sample, end: sample.saturating_add(1) };
        ReadError::OutOfRange { range, num_samples: self.data.num_samples() }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::rows::ByteRows;

    /// Ten samples, each its own number; counts how often it is read, and fails to read sample 9.
    #[derive(Debug, Default)]
    struct Counted(AtomicUsize);

    impl Splitter for Counted {
        type Rows = ByteRows;

        fn num_samples(&self) -> u64 {
            10
        }

        fn cuts(&self, target_len: NonZeroU64) -> Cuts {
            Cuts::even(10, target_len)
        }

        fn read(&self, range: SampleRange) -> Result<ByteRows, ReadError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let mut rows = ByteRows::starting_at(range.start);
            for sample in range.start..range.end {
                if sample == 9 {
                    return Err(ReadError::Empty { sample, path: "9".into() });
                }
                rows.push(&[u8::try_from(sample).expect("below 10")]);
            }
            Ok(rows)
        }
    }

    fn reader(keep: usize) -> Reader<Counted> {
        let cuts = Cuts::even(10, NonZeroU64::new(3).expect("not zero"));
        Reader::new(Counted::default(), cuts, NonZeroUsize::new(keep).expect("not zero"))
    }

    /// Reads samples, checks them, and says how often the data set was read so far.
    fn read(reader: &mut Reader<Counted>, samples: &[u64]) -> Result<usize, ReadError> {
        let mut seen = Vec::new();
        reader.read(samples, |sample, row| {
            assert_eq!(row, [u8::try_from(sample).expect("below 10")]);
            seen.push(sample);
        })?;
        assert_eq!(seen, samples);
        assert!(reader.kept.len() <= reader.keep.get(), "{} shards are kept", reader.kept.len());
        Ok(reader.data().0.load(Ordering::Relaxed))
    }

    #[test]
    fn a_shard_is_read_once_while_batches_are_cut_from_it() {
        let mut two = reader(2);
        assert_eq!(read(&mut two, &[1, 0]).unwrap(), 1);
        assert_eq!(read(&mut two, &[2, 5, 0, 3]).unwrap(), 2);
        // A third shard takes the place of the one that was used longest ago: that of 0.
        assert_eq!(read(&mut two, &[8, 4]).unwrap(), 3);
        assert_eq!(read(&mut two, &[7, 0]).unwrap(), 4);
        let mut one = reader(1);
        assert_eq!(read(&mut one, &[0, 3, 1]).unwrap(), 3);
    }

    #[test]
    fn a_sample_that_cannot_be_read_does_not_end_the_reader() {
        let mut reader = reader(2);
        assert_eq!(read(&mut reader, &[0, 9]).unwrap_err().sample(), 9);
        assert_eq!(read(&mut reader, &[10]).unwrap_err().sample(), 10);
        assert_eq!(read(&mut reader, &[0, 1]).unwrap(), 2);
    }
}
