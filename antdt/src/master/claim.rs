//! [`Claim`]: a folder of checkpoints is of one job at a time.
//!
//! Two jobs in one folder would number their checkpoints alike and delete each other's. A lock on the folder, which the kernel takes
//! from a process that ends, keeps them apart on one host. Masters that etcd elects need none: one that stands still has its
//! lock as long as it lives, and another one leads.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// The folder belongs to another job.
#[derive(Debug, thiserror::Error)]
#[error(
    "--checkpoint-dir = {}: a job that runs keeps its checkpoints there; name another folder, or wait until that job has ended",
    path.display()
)]
pub struct ClaimError {
    /// Path of the folder.
    pub path: PathBuf,
}

/// The right to write checkpoints into a folder, as long as it lives.
#[derive(Debug)]
pub(super) struct Claim {
    _folder: File,
}

impl Claim {
    /// Claims a folder, and tries again for `patience`: a process that was killed may have its lock for a moment. Returns
    /// `None` for an object store, and on a file system without locks.
    ///
    /// # Errors
    /// If another job has the folder.
    pub(super) fn take(place: &Path, patience: Duration) -> Result<Option<Self>, ClaimError> {
        if !place.is_dir() {
            return Ok(None);
        }
        let Ok(folder) = File::open(place) else { return Ok(None) };
        let mut left = patience;
        loop {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self { _folder: folder })),
                Err(Errno::WOULDBLOCK) if left.is_zero() => {
                    return Err(ClaimError { path: place.to_owned() });
                }
                Err(Errno::WOULDBLOCK) => {
                    thread::sleep(PAUSE);
                    left = left.saturating_sub(PAUSE);
                }
                Err(error) => {
                    tracing::debug!(%error, place = %place.display(), "the folder of checkpoints cannot be locked");
                    return Ok(None);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_of_one_job_until_that_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let take = || Claim::take(folder.path(), PAUSE);
        let first = take().unwrap();
        assert!(first.is_some());
        let error = take().unwrap_err().to_string();
        let begin = format!("--checkpoint-dir = {}: a job that runs", folder.path().display());
        assert!(error.starts_with(&begin), "{error}");
        drop(first);
        assert!(take().unwrap().is_some());
    }

    #[test]
    fn what_is_no_folder_of_this_host_is_not_claimed() {
        assert!(Claim::take(Path::new("s3://bucket/jobs/7"), Duration::ZERO).unwrap().is_none());
    }
}
