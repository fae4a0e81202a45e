//! The step `dependencies` of `cargo xtask verify`: licences, sources and bans of what others wrote, by `cargo deny` and `deny.toml`.
//!
//! Known holes are looked for where their database can be reached.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell;
use crate::verify::Done;

/// What is checked without a network.
const OFFLINE: [&str; 3] = ["licenses", "bans", "sources"];

/// What `cargo deny` says when it cannot fetch its database, as opposed to what is in it.
const UNREACHABLE: &str = "failed to fetch advisory database";

/// Checks the dependencies, or says why not.
pub(crate) fn check(root: &Path) -> Result<Done> {
    let installed = Command::new("cargo").args(["deny", "--version"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        return Ok(Done::Skipped("SKIPPED: no cargo-deny; cargo install --locked cargo-deny".to_owned()));
    }
    let deny = |checks: &[&str]| {
        let mut command = Command::new("cargo");
        command.args(["deny", "--color", "never", "check"]).args(checks).current_dir(root);
        command
    };
    shell::run_quietly(&mut deny(&OFFLINE))?;
    let output = deny(&["advisories"]).output()?;
    if output.status.success() {
        return Ok(Done::Ran("licences, bans, sources, advisories".to_owned()));
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !said.contains(UNREACHABLE) {
        bail!("{said}");
    }
    let why = "the database of advisories cannot be reached".to_owned();
    Ok(Done::RanInPart("licences, bans, sources".to_owned(), why))
}
