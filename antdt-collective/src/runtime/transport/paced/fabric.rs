//! The fabric over another one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt_core::{InvalidValue, NodeId};

use super::channel::PacedChannel;
use super::lines::Lines;
use super::network::EmulatedNetwork;
use super::transport::PacedTransport;
use crate::error::CollectiveError;
use crate::group::{Group, JobToken};
use crate::runtime::abort::AbortHandle;
use crate::runtime::connection::BulkStream;
use crate::runtime::transport::{Channel, ChannelError, Fabric, Listener, Regroup};

/// What all transports and channels of a process share.
#[derive(Debug)]
pub(super) struct Paced {
    pub(super) network: EmulatedNetwork,
    pub(super) lines: Lines,
}

/// A fabric that delays messages as an emulated network would. All processes of a job must use it, with the
/// same network and the same lines.
#[derive(Debug)]
pub struct PacedFabric {
    below: Box<dyn Fabric>,
    paced: Arc<Paced>,
    /// Emulated host of this process.
    host: u32,
}

impl PacedFabric {
    /// Returns the fabric of the process `node`, whose messages the fabric `below` carries.
    ///
    /// # Errors
    /// If a setting of the network is invalid.
    pub fn new(
        below: Box<dyn Fabric>,
        network: EmulatedNetwork,
        lines: Lines,
        node: NodeId,
    ) -> Result<Self, InvalidValue> {
        network.validate()?;
        let host = network.host(node);
        Ok(Self { below, paced: Arc::new(Paced { network, lines }), host })
    }
}

impl Fabric for PacedFabric {
    fn connect(
        &self,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError> {
        let below = self.below.connect(listener, group, timeout, abort)?;
        Ok(Box::new(PacedTransport::new(below, self.paced.clone(), abort)))
    }

    fn dial(
        &self,
        stream: BulkStream,
        job: JobToken,
        deadline: Instant,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Channel>, ChannelError> {
        let mut below = self.below.dial(stream, job, deadline, abort)?;
        below.send(&self.host.to_le_bytes(), deadline)?;
        let there = PacedChannel::host_of(&mut *below, deadline)?;
        Ok(Box::new(PacedChannel::new(below, self.paced.clone(), (self.host, there), abort)))
    }

    fn accept(
        &self,
        stream: BulkStream,
        job: JobToken,
        deadline: Instant,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Channel>, ChannelError> {
        let mut below = self.below.accept(stream, job, deadline, abort)?;
        let there = PacedChannel::host_of(&mut *below, deadline)?;
        below.send(&self.host.to_le_bytes(), deadline)?;
        Ok(Box::new(PacedChannel::new(below, self.paced.clone(), (self.host, there), abort)))
    }
}
