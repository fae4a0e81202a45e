//! Groups whose long reductions are done by kernels in the memory of GPUs: several ranks on one GPU, or on GPUs of one host
//! that reach each other's memory. Feature `cuda`.
//!
//! [`backend`] wraps another backend: it forms groups as `runtime::device` describes, and reduces long
//! messages by kernels. Processes open each other's memory by the handles of CUDA IPC, which they exchange
//! over the wrapped backend when a group is formed; events of the driver, opened the same way, put the
//! members' streams in order. NCCL wants a GPU for each rank; several ranks on one GPU are what this is for.
//!
//! The kernels are a text (`kernels.cu`), compiled at run time by NVRTC, each when it is first used. They compute what the
//! loops of [`kernel`](antdt_collective::kernel) compute, to the bit, in order of rank.
//!
//! Messages that are not reduced go over the wrapped backend, because between processes of one host shared
//! memory is faster.
//!
//! Cost: for memory of the host, two rounds over the wrapped backend for each 32 MiB, two copies on the host
//! and two over the bus. For memory of the GPU two rounds and the kernels, which read and write every byte
//! once.
//!
//! Rejected: flags in the memory of a GPU that kernels spin on, because a peer that died leaves them spinning, and processes
//! that share a GPU keep each other from running meanwhile; a ring, which reads and writes more where every member reaches all
//! memory; CUDA's own headers for half types, which machines without the toolkit lack.
//!
//! Source: our design, over the documentation of the CUDA driver.

mod card;
mod comm;
mod cuda;
mod error;
mod kernel;
mod measure;

pub use self::error::IpcError;
pub use self::measure::{Speed, measure};

use antdt_collective::runtime::Backend;
use antdt_collective::runtime::process_group::Entry;

use self::comm::Ipc;
use self::cuda::CudaGpu;
use super::device::backend::DeviceBackend;

/// The library for [`REGISTRY`](antdt_collective::runtime::process_group::REGISTRY).
pub const ENTRY: Entry = Entry::new(
    "cuda-ipc",
    "long reductions in the memory of GPUs that workers of one host share or reach; otherwise, and where a worker has no GPU, as \
     auto",
    |_| Ok(backend),
);

/// Wraps `below` in a backend whose groups do long reductions in GPU memory of one host, by CUDA IPC, if
/// every member has a GPU there. `gpu` is the index of this process's GPU. With `None`, or on a host without
/// a GPU or NVRTC, groups with this member communicate over `below` alone, and a warning says why.
pub fn backend(gpu: Option<u32>, below: Box<dyn Backend>) -> Box<dyn Backend> {
    Box::new(over(gpu, below))
}

fn over(gpu: Option<u32>, below: Box<dyn Backend>) -> DeviceBackend<Ipc<CudaGpu>> {
    DeviceBackend::on(gpu, |index| CudaGpu::open(index).map(Ipc::new), below)
}

/// Checks that processes can reduce in the memory of the GPU with this index.
///
/// # Errors
/// If they cannot; the error says what this host lacks.
pub fn check(gpu: u32) -> Result<(), IpcError> {
    CudaGpu::open(gpu).map(drop)
}

#[cfg(test)]
mod tests;
