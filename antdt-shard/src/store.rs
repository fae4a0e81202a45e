//! Interfaces to durable storage for the records and cuts of a ledger, and stores in memory.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::RecoverError;
use crate::ledger::{Record, Recovery};

/// The durable log of one data set: a place where the records of one ledger survive the process. Implement it
/// for a storage of your own; the feature `testing` has its conformance suite, `testing::store`.
///
/// The log holds the records of one ledger, in order. One task owns a store, and awaits each call before the
/// next.
pub trait LedgerStore: Send + 'static {
    /// Error of the store.
    type Error: Error + Send + Sync + 'static;

    /// Applies all records of the log to `recovery`, oldest first, and returns it. Records of earlier
    /// processes are included. The store may apply fewer records that give the same state, such as a
    /// [`Record::Base`] in place of the first ones.
    ///
    /// `recovery` is a new one of the data set. The records are applied as they are read, because a log may
    /// be larger than memory and the recovered state is not.
    ///
    /// # Errors
    /// If the log cannot be read, or a record does not follow from those before it.
    fn load(&mut self, recovery: Recovery) -> impl Future<Output = Result<Recovery, Self::Error>> + Send;

    /// Appends records, all or the first few of them. When this returns `Ok`, generations, fences and
    /// restores survive a crash, and so do all records before them. A store may promise less for the last
    /// acks, if it documents how much may be lost in which failure: an ack follows the update it reports, so
    /// its samples are trained again.
    ///
    /// # Errors
    /// If the records may be lost. Unless the store [is full](Self::is_full), the service stops then: an
    /// answer that was not stored is never given.
    fn append(&mut self, records: &[Record]) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Returns whether [`append`](Self::append) failed only because there is no room. Then it kept none of
    /// the records, the store is as it was before, and the same call may succeed later. The service grants
    /// nothing meanwhile, goes on counting acks in memory, and tries again. The default is `false`.
    fn is_full(_error: &Self::Error) -> bool {
        false
    }
}

/// A boxed [`LedgerStore`] of any type, for a program that chooses the store at run time.
pub struct BoxStore(Box<dyn AnyStore>);

impl BoxStore {
    /// Boxes a store.
    pub fn new(store: impl LedgerStore) -> Self {
        Self(Box::new(store))
    }
}

impl fmt::Debug for BoxStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxStore")
    }
}

/// Error of a [`BoxStore`]: the error of the store inside the box.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct StoreError {
    source: Box<dyn Error + Send + Sync>,
    full: bool,
}

impl LedgerStore for BoxStore {
    type Error = StoreError;

    async fn load(&mut self, recovery: Recovery) -> Result<Recovery, StoreError> {
        self.0.load_boxed(recovery).await
    }

    async fn append(&mut self, records: &[Record]) -> Result<(), StoreError> {
        self.0.append_boxed(records).await
    }

    fn is_full(error: &StoreError) -> bool {
        error.full
    }
}

type Stored<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// [`LedgerStore`] without types of its own.
trait AnyStore: Send {
    fn load_boxed(&mut self, recovery: Recovery) -> Stored<'_, Recovery>;
    fn append_boxed<'a>(&'a mut self, records: &'a [Record]) -> Stored<'a, ()>;
}

impl<S: LedgerStore> AnyStore for S {
    fn load_boxed(&mut self, recovery: Recovery) -> Stored<'_, Recovery> {
        Box::pin(async { self.load(recovery).await.map_err(StoreError::of::<S>) })
    }

    fn append_boxed<'a>(&'a mut self, records: &'a [Record]) -> Stored<'a, ()> {
        Box::pin(async { self.append(records).await.map_err(StoreError::of::<S>) })
    }
}

impl StoreError {
    fn of<S: LedgerStore>(error: S::Error) -> Self {
        Self { full: S::is_full(&error), source: Box::new(error) }
    }
}

/// When stored records are made durable, so that they survive the machine and not only the process.
///
/// Generations, fences and restores are made durable before they are answered, whatever the policy. What can
/// be lost with the machine are acks, and an ack follows the update it reports: its samples are trained
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Before each answer; one sync covers all answers that are ready together.
    Each,
    /// At most this long after the answer. A larger value means that more samples are repeated after a
    /// machine is lost; a smaller one means more writes.
    Every(Duration),
}

/// A log in memory: its records survive the service, not the process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct MemStore {
    records: Arc<Mutex<Vec<Record>>>,
}

impl MemStore {
    /// Returns the records so far, oldest first.
    pub fn records(&self) -> Vec<Record> {
        // A poisoned lock cannot leave a vector half pushed.
        self.records.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl LedgerStore for MemStore {
    type Error = RecoverError;

    async fn load(&mut self, mut recovery: Recovery) -> Result<Recovery, RecoverError> {
        for record in &self.records() {
            recovery.apply(record)?;
        }
        Ok(recovery)
    }

    async fn append(&mut self, records: &[Record]) -> Result<(), RecoverError> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(records);
        Ok(())
    }
}

/// A store that keeps nothing, for jobs whose master is not restarted.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullStore;

impl LedgerStore for NullStore {
    type Error = Infallible;

    async fn load(&mut self, recovery: Recovery) -> Result<Recovery, Infallible> {
        Ok(recovery)
    }

    async fn append(&mut self, _records: &[Record]) -> Result<(), Infallible> {
        Ok(())
    }
}

/// A store for the consistent cuts of a ledger, each under the number of the model's checkpoint that it
/// belongs to. The feature `testing` has its conformance suite, `testing::store::check_cuts`.
///
/// To the store a cut is just bytes. One task owns a store, and awaits each call before the next.
pub trait CutStore: Send + 'static {
    /// Error of the store.
    type Error: Error + Send + Sync + 'static;

    /// Stores a cut, in place of an earlier one of the same checkpoint. When this returns `Ok` the cut
    /// survives whatever the store survives. A crash during the call leaves the earlier cut, or none, but
    /// never a part of one.
    ///
    /// # Errors
    /// If the cut may not have been stored.
    fn save(&mut self, checkpoint: u64, cut: Vec<u8>)
    -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Returns the cut of a checkpoint; `None` if there is none.
    ///
    /// # Errors
    /// If the store does not answer.
    fn load(&mut self, checkpoint: u64) -> impl Future<Output = Result<Option<Vec<u8>>, Self::Error>> + Send;

    /// Returns the numbers of the checkpoints that have a cut, ascending.
    ///
    /// # Errors
    /// If the store does not answer.
    fn list(&mut self) -> impl Future<Output = Result<Vec<u64>, Self::Error>> + Send;

    /// Removes all cuts but those of the `newest` highest checkpoint numbers.
    ///
    /// # Errors
    /// If some cuts that should be removed may still be there. A cut that is to be kept is never lost.
    fn keep(&mut self, newest: usize) -> impl Future<Output = Result<(), Self::Error>> + Send;
}
