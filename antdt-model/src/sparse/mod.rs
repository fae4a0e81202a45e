//! Gradients of tables: each rank sends the rows it touched, not the table.
//!
//! With `d` distinct rows per rank, `u` distinct rows of all `n` ranks and rows of `r` bytes, a rank sends by each
//! [`Route`]:
//!
//! | route | bytes of a rank | calls |
//! |---|---|---|
//! | each rank sends its rows to all, and sums all | `(n-1)·d·r` | 1 |
//! | owners: each row to its owner, the owners' totals to all | `(n-1)/n·(d + u)·r` | 2 |
//! | dense: the table of `R` rows by all-reduce | `2(n-1)/n·R·r` | 1 |
//!
//! Owners pay when many ranks touch the same rows, the table when ranks touch most of it. [`Overlap::cheapest`] decides,
//! the same on all ranks: from the counts of all ranks, and from `u`, which no rank knows before the exchange, as it was
//! in the exchange before. Each total is formed in order of rank, by one owner or by all alike, so all ranks have the
//! same bits by every route.
//!
//! Rejected: owners by ranges of rows, as batches touch neighbouring rows together and would load one owner; the owners'
//! totals as the answer, since every rank needs the rows of all.
//!
//! Source: our design; the owners are those of the parameter server, [`PartitionMap`].

use antdt_collective::compress::PayloadError;
use antdt_core::InvalidValue;

use crate::{PartitionMap, SparseGradient};

/// Shape of a table whose gradient is exchanged. All members must pass the same shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableShape {
    /// Number of values per row.
    pub dim: usize,
    /// Number of rows of the table; `None` if it is unbounded, so that the whole table is never sent.
    pub rows: Option<u64>,
}

/// Way in which the ranks exchange a sparse gradient; see the [module](self) for the cost of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Each rank sends its rows to all ranks.
    Everyone,
    /// Each rank sends rows to their owners, and the owners send the totals to all.
    Owners,
    /// The ranks all-reduce the whole table.
    Dense,
}

/// What one more collective call costs, in bytes that a rank could send meanwhile: some 20 µs at 1 GB/s.
const CALL_BYTES: u128 = 20 << 10;

/// Number of rows that the ranks had in common in the previous exchange, as a forecast of the next one. It is
/// the same on all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overlap {
    // Rows of all ranks, each as often as it was touched.
    touched: u64,
    // Each once.
    distinct: u64,
}

impl Overlap {
    /// Records an exchange: `touched` counts a row once for each rank that touched it, `distinct` counts each
    /// row once.
    pub fn saw(&mut self, touched: u64, distinct: u64) {
        *self = Self { touched, distinct };
    }

    /// Returns the cheapest route; `counts` holds, by rank, the number of distinct rows touched. Of several
    /// with equal cost it is the first in the order of [`Route`]. Before the first exchange, ranks count as
    /// having no row in common.
    pub fn cheapest(&self, counts: &[u64], shape: TableShape) -> Route {
        let (world, dim) = (counts.len() as u128, shape.dim as u128);
        let touched: u128 = counts.iter().map(|count| u128::from(*count)).sum();
        let most = shape.rows.map_or(u128::MAX, u128::from);
        let distinct = match self.touched {
            0 => touched,
            before => (touched * u128::from(self.distinct)).div_ceil(u128::from(before)),
        };
        let entry = 8 + 4 * dim;
        // Bytes of all ranks together, times n / (n - 1); that of the calls alike, as if n / (n - 1) were 1.
        let everyone = (world * touched).saturating_mul(entry);
        let owners = (touched + world * distinct.min(most)).saturating_mul(entry);
        let owners = owners.saturating_add(world * CALL_BYTES);
        // One value per row says whether a rank touched it.
        let dense = match shape.rows {
            Some(rows) => (2 * world * u128::from(rows)).saturating_mul(4 * (dim + 1)),
            None => u128::MAX,
        };
        if everyone <= owners.min(dense) {
            Route::Everyone
        } else if owners <= dense {
            Route::Owners
        } else {
            Route::Dense
        }
    }
}

/// Adds up the values of rows that are listed more than once, in the order in which they are listed, and
/// sorts the rows.
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

/// Splits a gradient by the owners of its rows; the rows keep their order.
pub fn split(gradient: &SparseGradient, dim: usize, owners: &PartitionMap) -> Vec<SparseGradient> {
    let mut split = vec![SparseGradient::default(); owners.servers() as usize];
    for (index, row) in gradient.rows.iter().enumerate() {
        let part = &mut split[owners.owner(*row) as usize];
        part.rows.push(*row);
        part.values.extend_from_slice(&gradient.values[index * dim..(index + 1) * dim]);
    }
    split
}

/// Encodes a gradient for the wire: all rows, 8 bytes each, then all values.
pub fn encode(gradient: &SparseGradient) -> Vec<u8> {
    [bytemuck::cast_slice::<u64, u8>(&gradient.rows), bytemuck::cast_slice(&gradient.values)].concat()
}

/// Decodes a gradient that [`encode`] wrote.
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

/// Expands a gradient to the whole table, `[rows, dim + 1]`: the last value of a row is the number of ranks
/// that touched it.
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

/// Returns the touched rows of a whole table that [`to_dense`] made.
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
