//! Copies of a ledger's state, to be stored with a checkpoint of the model.

use std::fmt;

use antdt_core::{Counts, Generation, InvalidValue};

use super::book::Book;
use super::record::Record;
use super::{GenerationState, ShardLedger};
use crate::error::RecoverError;
use crate::spec::{DatasetSpec, Epochs};

/// The durable state of a ledger at one moment. Its size is O(outstanding leases + holes), where a hole is a
/// gap in the run of shards that no worker has begun; done samples are not listed.
///
/// A snapshot holds no lease: in it, a shard that was leased waits again, at its last acknowledged offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerSnapshot {
    pub(super) book: Book,
}

impl LedgerSnapshot {
    /// Returns the number of samples in each state, over all epochs. None is `doing`.
    pub const fn counts(&self) -> Counts {
        self.book.account().job()
    }

    /// Returns this state for a new job that continues with settings of its own: it may have more epochs, or
    /// fewer if none of those that it leaves out has begun, or other rules for unreadable samples. Quarantined samples stay so. The fences of the old job are
    /// dropped, so that the incarnations of the new job's nodes may begin with the first.
    ///
    /// # Errors
    /// If a setting that decides the order of the samples differs, or `spec` has fewer epochs than have begun.
    pub fn continued(&self, spec: DatasetSpec) -> Result<Self, InvalidValue> {
        spec.validate()?;
        let ours = &self.book.spec;
        kept("name of the data set", &spec.name, &ours.name)?;
        kept("samples", &spec.num_samples, &ours.num_samples)?;
        kept("shards", &spec.cut, &ours.cut)?;
        kept("shuffle", &spec.shuffle, &ours.shuffle)?;
        kept("seed of the order", &spec.seed.0, &ours.seed.0)?;
        kept("epoch overlap", &spec.epoch_overlap, &ours.epoch_overlap)?;
        kept("assignment of shards", &spec.assignment, &ours.assignment)?;
        let (Epochs::Finite(_), Epochs::Finite(after)) = (ours.epochs, spec.epochs) else {
            kept("epochs", &spec.epochs, &ours.epochs)?;
            return Ok(Self { book: self.book.for_new_job(spec) });
        };
        let begun = self.book.account().opened;
        if after < begun {
            return Err(InvalidValue::new("epochs", after, format!("at least {begun}: as many have begun")));
        }
        Ok(Self { book: self.book.for_new_job(spec) })
    }

    /// Returns the newest generation that had begun when the snapshot was taken; `None` before the first.
    pub const fn generation(&self) -> Option<Generation> {
        self.book.generation
    }
}

/// Refuses a setting that is not as it was.
fn kept<T: PartialEq + fmt::Display>(field: &str, now: &T, before: &T) -> Result<(), InvalidValue> {
    if now == before {
        return Ok(());
    }
    let (now, before) = (now.to_string(), before.to_string());
    // Shards of many lengths differ in more than what is said of them.
    let value = if now == before { "changed".to_owned() } else { now };
    Err(InvalidValue::new(field, value, format!("as before: {before}")))
}

/// Its bytes, as hexadecimal digits.
#[cfg(feature = "serde")]
impl serde::Serialize for LedgerSnapshot {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Hexadecimal(Vec<u8>);
        impl fmt::Display for Hexadecimal {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
        serializer.collect_str(&Hexadecimal(self.to_bytes()))
    }
}

impl ShardLedger {
    /// Copies the ledger's state. Costs O(outstanding leases), plus a reference count for each 65,536 shards
    /// with holes: copies share the sets of waiting shards until they change.
    pub fn snapshot(&self) -> LedgerSnapshot {
        let mut book = self.book.clone();
        for (_, lease) in self.standing.leases() {
            book.put_back(&lease.taken);
        }
        LedgerSnapshot { book }
    }

    /// Restores the ledger to a snapshot, in a new generation.
    ///
    /// All leases and stored answers are void, and every worker must register again. Samples that were
    /// acknowledged after the snapshot are granted again; those that were acknowledged before it are not.
    /// Incarnations that were fenced after the snapshot stay fenced.
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
        self.standing = GenerationState::new(generation);
        self.records.extend([restored, started]);
        self.wake = true;
        Ok(())
    }
}
