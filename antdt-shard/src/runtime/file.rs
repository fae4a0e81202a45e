//! The log of one data set in a folder of a local disk.
//!
//! A thread of the store does what can take long: reading, making durable, compacting. Tokio's blocking pool
//! could do that too, but the thread also makes records durable that have waited long enough.
//!
//! Some records only have to reach the page cache of the operating system. The task that appends them writes
//! them itself if the thread is not at work: a write of a few hundred bytes takes microseconds. Handing it to
//! the thread and back would cost each call over gRPC a third of the CPU time that it takes without a journal.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

use self::folder::Folder;
use crate::error::RecoverError;
use crate::journal::JournalError;
use crate::ledger::{Record, Recovery};
use crate::spec::DatasetSpec;
use crate::store::{LedgerStore, SyncPolicy};

mod cuts;
mod described;
mod folder;

#[cfg(test)]
mod tests;

pub use cuts::FileCuts;
pub(super) use described::{describe, described};

/// Options of a [`FileStore`]: when it syncs, and when it compacts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStoreOptions {
    /// When records are made durable.
    pub sync: SyncPolicy,
    /// Least number of bytes of records after which a snapshot replaces the log. The store waits longer if
    /// the snapshot is larger than this, so that it never writes more than twice the records. A larger value
    /// makes recovery slower, a smaller one snapshots more frequent.
    pub segment_bytes: u64,
}

impl Default for FileStoreOptions {
    /// Durable within 100 ms, a snapshot every 64 MiB.
    fn default() -> Self {
        Self { sync: SyncPolicy::Every(Duration::from_millis(100)), segment_bytes: 64 << 20 }
    }
}

/// Reason why the folder of a data set could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileStoreError {
    /// Another store, of this process or another one, has the folder open: stop the other service, or use
    /// another folder.
    #[error("{} is in use by another shard service; stop that one, or take another folder", folder.display())]
    Locked {
        /// Folder of the data set.
        folder: PathBuf,
    },
    /// The disk or the quota is full. Nothing was changed: free some space; the service tries again.
    #[error("there is no room left for {}; free some, the service goes on by itself then", path.display())]
    Full {
        /// Path of the file that was written.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A file operation failed.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// Name of the operation.
        what: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A segment of the log cannot be read.
    #[error("segment {} cannot be read", path.display())]
    Segment {
        /// File of the segment.
        path: PathBuf,
        /// Reason why the segment cannot be read.
        #[source]
        source: JournalError,
    },
    /// `dataset.json`, which holds the settings of the data set, cannot be read.
    #[error(
        "{} does not describe a data set; open the data set anew with its settings after deleting the file", path.display()
    )]
    Description {
        /// Path of the file.
        path: PathBuf,
        /// Error of the JSON parser.
        #[source]
        source: serde_json::Error,
    },
    /// A record that the service wants to append does not follow from the records before it.
    #[error("a record for {} does not follow from those in it", path.display())]
    Unfit {
        /// Folder of the data set.
        path: PathBuf,
        /// How the record contradicts the earlier ones.
        #[source]
        source: RecoverError,
    },
    /// The records of one append call exceed the size of a log frame.
    #[error("{} cannot take 4 GiB of records or more at once", path.display())]
    TooLarge {
        /// Folder of the data set.
        path: PathBuf,
    },
    /// The thread of the store panicked, which is a defect.
    #[error("the thread that writes {} has ended; start the service again", folder.display())]
    Ended {
        /// Folder of the data set.
        folder: PathBuf,
    },
}

enum Job {
    /// Records were written that must be made durable in time.
    Written,
    Load(Box<Recovery>, oneshot::Sender<Result<Recovery, FileStoreError>>),
    Append(Vec<Record>, oneshot::Sender<Result<(), FileStoreError>>),
}

/// A [`LedgerStore`] in a folder: an append-only, checksummed segment that begins with a snapshot of all
/// records before. When it has grown, a new segment replaces it. See [`journal`](crate::journal) for the
/// bytes.
///
/// Opening the folder cuts off the end that a crash tore; damage of what was durable is an error. The store
/// keeps a copy of the ledger's state, of which it makes snapshots without disturbing the ledger.
///
/// Dropping it makes everything durable and waits for that.
#[derive(Debug)]
pub struct FileStore {
    folder: PathBuf,
    /// The thread has it while it does what can take long.
    disk: Arc<Mutex<Folder>>,
    /// `None` only while it is dropped.
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl FileStore {
    /// Opens the folder for a data set and locks it against other stores. Creates the folder if it does not
    /// exist.
    ///
    /// # Errors
    /// If another store has the folder open, or it cannot be created.
    pub fn open(
        folder: impl Into<PathBuf>,
        spec: DatasetSpec,
        options: FileStoreOptions,
    ) -> Result<Self, FileStoreError> {
        let folder = folder.into();
        Ok(Self::start(Folder::open(&folder, spec, options)?, folder))
    }

    fn start(disk: Folder, folder: PathBuf) -> Self {
        let (jobs, inbox) = mpsc::channel();
        let disk = Arc::new(Mutex::new(disk));
        let shared = Arc::clone(&disk);
        let thread = std::thread::spawn(move || work(&shared, &inbox));
        Self { folder, disk, jobs: Some(jobs), thread: Some(thread) }
    }

    /// Returns the folder of the store.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Appends at once what only has to reach the memory of the system; `None` if it is for the thread to do.
    fn append_now(&self, records: &[Record]) -> Option<Result<(), FileStoreError>> {
        // A poisoned lock is one that the thread panicked with: asking it says so.
        let mut disk = self.disk.try_lock().ok().filter(|disk| disk.is_quick(records))?;
        let waits_already = disk.sync_due().is_some();
        let appended = disk.append(records);
        if let (false, Some(jobs)) = (waits_already, &self.jobs) {
            // Without a thread, the next that asks it is told.
            let _ = jobs.send(Job::Written);
        }
        Some(appended)
    }

    async fn ask<A>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<A, FileStoreError>>) -> Job,
    ) -> Result<A, FileStoreError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(job(reply)));
        match (sent, answer.await) {
            (Some(Ok(())), Ok(answer)) => answer,
            _ => Err(FileStoreError::Ended { folder: self.folder.clone() }),
        }
    }
}

impl LedgerStore for FileStore {
    type Error = FileStoreError;

    async fn load(&mut self, recovery: Recovery) -> Result<Recovery, FileStoreError> {
        self.ask(|reply| Job::Load(Box::new(recovery), reply)).await
    }

    async fn append(&mut self, records: &[Record]) -> Result<(), FileStoreError> {
        if records.is_empty() {
            return Ok(());
        }
        if let Some(appended) = self.append_now(records) {
            return appended;
        }
        let records = records.to_vec();
        self.ask(|reply| Job::Append(records, reply)).await
    }

    fn is_full(error: &FileStoreError) -> bool {
        matches!(error, FileStoreError::Full { .. })
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported to the caller that waited for it.
            let _ = thread.join();
        }
    }
}

/// The life of the thread: jobs in order, and in between what is due.
fn work(disk: &Mutex<Folder>, jobs: &mpsc::Receiver<Job>) {
    let lock = || disk.lock().expect("nobody panics who writes to a folder");
    loop {
        let due = lock().sync_due();
        let job = match due {
            None => jobs.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
            Some(left) => jobs.recv_timeout(left),
        };
        let mut disk = lock();
        // The caller may be gone; the work stands all the same.
        match job {
            Ok(Job::Written) => {}
            Ok(Job::Load(recovery, reply)) => drop(reply.send(disk.load(*recovery))),
            Ok(Job::Append(records, reply)) => {
                let appended = disk.append(&records);
                let _ = reply.send(appended);
                disk.compact_if_due();
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        if disk.sync_due() == Some(Duration::ZERO) {
            disk.sync_late();
        }
    }
    lock().sync_late();
}
