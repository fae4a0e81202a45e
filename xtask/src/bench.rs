//! `cargo xtask bench`: builds what is measured and what measures it, then runs the latter.
//!
//! The benchmarks themselves live in `antdt-bench`; a new one is added there and needs no change here.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Builds in release mode and hands the arguments over.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    // Both at once: apart, each has features of its own in what they share, and all of that is built twice.
    let programs = ["build", "--release", "-p", "antdt", "-p", "antdt-bench", "--features", "antdt/cli"];
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
    if !status.success() {
        bail!("the benchmark failed: {status}");
    }
    Ok(())
}
