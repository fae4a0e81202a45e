//! One line of a benchmark's table.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// A measured value beside what it should be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// What was measured.
    pub name: String,
    /// The value.
    pub value: f64,
    /// Its unit: `s`, `x`, `%`, `samples`.
    pub unit: String,
    /// What it must be, in words; `None` for a value that is only shown.
    pub target: Option<String>,
    /// Whether it is that; true without a target.
    pub ok: bool,
    /// What the value is compared with: the oracle, a baseline or another system, with its number.
    pub peer: Option<String>,
}

impl Entry {
    /// A value that is only shown.
    pub fn shown(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self { name: name.into(), value, unit: unit.to_owned(), target: None, ok: true, peer: None }
    }

    /// The value must be at least `least`.
    #[must_use]
    pub fn at_least(mut self, least: f64) -> Self {
        self.ok = self.value >= least;
        self.target = Some(format!(">= {}", number(least)));
        self
    }

    /// The value must be at most `most`.
    #[must_use]
    pub fn at_most(mut self, most: f64) -> Self {
        self.ok = self.value <= most;
        self.target = Some(format!("<= {}", number(most)));
        self
    }

    /// The value must be within `percent` of `exact`.
    #[must_use]
    pub fn within(mut self, percent: f64, exact: f64) -> Self {
        self.ok = (self.value - exact).abs() <= exact.abs() * percent / 100.0;
        self.target = Some(format!("{} +- {percent} %", number(exact)));
        self
    }

    /// Says what it is compared with.
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

/// The table as text, ends with a newline.
pub fn table(entries: &[Entry]) -> String {
    let mut rows = vec![["name", "value", "unit", "target", "ok", "peer"].map(str::to_owned)];
    for entry in entries {
        rows.push([
            entry.name.clone(),
            number(entry.value),
            entry.unit.clone(),
            entry.target.clone().unwrap_or_else(|| "-".to_owned()),
            if entry.ok { "ok" } else { "FAIL" }.to_owned(),
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
        assert!(Entry::shown("a", 2.6, "x").at_least(2.6).ok);
        assert!(!Entry::shown("a", 2.59, "x").at_least(2.6).ok);
        assert!(!Entry::shown("a", 1.1, "%").at_most(1.0).ok);
        assert!(Entry::shown("a", 0.105, "s").within(5.0, 0.1).ok);
        assert!(!Entry::shown("a", 0.106, "s").within(5.0, 0.1).ok);
        assert!(!Entry::shown("a", f64::NAN, "s").within(5.0, 0.1).ok);
    }

    #[test]
    fn the_table_shows_what_failed() {
        let text = table(&[
            Entry::shown("short", 1.0, "s"),
            Entry::shown("a longer name", 123.4, "x").at_least(200.0).beside("oracle 3.25"),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "name           value  unit  target  ok    peer");
        assert_eq!(lines[1], "short              1  s     -       ok");
        assert_eq!(lines[2], "a longer name    123  x     >= 200  FAIL  oracle 3.25");
    }

    #[test]
    fn the_json_has_the_six_keys() {
        let json = serde_json::to_value(Entry::shown("a", 1.0, "s")).unwrap();
        let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(keys.len(), 6);
        assert!(json["target"].is_null() && json["ok"] == true);
    }
}
