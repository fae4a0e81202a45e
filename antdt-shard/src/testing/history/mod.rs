//! Random histories of a ledger as values, which can be drawn, shrunk, printed and replayed.
//!
//! A [`History`] is a data set and what happens to its ledger: workers that fetch, acknowledge, give back,
//! fail, die, come back, join and leave; calls that are repeated, late or sent by the wrong worker; services
//! that restart, snapshots, and ledgers that are restored. [`any`] draws one;
//! [`Invariants`](super::Invariants) replays it against a ledger, store or source.

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

/// A test case for a ledger: a data set, and the steps that happen to its ledger.
///
/// `Display` writes it on one line, which [`replay`] reads; `Debug` shows one step on each line.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    spec: DatasetSpec,
    steps: Vec<Step>,
}

impl History {
    /// Returns a history of the given steps.
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

    /// Returns the data set of the history.
    pub const fn spec(&self) -> &DatasetSpec {
        &self.spec
    }

    /// Returns the steps of the history.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

/// Returns a proptest strategy for histories of up to 100 steps, over small data sets with every setting of a
/// ledger.
pub fn any() -> impl Strategy<Value = History> {
    of(specs(), 0..=STEPS_MAX)
}

/// Returns a proptest strategy for histories with these data sets and these numbers of steps. The data sets
/// must suit [`History::new`]; others are never drawn.
pub fn of(
    specs: impl Strategy<Value = DatasetSpec>,
    steps: RangeInclusive<usize>,
) -> impl Strategy<Value = History> {
    let histories = (specs, prop::collection::vec(strategy::steps(), steps));
    histories
        .prop_filter_map("a data set that a history can have", |(spec, steps)| History::new(spec, steps).ok())
}

/// Parses the line that a failed test printed.
///
/// # Panics
/// If the text is not a history. `text.parse::<History>()` returns an error instead.
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
