//! Owned verbs objects. Each keeps alive what it was made from, so that the order in which they are dropped does not
//! matter: a queue pair goes before its completion queue and its protection domain, these before the device.
//!
//! Memory that is registered belongs to two sides, and Rust knows nothing of the other one. The transport's protocol
//! keeps them apart:
//!
//! - Bytes of a slot are written by the peer's adapter until its immediate arrives here, and not again before this member
//!   has said that it took them.
//! - Bytes that are sent are read by this member's adapter until the send completes.
//! - Bytes of a message's destination are written by the peer's adapter once this member has named the place, until the
//!   message is complete here or the queue pair is in error.
#![allow(unsafe_code, reason = "calls of a library in C, and memory that adapters read and write")]

mod completion;
mod device;
mod manager;
mod memory;
mod queue_pair;

pub(super) use completion::{Arrival, Completion, CompletionQueue};
pub(super) use device::{Device, Port, ProtectionDomain};
pub(super) use manager::{Connection, ConnectionKey, Event, Events};
pub(super) use memory::RegisteredRegion;
pub(super) use memory::{Access, MemoryRegion};
pub(super) use queue_pair::{Gather, Limits, Path, QueuePair, Remote};
