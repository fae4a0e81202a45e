//! [`Entry`]: one row of a benchmark's table.

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};

/// A row of a benchmark's table: a measured value with its target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the measurement.
    pub name: String,
    /// The measured value; `None` if nothing could be measured.
    pub value: Option<f64>,
    /// Unit of the value, such as `s`, `x`, `%` or `samples`.
    pub unit: String,
    /// 95 % confidence interval of the value, in its unit; `None` for a row that is not judged by its
    /// interval.
    pub interval: Option<[f64; 2]>,
    /// Condition that the value must meet, in words; `None` for a value that is only shown.
    pub target: Option<String>,
    /// Result of the comparison of value and target.
    pub state: State,
    /// What the value is compared with: an oracle, a baseline or another system, with its number. In a row
    /// without a value, the reason.
    pub peer: Option<String>,
}

/// Result of a row of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The target is met, or there is none.
    Ok,
    /// The target is missed.
    Failed,
    /// The target lies within the confidence interval: more rounds would decide.
    Unresolved,
    /// There is no value, or other processes used too much of the machine for a missed or unresolved target to count.
    NotMeasured,
    /// The peer, another project's system that is measured for comparison, stalled or died; the benchmark has ended it.
    Stalled,
    /// The peer, the data set or the tool that the comparison needs is missing on this machine.
    NotCompared,
}

impl State {
    /// Returns whether the row has no result, although no target is missed.
    pub const fn is_incomplete(self) -> bool {
        matches!(self, Self::NotMeasured | Self::Stalled | Self::NotCompared)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Failed => "FAIL",
            Self::Unresolved => "unresolved",
            Self::NotMeasured => "not measured",
            Self::Stalled => "stalled",
            Self::NotCompared => "not compared",
        })
    }
}

impl Entry {
    /// Returns a row without a target.
    pub fn shown(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self { value: Some(value), unit: unit.to_owned(), ..Self::without(name, State::Ok, "") }
    }

    /// Returns a row that has no value; `why`, if not empty, is shown as the reason for that.
    pub fn without(name: impl Into<String>, state: State, why: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: None,
            unit: String::new(),
            interval: None,
            target: None,
            state,
            peer: Some(why.into()).filter(|why| !why.is_empty()),
        }
    }

    /// Sets the target: the value must be at least `least`.
    #[must_use]
    pub fn at_least(self, least: f64) -> Self {
        self.judged(|value| value >= least, format!(">= {}", number(least)))
    }

    /// Sets the target: the value must be at most `most`.
    #[must_use]
    pub fn at_most(self, most: f64) -> Self {
        self.judged(|value| value <= most, format!("<= {}", number(most)))
    }

    /// Sets the target: the value must be within `percent` of `exact`.
    #[must_use]
    pub fn within(self, percent: f64, exact: f64) -> Self {
        let near = |value: f64| (value - exact).abs() <= exact.abs() * percent / 100.0;
        self.judged(near, format!("{} +- {percent} %", number(exact)))
    }

    /// Sets the target: the value, which is known to lie in `interval`, must be at most `most`. The row fails only if
    /// the whole interval lies above `most`, and is unresolved if the interval reaches above it.
    #[must_use]
    pub fn interval_at_most(self, [low, high]: [f64; 2], most: f64) -> Self {
        let state = match () {
            () if high <= most => State::Ok,
            () if low > most => State::Failed,
            // A value or an interval that is no number, too.
            () => State::Unresolved,
        };
        Self { interval: Some([low, high]), state, target: Some(format!("<= {}", number(most))), ..self }
    }

    /// Sets the target: the value, which is known to lie in `interval`, must be at least `least`. The row fails only if
    /// the whole interval lies below `least`, and is unresolved if the interval reaches below it.
    #[must_use]
    pub fn interval_at_least(self, [low, high]: [f64; 2], least: f64) -> Self {
        let state = match () {
            () if low >= least => State::Ok,
            () if high < least => State::Failed,
            // A value or an interval that is no number, too.
            () => State::Unresolved,
        };
        Self { interval: Some([low, high]), state, target: Some(format!(">= {}", number(least))), ..self }
    }

    /// Without a value, nothing is judged.
    fn judged(self, holds: impl Fn(f64) -> bool, target: String) -> Self {
        let state = match self.value {
            Some(value) if holds(value) => State::Ok,
            Some(_) => State::Failed,
            None => self.state,
        };
        Self { state, target: Some(target), ..self }
    }

    /// Marks a missed or unresolved target as not measured if other processes used a larger share of the cores than
    /// `most`. `others` is their share, from 0 to 1; `None` if it is unknown, which changes nothing.
    #[must_use]
    pub fn unless_overloaded(self, others: Option<f64>, most: f64) -> Self {
        match (self.state, others) {
            (State::Failed | State::Unresolved, Some(share)) if share > most => {
                let by = format!("others took {:.0} % of the cores", 100.0 * share);
                let peer = self.peer.map_or_else(|| by.clone(), |peer| format!("{by}; {peer}"));
                Self { state: State::NotMeasured, peer: Some(peer), ..self }
            }
            _ => self,
        }
    }

    /// Takes the target away: a value that misses it is shown like any other.
    #[must_use]
    pub fn without_target(self) -> Self {
        let state = if self.value.is_some() { State::Ok } else { self.state };
        Self { target: None, interval: None, state, ..self }
    }

    /// Sets the text about what the value is compared with.
    #[must_use]
    pub fn beside(mut self, peer: impl Into<String>) -> Self {
        self.peer = Some(peer.into());
        self
    }
}

/// Three decimals, fewer for large numbers.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats the rows as a table, which ends with a newline.
pub fn table(entries: &[Entry]) -> String {
    let mut rows = vec![["name", "value", "unit", "target", "state", "peer"].map(str::to_owned)];
    for entry in entries {
        let value = entry.value.map_or_else(|| "-".to_owned(), number);
        let interval = entry.interval.map(|[low, high]| format!(" [{}, {}]", number(low), number(high)));
        rows.push([
            entry.name.clone(),
            value,
            entry.unit.clone() + &interval.unwrap_or_default(),
            entry.target.clone().unwrap_or_else(|| "-".to_owned()),
            entry.state.to_string(),
            entry.peer.clone().unwrap_or_default(),
        ]);
    }
    let width: [usize; 6] =
        std::array::from_fn(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0));
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (i, (cell, width)) in row.iter().zip(width).enumerate() {
            // Numbers stand to the right.
            let cell = if i == 1 { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
            write!(line, "{cell}  ").expect("writing to a String cannot fail");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_held_against_its_target() {
        let shown = |value, unit| Entry::shown("a", value, unit);
        assert_eq!(shown(2.6, "x").at_least(2.6).state, State::Ok);
        assert_eq!(shown(2.59, "x").at_least(2.6).state, State::Failed);
        assert_eq!(shown(1.1, "%").at_most(1.0).state, State::Failed);
        assert_eq!(shown(0.105, "s").within(5.0, 0.1).state, State::Ok);
        assert_eq!(shown(0.106, "s").within(5.0, 0.1).state, State::Failed);
        assert_eq!(shown(f64::NAN, "s").within(5.0, 0.1).state, State::Failed);
        assert_eq!(Entry::without("a", State::Stalled, "gone").at_most(1.0).state, State::Stalled);
    }

    #[test]
    fn a_row_fails_only_if_its_interval_excludes_the_target() {
        let cost = |interval| Entry::shown("cost", 2.0, "%").interval_at_most(interval, 5.0).state;
        assert_eq!(cost([-1.0, 5.0]), State::Ok);
        assert_eq!(cost([-1.0, 5.1]), State::Unresolved);
        assert_eq!(cost([5.1, 9.0]), State::Failed);
        assert_eq!(cost([f64::NAN, f64::NAN]), State::Unresolved);
        let share = |interval| Entry::shown("share", 0.9, "").interval_at_least(interval, 0.85).state;
        assert_eq!(share([0.86, 0.95]), State::Ok);
        assert_eq!(share([0.8, 0.95]), State::Unresolved);
        assert_eq!(share([0.7, 0.84]), State::Failed);
        assert_eq!(share([f64::NAN, f64::NAN]), State::Unresolved);
    }

    #[test]
    fn overload_excuses_a_missed_target_and_changes_nothing_else() {
        let row = |value, others| Entry::shown("a", value, "s").at_most(1.0).unless_overloaded(others, 0.25);
        assert_eq!(row(2.0, Some(0.5)).state, State::NotMeasured);
        assert!(row(2.0, Some(0.5)).peer.unwrap().contains("50 % of the cores"));
        assert_eq!(row(2.0, Some(0.1)).state, State::Failed);
        assert_eq!(row(2.0, None).state, State::Failed);
        assert_eq!(row(0.5, Some(0.5)).state, State::Ok);
    }

    #[test]
    fn without_its_target_a_value_fails_nothing_and_a_missing_one_stays_missing() {
        let missed = Entry::shown("a", 2.0, "s").at_most(1.0);
        assert_eq!(missed.without_target(), Entry::shown("a", 2.0, "s"));
        let missing = Entry::without("b", State::NotMeasured, "no etcd").at_most(1.0);
        assert_eq!(missing.without_target(), Entry::without("b", State::NotMeasured, "no etcd"));
    }

    #[test]
    fn the_table_shows_failed_and_missing_rows() {
        let text = table(&[
            Entry::shown("short", 1.0, "s"),
            Entry::shown("a longer name", 123.4, "x").at_least(200.0).beside("oracle 3.25"),
            Entry::shown("cost", 2.0, "%").interval_at_most([1.0, 7.0], 5.0),
            Entry::without("gloo", State::NotCompared, "install python3-torch"),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "name           value  unit      target  state         peer");
        assert_eq!(lines[1], "short              1  s         -       ok");
        assert_eq!(lines[2], "a longer name    123  x         >= 200  FAIL          oracle 3.25");
        assert_eq!(lines[3], "cost               2  % [1, 7]  <= 5    unresolved");
        assert_eq!(lines[4], "gloo               -            -       not compared  install python3-torch");
    }

    #[test]
    fn a_row_is_read_again_as_it_was_written() {
        for entry in [
            Entry::shown("a", 1.0, "s").at_most(0.5),
            Entry::without("b", State::Stalled, "no answer within 60 s"),
            Entry::shown("c", 2.0, "%").interval_at_most([1.0, 7.0], 5.0),
        ] {
            let json = serde_json::to_value(&entry).unwrap();
            let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
            assert_eq!(keys.len(), 7);
            assert_eq!(serde_json::from_value::<Entry>(json).unwrap(), entry);
        }
    }
}
