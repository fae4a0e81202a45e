//! Cases of the invariants, by their numbers: of those of which an event says little. What is checked
//! after every event of every history is in `testing::invariant`.

mod i01_partition;
mod i02_permutation;
mod i06_exactly_once_ack;
mod i07_coverage;
mod i08_no_early_end;
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
mod i20_journal_replay;
mod i21_fair_share;
mod i22_bounded_memory;
mod i23_determinism;
