//! Settings of the RDMA transport.

use std::time::Duration;

use crate::verbs::Shape;

/// Settings of an [`RdmaTransport`](super::RdmaTransport). They may differ between members, but for `fallback`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaConfig {
    /// Name of the device to use, as `rdma link` lists it. Default: none, the fastest active port of this host.
    pub device: Option<String>,
    /// Whether the group communicates over TCP where a member has no adapter. Default: yes. Otherwise such a group is
    /// refused. It must be the same on all members.
    pub fallback: bool,
    /// Slots of a connection in one direction. Default: none, those that suit the size of the group. A group uses the
    /// least that a member offers.
    pub shape: Option<Shape>,
    /// Time that a call has, from which follows for how long an adapter repeats what is not acknowledged. Default: none,
    /// the time that connecting may take.
    pub patience: Option<Duration>,
    /// How long a waiting rank polls before it sleeps. Other threads may use the processor between two polls.
    /// Default 20 µs: what a sleep and a wake-up take.
    pub spin: Duration,
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self { device: None, fallback: true, shape: None, patience: None, spin: Duration::from_micros(20) }
    }
}
