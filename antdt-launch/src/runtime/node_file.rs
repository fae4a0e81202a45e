//! [`NodeFile`]: the file in which a node of this machine finds its settings and the job's secret.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use antdt_core::Holder;
use rustix::fs::{MemfdFlags, memfd_create};

/// Mode of the file: only the job's user reads it.
const MODE: u32 = 0o600;

/// A file that one node reads. It is removed when this is dropped.
#[derive(Debug)]
pub(super) enum NodeFile {
    /// In the memory of this process, for a node that ends with it: nothing is left of it, however this process ends.
    Memory(File),
    /// In a folder, for a node that outlives this process.
    Disk(PathBuf),
}

impl NodeFile {
    /// Writes the file of an incarnation, into `folder` if the node is to outlive this process.
    pub(super) fn create(folder: Option<&Path>, holder: Holder, text: &str) -> io::Result<Self> {
        let Some(folder) = folder else { return memory(text.as_bytes()).map(Self::Memory) };
        let path = Self::path_in(folder, holder);
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(&path)?;
        // From here on the file goes with what is returned, or with the error.
        let this = Self::Disk(path);
        file.write_all(text.as_bytes())?;
        Ok(this)
    }

    /// The file that the launcher of an earlier process has written for an incarnation.
    pub(super) fn left(folder: &Path, holder: Holder) -> Self {
        Self::Disk(Self::path_in(folder, holder))
    }

    fn path_in(folder: &Path, holder: Holder) -> PathBuf {
        folder.join(format!("{}.{}.node", holder.node, holder.incarnation))
    }

    /// Where the node finds the file, as long as this lives.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::Memory(file) => format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into(),
            Self::Disk(path) => path.clone(),
        }
    }
}

impl Drop for NodeFile {
    fn drop(&mut self) {
        if let Self::Disk(path) = self {
            // Removed by another process already, or left for people to find.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns a file in memory with this text, to be read from its start.
pub(super) fn memory(text: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("antdt-node", MemfdFlags::CLOEXEC)?);
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.write_all(text)?;
    io::Seek::rewind(&mut file)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, NodeId};

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn file_is_readable_by_its_path_and_gone_when_dropped() {
        let holder = Holder::new(NodeId::worker(3), Incarnation(1));
        let folder = tempfile::tempdir().unwrap();
        for folder in [None, Some(folder.path())] {
            let file = NodeFile::create(folder, holder, "a secret").unwrap();
            let path = file.path();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "a secret", "{path:?}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "a secret", "{path:?}: a second time");
            assert_eq!(mode(&path), 0o600, "{path:?}");
            drop(file);
            assert!(!path.exists(), "{path:?}");
        }
    }

    #[test]
    fn adopted_file_is_removed_with_its_node() {
        let holder = Holder::new(NodeId::worker(3), Incarnation(1));
        let folder = tempfile::tempdir().unwrap();
        let path = NodeFile::create(Some(folder.path()), holder, "a secret").unwrap();
        // As if the process that wrote it had been killed.
        std::mem::forget(path);
        let left = NodeFile::left(folder.path(), holder);
        assert!(left.path().exists());
        drop(left);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
