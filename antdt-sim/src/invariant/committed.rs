//! [`Committed`]: what a checkpoint's model and ledger contain.

use std::collections::BTreeMap;
use std::fmt;

use antdt_core::{Generation, Holder, ShardKey};

use super::leases::Done;
use super::trained::Times;

/// What the newest complete checkpoint of a job contains, as observers saw it: the invariants of a job that continues
/// from that checkpoint begin with it ([`Happening::Resumed`](crate::happening::Happening::Resumed)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// By the ledger.
    pub(super) done: Done,
    /// What the model has beyond.
    pub(super) beyond: BTreeMap<ShardKey, InModel>,
    pub(super) times: Times,
}

impl Committed {
    /// Returns how often each sample is in the model, if that was counted.
    pub const fn times(&self) -> &Times {
        &self.times
    }
}

impl fmt::Display for Committed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} acknowledged samples", self.done.acked())
    }
}

/// Samples of a shard that are part of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InModel {
    pub(super) end: u64,
    /// Worker that contributed them last, and the generation of the service that leased them to it.
    pub(super) holder: Holder,
    pub(super) generation: Generation,
    /// They were granted again, and that was excused.
    pub(super) again: bool,
}
