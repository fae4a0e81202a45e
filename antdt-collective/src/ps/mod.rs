//! Parameters and what changes them, wherever they live: in a worker's replica or on servers. All pure.
//!
//! The same optimizer and the same table serve both, so that a job gives the same model, to rounding, whether its
//! gradients meet in a ring or on servers.

pub mod optimizer;
pub mod table;

pub mod gradient;
pub mod replica;

pub mod partition;
pub mod server;
pub mod wire;

pub use gradient::{SparseGradient, mean_scale};
pub use optimizer::DenseParams;
pub use partition::PartitionMap;
pub use replica::{ImportError, Replica};
pub use server::{
    CommitError, CommitOutcome, InitOutcome, Partition, PartitionConfig, PullError, Push, PushError,
    PushOutcome, Staleness, StepCommit,
};
pub use table::{SparseTable, TableError};
