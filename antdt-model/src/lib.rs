#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod optimizer;
pub mod rule;
pub mod schedule;

pub mod dense;
pub mod hot;
pub mod table;

mod tables;

pub mod given;
pub mod gradient;
pub mod local;
pub mod portion;
pub mod replica;

pub mod partition;
pub mod server;

#[cfg(feature = "runtime")]
pub mod wire;

#[cfg(feature = "runtime")]
pub mod sparse;

#[cfg(feature = "runtime")]
pub mod runtime;

pub use dense::DenseParams;
pub use given::Given;
pub use gradient::{SparseGradient, clip, clip_factor, mean_scale, norm};
pub use hot::HotRows;
pub use local::LocalReplica;
pub use optimizer::Optimizer;
pub use partition::PartitionMap;
pub use portion::{Portion, TablePortion};
pub use replica::{ImportError, Replica};
pub use rule::{Trained, UpdateRule};
pub use schedule::RateSchedule;
pub use server::{
    CommitError, CommitOutcome, CommitToken, InitOutcome, Partition, PartitionConfig, PullError, Push,
    PushError, PushOutcome, Staleness,
};
pub use table::{SparseTable, TableError};
pub use tables::initial_rows;

#[cfg(feature = "runtime")]
pub use runtime::{
    Dense, DenseSums, HotError, HotReplica, LoadedRows, PsClient, PsClientConfig, PsError, PsServer,
    PsServerConfig, PsServerStats, all_reduce_counted, all_reduce_sparse,
};
#[cfg(feature = "runtime")]
pub use sparse::{Overlap, TableShape};
