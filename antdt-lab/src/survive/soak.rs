//! A job under `antdt-chaos`, and what it shows.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use antdt_chaos::{ChaosReport, FILE};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::Entry;
use crate::run::{LOG, last_lines, program_with, wait};

/// A soak: how long faults are injected at most, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Soak {
    pub(super) lasting: Duration,
    pub(super) mtbf: Duration,
}

impl Soak {
    pub(super) const QUICK: Self =
        Self { lasting: Duration::from_secs(12), mtbf: Duration::from_millis(800) };
    pub(super) const CORE: Self = Self { lasting: Duration::from_secs(100), mtbf: Duration::from_secs(4) };
    /// As the target says: twenty minutes at least, however little the faults cost.
    pub(super) const FULL: Self =
        Self { lasting: Duration::from_secs(40 * 60), mtbf: Duration::from_secs(15) };

    /// No fault: what a job under faults is held against.
    pub(super) const CALM: Self = Self { lasting: Duration::from_millis(1), mtbf: Duration::from_secs(3600) };

    /// Work of its job: half of the time goes to what the faults cost, and a short soak still meets most of them.
    pub(super) fn work(self) -> Duration {
        (self.lasting / 2).max(Duration::from_secs(10))
    }
}

/// Runs `antdt-chaos -- PROGRAM run ARGUMENTS`; `antdt-chaos` lies in the folder above that of the example `program`.
///
/// # Errors
/// If it cannot be run, or leaves no report. A job that did wrong is in the report.
pub(super) fn run(
    program: &Path,
    folder: &PathBuf,
    seed: u64,
    soak: Soak,
    limit: Duration,
    arguments: &[String],
) -> Result<ChaosReport> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder)?;
    let log = folder.join(LOG);
    let out = File::create(&log)?;
    let ms = |time: Duration| format!("{}ms", time.as_millis());
    let (seed, mtbf, lasting) = (seed.to_string(), ms(soak.mtbf), ms(soak.lasting));
    let chaos = program.ancestors().nth(2).context("the program lies in no folder")?.join("antdt-chaos");
    let flags = ["--seed", &seed, "--mtbf", &mtbf, "--for", &lasting, "--"].map(str::to_owned);
    let run = ["run", "--workload", "counting", "--optimizer", "sums", "--policy", "none"].map(str::to_owned);
    let report = ["--report-dir".to_owned(), folder.display().to_string()];
    let job = [&[program.display().to_string()], &run[..], arguments, &report].concat();
    let child = program_with(&chaos, &[&flags[..], &job].concat(), out)?;
    // What the job does under chaos is for the chaos to judge; this is the bound on the chaos itself.
    wait(child, limit)?;
    let file = folder.join(FILE);
    let text = fs::read_to_string(&file)
        .with_context(|| format!("there is no {}\n{}", file.display(), last_lines(&log)))?;
    serde_json::from_str(&text).with_context(|| format!("{} is none", file.display()))
}

/// What the soaks of some modes have shown: the violations, and how often each kind of fault occurred.
pub(super) fn rows(soaks: &[(&str, &ChaosReport)]) -> Vec<Entry> {
    let mut rows = Vec::new();
    let kinds = |of: &dyn Fn(&antdt_chaos::KindEntry) -> u32, report: &ChaosReport| -> u32 {
        report.kinds.iter().map(of).sum()
    };
    for (name, report) in soaks {
        let injected = kinds(&|kind| kind.injected, report);
        let first = report.violations.first().cloned();
        #[allow(clippy::cast_precision_loss, reason = "a handful")]
        let violations = report.violations.len() as f64;
        let beside = first.unwrap_or_else(|| {
            format!(
                "{injected} faults in {:.0} s, {} masters, seed {}",
                report.lasted_s, report.masters, report.seed
            )
        });
        rows.push(
            Entry::shown(format!("chaos, {name}: violations"), violations, "").at_most(0.0).beside(beside),
        );
    }
    let Some((_, any)) = soaks.first() else { return rows };
    for kind in &any.kinds {
        let entries =
            || soaks.iter().flat_map(|(_, report)| &report.kinds).filter(|entry| entry.kind == kind.kind);
        let injected: u32 = entries().map(|entry| entry.injected).sum();
        let skipped = entries().find_map(|entry| entry.skipped.clone());
        let row = Entry::shown(format!("chaos: {}", kind.kind), f64::from(injected), "times");
        rows.push(match (injected, skipped) {
            (0, Some(why)) => row.beside(format!("skipped: {why}")),
            (0, None) => row.beside("never occurred"),
            (_, _) => row,
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use antdt_chaos::{ChaosKind, KindEntry};

    use super::*;
    use crate::entry::State;

    #[test]
    fn a_violation_fails_its_row_and_a_kind_that_never_occurred_is_named() {
        let kind = |kind, injected, skipped: Option<&str>| KindEntry {
            kind,
            injected,
            missed: 0,
            skipped: skipped.map(str::to_owned),
        };
        let report = |injected, violations: &[&str]| ChaosReport {
            seed: 1,
            kinds: vec![
                kind(ChaosKind::Stop, injected, None),
                kind(ChaosKind::Hang, 0, None),
                kind(ChaosKind::ServerKill, 0, Some("the job has no servers")),
            ],
            faults: Vec::new(),
            lasted_s: 9.0,
            masters: 1,
            outcome: "the job completed".to_owned(),
            counted: "by the model".to_owned(),
            violations: violations.iter().map(|text| (*text).to_owned()).collect(),
        };
        let rows = rows(&[("a", &report(2, &[])), ("b", &report(3, &["sample 7"]))]);
        let texts: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
        assert_eq!((rows[0].state, rows[1].state), (State::Ok, State::Failed), "{texts:?}");
        assert!(texts[2].contains("5.0") && texts[3].contains("never occurred"), "{texts:?}");
        assert!(texts[4].contains("skipped: the job has no servers"), "{texts:?}");
        assert_eq!(rows.len(), 5);
    }
}
