//! The flat vector of a model's dense parameters in the memory of a GPU, behind the trait [`FlatMemory`].
//!
//! The kernels are those of [`rows`](super::rows), in the same text: they compute what the optimizers of the host compute, to the
//! bit, so that members of a group keep the same bits, whichever of them have their parameters on a GPU.
//!
//! Cost of a step with `n` parameters in `g` groups: each gradient is copied once within the GPU, and `g` kernels read and write
//! `n` values and what is kept of them. Each piece waits on the host until it is copied (some microseconds), so that the reduction of
//! a bucket, on a thread and a stream of its own, runs beside the copies into the next one.
//!
//! Rejected: the optimizer of the training framework, which rounds otherwise, and whose state checkpoints would not have; the
//! bucket as memory that the framework writes to by itself, because burn allocates the memory of each tensor from its own pools.
//!
//! Source: our design.

mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(feature = "cuda")]
use std::sync::Arc;

use antdt_collective::runtime::{FlatError, FlatMemory, FlatShape};

/// Returns memory for a flat vector on the GPU with this index.
///
/// # Errors
/// If this host lacks the driver, the GPU or the compiler of kernels, or the GPU has too little memory; the
/// error says which.
#[cfg(feature = "cuda")]
pub fn on_gpu(gpu: u32, shape: FlatShape) -> Result<Arc<dyn FlatMemory>, FlatError> {
    Ok(Arc::new(store::Store::new(super::rows::cuda::CudaCard::open(gpu)?, shape)?))
}

#[cfg(feature = "cuda")]
impl store::FlatCard for super::rows::cuda::CudaCard {
    fn region(
        &mut self,
        len_bytes: usize,
    ) -> Result<antdt_collective::runtime::Region, antdt_collective::runtime::RowsError> {
        Self::region(self, len_bytes)
    }
}

#[cfg(test)]
mod tests;
