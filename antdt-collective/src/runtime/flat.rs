//! The flat vector of a model's dense parameters in the memory of a GPU, with what an optimizer keeps of them.
//!
//! A [`FlatMemory`] is where gradients stay that a framework computes on a GPU: it has the memory of the buckets in which they are
//! reduced ([`region`](FlatMemory::region)), copies them there and adds them up, and takes the optimizer's step with their sums. No
//! gradient goes to the host for any of it, nor for the norm by which gradients are clipped. `antdt-gpu` has the memory of a GPU;
//! members of a group keep the same bits, whichever of them have their parameters on a device.
//!
//! Source: our design.

use std::fmt::Debug;
use std::ops::Range;

use super::region::Region;
use super::rows::RowsError;
use crate::row_step::RowStep;

/// Number of values in a flat vector, and of those that the optimizer stores for each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlatShape {
    /// Number of parameters, at least 1.
    pub len: usize,
    /// Number of values that the optimizer stores for each parameter, at most 2.
    pub state_per_value: usize,
}

/// Reason why parameters in GPU memory cannot be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlatError {
    /// The memory could not be allocated, for this reason.
    #[error("parameters cannot lie on a GPU: {0}")]
    None(String),
    /// The number of values does not fit the flat vector, or a piece is not in it.
    #[error("{got} values came for {due}")]
    Length {
        /// Number of values that the caller passed.
        got: usize,
        /// Number of values that the vector has there.
        due: usize,
    },
    /// The optimizer of this step stores another number of values than the memory holds.
    #[error("the memory keeps {kept} numbers of each parameter, and this optimizer {due}")]
    State {
        /// Number of optimizer values per parameter that the memory holds.
        kept: usize,
        /// Number of optimizer values per parameter that the step's optimizer stores.
        due: usize,
    },
    /// Values are to be copied from or to memory that is not this GPU's.
    #[error("the address {address:#x} is not in the memory of the GPU that has the parameters")]
    Elsewhere {
        /// First address of the values.
        address: u64,
    },
    /// The GPU failed, with this message. The content of the memory is unknown from then on, and every later call fails.
    #[error("parameters on a GPU: {0}")]
    Device(String),
}

impl From<RowsError> for FlatError {
    fn from(error: RowsError) -> Self {
        match error {
            RowsError::None(why) => Self::None(why),
            RowsError::Elsewhere { address } => Self::Elsewhere { address },
            RowsError::Device(why) => Self::Device(why),
            other => Self::Device(other.to_string()),
        }
    }
}

/// A flat vector of parameters in GPU memory, zeroed at first. Each call returns when the GPU is done with it.
///
/// Addresses of values are those of the GPU. The caller owns the memory there while a call runs: a
/// [`region`](Self::region), or memory of a training framework on the same GPU, in which nothing is in progress.
pub trait FlatMemory: Debug + Send + Sync {
    /// Returns the shape of the vector.
    fn shape(&self) -> FlatShape;

    /// Overwrites all parameters and what the optimizer keeps of them; `state` that it does not keep is empty.
    ///
    /// # Errors
    /// If the lengths do not fit, or the GPU fails.
    fn write(&self, values: &[f32], state: [&[f32]; 2]) -> Result<(), FlatError>;

    /// Copies all parameters to the host.
    ///
    /// # Errors
    /// If the length does not fit, or the GPU fails.
    fn read(&self, values: &mut [f32]) -> Result<(), FlatError>;

    /// Copies to the host what the optimizer keeps of the parameters.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_state(&self, state: [&mut [f32]; 2]) -> Result<(), FlatError>;

    /// Copies all parameters to other memory of the same GPU, such as a tensor of a training framework.
    ///
    /// # Errors
    /// If the address is not in the memory of this GPU, or the GPU fails.
    fn copy_to(&self, address: u64) -> Result<(), FlatError>;

    /// Returns zeroed memory of the same GPU, in which a group can reduce.
    ///
    /// # Errors
    /// If the GPU has no memory left.
    fn region(&self, len_bytes: usize) -> Result<Region, FlatError>;

    /// Copies values of the host to an address.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    fn put(&self, values: &[f32], to: u64) -> Result<(), FlatError>;

    /// Copies `len` values from one address to another, which do not overlap.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    fn copy(&self, from: u64, to: u64, len: usize) -> Result<(), FlatError>;

    /// Adds `len` values to those at another address.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    fn add(&self, from: u64, to: u64, len: usize) -> Result<(), FlatError>;

    /// Returns the sum of the squares of `len` values at an address, at most as many as the vector has, added up in the order of
    /// `antdt_model::norm`. The values stay on the GPU; the host gets the sum of each 512 of them.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    fn square_sum(&self, from: u64, len: usize) -> Result<f64, FlatError>;

    /// Applies an optimizer step to the parameters in `place`, with the sums of their gradients at an address.
    /// Parameters that come closer to 0 than `least` become 0.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to); also if the vector has no such piece, or another optimizer's state.
    fn step(&self, place: Range<usize>, sums: u64, step: &RowStep, least: f32) -> Result<(), FlatError>;

    /// Replaces the parameters in `place` by the values at an address, times `scale`.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    fn set(&self, place: Range<usize>, sums: u64, scale: f32) -> Result<(), FlatError>;
}
