//! Sockets, threads and clocks: transports, the communicator that runs schedules over them, and the parameter server.
//!
//! Everything here blocks the calling thread, with a deadline and an [`AbortHandle`]; no asynchronous runtime is
//! involved, since the caller is the training thread, which has nothing else to do meanwhile.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the I/O half of the crate")]

pub mod abort;

pub mod transport;

pub mod communicator;

pub mod ps;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

mod wait;

pub use abort::AbortHandle;
pub use communicator::{Communicator, CommunicatorConfig, ScheduledCommunicator};
pub use ps::{PsClient, PsClientConfig, PsError, PsServer, PsServerConfig, PsServerStats};
pub use transport::{
    Exchange, Fold, Incoming, Listener, MemTransport, Outgoing, Sink, TcpTransport, Transport,
};
