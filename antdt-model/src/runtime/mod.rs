//! Sockets and threads: the parameter server, its client, and the all-reduce of a table's gradient over a communicator.
//!
//! Everything here blocks the calling thread, with a deadline and an abort handle; no asynchronous runtime is involved.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the I/O half of the crate")]

pub mod client;
pub mod server;

pub mod hot;
pub mod sparse;

mod door;
mod stream;

pub use client::{PsClient, PsClientConfig, PsError};
pub use hot::{Dense, DenseSums, HotError, HotReplica, LoadedRows};
pub use server::{PsServer, PsServerConfig, PsServerError, PsServerStats, ServerCopy};
pub use sparse::{all_reduce_counted, all_reduce_sparse};

#[cfg(test)]
mod tests;
