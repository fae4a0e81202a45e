//! The registry of transports, by the names that jobs use.
//!
//! A transport that ships with this crate is a folder beside this file and a line in `SHIPPED`. A program
//! adds transports of its own before it reads its command line; both kinds are then treated alike.

use antdt_core::registry::{self, Registry};

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
const SHIPPED: &[Entry] = &[mixed::AUTO, tcp::ENTRY, mixed::SHM];
