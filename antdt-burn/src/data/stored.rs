//! Data sets of rows in files, read by range.

use std::num::NonZeroU64;
use std::path::Path;

use antdt_data::{Cache, Container, Delimited, Dialect, IndexPlace, Parquet, Reader, Splitter, UnpackNotice};

use super::{Dataset, DatasetError, Format, RowBatch, RowError, Schema, source};

/// Bytes of a text file in which its first row is looked for.
const BEGIN_LEN_BYTES: u64 = 64 << 10;

/// Rows that are read together, at least: the stride of the row index of text.
const TEXT_BLOCK: NonZeroU64 = NonZeroU64::new(256).expect("not zero");

/// The same of Parquet, whose every read begins with the dictionary of each column.
const PARQUET_BLOCK: NonZeroU64 = NonZeroU64::new(4096).expect("not zero");

/// A data set in files of one format. Its rows are read by range when a batch needs them, so the memory in
/// use does not grow with the size of the files.
#[derive(Debug)]
pub struct StoredRows {
    format: Format,
    rows: Rows,
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
    /// plain or compressed. A `format` of `None` is detected from the first file.
    ///
    /// Text without an index in the cache is read once, and each row of it is checked. `announce` is called
    /// for files that have to be copied first.
    ///
    /// # Errors
    /// If a file cannot be read or a row has the wrong columns; see [`DatasetError`].
    pub fn open(
        path: &Path,
        format: Option<Format>,
        opening: &Opening<'_>,
        announce: &mut dyn FnMut(&UnpackNotice),
    ) -> Result<Self, DatasetError> {
        let mut sources = Vec::new();
        for found in source::sources(path)? {
            sources.push(found.seekable(opening.cache, announce)?);
        }
        let Some(first) = sources.first() else {
            return Err(DatasetError::Empty { path: path.into() });
        };
        let first_path = first.path().to_owned();
        if first.container()? == Container::Parquet {
            let data = Parquet::of(sources)?;
            let found = data.columns().count();
            let format = match format {
                Some(format) if format.columns() == found => format,
                None if let Some(format) = Format::of_columns(found) => format,
                format => {
                    let due = format.map(|format| (format.name(), format.columns()));
                    return Err(DatasetError::Columns { path: first_path, found, due });
                }
            };
            let rows = Rows::Parquet(Reader::new(data, PARQUET_BLOCK, opening.budget_bytes));
            return Ok(Self { format, rows });
        }
        let (format, dialect) = Format::of_text(&first_path, &first.first(BEGIN_LEN_BYTES)?, format)?;
        let place = IndexPlace::Folder(opening.cache.folder().into());
        let data = Delimited::of(sources, dialect, &place, format.check())?;
        let rows = Rows::Text(Reader::new(data, TEXT_BLOCK, opening.budget_bytes), dialect);
        Ok(Self { format, rows })
    }
}

impl Dataset for StoredRows {
    fn rows(&self) -> u64 {
        match &self.rows {
            Rows::Text(reader, _) => reader.data().num_samples(),
            Rows::Parquet(reader) => reader.data().num_samples(),
        }
    }

    fn schema(&self) -> Schema {
        self.format.schema()
    }

    fn read(&mut self, rows: &[u64], batch: &mut RowBatch) -> Result<(), RowError> {
        let format = self.format;
        let mut wrong = None;
        let mut parsed = |row: u64, parsed: Result<(), String>| {
            if let Err(why) = parsed {
                wrong.get_or_insert(RowError { row, why });
            }
        };
        let done = match &mut self.rows {
            Rows::Text(reader, dialect) => reader.read(rows, |row, text| {
                parsed(row, format.parse_text(*dialect, text, batch));
            }),
            Rows::Parquet(reader) => reader.read(rows, |row, values| {
                parsed(row, format.parse_values(&values, batch));
            }),
        };
        done.map_err(|error| RowError { row: error.sample(), why: error.to_string() })?;
        wrong.map_or(Ok(()), Err)
    }
}
