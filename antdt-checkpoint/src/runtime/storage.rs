//! [`Storage`]: the operations that a folder of checkpoints needs from a disk or an object store.
//!
//! Names of files are paths, in an object store too: there the first component is the URL.

use std::fmt::Debug;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use antdt_core::CheckpointId;

use crate::manifest::FileEntry;
use crate::part::PartFileError;

/// Reason why a checkpoint could not be written. Older checkpoints are as they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointWriteError {
    /// The disk or the quota is full: free some space.
    #[error("{}: {error}; free room on that disk, or keep fewer checkpoints", path.display())]
    Full {
        /// Path of the file that was written.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A file operation failed.
    #[error("cannot {what} {}: {error}; name a folder that this user can write to", path.display())]
    Io {
        /// Name of the operation.
        what: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The URL does not name a place for checkpoints.
    #[error("{url}: {why}")]
    Url {
        /// URL that was given.
        url: String,
        /// Reason why the URL does not name a place for checkpoints, in words.
        why: String,
    },
    /// The values that were to be written as a part of the model do not fit the layout that the caller gave: a defect of the caller.
    #[error("{}: {error}", path.display())]
    Part {
        /// Path of the file that was to be written.
        path: PathBuf,
        /// Reason why the portion cannot be written.
        error: PartFileError,
    },
    /// The name of a part is not a plain file name: a defect of the caller.
    #[error("{name:?} is no name of a part; use up to 116 letters, digits, `-`, `_` and `.`")]
    Name {
        /// Name that was given.
        name: String,
    },
    /// A complete checkpoint of this number exists already: each number is used once.
    #[error("checkpoint {checkpoint} in {} is whole already; take the next number", folder.display())]
    Whole {
        /// Path of the folder of checkpoints.
        folder: PathBuf,
        /// Number of the checkpoint.
        checkpoint: CheckpointId,
    },
    /// The manifest does not agree with the files of the checkpoint that was being written; its files were
    /// removed.
    #[error("checkpoint {checkpoint} cannot be finished: {why}; it is removed, take a new one")]
    Unfit {
        /// Number of the checkpoint.
        checkpoint: CheckpointId,
        /// Description of the disagreement.
        why: String,
    },
}

impl CheckpointWriteError {
    /// Returns whether the write failed because the disk is full.
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

pub(super) fn failed(what: &'static str, path: &Path, error: io::Error) -> CheckpointWriteError {
    let path = path.to_path_buf();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => CheckpointWriteError::Full { path, error },
        _ => CheckpointWriteError::Io { what, path, error },
    }
}

/// What writes the content of a file.
pub(super) type Content<'a> = &'a mut dyn FnMut(&mut Sink<'_>) -> io::Result<()>;

/// See the [module](self).
pub(super) trait Storage: Debug + Send + Sync {
    /// Writes a file whose name appears when it is durable as a whole; on failure nothing is left.
    fn write_whole(&self, path: &Path, content: Content<'_>) -> Result<FileEntry, CheckpointWriteError>;

    /// Makes a folder, and durable that it is there.
    fn make_folder(&self, path: &Path) -> Result<(), CheckpointWriteError>;

    /// Makes the names in a folder durable.
    fn sync_folder(&self, path: &Path) -> Result<(), CheckpointWriteError>;

    /// Removes a file; one that is gone is removed.
    fn remove(&self, path: &Path) -> Result<(), CheckpointWriteError>;

    /// Removes a folder with all that is in it; one that is gone is removed.
    fn remove_folder(&self, path: &Path) -> Result<(), CheckpointWriteError>;

    /// Whether there is a file of this name, or anything in a folder of this name.
    fn has(&self, path: &Path) -> io::Result<bool>;

    /// The names of what is in a folder, in any order.
    fn names(&self, folder: &Path) -> io::Result<Vec<String>>;

    /// Length of a file, in bytes.
    fn len_bytes(&self, path: &Path) -> io::Result<u64>;

    /// A file from its beginning.
    fn read(&self, path: &Path) -> io::Result<Box<dyn Read + Send>>;

    /// Faults.
    #[cfg(test)]
    fn fault(&self) -> &super::fault::Fault;
}

/// A file that is being written.
pub(super) struct Sink<'a> {
    out: &'a mut dyn FnMut(&[u8]) -> io::Result<()>,
    pub(super) bytes: u64,
    pub(super) crc32c: u32,
}

impl<'a> Sink<'a> {
    /// So much is written and summed at a time: it is still in the cache when it is summed.
    const CHUNK: usize = 1 << 20;

    pub(super) fn new(out: &'a mut dyn FnMut(&[u8]) -> io::Result<()>) -> Self {
        Self { out, bytes: 0, crc32c: 0 }
    }

    /// Appends these bytes.
    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        for chunk in bytes.chunks(Self::CHUNK) {
            (self.out)(chunk)?;
            self.crc32c = crc32c::crc32c_append(self.crc32c, chunk);
            self.bytes += chunk.len() as u64;
        }
        Ok(())
    }

    /// The entry of the file when all is written.
    pub(super) fn entry(&self, path: &Path) -> FileEntry {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        FileEntry { name, bytes: self.bytes, crc32c: self.crc32c }
    }
}

/// The last two names of a path.
#[cfg(test)]
pub(super) fn shown(path: &Path) -> String {
    let names: Vec<_> = path.iter().rev().take(2).map(|name| name.to_string_lossy()).collect();
    names.into_iter().rev().collect::<Vec<_>>().join("/")
}
