//! Reductions in the memory of the GPUs of one host.

use super::GpuLibrary;
use super::over::Over;
use super::registry::Entry;

/// The line in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "cuda-ipc",
    about: "long reductions in the memory of GPUs that workers of one host share or reach; otherwise, and where a worker has \
            no GPU, as auto",
    settings: Vec::new,
    build: |settings| Over::build(GpuLibrary::CudaIpc, settings),
};
