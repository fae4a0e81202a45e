//! Channels whose messages cross the emulated network.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fabric::Paced;
use super::line::Stand;
use super::lines::clock;
use super::network::HOSTS_MAX;
use crate::runtime::abort::AbortHandle;
use crate::runtime::transport::{Channel, ChannelError};

/// Bytes before each message: when it arrives, in nanoseconds of the clock that all processes share, and its length.
const HEADER: usize = 16;

/// A channel whose receiver waits until a message would be there.
#[derive(Debug)]
pub(super) struct PacedChannel {
    below: Box<dyn Channel>,
    paced: Arc<Paced>,
    abort: AbortHandle,
    /// Emulated hosts of this end and of the other.
    ends: (u32, u32),
    stand: Stand,
    /// Bytes of the message under way that were not received yet.
    left: u64,
}

impl PacedChannel {
    pub(super) fn new(
        below: Box<dyn Channel>,
        paced: Arc<Paced>,
        ends: (u32, u32),
        abort: &AbortHandle,
    ) -> Self {
        Self { below, paced, abort: abort.clone(), ends, stand: Stand::default(), left: 0 }
    }

    /// Receives the emulated host of the other end.
    pub(super) fn host_of(below: &mut dyn Channel, deadline: Instant) -> Result<u32, ChannelError> {
        let mut host = [0; 4];
        below.receive(&mut host, deadline)?;
        let host = u32::from_le_bytes(host);
        if host >= HOSTS_MAX {
            let what = format!("the other end says that it is on emulated host {host}");
            return Err(ChannelError::Corrupt { what });
        }
        Ok(host)
    }

    /// Waits until the next byte would be there.
    fn arrive(&mut self, deadline: Instant) -> Result<(), ChannelError> {
        while self.left == 0 {
            let mut header = [0; HEADER];
            self.below.receive(&mut header, deadline)?;
            let (at, len) = header.split_at(8);
            let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            let at = number(at);
            self.left = number(len);
            // A request that follows an answer begins when the answer was there.
            self.stand.reaches(at);
            self.sleep(at, deadline)?;
        }
        Ok(())
    }

    fn sleep(&self, at: u64, deadline: Instant) -> Result<(), ChannelError> {
        let wait = Duration::from_nanos(at.saturating_sub(clock()));
        if wait.is_zero() {
            return Ok(());
        }
        let until = Instant::now().checked_add(wait).ok_or(ChannelError::Late)?;
        loop {
            if let Some(reason) = self.abort.reason() {
                return Err(ChannelError::Aborted { reason: reason.to_owned() });
            }
            let now = Instant::now();
            if now >= until {
                return Ok(());
            }
            if now >= deadline {
                return Err(ChannelError::Late);
            }
            let waited = self.abort.wait_until(until.min(deadline));
            waited.map_err(|error| ChannelError::io("waiting for an emulated link", error))?;
        }
    }
}

impl Channel for PacedChannel {
    fn send(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), ChannelError> {
        if bytes.is_empty() {
            return self.below.send(bytes, deadline);
        }
        let now = self.stand.now(clock());
        let (here, there) = self.ends;
        let at = self.paced.lines.carry(&self.paced.network, here, there, bytes.len(), now).arrives;
        // By hand: of fixed length and before every message.
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&at.to_le_bytes());
        header[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.below.send(&header, deadline)?;
        self.below.send(bytes, deadline)
    }

    fn receive(&mut self, mut into: &mut [u8], deadline: Instant) -> Result<(), ChannelError> {
        while !into.is_empty() {
            self.arrive(deadline)?;
            let len = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            let (now, later) = into.split_at_mut(len);
            self.below.receive(now, deadline)?;
            self.left -= len as u64;
            into = later;
        }
        Ok(())
    }

    fn wait(&mut self, deadline: Instant) -> Result<(), ChannelError> {
        if self.left > 0 {
            return Ok(());
        }
        self.below.wait(deadline)?;
        self.arrive(deadline)
    }
}
