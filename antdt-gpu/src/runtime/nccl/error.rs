//! Why a process has no NCCL.

use crate::runtime::cuda::CudaError;

/// Reason why a process cannot communicate over NCCL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// This process cannot use a GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The NCCL library is not installed.
    #[error("libnccl.so.2 cannot be loaded ({why}); install NCCL, or name its folder in LD_LIBRARY_PATH")]
    NoLibrary {
        /// Error of the operating system, in words.
        why: String,
    },
    /// The NCCL library lacks the function of this name, which every supported version has.
    #[error("the library of NCCL has no {0}; install NCCL 2.18 or later")]
    Function(&'static str),
    /// The NCCL library is too old.
    #[error("NCCL {version} is too old; install NCCL 2.18 or later")]
    Old {
        /// Version of the library, such as 21700.
        version: i32,
    },
    /// A call of the NCCL library failed, with this message.
    #[error("{0}")]
    Call(String),
}
