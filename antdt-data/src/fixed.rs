//! Data sets of records of one length: a sample is a range of bytes, and no index is needed.

use std::num::NonZeroU64;
use std::path::Path;

use antdt_core::SampleRange;

use crate::cuts::Cuts;
use crate::error::{OpenError, ReadError};
use crate::layout::DatasetLayout;
use crate::rows::ByteRows;
use crate::source::Source;
use crate::splitter::Splitter;

#[cfg(test)]
mod tests;

/// Lengths of the records and of the header of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordShape {
    /// Length of every record in bytes.
    pub record_len_bytes: NonZeroU64,
    /// Length of the header before the first record of every file, in bytes.
    pub header_len_bytes: u64,
}

/// Treatment of the bytes after the last whole record of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// The file is refused, because it was cut off or its records have another length.
    Refuse,
    /// The bytes are ignored, for files that are cut out of a continuous stream, such as a text.
    Leave,
}

/// A data set of binary records of one length in one file or several, one after the other: CIFAR's binary form
/// (records of 3,073 bytes), MNIST's (784 bytes after a header of 16), any array on disk.
#[derive(Debug, Clone)]
pub struct FixedRecords {
    shape: RecordShape,
    sources: Vec<Source>,
    layout: DatasetLayout,
}

impl FixedRecords {
    /// Opens files, in the order given. This reads only their lengths.
    ///
    /// # Errors
    /// If a file is missing or empty, or its last record is incomplete.
    pub fn open<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        shape: RecordShape,
    ) -> Result<Self, OpenError> {
        let sources: Vec<Source> = paths.into_iter().map(Source::file).collect::<Result<_, _>>()?;
        Self::of(sources, shape, Tail::Refuse)
    }

    /// Opens sources that can be read by range, in the order given.
    ///
    /// # Errors
    /// If a source has no whole record, or an incomplete record at its end that `tail` refuses.
    pub fn of(sources: Vec<Source>, shape: RecordShape, tail: Tail) -> Result<Self, OpenError> {
        let mut opened = Self { shape, sources: Vec::new(), layout: DatasetLayout::default() };
        for source in sources {
            let Some(payload) =
                source.stamp.len_bytes.checked_sub(shape.header_len_bytes).filter(|len| *len > 0)
            else {
                return Err(OpenError::Empty { path: source.path });
            };
            let record = shape.record_len_bytes.get();
            let left = payload % record;
            if left > 0 && tail == Tail::Refuse {
                return Err(OpenError::Truncated {
                    path: source.path,
                    record_len_bytes: record,
                    at: source.stamp.len_bytes - left,
                    left,
                });
            }
            if payload < record {
                return Err(OpenError::Empty { path: source.path });
            }
            if !opened.layout.push(payload / record) {
                return Err(OpenError::TooMany { path: source.path });
            }
            opened.sources.push(source);
        }
        if opened.sources.is_empty() {
            return Err(OpenError::NoFiles { place: "the list of files".into() });
        }
        Ok(opened)
    }

    /// Returns the layout, which says which samples are in which file.
    pub const fn layout(&self) -> &DatasetLayout {
        &self.layout
    }
}

impl Splitter for FixedRecords {
    type Rows = ByteRows;

    fn num_samples(&self) -> u64 {
        self.layout.num_samples()
    }

    fn cuts(&self, target_len: NonZeroU64) -> Cuts {
        Cuts::even(self.num_samples(), target_len)
    }

    fn read(&self, range: SampleRange) -> Result<ByteRows, ReadError> {
        ReadError::check(range, self.num_samples())?;
        let mut rows = ByteRows::starting_at(range.start);
        let record = self.shape.record_len_bytes.get();
        for piece in self.layout.pieces(range) {
            // Neither overflows: both are within the file, whose length is a `u64`.
            let at = self.shape.header_len_bytes + piece.rows.start * record;
            self.sources[piece.file].append(at, piece.rows.len() * record, piece.sample, rows.buffer())?;
        }
        let (bytes, spans) = rows.parts();
        // Fits: the buffer holds at least one record, or there is none.
        let record = usize::try_from(record).unwrap_or(usize::MAX);
        spans.extend((0..bytes.len() / record).map(|at| (at * record, (at + 1) * record)));
        Ok(rows)
    }
}
