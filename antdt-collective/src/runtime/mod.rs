//! Sockets, threads and clocks: transports, and the communicator that runs schedules over them.
//!
//! Everything here blocks the calling thread, with a deadline and an [`AbortHandle`]; no asynchronous runtime is
//! involved, since the caller is the training thread, which has nothing else to do meanwhile.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the I/O half of the crate")]

pub mod abort;
pub mod connection;

pub mod flat;
pub mod region;
pub mod rows;
pub mod transport;

pub mod communicator;
pub mod process_group;

pub mod compressed;
pub mod reducer;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

mod wait;

pub use abort::AbortHandle;
pub use communicator::{
    Communicator, CommunicatorBuffer, CommunicatorConfig, CopyRole, Halves, History, JoinError,
    ScheduledCommunicator, copy_by_broadcast,
};
pub use compressed::Compressor;
pub use connection::{BulkListener, BulkStream};
pub use flat::{FlatError, FlatMemory, FlatShape};
pub use process_group::{Backend, Library, ProcessGroup, TransportBackend};
pub use reducer::{BucketMemory, LayerMemory, Reducer, ReducerError, ReducerParts};
pub use region::{DeviceMemory, DevicePlace, HostMemory, Region};
pub use rows::{RowMemory, RowShape, RowsError};
pub use transport::{
    Channel, ChannelError, Exchange, Fabric, Fold, Incoming, Listener, Loan, MemTransport, Merge,
    MixedConfig, MixedTransport, Outgoing, Piece, Regroup, Sink, TcpChannel, TcpTransport, Transfer,
    Transport,
};
