//! Rows of a table in the memory of a GPU, with what an optimizer keeps of them.
//!
//! A [`RowMemory`] has slots, each of which holds a row: its values, then what the optimizer keeps of them. It gathers the rows
//! of a batch where they lie, and takes steps of an optimizer on them; which row lies in which slot is its owner's affair
//! (`antdt-model` has the table and the rules). The kernels are a text (`rows.cu`), compiled at run time by NVRTC as those of
//! `runtime::ipc` are. They compute what the optimizers of the host compute, to the bit: members of a group keep the
//! same bits, whichever of their rows lie on a GPU.
//!
//! Cost of a step with `d` rows: their sums of gradients go up once; a batch is gathered on the GPU, and only its guests, the
//! rows without a slot, go up for it.
//!
//! Rejected: kernels of the training framework, whose compiler fuses multiplications with additions, so that a row would have
//! other bits on a GPU than on the host; atomic additions of single gradients, which have another order each time: rows are
//! listed once, with their sums.
//!
//! Source: our design.

#[cfg(any(test, feature = "cuda", feature = "testing"))]
mod card;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(any(test, feature = "cuda", feature = "testing"))]
mod kernel;
#[cfg(any(test, feature = "cuda", feature = "testing"))]
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::fmt::Debug;

#[cfg(feature = "cuda")]
pub use self::cuda::{measure, on_gpu};

use super::region::DevicePlace;
use crate::device::RowStep;

/// Shape of a row and of what is kept of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowShape {
    /// Values of a row.
    pub dim: usize,
    /// Numbers that the optimizer keeps of each value, at most 2.
    pub state_per_value: usize,
}

impl RowShape {
    /// Returns how many numbers a slot holds: the values, the first number of each, the second number of each.
    pub const fn width(self) -> usize {
        self.dim * (1 + self.state_per_value)
    }
}

/// Reason why rows in the memory of a GPU cannot be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowsError {
    /// The memory cannot be had at all.
    #[error("rows cannot lie on a GPU: {0}")]
    None(String),
    /// There is no such slot.
    #[error("slot {slot} does not exist, the memory has {slots}")]
    OutOfRange {
        /// Number of the slot.
        slot: u32,
        /// Number of slots.
        slots: u32,
    },
    /// A slot is listed twice.
    #[error("slot {slot} is listed twice; each row must come once, with its sum")]
    Twice {
        /// Number of the slot.
        slot: u32,
    },
    /// The number of values does not fit the number of rows.
    #[error("{values} values came for {rows} rows, which have {due}")]
    Length {
        /// Values passed.
        values: usize,
        /// Rows passed.
        rows: usize,
        /// Values that these rows have.
        due: usize,
    },
    /// The step is that of an optimizer that keeps more or less.
    #[error("slots keep {kept} numbers of each value, and this optimizer {due}")]
    State {
        /// Numbers that slots have room for.
        kept: usize,
        /// Numbers that the optimizer keeps.
        due: usize,
    },
    /// The GPU failed. What the memory holds is not known any more.
    #[error("rows on a GPU: {0}")]
    Device(String),
}

/// Rows in slots of the memory of a GPU. After [`RowsError::Device`] it must not be used any more.
pub trait RowMemory: Debug + Send {
    /// Returns the shape of the rows.
    fn shape(&self) -> RowShape;

    /// Returns the number of slots.
    fn slots(&self) -> u32;

    /// Overwrites slots, each listed once, with rows and what is kept of them, `[slots, width]`.
    ///
    /// # Errors
    /// If the arguments do not fit, or the GPU fails.
    fn write(&mut self, slots: &[u32], rows: &[f32]) -> Result<(), RowsError>;

    /// Appends rows and what is kept of them, `[slots, width]`.
    ///
    /// # Errors
    /// If the arguments do not fit, or the GPU fails.
    fn read(&mut self, slots: &[u32], into: &mut Vec<f32>) -> Result<(), RowsError>;

    /// Takes a step of an optimizer on slots, each listed once, with their sums of gradients, `[slots, dim]`.
    ///
    /// # Errors
    /// If the arguments do not fit, or the GPU fails.
    fn update(&mut self, slots: &[u32], sums: &[f32], step: &RowStep) -> Result<(), RowsError>;

    /// Gathers the values of a batch, `[places, dim]`, on the GPU: of slots, and where there is none, of the next of `guests`,
    /// `[.., dim]`. They lie there until the next batch.
    ///
    /// # Errors
    /// If the arguments do not fit, or the GPU fails.
    fn gather(&mut self, places: &[Option<u32>], guests: &[f32]) -> Result<DevicePlace, RowsError>;

    /// Appends the values of the last batch, `[places, dim]`.
    ///
    /// # Errors
    /// If the GPU fails.
    fn gathered(&mut self, into: &mut Vec<f32>) -> Result<(), RowsError>;
}

#[cfg(test)]
mod tests;
