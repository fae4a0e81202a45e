//! Consistent cuts: a copy of a ledger that belongs to one checkpoint of the model.
//!
//! A ledger that is older than the model repeats samples, and one that is younger loses samples; only a
//! ledger and a model of the same moment count each sample once. At such a moment all samples in the model
//! are acknowledged, and no others. Between two steps of a synchronous job that holds once the acks have
//! arrived; an asynchronous job freezes the ledger and lets its pushes drain.
//!
//! A lease does not show whether its holder has samples in flight, so the ledger compares sums: the model
//! says how many samples it has committed, and the ledger refuses to be cut unless it has as many. Both
//! halves then carry the same [`CutBinding`], and halves that differ in it are never restored together.
//!
//! Source: our design. `DLRover` stores a shard checkpoint apart from the model's and binds the two by nothing.

use std::fmt;
use std::str::FromStr;

use antdt_core::{CheckpointId, Generation, InvalidValue};

use super::ShardLedger;
use super::snapshot::LedgerSnapshot;
use crate::error::{CutError, DecodeError, RecoverError};
use crate::spec::DatasetSpec;

/// The identity of a cut, which the manifest of the model's checkpoint repeats: it ties a ledger and a model
/// together.
///
/// As text it is `checkpoint:acked:digest`; `Display` writes that and `FromStr` reads it.
///
/// ```
/// use antdt_shard::CutBinding;
///
/// let text = "7:1000:00c0ffee";
/// assert_eq!(text.parse::<CutBinding>()?.to_string(), text);
/// # Ok::<(), antdt_core::InvalidValue>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct CutBinding {
    /// Number of the checkpoint.
    pub checkpoint: CheckpointId,
    /// Samples that are both in the model and acknowledged.
    pub acked: u64,
    /// CRC-32C of the bytes of the ledger's snapshot.
    pub digest: u32,
}

impl fmt::Display for CutBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{:08x}", self.checkpoint, self.acked, self.digest)
    }
}

impl FromStr for CutBinding {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refused = || {
            InvalidValue::new(
                "cut binding",
                format!("{text:?}"),
                "checkpoint:acked:digest, as 7:1000:00c0ffee",
            )
        };
        let mut parts = text.split(':');
        let (Some(checkpoint), Some(acked), Some(digest), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(refused());
        };
        let number = |part: &str| part.parse::<u64>().map_err(|_| refused());
        let digest = if digest.len() == 8 { digest } else { return Err(refused()) };
        Ok(Self {
            checkpoint: CheckpointId(number(checkpoint)?),
            acked: number(acked)?,
            digest: u32::from_str_radix(digest, 16).map_err(|_| refused())?,
        })
    }
}

/// A ledger snapshot with the id of the checkpoint that it belongs to: the ledger's half of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerCut {
    binding: CutBinding,
    snapshot: LedgerSnapshot,
    bytes: Vec<u8>,
}

const MAGIC: [u8; 4] = *b"ADCT";

impl LedgerCut {
    /// Returns the binding that the manifest of the model's checkpoint must contain.
    pub const fn binding(&self) -> CutBinding {
        self.binding
    }

    /// Returns the ledger's state at the moment of the cut.
    pub const fn snapshot(&self) -> &LedgerSnapshot {
        &self.snapshot
    }

    /// Encodes the cut: `ADCT`, the number of the checkpoint (`u64`, little-endian), the snapshot.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&MAGIC[..], &self.binding.checkpoint.0.to_le_bytes(), &self.bytes].concat()
    }

    /// Decodes a cut; `bytes` must hold exactly one.
    ///
    /// # Errors
    /// If they are damaged, of a later format, of another data set, or of a state that no ledger can be in.
    pub fn from_bytes(bytes: &[u8], spec: &DatasetSpec) -> Result<Self, DecodeError> {
        let Some((magic, rest)) = bytes.split_first_chunk::<4>() else {
            return Err(DecodeError::Truncated { at: 0, needed: 4, left: bytes.len() });
        };
        if *magic != MAGIC {
            return Err(DecodeError::NotACut);
        }
        let Some((checkpoint, rest)) = rest.split_first_chunk::<8>() else {
            return Err(DecodeError::Truncated { at: 4, needed: 8, left: rest.len() });
        };
        let snapshot = LedgerSnapshot::from_bytes(rest, spec)?;
        Ok(Self::of(CheckpointId(u64::from_le_bytes(*checkpoint)), snapshot))
    }

    fn of(checkpoint: CheckpointId, snapshot: LedgerSnapshot) -> Self {
        let bytes = snapshot.to_bytes();
        let binding =
            CutBinding { checkpoint, acked: snapshot.counts().acked, digest: crc32c::crc32c(&bytes) };
        Self { binding, snapshot, bytes }
    }

    /// Checks that this cut and a model's checkpoint were taken together; `model` is the binding in its
    /// manifest.
    ///
    /// # Errors
    /// If the two bindings differ.
    pub fn check(&self, model: &CutBinding) -> Result<(), RecoverError> {
        if self.binding == *model {
            return Ok(());
        }
        Err(RecoverError::CutMismatch { ledger: self.binding, model: *model })
    }
}

impl ShardLedger {
    /// Cuts the ledger for a checkpoint of the model, which has `committed` samples in it, over all epochs.
    ///
    /// O(outstanding leases + holes) for the bytes; to keep the owner of a large ledger free, take a
    /// [`snapshot`](Self::snapshot) there and [make the cut](LedgerSnapshot::cut) elsewhere.
    ///
    /// # Errors
    /// If another number of samples is acknowledged.
    ///
    /// ```
    /// use antdt_core::{CheckpointId, Generation};
    /// use antdt_shard::{DatasetSpec, LedgerCut, ShardLedger};
    ///
    /// let spec = DatasetSpec::new("clicks", 1_000, 100);
    /// let mut ledger = ShardLedger::new(spec.clone(), Generation(1))?;
    /// let cut = ledger.cut(CheckpointId(1), 0)?;
    /// let manifest = cut.binding().to_string(); // goes into the model's checkpoint
    /// let cut = LedgerCut::from_bytes(&cut.to_bytes(), &spec)?;
    /// ledger.restore_cut(&cut, &manifest.parse()?, Generation(2))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cut(&self, checkpoint: CheckpointId, committed: u64) -> Result<LedgerCut, CutError> {
        self.snapshot().cut(checkpoint, committed)
    }

    /// Restores the ledger from the ledger's half of a checkpoint, as [`restore`](Self::restore) does. The
    /// caller restores the model's half too. A new ledger can be restored like this as well, to continue a
    /// job in another process with any number of workers.
    ///
    /// # Errors
    /// If the halves were not cut together, or for the reasons of [`restore`](Self::restore). Nothing is
    /// changed then.
    pub fn restore_cut(
        &mut self,
        cut: &LedgerCut,
        model: &CutBinding,
        generation: Generation,
    ) -> Result<(), RecoverError> {
        cut.check(model)?;
        self.restore(cut.snapshot(), generation)
    }
}

impl LedgerSnapshot {
    /// Makes a cut of this snapshot for a checkpoint of the model, which has `committed` samples in it, over
    /// all epochs.
    ///
    /// # Errors
    /// If the number of acknowledged samples differs from `committed`.
    pub fn cut(self, checkpoint: CheckpointId, committed: u64) -> Result<LedgerCut, CutError> {
        let acked = self.counts().acked;
        if acked != committed {
            return Err(CutError::NotQuiesced { committed, acked });
        }
        Ok(LedgerCut::of(checkpoint, self))
    }
}
