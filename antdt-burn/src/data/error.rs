//! Why a data set cannot be opened or read.

use std::io;
use std::path::PathBuf;

use antdt_core::InvalidValue;

use super::Format;

/// Why a data set, or the workload on it, could not be opened. Every message names the place and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such file or folder.
    #[error("{path}: no such file or folder; --data takes a file, a folder of files, or synthetic:ROWS")]
    NotFound {
        /// What was asked for.
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
        "{path} line {line}: {columns} columns, which is no known format (criteo: 40 separated by tabs; \
         adult: 15 separated by spaces or commas); convert the file, or name its format with --format"
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Columns found, separated by spaces or commas.
        columns: usize,
    },
    /// A row has too few or too many columns.
    #[error(
        "{path} line {line}: {found} columns, but {format} needs {expected} ({what}); \
         mend or remove the row, or name another --format"
    )]
    Columns {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Columns found.
        found: usize,
        /// Columns needed.
        expected: usize,
        /// The format it was read as.
        format: Format,
        /// What the columns are.
        what: &'static str,
    },
    /// A column holds something else than it should.
    #[error("{path} line {line} column {column}: '{found}' is not {expected}; mend or remove the row")]
    Value {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: usize,
        /// What is there; cut after 40 characters.
        found: String,
        /// What should be.
        expected: &'static str,
    },
    /// A line is so long that the file cannot be text of this kind.
    #[error("{path} line {line}: longer than {limit} bytes; this is not a text file of rows")]
    LineTooLong {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Longest line accepted, in bytes.
        limit: u64,
    },
    /// A setting cannot be used.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
}
