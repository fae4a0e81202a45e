//! The part of this crate that does I/O: the launchers that ship, and the suite.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is where I/O lives")]

pub mod join;
mod node_file;
pub mod process;
mod registry;
pub mod source;
mod ssh;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use registry::{DEFAULT, Entry, REGISTRY};
