//! Groups over libraries between GPUs, and parameters in the memory of a GPU.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the I/O half of the crate")]

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "cuda")]
pub mod ipc;
#[cfg(feature = "nccl")]
pub mod nccl;

pub mod flat;
pub mod rows;

#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a library of tests has fewer abilities"))]
mod device;
#[cfg(feature = "cuda")]
mod library;
