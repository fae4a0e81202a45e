//! Why a process cannot reduce in the memory of GPUs.

use crate::runtime::cuda::{CompilerError, CudaError};

/// Reason why a process cannot communicate over CUDA IPC.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IpcError {
    /// There is no GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The kernels cannot be compiled.
    #[error(transparent)]
    Compiler(#[from] CompilerError),
    /// A call failed.
    #[error("{0}")]
    Call(String),
}
