//! `cargo xtask sanitize`: the code that reads and writes memory by hand, under AddressSanitizer.
//!
//! Kernels and shared memory are the only places where a wrong length or a late unmapping would go unnoticed. Their tests
//! are built once more with every access checked. The sanitizer is part of the compiler, but a stable one only offers it
//! to who asks as the compiler's own build does, by `RUSTC_BOOTSTRAP`; products lie in a folder of their own, since both
//! would otherwise undo each other's.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

const CRATE: &str = "antdt-collective";

/// The modules with `unsafe` in them, and what hands memory to them.
const TESTS: [&str; 5] =
    ["kernel::", "handover::", "runtime::region", "runtime::transport::", "runtime::communicator::pair"];

/// Where the sanitizer exists, of what the project runs on.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Runs these tests and says how many there were, or why there were none.
pub(crate) fn quietly(root: &Path) -> Result<String> {
    let Some(target) = target()? else {
        return Ok("skipped: there is no AddressSanitizer for this target".to_owned());
    };
    let mut tests = Command::new("cargo");
    tests.args(["test", "-p", CRATE, "--all-features", "--lib", "--target", &target, "--"]).args(TESTS);
    tests.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    // Not leaks: the scheduler of loom leaves stacks behind, and looking for them takes rights that containers withhold.
    tests.env("ASAN_OPTIONS", "detect_leaks=0");
    tests.env("CARGO_TARGET_DIR", shell::target_dir(root)?.join("sanitized"));
    let said = shell::run_quietly(tests.current_dir(root))?;
    passed(&said).map(|passed| format!("{passed} tests under AddressSanitizer"))
}

fn target() -> Result<Option<String>> {
    let said = shell::read(Command::new("rustc").arg("-vV"))?;
    let host =
        said.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
    Ok(TARGETS.contains(&host).then(|| host.to_owned()))
}

// How many tests passed; that a filter matches nothing must not pass for success.
fn passed(said: &str) -> Result<u64> {
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
        assert_eq!(passed("running 2 tests\ntest result: ok. 2 passed; 0 failed").unwrap(), 2);
        assert!(passed("test result: ok. 0 passed; 0 failed").is_err());
        assert!(passed("").is_err());
    }
}
