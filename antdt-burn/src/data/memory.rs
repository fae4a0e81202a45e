//! A data set that was decoded into memory.

use std::path::Path;

use super::lines::Lines;
use super::{Dataset, Format, MISSING, OpenError, RowBatch, RowError, Schema, adult, criteo, source};

/// Rows of files, parsed once and held in memory: 4 bytes a column and 1 for the label.
///
/// Files are read as a stream; only the compact form stays. A Criteo row takes 157 bytes.
#[derive(Debug)]
pub struct MemoryDataset {
    schema: Schema,
    rows: RowSink,
}

impl MemoryDataset {
    /// Parses a file, or the files of a folder in the order of their names; plain or gzip. `format` of `None` is
    /// detected from the first file.
    ///
    /// # Errors
    /// If a file cannot be read or a row has the wrong shape; see [`OpenError`].
    pub fn open(path: &Path, format: Option<Format>) -> Result<Self, OpenError> {
        let files = source::files(path)?;
        let format = match (format, files.first()) {
            (Some(format), _) => format,
            (None, Some(first)) => Format::detect(first)?,
            (None, None) => return Err(OpenError::Empty { path: path.into() }),
        };
        let mut rows = RowSink::default();
        for file in &files {
            let mut lines = Lines::open(file)?;
            while let Some((line, text)) = lines.next_row()? {
                let place = Place { path: file, line };
                match format {
                    Format::Criteo => criteo::parse(text, place, &mut rows)?,
                    Format::Adult => adult::parse(text, place, &mut rows)?,
                }
            }
        }
        if rows.labels.is_empty() {
            return Err(OpenError::Empty { path: path.into() });
        }
        Ok(Self { schema: format.schema(), rows })
    }
}

impl Dataset for MemoryDataset {
    fn rows(&self) -> u64 {
        self.rows.labels.len() as u64
    }

    fn schema(&self) -> Schema {
        self.schema
    }

    fn read(&self, rows: &[u64], batch: &mut RowBatch) -> Result<(), RowError> {
        let (numeric, categorical) = (self.schema.numeric.len(), self.schema.categorical);
        for row in rows {
            let missing = RowError { row: *row, rows: self.rows() };
            let at = usize::try_from(*row).map_err(|_| missing)?;
            let label = self.rows.labels.get(at).ok_or(missing)?;
            batch.labels.push(f32::from(u8::from(*label)));
            batch.numeric.extend_from_slice(&self.rows.numeric[at * numeric..][..numeric]);
            batch.categories.extend_from_slice(&self.rows.categories[at * categorical..][..categorical]);
        }
        Ok(())
    }
}

/// Where a parser puts the values of a row, column by column. A row that fails half-way fails the whole data set.
#[derive(Debug, Default)]
pub(super) struct RowSink {
    labels: Vec<bool>,
    numeric: Vec<i32>,
    categories: Vec<u32>,
}

impl RowSink {
    pub(super) fn label(&mut self, label: bool) {
        self.labels.push(label);
    }

    pub(super) fn numeric(&mut self, value: i32) {
        self.numeric.push(value);
    }

    pub(super) fn category(&mut self, code: u32) {
        self.categories.push(code);
    }
}

/// Where a row stands, for the errors about it.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    path: &'a Path,
    line: u64,
}

impl Place<'_> {
    /// The number in a column. Numbers beyond 32 bits are cut to the nearest that fits: buckets that far out are
    /// wider than the cut.
    pub(super) fn integer(self, column: usize, token: &[u8]) -> Result<i32, OpenError> {
        let value: i64 = std::str::from_utf8(token)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| self.value(column, token, "an integer"))?;
        let value = value.clamp(i64::from(MISSING) + 1, i64::from(i32::MAX));
        Ok(i32::try_from(value).expect("the value was just clamped to this range"))
    }

    /// The error for a column, counted from 0 here and from 1 in the message.
    pub(super) fn value(self, column: usize, token: &[u8], expected: &'static str) -> OpenError {
        let found = String::from_utf8_lossy(token).chars().take(40).collect();
        OpenError::Value { path: self.path.into(), line: self.line, column: column + 1, found, expected }
    }

    /// The error for a row of the wrong width.
    pub(super) fn columns(
        self,
        found: usize,
        expected: usize,
        format: Format,
        what: &'static str,
    ) -> OpenError {
        OpenError::Columns { path: self.path.into(), line: self.line, found, expected, format, what }
    }
}
