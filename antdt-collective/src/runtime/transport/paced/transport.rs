//! Transports whose messages cross the emulated network.

use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt_core::Rank;

use super::fabric::Paced;
use super::line::Stand;
use super::lines::clock;
use crate::error::CollectiveError;
use crate::group::Group;
use crate::runtime::abort::AbortHandle;
use crate::runtime::region::Region;
use crate::runtime::transport::{Exchange, Incoming, Listener, Outgoing, Regroup, Transfer, Transport};
use crate::schedule::CostModel;

/// A transport that waits until its messages would be there, and then hands them over.
pub(super) struct PacedTransport {
    /// Carries the bytes.
    below: Box<dyn Regroup>,
    paced: Arc<Paced>,
    abort: AbortHandle,
    /// Emulated host of each rank.
    hosts: Vec<u32>,
    stand: Stand,
    /// Bytes that crossed to each rank since they were last asked for, and the time that they took.
    sent: Vec<(u64, Duration)>,
}

impl PacedTransport {
    pub(super) fn new(below: Box<dyn Regroup>, paced: Arc<Paced>, abort: &AbortHandle) -> Self {
        let members = below.group().members();
        let hosts: Vec<u32> = members.iter().map(|member| paced.network.host(member.holder.node)).collect();
        let sent = vec![(0, Duration::ZERO); hosts.len()];
        Self { below, paced, abort: abort.clone(), hosts, stand: Stand::default(), sent }
    }

    /// Waits until the last of some messages, of so many bytes each, would be there.
    fn cross(&mut self, call: &Exchange, sends: &[Outgoing<'_>]) -> Result<(), CollectiveError> {
        let clock = clock();
        let now = self.stand.now(clock);
        let host = |rank: Rank| self.hosts[rank.0 as usize];
        let (me, Paced { network, lines }) = (self.below.group().me(), &*self.paced);
        let mut through = None;
        for Outgoing { to, bytes } in sends {
            let crossing = lines.carry(network, host(me), host(*to), bytes.len(), now);
            through = through.max(Some(crossing.arrives));
            if host(me) != host(*to) {
                let time = Duration::from_nanos(crossing.arrives.saturating_sub(crossing.begins));
                let sum = &mut self.sent[to.0 as usize];
                *sum = (sum.0 + bytes.len() as u64, sum.1 + time);
            }
        }
        let Some(through) = through else { return Ok(()) };
        self.stand.reaches(through);
        let wait = Duration::from_nanos(through.saturating_sub(clock));
        if wait.is_zero() {
            return Ok(());
        }
        let until = Instant::now().checked_add(wait).map_or(call.deadline, |until| until.min(call.deadline));
        // After an abort, or past the deadline, the transport below says so itself, and tells the others.
        while Instant::now() < until && self.abort.reason().is_none() {
            self.abort.wait_until(until).map_err(|error| {
                self.below.fail(CollectiveError::io("waiting for an emulated link", &error))
            })?;
        }
        Ok(())
    }
}

impl Transport for PacedTransport {
    fn group(&self) -> &Group {
        self.below.group()
    }

    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        self.cross(call, sends)?;
        self.below.exchange(call, sends, receives)
    }

    fn hosts(&self) -> Option<&[u32]> {
        Some(&self.hosts)
    }

    fn cost(&self) -> CostModel {
        self.paced.network.cost(&self.hosts, self.below.cost())
    }

    // The real network below carries nothing that takes long.
    fn transfers(&mut self) -> Vec<Transfer> {
        let sent = (0..).map(Rank).zip(self.sent.iter_mut().map(std::mem::take));
        sent.filter(|(_, (bytes, _))| *bytes > 0)
            .map(|(to, (bytes, time))| Transfer { to, bytes, time })
            .collect()
    }

    fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        self.below.region(len_bytes)
    }

    // A rank that reads in place does not wait for a link: trades and short blocks are exchanges here.
    fn lends(&self) -> bool {
        false
    }

    fn owns(&self, region: &Region) -> bool {
        self.below.owns(region)
    }

    fn check(&mut self) {
        self.below.check();
    }

    fn attend(&mut self) {
        self.below.attend();
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        self.below.fail(error)
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
        let below = self.below.regroup(listener, group, timeout, abort)?;
        Ok(Box::new(Self::new(below, self.paced, abort)))
    }
}
