//! What can be wrong with a data set: when it is opened, when it is read.

use std::io;
use std::path::{Path, PathBuf};

use antdt_core::SampleRange;

use crate::source::Container;

/// Why a data set cannot be opened. Each names the file and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The list of files is empty.
    #[error("{place} names no file; name at least one")]
    NoFiles {
        /// The list, as it was given.
        place: String,
    },
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}; check the path and its permissions", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried: `open`, `read` or `list`.
        doing: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file without samples: most often an upload that went wrong.
    #[error("{} has no samples; write it again, or take it off the list", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Samples of a compressed stream cannot be reached without reading all that is before them, and it is of a form that
    /// is not unpacked.
    #[error(
        "{} is {container}, which is not read as text; compress it with gzip or zstd, or decompress it first",
        path.display()
    )]
    Compressed {
        /// The file.
        path: PathBuf,
        /// Its form, by its first bytes.
        container: Container,
    },
    /// A file that cannot be read by range could not be copied to a disk.
    #[error(
        "cannot keep the content of {} in {}: {source}; free space there, or name another folder with ANTDT_CACHE_DIR",
        path.display(), folder.display()
    )]
    Copy {
        /// The file.
        path: PathBuf,
        /// Where its copy was to be.
        folder: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// No variable says where indexes and copies are kept.
    #[error("no folder is known for row indexes and unpacked copies; name one with ANTDT_CACHE_DIR")]
    NoCache,
    /// A row that fails the check of its data set.
    #[error("{} line {line}: {why}; mend or remove the row", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Line on which the row begins, from 1.
        line: u64,
        /// What is wrong with it.
        why: String,
    },
    /// A row so long that the file cannot be text of rows.
    #[error(
        "{} line {line}: longer than {limit_bytes} bytes; this is no text of rows, or a quote is never closed",
        path.display()
    )]
    RowTooLong {
        /// The file.
        path: PathBuf,
        /// Line on which the row begins, from 1.
        line: u64,
        /// Longest row accepted.
        limit_bytes: usize,
    },
    /// A URL that names no object that can be read.
    #[error("{url}: {why}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it, and the remedy.
        why: String,
    },
    /// The last record is not whole.
    #[error(
        "{} ends {left} bytes into a record of {record_len_bytes} bytes that begins at byte {at}; check the record \
         length and the header length, or copy the file again", path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Length of a record.
        record_len_bytes: u64,
        /// Where the last record begins.
        at: u64,
        /// Bytes of it that are there.
        left: u64,
    },
    /// A quoted field never ends.
    #[error(
        "{} line {line}: the row opens a quote that nothing closes; close it, or read the file in a dialect without quotes",
        path.display()
    )]
    Quote {
        /// The file.
        path: PathBuf,
        /// Line on which its row begins, from 1.
        line: u64,
    },
    /// A dialect that contradicts itself.
    #[error("the dialect {what}; choose another byte")]
    Dialect {
        /// In what way.
        what: &'static str,
    },
    /// Files of one set differ in their columns.
    #[error("{} has other columns than {}: {what}; read them as two data sets", path.display(), first.display())]
    Columns {
        /// The file that differs.
        path: PathBuf,
        /// The first file of the set.
        first: PathBuf,
        /// The first difference.
        what: String,
    },
    /// A column that is not there.
    #[error("{} has no column {name:?}; it has {have}", path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The requested name.
        name: String,
        /// The names that exist.
        have: String,
    },
    /// A column of a kind that a flat row cannot hold.
    #[error("{}: column {name:?} is {kind}, which a flat row cannot hold; leave it out of the projection", path.display())]
    ColumnKind {
        /// The file.
        path: PathBuf,
        /// The column.
        name: String,
        /// The kind found.
        kind: String,
    },
    /// Not a file of the format.
    #[error("{}: {why}; check that it is the right file and whole", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file changed while its rows were counted.
    #[error("{} changed while it was indexed; open it again when its writer is done", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The row index of a file can be neither read nor written where it is to be kept.
    #[error("cannot keep a row index in {}: {source}; name another folder with ANTDT_CACHE_DIR", path.display())]
    IndexPlace {
        /// The index file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Samples are numbered with 64 bits.
    #[error("the samples up to {} are more than 2^64; split the data set", path.display())]
    TooMany {
        /// The file that went beyond.
        path: PathBuf,
    },
}

impl OpenError {
    pub(crate) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, doing, source }
    }

    pub(crate) fn malformed(path: &Path, why: String) -> Self {
        Self::Malformed { path: path.to_owned(), why }
    }

    /// While a data set is opened, no sample has a number yet.
    pub(crate) fn from_read(error: ReadError) -> Self {
        match error {
            ReadError::Io { path, source, .. } => Self::Io { path, doing: "read", source },
            ReadError::Changed { path, .. } => Self::Changed { path },
            ReadError::Empty { path, .. } => Self::Empty { path },
            ReadError::Malformed { path, why, .. } => Self::Malformed { path, why },
            ReadError::TooLarge { path, .. } => Self::TooMany { path },
            ReadError::OutOfRange { range, num_samples } => {
                Self::Malformed { path: PathBuf::new(), why: format!("{range:?} of {num_samples}") }
            }
        }
    }
}

/// Why samples cannot be read. A data fault: what a worker reports with the shard.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Samples that the data set does not have.
    #[error(
        "samples {}..{} are outside a data set of {num_samples}; is the ledger's data set this one?",
        range.start, range.end
    )]
    OutOfRange {
        /// The requested samples.
        range: SampleRange,
        /// Samples in the data set.
        num_samples: u64,
    },
    /// The operating system refused.
    #[error("sample {sample}: cannot read {}: {source}; check the path and its permissions", path.display())]
    Io {
        /// The first sample that was not read.
        sample: u64,
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is not the one that was opened.
    #[error(
        "sample {sample}: {} changed since the data set was opened; put it back, or start the job again",
        path.display()
    )]
    Changed {
        /// The first sample that was not read.
        sample: u64,
        /// The file.
        path: PathBuf,
    },
    /// A sample in a file of its own that is empty.
    #[error("sample {sample}: {} is empty; write it again", path.display())]
    Empty {
        /// The sample.
        sample: u64,
        /// The file.
        path: PathBuf,
    },
    /// The bytes are not what the format says.
    #[error("sample {sample}: {}: {why}; write the file again", path.display())]
    Malformed {
        /// The first sample that was not read.
        sample: u64,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// More bytes than this machine can address.
    #[error("samples from {sample} on in {} are {len_bytes} bytes, too many to hold; cut smaller shards", path.display())]
    TooLarge {
        /// The first sample that was not read.
        sample: u64,
        /// The file.
        path: PathBuf,
        /// Length in bytes.
        len_bytes: u64,
    },
}

impl ReadError {
    /// The first sample that could not be read: `sample` of `antdt_agent::TrainError::Data`.
    pub const fn sample(&self) -> u64 {
        match self {
            Self::OutOfRange { range, .. } => range.start,
            Self::Io { sample, .. }
            | Self::Changed { sample, .. }
            | Self::Empty { sample, .. }
            | Self::Malformed { sample, .. }
            | Self::TooLarge { sample, .. } => *sample,
        }
    }

    pub(crate) fn io(path: &Path, sample: u64) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { sample, path, source }
    }

    #[cfg(feature = "parquet")]
    pub(crate) fn malformed(path: &Path, sample: u64, why: String) -> Self {
        Self::Malformed { sample, path: path.to_owned(), why }
    }

    /// Refuses what is not within `0..num_samples`.
    pub(crate) fn check(range: SampleRange, num_samples: u64) -> Result<(), Self> {
        if range.start > range.end || range.end > num_samples {
            return Err(Self::OutOfRange { range, num_samples });
        }
        Ok(())
    }
}

/// Why a saved row index cannot be used. `Delimited` builds a new one then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// Not an index, or not a whole one.
    #[error("not a row index: {why}; delete it, and it will be built again")]
    Malformed {
        /// What is wrong with it.
        why: &'static str,
    },
    /// Written by another version.
    #[error(
        "a row index of format {found}, this program reads {known}; delete it, and it will be built again"
    )]
    Version {
        /// Version in the file.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The index of another file, of the same file before it changed, or of another dialect.
    #[error("the row index of other data: {what} differs; delete it, and it will be built again")]
    OtherData {
        /// Name of the field that differs.
        what: &'static str,
    },
}
