//! The durable log: what happened that a restarted service must know.
//!
//! Grants are not in it. A new generation voids all leases, so a shard that was out simply waits again, at the last
//! offset that was acknowledged. Losing the end of the log can therefore repeat samples, never lose one.

use antdt_core::{Epoch, Generation, Incarnation, NodeId};

use super::book::Book;
use super::snapshot::LedgerSnapshot;
use super::{GenerationState, ShardLedger};
use crate::error::RecoverError;
use crate::spec::DatasetSpec;

/// One entry of the log of one data set. The state of a ledger, but for its leases, is the fold of its records.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Record {
    /// A life of the service began; all leases of earlier ones are void.
    GenerationStarted {
        /// Higher than all before.
        generation: Generation,
    },
    /// A share went on to its next epoch.
    EpochOpened {
        /// Number of the share: 0 with a dynamic assignment, the worker's index with a static one.
        share: u32,
        /// The epoch.
        epoch: Epoch,
    },
    /// Samples of a shard are done.
    Acked {
        /// The epoch.
        epoch: Epoch,
        /// Position of the shard in the order of the epoch.
        position: u64,
        /// Samples `0..offset` of the shard's permuted order are done; at its length the shard is.
        offset: u64,
    },
    /// A shard had a data fault. With the last one that is tolerated it is given up.
    Failed {
        /// The epoch.
        epoch: Epoch,
        /// Position of the shard in the order of the epoch.
        position: u64,
    },
    /// A life of a node ended, and all before it.
    Fenced {
        /// The node.
        node: NodeId,
        /// The newest life that ended.
        through: Incarnation,
    },
    /// What the log said before it was shortened to this; always the first record.
    Base(Box<LedgerSnapshot>),
    /// The ledger was set back; what stands before this record counts only for its fences and generations.
    Restored(Box<LedgerSnapshot>),
}

/// A ledger that is being read from its log. It grants nothing before it is finished.
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
    /// Nothing has happened yet.
    ///
    /// # Errors
    /// If the data set cannot be registered.
    pub fn new(spec: DatasetSpec) -> Result<Self, RecoverError> {
        Ok(Self { book: Book::new(spec)? })
    }

    /// The data set.
    pub const fn spec(&self) -> &DatasetSpec {
        &self.book.spec
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// If it does not follow from the ones before; nothing is changed then. The log is that of another data set or
    /// is damaged in the middle: a record that is merely missing at the end is not noticed here.
    pub fn apply(&mut self, record: &Record) -> Result<(), RecoverError> {
        self.book.apply(record)
    }

    /// What the records say so far.
    pub fn snapshot(&self) -> LedgerSnapshot {
        LedgerSnapshot { book: self.book.clone() }
    }

    /// Begins the new generation. What was out waits again, at the last acknowledged offset.
    ///
    /// # Errors
    /// If the generation was used before.
    pub fn finish(self, generation: Generation) -> Result<ShardLedger, RecoverError> {
        ShardLedger::begin(self.book, generation)
    }
}

impl ShardLedger {
    /// A ledger from its log, in a new generation.
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
