//! Rows of a table in the memory of a GPU, behind the trait [`RowMemory`].
//!
//! The kernels are a text (`rows.cu`), compiled at run time by NVRTC as those of `ipc` are. They compute what the optimizers of
//! the host compute, to the bit: members of a group keep the same bits, whichever of their rows lie on a GPU.
//!
//! Cost of a step with `d` rows: their sums of gradients go up once; a batch is gathered on the GPU, and only its guests, the
//! rows without a slot, go up for it.
//!
//! Rejected: kernels of the training framework, whose compiler fuses multiplications with additions, so that a row would have
//! other bits on a GPU than on the host; atomic additions of single gradients, which have another order each time: rows are
//! listed once, with their sums.
//!
//! Source: our design.

pub(in crate::runtime) mod card;
#[cfg(feature = "cuda")]
pub(in crate::runtime) mod cuda;
pub(in crate::runtime) mod kernel;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(feature = "cuda")]
pub use self::cuda::{measure, on_gpu};

use antdt_collective::runtime::{RowMemory, RowShape, RowsError};

#[cfg(test)]
mod tests;
