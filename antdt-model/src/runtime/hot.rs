//! [`HotTable`]: a table whose hot rows lie in the memory of a GPU, with what the optimizer keeps of them.
//!
//! A batch is gathered where its hot rows lie, and a step changes them there; the other rows stay in the host's memory. The
//! values, and what is kept of them, are those of a [`SparseTable`] that takes the same steps, to the bit. Which rows are hot,
//! [`HotRows`] decides. What reads the table as a whole, a checkpoint or a copy for another worker, has the changed rows
//! [settled](HotTable::settle) first.

use std::sync::Arc;

use antdt_collective::runtime::DevicePlace;
use antdt_collective::runtime::rows::{RowMemory, RowShape, RowsError};
use antdt_core::InvalidValue;

use crate::hot::{Hot, HotRows};
use crate::optimizer::{Optimizer, UpdateStep};
use crate::table::{SparseTable, TableError};

/// Reason why the rows of a hot table cannot be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HotError {
    /// The rows or values do not fit the table; nothing has changed.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The GPU memory failed. The values of the hot rows are lost, and the table must not be used any more.
    #[error(transparent)]
    Memory(#[from] RowsError),
}

/// A table whose most used rows lie in GPU memory, with their optimizer state. See the [module](self).
#[derive(Debug)]
pub struct HotTable {
    table: SparseTable,
    optimizer: Arc<dyn Optimizer>,
    hot: HotRows,
    memory: Box<dyn RowMemory>,
    /// Slots, and numbers of rows, of the call that is under way.
    slots: Vec<u32>,
    numbers: Vec<f32>,
}

impl HotTable {
    /// Returns the shape of the slots for rows of `dim` values under this optimizer.
    pub fn shape(dim: usize, optimizer: &dyn Optimizer) -> RowShape {
        RowShape { dim, state_per_value: optimizer.state_per_value() }
    }

    /// Wraps a table, none of whose rows is hot yet. All steps are taken by `optimizer`; `memory` holds the
    /// hot rows.
    ///
    /// # Errors
    /// If the table is only a partition, the memory has slots of another shape, or there is no kernel for the optimizer.
    pub fn new(
        table: SparseTable,
        optimizer: Arc<dyn Optimizer>,
        memory: Box<dyn RowMemory>,
    ) -> Result<Self, InvalidValue> {
        let rows = usize::try_from(table.spec().rows).ok().filter(|_| table.is_whole());
        let rows = rows.ok_or_else(|| InvalidValue::new("hot rows of", "a partition", "a whole table"))?;
        let (shape, due) = (memory.shape(), Self::shape(table.spec().dim, &*optimizer));
        if shape != due {
            return Err(InvalidValue::new("shape of slots", format!("{shape:?}"), format!("{due:?}")));
        }
        let any = UpdateStep { number: 1, rate: 0.0, scale: 0.0, decay: 0.0 };
        if optimizer.row_step(any).is_none() {
            let expected = "one with a kernel, such as adagrad; rows of others stay in the host's memory";
            return Err(InvalidValue::new("optimizer", optimizer.name(), expected));
        }
        let hot = HotRows::new(rows, memory.slots());
        Ok(Self { table, optimizer, hot, memory, slots: Vec::new(), numbers: Vec::new() })
    }

    /// Returns the number of rows in GPU memory.
    pub const fn hot_rows(&self) -> usize {
        self.hot.len()
    }

    /// Gathers the values of `rows`, `[rows, dim]`, in GPU memory, and returns their place; they stay there
    /// until the next batch. `rows` ascend, each once.
    ///
    /// # Errors
    /// If a row does not exist or is out of order, or the memory fails.
    pub fn batch(&mut self, rows: &[u64]) -> Result<DevicePlace, HotError> {
        self.table.check(rows)?;
        let moves = self.hot.touch(rows);
        self.take_back(&moves.out)?;
        self.slots.clear();
        self.numbers.clear();
        for Hot { row, slot } in moves.into {
            self.slots.push(slot);
            self.table.read_kept(row, &mut self.numbers);
        }
        self.memory.write(&self.slots, &self.numbers)?;
        let guests = rows.iter().zip(&moves.places).filter(|(_, place)| place.is_none());
        let guests: Vec<u64> = guests.map(|(row, _)| *row).collect();
        self.numbers.clear();
        self.table.gather(&guests, &mut self.numbers)?;
        Ok(self.memory.gather(&moves.places, &self.numbers)?)
    }

    /// Appends the values of the last [batch](Self::batch), for a trainer that computes on the host.
    ///
    /// # Errors
    /// If the memory fails.
    pub fn gathered(&mut self, into: &mut Vec<f32>) -> Result<(), HotError> {
        Ok(self.memory.gathered(into)?)
    }

    /// Takes one step of the optimizer on `rows` with their sums of gradients, `[rows, dim]`: rows of this
    /// batch and of other workers' batches. Other rows, and their optimizer state, do not change.
    ///
    /// # Errors
    /// If a row does not exist or is out of order, or the lengths do not fit; nothing is then changed. Or the memory fails.
    pub fn apply(&mut self, rows: &[u64], sums: &[f32], step: UpdateStep) -> Result<(), HotError> {
        self.table.check(rows)?;
        let dim = self.table.spec().dim;
        let due = rows.len() * dim;
        if sums.len() != due {
            return Err(TableError::Length { values: sums.len(), rows: rows.len(), due }.into());
        }
        self.slots.clear();
        self.numbers.clear();
        let (mut cold, mut cold_sums) = (Vec::new(), Vec::new());
        for (row, sums) in rows.iter().zip(sums.chunks_exact(dim)) {
            if let Some(slot) = self.hot.slot(*row) {
                self.slots.push(slot);
                self.numbers.extend_from_slice(sums);
            } else {
                cold.push(*row);
                cold_sums.extend_from_slice(sums);
            }
        }
        self.table.apply(&cold, &cold_sums, &self.optimizer.begin(step))?;
        let step = self.optimizer.row_step(step).expect("the optimizer has a kernel, as was checked");
        self.memory.update(&self.slots, &self.numbers, &step)?;
        self.hot.change(rows);
        Ok(())
    }

    /// Appends the values of `rows`, `[rows, dim]`, to `into`, in host memory, for an evaluation or an
    /// average of models.
    ///
    /// # Errors
    /// If a row does not exist or is out of order, or the memory fails.
    pub fn gather(&mut self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), HotError> {
        self.table.check(rows)?;
        let changed = self.hot.write_back(rows);
        self.take_back(&changed)?;
        Ok(self.table.gather(rows, into)?)
    }

    /// Sets `rows` to `values`, `[rows, dim]`; their optimizer state stays. The rows lose their slots in GPU
    /// memory.
    ///
    /// # Errors
    /// If a row does not exist or is out of order, or the lengths do not fit; nothing is then changed. Or the memory fails.
    pub fn set_rows(&mut self, rows: &[u64], values: &[f32]) -> Result<(), HotError> {
        self.table.check(rows)?;
        let changed = self.hot.release(rows);
        self.take_back(&changed)?;
        Ok(self.table.set_rows(rows, values)?)
    }

    /// Writes all changed rows back, and returns the table with the newest values, for a checkpoint or a copy
    /// for another worker. Hot rows keep their slots.
    ///
    /// # Errors
    /// If the memory fails.
    pub fn settle(&mut self) -> Result<&SparseTable, HotError> {
        let changed = self.hot.write_back_all();
        self.take_back(&changed)?;
        Ok(&self.table)
    }

    /// Reads rows from their slots and writes them to the table.
    fn take_back(&mut self, changed: &[Hot]) -> Result<(), HotError> {
        let slots: Vec<u32> = changed.iter().map(|hot| hot.slot).collect();
        let shape = self.memory.shape();
        self.numbers.clear();
        self.memory.read(&slots, &mut self.numbers)?;
        for (hot, numbers) in changed.iter().zip(self.numbers.chunks_exact(shape.width())) {
            let (values, kept) = numbers.split_at(shape.dim);
            self.table.overwrite(hot.row, values, kept);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
