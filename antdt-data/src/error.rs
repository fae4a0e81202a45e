//! Errors of data sets: when one is opened, and when its samples are read.

use std::io;
use std::path::{Path, PathBuf};

use antdt_core::SampleRange;

use crate::cache::Cache;
use crate::source::Container;

/// Reason why a data set cannot be opened. The error text names the file and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The list of files is empty.
    #[error("{place} names no file; name at least one")]
    NoFiles {
        /// The list or folder, as the caller gave it.
        place: String,
    },
    /// A file operation failed.
    #[error("cannot {doing} {}: {source}; check the path and its permissions", path.display())]
    Io {
        /// Path of the file or folder.
        path: PathBuf,
        /// Operation that failed: `open`, `read` or `list`.
        doing: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file has no samples: most often the result of a failed upload.
    #[error("{} has no samples; write it again, or take it off the list", path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is compressed in a form that this crate does not unpack. Samples of a compressed stream
    /// cannot be reached without reading everything before them.
    #[error(
        "{} is {container}, which is not read as text; compress it with gzip or zstd, or decompress it first",
        path.display()
    )]
    Compressed {
        /// Path of the file.
        path: PathBuf,
        /// Compression of the file, detected from its first bytes.
        container: Container,
    },
    /// A compressed file ends before its stream does.
    #[error(
        "{}: truncated: the file ends after {len_bytes} bytes, in the middle of its {container} stream, of which {unpacked} bytes \
         could be unpacked; copy or download it again",
        path.display()
    )]
    CutOff {
        /// Path of the file.
        path: PathBuf,
        /// Compression of the file.
        container: Container,
        /// Length of the file in bytes.
        len_bytes: u64,
        /// Bytes that could be unpacked.
        unpacked: u64,
    },
    /// A compressed file holds more than it may.
    #[error(
        "{}: {len_bytes} bytes of {container} unpack to more than {limit_bytes} bytes, where the copy was given up; if it is no mistake, \
         raise --unpack-limit",
        path.display()
    )]
    Unpacked {
        /// Path of the file.
        path: PathBuf,
        /// Compression of the file.
        container: Container,
        /// Length of the file in bytes.
        len_bytes: u64,
        /// What it may unpack to, in bytes.
        limit_bytes: u64,
    },
    /// A file that cannot be read by range could not be copied to a disk.
    #[error(
        "cannot keep the content of {} in {}: {source}; free space there, or name another folder with --cache-dir or {}",
        path.display(), folder.display(), Cache::VARIABLE
    )]
    Copy {
        /// Path of the file.
        path: PathBuf,
        /// Folder for the copy.
        folder: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// No environment variable names the folder for indexes and copies.
    #[error(
        "there is no folder in which to remember where rows begin, or to unpack files: neither HOME nor XDG_CACHE_HOME is \
         set; name one with --cache-dir or {}",
        Cache::VARIABLE
    )]
    NoCache,
    /// A row fails the check of its data set.
    #[error("{} line {line}: {why}; mend or remove the row", path.display())]
    Row {
        /// Path of the file.
        path: PathBuf,
        /// Line on which the row begins, from 1.
        line: u64,
        /// Description of what is wrong with the row.
        why: String,
    },
    /// A value of a Parquet file fails the check of its data set.
    #[error("{} row {row}: {why}; mend or remove the row", path.display())]
    Value {
        /// Path of the file.
        path: PathBuf,
        /// Number of the row in the file, from 1.
        row: u64,
        /// Description of what is wrong with the value.
        why: String,
    },
    /// A row is so long that the file cannot be a text with rows.
    #[error(
        "{} line {line}: longer than {limit_bytes} bytes; this is no text of rows, or a quote is never closed",
        path.display()
    )]
    RowTooLong {
        /// Path of the file.
        path: PathBuf,
        /// Line on which the row begins, from 1.
        line: u64,
        /// Longest accepted row, in bytes.
        limit_bytes: usize,
    },
    /// The URL names no object that can be read.
    #[error("{url}: {why}")]
    Url {
        /// URL that was given.
        url: String,
        /// Why the URL names no such object, and the remedy.
        why: String,
    },
    /// The last record of a file is incomplete.
    #[error(
        "{} ends {left} bytes into a record of {record_len_bytes} bytes that begins at byte {at}; check the record \
         length and the header length, or copy the file again", path.display()
    )]
    Truncated {
        /// Path of the file.
        path: PathBuf,
        /// Length of a record in bytes.
        record_len_bytes: u64,
        /// Byte offset of the incomplete record.
        at: u64,
        /// Number of bytes of the incomplete record that the file has.
        left: u64,
    },
    /// A quoted field has no closing quote.
    #[error(
        "{} line {line}: the row opens a quote that nothing closes; close it, or read the file in a dialect without quotes",
        path.display()
    )]
    Quote {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1, on which the row with the quoted field begins.
        line: u64,
    },
    /// The settings of a dialect contradict each other.
    #[error("the dialect {what}; choose another byte")]
    Dialect {
        /// Description of the contradiction.
        what: &'static str,
    },
    /// The files of a data set differ in their columns.
    #[error("{} has other columns than {}: {what}; read them as two data sets", path.display(), first.display())]
    Columns {
        /// Path of the file whose columns differ.
        path: PathBuf,
        /// Path of the first file of the data set.
        first: PathBuf,
        /// Description of the first difference.
        what: String,
    },
    /// A requested column does not exist.
    #[error("{} has no column {name:?}; it has {have}", path.display())]
    NoColumn {
        /// Path of the file.
        path: PathBuf,
        /// Name of the requested column.
        name: String,
        /// Names of the columns that exist.
        have: String,
    },
    /// A column has a type that a flat row cannot hold.
    #[error("{}: column {name:?} is {kind}, which a flat row cannot hold; leave it out of the projection", path.display())]
    ColumnKind {
        /// Path of the file.
        path: PathBuf,
        /// Name of the column.
        name: String,
        /// Type of the column.
        kind: String,
    },
    /// The file is not of the expected format.
    #[error("{}: {why}; check that it is the right file and whole", path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// The file changed while its rows were counted.
    #[error("{} changed while it was indexed; open it again when its writer is done", path.display())]
    Changed {
        /// Path of the file.
        path: PathBuf,
    },
    /// The index of a file can be neither read nor written at its place.
    #[error(
        "cannot remember in {} where the rows of the data begin: {source}; name a folder that can be written with \
         --cache-dir or {}",
        path.display(), Cache::VARIABLE
    )]
    IndexPlace {
        /// Path of the index file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The data set has more samples than a 64-bit number can count.
    #[error("the samples up to {} are more than 2^64; split the data set", path.display())]
    TooMany {
        /// Path of the file with which the number is exceeded.
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

/// Reason why samples cannot be read. It is a data fault, which a worker reports to the shard service.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The data set does not have these samples.
    #[error(
        "samples {}..{} are outside a data set of {num_samples}; is the ledger's data set this one?",
        range.start, range.end
    )]
    OutOfRange {
        /// Samples that were requested.
        range: SampleRange,
        /// Number of samples in the data set.
        num_samples: u64,
    },
    /// A file operation failed.
    #[error("sample {sample}: cannot read {}: {source}; check the path and its permissions", path.display())]
    Io {
        /// Number of the first sample that was not read.
        sample: u64,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is not the one that was opened: it has changed since.
    #[error(
        "sample {sample}: {} changed since the data set was opened; put it back, or start the job again",
        path.display()
    )]
    Changed {
        /// Number of the first sample that was not read.
        sample: u64,
        /// Path of the file.
        path: PathBuf,
    },
    /// The file of a sample is empty, in a data set of one sample per file.
    #[error("sample {sample}: {} is empty; write it again", path.display())]
    Empty {
        /// Number of the sample.
        sample: u64,
        /// Path of the file.
        path: PathBuf,
    },
    /// The file's content violates its format.
    #[error("sample {sample}: {}: {why}; write the file again", path.display())]
    Malformed {
        /// Number of the first sample that was not read.
        sample: u64,
        /// Path of the file.
        path: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// The samples have more bytes than this machine can address.
    #[error("samples from {sample} on in {} are {len_bytes} bytes, too many to hold; cut smaller shards", path.display())]
    TooLarge {
        /// Number of the first sample that was not read.
        sample: u64,
        /// Path of the file.
        path: PathBuf,
        /// Length of the samples in bytes.
        len_bytes: u64,
    },
}

impl ReadError {
    /// Returns the number of the first sample that could not be read, for `sample` of
    /// `antdt_agent::TrainError::Data`.
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

/// Reason why a stored index of a file cannot be used. A new one is then built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The file is not a complete index.
    #[error("not an index of a file: {why}; delete it, and it will be built again")]
    Malformed {
        /// Description of the error.
        why: &'static str,
    },
    /// Another version of this crate wrote the index.
    #[error("an index of format {found}, this program reads {known}; delete it, and it will be built again")]
    Version {
        /// Format version of the file.
        found: u32,
        /// Format version of this crate.
        known: u32,
    },
    /// The index is that of another file, of the same file before it changed, or of another dialect.
    #[error("the index of other data: {what} differs; delete it, and it will be built again")]
    OtherData {
        /// Name of the field that differs.
        what: &'static str,
    },
}
