//! `cargo xtask verify` and `cargo xtask fix`.

use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::{codegen, mutants, sanitize, shell, sim, tidy};

/// The crates that must compute without a runtime.
pub(crate) const PURE: [&str; 10] = [
    "antdt-core",
    "antdt-shard",
    "antdt-monitor",
    "antdt-controller",
    "antdt-agent",
    "antdt-collective",
    "antdt-groups",
    "antdt-model",
    "antdt-job",
    "antdt-sim",
];

/// Everything is checked with the command line built in, and what is optional and needs no hardware.
const FEATURES: [&str; 2] = ["--features", "antdt/cli,antdt-shard/object-store"];

/// Runs every check; stops at the first that fails. Writes nothing but build products.
pub(crate) fn verify(root: &Path) -> Result<()> {
    let began = Instant::now();
    cargo(root, "fmt", &["fmt", "--all", "--check"], &[])?;
    step("generated code", "cargo xtask codegen", || codegen::run(root, true))?;
    step("tidy", "cargo xtask tidy", || tidy::run(root))?;
    let clippy =
        [&["clippy", "--workspace", "--all-targets"], &FEATURES[..], &["--", "-D", "warnings"]].concat();
    cargo(root, "clippy", &clippy, &[])?;
    for name in PURE {
        let pure = ["clippy", "-p", name, "--no-default-features", "--", "-D", "warnings"];
        cargo(root, &format!("pure {name}"), &pure, &[])?;
    }
    // Built in a step of its own, so that the next one shows what the tests themselves take.
    let nextest =
        Command::new("cargo").args(["nextest", "--version"]).output().is_ok_and(|o| o.status.success());
    let runner: &[&str] = if nextest { &["nextest", "run"] } else { &["test", "--lib", "--bins", "--tests"] };
    cargo(root, "build tests", &[runner, &["--workspace", "--no-run"], &FEATURES].concat(), &[])?;
    cargo(root, "tests", &[runner, &["--workspace"], &FEATURES].concat(), &[])?;
    cargo(root, "doc tests", &[&["test", "--doc", "--workspace"], &FEATURES[..]].concat(), &[])?;
    // With the examples come the features of what only tests need. Without these, most of what others wrote, which clippy
    // has checked with them, would be checked again.
    let docs =
        [&["doc", "--workspace", "--no-deps", "--lib", "--bins", "--examples"], &FEATURES[..]].concat();
    cargo(root, "docs", &docs, &[("RUSTDOCFLAGS", "-D warnings")])?;
    let chaos = "cargo run -p antdt-sim --bin antdt-chaos -- --seeds 5000";
    step_says("chaos", chaos, || Ok(format!("  {}", sim::quietly(root, &FEATURES)?)))?;
    step_says("sanitizer", "cargo xtask sanitize", || Ok(format!("  {}", sanitize::quietly(root)?)))?;
    step_says("mutants", "cargo xtask mutants", || Ok(format!("  {}", mutants::quietly(root)?)))?;
    println!("verified in {:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Writes what can be written by a tool.
pub(crate) fn fix(root: &Path) -> Result<()> {
    codegen::run(root, false)?;
    cargo(root, "fmt", &["fmt", "--all"], &[])
}

/// One line of progress around a check.
fn step(name: &str, repeat: &str, check: impl FnOnce() -> Result<()>) -> Result<()> {
    step_says(name, repeat, || check().map(|()| String::new()))
}

/// A [`step`] that has something to say when it is done.
fn step_says(name: &str, repeat: &str, check: impl FnOnce() -> Result<String>) -> Result<()> {
    print!("{name:<24}");
    // Progress only; what matters goes through the result.
    let _ = io::stdout().flush();
    let began = Instant::now();
    match check() {
        Ok(said) => {
            println!(" ok {:>7.1} s{said}", began.elapsed().as_secs_f64());
            Ok(())
        }
        Err(error) => {
            println!(" FAILED");
            bail!("{error:#}\nrepeat with: {repeat}")
        }
    }
}

/// Runs cargo; its output is shown only if it fails.
fn cargo(root: &Path, name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Result<()> {
    let mut repeat: Vec<String> =
        variables.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    repeat.push(format!("cargo {}", arguments.join(" ")));
    step(name, &repeat.join(" "), || {
        let mut command = Command::new("cargo");
        command.args(arguments).envs(variables.iter().copied()).current_dir(root);
        shell::run_quietly(&mut command).map(drop)
    })
}
