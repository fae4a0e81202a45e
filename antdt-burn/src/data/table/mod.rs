//! Tables: rows whose columns are used by name, and whose kinds are inferred from a sample of rows.
//!
//! Every number has a bucket, by the rule of its column. Whole numbers that lie close together have a bucket each ([`Role::Exact`]);
//! others ([`Role::Octaves`]) have eight buckets from a power of two to the next, on either side of 0, so that the buckets are as fine
//! for 0.001 as for a million. Neither depends on the sample but for the choice between them, so that a row has the same buckets
//! in every job that reads it by the same columns.

mod error;
mod folders;
mod infer;
mod label;
mod names;
mod tally;
mod text;

pub(super) use folders::{FolderColumns, key_value};
pub(super) use infer::Seen;
pub(super) use names::{labels, listed};
pub(super) use text::{header, text_sample};

use antdt_data::{ColumnRow, Dialect, Meaning, Splitter, Value};

pub use error::ColumnError;
use label::Label;
pub use label::LabelTask;

use super::field::Discard;
use super::format::{Bucketing, FieldSink, RowField, Schema};
use super::{DatasetError, LabelKind, MISSING, NO_CATEGORY, RowBatch, category};

/// Columns that a model takes, at most.
const COLUMNS_MAX: usize = 4096;

/// The buckets of numbers are made when a row is read.
static EXACT: [Bucketing; COLUMNS_MAX] = [Bucketing::Exact; COLUMNS_MAX];

/// Rows from which the kinds of the columns are inferred, at most.
pub(super) const SAMPLE_ROWS: u64 = 10_000;

/// Names of columns in one line to the user, at most.
pub(super) const SHOWN: usize = 20;

/// What the user says of the columns of a table: `--label`, `--categorical`, `--numeric` and `--ignore`. Names are found however
/// they are spelt: case, quotes and spaces do not count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ColumnChoice {
    /// Column to predict, or a condition on one, such as `rating>=4`; `None` takes the one that is called so.
    pub label: Option<String>,
    /// Columns whose values are categories.
    pub categorical: Vec<String>,
    /// Columns whose values are numbers.
    pub numeric: Vec<String>,
    /// Columns that are not used.
    pub ignore: Vec<String>,
    /// What is learnt of the label; `None` infers it from the label's values.
    pub task: Option<LabelTask>,
}

impl ColumnChoice {
    /// Returns whether the user says nothing of the columns.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The first flag that says something, and what it says.
    pub(crate) fn named(&self) -> Option<(&'static str, String)> {
        let label = self.label.as_ref().map(|label| ("--label", label.clone()));
        let list = self.lists().into_iter().find(|(_, names)| !names.is_empty());
        let task = self.task.map(|task| ("--task", task.name().to_owned()));
        label.or_else(|| list.map(|(flag, names)| (flag, names.join(",")))).or(task)
    }

    fn lists(&self) -> [(&'static str, &[String]); 3] {
        [("--categorical", &self.categorical), ("--numeric", &self.numeric), ("--ignore", &self.ignore)]
    }
}

/// What a column of a table becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::data) enum Role {
    Label,
    /// A number of which each whole one has a bucket.
    Exact,
    /// A number with eight buckets to an octave.
    Octaves,
    Category,
    Ignored,
}

impl Role {
    /// Name of the role to the user.
    const fn name(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Exact | Self::Octaves => "numeric",
            Self::Category => "categorical",
            Self::Ignored => "ignored",
        }
    }
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::data) struct Column {
    pub(super) name: String,
    pub(super) role: Role,
    /// Why it became that, in a few words.
    pub(super) why: String,
    /// What the values stand for in Parquet.
    meaning: Option<Meaning>,
}

/// The columns of a table, and how a row of them is read.
#[derive(Debug, Clone)]
pub(super) struct Table {
    /// All columns of the file, in its order, then those of the folders.
    columns: Vec<Column>,
    /// Number of columns of the file.
    width: usize,
    folders: FolderColumns,
    label: Label,
    /// Whether two colons separate the fields of text.
    colons: bool,
    /// Name of the check of a row of text.
    check: String,
    /// Rows that were looked at.
    rows: u64,
}

impl Table {
    fn decide(
        seen: &Seen,
        folders: &FolderColumns,
        choice: &ColumnChoice,
        colons: bool,
    ) -> Result<Self, ColumnError> {
        let (at, label) = seen.label(choice)?;
        let columns = seen.columns(choice, Some(at))?;
        let used = columns.iter().filter(|column| column.role != Role::Ignored).count() - 1;
        if used == 0 {
            let columns = seen.names.iter().filter(|name| **name != seen.names[at]).cloned().collect();
            return Err(ColumnError::NoFeatures { label: seen.names[at].clone(), columns });
        }
        if used > COLUMNS_MAX {
            return Err(ColumnError::TooWide { count: used, most: COLUMNS_MAX });
        }
        let roles: Vec<_> = columns.iter().map(|column| (&column.name, column.role)).collect();
        let check = format!("table 1 {colons} {label:?} {roles:?}");
        let (rows, width) = (seen.tallies[0].rows, columns.len() - folders.keys().len());
        Ok(Self { label, colons, check, rows, columns, width, folders: folders.clone() })
    }

    /// The columns of Parquet files that begin with these columns and rows.
    pub(super) fn of_parquet(
        first: &antdt_data::Source,
        folders: &FolderColumns,
        choice: &ColumnChoice,
    ) -> Result<Self, DatasetError> {
        let seen = parquet_sample(first, folders)?;
        let table = Self::decide(&seen, folders, choice, false)
            .map_err(|error| DatasetError::Table { path: first.path().into(), error })?;
        table.check_folders()?;
        Ok(table)
    }

    /// Checks the values that folders have for the rows of each file.
    fn check_folders(&self) -> Result<(), DatasetError> {
        for (file, path) in self.folders.paths().enumerate() {
            self.give_folders(file, &mut Discard).map_err(|what| DatasetError::Table {
                path: path.into(),
                error: ColumnError::FolderValue { what },
            })?;
        }
        Ok(())
    }

    /// Whether the value of some column that is used is that of a folder, so that the file of a row has to be known.
    pub(super) fn uses_folders(&self) -> bool {
        self.columns[self.width..].iter().any(|column| column.role != Role::Ignored)
    }

    /// Everything but the files' content that says what its rows are, to tell data sets apart.
    pub(super) fn identity(&self) -> String {
        format!("{} {}", self.check, self.folders.identity())
    }

    /// The names of the columns that are read of Parquet files.
    pub(super) fn wanted(&self) -> Vec<&str> {
        self.used_of_file().map(|column| column.name.as_str()).collect()
    }

    /// All columns, those of the file first.
    pub(super) fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// What the labels are.
    pub(super) fn label_kind(&self) -> LabelKind {
        self.label.kind()
    }

    /// The names of the classes of a label that has more than two.
    pub(super) fn class_names(&self) -> Vec<&str> {
        self.label.class_names()
    }

    /// The name of the label, and what its values are.
    pub(super) fn label(&self) -> (String, String) {
        let label = self.columns.iter().find(|column| column.role == Role::Label);
        (label.map(|column| column.name.clone()).unwrap_or_default(), self.label.rule())
    }

    fn used_of_file(&self) -> impl Iterator<Item = &Column> + Clone {
        self.columns[..self.width].iter().filter(|column| column.role != Role::Ignored)
    }

    fn count(&self, is: impl Fn(Role) -> bool) -> usize {
        self.columns.iter().filter(|column| is(column.role)).count()
    }

    pub(super) fn schema(&self) -> Schema {
        let numeric = self.count(|role| matches!(role, Role::Exact | Role::Octaves));
        Schema { numeric: &EXACT[..numeric], categorical: self.count(|role| role == Role::Category) }
    }

    pub(super) fn check_name(&self) -> &str {
        &self.check
    }

    pub(super) fn check(&self, dialect: Dialect, row: &[u8]) -> Result<(), String> {
        self.give_text(dialect, row, &mut Discard)
    }

    pub(super) fn parse_text(
        &self,
        dialect: Dialect,
        (row, file): (&[u8], usize),
        batch: &mut RowBatch,
    ) -> Result<(), String> {
        self.give_text(dialect, row, batch)?;
        self.give_folders(file, batch)
    }

    fn give_text(&self, dialect: Dialect, row: &[u8], sink: &mut impl FieldSink) -> Result<(), String> {
        let fields = text::fields(self.colons, dialect, row);
        let mut due = self.columns[..self.width].iter();
        for (at, field) in fields.clone().enumerate() {
            let Some(column) = due.next() else { return Err(self.wrong_width(fields.count())) };
            let field = RowField::of_text(field);
            self.give(column, &field, sink).map_err(|expected| {
                // A row of the wrong width most likely has the wrong values, too; its width is what explains them.
                match fields.clone().count() {
                    found if found == self.width => column.wrong(at, &field, expected),
                    found => self.wrong_width(found),
                }
            })?;
        }
        if due.next().is_some() { Err(self.wrong_width(fields.count())) } else { Ok(()) }
    }

    fn wrong_width(&self, found: usize) -> String {
        format!("{found} columns, but the first row has {}", self.width)
    }

    /// Gives the values that the folders of a file have for its rows.
    fn give_folders(&self, file: usize, sink: &mut impl FieldSink) -> Result<(), String> {
        for (key, column) in self.columns[self.width..].iter().enumerate() {
            let field = self.folders.field(file, key);
            self.give(column, &field, sink)
                .map_err(|expected| column.wrong(self.width + key, &field, expected))?;
        }
        Ok(())
    }

    pub(super) fn parse_values(
        &self,
        (row, file): (&ColumnRow<'_>, usize),
        batch: &mut RowBatch,
    ) -> Result<(), String> {
        for ((at, column), value) in self.used_of_file().enumerate().zip(row.values()) {
            let field = of_value(value, column.meaning);
            self.give(column, &field, batch).map_err(|expected| column.wrong(at, &field, expected))?;
        }
        self.give_folders(file, batch)
    }

    /// The columns of Parquet, of those that are read, whose values can be wrong: the label, and strings that are to be numbers.
    pub(super) fn checked(&self) -> Vec<usize> {
        let numbers = |column: &Column| {
            matches!(column.role, Role::Exact | Role::Octaves) && column.meaning == Some(Meaning::Text)
        };
        let can_be_wrong = |column: &Column| column.role == Role::Label || numbers(column);
        self.used_of_file().enumerate().filter(|(_, column)| can_be_wrong(column)).map(|(at, _)| at).collect()
    }

    /// Checks a value of a column, of those that are read.
    pub(super) fn check_value(&self, at: usize, value: Value<'_>) -> Result<(), String> {
        let Some(column) = self.used_of_file().nth(at) else { return Ok(()) };
        let field = of_value(value, column.meaning);
        self.give(column, &field, &mut Discard).map_err(|expected| column.wrong(at, &field, expected))
    }

    /// Gives the value of a column to `sink`.
    fn give(
        &self,
        column: &Column,
        field: &RowField<'_>,
        sink: &mut impl FieldSink,
    ) -> Result<(), &'static str> {
        match column.role {
            Role::Label => sink.label(self.label.of(field).ok_or(self.label.expected())?),
            Role::Exact | Role::Octaves if field.is_missing() => sink.numeric(MISSING),
            Role::Exact => sink.numeric(whole(field.real().ok_or(NUMBER)?)),
            Role::Octaves => sink.numeric(octave(field.real().ok_or(NUMBER)?)),
            Role::Category => sink.category(code(field)),
            Role::Ignored => {}
        }
        Ok(())
    }

    /// What became of the columns, in lines to the user.
    pub(super) fn lines(&self) -> Vec<String> {
        let of = |is: &dyn Fn(Role) -> bool| {
            let shown = |column: &Column| format!("{} ({})", column.name, column.why);
            let shown: Vec<String> =
                self.columns.iter().filter(|column| is(column.role)).map(shown).collect();
            listed(shown.iter().map(String::as_str), SHOWN)
        };
        let (label, rule) = self.label();
        let mut lines = vec![format!(
            "{} columns by name, their kinds inferred from {} rows; label: {label} ({rule})",
            self.columns.len(),
            self.rows,
        )];
        let kinds: [(&str, &dyn Fn(Role) -> bool); 3] = [
            ("numeric", &|role| matches!(role, Role::Exact | Role::Octaves)),
            ("categorical", &|role| role == Role::Category),
            ("ignored", &|role| role == Role::Ignored),
        ];
        for (kind, is) in kinds {
            if self.count(is) > 0 {
                lines.push(format!("{kind}: {}", of(is)));
            }
        }
        lines
    }
}

/// What a value of a numeric column must be.
const NUMBER: &str = "a number; name the column in --categorical to take its values as categories";

impl Column {
    fn wrong(&self, at: usize, field: &RowField<'_>, expected: &str) -> String {
        field.wrong(at, expected).replacen(':', &format!(", {}:", self.name), 1)
    }
}

/// The bucket of a whole number; what has a fraction is rounded, what is beyond 32 bits cut.
fn whole(value: f64) -> i32 {
    #[allow(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
    let value = value.round() as i32;
    value.max(MISSING + 1)
}

/// The bucket of any number: its sign, its power of two, and the eighth of the way to the next one. 0 and what is closer to it than
/// about 1e-38 have bucket 0.
fn octave(value: f64) -> i32 {
    #[allow(clippy::cast_possible_truncation, reason = "casts of floats saturate to infinity")]
    let near = value.abs() as f32;
    // The exponent, and the first three binary digits after the point.
    let bucket = (near.to_bits() >> 20).cast_signed();
    if value < 0.0 { -bucket } else { bucket }
}

/// The code of a category.
fn code(field: &RowField<'_>) -> u32 {
    match field {
        field if field.is_missing() => NO_CATEGORY,
        RowField::Text(text) => category(text.trim_ascii()),
        // As text writes it.
        RowField::Integer(value) => category(value.to_string().as_bytes()),
        field => field.category(),
    }
}

/// A value of Parquet as what it stands for: decimals as the numbers that they are, times as seconds since 1970, dates as days.
fn of_value(value: Value<'_>, meaning: Option<Meaning>) -> RowField<'_> {
    #[allow(clippy::cast_precision_loss, reason = "a bucket needs less")]
    match (value, meaning) {
        (Value::I32(value), Some(Meaning::Unsigned)) => RowField::Integer(value.cast_unsigned().into()),
        (Value::I64(value), Some(Meaning::Unsigned)) if value < 0 => {
            RowField::Real(value.cast_unsigned() as f64)
        }
        (Value::I32(value), Some(Meaning::Decimal { scale })) => {
            RowField::Real(f64::from(value) / 10_f64.powi(scale))
        }
        (Value::I64(value), Some(Meaning::Decimal { scale })) => {
            RowField::Real(value as f64 / 10_f64.powi(scale))
        }
        (Value::Bytes(bytes), Some(Meaning::Decimal { scale })) => {
            RowField::Real(big_endian(bytes) / 10_f64.powi(scale))
        }
        (Value::I64(value), Some(Meaning::Timestamp { per_second })) => {
            RowField::Real(value as f64 / per_second as f64)
        }
        (value, _) => RowField::of_value(value),
    }
}

/// A number in two's complement, the highest byte first.
fn big_endian(bytes: &[u8]) -> f64 {
    let Some((first, rest)) = bytes.split_first() else { return f64::NAN };
    rest.iter().fold(f64::from(first.cast_signed()), |value, byte| value * 256.0 + f64::from(*byte))
}

/// The columns of a Parquet file, and what its first rows show of them.
pub(super) fn parquet_sample(
    source: &antdt_data::Source,
    folders: &FolderColumns,
) -> Result<Seen, DatasetError> {
    let fields = antdt_data::Parquet::fields(source)?;
    let readable = fields.iter().filter(|field| field.is_readable());
    let wanted: Vec<&str> = readable.map(|field| field.name.as_str()).collect();
    let data = antdt_data::Parquet::of_columns([source.clone()], &wanted)?;
    let end = data.num_samples().min(SAMPLE_ROWS);
    let rows = data.read(antdt_core::SampleRange { start: 0, end }).map_err(DatasetError::sample)?;
    let mut seen = Seen::default();
    for field in &fields {
        let mut tally = tally::Tally::unread(end);
        if let Some(column) = wanted.iter().position(|name| *name == field.name) {
            tally = tally::Tally::default();
            for sample in 0..end {
                let value = antdt_data::Rows::row(&rows, sample).and_then(|row| row.value(column));
                tally.add(&of_value(value.unwrap_or(Value::Null), Some(field.meaning)));
            }
        }
        seen.names.push(field.name.clone());
        seen.tallies.push(tally);
        seen.meanings.push(Some(field.meaning));
    }
    seen.add_folders(folders).map_err(|error| DatasetError::Table { path: source.path().into(), error })?;
    Ok(seen)
}

#[cfg(test)]
mod tests;
