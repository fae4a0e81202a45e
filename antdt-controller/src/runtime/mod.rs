//! I/O: local processes.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is where I/O lives")]

pub mod launcher;
