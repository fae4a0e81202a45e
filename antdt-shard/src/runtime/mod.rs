#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the half that does I/O")]
//! The shard service: one task owns one ledger; workers reach it through handles, in-process sources, or
//! gRPC.

pub mod catalog;
pub mod local;
pub mod service;
mod stored;

#[cfg(feature = "file-store")]
pub mod file;

#[cfg(feature = "object-store")]
pub mod object;

#[cfg(feature = "grpc")]
pub mod client;
#[cfg(feature = "grpc")]
pub mod server;
#[cfg(feature = "grpc")]
mod status;
#[cfg(feature = "grpc")]
mod wire;

pub use catalog::{Catalog, CatalogError, dataset_folder};
pub use local::LocalSource;
pub use service::{ServiceError, ShardHandle, ShardService};

pub use crate::store::SyncPolicy;
#[cfg(feature = "file-store")]
pub use file::{FileCuts, FileStore, FileStoreError, FileStoreOptions};

#[cfg(feature = "object-store")]
pub use object::{ObjectCuts, ObjectError, ObjectLog, ObjectLogOptions, ObjectTimeouts};

#[cfg(feature = "grpc")]
pub use client::{ClientOptions, MissingSamples, ShardClient};
#[cfg(feature = "grpc")]
pub use server::ShardServer;

#[cfg(test)]
mod tests;
