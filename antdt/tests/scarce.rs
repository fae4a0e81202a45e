//! Jobs on hosts that lack descriptors or processes, by nature or because of strangers at their ports.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use antdt::job::{DataSpec, JobSpec};
use antdt::master::{self, Programs, Seams, TrainingData};
use antdt::report::{Outcome, Report};
use antdt_core::{Holder, NodeId};
use antdt_launch::runtime::process::ProcessLauncher;
use antdt_launch::{LaunchError, LaunchStatus, Launcher, NodeSpec, Outlets};
use antdt_rt::CancellationToken;

use waiting::wait_for;

mod waiting;

/// Returns `antdt` with these arguments, whose processes may have so many files open each.
fn antdt(files: u32, args: &[&str]) -> Command {
    limited(&format!("-n {files}"), args)
}

/// Returns `antdt` with these arguments, under this limit of the shell's.
fn limited(limit: &str, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANTDT_")) {
        command.env_remove(name);
    }
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR")).current_dir(env!("CARGO_TARGET_TMPDIR"));
    let script = format!("ulimit {limit}; exec \"$@\"");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_antdt")]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finish(mut child: Child) -> Output {
    let _ = wait_for("the end of the job", || child.try_wait().unwrap());
    child.wait_with_output().unwrap()
}

fn report(folder: &Path, output: &Output) -> Report {
    let said = String::from_utf8_lossy(&output.stderr);
    let text = std::fs::read_to_string(folder.join("report.json")).unwrap_or_else(|e| panic!("{e}: {said}"));
    let report: Report = serde_json::from_str(&text).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(report.outcome, Outcome::Completed, "{said}");
    report
}

/// What the run directory says of the master of a running job.
fn master(folder: &Path) -> (SocketAddr, u32) {
    let file = folder.join("run/master.json");
    wait_for("the address of the master", || {
        let text = std::fs::read_to_string(&file).ok()?;
        let master: serde_json::Value = serde_json::from_str(&text).ok()?;
        Some((master["address"].as_str()?.parse().ok()?, master["pid"].as_u64()?.try_into().ok()?))
    })
}

/// The process of the worker of this index that the master runs.
fn worker(master: u32, index: u32) -> u32 {
    let name = format!("ANTDT_NODE=worker-{index}");
    wait_for(&name, || {
        let tasks = std::fs::read_dir(format!("/proc/{master}/task")).ok()?.flatten();
        let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let pids: Vec<u32> = children
            .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect();
        pids.into_iter().find(|pid| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|byte| *byte == 0).any(|entry| entry == name.as_bytes())
        })
    })
}

/// Some seconds of work.
const SLOW: [&str; 8] = [
    "--nproc-per-node",
    "2",
    "--data",
    "synthetic:2000",
    "--global-batch-size",
    "40",
    "--emulate-speed",
    "150",
];

#[test]
fn job_outlives_more_silent_connections_than_its_master_has_descriptors_and_the_death_of_a_worker() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let job = antdt(100, &[&["run", "--report-dir", place][..], &SLOW].concat()).spawn().unwrap();
    let (address, pid) = master(folder.path());
    let victim = worker(pid, 1);
    worker(pid, 0);
    // Connects as long as the master lets it: what it does not accept waits in its backlog.
    let strangers: Vec<TcpStream> = (0..300)
        .filter_map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok())
        .collect();
    assert!(strangers.len() >= 100, "{} strangers", strangers.len());
    let killed = Command::new("kill").args(["-KILL", &victim.to_string()]).status().unwrap();
    assert!(killed.success(), "the job was over already");
    let report = report(folder.path(), &finish(job));
    drop(strangers);
    assert_eq!((report.samples.committed, report.samples.lost, report.samples.duplicated), (2000, 0, 0));
    assert_eq!(report.workers[1].restarts, 1);
}

#[test]
fn too_few_descriptors_for_the_workers_are_refused_before_the_first_step_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let job = antdt(24, &[&["run", "--report-dir", place][..], &SLOW].concat()).spawn().unwrap();
    let output = finish(job);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("24 files open") && said.contains("`ulimit -n "), "{said}");
    assert!(!folder.path().join("report.json").exists());
}

#[test]
fn limit_that_the_user_may_raise_is_raised() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let job = limited("-S -n 24", &[&["run", "--report-dir", place][..], &SLOW].concat()).spawn().unwrap();
    let report = report(folder.path(), &finish(job));
    assert_eq!((report.samples.committed, report.samples.lost, report.samples.duplicated), (2000, 0, 0));
}

#[test]
fn more_workers_than_there_are_descriptors_for_are_refused_and_the_job_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let job = antdt(64, &[&["run", "--report-dir", place][..], &SLOW].concat()).spawn().unwrap();
    master(folder.path());
    let run_dir = folder.path().join("run");
    let scaled = antdt(64, &["scale", "40", run_dir.to_str().unwrap()]).output().unwrap();
    let said = String::from_utf8_lossy(&scaled.stderr);
    assert!(!scaled.status.success() && said.contains("`ulimit -n "), "{said}");
    let report = report(folder.path(), &finish(job));
    assert_eq!((report.samples.committed, report.workers.len()), (2000, 2));
}

/// Returns the command as another one starts it, with its environment and in its folder.
fn started_by(mut starter: Command, command: &Command) -> Command {
    starter.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => starter.env(name, value),
            None => starter.env_remove(name),
        };
    }
    starter.current_dir(command.get_current_dir().unwrap());
    starter.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    starter
}

/// A group of processes of which there may be so many, which a test makes; `None` where it cannot.
struct FewProcesses(PathBuf);

impl FewProcesses {
    fn new() -> Option<Self> {
        let group = PathBuf::from(format!("/sys/fs/cgroup/pids/antdt-test-{}", std::process::id()));
        match std::fs::create_dir(&group) {
            Ok(()) => Some(Self(group)),
            Err(error) => {
                eprintln!("skipped: {} cannot be made: {error}", group.display());
                None
            }
        }
    }

    /// Returns the command that runs in the group.
    fn holding(&self, command: &Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0/cgroup.procs\"; exec \"$@\""]).arg(&self.0);
        started_by(shell, command)
    }

    /// Leaves room for so many more than run now.
    fn leave(&self, room: u32) {
        let now: u32 = std::fs::read_to_string(self.0.join("pids.current")).unwrap().trim().parse().unwrap();
        std::fs::write(self.0.join("pids.max"), (now + room).to_string()).unwrap();
    }
}

impl Drop for FewProcesses {
    fn drop(&mut self) {
        wait_for("the end of the group's processes", || std::fs::remove_dir(&self.0).ok());
    }
}

#[test]
fn workers_for_which_there_are_no_processes_are_done_without() {
    let Some(group) = FewProcesses::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let job = antdt(100, &[&["run", "--report-dir", place][..], &SLOW].concat());
    let job = group.holding(&job).spawn().unwrap();
    let (_, pid) = master(folder.path());
    worker(pid, 0);
    worker(pid, 1);
    group.leave(4);
    let run_dir = folder.path().join("run");
    let scaled = antdt(100, &["scale", "10", run_dir.to_str().unwrap()]).output().unwrap();
    assert!(scaled.status.success(), "{}", String::from_utf8_lossy(&scaled.stderr));
    let report = report(folder.path(), &finish(job));
    assert_eq!((report.samples.committed, report.samples.lost, report.samples.duplicated), (2000, 0, 0));
    assert!(report.workers.iter().skip(2).any(|worker| worker.restarts > 0), "{:?}", report.workers);
}

/// The ports at which a process listens.
fn listens_at(pid: u32) -> Vec<u16> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let sockets: Vec<String> =
        links.filter_map(|link| std::fs::read_link(link.path()).ok()?.to_str().map(str::to_owned)).collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let rows = table.lines().map(|row| row.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    // State 0A is that of a socket that listens.
    rows.filter(|row| row.len() > 9 && row[3] == "0A" && sockets.contains(&format!("socket:[{}]", row[9])))
        .filter_map(|row| u16::from_str_radix(row[1].rsplit(':').next()?, 16).ok())
        .collect()
}

#[test]
fn job_listens_at_the_ports_that_it_may_have_and_says_when_they_are_too_few() {
    // Below those that the system gives out by itself; another process may have one of them.
    let first = 20_000 + u16::try_from(std::process::id() % 6_000).unwrap();
    let range = |ports: u16| format!("{first}-{}", first + ports - 1);
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let words = |range: &str| {
        let own = ["run", "--report-dir", place, "--transport", "tcp", "--port-range", range];
        antdt(100, &[&own[..], &SLOW].concat())
    };
    let job = words(&range(20)).spawn().unwrap();
    let (address, pid) = master(folder.path());
    let nodes = [pid, worker(pid, 0), worker(pid, 1)];
    for node in nodes {
        let ports = wait_for("a port", || Some(listens_at(node)).filter(|ports| !ports.is_empty()));
        assert!(ports.iter().all(|port| (first..first + 20).contains(port)), "{ports:?}");
    }
    assert!(listens_at(pid).contains(&address.port()));
    let report = report(folder.path(), &finish(job));
    assert_eq!(report.samples.committed, 2000);

    // The only port is the master's.
    let busy = [std::net::TcpListener::bind(("127.0.0.1", first)).ok()];
    let output = finish(words(&range(1)).arg("--force").spawn().unwrap());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--port-range"), "{said}");
    drop(busy);
}

/// A program whose file in `/dev/shm` is larger than that has room for.
const SHM_FILLER: &str = "import mmap, os
file = os.open('/dev/shm/large', os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 4 << 20)
mmap.mmap(file, 4 << 20).write(bytes(4 << 20))";

#[test]
fn program_that_finds_shared_memory_full_ends_with_that_cause_and_the_remedy() {
    let alone = Command::new("unshare").args(["-m", "true"]).output();
    if !alone.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: `unshare -m` needs root");
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let program = ["run", "--report-dir", place, "--nproc-per-node", "1", "--max-restarts", "0", "--"];
    let run = antdt(100, &[&program[..], &["python3", "-c", SHM_FILLER]].concat());
    let mut alone = Command::new("unshare");
    alone.args(["-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm && exec \"$@\"", "sh"]);
    let output = finish(started_by(alone, &run).spawn().unwrap());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("/dev/shm is full, ") && said.contains("(docker run --shm-size)"), "{said}");
}

#[test]
fn working_directory_that_is_gone_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let gone = folder.path().join("gone");
    std::fs::create_dir(&gone).unwrap();
    let place = folder.path().join("report").display().to_string();
    let mut command = Command::new("sh");
    command.args(["-c", "rmdir \"$PWD\"; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_antdt"), "run"]);
    command.args(["--report-dir", &place, "--data", "synthetic:500"]).current_dir(&gone);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.starts_with("error: the working directory is gone: "), "{said}");
}

/// Cannot start the second worker at first, and says why.
struct ShortLauncher {
    processes: ProcessLauncher,
    failures: Arc<AtomicU32>,
    errno: i32,
}

impl Launcher for ShortLauncher {
    fn place(&mut self, node: NodeId) -> Option<String> {
        self.processes.place(node)
    }

    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
        let left = |left: u32| left.checked_sub(1);
        let fails = spec.holder.node == NodeId::worker(1)
            && self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok();
        if fails {
            let source = std::io::Error::from_raw_os_error(self.errno);
            let program = spec.program.display().to_string();
            return Err(LaunchError::Spawn { holder: spec.holder, program, source });
        }
        self.processes.launch(spec)
    }

    fn end(&mut self, holder: Holder, grace: Duration) -> bool {
        self.processes.end(holder, grace)
    }

    fn status(&self, holder: Holder) -> Option<LaunchStatus> {
        self.processes.status(holder)
    }
}

/// Runs a job whose second worker cannot be started so often.
fn run_short(errno: i32, failures: u32, min_workers: u32) -> Report {
    const SAMPLES: u64 = 600;
    let spec = JobSpec {
        workers: 2,
        min_workers,
        data: Some(DataSpec::Synthetic { rows: SAMPLES }),
        global_batch_size: 40,
        quiet: true,
        ..JobSpec::default()
    };
    let workload = antdt::workload::of(&spec).unwrap();
    let trainer = workload.open(&spec, &mut |_| {}).unwrap();
    let node = |name: &str| (PathBuf::from(env!("CARGO_BIN_EXE_antdt")), vec![name.into()]);
    let programs = Programs {
        worker: node("worker"),
        server: node("server"),
        env: Vec::new(),
        layout: Some(trainer.layout().clone()),
        foreign: false,
    };
    let failures = Arc::new(AtomicU32::new(failures));
    let launcher = move |outlets: Outlets| -> Box<dyn Launcher> {
        let (processes, failures) = (ProcessLauncher::new(outlets), Arc::clone(&failures));
        Box::new(ShortLauncher { processes, failures, errno })
    };
    let seams = Seams { launcher: Some(Arc::new(launcher)), ..Seams::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let data = Some(TrainingData::of(SAMPLES));
    runtime.block_on(master::run(&spec, data, &programs, seams, CancellationToken::new())).unwrap()
}

/// Numbers of EAGAIN and ENOENT.
const AGAIN: i32 = 11;
const NO_ENTRY: i32 = 2;

#[test]
fn worker_that_cannot_be_started_for_the_moment_is_tried_again_and_then_done_without() {
    let report = run_short(AGAIN, 2, 2);
    assert_eq!((report.outcome, report.samples.committed), (Outcome::Completed, 600));
    assert_eq!(report.workers.iter().map(|worker| worker.restarts).collect::<Vec<_>>(), [0, 2]);
    let report = run_short(AGAIN, u32::MAX, 1);
    assert_eq!((report.outcome, report.samples.committed), (Outcome::Completed, 600));
}

#[test]
fn worker_whose_program_is_not_there_ends_the_job_at_once_with_the_remedy() {
    let report = run_short(NO_ENTRY, 1, 1);
    let Outcome::Failed { why } = report.outcome else { panic!("{:?}", report.outcome) };
    assert!(why.contains("check its path and permissions"), "{why}");
}
