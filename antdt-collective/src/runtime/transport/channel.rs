//! A connection between two processes that are in no group: a worker and a parameter server.

use std::fmt::Debug;
use std::io;
use std::time::Instant;

/// Carries bytes between two processes, in order, each once. Either end may send at any time.
///
/// Every wait has a deadline and ends when the abort handle is used that the channel was made with. After an error the
/// channel is of no more use.
pub trait Channel: Debug + Send {
    /// Sends all bytes; returns once they are on their way.
    ///
    /// # Errors
    /// See [`ChannelError`].
    fn send(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), ChannelError>;

    /// Fills `into` with the next bytes.
    ///
    /// # Errors
    /// See [`ChannelError`]. What the other end sent before it closed is received first.
    fn receive(&mut self, into: &mut [u8], deadline: Instant) -> Result<(), ChannelError>;

    /// Waits until a byte is there to be received.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    fn wait(&mut self, deadline: Instant) -> Result<(), ChannelError>;
}

/// Bytes did not go or come.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The other end is gone, or nothing listens there.
    #[error("the other end closed; connect again once it is back")]
    Closed,
    /// The deadline passed.
    #[error("the other end did not send or take what was due before the deadline; look at that process")]
    Late,
    /// The abort handle was used.
    #[error("aborted: {reason}")]
    Aborted {
        /// Reason, in words.
        reason: String,
    },
    /// The other end is where this transport does not reach.
    #[error(
        "the other end is on another host, where shared memory does not reach; choose the transport `auto` or `tcp`"
    )]
    OtherHost,
    /// The other end says what it cannot.
    #[error("damaged: {what}; both ends must use the same transport")]
    Corrupt {
        /// Description of the fault.
        what: String,
    },
    /// The operating system refused something on this host.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl ChannelError {
    /// The system's refusal of `what`; a connection that ended is no refusal.
    pub fn io(what: &'static str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Self::Closed,
            io::ErrorKind::TimedOut => Self::Late,
            _ => Self::Io { what, source },
        }
    }
}
