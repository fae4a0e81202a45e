#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod device;

#[cfg(any(feature = "cuda", feature = "testing"))]
pub mod runtime;

#[cfg(feature = "cuda")]
pub use runtime::{cuda, flat, ipc, rows};

#[cfg(feature = "nccl")]
pub use runtime::nccl;
