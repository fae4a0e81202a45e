//! Two hosts that share a folder, of which each begins or resumes the same job: network namespaces with addresses and host names of
//! their own.
//!
//! What was trained is counted apart from the ledger, by the model of `examples/counting.rs`. Namespaces need root, `ip` and
//! `unshare`; without them the tests say that they are skipped.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failure here is the test's")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use antdt::checkpoint::Folder;
use antdt::report::Report;
use antdt::run_dir::MasterFile;

use network::Network;

#[allow(dead_code, reason = "shared with a test that also cuts the network")]
#[path = "../../antdt-collective/tests/netns/network.rs"]
mod network;

/// Bound on any one wait here; all take seconds.
const LIMIT: Duration = Duration::from_secs(120);

const SAMPLES: u64 = 1_200;
const EPOCHS: u64 = 2;

/// A process, which is killed with all others of its host when the test ends.
struct OnHost(Child, u32);

impl Drop for OnHost {
    fn drop(&mut self) {
        // Its nodes outlive a master that is killed.
        kill_host(self.1);
        let _ = self.0.wait();
    }
}

impl OnHost {
    /// Starts the counting program on a host. With `seen` this host sees the first folder at the path of the second one, a run
    /// directory, and in it the checkpoints that are there.
    fn start(host: u32, seen: Option<(&Path, &Path)>, words: &[&str]) -> Self {
        let counting = PathBuf::from(env!("CARGO_BIN_EXE_antdt")).parent().unwrap().join("examples/counting");
        let script = "echo \"$1\" > /proc/sys/kernel/hostname
            [ -z \"$2\" ] || { mount --bind \"$3/checkpoints\" \"$2/checkpoints\" && mount --rbind \"$2\" \"$3\"; } || exit 99
            shift 3
            exec \"$@\"";
        let (seen, run) = seen.map_or((Path::new(""), Path::new("")), |seen| seen);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &Network::name(host)]);
        command.args(["unshare", "--uts", "--mount", "sh", "-c", script, "sh", &name(host)]);
        command.arg(seen).arg(run).arg(counting).args(words);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANTDT_")) {
            command.env_remove(name);
        }
        command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self(command.spawn().unwrap(), host)
    }

    /// Waits for its end: its exit code, and what it said on standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let status = wait_for("the end of a process", || self.0.try_wait().unwrap());
        (status.code(), std::io::read_to_string(self.0.stderr.take().unwrap()).unwrap())
    }
}

fn name(host: u32) -> String {
    format!("host-{host}")
}

/// A host dies with all of its processes.
fn kill_host(host: u32) {
    let pids = || {
        let output = Command::new("ip").args(["netns", "pids", &Network::name(host)]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    wait_for("the end of a host", || {
        let left = pids();
        for pid in left.split_whitespace() {
            // Fails if it has just ended.
            let _ = Command::new("kill").args(["-KILL", pid]).stderr(Stdio::null()).status().unwrap();
        }
        left.is_empty().then_some(())
    });
}

fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// The identity of the job's master.
fn master(run: &Path) -> Option<MasterFile> {
    serde_json::from_str(&fs::read_to_string(run.join("master.json")).ok()?).ok()
}

fn has_checkpoint(run: &Path) -> Option<()> {
    Folder::open(run.join("checkpoints")).ok()?.newest().ok()?.checkpoint.map(drop)
}

/// Two hosts, or why there are none. Their names are of the process: one test has them at a time.
fn hosts() -> Option<(Network, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let unshared = Command::new("unshare").args(["--uts", "--mount", "true"]).stderr(Stdio::null()).status();
    let network = match unshared {
        Ok(status) if status.success() => Network::of(2),
        Ok(status) => Err(format!("unshare --uts --mount: {status}")),
        Err(error) => Err(format!("unshare cannot be run: {error}")),
    };
    network.map(|network| (network, alone)).map_err(|why| eprintln!("skipped: {why}")).ok()
}

/// A job on the first host, once it has a checkpoint.
fn job(report: &Path, mode: &[&str]) -> OnHost {
    let epochs = EPOCHS.to_string();
    let counting = ["run", "--workload", "counting", "--optimizer", "sums", "--global-batch-size", "24"];
    let pace = ["--policy", "none", "--emulate-speed", "200", "--checkpoint-every", "4steps", "--quiet"];
    let own = ["--report-dir", report.to_str().unwrap(), "--epochs", &epochs, "--nproc-per-node", "2"];
    let job = OnHost::start(0, None, &[&counting[..], &pace, &own, mode].concat());
    wait_for("a checkpoint", || has_checkpoint(&report.join("run")));
    job
}

/// The job ended well, and every sample is in the model once for each epoch.
fn is_exact(report: &Path, last: OnHost) {
    let (code, said) = last.end();
    assert_eq!(code, Some(0), "{said}");
    let text = fs::read_to_string(report.join("report.json")).unwrap();
    let Report { samples, .. } = serde_json::from_str(&text).unwrap();
    assert!(samples.is_exact() && samples.committed == EPOCHS * SAMPLES, "{samples:?}");
    let newest = Folder::open(report.join("run/checkpoints")).unwrap().newest().unwrap();
    for portion in newest.checkpoint.unwrap().portions() {
        assert!(portion.unwrap().dense.iter().all(|count| *count == EPOCHS as f32));
    }
}

const MODES: [&[&str]; 2] = [&["--sync", "ps-bsp", "--servers", "2"], &["--sync", "allreduce"]];

#[test]
fn a_job_that_runs_is_refused_on_another_host_and_goes_on_there_once_its_own_is_dead() {
    let Some(_hosts) = hosts() else { return };
    for mode in MODES {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("report");
        let resume = ["run", "--resume", report.to_str().unwrap(), "--quiet"];
        let first = job(&report, mode);
        let before = master(&report.join("run")).unwrap();
        assert_eq!(before.host, name(0));
        let (code, said) = OnHost::start(1, None, &resume).end();
        let taken = format!("job `{}` runs there, at {}; name another", before.job, before.address);
        assert!(code == Some(2) && said.contains(&taken) && said.trim_end().lines().count() == 1, "{said}");
        assert_eq!(master(&report.join("run")), Some(before), "it changes nothing");

        drop(first);
        let next = OnHost::start(1, None, &resume);
        wait_for("the master on the other host", || {
            master(&report.join("run")).filter(|master| master.host == name(1))
        });
        is_exact(&report, next);
    }
}

/// A file server passes the lock of a file on and that of a folder not: the run directory is another folder there, with the same files
/// and the same checkpoints.
#[test]
fn a_host_that_does_not_hear_of_the_lock_on_the_run_directory_hears_of_that_on_the_checkpoints() {
    let Some(_hosts) = hosts() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (report, seen) = (folder.path().join("report"), folder.path().join("seen"));
    let run = report.join("run");
    let first = job(&report, MODES[1]);
    fs::create_dir_all(seen.join("checkpoints")).unwrap();
    for file in ["master.json", "token", "job.journal", "head.journal"] {
        wait_for(file, || fs::copy(run.join(file), seen.join(file)).ok());
    }
    let resume = ["run", "--resume", report.to_str().unwrap(), "--quiet"];
    let (code, said) = OnHost::start(1, Some((&seen, &run)), &resume).end();
    let refused =
        format!("{}: a job that runs keeps its checkpoints there", run.join("checkpoints").display());
    assert!(code == Some(2) && said.contains(&refused), "{code:?}: {said}");
    assert!(seen.join("job.journal").exists() && seen.join("head.journal").exists(), "nothing was removed");
    is_exact(&report, first);
}
