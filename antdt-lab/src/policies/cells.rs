//! [`Cells`]: the parts of the benchmark, each stored with its rows before the next one is measured.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::Scale;
use crate::store::Store;
use crate::{Entry, Rows, Settings};

/// A part that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Measured {
    name: String,
    /// How much was measured: of another scale it is another part.
    scale: String,
    rows: Vec<Entry>,
}

impl Measured {
    /// Whether nothing hindered it. What other work disturbed, or what this machine lacked, is measured again.
    fn is_complete(&self) -> bool {
        !self.rows.iter().any(|row| row.state.is_incomplete())
    }

    /// Whether it can be read again: a file of JSON has no bound of an interval that is no number.
    fn is_readable(&self) -> bool {
        self.rows.iter().all(|row| row.interval.is_none_or(|bounds| bounds.iter().all(|it| it.is_finite())))
    }
}

/// Measures parts, or takes them from an earlier run.
pub(super) struct Cells<'a> {
    store: Store<Measured>,
    scale: String,
    settings: &'a Settings,
    rows: &'a mut Rows,
}

impl<'a> Cells<'a> {
    /// Opens the file of the parts. Those of an earlier run are kept with `--continue`.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub(super) fn open(settings: &'a Settings, scale: &Scale, rows: &'a mut Rows) -> Result<Self> {
        let store = Store::open(&settings.report_dir.join("cells.jsonl"), settings.go_on)?;
        Ok(Self { store, scale: format!("{scale:?}"), settings, rows })
    }

    /// Adds the rows of a part: those of an earlier run of the same scale, or else those that `measure` adds. One that is not asked for
    /// is left out.
    ///
    /// # Errors
    /// Those of `measure`, and if the part cannot be stored.
    pub(super) fn measure(
        &mut self,
        name: &str,
        measure: impl FnOnce(&mut Rows) -> Result<()>,
    ) -> Result<()> {
        if !self.settings.asks_for(name) {
            return Ok(());
        }
        let is_it = |it: &&Measured| it.name == name && it.scale == self.scale && it.is_complete();
        if let Some(known) = self.store.cells().iter().find(is_it) {
            self.rows.extend(known.rows.iter().cloned());
            return Ok(());
        }
        let before = self.rows.entries().len();
        measure(self.rows)?;
        let rows = self.rows.entries()[before..].to_vec();
        let measured = Measured { name: name.to_owned(), scale: self.scale.clone(), rows };
        if measured.is_readable() { self.store.push(measured) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::entry::State;

    fn settings(folder: &Path, go_on: bool, only: &[&str]) -> Settings {
        Settings {
            only: only.iter().map(|text| (*text).to_owned()).collect(),
            full: true,
            go_on,
            report_dir: folder.to_owned(),
            ..Settings::default()
        }
    }

    /// Names of the rows, and which of `parts` were measured and not kept.
    fn run(folder: &Path, go_on: bool, scale: &Scale, parts: &[(&str, Entry)]) -> (Vec<String>, Vec<String>) {
        run_only(&settings(folder, go_on, &[]), scale, parts)
    }

    fn run_only(settings: &Settings, scale: &Scale, parts: &[(&str, Entry)]) -> (Vec<String>, Vec<String>) {
        let folder = settings.report_dir.clone();
        let mut rows = Rows::create(&folder.join("rows.jsonl"), &"here").unwrap();
        let mut cells = Cells::open(settings, scale, &mut rows).unwrap();
        let mut measured = Vec::new();
        for (name, row) in parts {
            cells
                .measure(name, |rows| {
                    measured.push((*name).to_owned());
                    rows.push(row.clone());
                    Ok(())
                })
                .unwrap();
        }
        (rows.entries().iter().map(|row| row.name.clone()).collect(), measured)
    }

    #[test]
    fn complete_cells_are_kept_and_all_others_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let ok = |name: &str| Entry::shown(name, 1.0, "s").at_most(2.0);
        let parts = [
            ("one", ok("a")),
            ("disturbed", Entry::without("b", State::NotMeasured, "others took 90 % of the cores")),
            ("lacking", Entry::without("c", State::NotCompared, "skipped: it takes root")),
            ("missed", Entry::shown("d", 3.0, "s").at_most(2.0)),
            ("no number", Entry::shown("e", 1.0, "s").interval_at_most([f64::NAN; 2], 1.0)),
        ];
        let (rows, measured) = run(at, false, &Scale::FULL, &parts);
        assert_eq!((rows.join(""), measured.len()), ("abcde".to_owned(), 5));
        let (rows, measured) = run(at, true, &Scale::FULL, &parts);
        assert_eq!(rows.join(""), "abcde");
        assert_eq!(measured, ["disturbed", "lacking", "no number"], "a missed target stands");
        let (_, measured) = run(at, true, &Scale::CORE, &parts[..1]);
        assert_eq!(measured, ["one"], "another scale is another part");
        let (_, measured) = run(at, false, &Scale::FULL, &parts[..1]);
        assert_eq!(measured, ["one"], "without --continue nothing is kept");
        let asked = settings(at, false, &["lack", "turb"]);
        assert_eq!(run_only(&asked, &Scale::FULL, &parts).1, ["disturbed", "lacking"]);
    }
}
