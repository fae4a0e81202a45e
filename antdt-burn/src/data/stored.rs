//! Data sets of rows in files, read by range.

use std::num::NonZeroU64;
use std::path::Path;

use antdt_core::InvalidValue;
use antdt_data::{
    Cache, ColumnCheck, ColumnRow, Container, DatasetLayout, Delimited, Dialect, IndexPlace, Parquet, Reader,
    RowCheck, Source, Splitter, Value,
};

use super::format::{Fixed, Kept, Kind};
use super::source::Notify;
use super::table::{FolderColumns, Table};
use super::{
    ColumnChoice, Dataset, DatasetError, Format, LabelKind, RowBatch, RowError, Schema, fnv1a, source,
};

/// Bytes of a text file in which its first row is looked for.
const BEGIN_LEN_BYTES: usize = 64 << 10;

/// Bytes of a text file in which the rows are that show what its columns are.
pub(super) const SAMPLE_LEN_BYTES: u64 = 1 << 20;

/// Rows that are read together, at least: the stride of the row index of text.
const TEXT_BLOCK: NonZeroU64 = NonZeroU64::new(256).expect("not zero");

/// The same of Parquet, whose every read begins with the dictionary of each column.
const PARQUET_BLOCK: NonZeroU64 = NonZeroU64::new(4096).expect("not zero");

/// How the rows of a data set become values: a format with fixed columns, or the columns of the table itself.
#[derive(Debug)]
pub(super) enum Layout {
    Fixed(Fixed),
    Table(Table),
}

/// A data set in files of one format. Its rows are read by range when a batch needs them, so the memory in
/// use does not grow with the size of the files.
#[derive(Debug)]
pub struct StoredRows {
    layout: Layout,
    rows: Rows,
    /// Which rows are in which file; `None` if that says nothing of a row.
    files: Option<DatasetLayout>,
}

#[derive(Debug)]
enum Rows {
    Text(Reader<Delimited>, Dialect),
    Parquet(Reader<Parquet>),
}

/// Settings with which files of rows are opened.
#[derive(Debug)]
pub struct Opening<'a> {
    /// Folder for indexes, and for copies of files that cannot be read by range.
    pub cache: &'a Cache,
    /// Memory for rows that were read, in bytes.
    pub budget_bytes: usize,
}

impl StoredRows {
    /// Opens a file, the files of a folder in the order of their names, or what a URL names: text or Parquet,
    /// plain or compressed. A `format` of `None` is detected from the first file, and is a table if the user says something of its
    /// columns.
    ///
    /// Files without an index in the cache are read once: each row of text is checked, and each label of Parquet. `announce` is called with a line for each
    /// file that has to be copied first, and with what the columns of a table became.
    ///
    /// # Errors
    /// If a file cannot be read or a row has the wrong columns; see [`DatasetError`].
    pub fn open(
        path: &Path,
        format: Option<Format>,
        columns: &ColumnChoice,
        opening: &Opening<'_>,
        announce: Notify<'_>,
    ) -> Result<Self, DatasetError> {
        let sources = source::seekable(path, opening.cache, announce)?;
        let Some(first) = sources.first() else {
            return Err(DatasetError::Empty { path: path.into() });
        };
        let is_parquet = first.container()? == Container::Parquet;
        let name = first.path().display().to_string();
        let folders = FolderColumns::of(path, sources.iter().map(Source::path))?;
        let opened = if is_parquet {
            Self::parquet(sources, &folders, format, columns, opening)?
        } else {
            Self::text(sources, &folders, format, columns, opening)?
        };
        match &opened.layout {
            Layout::Table(table) => {
                table.lines().iter().for_each(|line| announce(&format_args!("{name}: {line}")));
            }
            Layout::Fixed(fixed) if !folders.keys().is_empty() => announce(&format_args!(
                "{name}: what the folders say ({}=…) is no column of the format {}",
                folders.keys().join("=…, "),
                fixed.name()
            )),
            Layout::Fixed(_) => {}
        }
        Ok(opened)
    }

    fn parquet(
        sources: Vec<Source>,
        folders: &FolderColumns,
        format: Option<Format>,
        columns: &ColumnChoice,
        opening: &Opening<'_>,
    ) -> Result<Self, DatasetError> {
        let layout = Layout::of_parquet(&sources[0], folders, format, columns)?;
        let data = match &layout {
            Layout::Fixed(_) => Parquet::of(sources)?,
            Layout::Table(table) => Parquet::of_columns(sources, &table.wanted())?,
        };
        let place = IndexPlace::Folder(opening.cache.folder().into());
        let checked = layout.checked();
        let check = |at: usize, value: Value<'_>| layout.check_value(checked[at], value);
        let check = ColumnCheck { name: layout.check_name(), columns: &checked, check: &check };
        let data = data.sealed(&place, check)?;
        let files = layout.uses_folders().then(|| data.file_layout());
        let rows = Rows::Parquet(Reader::new(data, PARQUET_BLOCK, opening.budget_bytes));
        Ok(Self { layout, rows, files })
    }

    fn text(
        sources: Vec<Source>,
        folders: &FolderColumns,
        format: Option<Format>,
        columns: &ColumnChoice,
        opening: &Opening<'_>,
    ) -> Result<Self, DatasetError> {
        let (layout, dialect) = Layout::of_text(&sources[0], folders, format, columns)?;
        let place = IndexPlace::Folder(opening.cache.folder().into());
        let check = RowCheck { name: layout.check_name(), check: &|dialect, row| layout.check(dialect, row) };
        let data = Delimited::of(sources, dialect, &place, check)?;
        let files = layout.uses_folders().then(|| data.layout().clone());
        let rows = Rows::Text(Reader::new(data, TEXT_BLOCK, opening.budget_bytes), dialect);
        Ok(Self { layout, rows, files })
    }
}

impl Layout {
    pub(super) fn of_parquet(
        first: &Source,
        folders: &FolderColumns,
        format: Option<Format>,
        columns: &ColumnChoice,
    ) -> Result<Self, DatasetError> {
        let names: Vec<String> = Parquet::fields(first)?.into_iter().map(|field| field.name).collect();
        let fixed = match format.map(Format::kind) {
            Some(Kind::Table(Kept::Text { .. })) => {
                return Err(other_file(format, first, "parquet, or left out"));
            }
            Some(Kind::Table(Kept::Parquet)) => None,
            Some(Kind::Fixed(fixed)) if fixed.columns() != names.len() => {
                let (format, due) = (fixed.name(), fixed.columns());
                return Err(DatasetError::Columns {
                    path: first.path().into(),
                    found: names.len(),
                    format,
                    due,
                });
            }
            Some(Kind::Fixed(fixed)) => Some(fixed),
            None => Fixed::of_names(&names).filter(|_| columns.is_empty()),
        };
        match fixed {
            Some(fixed) => Ok(Self::Fixed(with_own_columns(fixed, columns)?)),
            None => Ok(Self::Table(Table::of_parquet(first, folders, columns)?)),
        }
    }

    pub(super) fn of_text(
        first: &Source,
        folders: &FolderColumns,
        format: Option<Format>,
        columns: &ColumnChoice,
    ) -> Result<(Self, Dialect), DatasetError> {
        let begin = first.first(SAMPLE_LEN_BYTES)?;
        let fixed_of =
            |fixed| Fixed::of_text(first.path(), &begin[..begin.len().min(BEGIN_LEN_BYTES)], fixed);
        let (tabs, fixed) = match format.map(Format::kind) {
            Some(Kind::Table(Kept::Parquet)) => {
                return Err(other_file(format, first, "csv or tsv, or left out"));
            }
            Some(Kind::Table(Kept::Text { tabs })) => (Some(tabs), None),
            Some(Kind::Fixed(fixed)) => (None, fixed_of(Some(with_own_columns(fixed, columns)?))?),
            None if columns.is_empty() => (None, fixed_of(None)?),
            None => (None, None),
        };
        if let Some((fixed, dialect)) = fixed {
            return Ok((Self::Fixed(fixed), dialect));
        }
        let whole = begin.len() as u64 == first.len_bytes();
        let (table, dialect) = Table::of_text(first.path(), (&begin, whole), tabs, folders, columns)?;
        Ok((Self::Table(table), dialect))
    }

    pub(super) fn schema(&self) -> Schema {
        match self {
            Self::Fixed(fixed) => fixed.schema(),
            Self::Table(table) => table.schema(),
        }
    }

    pub(super) fn label_kind(&self) -> LabelKind {
        match self {
            Self::Fixed(_) => LabelKind::Binary,
            Self::Table(table) => table.label_kind(),
        }
    }

    fn check_name(&self) -> &str {
        match self {
            Self::Fixed(fixed) => fixed.check_name(),
            Self::Table(table) => table.check_name(),
        }
    }

    fn check(&self, dialect: Dialect, row: &[u8]) -> Result<(), String> {
        match self {
            Self::Fixed(fixed) => fixed.check(dialect, row),
            Self::Table(table) => table.check(dialect, row),
        }
    }

    /// The columns of Parquet, of those that are read, that can have values which no job can use.
    fn checked(&self) -> Vec<usize> {
        match self {
            Self::Fixed(fixed) => vec![fixed.label()],
            Self::Table(table) => table.checked(),
        }
    }

    /// Checks a value of one of these columns.
    fn check_value(&self, column: usize, value: Value<'_>) -> Result<(), String> {
        match self {
            Self::Fixed(fixed) => fixed.check_value(column, value),
            Self::Table(table) => table.check_value(column, value),
        }
    }

    /// Parses a row of one of the files into `batch`, which holds a part of it if that fails.
    pub(super) fn parse_text(
        &self,
        dialect: Dialect,
        (row, file): (&[u8], usize),
        batch: &mut RowBatch,
    ) -> Result<(), String> {
        match self {
            Self::Fixed(fixed) => fixed.parse_text(dialect, row, batch),
            Self::Table(table) => table.parse_text(dialect, (row, file), batch),
        }
    }

    /// The same of Parquet.
    pub(super) fn parse_values(
        &self,
        (row, file): (&ColumnRow<'_>, usize),
        batch: &mut RowBatch,
    ) -> Result<(), String> {
        match self {
            Self::Fixed(fixed) => fixed.parse_values(row, batch),
            Self::Table(table) => table.parse_values((row, file), batch),
        }
    }

    fn uses_folders(&self) -> bool {
        match self {
            Self::Fixed(_) => false,
            Self::Table(table) => table.uses_folders(),
        }
    }

    /// A checksum of the files' content with all else that says what the rows are.
    fn identified(&self, content: u32) -> u32 {
        match self {
            Self::Fixed(_) => content,
            Self::Table(table) => {
                let said = table.identity();
                fnv1a(content.to_le_bytes().iter().chain(said.as_bytes()))
            }
        }
    }
}

/// The files are of another kind than the format that was named.
fn other_file(format: Option<Format>, first: &Source, expected: &str) -> DatasetError {
    let name = format.map(Format::name).unwrap_or_default();
    let expected = format!("{expected}: {} is another kind of file", first.path().display());
    InvalidValue::new("--format", name, expected).into()
}

/// Refuses to change what the columns of a fixed format are.
fn with_own_columns(fixed: Fixed, columns: &ColumnChoice) -> Result<Fixed, DatasetError> {
    if columns.is_empty() {
        return Ok(fixed);
    }
    let expected = "csv, tsv or parquet with --label, --categorical, --numeric, --ignore or --task: the columns of this one are fixed";
    Err(InvalidValue::new("--format", fixed.name(), expected).into())
}

impl Dataset for StoredRows {
    fn rows(&self) -> u64 {
        match &self.rows {
            Rows::Text(reader, _) => reader.data().num_samples(),
            Rows::Parquet(reader) => reader.data().num_samples(),
        }
    }

    fn schema(&self) -> Schema {
        self.layout.schema()
    }

    fn label_kind(&self) -> LabelKind {
        self.layout.label_kind()
    }

    fn content_checksum(&self) -> Option<u32> {
        let content = match &self.rows {
            Rows::Text(reader, _) => reader.data().content_checksum(),
            Rows::Parquet(reader) => reader.data().content_checksum()?,
        };
        Some(self.layout.identified(content))
    }

    fn read(&mut self, rows: &[u64], batch: &mut RowBatch) -> Result<(), RowError> {
        let (layout, files) = (&self.layout, &self.files);
        let file_of = |row| files.as_ref().and_then(|files| files.locate(row)).map_or(0, |(file, _)| file);
        let mut wrong = None;
        let mut parsed = |row: u64, parsed: Result<(), String>| {
            if let Err(why) = parsed {
                wrong.get_or_insert(RowError { row, why });
            }
        };
        let done = match &mut self.rows {
            Rows::Text(reader, dialect) => reader.read(rows, |row, text| {
                parsed(row, layout.parse_text(*dialect, (text, file_of(row)), batch));
            }),
            Rows::Parquet(reader) => reader.read(rows, |row, values| {
                parsed(row, layout.parse_values((&values, file_of(row)), batch));
            }),
        };
        done.map_err(|error| RowError { row: error.sample(), why: error.to_string() })?;
        // Text was checked when it was opened, and its lines are not counted here.
        wrong.map_or(Ok(()), |error| match &self.rows {
            Rows::Parquet(reader) if let Some((path, row)) = reader.data().place(error.row) => {
                let why = format!("{} row {}: {}", path.display(), row + 1, error.why);
                Err(RowError { why, ..error })
            }
            _ => Err(error),
        })
    }
}
