//! A copy of a ledger at one moment, to go with a checkpoint of the model.

use antdt_core::{Counts, Generation};

use super::book::Book;
use super::record::Record;
use super::{ShardLedger, Standing};
use crate::error::RecoverError;

/// What a ledger knew at one moment. O(outstanding leases + holes) in size: what is done is not listed.
///
/// It holds no lease: what was out waits again, at the last acknowledged offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerSnapshot {
    pub(super) book: Book,
}

impl LedgerSnapshot {
    /// The sample accounts. Nothing is `doing`.
    pub const fn counts(&self) -> Counts {
        self.book.account().job()
    }

    /// The newest generation that had begun.
    pub const fn generation(&self) -> Option<Generation> {
        self.book.generation
    }
}

/// Its bytes, as hexadecimal digits.
#[cfg(feature = "serde")]
impl serde::Serialize for LedgerSnapshot {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Hexadecimal(Vec<u8>);
        impl std::fmt::Display for Hexadecimal {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
        serializer.collect_str(&Hexadecimal(self.to_bytes()))
    }
}

impl ShardLedger {
    /// Copies the state. O(outstanding leases), and a counter for each 65,536 shards with holes: what is waiting is shared
    /// until somebody changes it.
    pub fn snapshot(&self) -> LedgerSnapshot {
        let mut book = self.book.clone();
        for (_, lease) in self.standing.leases() {
            book.put_back(&lease.taken);
        }
        LedgerSnapshot { book }
    }

    /// Sets the ledger back to a snapshot, in a new generation.
    ///
    /// All leases and request answers are void and every holder must register again. Samples that were acknowledged
    /// after the snapshot are granted again; none from before is. Fences never go back.
    ///
    /// # Errors
    /// If the snapshot is of another data set, or the generation was used before. Nothing is changed then.
    pub fn restore(&mut self, snapshot: &LedgerSnapshot, generation: Generation) -> Result<(), RecoverError> {
        let restored = Record::Restored(Box::new(snapshot.clone()));
        let started = Record::GenerationStarted { generation };
        let mut book = self.book.clone();
        book.apply(&restored)?;
        book.apply(&started)?;
        self.book = book;
        self.standing = Standing::new(generation);
        self.records.extend([restored, started]);
        self.wake = true;
        Ok(())
    }
}
