//! `antdt-chaos` as a process: real jobs of the counting model while things go wrong.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use antdt_chaos::ChaosReport;

/// Bound on any one job here.
const LIMIT: Duration = Duration::from_secs(300);

/// The program with the counting job.
fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_antdt-chaos")).parent().unwrap().join("examples/counted")
}

/// A job of so many epochs, with steps of 100 ms, under chaos.
fn chaos(flags: &[&str], job: &[&str], dir: &Path) -> Output {
    let program = program();
    let mut command = Command::new(env!("CARGO_BIN_EXE_antdt-chaos"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANTDT_")) {
        command.env_remove(name);
    }
    let counting =
        ["--workload", "counting", "--optimizer", "sums", "--global-batch-size", "24", "--policy", "none"];
    command.args(flags).arg("--").arg(&program).arg("run").args(counting).args(job);
    command.args(["--report-dir", dir.to_str().unwrap()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap())
}

fn finish(mut child: Child) -> Output {
    let deadline = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= deadline {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("it does not end: {}", String::from_utf8_lossy(&output.stdout));
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

fn report(dir: &Path) -> ChaosReport {
    serde_json::from_str(&std::fs::read_to_string(dir.join("chaos.json")).unwrap()).unwrap()
}

/// A job that survives, whatever this machine lets go wrong.
fn survives(seed: u64, kinds: &str, job: &[&str]) -> ChaosReport {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("report");
    let flags = ["--seed", &seed.to_string(), "--faults", kinds, "--mtbf", "1s", "--for", "12s"];
    let pace = ["--emulate-speed", "80", "--epochs", "3"];
    let output = chaos(&flags, &[job, &pace].concat(), &dir);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{job:?}: {text}\n{error}");
    assert!(text.ends_with("verdict: exact\n"), "{text}");
    let report = report(&dir);
    assert!(report.counted.starts_with("by the model") && report.violations.is_empty());
    for kind in report.kinds.iter().filter(|kind| kind.skipped.is_some()) {
        println!("skipped: {}: {}", kind.kind, kind.skipped.as_ref().unwrap());
    }
    report
}

#[test]
fn a_group_of_workers_counts_every_sample_once_while_all_goes_wrong() {
    let report = survives(1, "all", &["--sync", "allreduce", "--nproc-per-node", "3"]);
    let server = report.kinds.iter().find(|kind| kind.kind.name() == "server-kill").unwrap();
    assert_eq!(server.skipped.as_deref(), Some("the job has no servers"));
    let injected: u32 = report.kinds.iter().map(|kind| kind.injected).sum();
    assert!(injected >= 3, "{:?}", report.faults);
}

#[test]
fn steps_that_do_not_wait_for_a_backup_count_every_sample_once_while_all_goes_wrong() {
    let slow = ["--straggler", "worker=1,slow=4"];
    survives(6, "all", &[&["--sync", "allreduce=1", "--nproc-per-node", "3"][..], &slow].concat());
}

#[test]
fn workers_with_servers_count_every_sample_once_while_all_goes_wrong() {
    survives(2, "all", &["--sync", "ps-bsp", "--servers", "2", "--nproc-per-node", "3"]);
}

#[test]
fn a_master_that_is_killed_is_followed_by_another_and_the_schedule_is_that_of_the_seed() {
    let job = ["--sync", "ps-bsp", "--servers", "1", "--nproc-per-node", "2"];
    let [first, second] = [(); 2].map(|()| survives(5, "master-kill,worker-kill", &job));
    assert!(first.masters > 1, "{:?}", first.faults);
    let schedule = |report: &ChaosReport| {
        let mut faults: Vec<_> =
            report.faults.iter().map(|fault| (fault.number, fault.kind, fault.due_s.to_bits())).collect();
        faults.sort_unstable();
        faults
    };
    let (first, second) = (schedule(&first), schedule(&second));
    let both = first.len().min(second.len());
    assert!(both > 0 && first[..both] == second[..both], "{first:?} {second:?}");
}

#[test]
fn a_job_that_stands_still_is_a_violation() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("report");
    // A worker that hangs after a while, and a job that does not look for hangs.
    let hangs = ["--straggler", "worker=1,slow=1e9,from=3s", "--hang-limit", "1week"];
    let job = ["--sync", "allreduce", "--nproc-per-node", "2", "--emulate-speed", "80", "--epochs", "3"];
    let flags = ["--faults", "worker-kill", "--mtbf", "1h", "--patience", "4s"];
    let output = chaos(&flags, &[&job[..], &hangs].concat(), &dir);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    let report = report(&dir);
    assert!(report.violations[0].contains("trained nothing for 4 s"), "{:?}", report.violations);
    assert_eq!(report.kinds[0].injected, 0);
}

#[test]
fn a_command_that_is_no_job_is_refused_in_one_line() {
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_antdt-chaos")).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("error: ") && error.lines().count() == 1, "{error}");
        error
    };
    let own = program();
    let own = own.to_str().unwrap();
    assert!(run(&["--faults", "flood", "--", own, "run"]).contains("`flood`"));
    assert!(run(&["--mtbf", "0s", "--", own, "run"]).contains("--mtbf"));
    assert!(run(&["--", own]).contains("antdt run"));
    assert!(run(&["--", own, "status"]).contains("run"));
    assert!(run(&["--", own, "run", "--nproc", "3"]).contains("--nproc"));
    assert!(run(&["--", own, "run", "--workload", "counting", "--resume", "x"]).contains("--resume"));
    assert!(run(&["--", "no-such-program", "run", "--workload", "counting"]).contains("no-such-program"));
}
