//! The invariants of `antdt.md` §11.1, by their numbers. Each is checked after every event of every history; those of
//! which an event says little have tests of their own beside the check.

use antdt_core::ShardKey;

use super::call::{Call, Reply};
use super::model::Model;
use super::real::Real;
use crate::spec::DatasetSpec;

mod i01_partition;
mod i02_permutation;
mod i03_one_state;
mod i04_exclusive_lease;
mod i05_accounting;
mod i06_exactly_once_ack;
mod i07_coverage;
mod i08_no_early_end;
pub(super) mod i09_progress;
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
pub(super) mod i20_journal_replay;
mod i21_fair_share;
mod i22_bounded_memory;
mod i23_determinism;
mod i24_refinement;

/// The moment after an event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment<'a> {
    pub(super) call: &'a Call,
    /// What the model answered.
    pub(super) expected: &'a Reply,
    /// What the ledger answered.
    pub(super) reply: &'a Reply,
    /// The model, which was told of the event already.
    pub(super) model: &'a Model,
    pub(super) real: &'a Real,
}

impl Moment<'_> {
    const fn spec(&self) -> &DatasetSpec {
        &self.model.book.spec
    }

    /// Share and position of a shard.
    fn place(&self, key: ShardKey) -> (u64, u64) {
        self.model.book.places[&key]
    }

    /// The shards that wait, by the ledger.
    fn todo(&self) -> impl Iterator<Item = ShardKey> {
        self.real.ledger.book.todo().map(|(key, _)| key)
    }
}

/// Checks them all.
pub(super) fn check(moment: &Moment<'_>) {
    // First of all that the answer is right: the others may then read the model's.
    i24_refinement::check(moment);
    i01_partition::check(moment);
    i02_permutation::check(moment);
    i03_one_state::check(moment);
    i04_exclusive_lease::check(moment);
    i05_accounting::check(moment);
    i06_exactly_once_ack::check(moment);
    i07_coverage::check(moment);
    i08_no_early_end::check(moment);
    i09_progress::check(moment);
    i10_monotone_offset::check(moment);
    i11_resume::check(moment);
    i12_order_of_samples::check(moment);
    i13_fencing::check(moment);
    i14_idempotent_fetch::check(moment);
    i15_lease_cap::check(moment);
    i16_infrastructure_is_free::check(moment);
    i17_quarantine::check(moment);
    i18_epoch_window::check(moment);
    i19_snapshot_restore::check(moment);
    i20_journal_replay::check(moment);
    i21_fair_share::check(moment);
    i22_bounded_memory::check(moment);
    i23_determinism::check(moment);
}
