//! The GPUs of this host, as the CUDA driver names them. Feature `cuda`.
//!
//! The library of the driver is loaded when it is first used. A program with this feature therefore starts on
//! any host, and gets an error with the reason if it can use no GPU.
#![allow(
    unsafe_code,
    reason = "asks whether the driver's library can be loaded, and how much memory a GPU has"
)]

pub(in crate::runtime) mod context;
pub(in crate::runtime) mod kernels;
pub(in crate::runtime) mod lane;
mod memory;
pub(in crate::runtime) mod nvrtc;

pub use memory::memory;
pub(in crate::runtime) use memory::memory_of;
pub use nvrtc::CompilerError;

use cudarc::driver::{DriverError, result, sys};

/// A GPU that this process can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Index of the GPU among those that this process sees (`CUDA_VISIBLE_DEVICES`).
    pub index: u32,
    /// Name of the GPU, such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Memory of the GPU, in bytes.
    pub memory_bytes: u64,
}

/// Reason why this process cannot use a GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The library of the CUDA driver is not installed.
    #[error("this host has no CUDA driver (libcuda.so.1 cannot be loaded)")]
    NoDriver,
    /// A call of the CUDA driver failed.
    #[error("the CUDA driver refused {call}: {why}")]
    Driver {
        /// Name of the driver's function.
        call: &'static str,
        /// Error that the driver returned, in words.
        why: String,
    },
}

/// Returns the GPUs that this process can use, in order of their index; at least one.
///
/// # Errors
/// If there is no driver, or it has no GPU for this process.
pub fn gpus() -> Result<Vec<Gpu>, CudaError> {
    if !driver_is_present() {
        return Err(CudaError::NoDriver);
    }
    result::init().map_err(failed("to start"))?;
    let count = result::device::get_count().map_err(failed("the number of GPUs"))?;
    (0..count)
        .map(|at| {
            let device = result::device::get(at).map_err(failed("a GPU"))?;
            let name = result::device::get_name(device).map_err(failed("the name of a GPU"))?;
            // SAFETY: the device is one that the driver has just given.
            let memory =
                unsafe { result::device::total_mem(device) }.map_err(failed("the memory of a GPU"))?;
            let index = u32::try_from(at).unwrap_or_default();
            Ok(Gpu { index, name, memory_bytes: memory as u64 })
        })
        .collect()
}

/// Checks that kernels can be compiled on this host. Training frameworks compile theirs with the same library.
///
/// # Errors
/// If the compiler is not installed, or is too old.
pub fn compiler() -> Result<(), CompilerError> {
    nvrtc::Nvrtc::load().map(drop)
}

/// Whether the driver can be loaded. It is asked before every first call: a missing library makes the calls panic.
fn driver_is_present() -> bool {
    // SAFETY: opens and closes the driver's library, whose initialisers have no requirements, and calls nothing in it.
    unsafe { sys::is_culib_present() }
}

fn failed(call: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |DriverError(code)| CudaError::Driver { call, why: format!("{code:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_gpu_says_so_and_one_with_gpus_numbers_them() {
        match gpus() {
            Ok(gpus) => {
                assert!(!gpus.is_empty());
                assert!(gpus.iter().zip(0..).all(|(gpu, index)| gpu.index == index && gpu.memory_bytes > 0));
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("CUDA driver") && !text.contains('\n'), "{text}");
                assert_eq!(error == CudaError::NoDriver, !driver_is_present());
            }
        }
    }
}
