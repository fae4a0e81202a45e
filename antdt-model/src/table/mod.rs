//! A table of embedding rows of which a batch touches few; one partition of it, or all.
//!
//! Rows are spread over partitions by `row % partitions`, or by their weights ([`PartitionMap`](crate::PartitionMap)): batches touch
//! neighbouring rows of one column of the data together, and so spread over all. A row's first value is a pure function of (seed, row), so that it is computed
//! when it is read and stored only once a gradient has changed it; pages that no gradient has touched cost no memory.
//! Reading 13 000 rows of 16 is one pass of indexed copies: no hashing, no allocation.
//!
//! Rejected: a hash map from row to values (three to five times slower, and its order is not deterministic);
//! storing initial values up front (64 MB per million rows of 16, of which a short job touches a fraction).

use antdt_core::{InvalidValue, Seed, TableSpec};

use crate::optimizer::{Optimizer, Update};
use crate::partition::OwnRows;

/// Reason why rows of a table cannot be read or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The table has no such row.
    #[error("row {row} does not exist, the table has {rows}")]
    OutOfRange {
        /// Index of the row.
        row: u64,
        /// Number of rows of the table.
        rows: u64,
    },
    /// The row belongs to another partition.
    #[error("row {row} belongs to partition {owner}, this is {partition}")]
    Elsewhere {
        /// Index of the row.
        row: u64,
        /// Index of the partition that owns the row.
        owner: u32,
        /// Index of the partition that was asked.
        partition: u32,
    },
    /// The rows are not in ascending order, or one is listed twice.
    #[error("row {row} comes after row {before}; rows must ascend, each listed once")]
    Order {
        /// Index of the row.
        row: u64,
        /// Index of the row before it.
        before: u64,
    },
    /// The number of values does not fit the number of rows.
    #[error("{values} values came for {rows} rows, which have {due}")]
    Length {
        /// Number of values that the caller passed.
        values: usize,
        /// Number of rows that the caller passed.
        rows: usize,
        /// Values that these rows have.
        due: usize,
    },
}

/// The rows of one partition of an embedding table, with their optimizer state.
#[derive(Debug, Clone)]
pub struct SparseTable {
    spec: TableSpec,
    seed: Seed,
    rows: OwnRows,
    // The partition's row of number `local` lies at `local * dim`; zeros until `stored` says otherwise.
    values: Aligned,
    // What the optimizer keeps of that row lies at `local * dim * state_per_value`: the first numbers of all its values, then
    // the second ones.
    state: Aligned,
    state_per_value: usize,
    stored: Vec<u64>,
    stored_rows: usize,
}

impl SparseTable {
    // Rows touched before they are used. 64 rows of 16 fill an eighth of the first cache; fewer overlap less.
    const AHEAD: usize = 64;

    /// Returns partition `partition` of `partitions` of a table. Its rows start with values from `seed`; it
    /// has room for the state of `optimizer`.
    ///
    /// # Errors
    /// If the table's settings are invalid, `partition` is not below `partitions`, or the address space of
    /// this process is too small for it.
    pub fn new(
        spec: TableSpec,
        optimizer: &dyn Optimizer,
        seed: Seed,
        partition: u32,
        partitions: u32,
    ) -> Result<Self, InvalidValue> {
        if partition >= partitions {
            return Err(InvalidValue::new("table.partition", partition, format!("below {partitions}")));
        }
        Self::of_rows(spec, optimizer, seed, OwnRows::Every { partition, partitions })
    }

    /// The same for any rows of the table.
    ///
    /// # Errors
    /// If the table's settings are invalid, or the address space of this process is too small for it.
    pub(crate) fn of_rows(
        spec: TableSpec,
        optimizer: &dyn Optimizer,
        seed: Seed,
        rows: OwnRows,
    ) -> Result<Self, InvalidValue> {
        spec.validate()?;
        let local_rows = rows.count(spec.rows);
        let too_big = || {
            InvalidValue::new(
                "table.rows",
                spec.rows,
                format!("small enough for memory at {} values per row", spec.dim),
            )
        };
        let local_rows = usize::try_from(local_rows).map_err(|_| too_big())?;
        let len = local_rows.checked_mul(spec.dim).ok_or_else(too_big)?;
        let state_per_value = optimizer.state_per_value();
        let state_len = len.checked_mul(state_per_value).ok_or_else(too_big)?;
        // Asks the allocator first: `vec![0.0; n]` would end the process where this says no.
        let most = len.checked_add(state_len).and_then(|most| most.checked_add(64)).ok_or_else(too_big)?;
        Vec::<f32>::new().try_reserve_exact(most).map_err(|_| too_big())?;
        Ok(Self {
            spec,
            seed,
            rows,
            values: Aligned::zeros(len),
            state: Aligned::zeros(state_len),
            state_per_value,
            stored: vec![0; local_rows.div_ceil(64)],
            stored_rows: 0,
        })
    }

    /// Returns the shape of the whole table.
    pub const fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// Returns the number of rows that a gradient has changed.
    pub const fn stored_rows(&self) -> usize {
        self.stored_rows
    }

    /// Appends the values of `rows`, `[rows, dim]`, to `into`. `rows` ascend, each once.
    ///
    /// # Errors
    /// If a row does not belong to this partition or is out of order; `into` is then as it was.
    pub fn gather(&self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), TableError> {
        self.check(rows)?;
        let dim = self.spec.dim;
        into.reserve(rows.len() * dim);
        for rows in rows.chunks(Self::AHEAD) {
            self.touch(&self.values, dim, rows);
            for row in rows {
                let local = self.local(*row);
                if self.is_stored(local) {
                    into.extend_from_slice(&self.values[local * dim..][..dim]);
                } else {
                    let start = into.len();
                    into.resize(start + dim, 0.0);
                    initial(&self.spec, self.seed, *row, &mut into[start..]);
                }
            }
        }
        Ok(())
    }

    /// Applies an optimizer step to `rows` with their sums of gradients, `[rows, dim]`. Other rows, and their
    /// optimizer state, do not change.
    ///
    /// # Errors
    /// If a row does not belong to this partition or is out of order, or the lengths do not fit; nothing is
    /// changed then.
    pub fn apply(&mut self, rows: &[u64], sums: &[f32], update: &Update<'_>) -> Result<(), TableError> {
        self.check(rows)?;
        let dim = self.spec.dim;
        if rows.len() * dim != sums.len() {
            return Err(TableError::Length { values: sums.len(), rows: rows.len(), due: rows.len() * dim });
        }
        let state_dim = dim * self.state_per_value;
        for (rows, sums) in rows.chunks(Self::AHEAD).zip(sums.chunks(Self::AHEAD * dim)) {
            self.touch(&self.values, dim, rows);
            self.touch(&self.state, state_dim, rows);
            for (row, sums) in rows.iter().zip(sums.chunks_exact(dim)) {
                let local = self.store(*row);
                let values = &mut self.values[local * dim..][..dim];
                let state = &mut self.state[local * state_dim..][..state_dim];
                let (first, second) = state.split_at_mut(dim.min(state_dim));
                update(values, [first, second], sums);
            }
        }
        Ok(())
    }

    /// Sets `rows` to `values`, `[rows, dim]`; the optimizer's state stays.
    ///
    /// # Errors
    /// If a row does not belong to this partition or is out of order, or the lengths do not fit; nothing is
    /// then changed.
    pub fn set_rows(&mut self, rows: &[u64], values: &[f32]) -> Result<(), TableError> {
        self.check(rows)?;
        let dim = self.spec.dim;
        if rows.len() * dim != values.len() {
            return Err(TableError::Length { values: values.len(), rows: rows.len(), due: rows.len() * dim });
        }
        for (row, values) in rows.iter().zip(values.chunks_exact(dim)) {
            let local = self.store(*row);
            self.values[local * dim..][..dim].copy_from_slice(values);
        }
        Ok(())
    }

    /// Checks that `rows` ascend and are all this partition's.
    pub(crate) fn check(&self, rows: &[u64]) -> Result<(), TableError> {
        let mut before = None;
        for row in rows {
            if *row >= self.spec.rows {
                return Err(TableError::OutOfRange { row: *row, rows: self.spec.rows });
            }
            if let Some(before) = before.filter(|before| before >= row) {
                return Err(TableError::Order { row: *row, before });
            }
            let (owner, partition) = (self.rows.owner(*row), self.rows.partition());
            if owner != partition {
                return Err(TableError::Elsewhere { row: *row, owner, partition });
            }
            before = Some(*row);
        }
        Ok(())
    }

    /// The value with which a row starts, for `[dim]` values.
    pub(crate) fn initial(&self, row: u64, into: &mut [f32]) {
        initial(&self.spec, self.seed, row, into);
    }

    /// The stored rows in ascending order: row, values, state.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (u64, &[f32], &[f32])> {
        let dim = self.spec.dim;
        let state_dim = dim * self.state_per_value;
        self.stored.iter().enumerate().flat_map(move |(word, bits)| {
            set_bits(*bits).map(move |bit| {
                let local = word * 64 + bit;
                (
                    self.rows.row(local),
                    &self.values[local * dim..][..dim],
                    &self.state[local * state_dim..][..state_dim],
                )
            })
        })
    }

    /// Appends the values of a row and its state. The row was checked.
    #[cfg(feature = "runtime")]
    pub(crate) fn read_kept(&self, row: u64, into: &mut Vec<f32>) {
        let (local, dim) = (self.local(row), self.spec.dim);
        let state_dim = dim * self.state_per_value;
        if self.is_stored(local) {
            into.extend_from_slice(&self.values[local * dim..][..dim]);
            into.extend_from_slice(&self.state[local * state_dim..][..state_dim]);
        } else {
            let start = into.len();
            into.resize(start + dim + state_dim, 0.0);
            self.initial(row, &mut into[start..start + dim]);
        }
    }

    /// Overwrites a row and its state. The row was checked; `values` and `state` have a row's length.
    pub(crate) fn overwrite(&mut self, row: u64, values: &[f32], state: &[f32]) {
        let local = self.store(row);
        self.values[local * values.len()..][..values.len()].copy_from_slice(values);
        self.state[local * state.len()..][..state.len()].copy_from_slice(state);
    }

    #[inline]
    fn local(&self, row: u64) -> usize {
        self.rows.number(row)
    }

    fn is_stored(&self, local: usize) -> bool {
        self.stored[local / 64] >> (local % 64) & 1 == 1
    }

    // Loads the beginning of each stored row, so that the misses of many rows overlap before any of them is waited for.
    // Halves the time of a look-up in a table larger than the cache.
    fn touch(&self, array: &[f32], stride: usize, rows: &[u64]) {
        let stored = rows.iter().map(|row| self.local(*row)).filter(|local| self.is_stored(*local));
        let sum: f32 = stored.map(|local| array.get(local * stride).copied().unwrap_or_default()).sum();
        std::hint::black_box(sum);
    }

    // Writes the row's first value if nothing is stored yet; returns where it lies.
    fn store(&mut self, row: u64) -> usize {
        let local = self.local(row);
        if !self.is_stored(local) {
            let dim = self.spec.dim;
            initial(&self.spec, self.seed, row, &mut self.values[local * dim..][..dim]);
            self.stored[local / 64] |= 1 << (local % 64);
            self.stored_rows += 1;
        }
        local
    }
}

/// Which bits are 1, ascending. Most words of a large table are 0, and cost one comparison.
fn set_bits(bits: u64) -> impl Iterator<Item = usize> {
    let rest = |bits: u64| (bits != 0).then_some(bits);
    std::iter::successors(rest(bits), move |bits| rest(bits & (bits - 1)))
        .map(|bits| bits.trailing_zeros() as usize)
}

/// The value with which a row starts.
pub(crate) fn initial(spec: &TableSpec, seed: Seed, row: u64, into: &mut [f32]) {
    let mut rng = seed.derive_number(row).rng();
    for value in into {
        // 24 bits fill an f32 exactly, so the result stays below the upper end.
        #[allow(clippy::cast_precision_loss, reason = "24 bits fit")]
        let unit = (rng.next_u64() >> 40) as f32 / (1 << 24) as f32;
        *value = (2.0 * unit - 1.0) * spec.init_scale;
    }
}

/// Floats that begin at a cache line, so that a row of 16 is one line and not parts of two: half the misses of a
/// look-up. The allocator gives zeros without touching them only at its own alignment, so the beginning is found
/// within a slightly longer vector.
#[derive(Debug, Clone)]
struct Aligned {
    storage: Vec<f32>,
    start: usize,
    len: usize,
}

impl Aligned {
    const LINE_BYTES: usize = 64;

    fn zeros(len: usize) -> Self {
        let spare = Self::LINE_BYTES / size_of::<f32>();
        let storage = vec![0.0; len + spare];
        let start = storage.as_ptr().align_offset(Self::LINE_BYTES).min(spare);
        Self { storage, start, len }
    }
}

impl std::ops::Deref for Aligned {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.storage[self.start..][..self.len]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.storage[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests;
