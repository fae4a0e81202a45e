//! The background half of an agent: heartbeats go out while the training thread computes.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the runtime half: the only place of this crate with a clock, threads and sockets"
)]

#[cfg(feature = "grpc")]
pub mod agent;
#[cfg(feature = "grpc")]
pub mod error;
#[cfg(feature = "nvml")]
mod gpu;
#[cfg(feature = "grpc")]
mod heartbeat;
pub mod load;
#[cfg(feature = "grpc")]
pub mod pulse;

pub use load::LoadMeter;

#[cfg(feature = "grpc")]
pub use agent::{Agent, AgentConfig, Copies, Farewell, WrittenPart};
#[cfg(feature = "grpc")]
pub use error::AgentError;
#[cfg(feature = "grpc")]
pub use pulse::{AtWork, Pulse};
