//! Why a data set cannot be opened or read.

use std::io;
use std::path::PathBuf;

use antdt_core::InvalidValue;

use super::Format;

/// Why a data set, or the workload on it, could not be opened. Every message names the place and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// There is no such file or folder.
    #[error(
        "{path}: no such file or folder; --data takes a file, a folder of files, a URL, or synthetic:ROWS"
    )]
    NotFound {
        /// The requested path.
        path: PathBuf,
    },
    /// The operating system refused, or the file is damaged (a broken .gz ends here too).
    #[error("{path}: cannot be read: {source}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// No rows at all.
    #[error("{path}: holds no rows; --data needs at least one")]
    Empty {
        /// The file or folder.
        path: PathBuf,
    },
    /// The first row is of no known form.
    #[error(
        "{path} line {line}: {columns} columns, which is no known format ({}); convert the file, or name its format with --format",
        Format::known()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Columns found, separated by spaces or commas.
        columns: usize,
    },
    /// A Parquet file has too few or too many columns.
    #[error(
        "{path}: {found} columns, but {} ({}); leave out the others",
        due.map_or_else(|| "no known format has so many".into(), |(format, columns)| format!("{format} needs {columns}")),
        Format::known()
    )]
    Columns {
        /// The file.
        path: PathBuf,
        /// Columns found.
        found: usize,
        /// The format it was to be read as, and the columns that it needs.
        due: Option<(&'static str, usize)>,
    },
    /// The data set cannot be opened: a row is of the wrong shape, its index or its copy cannot be kept, a store does not
    /// answer.
    #[error(transparent)]
    Data(antdt_data::OpenError),
    /// A setting cannot be used.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
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
