//! `cargo xtask bench`: builds what is measured and what measures it, then runs the latter.
//!
//! The benchmarks themselves live in `antdt-bench` and `antdt-lab`; a new one is added there and needs no change here. What it would refuse
//! is refused before the build, by its own code.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::{python, shell};

#[path = "../../antdt-bench/src/arguments.rs"]
#[expect(unreachable_pub, reason = "it is public where it belongs")]
mod arguments;

use arguments::{Arguments, list};

/// The program's exit code when no target was missed, but something could not be measured or compared.
const INCOMPLETE: u8 = 3;

/// What a run in `verify` has shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// A line for each row.
    pub(crate) rows: String,
    /// Why some rows are not judged.
    pub(crate) incomplete: Option<String>,
}

/// Runs the shortest form of `survive` with the programs that the tests were built with.
///
/// # Errors
/// If it fails; what it said is shown then.
pub(crate) fn smoke(root: &Path, features: &[&str]) -> Result<Shown> {
    let mut build = Command::new("cargo");
    // The same selection as for the tests, whose features an example or a program alone would not have.
    build.args(["build", "--workspace", "--bins", "--tests", "--example", "counting"]).args(features);
    shell::run_quietly(build.current_dir(root))?;
    let target = shell::target_dir(root)?;
    let (debug, report) = (target.join("debug"), target.join("bench/survive-smoke"));
    let mut bench = Command::new(debug.join("antdt-lab"));
    bench.args(["survive", "--smoke", "--antdt"]).arg(debug.join("antdt")).arg("--report-dir").arg(&report);
    let (_, code) = shell::run_quietly_unless(bench.current_dir(root), &[INCOMPLETE])?;
    let file = report.join("bench.json");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let rows: Vec<serde_json::Value> =
        serde_json::from_str(&text).with_context(|| format!("{} holds no rows", file.display()))?;
    Ok(shown(&rows, code))
}

/// What is said of the rows of a benchmark that ended with this code.
fn shown(rows: &[serde_json::Value], code: u8) -> Shown {
    let text = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let mut said = String::new();
    for row in rows {
        let value = row["value"].as_f64().map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        let line = format!("{}: {value} {}", text(row, "name"), text(row, "unit"));
        let _ = write!(said, "\n    {}", line.trim_end());
    }
    let open: Vec<String> = rows
        .iter()
        .filter(|row| row["state"] != "ok")
        .map(|row| format!("{}: {}", text(row, "name"), text(row, "peer")))
        .collect();
    Shown { rows: said, incomplete: (code == INCOMPLETE).then(|| open.join("; ")) }
}

/// What the program of users' benchmarks measures and is built from: what `cargo run --release` builds, and nothing else.
const BENCH: [&str; 3] = ["build", "--release", "--bins"];

/// The same with the Python package.
const PYTORCH: [&str; 10] =
    ["build", "--release", "-p", "antdt", "-p", "antdt-bench", "-p", "antdt-py", "--lib", "--bins"];

/// What the program of the other benchmarks measures and is built from.
const LAB: [&str; 13] = [
    "build",
    "--release",
    "-p",
    "antdt",
    "-p",
    "antdt-bench",
    "-p",
    "antdt-lab",
    "-p",
    "antdt-chaos",
    "--bins",
    "--example",
    "counting",
];

/// Builds in release mode and hands the arguments over. Ends the process if they are wrong or ask for help, as the program
/// would.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<ExitCode> {
    let words = std::iter::once("antdt-bench").chain(arguments.iter().copied());
    let Arguments { name, list: lists, no_run, .. } =
        Arguments::checked(words).unwrap_or_else(|error| error.exit());
    if lists {
        print!("{}", list());
        return Ok(ExitCode::SUCCESS);
    }
    let is_of_users = name.package() == "antdt-bench";
    let mut programs = match name {
        arguments::Name::Pytorch => PYTORCH.to_vec(),
        _ if is_of_users => BENCH.to_vec(),
        _ => LAB.to_vec(),
    };
    if !is_of_users {
        // Masters that etcd elects are measured where that can be built.
        if Command::new("protoc").arg("--version").stdout(Stdio::null()).status().is_ok() {
            programs.extend(["--features", "antdt/etcd"]);
        }
    }
    let status = Command::new("cargo").args(&programs).current_dir(root).status();
    let status = status.context("cannot start cargo")?;
    if !status.success() {
        bail!("cargo {}: {status}", programs.join(" "));
    }
    if no_run {
        return Ok(ExitCode::SUCCESS);
    }
    let release = shell::target_dir(root)?.join("release");
    let mut bench = Command::new(release.join(name.package()));
    if name == arguments::Name::Pytorch {
        bench.env("PYTHONPATH", python::assemble(root, &release, "bench/python")?);
    }
    let status = bench
        .arg("--antdt")
        .arg(release.join("antdt"))
        .args(arguments)
        .status()
        .with_context(|| format!("cannot start {}", name.package()))?;
    if status.code() == Some(INCOMPLETE.into()) {
        eprintln!("the benchmark is incomplete: the rows above say what could not be measured or compared");
        return Ok(ExitCode::from(INCOMPLETE));
    }
    if !status.success() {
        bail!("the benchmark failed: {status}");
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_shows_its_rows_and_a_row_that_was_not_judged_is_no_pass() {
        let rows = serde_json::json!([
            {"name": "pause", "value": 0.123, "unit": "s", "state": "ok", "peer": "2 kills"},
            {"name": "kept", "value": null, "unit": "", "state": "not_measured", "peer": "others took 90 % of the cores"},
        ]);
        let rows = rows.as_array().unwrap();
        let complete = shown(&rows[..1], 0);
        assert_eq!(complete, Shown { rows: "\n    pause: 0.12 s".to_owned(), incomplete: None });
        let incomplete = shown(rows, INCOMPLETE);
        assert_eq!(incomplete.rows, "\n    pause: 0.12 s\n    kept: -");
        assert_eq!(incomplete.incomplete.as_deref(), Some("kept: others took 90 % of the cores"));
    }
}
