//! Formats of data files, and how to tell them apart.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use antdt_core::InvalidValue;

use super::lines::Lines;
use super::{OpenError, Schema, adult, criteo};

/// How rows are written in a file: the value of `--format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Criteo's click logs: label, 13 integers, 26 categories; tabs between; empty = missing; no header.
    Criteo,
    /// UCI Adult: 14 attributes and the label `>50K` or `<=50K`; spaces or commas between; `?` = missing.
    Adult,
}

impl Format {
    /// Tells the format of a file from its first row: rows with tabs are Criteo's, rows of 15 columns separated by
    /// spaces or commas are Adult's.
    ///
    /// # Errors
    /// If the file cannot be read, holds no rows, or its first row is of neither form.
    pub fn detect(path: &Path) -> Result<Self, OpenError> {
        let mut lines = Lines::open(path)?;
        let Some((line, text)) = lines.next_row()? else {
            return Err(OpenError::Empty { path: path.into() });
        };
        if text.contains(&b'\t') {
            return Ok(Self::Criteo);
        }
        match adult::columns(text).count() {
            adult::COLUMNS => Ok(Self::Adult),
            columns => Err(OpenError::UnknownFormat { path: path.into(), line, columns }),
        }
    }

    /// The columns that rows of this format have.
    pub const fn schema(self) -> Schema {
        match self {
            Self::Criteo => criteo::SCHEMA,
            Self::Adult => adult::SCHEMA,
        }
    }
}

impl FromStr for Format {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "criteo" => Ok(Self::Criteo),
            "adult" => Ok(Self::Adult),
            _ => Err(InvalidValue::new("format", text, "criteo or adult")),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Criteo => "criteo",
            Self::Adult => "adult",
        })
    }
}
