//! Sockets, threads and clocks: transports, and the communicator that runs schedules over them.
//!
//! Everything here blocks the calling thread, with a deadline and an [`AbortHandle`]; no asynchronous runtime is
//! involved, since the caller is the training thread, which has nothing else to do meanwhile.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the I/O half of the crate")]

pub mod abort;

pub mod flat;
pub mod region;
pub mod rows;
pub mod transport;

pub mod communicator;
pub mod process_group;

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(any(test, feature = "cuda", feature = "testing"))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "libraries that can be late"))]
mod device;
#[cfg(feature = "cuda")]
pub mod ipc;
#[cfg(feature = "nccl")]
pub mod nccl;

pub mod compressed;
pub mod reducer;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

mod wait;

pub use abort::AbortHandle;
pub use communicator::{
    Communicator, CommunicatorBuffer, CommunicatorConfig, CopyRole, Halves, History, JoinError,
    ScheduledCommunicator,
};
pub use compressed::Compressor;
#[cfg(feature = "cuda")]
pub use cuda::CompilerError;
pub use flat::{FlatError, FlatMemory, FlatShape};
#[cfg(feature = "cuda")]
pub use ipc::IpcError;
#[cfg(feature = "nccl")]
pub use nccl::NcclError;
pub use process_group::{Backend, ProcessGroup, TransportBackend};
pub use reducer::{BucketMemory, LayerMemory, Reducer, ReducerError, ReducerParts};
pub use region::{DeviceMemory, DevicePlace, Region};
pub use rows::{RowMemory, RowShape, RowsError};
pub use transport::{
    Channel, ChannelError, Exchange, Fabric, Fold, Incoming, Listener, Loan, MemTransport, Merge,
    MixedConfig, MixedTransport, Outgoing, Piece, Regroup, Sink, TcpChannel, TcpTransport, Transfer,
    Transport,
};
#[cfg(feature = "rdma")]
pub use transport::{RdmaConfig, RdmaSetup, RdmaTransport};
