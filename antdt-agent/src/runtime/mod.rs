//! The background half of an agent: heartbeats go out while the training thread computes.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the runtime half: the only place of this crate with a clock, threads and sockets"
)]

#[cfg(feature = "grpc")]
pub mod agent;
#[cfg(feature = "nvml")]
mod gpu;
pub mod load;

pub use load::LoadMeter;

#[cfg(feature = "grpc")]
pub use agent::{Agent, AgentConfig, AgentError, AtWork, Copies, Farewell, Pulse, WrittenPart};
