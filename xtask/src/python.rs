//! `cargo xtask python` and `cargo xtask wheel`: the Python package, as it is built here and as it is installed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::shell;
use crate::verify::Done;

/// Where the package and its tests are.
const PACKAGE: &str = "antdt-py";

/// Interpreters that may have torch: the one of the user, and that of the system, for which Debian packages it.
const INTERPRETERS: [&str; 2] = ["python3", "/usr/bin/python3"];

/// Tests the package with the module and the program that the other tests are built with.
pub(crate) fn test(root: &Path, features: &[&str]) -> Result<Done> {
    let Some((python, torch)) = INTERPRETERS.iter().find_map(|python| Some((*python, torch_of(python)?)))
    else {
        let why =
            format!("none of {} has torch; install it (Debian: python3-torch)", INTERPRETERS.join(", "));
        return Ok(Done::Skipped(format!("SKIPPED: {why}")));
    };
    let mut build = Command::new("cargo");
    shell::run_quietly(
        build.args(["build", "--workspace", "--lib", "--bins", "--tests"]).args(features).current_dir(root),
    )?;
    let target = shell::target_dir(root)?;
    let path = assemble(root, &target.join("debug"), "python")?;
    let mut tests = Command::new(python);
    tests.args(["-m", "unittest", "discover", "--start-directory"]).arg(root.join(PACKAGE).join("tests"));
    tests.env("PYTHONPATH", &path).env("ANTDT", target.join("debug/antdt")).current_dir(&target);
    outcome(&shell::run_quietly(&mut tests)?.err, &torch)
}

/// What became of the tests that have `said` this.
fn outcome(said: &str, torch: &str) -> Result<Done> {
    let number = |text: &str| text.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok();
    let found = said.lines().find_map(|line| number(line.strip_prefix("Ran ")?));
    let skipped = said.lines().find_map(|line| number(line.strip_prefix("OK (skipped=")?)).unwrap_or(0);
    let ran = found.unwrap_or(0).saturating_sub(skipped);
    if ran == 0 {
        bail!("the tests of the Python package do not say how many ran:\n{said}");
    }
    let text = format!("{ran} tests with torch {torch}");
    if skipped == 0 {
        return Ok(Done::Ran(text));
    }
    let why: BTreeSet<&str> = said.lines().filter_map(|line| Some(line.split_once("SKIPPED: ")?.1)).collect();
    let why = why.into_iter().collect::<Vec<_>>().join(", ");
    Ok(Done::RanInPart(text, format!("{skipped} tests: {why}")))
}

/// The version of torch that an interpreter has.
fn torch_of(python: &str) -> Option<String> {
    let version = shell::read(Command::new(python).args(["-c", "import torch; print(torch.__version__)"]));
    version.ok().map(|version| version.trim().to_owned())
}

/// Lays the package out as a wheel has it, with the module that was `built`, below the folder of what is built; returns the folder that
/// Python looks in.
pub(crate) fn assemble(root: &Path, built: &Path, to: &str) -> Result<PathBuf> {
    let path = shell::target_dir(root)?.join(to);
    let package = path.join("antdt");
    if package.exists() {
        fs::remove_dir_all(&package).with_context(|| format!("cannot empty {}", package.display()))?;
    }
    fs::create_dir_all(&package).with_context(|| format!("cannot create {}", package.display()))?;
    let copy = |from: &Path, to: &Path| {
        fs::copy(from, to)
            .map(drop)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
    };
    for source in fs::read_dir(root.join(PACKAGE).join("python/antdt"))? {
        let source = source?.path();
        if let (true, Some(name)) = (source.is_file(), source.file_name()) {
            copy(&source, &package.join(name))?;
        }
    }
    copy(&built.join("libantdt_py.so"), &package.join("_antdt.abi3.so"))?;
    Ok(path)
}

/// Builds the program and the module, optimised, and makes a wheel of both. Returns where it is.
pub(crate) fn wheel(root: &Path) -> Result<PathBuf> {
    let target = shell::target_dir(root)?;
    shell::read(Command::new("maturin").arg("--version"))
        .context("maturin makes the wheel: `pip install maturin`")?;
    let mut build = Command::new("cargo");
    shell::run_quietly(build.args(["build", "--release", "--locked", "--bin", "antdt"]).current_dir(root))?;
    let bin = root.join(PACKAGE).join("python/antdt/bin");
    fs::create_dir_all(&bin)?;
    fs::copy(target.join("release/antdt"), bin.join("antdt")).context("cannot copy the program")?;
    let out = target.join("wheels");
    let mut maturin = Command::new("maturin");
    maturin.args(["build", "--release", "--strip", "--out"]).arg(&out).current_dir(root.join(PACKAGE));
    let built = shell::run_quietly(&mut maturin);
    // What lies there is in the wheel, and would be in the next commit.
    fs::remove_dir_all(&bin)?;
    built?;
    let mut wheels: Vec<PathBuf> =
        fs::read_dir(&out)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    wheels.sort_by_key(|wheel| fs::metadata(wheel).and_then(|found| found.modified()).ok());
    let newest = wheels.pop();
    ensure!(newest.is_some(), "maturin left no wheel in {}", out.display());
    newest.context("a wheel is there")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_were_skipped_are_not_counted_as_run() {
        let said = |end: &str| {
            format!("SKIPPED: lightning is not installed\n......ss\n----\nRan 8 tests in 3.1s\n\n{end}\n")
        };
        let text = |end: &str| {
            outcome(&said(end), "2.15").map(|done| done.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(text("OK").unwrap(), "ok 8 tests with torch 2.15");
        let part = text("OK (skipped=2)").unwrap();
        assert_eq!(part, "ok 6 tests with torch 2.15; SKIPPED: 2 tests: lightning is not installed");
        assert!(text("OK (skipped=8)").unwrap_err().contains("do not say how many ran"));
        assert!(outcome("no tests", "2.15").is_err());
    }
}
