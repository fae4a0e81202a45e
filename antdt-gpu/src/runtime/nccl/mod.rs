//! Groups whose long messages travel between GPUs, by NCCL. Feature `nccl`.
//!
//! [`backend`] wraps another backend: it forms groups as `runtime::device` describes, and sends long messages
//! by NCCL.
//!
//! A communicator is kept from group to group, shrinks, grows or changes the order of its members, where the library can
//! (`ncclCommShrink`, `ncclCommGrow`, `ncclCommRevoke`, `ncclCommSplit`), or all members give it up and initialise a new one.
//! One that is given up is aborted, on a thread of its own, since that may hang with the driver.
//!
//! A call over memory of the host copies through pinned memory to the GPU and back; halves that lie on the GPU are reduced where
//! they lie.
//!
//! Cost: for memory of the host, two copies there and two over the bus, besides NCCL's own.
//!
//! Rejected: cudarc's safe communicators, which neither abort nor shrink, and panic where a function is missing; NCCL's
//! reduce-scatter, which wants parts of equal length.

mod api;
mod error;
mod library;

pub use self::error::NcclError;

use antdt_collective::runtime::Backend;
use antdt_collective::runtime::process_group::Entry;

use self::library::Nccl;
use super::device::backend::DeviceBackend;

/// The library for [`REGISTRY`](antdt_collective::runtime::process_group::REGISTRY).
pub const ENTRY: Entry = Entry::new(
    "nccl",
    "NCCL between GPUs for what is long; otherwise, and where a worker has no GPU of its own, as auto",
    |_| Ok(backend),
);

/// Wraps `below` in a backend whose groups send long messages by NCCL, if every member has it. `gpu` is the
/// index of this process's GPU. With `None`, or on a host without a GPU or NCCL, groups with this member
/// communicate over `below` alone, and a warning says why.
pub fn backend(gpu: Option<u32>, below: Box<dyn Backend>) -> Box<dyn Backend> {
    Box::new(over(gpu, below))
}

fn over(gpu: Option<u32>, below: Box<dyn Backend>) -> DeviceBackend<Nccl> {
    DeviceBackend::on(gpu, Nccl::open, below)
}

/// Checks that the GPU with this index can communicate by NCCL.
///
/// # Errors
/// If it cannot; the error says what this host lacks.
pub fn check(gpu: u32) -> Result<(), NcclError> {
    Nccl::open(gpu).map(drop)
}

#[cfg(test)]
mod tests;
