//! The fabrics with shared memory inside a host: with TCP between hosts, or without.

use std::time::{Duration, Instant};

use super::{MixedConfig, MixedTransport};
use crate::error::CollectiveError;
use crate::group::{Group, JobToken};
use crate::runtime::abort::AbortHandle;
use crate::runtime::connection::BulkStream;
use crate::runtime::transport::registry::Entry;
use crate::runtime::transport::shm::{self, Terms};
use crate::runtime::transport::{Channel, ChannelError, Fabric, Listener, Regroup, TcpChannel};

#[derive(Debug)]
struct Mixed {
    one_host: bool,
}

/// The line in the registry of shared memory inside a host and TCP between hosts.
pub(in crate::runtime::transport) const AUTO: Entry = Entry {
    name: "auto",
    about: "shared memory inside a host, TCP between hosts",
    settings: Vec::new,
    build: |_| Ok(Box::new(Mixed { one_host: false })),
};

/// The line in the registry of shared memory alone.
pub(in crate::runtime::transport) const SHM: Entry = Entry {
    name: "shm",
    about: "shared memory; refuses processes of another host",
    settings: Vec::new,
    build: |_| Ok(Box::new(Mixed { one_host: true })),
};

impl Mixed {
    const fn terms(&self, job: JobToken) -> Terms<'static> {
        Terms { job, one_host: self.one_host, part: "" }
    }
}

impl Fabric for Mixed {
    fn connect(
        &self,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError> {
        let config = MixedConfig { one_host: self.one_host, ..MixedConfig::default() };
        Ok(Box::new(MixedTransport::connect_with(listener, group, timeout, abort, config)?))
    }

    fn dial(
        &self,
        stream: BulkStream,
        job: JobToken,
        deadline: Instant,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Channel>, ChannelError> {
        shm::offer(TcpChannel::new(stream, abort), self.terms(job), deadline)
    }

    fn accept(
        &self,
        stream: BulkStream,
        job: JobToken,
        deadline: Instant,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Channel>, ChannelError> {
        shm::answer(TcpChannel::new(stream, abort), self.terms(job), deadline)
    }
}

impl Regroup for MixedTransport {
    fn regroup(
        self: Box<Self>,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError> {
        Ok(Box::new(MixedTransport::regroup(*self, listener, group, timeout, abort)?))
    }
}
