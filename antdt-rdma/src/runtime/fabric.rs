//! The fabric of RDMA connections between all processes.

use std::time::Duration;

use antdt_collective::runtime::transport::Entry;
use antdt_collective::runtime::transport::{Fabric, Listener, Regroup};
use antdt_collective::{AbortHandle, CollectiveError, Group};

use super::{RdmaConfig, RdmaSetup, RdmaTransport};

#[derive(Debug)]
struct Rdma(RdmaSetup);

/// The transports of this crate, for [`REGISTRY`](antdt_collective::runtime::transport::REGISTRY).
pub const ENTRIES: [Entry; 2] = [
    Entry::new("rdma", "RDMA between all processes; TCP where a host has no adapter", |_| {
        Ok(Box::new(Rdma(RdmaSetup::Cards)))
    }),
    Entry::new(
        "rdma-cm",
        "as rdma, connected by librdmacm, the connection manager of the RDMA stack",
        |_| Ok(Box::new(Rdma(RdmaSetup::Manager))),
    ),
];

impl Fabric for Rdma {
    fn connect(
        &self,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError> {
        let config = RdmaConfig { setup: self.0, ..RdmaConfig::default() };
        Ok(Box::new(RdmaTransport::connect_with(listener, group, timeout, abort, config)?))
    }
}

impl Regroup for RdmaTransport {
    fn regroup(
        self: Box<Self>,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError> {
        Ok(Box::new(RdmaTransport::regroup(*self, listener, group, timeout, abort)?))
    }
}
