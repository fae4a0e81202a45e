//! The registry of host sources, by the names that jobs use.

use antdt_core::registry::{self, Registry};

use super::{SourceParts, kubernetes, slurm};

/// A host source in the registry.
pub type SourceEntry = registry::Entry<SourceParts>;

/// The registry of all known host sources. A program adds its own before it reads its command line.
pub static HOST_SOURCES: Registry<SourceEntry> = Registry::new("host-source", SHIPPED);

/// Host sources that ship.
const SHIPPED: &[SourceEntry] = &[slurm::ENTRY, kubernetes::ENTRY];
