//! Random lives of a ledger: histories as values, which can be drawn, shrunk, shown and played again.
//!
//! A [`History`] is a data set and what happens to its ledger: workers that fetch, acknowledge, give back, fail, die, come
//! back, join and leave; calls that are repeated, late or by the wrong one; services that restart, snapshots, and ledgers
//! that are set back. [`any`] draws one; what it is played against is up to [`Invariants`](super::Invariants).

mod step;
mod strategy;

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use antdt_core::InvalidValue;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

pub use self::step::{Lease, Offset, Presented, Saying, Speaker, Step};
pub use self::strategy::specs;
use crate::spec::{DatasetSpec, Epochs};

/// Most steps of a history of [`any`]. More: rarer faults are found; fewer: a failure is shrunk faster.
const STEPS_MAX: usize = 100;

/// Most samples of all epochs together: every sample is an entry of the reference model.
const SAMPLES_MAX: u64 = 1 << 16;

/// A data set and what happens to its ledger.
///
/// `Display` writes it on one line, which [`replay`] reads; `Debug` shows one step on each line.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    spec: DatasetSpec,
    steps: Vec<Step>,
}

impl History {
    /// A history of your own making.
    ///
    /// # Errors
    /// If the data set cannot be registered, has no end, or has more than 65,536 samples in all its epochs: the reference
    /// model lists each of them.
    pub fn new(spec: DatasetSpec, steps: Vec<Step>) -> Result<Self, InvalidValue> {
        spec.validate()?;
        let Epochs::Finite(epochs) = spec.epochs else {
            return Err(InvalidValue::new("epochs", "infinite", "finite: a history has an end"));
        };
        let samples = spec.num_samples.saturating_mul(epochs.into());
        if samples > SAMPLES_MAX {
            let expected = format!("at most {SAMPLES_MAX} over all epochs of a history");
            return Err(InvalidValue::new("num_samples", samples, expected));
        }
        Ok(Self { spec, steps })
    }

    /// The data set.
    pub const fn spec(&self) -> &DatasetSpec {
        &self.spec
    }

    /// Returns the steps of the history.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

/// Small data sets with every setting that a ledger has, and up to 100 steps.
pub fn any() -> impl Strategy<Value = History> {
    of(specs(), 0..=STEPS_MAX)
}

/// Histories of data sets and lengths of your choice. The data sets must suit [`History::new`]; others are never drawn.
pub fn of(
    specs: impl Strategy<Value = DatasetSpec>,
    steps: RangeInclusive<usize>,
) -> impl Strategy<Value = History> {
    let histories = (specs, prop::collection::vec(strategy::steps(), steps));
    histories
        .prop_filter_map("a data set that a history can have", |(spec, steps)| History::new(spec, steps).ok())
}

/// The history that was written on one line by a failure.
///
/// # Panics
/// If it is none. `text.parse::<History>()` returns an error instead.
#[must_use]
pub fn replay(text: &str) -> History {
    match text.parse() {
        Ok(history) => history,
        Err(error) => panic!("history::replay: {error}"),
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for History {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let read: Self = serde_json::from_str(text).map_err(|error| {
            InvalidValue::new("history", format!("{error}"), "the line that a failure printed, whole")
        })?;
        Self::new(read.spec, read.steps)
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.spec)?;
        for (at, step) in self.steps.iter().enumerate() {
            write!(f, "\n  {}. {step:?}", at + 1)?;
        }
        write!(f, "\n  replay: {}", Line(self))
    }
}

/// The line of code that is a history.
pub(crate) struct Line<'a>(pub(crate) &'a History);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "history::replay(r#\"{}\"#)", self.0)
    }
}
