//! [`Tier`]: the hot rows of a table, in slots of a memory. The other rows are the table's.

use antdt_collective::runtime::rows::RowMemory;

use super::HotError;
use super::fuse::Fuse;
use crate::gradient::SparseGradient;
use crate::hot::{Hot, HotRows};
use crate::optimizer::{Optimizer, UpdateStep};
use crate::table::{SparseTable, TableError};

/// See the [module](self). Each call is given the table that it was made for.
#[derive(Debug)]
pub(super) struct Tier {
    hot: HotRows,
    memory: Fuse,
    /// Values of the batch that was loaded last.
    loaded_len: usize,
    /// Slots, and numbers of rows, of the call that is under way.
    slots: Vec<u32>,
    numbers: Vec<f32>,
}

impl Tier {
    /// No row of the table is hot yet. The memory has slots for its rows.
    pub(super) fn new(table: &SparseTable, memory: Box<dyn RowMemory>) -> Self {
        let hot = HotRows::new(rows(table), memory.slots());
        Self { hot, memory: Fuse::new(memory), loaded_len: 0, slots: Vec::new(), numbers: Vec::new() }
    }

    /// Begins anew, with another table of this shape.
    pub(super) fn forget(&mut self, table: &SparseTable) {
        self.hot = HotRows::new(rows(table), self.memory.made().slots());
    }

    pub(super) const fn hot_rows(&self) -> usize {
        self.hot.len()
    }

    /// Gathers the rows of a batch in the memory.
    pub(super) fn load(&mut self, table: &mut SparseTable, rows: &[u64]) -> Result<(), HotError> {
        table.check(rows)?;
        let moves = self.hot.touch(rows);
        self.take_back(table, &moves.out)?;
        self.slots.clear();
        self.numbers.clear();
        for Hot { row, slot } in moves.into {
            self.slots.push(slot);
            table.read_kept(row, &mut self.numbers);
        }
        self.memory.with(|memory| memory.write(&self.slots, &self.numbers))?;
        let guests = rows.iter().zip(&moves.places).filter(|(_, place)| place.is_none());
        let guests: Vec<u64> = guests.map(|(row, _)| *row).collect();
        self.numbers.clear();
        table.gather(&guests, &mut self.numbers)?;
        self.memory.with(|memory| memory.gather(&moves.places, &self.numbers))?;
        self.loaded_len = rows.len() * table.spec().dim;
        Ok(())
    }

    pub(super) const fn loaded_len(&self) -> usize {
        self.loaded_len
    }

    pub(super) fn read_loaded(&mut self, into: &mut Vec<f32>) -> Result<(), HotError> {
        self.memory.with(|memory| memory.gathered(into))
    }

    pub(super) fn copy_loaded(&mut self, address: u64) -> Result<(), HotError> {
        self.memory.with(|memory| memory.gathered_at(address))
    }

    /// Takes one step of the optimizer on rows with their sums of gradients, wherever they lie. Without a kernel for it nothing is changed.
    pub(super) fn apply(
        &mut self,
        table: &mut SparseTable,
        SparseGradient { rows, values }: &SparseGradient,
        step: UpdateStep,
        optimizer: &dyn Optimizer,
    ) -> Result<(), HotError> {
        table.check(rows)?;
        let dim = table.spec().dim;
        let due = rows.len() * dim;
        if values.len() != due {
            return Err(TableError::Length { values: values.len(), rows: rows.len(), due }.into());
        }
        let row_step = optimizer.row_step(step).ok_or_else(|| HotError::Optimizer(optimizer.name()))?;
        self.slots.clear();
        self.numbers.clear();
        let mut cold = SparseGradient::default();
        for (row, sums) in rows.iter().zip(values.chunks_exact(dim)) {
            if let Some(slot) = self.hot.slot(*row) {
                self.slots.push(slot);
                self.numbers.extend_from_slice(sums);
            } else {
                cold.rows.push(*row);
                cold.values.extend_from_slice(sums);
            }
        }
        table.apply(&cold.rows, &cold.values, &optimizer.begin(step))?;
        self.memory.with(|memory| memory.update(&self.slots, &self.numbers, &row_step))?;
        self.hot.change(rows);
        Ok(())
    }

    /// Writes those of `rows` to the table whose newest values exist only in the memory.
    pub(super) fn write_back(&mut self, table: &mut SparseTable, rows: &[u64]) -> Result<(), HotError> {
        table.check(rows)?;
        let changed = self.hot.write_back(rows);
        self.take_back(table, &changed)
    }

    /// As [`write_back`](Self::write_back), with all rows.
    pub(super) fn write_back_all(&mut self, table: &mut SparseTable) -> Result<(), HotError> {
        let changed = self.hot.write_back_all();
        self.take_back(table, &changed)
    }

    /// Reads rows from their slots and writes them to the table.
    fn take_back(&mut self, table: &mut SparseTable, changed: &[Hot]) -> Result<(), HotError> {
        let slots: Vec<u32> = changed.iter().map(|hot| hot.slot).collect();
        let shape = self.memory.made().shape();
        self.numbers.clear();
        self.memory.with(|memory| memory.read(&slots, &mut self.numbers))?;
        for (hot, numbers) in changed.iter().zip(self.numbers.chunks_exact(shape.width())) {
            let (values, kept) = numbers.split_at(shape.dim);
            table.overwrite(hot.row, values, kept);
        }
        Ok(())
    }
}

/// Rows of a whole table, which is in memory.
fn rows(table: &SparseTable) -> usize {
    usize::try_from(table.spec().rows).expect("the rows of a table that is in memory")
}
