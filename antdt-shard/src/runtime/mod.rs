#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the half that does I/O")]
//! The service: one task owns one ledger; handles, in-process sources and gRPC lead to it.

pub mod local;
pub mod service;
pub mod watch;

#[cfg(feature = "file-store")]
pub mod file;

#[cfg(feature = "grpc")]
pub mod client;
#[cfg(feature = "grpc")]
pub mod server;
#[cfg(feature = "grpc")]
mod status;

pub use local::LocalSource;
pub use service::{ServiceError, ShardHandle, ShardService};
pub use watch::Tap;

#[cfg(feature = "file-store")]
pub use file::{FileStore, FileStoreError, FileStoreOptions, SyncPolicy};

#[cfg(feature = "grpc")]
pub use client::{ClientOptions, ShardClient};
#[cfg(feature = "grpc")]
pub use server::ShardServer;

#[cfg(test)]
mod tests;
