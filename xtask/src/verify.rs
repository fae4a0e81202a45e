//! `cargo xtask verify` and `cargo xtask fix`.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::features::{self, Features};
use crate::{
    bench, codegen, dependencies, flaky, fuzz, mutants, packages, python, rdma_vm, sanitize, shell, sim,
    skipped, tidy,
};

/// The crates that must compute without a runtime.
pub(crate) const PURE: [&str; 16] = [
    "antdt-core",
    "antdt-shard",
    "antdt-monitor",
    "antdt-controller",
    "antdt-launch",
    "antdt-tls",
    "antdt-agent",
    "antdt-collective",
    "antdt-gpu",
    "antdt-rdma",
    "antdt-cost",
    "antdt-groups",
    "antdt-model",
    "antdt-checkpoint",
    "antdt-job",
    "antdt-sim",
];

/// Runs every check; stops at the first that fails. Writes nothing but build products.
pub(crate) fn verify(root: &Path, flags: &[&str]) -> Result<()> {
    if let Some(flag) = flags.iter().find(|flag| !["--strict", "--deep", "--rdma"].contains(flag)) {
        bail!("`{flag}` is not a flag of verify; use `cargo xtask verify [--strict] [--deep] [--rdma]`");
    }
    let [strict, deep, rdma] = ["--strict", "--deep", "--rdma"].map(|flag| flags.contains(&flag));
    let chosen = Features::here();
    let (features, of_checks) = (&chosen.flags()[..], &chosen.flags_of_checks()[..]);
    let began = Instant::now();
    cargo(root, "fmt", &["fmt", "--all", "--check"], &[])?;
    step("generated code", "cargo xtask codegen", || codegen::run(root, true))?;
    step("tidy", "cargo xtask tidy", || tidy::run(root))?;
    let clippy = [&["clippy", "--workspace", "--all-targets"], of_checks, &["--", "-D", "warnings"]].concat();
    cargo(root, "clippy", &clippy, &[])?;
    // Together, so that what they share is checked once; `--deep` checks each alone.
    without_runtime(root, &PURE)?;
    // What programs and the Python package depend on.
    let library = ["clippy", "-p", "antdt", "--lib", "--no-default-features", "--", "-D", "warnings"];
    cargo(root, "library alone", &library, &[])?;
    let mut skipped = tests(root, features, Thorough { deep, strict })?;
    for (name, why) in &chosen.left_out {
        step_says(name, "cargo xtask verify", || Ok(Done::Skipped(format!("SKIPPED: {why}"))))?;
        skipped.push(skipped::Skipped::step(name, why));
    }
    let smoke = "target/debug/antdt-lab survive --smoke --antdt target/debug/antdt";
    step_says("survive", smoke, || {
        let bench::Shown { rows, incomplete } = bench::smoke(root, features)?;
        let Some(why) = incomplete else { return Ok(Done::Ran(rows)) };
        skipped.push(skipped::Skipped::step("survive", &why));
        Ok(Done::Skipped(format!("INCOMPLETE: {why}{rows}")))
    })?;
    step_says("python", "cargo xtask python", || {
        let done = python::test(root, features)?;
        if let Done::Skipped(why) | Done::RanInPart(_, why) = &done {
            skipped.push(skipped::Skipped::step("python", why));
        }
        Ok(done)
    })?;
    cargo(root, "doc tests", &[&["test", "--doc", "--workspace"], features].concat(), &[])?;
    // With the examples come the features of what only tests need. Without these, most of what others wrote, which clippy
    // has checked with them, would be checked again.
    let docs = [&["doc", "--workspace", "--no-deps", "--lib", "--bins", "--examples"], of_checks].concat();
    cargo(root, "docs", &docs, &[("RUSTDOCFLAGS", "-D warnings")])?;
    step_says("dependencies", "cargo deny check", || {
        let done = dependencies::check(root)?;
        if let Done::Skipped(why) | Done::RanInPart(_, why) = &done {
            skipped.push(skipped::Skipped::step("dependencies", why));
        }
        Ok(done)
    })?;
    step_says("packages", "cargo package --workspace --no-verify --allow-dirty", || {
        packages::check(root).map(|count| Done::Ran(format!("{count} crates are ready for a registry")))
    })?;
    let chaos = "cargo run -p antdt-sim --bin antdt-sim-chaos -- --seeds 5000";
    step_says("chaos", chaos, || Ok(Done::Ran(sim::quietly(root, features, deep)?)))?;
    if rdma {
        step_says("rdma in a guest", "cargo xtask rdma-vm --quick", || {
            Ok(match rdma_vm::quietly(root)? {
                ran @ rdma_vm::Outcome::Passed(..) => Done::Ran(ran.line()),
                rdma_vm::Outcome::Skipped(why) => {
                    skipped.push(skipped::Skipped::step("rdma in a guest", &why));
                    Done::Skipped(rdma_vm::Outcome::Skipped(why).line())
                }
            })
        })?;
    }
    if deep {
        deeply(root)?;
    }
    if strict {
        skipped::refuse(&skipped)?;
    }
    println!("verified in {:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Lints crates without their runtime halves.
fn without_runtime(root: &Path, names: &[&str]) -> Result<()> {
    let packages = names.iter().flat_map(|name| ["-p", *name]);
    let pure = ["clippy", "--no-default-features"].into_iter().chain(packages);
    let pure: Vec<&str> = pure.chain(["--", "-D", "warnings"]).collect();
    let what = if let [name] = names { format!("pure {name}") } else { "pure crates".to_owned() };
    cargo(root, &what, &pure, &[])
}

/// What is asked of the tests beyond that they pass.
#[derive(Clone, Copy)]
struct Thorough {
    /// All cases of all suites.
    deep: bool,
    /// None is skipped that could run, and none fails at first.
    strict: bool,
}

/// Builds the tests in a step of its own, so that the next one shows what the tests themselves take, and runs them. Returns those that
/// were skipped.
fn tests(root: &Path, features: &[&str], thorough: Thorough) -> Result<Vec<skipped::Skipped>> {
    let nextest =
        Command::new("cargo").args(["nextest", "--version"]).output().is_ok_and(|o| o.status.success());
    let runner: &[&str] = if nextest { &["nextest", "run"] } else { &["test", "--lib", "--bins", "--tests"] };
    // A test that was skipped says so in what it prints.
    let jobs = jobs(root)?;
    let again = if thorough.strict { &flaky::ONCE_MORE[..1] } else { &flaky::ONCE_MORE };
    let of_nextest = [again, &["--success-output", "final", "--tool-config-file", &jobs]].concat();
    let shown: &[&str] = if nextest { &of_nextest } else { &["--", "--show-output"] };
    cargo(root, "build tests", &[runner, &["--workspace", "--no-run"], features].concat(), &[])?;
    run_tests(root, &[runner, &["--workspace"], features, shown].concat(), thorough.deep)
}

/// The checks that take long.
fn deeply(root: &Path) -> Result<()> {
    for name in &PURE {
        without_runtime(root, &[*name])?;
    }
    for (name, stores) in features::STORES {
        let alone = ["check", "-p", name, "--features", stores];
        cargo(root, &format!("{name} stores"), &alone, &[])?;
    }
    // Those of its submission are in `antdt`, with all that it has besides.
    let pods = ["test", "-p", "antdt-launch", "--lib", "--features", "kubernetes,testing"];
    cargo(root, "pods", &pods, &[])?;
    step_says("sanitizer", "cargo xtask sanitize", || sanitize::quietly(root))?;
    step_says("fuzz", "cargo xtask fuzz", || fuzz::quietly(root))?;
    step_says("mutants", "cargo xtask mutants", || mutants::quietly(root))
}

/// Tests that run at the same time for each core: those of whole jobs, which wait for emulated computing more than they compute.
/// One of any other kind counts as three (`.config/nextest.toml`).
const TESTS_A_CORE: usize = 5;

/// Which tests are of whole jobs, and how many of them run at the same time on two cores: there is room for one of another kind
/// beside them, so that those are not left for the end, when nothing runs while they wait.
const JOBS: (&str, usize) = ("package(antdt) | package(antdt-chaos)", 7);

/// Name of the variable by which a caller has another number of tests run at the same time.
const TEST_THREADS: &str = "NEXTEST_TEST_THREADS";

/// Name of the variable by which the suite of transports tries one in so many of its cases, and what it is unless `--deep` or the
/// caller says otherwise: all cases of all transports take a quarter of the processor time of all tests.
const CONFORMANCE_DIVISOR: (&str, &str) = ("CONFORMANCE_DIVISOR", "4");

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Writes the settings that bound how many [`JOBS`] run at the same time on this machine; returns how nextest is told of them.
fn jobs(root: &Path) -> Result<String> {
    const GROUP: &str = "@tool:xtask:jobs";
    let (filter, on_two_cores) = JOBS;
    let most = (on_two_cores * cores()).div_ceil(2);
    let file = shell::target_dir(root)?.join("nextest-jobs.toml");
    let text = format!(
        "[test-groups.'{GROUP}']\nmax-threads = {most}\n\n\
         [[profile.default.overrides]]\nfilter = '{filter}'\ntest-group = '{GROUP}'\n"
    );
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(format!("xtask:{}", file.display()))
}

/// Runs tests; those that say that they were skipped are listed, and returned, and those that failed at first are listed.
fn run_tests(root: &Path, arguments: &[&str], deep: bool) -> Result<Vec<skipped::Skipped>> {
    let mut skipped = Vec::new();
    step_says("tests", &format!("cargo {}", arguments.join(" ")), || {
        let mut command = Command::new("cargo");
        if std::env::var_os(TEST_THREADS).is_none() {
            command.env(TEST_THREADS, (TESTS_A_CORE * cores()).to_string());
        }
        let (divisor, shallow) = CONFORMANCE_DIVISOR;
        if !deep && std::env::var_os(divisor).is_none() {
            command.env(divisor, shallow);
        }
        let said = shell::run_quietly(command.args(arguments).current_dir(root))?;
        let printed = said.out + &said.err;
        skipped = skipped::find(&printed);
        Ok(Done::Ran(skipped::list(&skipped) + &flaky::list(&flaky::find(&printed))))
    })?;
    Ok(skipped)
}

/// Writes what can be written by a tool.
pub(crate) fn fix(root: &Path) -> Result<()> {
    codegen::run(root, false)?;
    cargo(root, "fmt", &["fmt", "--all"], &[])
}

/// How a step ended that did not fail, and what there is to say about it.
pub(crate) enum Done {
    /// It ran.
    Ran(String),
    /// A part of it ran, and the rest was skipped for this reason.
    RanInPart(String, String),
    /// It could not run here: that must not look like a pass.
    Skipped(String),
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mark, said) = match self {
            Self::Ran(said) => ("ok", said),
            Self::RanInPart(said, why) => return write!(f, "ok {said}; SKIPPED: {why}"),
            Self::Skipped(said) => ("--", said),
        };
        f.write_str(mark)?;
        if said.is_empty() { Ok(()) } else { write!(f, " {said}") }
    }
}

/// One line of progress around a check.
fn step(name: &str, repeat: &str, check: impl FnOnce() -> Result<()>) -> Result<()> {
    step_says(name, repeat, || check().map(|()| Done::Ran(String::new())))
}

/// A [`step`] that has something to say when it is done.
fn step_says(name: &str, repeat: &str, check: impl FnOnce() -> Result<Done>) -> Result<()> {
    print!("{name:<24}");
    // Progress only; what matters goes through the result.
    let _ = io::stdout().flush();
    let began = Instant::now();
    match check() {
        Ok(done) => {
            println!(" {:>7.1} s {done}", began.elapsed().as_secs_f64());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_did_not_run_does_not_look_like_a_pass() {
        assert_eq!(Done::Ran(String::new()).to_string(), "ok");
        assert_eq!(Done::Ran("55 tests".to_owned()).to_string(), "ok 55 tests");
        assert_eq!(
            Done::RanInPart("6 tests".to_owned(), "2 tests".to_owned()).to_string(),
            "ok 6 tests; SKIPPED: 2 tests"
        );
        assert_eq!(Done::Skipped("no QEMU".to_owned()).to_string(), "-- no QEMU");
    }
}
