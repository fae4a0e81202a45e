//! The transports that a program knows by name.
//!
//! A transport that ships with this crate is a folder beside this file and a line in `SHIPPED`. A program
//! adds transports of its own to the registry, before it reads its command line; they are then treated like
//! those that ship.

use antdt_core::registry::{self, Registry};

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
];
