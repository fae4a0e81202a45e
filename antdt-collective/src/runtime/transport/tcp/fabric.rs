//! The fabric of TCP connections between all processes.

use std::time::Duration;

use super::{Listener, TcpTransport};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::runtime::abort::AbortHandle;
use crate::runtime::transport::registry::Entry;
use crate::runtime::transport::{Fabric, Regroup};

#[derive(Debug)]
struct Tcp;

/// Entry of the registry.
pub(in crate::runtime::transport) const ENTRY: Entry = Entry {
    name: "tcp",
    about: "TCP between all processes",
    settings: Vec::new,
    build: |_| Ok(Box::new(Tcp)),
};

impl Fabric for Tcp {
    fn connect(
        &self,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError> {
        Ok(Box::new(TcpTransport::connect(listener, group, timeout, abort)?))
    }
}

impl Regroup for TcpTransport {
    fn regroup(
        self: Box<Self>,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError> {
        Ok(Box::new(TcpTransport::regroup(*self, listener, group, timeout, abort)?))
    }
}
