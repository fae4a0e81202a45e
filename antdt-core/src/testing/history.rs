//! Random histories as values, which can be drawn, shrunk, printed and replayed.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::InvalidValue;

/// The settings of a history, and the steps that can happen under them.
pub trait Setting: Clone + Eq + fmt::Debug + Serialize + DeserializeOwned {
    /// Name of the settings in the line that replays a history, such as `job`.
    const NAME: &'static str;

    /// One step of a history. It is valid in every state, so that a history without one of its steps is a
    /// history too; a step that finds nothing to act on is skipped.
    type Step: Clone + Eq + fmt::Debug + Serialize + DeserializeOwned;

    /// Checks that a history can have these settings.
    ///
    /// # Errors
    /// The first setting that is out of range.
    fn check(&self) -> Result<(), InvalidValue>;
}

/// A test case: settings, and the steps that happen under them.
///
/// `Display` writes it on one line, which [`replay`] reads; `Debug` shows one step on each line.
#[derive(Clone, PartialEq, Eq)]
pub struct History<S: Setting> {
    setting: S,
    steps: Vec<S::Step>,
}

impl<S: Setting> History<S> {
    /// Returns a history with these steps.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn new(setting: S, steps: Vec<S::Step>) -> Result<Self, InvalidValue> {
        setting.check()?;
        Ok(Self { setting, steps })
    }

    /// Returns the settings of the history.
    pub const fn setting(&self) -> &S {
        &self.setting
    }

    /// Returns the steps of the history.
    pub fn steps(&self) -> &[S::Step] {
        &self.steps
    }

    /// Returns the history without the step at this index.
    pub(super) fn without(&self, at: usize) -> Self {
        let mut less = self.clone();
        less.steps.remove(at);
        less
    }
}

/// Returns a proptest strategy for histories with these settings and these numbers of steps. Settings that a
/// history cannot have are never drawn.
pub fn of<S: Setting>(
    settings: impl Strategy<Value = S>,
    step: impl Strategy<Value = S::Step>,
    steps: RangeInclusive<usize>,
) -> impl Strategy<Value = History<S>> {
    (settings, prop::collection::vec(step, steps))
        .prop_filter_map("settings that a history can have", |(setting, steps)| {
            History::new(setting, steps).ok()
        })
}

/// Parses the line that a failed test printed.
///
/// # Panics
/// If the text is not a history. `text.parse::<History<S>>()` returns an error instead.
#[must_use]
pub fn replay<S: Setting>(text: &str) -> History<S> {
    match text.parse() {
        Ok(history) => history,
        Err(error) => panic!("history::replay: {error}"),
    }
}

impl<S: Setting> Serialize for History<S> {
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry(S::NAME, &self.setting)?;
        map.serialize_entry("steps", &self.steps)?;
        map.end()
    }
}

impl<S: Setting> fmt::Display for History<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl<S: Setting> FromStr for History<S> {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refused = |error: &dyn fmt::Display| {
            InvalidValue::new("history", error.to_string(), "the line that a failure printed, whole")
        };
        let mut read: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(text).map_err(|error| refused(&error))?;
        let (setting, steps) = (read.remove(S::NAME), read.remove("steps"));
        let (Some(setting), Some(steps), None) = (setting, steps, read.first_key_value()) else {
            return Err(refused(&format!("not an object of {} and steps", S::NAME)));
        };
        let setting = serde_json::from_str(setting.get()).map_err(|error| refused(&error))?;
        let steps = serde_json::from_str(steps.get()).map_err(|error| refused(&error))?;
        Self::new(setting, steps)
    }
}

impl<S: Setting> fmt::Debug for History<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.setting)?;
        for (at, step) in self.steps.iter().enumerate() {
            write!(f, "\n  {}. {step:?}", at + 1)?;
        }
        write!(f, "\n  replay: {}", Line(self))
    }
}

/// The line of code that is a history.
pub(super) struct Line<'a, S: Setting>(pub(super) &'a History<S>);

impl<S: Setting> fmt::Display for Line<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "history::replay(r#\"{}\"#)", self.0)
    }
}
