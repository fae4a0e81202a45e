//! [`FailingRows`]: a memory of rows that fails when a test says so.

use std::ops::Range;

use antdt_collective::RowStep;
use antdt_collective::runtime::region::DevicePlace;

use super::super::{RowMemory, RowShape, RowsError};

/// Row memory some of whose operations fail, with [`RowsError::Device`], and change nothing.
///
/// Operations are counted from 0. An operation on no rows is counted, too, but never fails.
#[derive(Debug)]
pub struct FailingRows {
    rows: Box<dyn RowMemory>,
    failing: Range<u64>,
    number: u64,
}

impl FailingRows {
    /// Returns `rows`, whose operations with a number in `failing` will fail: those from the n-th on are
    /// `n..u64::MAX`.
    pub fn new(rows: Box<dyn RowMemory>, failing: Range<u64>) -> Self {
        Self { rows, failing, number: 0 }
    }

    /// The memory beneath, unless the operation that begins is one that fails.
    fn begin(&mut self, is_empty: bool) -> Result<&mut dyn RowMemory, RowsError> {
        let number = self.number;
        self.number += 1;
        if self.failing.contains(&number) && !is_empty {
            return Err(RowsError::Device(format!("operation {number} fails, as a test wants it")));
        }
        Ok(&mut *self.rows)
    }
}

impl RowMemory for FailingRows {
    fn shape(&self) -> RowShape {
        self.rows.shape()
    }

    fn slots(&self) -> u32 {
        self.rows.slots()
    }

    fn write(&mut self, slots: &[u32], rows: &[f32]) -> Result<(), RowsError> {
        self.begin(slots.is_empty())?.write(slots, rows)
    }

    fn read(&mut self, slots: &[u32], into: &mut Vec<f32>) -> Result<(), RowsError> {
        self.begin(slots.is_empty())?.read(slots, into)
    }

    fn update(&mut self, slots: &[u32], sums: &[f32], step: &RowStep) -> Result<(), RowsError> {
        self.begin(slots.is_empty())?.update(slots, sums, step)
    }

    fn gather(&mut self, places: &[Option<u32>], guests: &[f32]) -> Result<DevicePlace, RowsError> {
        self.begin(places.is_empty())?.gather(places, guests)
    }

    fn gathered(&mut self, into: &mut Vec<f32>) -> Result<(), RowsError> {
        self.begin(false)?.gathered(into)
    }

    fn gathered_at(&mut self, address: u64) -> Result<(), RowsError> {
        self.begin(false)?.gathered_at(address)
    }
}
