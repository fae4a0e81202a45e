//! The entries of the durable log: what a restarted service must know.
//!
//! Grants are not in it. A new generation voids all leases, so a shard that was leased simply waits again, at
//! the last offset that was acknowledged. Losing the end of the log can therefore repeat samples, never lose
//! one.

use antdt_core::{Epoch, Generation, Incarnation, NodeId};

use super::book::Book;
use super::snapshot::LedgerSnapshot;
use super::{GenerationState, ShardLedger};
use crate::error::RecoverError;
use crate::spec::DatasetSpec;

/// One entry of the durable log of one data set. Replaying all records gives the state of the ledger, without
/// its leases.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Record {
    /// The service started; all leases of earlier generations are void.
    GenerationStarted {
        /// Number of the new generation, higher than that of every generation before.
        generation: Generation,
    },
    /// A share of the data (see [`Assignment`](crate::Assignment)) began its next epoch.
    EpochOpened {
        /// Number of the share: 0 with a dynamic assignment, the worker's index with a static one.
        share: u32,
        /// Epoch that was opened.
        epoch: Epoch,
    },
    /// Samples of a shard were acknowledged.
    Acked {
        /// Epoch of the shard.
        epoch: Epoch,
        /// Position of the shard in the order of the epoch.
        position: u64,
        /// Offset in the shard's permuted order: samples `0..offset` are done. An offset equal to the shard's
        /// length finishes it.
        offset: u64,
    },
    /// A data fault of a shard was reported. With the last fault that is tolerated the shard is quarantined.
    Failed {
        /// Epoch of the shard.
        epoch: Epoch,
        /// Position of the shard in the order of the epoch.
        position: u64,
    },
    /// An incarnation of a worker was declared lost, and with it all earlier ones.
    Fenced {
        /// Worker that the fence is for.
        node: NodeId,
        /// Newest fenced incarnation.
        through: Incarnation,
    },
    /// A snapshot that replaces all records before it when the log is compacted; always the first record.
    Base(Box<LedgerSnapshot>),
    /// The ledger was restored from this snapshot. Of the records before this one, only fences and
    /// generations still count.
    Restored(Box<LedgerSnapshot>),
}

/// A ledger while its log is replayed: apply the records, then [`finish`](Self::finish) to get the ledger.
///
/// ```
/// use antdt_core::Generation;
/// use antdt_shard::{DatasetSpec, Record, Recovery};
///
/// let mut recovery = Recovery::new(DatasetSpec::new("clicks", 1_000, 100))?;
/// recovery.apply(&Record::GenerationStarted { generation: Generation(1) })?;
/// let ledger = recovery.finish(Generation(2))?;
/// assert_eq!(ledger.counts().todo, 1_000);
/// # Ok::<(), antdt_shard::RecoverError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Recovery {
    book: Book,
}

impl Recovery {
    /// Returns the state of a data set's ledger before its first record.
    ///
    /// # Errors
    /// If the data set cannot be registered.
    pub fn new(spec: DatasetSpec) -> Result<Self, RecoverError> {
        Ok(Self { book: Book::new(spec)? })
    }

    /// Returns the settings of the data set.
    pub const fn spec(&self) -> &DatasetSpec {
        &self.book.spec
    }

    /// Applies the next record of the log.
    ///
    /// # Errors
    /// If the record does not follow from the ones before; nothing is changed then. The log is that of
    /// another data set or is damaged in the middle. A record that is missing at the end is not noticed here.
    pub fn apply(&mut self, record: &Record) -> Result<(), RecoverError> {
        self.book.apply(record)
    }

    /// Returns a snapshot of the state after the records applied so far.
    pub fn snapshot(&self) -> LedgerSnapshot {
        LedgerSnapshot { book: self.book.clone() }
    }

    /// Returns the ledger, in a new generation. Shards that were leased wait again, at the last acknowledged
    /// offset.
    ///
    /// # Errors
    /// If the generation was used before.
    pub fn finish(self, generation: Generation) -> Result<ShardLedger, RecoverError> {
        ShardLedger::begin(self.book, generation)
    }
}

impl ShardLedger {
    /// Replays a log and returns its ledger, in a new generation.
    ///
    /// # Errors
    /// If the data set cannot be registered, a record does not follow from the ones before, or the generation was
    /// used before.
    pub fn recover(
        spec: DatasetSpec,
        records: impl IntoIterator<Item = Record>,
        generation: Generation,
    ) -> Result<Self, RecoverError> {
        let mut recovery = Recovery::new(spec)?;
        for record in records {
            recovery.apply(&record)?;
        }
        recovery.finish(generation)
    }

    pub(super) fn begin(mut book: Book, generation: Generation) -> Result<Self, RecoverError> {
        let record = Record::GenerationStarted { generation };
        book.apply(&record)?;
        Ok(Self::standing(book, GenerationState::new(generation), record))
    }
}
