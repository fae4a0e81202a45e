//! Conformance suite for implementations of [`Splitter`].
#![allow(clippy::missing_panics_doc, clippy::unwrap_used, reason = "a suite fails by panicking")]

use std::num::NonZeroU64;

use antdt_core::{Epoch, Generation, Grant, LeaseId, SampleRange, Seed, ShardKey};

use crate::error::ReadError;
use crate::reader::Reader;
use crate::rows::Rows;
use crate::splitter::Splitter;

/// Checks the contract of [`Splitter`] on a data set of known samples; `bytes` converts a row to the bytes in
/// `expected`.
///
/// For several lengths of shards: the cuts partition the samples; every sample is read exactly once, with its
/// own content, through shards taken in random order whose samples are permuted. Random ranges hold the right
/// samples, and samples that do not exist are refused.
///
/// # Panics
/// If the data set breaks the contract.
pub fn check_splitter<S: Splitter>(
    data: &S,
    expected: &[Vec<u8>],
    bytes: impl for<'a> Fn(<S::Rows as Rows>::Row<'a>) -> Vec<u8>,
) {
    let count = expected.len() as u64;
    assert_eq!(data.num_samples(), count, "number of samples");
    for target in [1, 2, 3, 7, count / 2, count, count + 5].into_iter().filter_map(NonZeroU64::new) {
        let cuts = data.cuts(target);
        let ends = cuts.ends();
        assert!(ends.is_sorted_by(|a, b| a < b) && ends.first() != Some(&0), "cuts by {target}: {ends:?}");
        assert_eq!((ends.last().copied().unwrap_or(0), cuts.num_samples()), (count, count), "by {target}");
        assert_eq!(cuts.num_shards(), ends.len() as u64);
        assert_eq!(data.cuts(target), cuts, "cuts are a pure function");

        let mut seen = vec![0_u32; expected.len()];
        // Room for little, so that it reads again and again.
        let mut reader = Reader::new(data, target, 1 << 10);
        for index in order(Seed(target.get()), ends.len() as u64) {
            let at = usize::try_from(index).expect("a place in a list");
            let start = at.checked_sub(1).map_or(0, |before| ends[before]);
            let grant = Grant {
                lease: LeaseId { generation: Generation(1), sequence: index },
                key: ShardKey { epoch: Epoch(0), index },
                start,
                len: ends[at] - start,
                resume_at: 0,
                seed: Some(Seed(index)),
            };
            let order = grant.order();
            let samples: Vec<u64> =
                (0..grant.len).map(|offset| grant.sample(order.as_ref(), offset)).collect();
            // Batches end where they like.
            for batch in samples.chunks(5) {
                let each = |sample: u64, row: <S::Rows as Rows>::Row<'_>| {
                    let sample = usize::try_from(sample).expect("a place in a list");
                    assert_eq!(bytes(row), expected[sample], "sample {sample}");
                    seen[sample] += 1;
                };
                reader.read(batch, each).expect("all samples can be read");
            }
        }
        assert!(seen.iter().all(|times| *times == 1), "by {target}: {seen:?}");
    }
    let mut rng = Seed(count).rng();
    for _ in 0..20 {
        let start = rng.below(count + 1);
        let range = SampleRange { start, end: start + rng.below(count - start + 1) };
        let rows = data.read(range).expect("all samples can be read");
        assert_eq!(rows.range(), range);
        assert!(range.is_empty() || rows.len_bytes() > 0, "rows take memory");
        for sample in range.start..range.end {
            let row = rows.row(sample).expect("the range has it");
            assert_eq!(bytes(row), expected[usize::try_from(sample).expect("a place in a list")]);
        }
        assert!(
            rows.row(range.end).is_none() && start.checked_sub(1).is_none_or(|at| rows.row(at).is_none())
        );
    }
    for range in [
        SampleRange { start: count, end: count + 1 },
        SampleRange { start: 0, end: u64::MAX },
        SampleRange { start: 1, end: 0 },
    ] {
        assert!(matches!(data.read(range), Err(ReadError::OutOfRange { .. })), "{range:?}");
    }
}

/// `0..len`, permuted.
fn order(seed: Seed, len: u64) -> Vec<u64> {
    let order = antdt_core::Permutation::new(seed, len);
    (0..len).map(|at| order.at(at)).collect()
}

#[cfg(test)]
pub(crate) use files::{Folder, lines};

#[cfg(test)]
mod files {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// A folder for the files of one test.
    pub(crate) struct Folder(tempfile::TempDir);

    impl Folder {
        pub(crate) fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        pub(crate) fn path(&self) -> &Path {
            self.0.path()
        }

        pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            path
        }
    }

    /// `count` different rows of different lengths.
    pub(crate) fn lines(label: &str, count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|i| format!("{label}{i},{}", "x".repeat(i * 7 % 23)).into_bytes()).collect()
    }
}
