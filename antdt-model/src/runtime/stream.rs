//! Framing of whole messages over a channel.

use std::time::Instant;

use antdt_collective::runtime::{Channel, ChannelError};

use crate::wire::{MessageHeader, WireError};

/// Why a message did not go or come.
#[derive(Debug)]
pub(super) enum StreamError {
    /// The bytes could not be sent or received.
    Channel(ChannelError),
    /// The bytes received are not a message.
    Wire(WireError),
}

impl From<ChannelError> for StreamError {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

/// Memory set aside before any byte of a payload has come. A longer payload grows it as it arrives, so that an
/// announced length alone costs nothing.
const RESERVE: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct MessageStream {
    channel: Box<dyn Channel>,
    // The last message's payload; kept to be reused.
    payload: Vec<u8>,
}

impl MessageStream {
    pub(super) const fn new(channel: Box<dyn Channel>) -> Self {
        Self { channel, payload: Vec::new() }
    }

    /// Sends a whole message.
    pub(super) fn send(&mut self, message: &[u8], deadline: Instant) -> Result<(), StreamError> {
        Ok(self.channel.send(message, deadline)?)
    }

    /// Waits until a message begins to come.
    pub(super) fn await_message(&mut self, deadline: Instant) -> Result<(), StreamError> {
        Ok(self.channel.wait(deadline)?)
    }

    /// Receives a whole message and returns its payload.
    pub(super) fn receive(&mut self, most: u64, deadline: Instant) -> Result<&[u8], StreamError> {
        let mut header = [0; MessageHeader::LEN];
        self.channel.receive(&mut header, deadline)?;
        let header = MessageHeader::decode(&header, most).map_err(StreamError::Wire)?;
        let len = usize::try_from(header.len)
            .map_err(|_| StreamError::Wire(WireError::TooLong { len: header.len, most }))?;
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        while payload.len() < len {
            let from = payload.len();
            payload.resize(len.min(from.max(RESERVE) * 2).max(from), 0);
            self.channel.receive(&mut payload[from..], deadline)?;
        }
        header.verify(&payload).map_err(StreamError::Wire)?;
        self.payload = payload;
        Ok(&self.payload)
    }
}
