//! The tests of a copy: built once, run once for each mutant.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::copy::Copy;
use super::list::List;
use super::plant;

/// The longest that a suite may take without a mutant.
pub(super) const SOUND_MAX: Duration = Duration::from_secs(300);

/// How long a suite may take with a mutant, if it takes `sound` without: several run at a time, and a failure is made
/// smaller before it is shown.
pub(super) fn limit(sound: Duration) -> Duration {
    sound * 5 + Duration::from_secs(20)
}

/// A built test binary and how to run it.
#[derive(Debug)]
pub(super) struct Suite {
    binary: PathBuf,
    runs: Vec<Vec<String>>,
    folder: PathBuf,
}

/// What became of a run.
#[derive(Debug)]
pub(super) enum SuiteResult {
    /// No test failed.
    Passed(Duration),
    /// The first test that failed, or what else ended the run.
    Caught { by: String, time: Duration },
}

impl fmt::Display for SuiteResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(_) => f.write_str("passed"),
            Self::Caught { by, .. } => f.write_str(by),
        }
    }
}

/// Builds the suites of all lists, each under the folder of its crate and its name.
pub(super) fn build(copy: &Copy, lists: &[List]) -> Result<BTreeMap<(String, String), Suite>> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--no-default-features", "--no-run", "--message-format", "json-render-diagnostics"]);
    for (package, opt_level) in &copy.packages {
        cargo.arg("--config").arg(format!("profile.dev.package.{package}.opt-level={opt_level}"));
    }
    for (list, package) in lists.iter().zip(&copy.tested) {
        cargo.args(["-p", package]);
        for feature in &list.features {
            cargo.args(["--features", &format!("{package}/{feature}")]);
        }
    }
    // Several suites may be parts of one binary.
    let suites = lists.iter().flat_map(|list| list.suites.values());
    let targets: BTreeSet<&str> = suites.map(|tests| tests.target.as_str()).collect();
    for target in targets {
        match target {
            "lib" => cargo.arg("--lib"),
            name => cargo.args(["--test", name]),
        };
    }
    cargo.env("CARGO_TARGET_DIR", &copy.target).current_dir(&copy.root);
    let output = cargo.output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!(
            "the copy with the mutants does not build, in {}:\n{}",
            copy.root.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let mut binaries = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Value = serde_json::from_str(line).context("cargo does not speak JSON")?;
        if let (Some(binary), Some(manifest)) =
            (message["executable"].as_str(), message["manifest_path"].as_str())
        {
            let lib = message["target"]["kind"].as_array().is_some_and(|k| k.iter().any(|k| k == "lib"));
            let name = if lib { "lib" } else { message["target"]["name"].as_str().unwrap_or_default() };
            binaries.insert((PathBuf::from(manifest), name.to_owned()), PathBuf::from(binary));
        }
    }
    let mut suites = BTreeMap::new();
    for list in lists {
        let folder = copy.folder(&list.folder);
        for (name, tests) in &list.suites {
            let binary = binaries.get(&(folder.join("Cargo.toml"), tests.target.clone()));
            let binary =
                binary.with_context(|| format!("cargo built no {} of {}", tests.target, list.folder))?;
            let suite = Suite { binary: binary.clone(), runs: tests.runs.clone(), folder: folder.clone() };
            suites.insert((list.folder.clone(), name.clone()), suite);
        }
    }
    Ok(suites)
}

impl Suite {
    /// Runs the tests until the first that fails, for at most `limit`.
    pub(super) fn run(&self, mutant: Option<u32>, limit: Duration) -> Result<SuiteResult> {
        let began = Instant::now();
        for arguments in &self.runs {
            if let Some(by) = self.run_once(arguments, mutant, began + limit)? {
                return Ok(SuiteResult::Caught { by, time: began.elapsed() });
            }
        }
        Ok(SuiteResult::Passed(began.elapsed()))
    }

    /// Starts the binary once. What caught the mutant, if anything did.
    fn run_once(
        &self,
        arguments: &[String],
        mutant: Option<u32>,
        deadline: Instant,
    ) -> Result<Option<String>> {
        let mut command = Command::new(&self.binary);
        // One thread, so that the tests come in a fixed order and several mutants share the machine.
        command.arg("--test-threads=1").args(arguments).current_dir(&self.folder);
        command.env_remove(plant::VARIABLE).env_remove("RUST_BACKTRACE");
        command.envs(mutant.map(|number| (plant::VARIABLE, number.to_string())));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {}", self.binary.display()))?;
        let mut group = ProcessTree(child);
        let stdout = group.0.stdout.take().context("a test has no output")?;
        let (lines, said) = mpsc::sync_channel(64);
        // It ends with the process, which ends with this function.
        thread::spawn(move || follow(stdout, &lines));
        let mut last = String::from("the start");
        loop {
            match said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Said::Begins(test)) => last = test,
                Ok(Said::Fails(test)) => return Ok(Some(test)),
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(Some(format!("{last}: not done in time"))),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let status = group.0.wait().context("a test cannot be awaited")?;
                    return Ok((!status.success()).then(|| format!("{last}: {status}")));
                }
            }
        }
    }
}

/// A process and all that it started; they end with this value.
struct ProcessTree(Child);

impl Drop for ProcessTree {
    fn drop(&mut self) {
        // Until it is waited for, its number belongs to nobody else. One that has ended already needs no signal.
        if let (Ok(None), Ok(id)) = (self.0.try_wait(), i32::try_from(self.0.id()))
            && let Some(id) = Pid::from_raw(id)
        {
            let _ = kill_process_group(id, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// What a test binary says about one test.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Begins(String),
    Fails(String),
}

/// Passes on what the tests say, as they say it: `test NAME ... ` before a test, and how it went behind that.
fn follow(stdout: impl Read, said: &mpsc::SyncSender<Said>) {
    let mut line = Vec::new();
    for byte in BufReader::new(stdout).bytes() {
        let Ok(byte) = byte else { return };
        let said = match (byte, test_of(&line)) {
            (b' ', Some((test, "..."))) => said.send(Said::Begins(test.to_owned())),
            (b'\n', Some((test, "... FAILED"))) => said.send(Said::Fails(test.to_owned())),
            _ => Ok(()),
        };
        if said.is_err() {
            return; // Nobody wants to know more.
        }
        line.push(byte);
        if byte == b'\n' {
            line.clear();
        }
    }
}

/// The test that a line is about, and what it says of it so far.
fn test_of(line: &[u8]) -> Option<(&str, &str)> {
    let (test, rest) = std::str::from_utf8(line).ok()?.strip_prefix("test ")?.split_once(' ')?;
    Some((test, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_that_begins_and_the_test_that_fails_are_heard_of() {
        let output = b"\nrunning 2 tests\ntest a::b ... ok\ntest c - should panic ... ok\ntest d ... FAILED\ntest e ... ";
        let (lines, said) = mpsc::sync_channel(64);
        follow(&output[..], &lines);
        drop(lines);
        let name = |name: &str| name.to_owned();
        let heard: Vec<Said> = said.iter().collect();
        assert_eq!(
            heard,
            [
                Said::Begins(name("a::b")),
                Said::Begins(name("d")),
                Said::Fails(name("d")),
                Said::Begins(name("e"))
            ]
        );
    }
}
