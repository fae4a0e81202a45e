//! The parameter server over TCP.

pub mod client;
pub mod server;

mod stream;

pub use client::{PsClient, PsClientConfig, PsError};
pub use server::{PsServer, PsServerConfig, PsServerError, PsServerStats};

#[cfg(test)]
mod tests;
