#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod identity;
pub mod manifest;
pub mod retention;

#[cfg(feature = "runtime")]
mod header;
#[cfg(feature = "runtime")]
pub mod part;

#[cfg(feature = "runtime")]
pub mod state;

#[cfg(feature = "runtime")]
pub mod runtime;

pub use identity::{DataIdentity, JobIdentity, Mismatch};
pub use manifest::{FileEntry, Manifest, ManifestError};
pub use retention::{CheckpointState, Retention};

#[cfg(feature = "runtime")]
pub use header::Dtype;
#[cfg(feature = "runtime")]
pub use part::PartFileError;
#[cfg(feature = "runtime")]
pub use runtime::{
    Checkpoint, CheckpointReadError, CheckpointWriteError, ExportError, Exported, Folder, FoundCheckpoint,
    Newest, export, unfinished_export,
};
#[cfg(feature = "runtime")]
pub use state::{ModelState, StateTensor, TensorSpec};

#[cfg(feature = "object-store")]
pub use object_store;
