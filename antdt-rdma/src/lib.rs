#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod verbs;

#[cfg(feature = "runtime")]
pub mod runtime;

#[cfg(feature = "runtime")]
pub use runtime::{ENTRIES, RdmaConfig, RdmaSetup, RdmaTransport};
