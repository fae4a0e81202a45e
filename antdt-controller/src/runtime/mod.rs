//! The part of this crate that does I/O: launchers for local processes.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is where I/O lives")]

pub mod launcher;
