//! Where the records of a ledger survive the process.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use crate::ledger::Record;

/// The durable log of one data set. Its conformance suite is `testing::store` (feature `testing`).
///
/// Its records are those of one ledger, in order. One task owns a store, and awaits each call to its end before the next.
pub trait LedgerStore: Send + 'static {
    /// Why the store failed.
    type Error: Error + Send + Sync + 'static;

    /// The records appended so far, oldest first, also those of earlier processes; or fewer with the same fold, such
    /// as a [`Record::Restored`] in place of the first ones.
    fn load(&mut self) -> impl Future<Output = Result<Vec<Record>, Self::Error>> + Send;

    /// Appends records, all or the first few of them. When this returns `Ok` they survive a crash of the process.
    ///
    /// # Errors
    /// If the records may be lost. Unless the store [is full](Self::is_full), the service stops then: an answer that
    /// was not stored is never given.
    fn append(&mut self, records: &[Record]) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Whether [`append`](Self::append) failed only because there is no room: it kept none of the records, the store
    /// is as it was before, and the same call may succeed later. The service then grants nothing, goes on counting
    /// acks in memory, and tries again. `false` unless a store says otherwise.
    fn is_full(_error: &Self::Error) -> bool {
        false
    }
}

/// Records in memory: they survive the service, not the process. A clone shares them.
#[derive(Debug, Clone, Default)]
pub struct MemStore {
    records: Arc<Mutex<Vec<Record>>>,
}

impl MemStore {
    /// The records so far, oldest first.
    pub fn records(&self) -> Vec<Record> {
        // A poisoned lock cannot leave a vector half pushed.
        self.records.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl LedgerStore for MemStore {
    type Error = Infallible;

    async fn load(&mut self) -> Result<Vec<Record>, Infallible> {
        Ok(self.records())
    }

    async fn append(&mut self, records: &[Record]) -> Result<(), Infallible> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(records);
        Ok(())
    }
}

/// Keeps nothing: for jobs whose master is not restarted.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullStore;

impl LedgerStore for NullStore {
    type Error = Infallible;

    async fn load(&mut self) -> Result<Vec<Record>, Infallible> {
        Ok(Vec::new())
    }

    async fn append(&mut self, _records: &[Record]) -> Result<(), Infallible> {
        Ok(())
    }
}
