//! Decodes a piece of a column chunk with the `parquet` crate.

use std::any::Any;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use ::parquet::data_type::DataType;
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::ColumnChunkMetaData;
use ::parquet::file::serialized_reader::SerializedPageReader;
use antdt_core::SampleRange;

use super::column::{Column, Texts, Values};

/// Records decoded at once: a page that lies about its length cannot make the decoder ask for more memory than this.
const STEP: usize = 16 << 10;

/// Appends rows of one column of a row group to `column`; the group has `total` rows.
pub(super) fn append(
    file: &Arc<File>,
    chunk: impl FnOnce() -> Result<ColumnChunkMetaData, ParquetError>,
    total: usize,
    rows: SampleRange,
    column: &mut Column,
) -> Result<(), String> {
    guarded(|| {
        let chunk = chunk()?;
        let pages = SerializedPageReader::new(Arc::clone(file), &chunk, total, None)?;
        let descriptor = chunk.column_descr_ptr();
        let highest = descriptor.max_def_level();
        let cursor = Cursor { rows, highest, valid: &mut column.valid };
        match (get_column_reader(descriptor, Box::new(pages)), &mut column.values) {
            (ColumnReader::BoolColumnReader(reader), Values::Bool(out)) => cursor.numbers(reader, out),
            (ColumnReader::Int32ColumnReader(reader), Values::I32(out)) => cursor.numbers(reader, out),
            (ColumnReader::Int64ColumnReader(reader), Values::I64(out)) => cursor.numbers(reader, out),
            (ColumnReader::FloatColumnReader(reader), Values::F32(out)) => cursor.numbers(reader, out),
            (ColumnReader::DoubleColumnReader(reader), Values::F64(out)) => cursor.numbers(reader, out),
            (ColumnReader::ByteArrayColumnReader(reader), Values::Bytes(out)) => cursor.texts(reader, out),
            (ColumnReader::FixedLenByteArrayColumnReader(reader), Values::Bytes(out)) => {
                cursor.texts(reader, out)
            }
            _ => Err(ParquetError::General("its type is not the one in the schema".into())),
        }
    })
}

/// Where decoded values go.
struct Cursor<'a> {
    rows: SampleRange,
    /// The definition level of a value that is there.
    highest: i16,
    valid: &'a mut Option<Vec<bool>>,
}

impl Cursor<'_> {
    fn numbers<T>(self, reader: ColumnReaderImpl<T>, out: &mut Vec<T::T>) -> Result<(), ParquetError>
    where
        T: DataType,
        T::T: Copy + Default,
    {
        self.walk(reader, |value| out.push(value.copied().unwrap_or_default()))
    }

    fn texts<T>(self, reader: ColumnReaderImpl<T>, out: &mut Texts) -> Result<(), ParquetError>
    where
        T: DataType,
        T::T: AsRef<[u8]>,
    {
        self.walk(reader, |value| out.push(value.map_or(&[], AsRef::as_ref)))
    }

    /// Calls `push` once for each row, with its value if it has one.
    fn walk<T: DataType>(
        self,
        mut reader: ColumnReaderImpl<T>,
        mut push: impl FnMut(Option<&T::T>),
    ) -> Result<(), ParquetError> {
        let short = || ParquetError::EOF("a column has fewer rows than its row group".into());
        let skip = usize::try_from(self.rows.start)?;
        if reader.skip_records(skip)? != skip {
            return Err(short());
        }
        let mut due = usize::try_from(self.rows.len())?;
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        while due > 0 {
            values.clear();
            levels.clear();
            let wanted = due.min(STEP);
            let nullable = self.highest > 0;
            let (records, _, _) =
                reader.read_records(wanted, nullable.then_some(&mut levels), None, &mut values)?;
            if records == 0 || records > wanted {
                return Err(short());
            }
            due -= records;
            if !nullable {
                if values.len() != records {
                    return Err(short());
                }
                values.iter().for_each(|value| push(Some(value)));
                if let Some(valid) = self.valid {
                    valid.resize(valid.len() + records, true);
                }
                continue;
            }
            let there = levels.iter().filter(|level| **level == self.highest).count();
            if levels.len() != records || there != values.len() {
                return Err(short());
            }
            let mut values = values.iter();
            for level in &levels {
                push(if *level == self.highest { values.next() } else { None });
            }
            if let Some(valid) = self.valid {
                valid.extend(levels.iter().map(|level| *level == self.highest));
            }
        }
        Ok(())
    }
}

/// Runs code of the `parquet` crate on bytes of unknown origin. It answers nearly all of them with an error; where it
/// panics all the same (as version 60.1 did for 7 of 6,000 damaged files), the shard is at fault and not the worker.
pub(super) fn guarded<T>(decode: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(panic) => Err(format!("its bytes contradict each other ({})", said(&*panic))),
    }
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given")
}
