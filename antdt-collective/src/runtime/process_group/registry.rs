//! The registry of libraries of collectives, by the names that jobs use as transports.
//!
//! None ships with this crate. A program adds those that it is built with, and its own, before it reads its command line.

use antdt_core::registry::{self, Registry};

use super::Backend;

/// Wraps the backend of a process in one whose groups use a library of collectives where they can. The number is
/// the index of the GPU that the process computes on; `None` if it computes on no GPU.
pub type Library = fn(Option<u32>, Box<dyn Backend>) -> Box<dyn Backend>;

/// A library in the registry.
pub type Entry = registry::Entry<Library>;

/// The registry of all known libraries.
pub static REGISTRY: Registry<Entry> = Registry::new("transport", &[]);
