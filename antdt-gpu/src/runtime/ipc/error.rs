//! Why a process cannot reduce in the memory of GPUs.

use crate::runtime::cuda::{CompilerError, CudaError};

/// Reason why a process cannot reduce in GPU memory over CUDA IPC.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IpcError {
    /// This process cannot use a GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The GPU kernels cannot be compiled.
    #[error(transparent)]
    Compiler(#[from] CompilerError),
    /// A call of the CUDA driver failed, with this message.
    #[error("{0}")]
    Call(String),
}
