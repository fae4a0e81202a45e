//! Rows of Parquet files in memory, column by column.

use antdt_core::SampleRange;

use crate::rows::Rows;

/// The rows of a range of samples in memory, column by column.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnRows {
    pub(super) range: SampleRange,
    pub(super) columns: Vec<Column>,
}

/// One column of a range of samples in memory: one value per row.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub(super) name: String,
    pub(super) values: Values,
    /// Whether each row has a value; `None` if the column has no nulls.
    pub(super) valid: Option<Vec<bool>>,
}

/// The values of a column, `[rows]`, as Parquet stores them: decimals, times and unsigned numbers are not
/// converted. Rows without a value hold zero, `false` or no bytes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Values {
    /// Values of the physical type BOOLEAN.
    Bool(Vec<bool>),
    /// Values of the physical type INT32.
    I32(Vec<i32>),
    /// Values of the physical type INT64.
    I64(Vec<i64>),
    /// Values of the physical type FLOAT.
    F32(Vec<f32>),
    /// Values of the physical type DOUBLE.
    F64(Vec<f64>),
    /// Values of the physical types BYTE_ARRAY and FIXED_LEN_BYTE_ARRAY.
    Bytes(Texts),
}

/// The byte strings of a column, in one buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    pub(super) fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    /// Returns the number of byte strings.
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there is no byte string.
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the byte string of a row, counted from 0; `None` beyond the last.
    pub fn get(&self, row: usize) -> Option<&[u8]> {
        let end = *self.ends.get(row)?;
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes.get(start..end)
    }
}

impl Column {
    /// Returns the name of the column; the fields of a struct are named with a dot.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the values, `[rows]`.
    pub const fn values(&self) -> &Values {
        &self.values
    }

    /// Returns, for each row, whether it has a value, `[rows]`; `None` if all rows have one.
    pub fn valid(&self) -> Option<&[bool]> {
        self.valid.as_deref()
    }

    /// Memory that it holds.
    fn len_bytes(&self) -> usize {
        let values = match &self.values {
            Values::Bool(values) => values.capacity(),
            Values::I32(values) => 4 * values.capacity(),
            Values::I64(values) => 8 * values.capacity(),
            Values::F32(values) => 4 * values.capacity(),
            Values::F64(values) => 8 * values.capacity(),
            Values::Bytes(texts) => texts.bytes.capacity() + size_of::<usize>() * texts.ends.capacity(),
        };
        values + self.valid.as_ref().map_or(0, Vec::capacity)
    }

    fn value(&self, row: usize) -> Option<Value<'_>> {
        if self.valid.as_ref().is_some_and(|valid| valid.get(row) == Some(&false)) {
            return Some(Value::Null);
        }
        match &self.values {
            Values::Bool(values) => values.get(row).map(|value| Value::Bool(*value)),
            Values::I32(values) => values.get(row).map(|value| Value::I32(*value)),
            Values::I64(values) => values.get(row).map(|value| Value::I64(*value)),
            Values::F32(values) => values.get(row).map(|value| Value::F32(*value)),
            Values::F64(values) => values.get(row).map(|value| Value::F64(*value)),
            Values::Bytes(texts) => texts.get(row).map(Value::Bytes),
        }
    }
}

impl ColumnRows {
    /// Returns the columns, in the order of the projection.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }
}

impl Rows for ColumnRows {
    type Row<'a> = ColumnRow<'a>;

    fn range(&self) -> SampleRange {
        self.range
    }

    fn row(&self, sample: u64) -> Option<ColumnRow<'_>> {
        let known = self.range.start <= sample && sample < self.range.end;
        let at = usize::try_from(sample.checked_sub(self.range.start)?).ok()?;
        known.then_some(ColumnRow { columns: &self.columns, at })
    }

    fn len_bytes(&self) -> usize {
        self.columns.iter().map(Column::len_bytes).sum()
    }
}

/// One row of several columns.
#[derive(Debug, Clone, Copy)]
pub struct ColumnRow<'a> {
    columns: &'a [Column],
    at: usize,
}

impl<'a> ColumnRow<'a> {
    /// Returns the value in a column, counted from 0 in the order of the projection; `None` if there is no
    /// such column.
    pub fn value(&self, column: usize) -> Option<Value<'a>> {
        self.columns.get(column)?.value(self.at)
    }

    /// Returns the values of all columns, in the order of the projection.
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + Clone + use<'a> {
        let at = self.at;
        self.columns.iter().filter_map(move |column| column.value(at))
    }
}

/// The value of one column in one row.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// The row has no value in this column.
    Null,
    /// A value of the physical type BOOLEAN.
    Bool(bool),
    /// A value of the physical type INT32.
    I32(i32),
    /// A value of the physical type INT64.
    I64(i64),
    /// A value of the physical type FLOAT.
    F32(f32),
    /// A value of the physical type DOUBLE.
    F64(f64),
    /// A value of the physical types BYTE_ARRAY and FIXED_LEN_BYTE_ARRAY.
    Bytes(&'a [u8]),
}
