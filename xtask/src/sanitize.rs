//! `cargo xtask sanitize`: the code that reads and writes memory by hand, under AddressSanitizer.
//!
//! Kernels and shared memory are the only places where a wrong length or a late unmapping would go unnoticed. Their tests
//! are built once more with every access checked, in our crates: what others wrote is what the other tests are linked to.
//! The compiler of ours is started by `xtask/sanitized.sh`, so that cargo keeps both kinds of products apart.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;
use crate::verify::Done;

const CRATE: &str = "antdt-collective";

/// Stands in for the compiler.
const COMPILER: &str = "xtask/sanitized.sh";

/// What the sanitizer says before the first test.
const WATCHED: &str = "AddressSanitizer Init done";

/// The modules with `unsafe` in them, and what hands memory to them.
const TESTS: [&str; 6] = [
    "kernel::",
    "handover::",
    "runtime::region",
    "runtime::transport::",
    "runtime::communicator::pair",
    "runtime::communicator::lending",
];

/// Where the sanitizer exists, of what the project runs on.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Runs these tests and says how many there were, or why there were none.
pub(crate) fn quietly(root: &Path) -> Result<Done> {
    let host = host()?;
    if !TARGETS.contains(&host.as_str()) {
        return Ok(Done::Skipped(format!("there is no AddressSanitizer for {host}")));
    }
    let mut tests = Command::new("cargo");
    tests.args(["test", "-p", CRATE, "--features", "testing", "--lib", "--"]).args(TESTS);
    tests.env("RUSTC_WORKSPACE_WRAPPER", root.join(COMPILER));
    // Not leaks: the scheduler of loom leaves stacks behind, and looking for them takes rights that containers withhold.
    // And it says that it is there: what is built without it must not pass for clean.
    tests.env("ASAN_OPTIONS", "detect_leaks=0:verbosity=1:log_path=stdout");
    let said = shell::run_quietly(tests.current_dir(root))?.out;
    passed(&said).map(|passed| Done::Ran(format!("{passed} tests under AddressSanitizer")))
}

/// What cargo builds for unless told otherwise.
pub(crate) fn host() -> Result<String> {
    let said = shell::read(Command::new("rustc").arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV names no host")
}

// How many tests passed. That a filter matches nothing, or that nothing is watched, must not pass for success.
fn passed(said: &str) -> Result<u64> {
    if !said.contains(WATCHED) {
        bail!("the tests ran without AddressSanitizer: cargo did not start {COMPILER}");
    }
    let line = said.lines().find_map(|line| line.strip_prefix("test result: ok. "));
    let passed = line.and_then(|line| line.split(' ').next()).and_then(|count| count.parse().ok());
    match passed {
        None => bail!("the tests do not say how many passed:\n{said}"),
        Some(0) => bail!("none of {} is the name of a test any more", TESTS.join(", ")),
        Some(passed) => Ok(passed),
    }
}

#[cfg(test)]
mod tests {
    use super::passed;

    #[test]
    fn a_run_of_nothing_is_no_success() {
        let ran = |said: &str| passed(&format!("==1==AddressSanitizer Init done\nrunning\n{said}"));
        assert_eq!(ran("test result: ok. 2 passed; 0 failed").unwrap(), 2);
        assert!(ran("test result: ok. 0 passed; 0 failed").is_err());
        assert!(ran("").is_err());
        assert!(passed("test result: ok. 2 passed; 0 failed").is_err());
    }
}
