//! The registry of transports, by the names that jobs use.
//!
//! A transport that ships with this crate is a folder beside this file and a line in `SHIPPED`. A program
//! adds transports of its own before it reads its command line; both kinds are then treated alike.

use antdt_core::registry::{self, Registry};

#[cfg(not(all(feature = "rdma", feature = "nccl")))]
use antdt_core::InvalidValue;

#[cfg(feature = "cuda")]
use super::cuda_ipc;
#[cfg(feature = "nccl")]
use super::nccl;
#[cfg(feature = "rdma")]
use super::rdma;
use super::{Fabric, mixed, tcp};

/// A transport in the registry.
pub type Entry = registry::Entry<Box<dyn Fabric>>;

/// Name of the transport of a job that names none.
pub const DEFAULT: &str = mixed::AUTO.name;

/// The registry of all known transports.
///
/// ```
/// use antdt_collective::runtime::transport::REGISTRY;
/// assert!(REGISTRY.by_name("shm").is_ok());
/// assert!(REGISTRY.by_name("tpc").unwrap_err().to_string().contains("did you mean `tcp`?"));
/// ```
pub static REGISTRY: Registry<Entry> =
    Registry::new("transport", SHIPPED).with_synonyms(&[("mixed", "auto"), ("shared-memory", "shm")]);

/// Transports that ship.
const SHIPPED: &[Entry] = &[
    mixed::AUTO,
    tcp::ENTRY,
    mixed::SHM,
    #[cfg(feature = "rdma")]
    rdma::ENTRY,
    #[cfg(feature = "rdma")]
    rdma::MANAGED,
    #[cfg(not(feature = "rdma"))]
    RDMA_ABSENT,
    #[cfg(not(feature = "rdma"))]
    RDMA_CM_ABSENT,
    #[cfg(feature = "nccl")]
    nccl::ENTRY,
    #[cfg(not(feature = "nccl"))]
    NCCL_ABSENT,
    #[cfg(feature = "cuda")]
    cuda_ipc::ENTRY,
    #[cfg(not(feature = "cuda"))]
    CUDA_IPC_ABSENT,
];

/// Stands for the transport of feature `rdma` in a program without it: the name is known everywhere, and the refusal says
/// what to do.
#[cfg(not(feature = "rdma"))]
const RDMA_ABSENT: Entry = registry::Entry::new(
    "rdma",
    "RDMA between all processes; this program is built without it",
    |settings| Err(rdma_absent(settings)),
);

/// The same, with the other way to connect.
#[cfg(not(feature = "rdma"))]
const RDMA_CM_ABSENT: Entry = registry::Entry::new(
    "rdma-cm",
    "as rdma, connected by librdmacm; this program is built without it",
    |settings| Err(rdma_absent(settings)),
);

#[cfg(not(feature = "rdma"))]
fn rdma_absent(settings: &registry::Settings<'_>) -> InvalidValue {
    let expected = "another transport, or the program built with feature `rdma`, which needs libibverbs; this one is built \
                    without";
    InvalidValue::new("transport", settings.part(), expected)
}

/// Stands for the transport of feature `nccl` in a program without it.
#[cfg(not(feature = "nccl"))]
const NCCL_ABSENT: Entry =
    registry::Entry::new("nccl", "NCCL between GPUs; this program is built without it", |_| {
        let expected =
            "another transport, or the program built with feature `nccl`; this one is built without";
        Err(InvalidValue::new("transport", "nccl", expected))
    });

/// Stands for the transport of feature `cuda` in a program without it.
#[cfg(not(feature = "cuda"))]
const CUDA_IPC_ABSENT: Entry =
    registry::Entry::new("cuda-ipc", "the memory of GPUs; this program is built without it", |_| {
        let expected =
            "another transport, or the program built with feature `cuda`; this one is built without";
        Err(InvalidValue::new("transport", "cuda-ipc", expected))
    });

#[cfg(all(test, not(all(feature = "rdma", feature = "nccl"))))]
mod tests {
    use super::REGISTRY;

    #[test]
    fn a_program_without_a_feature_knows_the_name_of_its_transport_and_says_how_to_get_it() {
        for (name, feature, built) in [
            ("rdma", "rdma", cfg!(feature = "rdma")),
            ("rdma-cm", "rdma", cfg!(feature = "rdma")),
            ("nccl", "nccl", cfg!(feature = "nccl")),
            ("cuda-ipc", "cuda", cfg!(feature = "cuda")),
        ] {
            assert!(REGISTRY.names().contains(&name));
            if !built {
                let error = REGISTRY.by_name(name).unwrap_err().to_string();
                assert!(
                    error.starts_with(&format!("transport = {name}: must be another transport")),
                    "{error}"
                );
                assert!(
                    error.contains(&format!("built with feature `{feature}`")) && !error.contains('\n'),
                    "{error}"
                );
            }
        }
    }
}
