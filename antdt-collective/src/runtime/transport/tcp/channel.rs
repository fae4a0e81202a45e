//! A channel that is a TCP connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::runtime::abort::{AbortHandle, Interest};
use crate::runtime::transport::{Channel, ChannelError};

/// A [`Channel`] over TCP.
#[derive(Debug)]
pub struct TcpChannel {
    stream: TcpStream,
    abort: AbortHandle,
}

impl TcpChannel {
    /// Connects to the process that listens at `address`.
    ///
    /// # Errors
    /// If no process listens there, the host cannot be reached, or the operating system refuses the
    /// connection.
    pub fn dial(address: SocketAddr, deadline: Instant, abort: &AbortHandle) -> Result<Self, ChannelError> {
        // A process that listens is connected with by its system, at once.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let stream =
            TcpStream::connect_timeout(&address, left).map_err(|e| ChannelError::io("connecting", e))?;
        Self::new(stream, abort)
    }

    /// Returns a channel over an established connection.
    ///
    /// # Errors
    /// If the system refuses the connection's settings.
    pub fn new(stream: TcpStream, abort: &AbortHandle) -> Result<Self, ChannelError> {
        let set = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
        set.map_err(|e| ChannelError::io("preparing a connection", e))?;
        Ok(Self { stream, abort: abort.clone() })
    }

    /// The connection, and the handle that ends its waits.
    pub(in crate::runtime::transport) fn into_parts(self) -> (TcpStream, AbortHandle) {
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
            match (&self.stream).write(&bytes[sent..]) {
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
            match (&self.stream).read(&mut into[filled..]) {
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
        let mut byte = [0];
        loop {
            match self.stream.peek(&mut byte) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.sleep(Interest::Read, deadline)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(ChannelError::io("receiving", e)),
            }
        }
    }
}
