//! [`Claim`]: a folder of checkpoints is of one job at a time.
//!
//! Two jobs in one folder would number their checkpoints alike and delete each other's. A lock on a file in it, which the kernel takes
//! from a process that ends, keeps them apart. Shared file systems pass the lock of a file that is open for writing on to their
//! server (NFS, CephFS, Lustre, SMB), and that of a folder not, so that it keeps masters on several hosts apart as well; a server
//! takes it from a host that is silent. A heartbeat of our own in a file would do the same with a wait at each start, and would
//! not stop a master that stood still. Masters that etcd elects need none: one that stands still has its lock as long as it lives,
//! and another one leads.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::lead::lock;

/// Name of the file that is locked. It stays: a lock on a file that another one may remove holds nothing.
const FILE: &str = "claim";

/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// Reason why a folder of checkpoints cannot be of this job alone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The folder belongs to another job.
    #[error(
        "--checkpoint-dir = {}: a job that runs keeps its checkpoints there{}; name another folder, or wait until that job has ended \
         (after the death of its host, until the file server takes the lock on `claim` from it)",
        path.display(),
        lock::text(.holder)
    )]
    Taken {
        /// Path of the folder.
        path: PathBuf,
        /// Process of this host that has the lock.
        holder: Option<u32>,
    },
    /// The file system of the folder has no locks, or the file belongs to another user.
    #[error(
        "--checkpoint-dir = {}: `claim` cannot be locked there ({source}), so that two jobs could delete each other's checkpoints; name a \
         folder of this user on a file system with locks, or let --elect say which master leads",
        path.display()
    )]
    Unlocked {
        /// Path of the folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// The right to write checkpoints into a folder, as long as it lives.
#[derive(Debug)]
pub(super) struct Claim {
    _file: File,
}

impl Claim {
    /// Claims a folder, and tries again for `patience`: a process that was killed may have its lock for a moment. Returns
    /// `None` for an object store.
    ///
    /// # Errors
    /// If another job has the folder, or nothing can be locked there.
    pub(super) fn take(place: &Path, patience: Duration) -> Result<Option<Self>, ClaimError> {
        if !place.is_dir() {
            return Ok(None);
        }
        let unlocked = |source| ClaimError::Unlocked { path: place.to_owned(), source };
        let file = open(place).map_err(unlocked)?;
        let mut left = patience;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self { _file: file })),
                Err(Errno::WOULDBLOCK) if left.is_zero() => {
                    return Err(ClaimError::Taken { path: place.to_owned(), holder: lock::holder(&file) });
                }
                Err(Errno::WOULDBLOCK) => {
                    thread::sleep(PAUSE);
                    left = left.saturating_sub(PAUSE);
                }
                Err(error) => return Err(unlocked(error.into())),
            }
        }
    }
}

fn open(place: &Path) -> io::Result<File> {
    // Whoever may open a file may lock it, and keep its owner out.
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(place.join(FILE))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_in_which_nothing_can_be_locked_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(FILE)).unwrap();
        let error = Claim::take(folder.path(), Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("cannot be locked") && error.contains("--elect"), "{error}");
    }

    #[test]
    fn the_lock_is_on_a_file_that_is_open_for_writing_which_a_file_server_hears_of() {
        let folder = tempfile::tempdir().unwrap();
        let take = || Claim::take(folder.path(), PAUSE);
        let elsewhere = open(folder.path()).unwrap();
        flock(&elsewhere, FlockOperation::NonBlockingLockExclusive).unwrap();
        take().unwrap_err();
        drop(elsewhere);
        let claim = take().unwrap().unwrap();
        let mode = rustix::fs::fcntl_getfl(&claim._file).unwrap();
        assert!(mode.contains(rustix::fs::OFlags::WRONLY), "{mode:?}");
        drop(claim);
        assert!(folder.path().join(FILE).exists());
    }

    #[test]
    fn a_folder_is_of_one_job_until_that_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let take = || Claim::take(folder.path(), PAUSE);
        let first = take().unwrap();
        assert!(first.is_some());
        let error = take().unwrap_err().to_string();
        let begin = format!("--checkpoint-dir = {}: a job that runs", folder.path().display());
        assert!(error.starts_with(&begin), "{error}");
        assert!(error.contains(&format!("process {} has", std::process::id())), "{error}");
        let mode = std::fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(first);
        assert!(take().unwrap().is_some());
    }

    #[test]
    fn a_folder_that_is_not_of_this_host_is_not_claimed() {
        assert!(Claim::take(Path::new("s3://bucket/jobs/7"), Duration::ZERO).unwrap().is_none());
    }
}
