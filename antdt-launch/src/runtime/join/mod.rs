//! Nodes on hosts that join a job by themselves: each runs the same command, one of them has the job's master.
//!
//! The master's process opens a [`HostGate`]; every host, that of the master too, [`join`]s through it and runs as many workers as it has
//! slots. Which node runs where, and what becomes of nodes whose host is away, [`HostPool`](crate::pool::HostPool) decides.
//!
//! A host whose connection breaks keeps its nodes and comes back; they have ended for the job when it stays away for longer than
//! [`AWAY_LIMIT`](crate::pool::AWAY_LIMIT). When a host's process ends, however it does, its nodes end.

mod gate;
mod host;
#[cfg(test)]
mod tests;
mod wire;

pub use gate::{GateConfig, HostGate, HostWatch};
pub use host::{HostConfig, HostJoinError, HostNotice, join};
