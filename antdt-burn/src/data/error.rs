//! Errors of opening a data set.

use std::io;
use std::path::PathBuf;

use antdt_core::InvalidValue;
use antdt_core::registry::BuildError;

use super::format::Fixed;
use super::table::ColumnError;

/// Reason why a data set, or the workload on it, could not be opened. Every message names the place and the
/// remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// The file or folder does not exist.
    #[error(
        "{path}: no such file or folder; --data takes a file, a folder of files, a URL, or synthetic:ROWS"
    )]
    NotFound {
        /// Path that was given.
        path: PathBuf,
    },
    /// A file operation failed, or the file is damaged (such as a broken .gz).
    #[error("{path}: cannot be read: {source}")]
    Read {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file of the folder is a link to nothing.
    #[error("{path}: a link to {target}, which does not exist; remove the link, or put its file back")]
    Dangling {
        /// Path of the link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// The file or folder has no rows.
    #[error("{path}: holds no rows; --data needs at least one")]
    Empty {
        /// Path of the file or folder.
        path: PathBuf,
    },
    /// A text file is too short for one sample.
    #[error(
        "{path}: shorter than a window of {} bytes, which is one sample; lower [workload.gpt] context, or take the file \
         off the data",
        context + 1
    )]
    TooShort {
        /// Path of the file.
        path: PathBuf,
        /// Number of bytes of a sample before its last byte.
        context: usize,
    },
    /// A file of pictures does not have the expected format.
    #[error(
        "{path}: begins with the byte {first}, where a picture in the binary form of CIFAR-10 begins with its class, 0 to 9; \
         JPEG and PNG are read from a folder on this machine with one folder for each class"
    )]
    NoImages {
        /// Path of the file.
        path: PathBuf,
        /// First byte of the file.
        first: u8,
    },
    /// A folder of JPEG and PNG pictures does not have one folder for each class.
    #[error("{path}: {why}")]
    Pictures {
        /// Path of the folder or picture.
        path: PathBuf,
        /// What is wrong with it, and the remedy.
        why: String,
    },
    /// A file that should be text has other content.
    #[error("{path}: Parquet, where this model takes text; name a text file, plain or compressed")]
    NoText {
        /// Path of the file.
        path: PathBuf,
    },
    /// The columns of a table cannot be used.
    #[error("{path}: {error}")]
    Table {
        /// Path of the file.
        path: PathBuf,
        /// Which column, and why.
        error: ColumnError,
    },
    /// A Parquet file has too few or too many columns for the format that it was to be read as.
    #[error(
        "{path}: {found} columns, but {format} needs {due} ({}); leave out the others, or --format parquet to read columns by name",
        Fixed::known()
    )]
    Columns {
        /// Path of the file.
        path: PathBuf,
        /// Number of columns found.
        found: usize,
        /// Format that the file was to be read as.
        format: &'static str,
        /// Number of columns that the format needs.
        due: usize,
    },
    /// The data set cannot be opened: a row has the wrong columns, the index or the copy of a file cannot be
    /// stored, or an object store does not answer.
    #[error(transparent)]
    Data(antdt_data::OpenError),
    /// A setting is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// The model, or one of its settings, is unknown or invalid.
    #[error(transparent)]
    Model(#[from] BuildError),
}

impl DatasetError {
    /// The first rows of a data set, whose columns are looked at, cannot be read.
    pub(super) fn sample(error: antdt_data::ReadError) -> Self {
        match error {
            antdt_data::ReadError::Malformed { path, why, .. } => {
                let source = io::Error::new(io::ErrorKind::InvalidData, why);
                Self::Read { path, source }
            }
            error => Self::Read { path: PathBuf::new(), source: io::Error::other(error.to_string()) },
        }
    }
}

impl From<antdt_data::OpenError> for DatasetError {
    fn from(error: antdt_data::OpenError) -> Self {
        match error {
            antdt_data::OpenError::Empty { path } => Self::Empty { path },
            antdt_data::OpenError::Io { path, source, .. } => Self::Read { path, source },
            error => Self::Data(error),
        }
    }
}
