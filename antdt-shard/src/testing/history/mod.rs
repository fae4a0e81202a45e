//! Random histories of a ledger as values, which can be drawn, shrunk, printed and replayed.
//!
//! A [`History`] is a data set and what happens to its ledger: workers that fetch, acknowledge, give back,
//! fail, die, come back, join and leave; calls that are repeated, late or sent by the wrong worker; services
//! that restart, snapshots, and ledgers that are restored. [`any`] draws one;
//! [`Invariants`](super::Invariants) replays it against a ledger, store or source.

mod step;
mod strategy;

use std::ops::RangeInclusive;

use antdt_core::InvalidValue;
use antdt_core::testing::Setting;
use proptest::prelude::*;

pub use antdt_core::testing::history::replay;

pub use self::step::{Lease, Offset, Presented, Saying, Speaker, Step};
pub use self::strategy::specs;
use crate::spec::{DatasetSpec, Epochs};

/// Most steps of a history of [`any`]. More: rarer faults are found; fewer: a failure is shrunk faster.
const STEPS_MAX: usize = 100;

/// Most samples of all epochs together: every sample is an entry of the reference model.
const SAMPLES_MAX: u64 = 1 << 16;

/// A test case for a ledger: a data set, and the steps that happen to its ledger.
///
/// `Display` writes it on one line, which [`replay`] reads; `Debug` shows one step on each line.
pub type History = antdt_core::testing::History<DatasetSpec>;

impl Setting for DatasetSpec {
    const NAME: &'static str = "spec";

    type Step = Step;

    fn check(&self) -> Result<(), InvalidValue> {
        self.validate()?;
        let Epochs::Finite(epochs) = self.epochs else {
            return Err(InvalidValue::new("epochs", "infinite", "finite: a history has an end"));
        };
        let samples = self.num_samples.saturating_mul(epochs.into());
        if samples > SAMPLES_MAX {
            // The reference model lists each sample.
            let expected = format!("at most {SAMPLES_MAX} over all epochs of a history");
            return Err(InvalidValue::new("num_samples", samples, expected));
        }
        Ok(())
    }
}

/// Returns a proptest strategy for histories of up to 100 steps, over small data sets with every setting of a
/// ledger.
pub fn any() -> impl Strategy<Value = History> {
    of(specs(), 0..=STEPS_MAX)
}

/// Returns a proptest strategy for histories with these data sets and these numbers of steps. A history has a
/// data set that can be registered, and no more than 65,536 samples in all its epochs; others are never drawn.
pub fn of(
    specs: impl Strategy<Value = DatasetSpec>,
    steps: RangeInclusive<usize>,
) -> impl Strategy<Value = History> {
    antdt_core::testing::history::of(specs, strategy::steps(), steps)
}
