//! Why a process has no NCCL.

use crate::runtime::cuda::CudaError;

/// Reason why a process cannot communicate over NCCL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// There is no GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The library is not there.
    #[error("libnccl.so.2 cannot be loaded ({why}); install NCCL, or name its folder in LD_LIBRARY_PATH")]
    NoLibrary {
        /// What the system says.
        why: String,
    },
    /// The library lacks a function that every supported version has.
    #[error("the library of NCCL has no {0}; install NCCL 2.18 or later")]
    Function(&'static str),
    /// The library is too old.
    #[error("NCCL {version} is too old; install NCCL 2.18 or later")]
    Old {
        /// Its version, such as 21700.
        version: i32,
    },
    /// A call of the library failed.
    #[error("{0}")]
    Call(String),
}
