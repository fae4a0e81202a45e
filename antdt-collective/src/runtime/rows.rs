//! Rows of a table in the memory of a GPU, with what an optimizer keeps of them.
//!
//! A [`RowMemory`] has slots, each of which holds a row: its values, then what the optimizer keeps of them. It gathers the rows
//! of a batch where they lie, and takes steps of an optimizer on them; which row lies in which slot is its owner's affair
//! (`antdt-model` has the table and the rules). `antdt-gpu` has the memory of a GPU; members of a group keep the same bits,
//! whichever of their rows lie on a device.
//!
//! Source: our design.

use std::fmt::Debug;

use super::region::DevicePlace;
use crate::row_step::RowStep;

/// Number of values that a slot holds: those of a row, and those that the optimizer stores for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowShape {
    /// Number of values in a row.
    pub dim: usize,
    /// Number of values that the optimizer stores for each value of a row, at most 2.
    pub state_per_value: usize,
}

impl RowShape {
    /// Returns the number of values in a slot. They lie in this order: the row's values, then the first
    /// optimizer value of each, then the second one of each.
    pub const fn width(self) -> usize {
        self.dim * (1 + self.state_per_value)
    }
}

/// Reason why rows in GPU memory cannot be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowsError {
    /// The memory could not be allocated, for this reason.
    #[error("rows cannot lie on a GPU: {0}")]
    None(String),
    /// A slot number is beyond the last slot.
    #[error("slot {slot} does not exist, the memory has {slots}")]
    OutOfRange {
        /// The refused slot number.
        slot: u32,
        /// Number of slots.
        slots: u32,
    },
    /// The caller listed a slot twice.
    #[error("slot {slot} is listed twice; each row must come once, with its sum")]
    Twice {
        /// Number of the slot that is listed twice.
        slot: u32,
    },
    /// A batch is to be copied to memory that is not this GPU's.
    #[error("the address {address:#x} is not in the memory of the GPU that has the rows")]
    Elsewhere {
        /// Address to which the batch was to be copied.
        address: u64,
    },
    /// The number of values does not fit the number of rows.
    #[error("{values} values came for {rows} rows, which have {due}")]
    Length {
        /// Number of values that the caller passed.
        values: usize,
        /// Number of rows that the caller passed.
        rows: usize,
        /// Number of values that these rows have.
        due: usize,
    },
    /// The optimizer of this step stores another number of values than the slots hold.
    #[error("slots keep {kept} numbers of each value, and this optimizer {due}")]
    State {
        /// Number of optimizer values per value that the slots hold.
        kept: usize,
        /// Number of optimizer values per value that the step's optimizer stores.
        due: usize,
    },
    /// The GPU failed, with this message. The content of the memory is unknown from then on.
    #[error("rows on a GPU: {0}")]
    Device(String),
}

/// Rows of a table in slots of GPU memory. After [`RowsError::Device`] it must not be used any more.
pub trait RowMemory: Debug + Send {
    /// Returns the shape of the rows.
    fn shape(&self) -> RowShape;

    /// Returns the number of slots.
    fn slots(&self) -> u32;

    /// Overwrites slots, each listed once. `rows` are the new contents, `[slots, width]`: the row's values
    /// and the optimizer's.
    ///
    /// # Errors
    /// If the arguments do not fit, or the GPU fails.
    fn write(&mut self, slots: &[u32], rows: &[f32]) -> Result<(), RowsError>;

    /// Appends the contents of slots to `into`, `[slots, width]`: the row's values and the optimizer's.
    ///
    /// # Errors
    /// If the arguments do not fit, or the GPU fails.
    fn read(&mut self, slots: &[u32], into: &mut Vec<f32>) -> Result<(), RowsError>;

    /// Applies an optimizer step to slots, each listed once. `sums` are their sums of gradients, `[slots,
    /// dim]`.
    ///
    /// # Errors
    /// If the arguments do not fit, or the GPU fails.
    fn update(&mut self, slots: &[u32], sums: &[f32], step: &RowStep) -> Result<(), RowsError>;

    /// Gathers the rows of a batch on the GPU, `[places, dim]`, and returns where they lie. Each place takes
    /// the row of its slot, or, if it is `None`, the next row of `guests`, `[.., dim]`. The rows stay there
    /// until the next batch is gathered.
    ///
    /// # Errors
    /// If the arguments do not fit, or the GPU fails.
    fn gather(&mut self, places: &[Option<u32>], guests: &[f32]) -> Result<DevicePlace, RowsError>;

    /// Appends the rows of the last gathered batch to `into`, `[places, dim]`.
    ///
    /// # Errors
    /// If the GPU fails.
    fn gathered(&mut self, into: &mut Vec<f32>) -> Result<(), RowsError>;

    /// Copies the values of the last batch, `[places, dim]`, to other memory of the same GPU, such as a
    /// tensor of a training framework, and returns when they are there. The caller must own that much memory
    /// at `address`, and no operation in progress may read or write it.
    ///
    /// # Errors
    /// If the address is not in the memory of this GPU, or the GPU fails.
    fn gathered_at(&mut self, address: u64) -> Result<(), RowsError>;
}
