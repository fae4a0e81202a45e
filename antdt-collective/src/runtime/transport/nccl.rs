//! The fabric below groups over NCCL: shared memory inside a host, TCP between hosts.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::registry::Entry;
use super::{Channel, ChannelError, Fabric, Listener, Regroup, mixed};
use crate::error::CollectiveError;
use crate::group::{Group, JobToken};
use crate::runtime::abort::AbortHandle;

#[derive(Debug)]
struct Nccl(Box<dyn Fabric>);

/// The line in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "nccl",
    about: "NCCL between GPUs for what is long; otherwise, and where a worker has no GPU of its own, as auto",
    settings: Vec::new,
    build: |settings| Ok(Box::new(Nccl((mixed::AUTO.build)(settings)?))),
};

impl Fabric for Nccl {
    fn connect(
        &self,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError> {
        self.0.connect(listener, group, timeout, abort)
    }

    fn wants_nccl(&self) -> bool {
        true
    }

    fn dial(
        &self,
        address: SocketAddr,
        job: JobToken,
        deadline: Instant,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Channel>, ChannelError> {
        self.0.dial(address, job, deadline, abort)
    }

    fn accept(
        &self,
        stream: TcpStream,
        job: JobToken,
        deadline: Instant,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Channel>, ChannelError> {
        self.0.accept(stream, job, deadline, abort)
    }
}
