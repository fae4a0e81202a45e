//! Settings of the RDMA transport.

use std::time::Duration;

use crate::verbs::Shape;

/// How the queue pairs of a group are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RdmaSetup {
    /// By what the members tell each other over the group's TCP connections.
    #[default]
    Cards,
    /// By librdmacm, the connection manager of the RDMA stack, for fabrics that let nothing else connect: it asks the system for
    /// the way to a peer's IP address, and the peer's system for an answer. Where it takes calls is told over the group's TCP
    /// connections. Adapters need an IP address that is valid beyond their link.
    Manager,
}

/// Settings of an [`RdmaTransport`](super::RdmaTransport). They may differ between members, but for `fallback` and `setup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaConfig {
    /// Name of the device to use, as `rdma link` lists it. Default: none, the fastest active port of this host.
    pub device: Option<String>,
    /// Whether the group communicates over TCP where a member has no adapter. Default: yes. Otherwise such a group is
    /// refused. It must be the same on all members.
    pub fallback: bool,
    /// How the queue pairs are connected. Default: by the group's TCP connections. It must be the same on all members.
    pub setup: RdmaSetup,
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
        Self {
            device: None,
            fallback: true,
            setup: RdmaSetup::Cards,
            shape: None,
            patience: None,
            spin: Duration::from_micros(20),
        }
    }
}
