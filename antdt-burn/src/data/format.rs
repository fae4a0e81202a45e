//! Formats of rows, and how to tell them apart.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use antdt_core::InvalidValue;
use antdt_data::{Dialect, RowCheck};

use super::field::{Discard, Field, Sink};
use super::{OpenError, Schema, adult, criteo};

/// What the columns of a row are: the value of `--format`. How rows are kept (text with tabs, commas or spaces, Parquet,
/// compressed or not) shows in the file itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Criteo's click logs: label, 13 integers, 26 categories; empty = missing.
    Criteo,
    /// UCI Adult: 14 attributes and the label `>50K` or `<=50K`; `?` = missing.
    Adult,
}

impl Format {
    /// The columns that rows of this format have.
    pub const fn schema(self) -> Schema {
        match self {
            Self::Criteo => criteo::SCHEMA,
            Self::Adult => adult::SCHEMA,
        }
    }

    /// Columns of a row, label included.
    pub(super) const fn columns(self) -> usize {
        match self {
            Self::Criteo => criteo::COLUMNS,
            Self::Adult => adult::COLUMNS,
        }
    }

    /// The format of rows with so many columns.
    pub(super) fn of_columns(columns: usize) -> Option<Self> {
        [Self::Criteo, Self::Adult].into_iter().find(|format| format.columns() == columns)
    }

    /// The name of the first column, where a text file has a header.
    const fn first_column(self) -> &'static [u8] {
        match self {
            Self::Criteo => b"label",
            Self::Adult => b"age",
        }
    }

    const fn shape(self) -> &'static str {
        match self {
            Self::Criteo => criteo::SHAPE,
            Self::Adult => adult::SHAPE,
        }
    }

    /// What every row of a text file of this format must be.
    pub(super) const fn check(self) -> RowCheck {
        match self {
            Self::Criteo => RowCheck {
                name: "criteo 1",
                check: |dialect, row| Self::Criteo.parse_text(dialect, row, &mut Discard),
            },
            Self::Adult => RowCheck {
                name: "adult 1",
                check: |dialect, row| Self::Adult.parse_text(dialect, row, &mut Discard),
            },
        }
    }

    /// Parses a row of text into `sink`, which holds a part of it if that fails.
    pub(super) fn parse_text(self, dialect: Dialect, row: &[u8], sink: &mut impl Sink) -> Result<(), String> {
        match self {
            Self::Criteo => self.parse(dialect.fields(row).map(Field::of_text), sink),
            Self::Adult => self.parse(adult::columns(row).map(|token| Field::of_text(token.into())), sink),
        }
    }

    /// Parses the values of a row into `sink`, which holds a part of it if that fails.
    pub(super) fn parse<'a>(
        self,
        fields: impl Iterator<Item = Field<'a>> + Clone,
        sink: &mut impl Sink,
    ) -> Result<(), String> {
        let expected = self.columns();
        let all = fields.clone();
        let mut found = 0;
        let mut wrong = None;
        for (column, field) in fields.enumerate().take(expected + 1) {
            found = column + 1;
            if column == expected {
                break;
            }
            let parsed = match self {
                Self::Criteo => criteo::parse(column, &field, sink),
                Self::Adult => adult::parse(column, &field, sink),
            };
            if let Err(expected) = parsed {
                wrong = Some(field.wrong(column, expected));
                break;
            }
        }
        if found == expected && wrong.is_none() {
            return Ok(());
        }
        // A row of the wrong width most likely has the wrong values, too; its width is what explains them.
        let found = all.count();
        Err(match wrong.filter(|_| found == expected) {
            Some(wrong) => wrong,
            None => format!(
                "{found} columns, but {self} needs {expected} ({}), unless another --format is meant",
                self.shape()
            ),
        })
    }

    /// Tells format and dialect of a text file by its first rows. Rows with tabs are Criteo's, rows of 15 columns
    /// separated by spaces or commas are Adult's, rows of 40 separated by commas are Criteo's again. A first row that
    /// begins with the name of the first column is a header.
    pub(super) fn of_text(
        path: &Path,
        begin: &[u8],
        format: Option<Self>,
    ) -> Result<(Self, Dialect), OpenError> {
        let begin = begin.strip_prefix(b"\xef\xbb\xbf").unwrap_or(begin);
        let lines = begin.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let comment = |line: &[u8]| format != Some(Self::Criteo) && line.starts_with(b"|");
        let blank = |line: &[u8]| line.iter().all(|byte| *byte == b' ');
        let first = (1..).zip(lines).find(|(_, line)| !blank(line) && !comment(line));
        let Some((line, first)) = first else {
            return Err(OpenError::Empty { path: path.into() });
        };
        let tabs = first.contains(&b'\t');
        let csv = || Dialect::csv().fields(first).count();
        let format = match format {
            Some(format) => format,
            None if tabs => Self::Criteo,
            None => match adult::columns(first).count() {
                adult::COLUMNS => Self::Adult,
                _ if csv() == criteo::COLUMNS => Self::Criteo,
                columns => return Err(OpenError::UnknownFormat { path: path.into(), line, columns }),
            },
        };
        let dialect = match format {
            Self::Criteo if !tabs && first.contains(&b',') => Dialect::csv(),
            Self::Criteo => Dialect::tsv(),
            // The published test file starts with a line `|1x3 Cross validator`.
            Self::Adult => Dialect::tsv().with_delimiter(b' ').with_comment(Some(b'|')),
        };
        let name = match format {
            Self::Criteo => dialect.fields(first).next().map(|field| field.to_ascii_lowercase()),
            Self::Adult => adult::columns(first).next().map(<[u8]>::to_ascii_lowercase),
        };
        let header = name.is_some_and(|name| name == format.first_column());
        Ok((format, if header { dialect.with_header() } else { dialect }))
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
