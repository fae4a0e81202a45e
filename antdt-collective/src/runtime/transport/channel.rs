//! A connection between two processes that are in no group: a worker and a parameter server.

use std::fmt::Debug;
use std::io;
use std::time::Instant;

/// A connection that carries bytes between two processes outside of a group, such as a worker and a parameter
/// server. Bytes arrive in order, each once, and either end may send at any time.
///
/// Every wait has a deadline, and ends early when the abort handle that the channel was made with aborts.
/// After an error the channel must not be used.
pub trait Channel: Debug + Send {
    /// Sends all bytes; returns once they are handed to the operating system or the shared memory.
    ///
    /// # Errors
    /// See [`ChannelError`].
    fn send(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), ChannelError>;

    /// Fills `into` with the next bytes that the other end sent.
    ///
    /// # Errors
    /// See [`ChannelError`]. What the other end sent before it closed is received first.
    fn receive(&mut self, into: &mut [u8], deadline: Instant) -> Result<(), ChannelError>;

    /// Waits until a byte can be received.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    fn wait(&mut self, deadline: Instant) -> Result<(), ChannelError>;
}

/// Reason why bytes could not be sent or received over a channel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The other process has closed the channel or died, or nothing listens at the address.
    #[error("the other end closed; connect again once it is back")]
    Closed,
    /// The deadline passed before all bytes were sent or received.
    #[error("the other end did not send or take what was due before the deadline; look at that process")]
    Late,
    /// The abort handle ended the call.
    #[error("aborted: {reason}")]
    Aborted {
        /// Reason that the abort was called with.
        reason: String,
    },
    /// The other process is on a host that this transport does not reach.
    #[error(
        "the other end is on another host, where shared memory does not reach; choose the transport `auto` or `tcp`"
    )]
    OtherHost,
    /// The other process sent an impossible value: the shared memory or the connection is damaged.
    #[error("damaged: {what}; both ends must use the same transport")]
    Corrupt {
        /// Description of the damage.
        what: String,
    },
    /// The operating system refused an operation on this host.
    #[error("{what}: {source}")]
    Io {
        /// Name of the operation.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl ChannelError {
    /// Returns the error for an operation, `what`, that failed with `source`. A connection that ended becomes
    /// [`Closed`](Self::Closed).
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
