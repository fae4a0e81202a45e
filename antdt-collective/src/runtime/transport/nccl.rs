//! NCCL between GPUs.

use super::GpuLibrary;
use super::over::Over;
use super::registry::Entry;

/// The line in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "nccl",
    about: "NCCL between GPUs for what is long; otherwise, and where a worker has no GPU of its own, as auto",
    settings: Vec::new,
    build: |settings| Over::build(GpuLibrary::Nccl, settings),
};
