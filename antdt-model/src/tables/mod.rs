//! [`Tables`]: all tables of a model, or one server's part of each, behind one numbering of rows.
//!
//! Rows are the layout's joint rows, ascending, and their values stand one after another, so that a caller need not know
//! which table a row lies in. A joint row belongs to the partition that [`PartitionMap::owner`] says, whatever its table: batches
//! touch neighbouring rows, and so spread over all partitions.

use std::ops::Range;

use antdt_core::{InvalidValue, ParamLayout, Seed};

use crate::gradient::SparseGradient;
use crate::optimizer::{Optimizer, Update};
use crate::partition::PartitionMap;
use crate::table::{SparseTable, TableError, initial};

/// See the [module](self).
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    layout: ParamLayout,
    tables: Vec<SparseTable>,
    map: PartitionMap,
    partition: u32,
}

impl Tables {
    /// All of the layout's tables, with room for what `optimizer` keeps. The first table's rows start as `seed` says, those of the
    /// others by seeds derived from it.
    ///
    /// # Errors
    /// If a table does not fit into memory.
    pub(crate) fn new(
        layout: &ParamLayout,
        optimizer: &dyn Optimizer,
        seed: Seed,
    ) -> Result<Self, InvalidValue> {
        Self::partition(layout, optimizer, seed, 0, PartitionMap::new(1, 0)?)
    }

    /// The same for the rows of one partition of `map`.
    ///
    /// # Errors
    /// If a table does not fit into memory, or there is no such partition.
    pub(crate) fn partition(
        layout: &ParamLayout,
        optimizer: &dyn Optimizer,
        seed: Seed,
        partition: u32,
        map: PartitionMap,
    ) -> Result<Self, InvalidValue> {
        if partition >= map.servers() {
            return Err(InvalidValue::new("table.partition", partition, format!("below {}", map.servers())));
        }
        let table = |(number, spec): (usize, &antdt_core::TableSpec)| {
            let rows = map.own_rows(partition, layout.first_row(number));
            SparseTable::of_rows(spec.clone(), optimizer, table_seed(seed, number), rows)
        };
        let tables = layout.tables().iter().enumerate().map(table).collect::<Result<_, _>>()?;
        Ok(Self { layout: layout.clone(), tables, map, partition })
    }

    /// Shape of the whole model.
    pub(crate) const fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    /// The table of a model that has one, and no more.
    #[cfg(feature = "runtime")]
    pub(crate) const fn only(&self) -> Option<&SparseTable> {
        match self.tables.as_slice() {
            [table] => Some(table),
            _ => None,
        }
    }

    /// As [`only`](Self::only), to be changed.
    #[cfg(feature = "runtime")]
    pub(crate) const fn only_mut(&mut self) -> Option<&mut SparseTable> {
        match self.tables.as_mut_slice() {
            [table] => Some(table),
            _ => None,
        }
    }

    /// Rows that a gradient has changed.
    pub(crate) fn stored_rows(&self) -> usize {
        self.tables.iter().map(SparseTable::stored_rows).sum()
    }

    /// Rows of each table that a gradient has changed.
    pub(crate) fn stored_by_table(&self) -> impl Iterator<Item = usize> {
        self.tables.iter().map(SparseTable::stored_rows)
    }

    /// Appends the values of `rows` to `into`.
    ///
    /// # Errors
    /// If a row is not this partition's or out of order; `into` is then as it was.
    pub(crate) fn gather(&self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), TableError> {
        if let [table] = &self.tables[..] {
            return table.gather(rows, into);
        }
        self.check(rows)?;
        for (table, part) in self.tables.iter().zip(self.layout.by_table(rows)) {
            table.gather(&own(rows, &part), into)?;
        }
        Ok(())
    }

    /// One step of the optimizer on `rows` with their sums of gradients.
    ///
    /// # Errors
    /// If a row is not this partition's or out of order, or the lengths do not fit; nothing is then changed.
    pub(crate) fn apply(
        &mut self,
        rows: &[u64],
        sums: &[f32],
        update: &Update<'_>,
    ) -> Result<(), TableError> {
        self.each(rows, sums, |table, rows, sums| table.apply(rows, sums, update))
    }

    /// Sets `rows` to `values`; what the optimizer keeps stays.
    ///
    /// # Errors
    /// If a row is not this partition's or out of order, or the lengths do not fit; nothing is then changed.
    pub(crate) fn set_rows(&mut self, rows: &[u64], values: &[f32]) -> Result<(), TableError> {
        self.each(rows, values, SparseTable::set_rows)
    }

    fn each(
        &mut self,
        rows: &[u64],
        values: &[f32],
        mut change: impl FnMut(&mut SparseTable, &[u64], &[f32]) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        if let [table] = &mut self.tables[..] {
            return change(table, rows, values);
        }
        self.check_values(rows, values)?;
        for (table, part) in self.tables.iter_mut().zip(self.layout.by_table(rows)) {
            change(table, &own(rows, &part), &values[part.values.clone()])?;
        }
        Ok(())
    }

    /// Adds the gradients of several batches, row by row, in the order given, as [`SparseGradient::merge`] does.
    pub(crate) fn merge(&self, parts: &[&SparseGradient]) -> SparseGradient {
        let mut total = SparseGradient::default();
        let split: Vec<_> = parts.iter().map(|part| self.layout.by_table(&part.rows)).collect();
        for (number, spec) in self.layout.tables().iter().enumerate() {
            let of_table = parts.iter().zip(&split).map(|(part, split)| {
                let place = &split[number];
                (&part.rows[place.rows.clone()], &part.values[place.values.clone()])
            });
            let merged = SparseGradient::merge(of_table, spec.dim);
            if total.rows.is_empty() {
                total = merged;
            } else {
                total.rows.extend_from_slice(&merged.rows);
                total.values.extend_from_slice(&merged.values);
            }
        }
        total
    }

    /// Checks that `rows` ascend, exist and are all this partition's.
    pub(crate) fn check(&self, rows: &[u64]) -> Result<(), TableError> {
        let (most, mut before) = (self.layout.rows(), None);
        for row in rows {
            if *row >= most {
                return Err(TableError::OutOfRange { row: *row, rows: most });
            }
            if let Some(before) = before.filter(|before| before >= row) {
                return Err(TableError::Order { row: *row, before });
            }
            let owner = self.map.owner(*row);
            if owner != self.partition {
                return Err(TableError::Elsewhere { row: *row, owner, partition: self.partition });
            }
            before = Some(*row);
        }
        Ok(())
    }

    /// Checks the rows, and that there are as many values as they have.
    pub(crate) fn check_values(&self, rows: &[u64], values: &[f32]) -> Result<(), TableError> {
        self.check(rows)?;
        let due = self.layout.rows_len(rows);
        if values.len() != due {
            return Err(TableError::Length { values: values.len(), rows: rows.len(), due });
        }
        Ok(())
    }

    /// The value with which a joint row starts, for as many values as it has. The row was checked.
    pub(crate) fn initial(&self, row: u64, into: &mut [f32]) {
        let number = self.layout.table_of(row).expect("the row was checked");
        self.tables[number].initial(row - self.layout.first_row(number), into);
    }

    /// The stored rows in ascending order: joint row, values, what the optimizer keeps.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (u64, &[f32], &[f32])> {
        self.tables.iter().enumerate().flat_map(|(number, table)| {
            let first = self.layout.first_row(number);
            table.stored().map(move |(row, values, state)| (first + row, values, state))
        })
    }

    /// Whether a joint row is this partition's.
    pub(crate) fn holds(&self, row: u64) -> bool {
        self.map.owner(row) == self.partition
    }

    /// Overwrites a row and what the optimizer keeps for it. The row was checked; the slices have its length.
    pub(crate) fn overwrite(&mut self, row: u64, values: &[f32], state: &[f32]) {
        let number = self.layout.table_of(row).expect("the row was checked");
        self.tables[number].overwrite(row - self.layout.first_row(number), values, state);
    }
}

/// What the rows of a table start from, in a model whose rows start as `seed` says.
fn table_seed(seed: Seed, number: usize) -> Seed {
    match number {
        0 => seed,
        number => seed.derive("table").derive_number(number as u64),
    }
}

/// Appends the initial values of some rows of a table, `[rows, dim]`, to `into`. These are the values,
/// computed from `seed`, of every row that no gradient has touched.
///
/// # Panics
/// If there is no such table.
pub fn initial_rows(layout: &ParamLayout, seed: Seed, table: usize, rows: Range<u64>, into: &mut Vec<f32>) {
    let (spec, seed) = (&layout.tables()[table], table_seed(seed, table));
    for row in rows {
        let start = into.len();
        into.resize(start + spec.dim, 0.0);
        initial(spec, seed, row, &mut into[start..]);
    }
}

/// The rows of one table by its own numbers.
fn own(rows: &[u64], part: &antdt_core::TableRows<'_>) -> Vec<u64> {
    rows[part.rows.clone()].iter().map(|row| row - part.first).collect()
}

#[cfg(test)]
mod tests;
