//! The fabric below groups over a library between GPUs: shared memory inside a host, TCP between hosts.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use antdt_core::InvalidValue;
use antdt_core::registry::Settings;

use super::{Channel, ChannelError, Fabric, GpuLibrary, Listener, Regroup, mixed};
use crate::error::CollectiveError;
use crate::group::{Group, JobToken};
use crate::runtime::abort::AbortHandle;

#[derive(Debug)]
pub(super) struct Over {
    library: GpuLibrary,
    below: Box<dyn Fabric>,
}

impl Over {
    /// Returns the fabric of a job that names a library.
    pub(super) fn build(
        library: GpuLibrary,
        settings: &Settings<'_>,
    ) -> Result<Box<dyn Fabric>, InvalidValue> {
        Ok(Box::new(Self { library, below: (mixed::AUTO.build)(settings)? }))
    }
}

impl Fabric for Over {
    fn connect(
        &self,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError> {
        self.below.connect(listener, group, timeout, abort)
    }

    fn library(&self) -> Option<GpuLibrary> {
        Some(self.library)
    }

    fn dial(
        &self,
        address: SocketAddr,
        job: JobToken,
        deadline: Instant,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Channel>, ChannelError> {
        self.below.dial(address, job, deadline, abort)
    }

    fn accept(
        &self,
        stream: TcpStream,
        job: JobToken,
        deadline: Instant,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Channel>, ChannelError> {
        self.below.accept(stream, job, deadline, abort)
    }
}
