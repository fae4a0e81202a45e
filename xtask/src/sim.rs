//! `cargo xtask sim`: random worlds under all invariants.
//!
//! The worlds and the program that runs them on all processors live in `antdt-sim`; it is built with optimisation here, but
//! for `verify`. What it would refuse is refused before the build, by its own code.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Error, Result, bail};

use crate::shell;

#[path = "../../antdt-sim/src/bin/antdt-sim-chaos/arguments.rs"]
mod arguments;

/// Seeds in `cargo xtask verify`: enough that every fault and every ending must occur.
const SEEDS: &str = "5000";

/// Seeds in `cargo xtask verify --deep`.
const SEEDS_DEEP: &str = "50000";

/// Hands the arguments over, if they can be understood.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    arguments::parse(arguments).map_err(Error::msg)?;
    let mut command = Command::new("cargo");
    command
        .args(["run", "--quiet", "--release", "-p", "antdt-sim", "--bin", "antdt-sim-chaos", "--"])
        .args(arguments)
        .current_dir(root);
    let status = command.status().context("cannot start cargo")?;
    if !status.success() {
        bail!("the simulation failed: {status}");
    }
    Ok(())
}

/// What `verify` runs, as its tests are built: nothing more has to be, and a sum that overflows is found. Says what went
/// wrong in how many worlds, how they ended, and how many seeds a second were run.
pub(crate) fn quietly(root: &Path, features: &[&str], deep: bool) -> Result<String> {
    let mut build = Command::new("cargo");
    build.args(["build", "--workspace", "--bins", "--tests"]).args(features).current_dir(root);
    shell::run_quietly(&mut build)?;
    let mut chaos = Command::new(shell::target_dir(root)?.join("debug/antdt-sim-chaos"));
    let seeds = if deep { SEEDS_DEEP } else { SEEDS };
    let said = shell::run_quietly(chaos.args(["--seeds", seeds]))?.out;
    Ok(said.trim().replace('\n', "\n  "))
}
