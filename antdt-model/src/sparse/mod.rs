//! Gradients of tables: each rank sends the rows it touched, not the table.
//!
//! A rank first sums its own duplicates. Each row then goes to its owner, which sums what came in order of rank
//! and sends the totals to all. With `d` distinct rows per rank, `u` distinct rows of all `n` ranks and rows of `r`
//! bytes, a rank sends about `(n-1)/n·(d + u)·r` bytes; an all-reduce of the whole table of `R` rows sends
//! `2(n-1)/n·R·r`. When ranks touch much of a small table, the whole table is cheaper, and it is what is sent:
//! [`cheaper`] decides, from the counts of all ranks, the same on all. One owner, or one all-reduce, forms each total,
//! so all ranks have the same bits either way.
//!
//! Rejected: everybody sends everybody its rows, which is simpler but sends `(n-1)·d` rows; owners by ranges of rows,
//! as batches touch neighbouring rows together and would load one owner; the owners' totals as the answer, since every
//! rank needs the rows of all.
//!
//! Source: our design; the owners are those of the parameter server, [`PartitionMap`].

use antdt_collective::compress::PayloadError;
use antdt_core::InvalidValue;

use crate::{PartitionMap, SparseGradient};

/// Shape of a table whose gradient is exchanged. The same on all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableShape {
    /// Values per row.
    pub dim: usize,
    /// Rows are below this; `None` where there is no bound, and the whole table is never sent.
    pub rows: Option<u64>,
}

/// How a sparse gradient travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Rows to their owners, totals to all.
    Owners,
    /// The whole table by all-reduce.
    Dense,
}

/// The route with fewer bytes, from the numbers of distinct rows that each rank touched.
///
/// Over all ranks, and divided by `(n-1)/n`, owners cost `(Σd + n·min(Σd, R))·(8 + 4·dim)` at most, as nobody knows
/// before the exchange how many rows ranks have in common. The table costs `2n·R·4·(dim + 1)`, with one value per row
/// that says whether anybody touched it. The owners are taken when both cost the same.
pub fn cheaper(counts: &[u64], shape: TableShape) -> Route {
    let Some(rows) = shape.rows.map(u128::from) else { return Route::Owners };
    let (world, dim) = (counts.len() as u128, shape.dim as u128);
    let touched: u128 = counts.iter().map(|count| u128::from(*count)).sum();
    let owners = (touched + world * touched.min(rows)).saturating_mul(8 + 4 * dim);
    let dense = (2 * world * rows).saturating_mul(4 * (dim + 1));
    if owners <= dense { Route::Owners } else { Route::Dense }
}

/// Sums rows that are listed more than once, in the order in which they are listed, and puts the rows in order.
///
/// # Errors
/// If there are not `dim` values for each row, or a row is beyond the table.
pub fn sum_duplicates(
    rows: &[u64],
    values: &[f32],
    shape: TableShape,
) -> Result<SparseGradient, InvalidValue> {
    let dim = shape.dim;
    if rows.len().checked_mul(dim) != Some(values.len()) {
        let due = format!("{dim} for each of {} rows", rows.len());
        return Err(InvalidValue::new("sparse.values", values.len(), due));
    }
    if let (Some(row), Some(bound)) = (rows.iter().max(), shape.rows)
        && *row >= bound
    {
        return Err(InvalidValue::new("sparse.rows", row, format!("below {bound}")));
    }
    if rows.is_sorted_by(|a, b| a < b) {
        return Ok(SparseGradient { rows: rows.to_vec(), values: values.to_vec() });
    }
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|index| rows[*index]);
    let mut total =
        SparseGradient { rows: Vec::with_capacity(rows.len()), values: Vec::with_capacity(values.len()) };
    for index in order {
        let value = &values[index * dim..(index + 1) * dim];
        if total.rows.last() == Some(&rows[index]) {
            let start = total.values.len() - dim;
            total.values[start..].iter_mut().zip(value).for_each(|(sum, value)| *sum += value);
        } else {
            total.rows.push(rows[index]);
            total.values.extend_from_slice(value);
        }
    }
    Ok(total)
}

/// The rows of each owner with their gradients, in the order given.
pub fn split(gradient: &SparseGradient, dim: usize, owners: &PartitionMap) -> Vec<SparseGradient> {
    let mut split = vec![SparseGradient::default(); owners.servers() as usize];
    for (index, row) in gradient.rows.iter().enumerate() {
        let part = &mut split[owners.owner(*row) as usize];
        part.rows.push(*row);
        part.values.extend_from_slice(&gradient.values[index * dim..(index + 1) * dim]);
    }
    split
}

/// On the wire: all rows, 8 bytes each, then all values.
pub fn encode(gradient: &SparseGradient) -> Vec<u8> {
    [bytemuck::cast_slice::<u64, u8>(&gradient.rows), bytemuck::cast_slice(&gradient.values)].concat()
}

/// Reads rows back.
///
/// # Errors
/// If the bytes are no whole number of rows, or the rows do not ascend or lie beyond the table.
pub fn decode(bytes: &[u8], shape: TableShape) -> Result<SparseGradient, PayloadError> {
    let entry = 8 + 4 * shape.dim;
    if !bytes.len().is_multiple_of(entry) {
        return Err(PayloadError::Entries { got: bytes.len(), entry });
    }
    let (rows, values) = bytes.split_at(bytes.len() / entry * 8);
    let rows: Vec<u64> = bytemuck::pod_collect_to_vec(rows);
    let len = shape.rows.unwrap_or(u64::MAX);
    let mut before = None;
    for row in &rows {
        if before.is_some_and(|before| before >= *row) || shape.rows.is_some_and(|bound| *row >= bound) {
            return Err(PayloadError::Order { place: *row, before, len });
        }
        before = Some(*row);
    }
    Ok(SparseGradient { rows, values: bytemuck::pod_collect_to_vec(values) })
}

/// The whole table, `[rows, dim + 1]`: the last value of a row is the number of ranks that touched it.
///
/// # Errors
/// If the table has no bound or does not fit into memory.
///
/// # Panics
/// If the gradient has rows beyond the table.
pub fn to_dense(gradient: &SparseGradient, shape: TableShape) -> Result<Vec<f32>, InvalidValue> {
    let width = shape.dim + 1;
    let len = shape.rows.and_then(|rows| usize::try_from(rows).ok()).and_then(|rows| rows.checked_mul(width));
    let mut dense =
        vec![0.0; len.ok_or_else(|| InvalidValue::new("sparse.table", format!("{shape:?}"), "in memory"))?];
    for (index, row) in gradient.rows.iter().enumerate() {
        #[allow(clippy::cast_possible_truncation, reason = "a row of a table that is in memory")]
        let (values, touched) = dense[*row as usize * width..][..width].split_at_mut(shape.dim);
        values.copy_from_slice(&gradient.values[index * shape.dim..(index + 1) * shape.dim]);
        touched[0] = 1.0;
    }
    Ok(dense)
}

/// The touched rows of a whole table as [`to_dense`] makes it.
pub fn from_dense(dense: &[f32], dim: usize) -> SparseGradient {
    let mut gradient = SparseGradient::default();
    for (row, values) in (0..).zip(dense.chunks_exact(dim + 1)) {
        if values[dim] > 0.0 {
            gradient.rows.push(row);
            gradient.values.extend_from_slice(&values[..dim]);
        }
    }
    gradient
}

#[cfg(test)]
mod tests;
