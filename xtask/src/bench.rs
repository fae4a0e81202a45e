//! `cargo xtask bench`: builds what is measured and what measures it, then runs the latter.
//!
//! The benchmarks themselves live in `antdt-bench`; a new one is added there and needs no change here. What it would refuse
//! is refused before the build, by its own code.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::shell;

#[path = "../../antdt-bench/src/arguments.rs"]
#[expect(unreachable_pub, reason = "it is public where it belongs")]
mod arguments;

use arguments::{Arguments, list};

/// The program's exit code when no target was missed, but something could not be measured or compared.
const INCOMPLETE: u8 = 3;

/// Builds in release mode and hands the arguments over. Ends the process if they are wrong or ask for help, as the program
/// would.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<ExitCode> {
    let words = std::iter::once("antdt-bench").chain(arguments.iter().copied());
    if Arguments::checked(words).unwrap_or_else(|error| error.exit()).list {
        print!("{}", list());
        return Ok(ExitCode::SUCCESS);
    }
    // Masters that etcd elects are measured where that can be built.
    let can_elect = Command::new("protoc").arg("--version").stdout(Stdio::null()).status().is_ok();
    let features = if can_elect { "antdt/cli,antdt/etcd" } else { "antdt/cli" };
    // Both at once: apart, each has features of its own in what they share, and all of that is built twice.
    let programs = [
        "build",
        "--release",
        "-p",
        "antdt",
        "-p",
        "antdt-bench",
        "--bins",
        "--example",
        "counting",
        "--example",
        "own_launcher",
        "--features",
        features,
    ];
    let status = Command::new("cargo").args(programs).current_dir(root).status();
    let status = status.context("cannot start cargo")?;
    if !status.success() {
        bail!("cargo {}: {status}", programs.join(" "));
    }
    let release = shell::target_dir(root)?.join("release");
    let status = Command::new(release.join("antdt-bench"))
        .arg("--antdt")
        .arg(release.join("antdt"))
        .args(arguments)
        .status()
        .context("cannot start antdt-bench")?;
    if status.code() == Some(INCOMPLETE.into()) {
        eprintln!("the benchmark is incomplete: the rows above say what could not be measured or compared");
        return Ok(ExitCode::from(INCOMPLETE));
    }
    if !status.success() {
        bail!("the benchmark failed: {status}");
    }
    Ok(ExitCode::SUCCESS)
}
