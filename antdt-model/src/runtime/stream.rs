//! A connection that carries whole messages, with a deadline and an abort handle in every wait.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use antdt_collective::AbortHandle;
use antdt_collective::runtime::abort::Readiness;

use crate::wire::{MessageHeader, WireError};

/// Why a message did not go or come.
#[derive(Debug)]
pub(super) enum StreamError {
    /// The other end is gone.
    Closed,
    /// The deadline passed.
    Late,
    /// The abort handle was used.
    Aborted,
    /// What came is no message.
    Wire(WireError),
    /// The system refused.
    Io(io::Error),
}

/// Memory set aside before any byte of a payload has come. A longer payload grows it as it arrives, so that an
/// announced length alone costs nothing.
const RESERVE: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct MessageStream {
    stream: TcpStream,
    abort: AbortHandle,
    // The last message's payload; kept to be reused.
    payload: Vec<u8>,
}

impl MessageStream {
    pub(super) fn new(stream: TcpStream, abort: AbortHandle) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, abort, payload: Vec::new() })
    }

    /// Sends a whole message.
    pub(super) fn send(&mut self, message: &[u8], deadline: Instant) -> Result<(), StreamError> {
        let mut sent = 0;
        while sent < message.len() {
            match (&self.stream).write(&message[sent..]) {
                Ok(0) => return Err(StreamError::Closed),
                Ok(written) => sent += written,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(Readiness::Write, deadline)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(closed_or(e)),
            }
        }
        Ok(())
    }

    /// Waits until a message begins to come.
    pub(super) fn await_message(&self, deadline: Instant) -> Result<(), StreamError> {
        let mut byte = [0];
        loop {
            match self.stream.peek(&mut byte) {
                Ok(0) => return Err(StreamError::Closed),
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(Readiness::Read, deadline)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(closed_or(e)),
            }
        }
    }

    /// Receives a whole message: its kind and payload.
    pub(super) fn receive(&mut self, most: u64, deadline: Instant) -> Result<(u8, &[u8]), StreamError> {
        let mut header = [0; MessageHeader::LEN];
        self.fill(&mut header, deadline)?;
        let header = MessageHeader::decode(&header, most).map_err(StreamError::Wire)?;
        let len = usize::try_from(header.len)
            .map_err(|_| StreamError::Wire(WireError::TooLong { len: header.len, most }))?;
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        while payload.len() < len {
            let from = payload.len();
            payload.resize(len.min(from.max(RESERVE) * 2).max(from), 0);
            self.fill(&mut payload[from..], deadline)?;
        }
        header.verify(&payload).map_err(StreamError::Wire)?;
        self.payload = payload;
        Ok((header.kind, &self.payload))
    }

    fn fill(&self, into: &mut [u8], deadline: Instant) -> Result<(), StreamError> {
        let mut filled = 0;
        while filled < into.len() {
            match (&self.stream).read(&mut into[filled..]) {
                Ok(0) => return Err(StreamError::Closed),
                Ok(read) => filled += read,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(Readiness::Read, deadline)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(closed_or(e)),
            }
        }
        Ok(())
    }

    fn wait(&self, readiness: Readiness, deadline: Instant) -> Result<(), StreamError> {
        if self.abort.reason().is_some() {
            return Err(StreamError::Aborted);
        }
        if Instant::now() >= deadline {
            return Err(StreamError::Late);
        }
        self.abort.wait_for(&self.stream, readiness, deadline).map_err(StreamError::Io)
    }
}

fn closed_or(e: io::Error) -> StreamError {
    match e.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
            StreamError::Closed
        }
        _ => StreamError::Io(e),
    }
}
