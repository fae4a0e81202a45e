//! Settings of the RDMA transport.

use std::time::Duration;

use crate::verbs::Shape;

/// How the queue pairs of a group's members are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RdmaSetup {
    /// By endpoint data that the members exchange over the group's TCP connections.
    #[default]
    Cards,
    /// By librdmacm, the connection manager of the RDMA stack, for networks that allow no other way. It
    /// resolves the route to a peer's IP address, and connects through the operating systems of both hosts.
    /// The members exchange the port numbers over the group's TCP connections. Adapters need an IP address
    /// that is valid beyond their link.
    Manager,
}

/// Settings of an [`RdmaTransport`](super::RdmaTransport). They may differ between members, except `fallback`
/// and `setup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaConfig {
    /// Name of the RDMA device to use, as `rdma link` lists it. Default: none, which selects the fastest
    /// active port of this host.
    pub device: Option<String>,
    /// Whether a group communicates over TCP if a member has no adapter. Default: yes; otherwise such a group
    /// is refused. The setting must be the same on all members.
    pub fallback: bool,
    /// How the queue pairs are connected. Default: by the group's TCP connections. The setting must be the
    /// same on all members.
    pub setup: RdmaSetup,
    /// Number and size of the message slots of a connection in one direction. Default: none, which selects
    /// them by the size of the group. A group uses the smallest values that a member offers.
    pub shape: Option<Shape>,
    /// Duration of a call from which the adapter's retries follow. Default: none, which selects the time that
    /// connecting may take.
    pub patience: Option<Duration>,
    /// Time for which a waiting rank polls before it sleeps. Other threads may use the processor between two
    /// polls. Default 20 µs, the cost of one sleep and wake-up.
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
