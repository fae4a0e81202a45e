//! Data sets of labelled rows.

mod error;
pub mod example;
mod field;
pub mod format;
pub mod gratings;
pub(crate) mod hashed;
pub(crate) mod images;
pub mod inspect;
pub(crate) mod pictures;
pub mod prose;
mod source;
mod stored;
pub mod synthetic;
mod table;
pub mod teacher;
pub(crate) mod text;

use std::fmt;

use antdt_agent::TrainError;

pub use error::DatasetError;
pub use format::Format;
pub use source::{DataSource, Notify};
pub use stored::{Opening, StoredRows};
pub use table::{ColumnChoice, ColumnError, LabelTask};

use crate::features::Bucketing;

/// Value of a numeric column in a row that has no value there.
pub const MISSING: i32 = i32::MIN;

/// Code of a categorical column in a row that has no category there. No real category has this code.
pub const NO_CATEGORY: u32 = 0;

/// The columns of a data set of labelled rows. Constant for a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schema {
    /// How the values of each numeric column are divided into buckets, in the order of the columns.
    pub numeric: &'static [Bucketing],
    /// Number of categorical columns.
    pub categorical: usize,
}

impl Schema {
    /// Returns the number of columns without the label; each column becomes one field of the model.
    pub const fn fields(&self) -> usize {
        self.numeric.len() + self.categorical
    }
}

/// What the labels of a data set are, and so what a model of it predicts. Constant for a data set.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum LabelKind {
    /// Two classes: 0 or 1.
    #[default]
    Binary,
    /// So many classes, of which the label is the number of one, counted from 0.
    Classes(usize),
    /// A number, of which the label says how many standard deviations it is above the mean.
    Number {
        /// Mean of the numbers in the rows that were looked at.
        mean: f64,
        /// Their standard deviation.
        deviation: f64,
    },
}

impl LabelKind {
    /// Returns the number of values that a model predicts for a sample.
    pub const fn outputs(self) -> usize {
        match self {
            Self::Binary | Self::Number { .. } => 1,
            Self::Classes(count) => count,
        }
    }
}

/// Decoded rows, in the order in which they were requested.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowBatch {
    /// Label of each row, as the [kind](Dataset::label_kind) of the labels says, `[rows]`.
    pub labels: Vec<f32>,
    /// Numeric values, `[rows, numeric columns]`; [`MISSING`] where the row has none.
    pub numeric: Vec<i32>,
    /// Hashed categories, `[rows, categorical columns]`; [`NO_CATEGORY`] where the row has none.
    pub categories: Vec<u32>,
}

impl RowBatch {
    /// Removes the rows, and keeps the memory for later ones.
    pub fn clear(&mut self) {
        self.labels.clear();
        self.numeric.clear();
        self.categories.clear();
    }
}

/// Reason why a row cannot be read: it does not exist, its file cannot be read, or it has the wrong columns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("row {row}: {why}")]
pub struct RowError {
    /// Number of the requested row.
    pub row: u64,
    /// Description of the error.
    pub why: String,
}

impl RowError {
    /// The error of a trainer that asked for these rows; `sample` says which sample each one is.
    pub(crate) fn of_sample(self, rows: &[u64], sample: impl Fn(usize) -> u64) -> TrainError {
        // Rows are read together: the first that failed may be one beside those that were asked for.
        let at = rows.iter().position(|row| *row == self.row).unwrap_or(0);
        TrainError::Data { sample: sample(at), why: self.to_string() }
    }

    /// The data set does not have it.
    pub(crate) fn outside(row: u64, rows: u64) -> Self {
        Self { row, why: format!("outside a data set of {rows} rows") }
    }
}

/// A data set of labelled rows, read by number.
pub trait Dataset: fmt::Debug + Send {
    /// Returns the number of rows, which are numbered `0..rows()`.
    fn rows(&self) -> u64;

    /// Returns the columns of the data set.
    fn schema(&self) -> Schema;

    /// Returns what the labels are.
    fn label_kind(&self) -> LabelKind {
        LabelKind::Binary
    }

    /// Returns a checksum of all that was read when the data were opened; `None` if nothing was. Of text and of Parquet, that is every
    /// byte; of a table, it covers what its columns are taken for, too, and the folders that are columns.
    fn content_checksum(&self) -> Option<u32> {
        None
    }

    /// Appends the rows of these numbers to `batch`, in this order.
    ///
    /// # Errors
    /// If a row does not exist or cannot be read. The content of `batch` is undefined then, and the caller
    /// must clear it.
    fn read(&mut self, rows: &[u64], batch: &mut RowBatch) -> Result<(), RowError>;
}

/// The code of a category as written in a file; never [`NO_CATEGORY`].
///
/// Eight hexadecimal digits, the form of Criteo's own hashes, are taken as the number they are; anything else is
/// hashed (FNV-1a).
fn category(token: &[u8]) -> u32 {
    let hex = (token.len() == 8)
        .then(|| {
            token
                .iter()
                .try_fold(0_u32, |code, byte| char::from(*byte).to_digit(16).map(|digit| (code << 4) | digit))
        })
        .flatten();
    let code = hex.unwrap_or_else(|| fnv1a(token));
    code.max(NO_CATEGORY + 1)
}

/// The FNV-1a hash of 64 bits, folded to 32.
fn fnv1a<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (hash >> 32) as u32 ^ hash as u32
}

#[cfg(test)]
mod tests;
