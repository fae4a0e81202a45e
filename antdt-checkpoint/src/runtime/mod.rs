#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the half that does I/O")]
//! Checkpoints in a folder of a local or shared disk, or in an object store. Everything here blocks.

#[cfg(feature = "object-store")]
mod bucket;
mod disk;
mod export;
#[cfg(test)]
mod fault;
mod folder;
mod read;
mod storage;
mod stored;

pub use export::{ExportError, Exported, export, unfinished_export};
pub use folder::{Folder, FoundCheckpoint, Newest};
pub use read::CheckpointReadError;
pub use storage::CheckpointWriteError;
pub use stored::Checkpoint;

#[cfg(test)]
mod tests;
