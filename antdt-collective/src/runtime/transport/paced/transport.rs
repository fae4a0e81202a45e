//! Transports whose messages cross the emulated network.

use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt_core::NodeId;

use super::fabric::Paced;
use super::line::Stand;
use super::lines::clock;
use crate::error::CollectiveError;
use crate::group::Group;
use crate::runtime::abort::AbortHandle;
use crate::runtime::region::Region;
use crate::runtime::transport::{Exchange, Incoming, Listener, Outgoing, Regroup, Transport};
use crate::schedule::CostModel;

/// A transport that waits until its messages would be there, and then hands them over.
#[derive(Debug)]
pub(super) struct PacedTransport {
    below: Below,
    paced: Arc<Paced>,
    abort: AbortHandle,
    /// Emulated host of each rank, numbered from 0 in order of the ranks.
    hosts: Vec<u32>,
    stand: Stand,
}

/// The transport that carries the bytes.
struct Below(Box<dyn Regroup>);

impl std::fmt::Debug for Below {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "transport of {} members", self.0.group().world())
    }
}

impl PacedTransport {
    pub(super) fn new(below: Box<dyn Regroup>, paced: Arc<Paced>, abort: &AbortHandle) -> Self {
        let mut known: Vec<u32> = Vec::new();
        let hosts = below.group().members().iter().map(|member| {
            let host = paced.network.host(member.holder.node);
            let at = known.iter().position(|other| *other == host).unwrap_or_else(|| {
                known.push(host);
                known.len() - 1
            });
            u32::try_from(at).expect("a group has at most 1024 members")
        });
        let hosts = hosts.collect();
        Self { below: Below(below), paced, abort: abort.clone(), hosts, stand: Stand::default() }
    }

    fn node(&self, rank: antdt_core::Rank) -> NodeId {
        self.below.0.group().holder(rank).node
    }

    /// Waits until the last of some messages, of so many bytes each, would be there.
    fn cross(&mut self, call: &Exchange, sends: &[Outgoing<'_>]) -> Result<(), CollectiveError> {
        let clock = clock();
        let now = self.stand.now(clock);
        let me = self.paced.network.host(self.node(self.below.0.group().me()));
        let arrives = sends.iter().map(|send| {
            let to = self.paced.network.host(self.node(send.to));
            self.paced.lines.carry(&self.paced.network, me, to, send.bytes.len(), now)
        });
        let Some(through) = arrives.max() else { return Ok(()) };
        self.stand.reaches(through);
        let wait = Duration::from_nanos(through.saturating_sub(clock));
        if wait.is_zero() {
            return Ok(());
        }
        let until = Instant::now().checked_add(wait).map_or(call.deadline, |until| until.min(call.deadline));
        // After an abort, or past the deadline, the transport below says so itself, and tells the others.
        while Instant::now() < until && self.abort.reason().is_none() {
            self.abort.wait_until(until).map_err(|error| {
                self.below.0.fail(CollectiveError::io("waiting for an emulated link", &error))
            })?;
        }
        Ok(())
    }
}

impl Transport for PacedTransport {
    fn group(&self) -> &Group {
        self.below.0.group()
    }

    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        self.cross(call, sends)?;
        self.below.0.exchange(call, sends, receives)
    }

    fn hosts(&self) -> Option<&[u32]> {
        Some(&self.hosts)
    }

    fn cost(&self) -> CostModel {
        let network = &self.paced.network;
        let below = self.below.0.cost();
        CostModel {
            alpha: below.alpha + network.latency.as_secs_f64(),
            bandwidth: below.bandwidth.min(network.bandwidth),
            ..below
        }
    }

    fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        self.below.0.region(len_bytes)
    }

    // Whoever reads in place does not wait for a link: trades and short blocks are exchanges here.
    fn lends(&self) -> bool {
        false
    }

    fn owns(&self, region: &Region) -> bool {
        self.below.0.owns(region)
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        self.below.0.fail(error)
    }
}

impl Regroup for PacedTransport {
    fn regroup(
        self: Box<Self>,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError> {
        let below = self.below.0.regroup(listener, group, timeout, abort)?;
        Ok(Box::new(Self::new(below, self.paced, abort)))
    }
}
