//! `cargo xtask python` and `cargo xtask wheel`: the Python package, as it is built here and as it is installed.

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
    let said = shell::run_quietly(&mut tests)?.err;
    let ran = said.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<u32>().ok());
    match ran {
        None | Some(0) => bail!("the tests of the Python package do not say how many there were:\n{said}"),
        Some(ran) => Ok(Done::Ran(format!("{ran} tests with torch {torch}"))),
    }
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
