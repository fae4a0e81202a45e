#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod optimizer;
pub mod table;

pub mod gradient;
pub mod local;
pub mod replica;

pub mod partition;
pub mod server;

#[cfg(feature = "runtime")]
pub mod wire;

#[cfg(feature = "runtime")]
pub mod sparse;

#[cfg(feature = "runtime")]
pub mod runtime;

pub use gradient::{SparseGradient, mean_scale};
pub use local::LocalReplica;
pub use optimizer::DenseParams;
pub use partition::PartitionMap;
pub use replica::{ImportError, Replica};
pub use server::{
    CommitError, CommitOutcome, InitOutcome, Partition, PartitionConfig, PullError, Push, PushError,
    PushOutcome, Staleness, StepCommit,
};
pub use table::{SparseTable, TableError};

#[cfg(feature = "runtime")]
pub use runtime::{
    PsClient, PsClientConfig, PsError, PsServer, PsServerConfig, PsServerStats, all_reduce_sparse,
};
#[cfg(feature = "runtime")]
pub use sparse::TableShape;
