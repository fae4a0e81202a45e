//! The part of this crate that does I/O: the launchers that ship, and the suite.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is where I/O lives")]

pub mod process;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
