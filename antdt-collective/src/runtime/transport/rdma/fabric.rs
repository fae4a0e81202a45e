//! The fabric of RDMA connections between all processes.

use std::time::Duration;

use super::RdmaTransport;
use crate::error::CollectiveError;
use crate::group::Group;
use crate::runtime::abort::AbortHandle;
use crate::runtime::transport::registry::Entry;
use crate::runtime::transport::{Fabric, Listener, Regroup};

#[derive(Debug)]
struct Rdma;

/// The line in the registry.
pub(in crate::runtime::transport) const ENTRY: Entry = Entry {
    name: "rdma",
    about: "RDMA between all processes; TCP where a host has no adapter",
    settings: Vec::new,
    build: |_| Ok(Box::new(Rdma)),
};

impl Fabric for Rdma {
    fn connect(
        &self,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError> {
        Ok(Box::new(RdmaTransport::connect(listener, group, timeout, abort)?))
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
