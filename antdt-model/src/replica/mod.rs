//! A whole model in one process: what each worker holds under all-reduce, and hands to those that join.

use antdt_core::{InvalidValue, OptimizerSpec, ParamLayout, Seed};

use crate::gradient::{SparseGradient, mean_scale};
use crate::optimizer::{DenseParams, state_per_value};
use crate::table::{SparseTable, TableError, no_rows};

/// Bytes that are not a model for this job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Not an exported model, or one of another version.
    #[error("not an exported model of version {}", Replica::VERSION)]
    Format,
    /// Cut off or damaged.
    #[error("the exported model of {len} bytes is damaged: {what}")]
    Damaged {
        /// Bytes that came.
        len: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A model of another shape or optimizer.
    #[error("the exported model has {field} {theirs}, this job {ours}")]
    Shape {
        /// What differs.
        field: &'static str,
        /// In the bytes.
        theirs: u64,
        /// In this job.
        ours: u64,
    },
}

/// All parameters of a model with their optimizer's state.
#[derive(Debug, Clone)]
pub struct Replica {
    dense: DenseParams,
    table: Option<SparseTable>,
}

impl Replica {
    /// Version of the exported form. A process reads no other.
    pub const VERSION: u32 = 1;
    const MAGIC: [u8; 4] = *b"ADTM";
    // Magic, version, dense length, floats of state per value, rows, dim, stored rows.
    const HEAD_LEN: usize = 4 + 4 + 5 * 8;
    const CRC_LEN: usize = 4;

    /// A model that no gradient has touched. `dense` is `[dense_len]`; rows of the table start as `seed` says.
    ///
    /// # Errors
    /// If the layout or the optimizer makes no sense, or `dense` has another length than the layout says.
    pub fn new(
        layout: &ParamLayout,
        optimizer: OptimizerSpec,
        seed: Seed,
        dense: Vec<f32>,
    ) -> Result<Self, InvalidValue> {
        optimizer.validate()?;
        if dense.len() != layout.dense_len {
            return Err(InvalidValue::new(
                "dense parameters",
                dense.len(),
                format!("{} values", layout.dense_len),
            ));
        }
        let table = layout.table.map(|spec| SparseTable::new(spec, optimizer, seed, 0, 1)).transpose()?;
        Ok(Self { dense: DenseParams::new(optimizer, dense), table })
    }

    /// The flat vector, `[dense_len]`.
    pub fn dense(&self) -> &[f32] {
        self.dense.values()
    }

    /// Appends the values of `rows`, `[rows, dim]`, to `into`. Rows ascend, each listed once; there are none if the
    /// model has no table.
    ///
    /// # Errors
    /// If a row does not exist or is out of order.
    pub fn gather(&self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), TableError> {
        match &self.table {
            Some(table) => table.gather(rows, into),
            None => no_rows(rows),
        }
    }

    /// One optimizer step with the mean over `samples` of the summed gradients. No samples: nothing changes.
    ///
    /// # Errors
    /// If the lengths do not fit the model, or a row does not exist or is out of order; nothing is then changed.
    pub fn apply(
        &mut self,
        dense_sum: &[f32],
        rows: &SparseGradient,
        samples: u64,
    ) -> Result<(), TableError> {
        self.check_len(dense_sum)?;
        if samples == 0 {
            return Ok(());
        }
        let scale = mean_scale(samples);
        match &mut self.table {
            Some(table) => table.apply(&rows.rows, &rows.values, scale)?,
            None => no_rows(&rows.rows)?,
        }
        self.dense.apply(dense_sum, scale);
        Ok(())
    }

    /// Sets the flat vector, and these rows of the table, to other values; the optimizer's state stays.
    ///
    /// # Errors
    /// If the lengths do not fit the model, or a row does not exist or is out of order; nothing is then changed.
    pub fn set(&mut self, dense: &[f32], rows: &SparseGradient) -> Result<(), TableError> {
        self.check_len(dense)?;
        match &mut self.table {
            Some(table) => table.set_rows(&rows.rows, &rows.values)?,
            None => no_rows(&rows.rows)?,
        }
        self.dense.values_mut().copy_from_slice(dense);
        Ok(())
    }

    /// Values per row of the table; 0 without a table.
    pub fn dim(&self) -> usize {
        self.table.as_ref().map_or(0, |table| table.spec().dim)
    }

    fn check_len(&self, dense: &[f32]) -> Result<(), TableError> {
        let (values, rows) = (dense.len(), self.dense.values().len());
        if values == rows { Ok(()) } else { Err(TableError::Length { values, rows, dim: 1 }) }
    }

    /// The model as bytes, optimizer state included. Rows that no gradient has touched are left out: the importer
    /// computes them.
    pub fn export(&self) -> Vec<u8> {
        let (values, state) = (self.dense.values(), self.dense.state());
        let (rows, dim) = self.table.as_ref().map_or((0, 0), |table| (table.spec().rows, table.spec().dim));
        let stored = self.table.as_ref().map_or(0, SparseTable::stored_rows);
        let state_per_value = state_per_value(self.dense.spec());
        let row_len = 8 + dim * 4 * (1 + state_per_value);
        let len =
            Self::HEAD_LEN + size_of_val(values) + size_of_val(state) + stored * row_len + Self::CRC_LEN;
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(&Self::MAGIC);
        bytes.extend_from_slice(&Self::VERSION.to_le_bytes());
        for number in [values.len() as u64, state_per_value as u64, rows, dim as u64, stored as u64] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(bytemuck::cast_slice(values));
        bytes.extend_from_slice(bytemuck::cast_slice(state));
        for (row, values, state) in self.table.iter().flat_map(SparseTable::stored) {
            bytes.extend_from_slice(&row.to_le_bytes());
            bytes.extend_from_slice(bytemuck::cast_slice(values));
            bytes.extend_from_slice(bytemuck::cast_slice(state));
        }
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads what [`export`](Self::export) wrote. Layout, optimizer and seed are this job's; the exporter must have
    /// had the same.
    ///
    /// # Errors
    /// If the bytes are damaged, of another version, or a model of another shape.
    pub fn import(
        bytes: &[u8],
        layout: &ParamLayout,
        optimizer: OptimizerSpec,
        seed: Seed,
    ) -> Result<Self, ImportError> {
        let damaged = |what| ImportError::Damaged { len: bytes.len(), what };
        let (content, checksum) =
            bytes.split_last_chunk::<{ Self::CRC_LEN }>().ok_or_else(|| damaged("it is cut off"))?;
        if !content.starts_with(&Self::MAGIC) || content.get(4..8) != Some(&Self::VERSION.to_le_bytes()[..]) {
            return Err(ImportError::Format);
        }
        if crc32c::crc32c(content) != u32::from_le_bytes(*checksum) {
            return Err(damaged("its checksum is wrong"));
        }
        let head = content.get(8..Self::HEAD_LEN).ok_or_else(|| damaged("it is cut off"))?;
        let mut rest = &content[Self::HEAD_LEN..];
        let mut numbers =
            head.chunks_exact(8).map(|b| b.iter().rev().fold(0_u64, |n, b| n << 8 | u64::from(*b)));
        let mut number = || numbers.next().unwrap_or_default();
        let per_value = state_per_value(optimizer);
        let (rows, dim) = layout.table.map_or((0, 0), |table| (table.rows, table.dim));
        let expected = [
            ("dense parameters", layout.dense_len as u64),
            ("optimizer state per parameter", per_value as u64),
            ("table rows", rows),
            ("table columns", dim as u64),
        ];
        for (field, ours) in expected {
            let theirs = number();
            if theirs != ours {
                return Err(ImportError::Shape { field, theirs, ours });
            }
        }
        let stored = number();
        let mut floats = |len: usize| {
            let (taken, left) = rest.split_at_checked(len * 4)?;
            rest = left;
            Some(bytemuck::pod_collect_to_vec::<u8, f32>(taken))
        };
        let values = floats(layout.dense_len).ok_or_else(|| damaged("it is cut off"))?;
        let state = floats(layout.dense_len * per_value).ok_or_else(|| damaged("it is cut off"))?;
        let dense =
            DenseParams::from_parts(optimizer, values, state).ok_or_else(|| damaged("lengths differ"))?;
        let row_len = 8 + dim * 4 * (1 + per_value);
        if (stored as u128) * (row_len as u128) != rest.len() as u128 {
            return Err(damaged("its length does not fit its rows"));
        }
        let mut table = layout
            .table
            .map(|spec| SparseTable::new(spec, optimizer, seed, 0, 1))
            .transpose()
            .map_err(|_| damaged("its table does not fit in memory"))?;
        if let Some(table) = &mut table {
            let mut before = None;
            for row_bytes in rest.chunks_exact(row_len) {
                let (row, floats) =
                    row_bytes.split_first_chunk::<8>().ok_or_else(|| damaged("it is cut off"))?;
                let row = u64::from_le_bytes(*row);
                if row >= rows || before.is_some_and(|before| before >= row) {
                    return Err(damaged("its rows are out of order"));
                }
                before = Some(row);
                let floats = bytemuck::pod_collect_to_vec::<u8, f32>(floats);
                table.overwrite(row, &floats[..dim], &floats[dim..]);
            }
        }
        Ok(Self { dense, table })
    }
}

#[cfg(test)]
mod tests;
