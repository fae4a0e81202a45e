//! The tests of a copy: built once, run once for each mutant.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, mpsc};
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
fn limit(sound: Duration) -> Duration {
    sound * 5 + Duration::from_secs(20)
}

/// A built test binary and how to run it.
#[derive(Debug)]
pub(super) struct Suite {
    /// Its own name and that of its crate.
    name: String,
    binary: PathBuf,
    runs: Vec<Vec<String>>,
    folder: PathBuf,
    /// How long it takes without a mutant, once that was tried.
    sound: Mutex<Option<Duration>>,
}

/// What became of a run.
#[derive(Debug)]
pub(super) enum SuiteResult {
    /// No test failed.
    Passed(Duration),
    /// The first test that failed, or what else ended the run.
    Caught { by: String, time: Duration },
}

/// Builds the suites of a list, by their names.
pub(super) fn build(copy: &Copy, list: &List) -> Result<BTreeMap<String, Suite>> {
    let package = copy.packages.first().context("a copy has a crate")?;
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--no-default-features", "--no-run", "--message-format", "json-render-diagnostics"]);
    for package in &copy.packages {
        cargo.arg("--config").arg(format!("profile.dev.package.{package}.opt-level={}", list.opt_level));
    }
    cargo.args(["-p", package]);
    for feature in &list.features {
        cargo.args(["--features", &format!("{package}/{feature}")]);
    }
    // Several suites may be parts of one binary.
    let targets: BTreeSet<&str> = list.suites.values().map(|tests| tests.target.as_str()).collect();
    for target in targets {
        match target {
            "lib" => cargo.arg("--lib"),
            name => cargo.args(["--test", name]),
        };
    }
    cargo.env("CARGO_TARGET_DIR", &copy.target).current_dir(&copy.root);
    let log = copy.root.join("build.log");
    cargo.stderr(File::create(&log).with_context(|| format!("cannot create {}", log.display()))?);
    let Output { status, stdout, .. } =
        cargo.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?.wait_with_output()?;
    if !status.success() {
        let said = fs::read_to_string(&log).unwrap_or_default();
        bail!("the copy with the mutants does not build, in {}:\n{said}", copy.root.display());
    }
    let mut binaries = BTreeMap::new();
    for line in String::from_utf8_lossy(&stdout).lines() {
        let message: Value = serde_json::from_str(line).context("cargo does not speak JSON")?;
        if let (Some(binary), Some(manifest)) =
            (message["executable"].as_str(), message["manifest_path"].as_str())
        {
            let lib = message["target"]["kind"].as_array().is_some_and(|k| k.iter().any(|k| k == "lib"));
            let name = if lib { "lib" } else { message["target"]["name"].as_str().unwrap_or_default() };
            binaries.insert((PathBuf::from(manifest), name.to_owned()), PathBuf::from(binary));
        }
    }
    let folder = copy.folder(&list.folder);
    let mut suites = BTreeMap::new();
    for (name, tests) in &list.suites {
        let binary = binaries.get(&(folder.join("Cargo.toml"), tests.target.clone()));
        let binary = binary.with_context(|| format!("cargo built no {} of {}", tests.target, list.folder))?;
        let suite = Suite {
            name: format!("{name} of {}", list.folder),
            binary: binary.clone(),
            runs: tests.runs.clone(),
            folder: folder.clone(),
            sound: Mutex::new(None),
        };
        suites.insert(name.clone(), suite);
    }
    Ok(suites)
}

impl Suite {
    /// Runs the tests with a mutant until the first that fails. The first run of all is one without a mutant; it is an error if that
    /// one fails.
    pub(super) fn run(&self, mutant: u32, say: &(impl Fn(&str) + Sync)) -> Result<SuiteResult> {
        let sound = self.sound(say)?;
        self.run_all(Some(mutant), limit(sound))
    }

    /// How long the tests take without a mutant.
    fn sound(&self, say: &(impl Fn(&str) + Sync)) -> Result<Duration> {
        // Another thread that wants to know waits here.
        let mut sound = self.sound.lock().expect("nothing panics while it has the lock");
        if let Some(time) = *sound {
            return Ok(time);
        }
        match self.run_all(None, SOUND_MAX)? {
            SuiteResult::Passed(time) => {
                say(&format!("suite {} passes in {:.1} s without a mutant", self.name, time.as_secs_f64()));
                Ok(*sound.insert(time))
            }
            SuiteResult::Caught { by, .. } => bail!("the suite {} fails without a mutant: {by}", self.name),
        }
    }

    fn run_all(&self, mutant: Option<u32>, limit: Duration) -> Result<SuiteResult> {
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
        // Until it is waited for, its number belongs to no other process. One that has ended already needs no signal.
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
            return; // No receiver wants to know more.
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

    /// A suite whose tests are a script; it is given the mutant in the environment.
    fn scripted(script: &str) -> (tempfile::TempDir, Suite) {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("tests");
        fs::write(&binary, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let suite = Suite {
            name: "unit of a".to_owned(),
            binary,
            runs: vec![Vec::new()],
            folder: folder.path().to_path_buf(),
            sound: Mutex::new(None),
        };
        (folder, suite)
    }

    #[test]
    fn a_suite_runs_once_without_a_mutant_and_then_with_each() {
        let say = |_: &str| ();
        let fails = "printf 'test a ... '; if [ -n \"$ANTDT_PLANTED\" ]; then echo FAILED; exit 1; fi; echo ok; echo ran >> log";
        let (folder, suite) = scripted(fails);
        for _ in 0..2 {
            match suite.run(1, &say).unwrap() {
                SuiteResult::Caught { by, .. } => assert_eq!(by, "a"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(fs::read_to_string(folder.path().join("log")).unwrap(), "ran\n");
        let (_folder, passes) = scripted("echo 'test a ... ok'");
        assert!(matches!(passes.run(1, &say).unwrap(), SuiteResult::Passed(_)));
        let (_folder, unsound) = scripted("echo 'test a ... FAILED'");
        let error = unsound.run(1, &say).unwrap_err().to_string();
        assert_eq!(error, "the suite unit of a fails without a mutant: a");
    }

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
