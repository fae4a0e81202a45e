//! Formats of rows, and their detection.
//!
//! A format either has fixed columns, told by their place, or is a table, whose columns are told by their name. One with fixed
//! columns is a type that implements [`Columns`]; to add one that ships, write a file here and add it to the formats that ship. A
//! program adds formats of its own to the [`REGISTRY`] before it reads its command line.

mod adult;
pub(super) mod criteo;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use antdt_core::InvalidValue;
use antdt_core::registry::{Named, Registry};
pub use antdt_data::Dialect;
use antdt_data::{ColumnRow, Value};

use super::field::Discard;
pub use super::field::{FieldSink, RowField};
use super::{DatasetError, RowBatch, table};
pub use super::{MISSING, NO_CATEGORY, Schema};
pub use crate::features::Bucketing;

/// Registry of all formats that a job can name. If several with fixed columns fit a file, the first one is taken; if none does,
/// the file is a table.
pub static REGISTRY: Registry<Format> = Registry::new("format", SHIPPED);

/// Formats that ship.
const SHIPPED: &[Format] = &[
    Format::of::<criteo::Criteo>(),
    Format::of::<adult::Adult>(),
    Format::CSV,
    Format::TSV,
    Format::PARQUET,
];

/// The columns of a format, and how text holds them.
pub trait Columns {
    /// Name of the format, the value of `--format`.
    const NAME: &'static str;
    /// Columns in words, for error texts: `label, 13 integers, separated by tabs`.
    const SHAPE: &'static str;
    /// Columns as a model sees them, without the label.
    const SCHEMA: Schema;
    /// Number of columns of a row, label included.
    const COLUMNS: usize = 1 + Self::SCHEMA.fields();
    /// Name of the first column in lower case, by which the header of a text file is told from a row.
    const FIRST_COLUMN: &'static str;
    /// Which column is the label, from 0.
    const LABEL: usize = 0;
    /// Name of the check of a row. It is part of the index of a text file, and must change when
    /// [`parse`](Self::parse) accepts other rows.
    const CHECK: &'static str;
    /// First byte of lines that are comments; `None` if a file has none.
    const COMMENT: Option<u8> = None;

    /// Returns whether a text file with this first row has the format; by default, if the row has as many columns.
    fn fits(first: &[u8]) -> bool {
        Self::fields(Self::dialect(first), first).count() == Self::COLUMNS
    }

    /// Returns the dialect of a text file with this first row; by default tabs if it has any, otherwise commas.
    fn dialect(first: &[u8]) -> Dialect {
        if first.contains(&b'\t') { Dialect::tsv() } else { Dialect::csv() }
    }

    /// Returns the values of a row of text; by default those that the dialect separates.
    fn fields(dialect: Dialect, row: &[u8]) -> impl Iterator<Item = RowField<'_>> + Clone {
        dialect.fields(row).map(RowField::of_text)
    }

    /// Parses the value of a column, counted from 0, and gives it to `sink`: the label of a row once, and of each numeric and
    /// categorical column of the [schema](Self::SCHEMA) one value in its order.
    ///
    /// # Errors
    /// If the value is invalid in this column; the text says what it must be, such as `an integer`.
    fn parse(column: usize, field: &RowField<'_>, sink: &mut impl FieldSink) -> Result<(), &'static str>;
}

/// A format of rows: the meaning of their columns, and the value of `--format`. The container (text with
/// tabs, commas or spaces, Parquet, compressed or not) is detected from the file itself.
#[derive(Clone, Copy)]
pub struct Format {
    name: &'static str,
    kind: Kind,
}

/// How the columns of a format are told.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// By their place.
    Fixed(Fixed),
    /// By their name.
    Table(Kept),
}

/// The files that a table is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// Text; `tabs` separate the fields, or something else does.
    Text {
        tabs: bool,
    },
    Parquet,
}

/// A format with fixed columns.
#[derive(Clone, Copy)]
pub(super) struct Fixed {
    name: &'static str,
    shape: &'static str,
    schema: Schema,
    columns: usize,
    label: usize,
    first_column: &'static str,
    comment: Option<u8>,
    fits: fn(&[u8]) -> bool,
    dialect: fn(&[u8]) -> Dialect,
    /// The first value of a row of text.
    first: fn(Dialect, &[u8]) -> Vec<u8>,
    check_name: &'static str,
    check: fn(Dialect, &[u8]) -> Result<(), String>,
    parse_text: fn(Dialect, &[u8], &mut RowBatch) -> Result<(), String>,
    parse_values: fn(&ColumnRow<'_>, &mut RowBatch) -> Result<(), String>,
    check_value: fn(usize, &RowField<'_>) -> Result<(), String>,
}

impl Format {
    const CSV: Self = Self { name: "csv", kind: Kind::Table(Kept::Text { tabs: false }) };
    const TSV: Self = Self { name: "tsv", kind: Kind::Table(Kept::Text { tabs: true }) };
    const PARQUET: Self = Self { name: "parquet", kind: Kind::Table(Kept::Parquet) };

    /// Returns the format of rows with these columns, for the registry.
    pub const fn of<C: Columns>() -> Self {
        Self { name: C::NAME, kind: Kind::Fixed(Fixed::of::<C>()) }
    }

    /// Returns the name of the format, the value of `--format`.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Returns the columns that rows of this format have; `None` for a table, whose columns are those of the file.
    pub const fn schema(self) -> Option<Schema> {
        match self.kind {
            Kind::Fixed(fixed) => Some(fixed.schema),
            Kind::Table(_) => None,
        }
    }

    /// Whether tabs separate the fields of a table of text; `None` if the format does not say it.
    pub(super) const fn tabs(self) -> Option<bool> {
        match self.kind {
            Kind::Table(Kept::Text { tabs }) => Some(tabs),
            Kind::Table(Kept::Parquet) | Kind::Fixed(_) => None,
        }
    }

    pub(super) const fn kind(self) -> Kind {
        self.kind
    }
}

impl Fixed {
    const fn of<C: Columns>() -> Self {
        Self {
            name: C::NAME,
            shape: C::SHAPE,
            schema: C::SCHEMA,
            columns: C::COLUMNS,
            label: C::LABEL,
            first_column: C::FIRST_COLUMN,
            comment: C::COMMENT,
            fits: C::fits,
            dialect: C::dialect,
            first: |dialect, row| match C::fields(dialect, row).next() {
                Some(RowField::Text(text)) => text.to_ascii_lowercase(),
                _ => Vec::new(),
            },
            check_name: C::CHECK,
            check: |dialect, row| parse::<C>(C::fields(dialect, row), &mut Discard),
            parse_text: |dialect, row, batch| parse::<C>(C::fields(dialect, row), batch),
            parse_values: |row, batch| parse::<C>(row.values().map(RowField::of_value), batch),
            check_value: |column, field| {
                C::parse(column, field, &mut Discard).map_err(|expected| field.wrong(column, expected))
            },
        }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    pub(super) const fn schema(&self) -> Schema {
        self.schema
    }

    /// Columns of a row, label included.
    pub(super) const fn columns(&self) -> usize {
        self.columns
    }

    /// Which column is the label, from 0.
    pub(super) const fn label(&self) -> usize {
        self.label
    }

    /// All formats with fixed columns.
    fn all() -> Vec<Self> {
        let fixed = |format: Format| match format.kind {
            Kind::Fixed(fixed) => Some(fixed),
            Kind::Table(_) => None,
        };
        REGISTRY.entries().into_iter().filter_map(fixed).collect()
    }

    /// The format of Parquet files with these columns, unless one at another place is called as a label is.
    pub(super) fn of_names(names: &[String]) -> Option<Self> {
        let labels = table::labels(names);
        let fits = |format: &Self| {
            format.columns == names.len() && labels.iter().all(|label| *label == format.label)
        };
        Self::all().into_iter().find(fits)
    }

    /// Every format and its columns, for error texts.
    pub(super) fn known() -> String {
        let shape = |format: &Self| format!("{}: {}, {}", format.name, format.columns, format.shape);
        Self::all().iter().map(shape).collect::<Vec<_>>().join("; ")
    }

    /// Name of the check of a row of text.
    pub(super) const fn check_name(&self) -> &'static str {
        self.check_name
    }

    /// Checks a row of text.
    pub(super) fn check(&self, dialect: Dialect, row: &[u8]) -> Result<(), String> {
        (self.check)(dialect, row)
    }

    /// Parses a row of text into `batch`, which holds a part of it if that fails.
    pub(super) fn parse_text(
        &self,
        dialect: Dialect,
        row: &[u8],
        batch: &mut RowBatch,
    ) -> Result<(), String> {
        (self.parse_text)(dialect, row, batch)
    }

    /// Parses a row of Parquet into `batch`, which holds a part of it if that fails.
    pub(super) fn parse_values(&self, row: &ColumnRow<'_>, batch: &mut RowBatch) -> Result<(), String> {
        (self.parse_values)(row, batch)
    }

    /// Checks a value of a column of Parquet, counted from 0.
    pub(super) fn check_value(&self, column: usize, value: Value<'_>) -> Result<(), String> {
        (self.check_value)(column, &RowField::of_value(value))
    }

    /// Tells format and dialect of a text file by its first row, which is no comment of any format that it could have. A first
    /// row that begins with the name of the first column is a header. `None` if no format has rows like this.
    pub(super) fn of_text(
        path: &Path,
        begin: &[u8],
        format: Option<Self>,
    ) -> Result<Option<(Self, Dialect)>, DatasetError> {
        let begin = begin.strip_prefix(b"\xef\xbb\xbf").unwrap_or(begin);
        let lines = begin.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let candidates = format.map_or_else(Self::all, |format| vec![format]);
        let comment = |line: &[u8]| {
            line.first().is_some_and(|first| candidates.iter().any(|format| format.comment == Some(*first)))
        };
        let blank = |line: &[u8]| line.iter().all(|byte| *byte == b' ');
        let mut lines = lines;
        let Some(first) = lines.find(|line| !blank(line) && !comment(line)) else {
            return Err(DatasetError::Empty { path: path.into() });
        };
        // Names of other columns than this format's are those of a table.
        let others = table::header(first, true);
        let begins = |format: &Self| {
            let begins = |names: &Vec<String>| {
                names.first().is_some_and(|name| name.to_lowercase() == format.first_column)
            };
            others.as_ref().is_none_or(begins)
        };
        let fits = |format: &Self| (format.fits)(first) && begins(format);
        let Some(format) = format.or_else(|| candidates.iter().copied().find(fits)) else {
            return Ok(None);
        };
        let dialect = (format.dialect)(first).with_comment(format.comment);
        let header = (format.first)(dialect, first) == format.first_column.as_bytes();
        Ok(Some((format, if header { dialect.with_header() } else { dialect })))
    }
}

/// Parses the values of a row into `sink`, which holds a part of it if that fails.
fn parse<'a, C: Columns>(
    fields: impl Iterator<Item = RowField<'a>> + Clone,
    sink: &mut impl FieldSink,
) -> Result<(), String> {
    let all = fields.clone();
    let mut found = 0;
    let mut wrong = None;
    for (column, field) in fields.enumerate().take(C::COLUMNS + 1) {
        found = column + 1;
        if column == C::COLUMNS {
            break;
        }
        if let Err(expected) = C::parse(column, &field, sink) {
            wrong = Some(field.wrong(column, expected));
            break;
        }
    }
    if found == C::COLUMNS && wrong.is_none() {
        return Ok(());
    }
    // A row of the wrong width most likely has the wrong values, too; its width is what explains them.
    let found = all.count();
    Err(match wrong.filter(|_| found == C::COLUMNS) {
        Some(wrong) => wrong,
        None => format!(
            "{found} columns, but {} needs {} ({}), unless another --format is meant",
            C::NAME,
            C::COLUMNS,
            C::SHAPE
        ),
    })
}

impl Named for Format {
    fn name(&self) -> &'static str {
        self.name
    }
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Format {}

impl FromStr for Format {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        REGISTRY.find(text).map_err(|unknown| InvalidValue::new("format", text, unknown.known.join(" or ")))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fixed({})", self.name)
    }
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Format({self})")
    }
}
