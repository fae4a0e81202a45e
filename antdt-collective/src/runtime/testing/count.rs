//! A transport that counts what goes through another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::CollectiveError;
use crate::group::Group;
use crate::runtime::region::Region;
use crate::runtime::transport::{Exchange, Incoming, Outgoing, Transport};
use crate::schedule::CostModel;

/// What a member sent.
#[derive(Debug, Default)]
pub struct Traffic {
    bytes: AtomicU64,
    messages: AtomicU64,
    exchanges: AtomicU64,
}

impl Traffic {
    /// Payload, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Messages.
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Rounds in which it sent or received anything.
    pub fn exchanges(&self) -> u64 {
        self.exchanges.load(Ordering::Relaxed)
    }
}

/// Counts what is sent over `T`.
#[derive(Debug)]
pub struct CountTransport<T> {
    inner: T,
    traffic: Arc<Traffic>,
}

impl<T> CountTransport<T> {
    /// A transport that counts from 0, and what it counts.
    pub fn new(inner: T) -> (Self, Arc<Traffic>) {
        let traffic = Arc::<Traffic>::default();
        (Self { inner, traffic: traffic.clone() }, traffic)
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
        let bytes: usize = sends.iter().map(|send| send.bytes.len()).sum();
        self.traffic.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.traffic.messages.fetch_add(sends.len() as u64, Ordering::Relaxed);
        self.traffic.exchanges.fetch_add(1, Ordering::Relaxed);
        self.inner.exchange(call, sends, receives)
    }

    fn all_gather(&mut self, call: &Exchange, blocks: &mut [u8]) -> Result<(), CollectiveError> {
        let world = self.group().world();
        let others = u64::from(world - 1);
        self.traffic.bytes.fetch_add((blocks.len() / world as usize) as u64 * others, Ordering::Relaxed);
        self.traffic.messages.fetch_add(others, Ordering::Relaxed);
        self.traffic.exchanges.fetch_add(1, Ordering::Relaxed);
        self.inner.all_gather(call, blocks)
    }

    fn hosts(&self) -> Option<&[u32]> {
        self.inner.hosts()
    }

    fn cost(&self) -> CostModel {
        self.inner.cost()
    }

    fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        self.inner.region(len_bytes)
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        self.inner.fail(error)
    }
}
