//! `cargo xtask sim`: random worlds under all invariants.
//!
//! The worlds and the program that runs them on all processors live in `antdt-sim`; it is built with optimisation here.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Seeds in `cargo xtask verify`.
const SEEDS: &str = "5000";

const CHAOS: [&str; 5] = ["--release", "-p", "antdt-sim", "--bin", "antdt-chaos"];

/// Hands the arguments over.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(["run", "--quiet"]).args(CHAOS).arg("--").args(arguments).current_dir(root);
    let status = command.status().context("cannot start cargo")?;
    if !status.success() {
        bail!("the simulation failed: {status}");
    }
    Ok(())
}

/// What `verify` runs. Returns how many seeds a second were run.
pub(crate) fn quietly(root: &Path) -> Result<String> {
    let mut build = Command::new("cargo");
    shell::run_quietly(build.arg("build").args(CHAOS).current_dir(root))?;
    let mut command = Command::new("cargo");
    command.args(["run", "--quiet"]).args(CHAOS).args(["--", "--seeds", SEEDS]).current_dir(root);
    Ok(shell::run_quietly(&mut command)?.trim().to_owned())
}
