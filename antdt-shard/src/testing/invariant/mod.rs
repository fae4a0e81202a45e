//! The promises of a ledger, numbered, one file each. All of them are checked after
//! every event of a history.

use std::fmt;

use antdt_core::{Epoch, ShardKey};

use super::call::{Call, CallReply};
use super::model::Model;
use super::subject::Journal;
use super::view::View;
use crate::ledger::{LedgerSnapshot, Missing};
use crate::spec::DatasetSpec;

/// Returns an error unless a condition holds.
macro_rules! holds {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}

/// Returns an error unless two values are equal.
macro_rules! same {
    ($is:expr, $expected:expr, $($what:tt)+) => {
        match (&$is, &$expected) {
            (is, expected) => {
                if is != expected {
                    let what = format!($($what)+);
                    return Err(format!("{what}: {is:?}, expected {expected:?}"));
                }
            }
        }
    };
}

mod i01_partition;
mod i02_permutation;
mod i03_one_state;
mod i04_exclusive_lease;
mod i05_accounting;
mod i06_exactly_once_ack;
mod i07_coverage;
mod i08_no_early_end;
pub(crate) mod i09_progress;
mod i10_monotone_offset;
mod i11_resume;
mod i12_order_of_samples;
mod i13_fencing;
mod i14_idempotent_fetch;
mod i15_lease_cap;
mod i16_infrastructure_is_free;
mod i17_quarantine;
mod i18_epoch_window;
mod i19_snapshot_restore;
pub(crate) mod i20_journal_replay;
mod i21_fair_share;
mod i23_determinism;
mod i24_refinement;

/// Whether a promise is kept; else what is wrong.
pub(crate) type CheckResult = Result<(), String>;

antdt_core::promises! {
    /// One invariant of a ledger. `Display` gives its number and its name.
    pub enum Invariant {
        /// The shards of an epoch are disjoint and cover the data set.
        Partition = "partition",
        /// Shards are handed out in the order that seed and epoch fix.
        Permutation = "permutation",
        /// Each shard is in one state: it waits, is leased, is done, or was given up.
        OneState = "one_state",
        /// A shard has one live lease at most, and no lease or generation is used twice.
        ExclusiveLease = "exclusive_lease",
        /// Every sample of every epoch is in exactly one state: waiting, leased, done or quarantined.
        Accounting = "accounting",
        /// Every sample is counted at most once, and only if the worker that holds its lease acknowledges it.
        ExactlyOnceAck = "exactly_once_ack",
        /// The end of the data is announced once every sample is accounted for.
        Coverage = "coverage",
        /// The end is not announced while a shard waits or is leased, and no shard is granted after it.
        NoEarlyEnd = "no_early_end",
        /// Every history ends, and a waiting worker is woken when it can be granted a shard.
        Progress = "progress",
        /// Offsets never go back, and a refused call changes nothing.
        MonotoneOffset = "monotone_offset",
        /// A shard that is granted again resumes at its acknowledged offset.
        Resume = "resume",
        /// The order within a shard follows from seed, epoch and index alone.
        OrderOfSamples = "order_of_samples",
        /// A message of an incarnation that was declared lost changes nothing, and the incarnation stays lost.
        Fencing = "fencing",
        /// A repeated request gets the same grants and allocates nothing.
        IdempotentFetch = "idempotent_fetch",
        /// No worker holds more leases than its cap, and a lost worker holds none.
        LeaseCap = "lease_cap",
        /// The loss of nodes and services never counts as a data fault of a shard.
        InfrastructureIsFree = "infrastructure_is_free",
        /// A shard is quarantined after exactly `max_data_faults` data faults, and its samples are counted.
        Quarantine = "quarantine",
        /// At most `epoch_overlap + 1` epochs are unfinished at a time.
        EpochWindow = "epoch_window",
        /// A snapshot is the ledger without its leases, and a restored ledger continues from there.
        SnapshotRestore = "snapshot_restore",
        /// The log gives the same state when it is read again, and so does the store.
        JournalReplay = "journal_replay",
        /// Near the end of an epoch no worker takes more than half of its equal part.
        FairShare = "fair_share",
        /// Equal events give equal answers, records and snapshots.
        Determinism = "determinism",
        /// Every answer, record and state equals that of the naive reference ledger.
        Refinement = "refinement",
    }

    /// A set of [`Invariant`]s to check against histories. A ledger of this crate keeps all of them.
    ///
    /// ```
    /// use antdt_shard::testing::{Invariant, Invariants};
    ///
    /// let some = Invariants::all().without(Invariant::Refinement);
    /// assert!(some.contains(Invariant::ExclusiveLease) && !some.contains(Invariant::Refinement));
    /// ```
    pub struct Invariants;
}

impl Invariant {
    /// Returns the number of the invariant. Number 22, bounded memory, cannot be checked from outside.
    pub const fn number(self) -> u32 {
        let at = self as u32 + 1;
        if at < 22 { at } else { at + 1 }
    }

    const fn check(self) -> fn(&Moment<'_>) -> CheckResult {
        match self {
            Self::Partition => i01_partition::check,
            Self::Permutation => i02_permutation::check,
            Self::OneState => i03_one_state::check,
            Self::ExclusiveLease => i04_exclusive_lease::check,
            Self::Accounting => i05_accounting::check,
            Self::ExactlyOnceAck => i06_exactly_once_ack::check,
            Self::Coverage => i07_coverage::check,
            Self::NoEarlyEnd => i08_no_early_end::check,
            Self::Progress => i09_progress::check,
            Self::MonotoneOffset => i10_monotone_offset::check,
            Self::Resume => i11_resume::check,
            Self::OrderOfSamples => i12_order_of_samples::check,
            Self::Fencing => i13_fencing::check,
            Self::IdempotentFetch => i14_idempotent_fetch::check,
            Self::LeaseCap => i15_lease_cap::check,
            Self::InfrastructureIsFree => i16_infrastructure_is_free::check,
            Self::Quarantine => i17_quarantine::check,
            Self::EpochWindow => i18_epoch_window::check,
            Self::SnapshotRestore => i19_snapshot_restore::check,
            Self::JournalReplay => i20_journal_replay::check,
            Self::FairShare => i21_fair_share::check,
            Self::Determinism => i23_determinism::check,
            Self::Refinement => i24_refinement::check,
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.number(), self.name())
    }
}

/// A promise that was broken, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Breach {
    pub(crate) invariant: Invariant,
    pub(crate) what: String,
}

/// The moment after an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment<'a> {
    pub(crate) call: &'a Call,
    /// What the naive ledger answered.
    pub(crate) expected: &'a CallReply,
    /// What the ledger answered.
    pub(crate) reply: &'a CallReply,
    /// The model, which was told of the event and of the answer already.
    pub(crate) model: &'a Model,
    pub(crate) before: &'a View,
    pub(crate) after: &'a View,
    /// The snapshot of a ledger that heard of the same events, and of none of the questions.
    pub(crate) twin: &'a LedgerSnapshot,
    /// The epoch that is asked about: a different one with each record, and one that the job does not have.
    pub(crate) epoch: Epoch,
    /// All that is missing of it.
    pub(crate) missing: &'a [Missing],
    /// What is missing of two shards of it.
    pub(crate) missing_some: &'a [Missing],
    pub(crate) journal: &'a Journal,
}

impl Moment<'_> {
    const fn spec(&self) -> &DatasetSpec {
        &self.model.book.spec
    }

    /// Share and position of a shard; `None` if the data set has no such shard.
    fn place(&self, key: ShardKey) -> Option<(u64, u64)> {
        self.model.book.places.get(&key).copied()
    }
}

impl Invariants {
    /// The first that is broken. What the naive ledger would have said comes last: the others say more.
    pub(crate) fn check_moment(&self, moment: &Moment<'_>) -> Result<(), Breach> {
        for invariant in &self.of {
            (invariant.check())(moment).map_err(|what| Breach { invariant: *invariant, what })?;
        }
        Ok(())
    }
}
