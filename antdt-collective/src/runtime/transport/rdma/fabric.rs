//! The fabric of RDMA connections between all processes.

use std::time::Duration;

use super::{RdmaConfig, RdmaSetup, RdmaTransport};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::runtime::abort::AbortHandle;
use crate::runtime::transport::registry::Entry;
use crate::runtime::transport::{Fabric, Listener, Regroup};

#[derive(Debug)]
struct Rdma(RdmaSetup);

/// The line in the registry.
pub(in crate::runtime::transport) const ENTRY: Entry = Entry {
    name: "rdma",
    about: "RDMA between all processes; TCP where a host has no adapter",
    settings: Vec::new,
    build: |_| Ok(Box::new(Rdma(RdmaSetup::Cards))),
};

/// The same, with the other way to connect.
pub(in crate::runtime::transport) const MANAGED: Entry = Entry {
    name: "rdma-cm",
    about: "as rdma, connected by librdmacm, the connection manager of the RDMA stack",
    settings: Vec::new,
    build: |_| Ok(Box::new(Rdma(RdmaSetup::Manager))),
};

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
