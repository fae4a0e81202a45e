//! A channel that is a TCP connection.

use std::io::{self, Read, Write};
use std::time::Instant;

use crate::runtime::abort::{AbortHandle, Interest};
use crate::runtime::connection::BulkStream;
use crate::runtime::transport::{Channel, ChannelError};

/// A [`Channel`] over TCP.
#[derive(Debug)]
pub struct TcpChannel {
    stream: BulkStream,
    abort: AbortHandle,
}

impl TcpChannel {
    /// Returns a channel over an established connection.
    pub fn new(stream: BulkStream, abort: &AbortHandle) -> Self {
        Self { stream, abort: abort.clone() }
    }

    /// The connection, and the handle that ends its waits.
    pub(in crate::runtime::transport) fn into_parts(self) -> (BulkStream, AbortHandle) {
        (self.stream, self.abort)
    }

    // Until the connection is ready, or there is something to complain about.
    fn sleep(&self, readiness: Interest, deadline: Instant) -> Result<(), ChannelError> {
        check(&self.abort, deadline)?;
        let ready = self.abort.wait_for(&self.stream, readiness, deadline);
        ready.map_err(|e| ChannelError::io("waiting for a connection", e))
    }
}

/// Checks that there is time left and no abort.
pub(in crate::runtime::transport) fn check(
    abort: &AbortHandle,
    deadline: Instant,
) -> Result<(), ChannelError> {
    if let Some(reason) = abort.reason() {
        return Err(ChannelError::Aborted { reason: reason.to_owned() });
    }
    if Instant::now() >= deadline { Err(ChannelError::Late) } else { Ok(()) }
}

impl Channel for TcpChannel {
    fn send(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), ChannelError> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..]) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(written) => sent += written,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.sleep(Interest::Write, deadline)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(ChannelError::io("sending", e)),
            }
        }
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8], deadline: Instant) -> Result<(), ChannelError> {
        let mut filled = 0;
        while filled < into.len() {
            match self.stream.read(&mut into[filled..]) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(read) => filled += read,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.sleep(Interest::Read, deadline)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(ChannelError::io("receiving", e)),
            }
        }
        Ok(())
    }

    fn wait(&mut self, deadline: Instant) -> Result<(), ChannelError> {
        loop {
            match self.stream.peek() {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(ChannelError::Closed),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.sleep(Interest::Read, deadline)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(ChannelError::io("receiving", e)),
            }
        }
    }
}
