//! A transport that counts the messages that go through another one.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use antdt_core::Rank;

use crate::error::CollectiveError;
use crate::group::Group;
use crate::runtime::region::Region;
use crate::runtime::transport::{Exchange, Incoming, Loan, Merge, Outgoing, Transfer, Transport};
use crate::schedule::CostModel;

/// Counts of the messages and bytes that a member sent.
#[derive(Debug, Default)]
pub struct Traffic {
    // By receiver.
    bytes: Vec<AtomicU64>,
    messages: AtomicU64,
    exchanges: AtomicU64,
    regions: AtomicU64,
    copied: AtomicU64,
}

impl Traffic {
    /// Returns the number of payload bytes that the member sent.
    pub fn bytes(&self) -> u64 {
        self.bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of payload bytes that the member sent to one peer.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn bytes_to(&self, rank: Rank) -> u64 {
        self.bytes[rank.0 as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of messages that the member sent.
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Returns the number of rounds in which the member sent or received a message.
    pub fn exchanges(&self) -> u64 {
        self.exchanges.load(Ordering::Relaxed)
    }

    /// Returns the number of [regions](Transport::region) that the member asked for: an adapter registers each
    /// of them.
    pub fn regions(&self) -> u64 {
        self.regions.load(Ordering::Relaxed)
    }

    /// Returns the number of payload bytes of messages that the member sent from memory outside of all regions.
    /// An adapter can only send a copy of them. The blocks of [`Transport::all_gather`] do not count.
    pub fn copied_bytes(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }
}

/// A transport that counts what a member sends over the transport `T`.
#[derive(Debug)]
pub struct CountTransport<T> {
    inner: T,
    traffic: Arc<Traffic>,
    // Addresses of the regions that were handed out.
    regions: Vec<Range<usize>>,
}

impl<T: Transport> CountTransport<T> {
    /// Returns a transport over `inner` that counts from 0, and its counters.
    pub fn new(inner: T) -> (Self, Arc<Traffic>) {
        let world = inner.group().world();
        let bytes = (0..world).map(|_| AtomicU64::new(0)).collect();
        let traffic = Arc::new(Traffic { bytes, ..Traffic::default() });
        (Self { inner, traffic: traffic.clone(), regions: Vec::new() }, traffic)
    }

    fn count(&self, sends: &[Outgoing<'_>]) {
        for send in sends {
            self.traffic.bytes[send.to.0 as usize].fetch_add(send.bytes.len() as u64, Ordering::Relaxed);
            let place = send.bytes.as_ptr_range();
            let place = place.start.addr()..place.end.addr();
            let inside = |region: &Range<usize>| region.start <= place.start && place.end <= region.end;
            if !self.regions.iter().any(inside) {
                self.traffic.copied.fetch_add(send.bytes.len() as u64, Ordering::Relaxed);
            }
        }
        self.traffic.messages.fetch_add(sends.len() as u64, Ordering::Relaxed);
        self.traffic.exchanges.fetch_add(1, Ordering::Relaxed);
    }
}

impl<T: Transport> Transport for CountTransport<T> {
    fn group(&self) -> &Group {
        self.inner.group()
    }

    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        self.count(sends);
        self.inner.exchange(call, sends, receives)
    }

    fn trade(
        &mut self,
        call: &Exchange,
        loans: &mut [Loan<'_>],
        merge: &mut dyn Merge,
    ) -> Result<(), CollectiveError> {
        self.count(&loans.iter().map(Loan::outgoing).collect::<Vec<_>>());
        self.inner.trade(call, loans, merge)
    }

    fn all_gather(&mut self, call: &Exchange, blocks: &mut [u8]) -> Result<(), CollectiveError> {
        let (me, world) = (self.group().me().0 as usize, self.group().world() as usize);
        if world > 1 {
            for (rank, bytes) in self.traffic.bytes.iter().enumerate() {
                let block = if rank == me { 0 } else { blocks.len() / world };
                bytes.fetch_add(block as u64, Ordering::Relaxed);
            }
            self.traffic.messages.fetch_add(world as u64 - 1, Ordering::Relaxed);
            self.traffic.exchanges.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.all_gather(call, blocks)
    }

    fn hosts(&self) -> Option<&[u32]> {
        self.inner.hosts()
    }

    fn cost(&self) -> CostModel {
        self.inner.cost()
    }

    fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        let region = self.inner.region(len_bytes)?;
        let place = region.as_ptr_range();
        self.regions.push(place.start.addr()..place.end.addr());
        self.traffic.regions.fetch_add(1, Ordering::Relaxed);
        Ok(region)
    }

    fn lends(&self) -> bool {
        self.inner.lends()
    }

    fn owns(&self, region: &Region) -> bool {
        self.inner.owns(region)
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        self.inner.transfers()
    }

    fn check(&mut self) {
        self.inner.check();
    }

    fn attend(&mut self) {
        self.inner.attend();
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        self.inner.fail(error)
    }
}
