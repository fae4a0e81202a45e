//! The log of one data set, and its cuts, in an object store: S3, GCS, Azure, or a folder.
//!
//! For clusters without a disk that outlives the machine of the service. Objects are written once and as a whole, and
//! each write takes a round trip, so the log is a row of numbered pieces, each with the records of one interval; see
//! [`piece`](crate::journal::piece) for the bytes. An object store has no locks: what keeps two services apart is that a
//! piece is only written where none is, and is only counted as written if no later one is there then. The one that
//! comes second to a number stops.
//!
//! Rejected: a lock object, because it stays behind when its service dies, and a time after which it does not count
//! would rest on two clocks; rewriting one object under a precondition on its version, because each write would then
//! carry the whole log, and not every store can do it.
//!
//! The requests are made by a thread with a runtime of its own: a store that is dropped writes what it gathered, and
//! that must not depend on the runtime of the task that drops it.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use antdt_core::Seed;
use futures_util::future::BoxFuture;
pub use object_store;
use object_store::ObjectStore;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;

use self::bucket::Bucket;
use self::log::{Log, Written};
use crate::error::RecoverError;
use crate::journal::piece::PieceError;
use crate::ledger::{Record, Recovery};
use crate::spec::DatasetSpec;
use crate::store::{LedgerStore, SyncPolicy};

mod bucket;
mod cuts;
mod log;

#[cfg(test)]
mod tests;

pub use bucket::ObjectTimeouts;
pub use cuts::ObjectCuts;

/// Options of an [`ObjectLog`]: when it writes, when it compacts, and how long it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectLogOptions {
    /// When the log writes records to the object store. If the process is killed, the acks of one interval,
    /// and those of a write in progress, may be lost.
    pub sync: SyncPolicy,
    /// Least number of bytes of log pieces after which a snapshot replaces the log. The log waits longer if
    /// its last snapshot is larger than this, and not longer than 512 pieces. A larger value makes recovery
    /// slower, a smaller one snapshots more frequent.
    pub segment_bytes: u64,
    /// Timeouts of the requests to the object store.
    pub patience: ObjectTimeouts,
}

impl Default for ObjectLogOptions {
    /// A piece a second, because stores take money for each, and a snapshot every 64 MiB.
    fn default() -> Self {
        let sync = SyncPolicy::Every(Duration::from_secs(1));
        Self { sync, segment_bytes: 64 << 20, patience: ObjectTimeouts::default() }
    }
}

/// Reason why the objects of a log or of cuts could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The prefix is not a valid path in an object store.
    #[error("{prefix:?} is no prefix of an object store; take one like jobs/clicks")]
    Prefix {
        /// Prefix that was given.
        prefix: String,
        /// Underlying error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// Another service has taken the log over. This one must stop.
    #[error(
        "{path} was taken by another shard service on the same prefix; the one that wrote last goes on, all others must end"
    )]
    Taken {
        /// Path of the piece that both services wanted to write.
        path: String,
    },
    /// The object store gave no answer, or only errors, until the timeout.
    #[error("cannot {what} {path} for {after:?}; see to the object store and start the service again")]
    Unavailable {
        /// Name of the operation.
        what: &'static str,
        /// Path of the object.
        path: String,
        /// Time spent on the operation, retries included.
        after: Duration,
        /// Error of the last attempt.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The object store refused the operation, and would do so again: check the permissions, and that the
    /// store can create an object only if it does not exist.
    #[error(
        "the object store refuses to {what} {path}; see to its permissions, and that it can create conditionally"
    )]
    Refused {
        /// Name of the operation.
        what: &'static str,
        /// Path of the object.
        path: String,
        /// Error of the object store.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A piece of the log is missing, and a later piece builds on it.
    #[error("{path} is missing although a later piece builds on it; put it back")]
    Missing {
        /// Path of the missing piece.
        path: String,
    },
    /// A piece of the log cannot be read.
    #[error("{path} cannot be read")]
    Piece {
        /// Path of the piece.
        path: String,
        /// Reason why the piece cannot be read.
        #[source]
        source: PieceError,
    },
    /// A record that the service wants to write does not follow from the records before it, or belongs to
    /// another data set.
    #[error("a record for {path} does not follow from those before it")]
    Unfit {
        /// Path of the log piece that the record was to be part of.
        path: String,
        /// How the record contradicts the earlier ones.
        #[source]
        source: RecoverError,
    },
    /// The operating system did not start the thread of the store.
    #[error("cannot start the thread that writes to the object store")]
    Thread(#[source] io::Error),
    /// The thread of the store panicked, which is a defect.
    #[error("the thread that writes to the object store has ended; start the service again")]
    Ended,
}

type ReplySender<A> = oneshot::Sender<Result<A, ObjectError>>;

enum Job {
    Load(Box<Recovery>, ReplySender<Recovery>),
    Append(Vec<Record>, ReplySender<()>),
}

/// Bytes that may wait for their piece before [`append`](LedgerStore::append) waits too. More would only be lost with
/// the process while the object store is slow.
const GATHERED_MAX: usize = 8 << 20;

/// A [`LedgerStore`] in an object store: numbered pieces below `{prefix}/log`. The last snapshot and the
/// pieces after it make up the log.
///
/// Generations, fences and restores are written before they are answered, and everything before them. Acks
/// are answered at once and written at the [interval](ObjectLogOptions::sync): if the process is killed, the
/// samples of the last interval's acks, and of those being written, are trained again. A process that ends in
/// order writes them.
///
/// A second service on the same prefix takes over: the next write of the first one fails with
/// [`ObjectError::Taken`], and it stops. Of two services that start at the same time one gets that error.
/// Acks that the first one had answered and not written are trained again; nothing is lost, and the two never
/// both write.
///
/// Dropping the log writes the records gathered for the next piece, and waits for that at most as long as its
/// [`ObjectTimeouts`] say.
///
/// ```
/// use std::sync::Arc;
/// use antdt_shard::DatasetSpec;
/// use antdt_shard::runtime::{ObjectLog, ObjectLogOptions, object::object_store};
///
/// // Or AmazonS3Builder::from_env().with_bucket_name("jobs").build()?, with the feature `object-store-aws`.
/// let store = Arc::new(object_store::memory::InMemory::new());
/// let spec = DatasetSpec::new("clicks", 1_000_000, 2_560);
/// let log = ObjectLog::open(store, "jobs/7/clicks", spec, ObjectLogOptions::default())?;
/// # let _ = log;
/// # Ok::<(), antdt_shard::runtime::ObjectError>(())
/// ```
#[derive(Debug)]
pub struct ObjectLog {
    /// `None` only while it is dropped.
    jobs: Option<mpsc::UnboundedSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl ObjectLog {
    /// Returns the log of a data set below a prefix. This sends no request to the object store yet.
    ///
    /// A [`LocalFileSystem`](object_store::local::LocalFileSystem) must be made `with_fsync(true)`; otherwise
    /// the log may lose what it wrote when the machine stops.
    ///
    /// # Errors
    /// If the prefix is not a valid path in an object store, the data set's settings are invalid, or the
    /// operating system starts no thread.
    pub fn open(
        store: Arc<dyn ObjectStore>,
        prefix: &str,
        spec: DatasetSpec,
        options: ObjectLogOptions,
    ) -> Result<Self, ObjectError> {
        let log = new_log(store, prefix, spec, options)?;
        let (jobs, inbox) = mpsc::unbounded_channel();
        let runtime = Builder::new_current_thread().enable_all().build().map_err(ObjectError::Thread)?;
        let thread = std::thread::Builder::new().name("antdt-object-log".into());
        let thread = thread.spawn(move || runtime.block_on(Writer::new(log, inbox).run()));
        Ok(Self { jobs: Some(jobs), thread: Some(thread.map_err(ObjectError::Thread)?) })
    }

    async fn ask<A>(&self, job: impl FnOnce(ReplySender<A>) -> Job) -> Result<A, ObjectError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(job(reply)));
        match (sent, answer.await) {
            (Some(Ok(())), Ok(answer)) => answer,
            _ => Err(ObjectError::Ended),
        }
    }
}

fn new_log(
    store: Arc<dyn ObjectStore>,
    prefix: &str,
    spec: DatasetSpec,
    options: ObjectLogOptions,
) -> Result<Log, ObjectError> {
    let writer = nonce();
    let seed = Seed(writer as u64);
    let bucket = Bucket::new(store, prefix, ("log", "piece"), options.patience, seed)?;
    Log::new(bucket, spec, options, writer)
}

/// A number that no other writer has. The standard library has no other door to the system's randomness.
fn nonce() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let draw = || u128::from(RandomState::new().hash_one(std::process::id()));
    draw() << 64 | draw()
}

impl LedgerStore for ObjectLog {
    type Error = ObjectError;

    async fn load(&mut self, recovery: Recovery) -> Result<Recovery, ObjectError> {
        self.ask(|reply| Job::Load(Box::new(recovery), reply)).await
    }

    async fn append(&mut self, records: &[Record]) -> Result<(), ObjectError> {
        if records.is_empty() {
            return Ok(());
        }
        let records = records.to_vec();
        self.ask(|reply| Job::Append(records, reply)).await
    }
}

impl Drop for ObjectLog {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported to the caller that waited for it.
            let _ = thread.join();
        }
    }
}

/// A piece on its way.
struct Flight {
    piece: BoxFuture<'static, Result<Written, ObjectError>>,
    /// They are answered when it is there.
    replies: Vec<ReplySender<()>>,
}

/// The life of the thread: jobs in order, and at the same time one piece on its way and old ones being removed.
struct Writer {
    log: Log,
    /// `None` when there will be no more.
    jobs: Option<mpsc::UnboundedReceiver<Job>>,
    /// They are answered when the next piece is there.
    waiting: Vec<ReplySender<()>>,
    flying: Option<Flight>,
    sweeping: Option<BoxFuture<'static, ()>>,
    /// Error that occurred while no call waited.
    failure: Option<ObjectError>,
}

impl Writer {
    fn new(log: Log, jobs: mpsc::UnboundedReceiver<Job>) -> Self {
        Self { log, jobs: Some(jobs), waiting: Vec::new(), flying: None, sweeping: None, failure: None }
    }

    async fn run(mut self) {
        while let Some(jobs) = &mut self.jobs {
            let due = self.log.due().filter(|_| self.flying.is_none());
            tokio::select! {
                job = jobs.recv() => match job {
                    Some(Job::Load(recovery, reply)) => {
                        let loaded = self.load(*recovery).await;
                        let _ = reply.send(loaded); // The caller may be gone.
                    }
                    Some(Job::Append(records, reply)) => self.append(&records, reply).await,
                    None => self.jobs = None,
                },
                written = fly(&mut self.flying) => self.landed(written),
                () = run_to_end(&mut self.sweeping) => self.sweeping = None,
                () = sleep_until(due.unwrap_or_else(tokio::time::Instant::now)), if due.is_some() => self.seal(),
            }
            if self.flying.is_none() && !self.waiting.is_empty() {
                self.seal();
            }
        }
        self.settle().await;
        if let Some(error) = self.failure {
            tracing::error!(%error, "the last acks could not be written; their samples are trained again");
        }
    }

    async fn load(&mut self, recovery: Recovery) -> Result<Recovery, ObjectError> {
        self.settle().await;
        // A read does not undo what failed before; but the reader goes on from there.
        self.failure = None;
        let (recovery, left_over) = self.log.load(recovery).await?;
        if !left_over.is_empty() {
            self.sweeping = Some(Box::pin(self.log.sweep(Some(left_over))));
        }
        Ok(recovery)
    }

    async fn append(&mut self, records: &[Record], reply: ReplySender<()>) {
        match self.gather(records).await {
            Ok(false) if self.log.gathered() < GATHERED_MAX => drop(reply.send(Ok(()))),
            Ok(_) => self.waiting.push(reply),
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    async fn gather(&mut self, records: &[Record]) -> Result<bool, ObjectError> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        if !self.log.is_read() {
            self.load(self.log.fresh()).await?;
        }
        let gathered = self.log.gather(records);
        if gathered.is_err() {
            self.settle().await;
            self.log.forget();
        }
        gathered
    }

    /// Sends off what was gathered. Nothing else may be on its way.
    fn seal(&mut self) {
        let sealed = self.log.seal();
        self.flying =
            Some(Flight { piece: Box::pin(sealed.write()), replies: std::mem::take(&mut self.waiting) });
    }

    fn landed(&mut self, written: Result<Written, ObjectError>) {
        let replies = self.flying.take().map(|flight| flight.replies).unwrap_or_default();
        match written {
            Ok(written) => {
                if self.log.landed(&written) {
                    self.sweeping = Some(Box::pin(self.log.sweep(None)));
                }
                replies.into_iter().for_each(|reply| drop(reply.send(Ok(()))));
            }
            Err(error) => {
                // What was gathered since builds on what is not there.
                self.log.forget();
                // One task owns the store, so there is one to tell, or the next one to ask.
                match replies.into_iter().chain(self.waiting.drain(..)).next() {
                    Some(reply) => drop(reply.send(Err(error))),
                    None => {
                        tracing::error!(%error, "the journal could not be written");
                        self.failure = Some(error);
                    }
                }
            }
        }
    }

    /// Waits until nothing is on its way or gathered.
    async fn settle(&mut self) {
        loop {
            if self.flying.is_none() {
                if self.log.gathered() == 0 {
                    return;
                }
                self.seal();
            }
            let written = fly(&mut self.flying).await;
            self.landed(written);
        }
    }
}

/// The end of the piece that is on its way; none, and no end, if there is no such piece.
async fn fly(flying: &mut Option<Flight>) -> Result<Written, ObjectError> {
    match flying {
        Some(flight) => (&mut flight.piece).await,
        None => std::future::pending().await,
    }
}

async fn run_to_end(running: &mut Option<BoxFuture<'static, ()>>) {
    match running {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
