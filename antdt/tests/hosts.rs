//! Jobs on several hosts: three network namespaces with addresses of their own and two workers each, started by the launcher
//! `ssh` with another command. The master is in a fourth namespace.
//!
//! Namespaces need root and `ip`; without them the tests say that they are skipped.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failure here is the test's")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use antdt::job::{DataSpec, JobSpec};
use antdt::master::{self, Programs, Seams, TrainingData};
use antdt::report::{Outcome, Report};
use antdt_agent::Trainer;
use antdt_burn::{ClickTrainer, WorkloadSpec, model::deepfm};
use antdt_controller::action::{ExcludeHost, ValueAction};
use antdt_controller::policy::{self, FromFn, ProposedAction};
use antdt_controller::{Decision, Policy, RestartBudget};
use antdt_core::registry::Settings;
use antdt_core::{ClusterView, Holder, InvalidValue, JobTime, NodeActionKind, NodeId, Reason, Role, Seed};
use antdt_launch::testing::check_launcher;
use antdt_rt::CancellationToken;
use serde::{Deserialize, Serialize};
use serde_json::json;

use network::Network;

use waiting::{LIMIT, wait_for};

mod waiting;

#[allow(dead_code, reason = "shared with a test that also cuts the network")]
#[path = "../../antdt-collective/tests/netns/network.rs"]
mod network;

/// Hosts with workers; the master is on one more.
const HOSTS: u32 = 3;

/// Samples of every job.
const SAMPLES: u64 = 3000;

/// Variable that tells this test, started once more, to be the master of a job.
const ORDER: &str = "HOSTS_TEST_ORDER";

/// Name of a policy of the test's own.
const LEAVE: &str = "leave-the-second-host";

/// Keeps workers from the second host, and restarts those that are there, one at a time.
fn leave(now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
    let host = view.hosts.iter().nth(1).expect("the launcher has three hosts").clone();
    let workers = view.live_workers().count();
    let may = |id: NodeId| budget.allows(now, id, workers).is_ok() && view.has_model_without(id);
    let there = view.live_workers().find(|worker| *worker.host == *host && may(worker.id));
    let restart = there.map(|worker| ProposedAction {
        target: Holder::new(worker.id, worker.incarnation),
        kind: NodeActionKind::KillRestart { drain: Duration::from_secs(30) },
        reason: Reason::Other(format!("it is on {host}")),
    });
    let said = view.actions.get(ExcludeHost::NAME) == Some(&host);
    let actions = (!said).then(|| (ExcludeHost::NAME.to_owned(), host)).into_iter().collect();
    Decision { actions, node_actions: restart.into_iter().collect(), ..Decision::nothing(Reason::Balanced) }
}

/// What the master of a job is told.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    spec: JobSpec,
    /// Names of the hosts, which are those of the process that made them.
    hosts: Vec<String>,
    out: PathBuf,
    /// A script that runs in place of the worker.
    script: Option<String>,
}

/// What it says in the end.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    report: Report,
    /// Pairs of workers that were seen to share memory.
    shared: BTreeSet<(u32, u32)>,
}

/// The namespaces, or why there are none.
fn network() -> Option<Network> {
    match Network::of(HOSTS + 1) {
        Ok(network) => Some(network),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn hosts() -> Vec<String> {
    (0..HOSTS).map(Network::name).collect()
}

/// The launcher's settings: two workers on each host.
fn launcher() -> serde_json::Value {
    let hosts: Vec<String> =
        (0..HOSTS).map(|host| format!("{}={}", Network::name(host), Network::address(host))).collect();
    json!({ "hosts": hosts.join(","), "per-host": 2, "command": "ip netns exec {host} sh -s" })
}

fn spec(folder: &Path, sync: &str, servers: u32) -> JobSpec {
    let mut spec = JobSpec {
        workers: 2 * HOSTS,
        servers,
        sync: sync.parse().unwrap(),
        data: Some(DataSpec::Synthetic { rows: SAMPLES }),
        global_batch_size: 60,
        // Whatever else the machine does is no straggler.
        policy: "none".to_owned(),
        // Slow enough to be looked at.
        emulate_speed: Some(100.0),
        bind: Network::address(HOSTS),
        run_dir: Some(folder.join("run")),
        master_grace: Some(Duration::from_secs(3)),
        quiet: true,
        ..JobSpec::default()
    };
    spec.put("launcher", &json!({ "ssh": launcher() })).unwrap();
    spec
}

/// Starts a master in its namespace.
fn start(order: &Order) -> Child {
    Command::new("ip")
        .args(["netns", "exec", &Network::name(HOSTS)])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_master", "--nocapture"])
        .env(ORDER, serde_json::to_string(order).unwrap())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finish(mut child: Child) -> Output {
    let deadline = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("not over after {LIMIT:?}: {:?}", child.wait_with_output());
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// The processes on a host.
fn pids(host: &str) -> Vec<String> {
    let output = Command::new("ip").args(["netns", "pids", host]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The node that a process is; `None` if it is none.
fn node_of(pid: &str) -> Option<NodeId> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environ.split(|byte| *byte == 0);
    let name = variables.find_map(|variable| variable.strip_prefix(b"ANTDT_NODE="))?;
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// Kills a node.
fn kill(host: u32, node: NodeId) {
    let pid = pids(&Network::name(host)).into_iter().find(|pid| node_of(pid) == Some(node));
    let pid = pid.unwrap_or_else(|| panic!("{node} is not on host {host}"));
    let killed = Command::new("kill").args(["-KILL", &pid]).status().unwrap();
    assert!(killed.success(), "{node} has ended before its time");
}

/// Where a job stands, as another host is told; `None` if it is not told.
fn status(folder: &Path) -> Option<String> {
    status_of(&folder.join("run"))
}

fn status_of(folder: &Path) -> Option<String> {
    let output = Command::new("ip")
        .args(["netns", "exec", &Network::name(0), env!("CARGO_BIN_EXE_antdt"), "status"])
        .arg(folder)
        .output()
        .unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

fn answer(order: &Order, child: Child) -> Answer {
    let output = finish(child);
    let text = std::fs::read_to_string(&order.out)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(&text).unwrap()
}

/// The master of a job, if this process was started as one.
#[test]
fn a_master() {
    let Ok(text) = std::env::var(ORDER) else { return };
    let order: Order = serde_json::from_str(&text).unwrap();
    let antdt = PathBuf::from(env!("CARGO_BIN_EXE_antdt"));
    let workload = WorkloadSpec::new(deepfm::MODEL, antdt_burn::DataSource::Synthetic { rows: SAMPLES });
    let trainer = ClickTrainer::open(&workload, Seed(order.spec.seed)).unwrap();
    let worker = match &order.script {
        Some(script) => ("/bin/sh".into(), ["-c", script].map(Into::into).into()),
        None => (antdt.clone(), vec!["worker".into()]),
    };
    let programs = Programs {
        worker,
        server: (antdt, vec!["server".into()]),
        env: Vec::new(),
        layout: Some(trainer.layout().clone()),
        foreign: order.script.is_some(),
    };
    let samples = order.script.is_none().then_some(SAMPLES);

    let leave =
        |_: &Settings<'_>| -> Result<Box<dyn Policy>, InvalidValue> { Ok(Box::new(FromFn(LEAVE, leave))) };
    policy::REGISTRY.register(policy::Entry::new(LEAVE, "a host is left", leave)).unwrap();

    let over = Arc::new(AtomicBool::new(false));
    let (watched, hosts) = (Arc::clone(&over), order.hosts.clone());
    let watcher = std::thread::spawn(move || {
        let mut shared = BTreeSet::new();
        while !watched.load(Ordering::Relaxed) {
            shared.extend(sharing(&hosts));
            std::thread::park_timeout(Duration::from_millis(20));
        }
        shared
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stop = CancellationToken::new();
    let report = runtime
        .block_on(master::run(&order.spec, samples.map(TrainingData::of), &programs, Seams::default(), stop))
        .unwrap();
    over.store(true, Ordering::Relaxed);
    let shared = watcher.join().unwrap();
    std::fs::write(&order.out, serde_json::to_string(&Answer { report, shared }).unwrap()).unwrap();
}

/// The pairs of workers on these hosts that have mapped the same anonymous file.
fn sharing(hosts: &[String]) -> BTreeSet<(u32, u32)> {
    let mut owners: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for pid in hosts.iter().flat_map(|host| pids(host)) {
        let Some(NodeId { role: Role::Worker, index }) = node_of(&pid) else { continue };
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        for line in maps.lines().filter(|line| line.contains("/memfd:")) {
            let inode = line.split_whitespace().nth(4).unwrap().to_owned();
            owners.entry(inode).or_default().insert(index);
        }
    }
    let pairs = |workers: &BTreeSet<u32>| -> Vec<(u32, u32)> {
        let all = workers.iter().flat_map(|a| workers.iter().map(move |b| (*a, *b)));
        all.filter(|(a, b)| a < b).collect()
    };
    owners.values().flat_map(pairs).collect()
}

#[test]
fn a_job_of_six_workers_on_three_hosts_is_exact() {
    let Some(network) = network() else { return };
    for (sync, servers) in [("allreduce", 0), ("ps-bsp", 2)] {
        let folder = tempfile::tempdir().unwrap();
        let order = Order {
            spec: spec(folder.path(), sync, servers),
            hosts: hosts(),
            out: folder.path().join("answer.json"),
            script: None,
        };
        let master = start(&order);
        // Another host reaches the job with the address and the token of its run directory.
        let says = wait_for("a step", || status(folder.path()).filter(|says| !says.contains(", 0 steps")));
        for worker in 0..2 * HOSTS {
            let line = format!("worker-{worker}, life 0: running on {}", Network::name(worker / 2));
            assert!(says.contains(&line), "{says}");
        }
        // A death on one host is made good there, and noticed by all.
        kill(1, NodeId::worker(3));
        let Answer { report, shared } = answer(&order, master);
        assert_eq!(report.outcome, Outcome::Completed, "{sync:?}");
        let restarts: Vec<u32> = report.workers.iter().map(|worker| worker.restarts).collect();
        assert_eq!(restarts, [0, 0, 0, 1, 0, 0], "{sync:?}");
        let samples = &report.samples;
        assert_eq!((samples.expected, samples.committed), (SAMPLES, SAMPLES), "{sync:?}");
        assert_eq!((samples.lost, samples.duplicated, samples.quarantined), (0, 0, 0), "{sync:?}");
        assert_eq!(report.workers.len(), 2 * HOSTS as usize);
        assert!(report.workers.iter().all(|worker| worker.samples > 0), "{:?}", report.workers);
        // Memory within a host, and never across.
        let neighbours: BTreeSet<(u32, u32)> = match sync {
            "allreduce" => (0..HOSTS).map(|host| (2 * host, 2 * host + 1)).collect(),
            _ => BTreeSet::new(),
        };
        assert_eq!(shared, neighbours, "{sync:?}");
    }
    drop(network);
}

#[test]
fn workers_that_are_restarted_leave_a_host_that_is_excluded() {
    let Some(_network) = network() else { return };
    let folder = tempfile::tempdir().unwrap();
    let order = Order {
        // Long enough for two restarts, one after the other.
        spec: JobSpec {
            policy: LEAVE.to_owned(),
            emulate_speed: Some(25.0),
            ..spec(folder.path(), "allreduce", 0)
        },
        hosts: hosts(),
        out: folder.path().join("answer.json"),
        script: None,
    };
    let master = start(&order);
    // Restarts of the decision that excludes the host wait for it: the first ones run elsewhere.
    for worker in [2, 3] {
        let line = format!("worker-{worker}, life 1: running on {}", Network::name(2));
        wait_for(&line, || {
            let told = std::fs::read_to_string(&order.out);
            assert!(told.is_err(), "the job is over: {told:?}");
            status(folder.path()).filter(|says| says.contains(&line))
        });
    }
    let Answer { report, .. } = answer(&order, master);
    assert_eq!(report.outcome, Outcome::Completed);
    let restarts: Vec<u32> = report.workers.iter().map(|worker| worker.restarts).collect();
    assert_eq!(restarts, [0, 0, 1, 1, 0, 0]);
    let samples = &report.samples;
    assert_eq!((samples.expected, samples.committed), (SAMPLES, SAMPLES));
    assert_eq!((samples.lost, samples.duplicated), (0, 0));
    let excluded = report.actions.iter().filter(|action| action.kind == ExcludeHost::NAME);
    assert_eq!(excluded.count(), 1, "{:?}", report.actions);
}

#[test]
fn shared_memory_alone_is_refused_in_one_line_on_several_hosts() {
    let Some(_network) = network() else { return };
    for (sync, servers) in [("allreduce", 0), ("ps-asp", 1)] {
        let folder = tempfile::tempdir().unwrap();
        let order = Order {
            spec: JobSpec { transport: "shm".to_owned(), ..spec(folder.path(), sync, servers) },
            hosts: hosts(),
            out: folder.path().join("answer.json"),
            script: None,
        };
        let output = finish(start(&order));
        let said = String::from_utf8(output.stderr).unwrap();
        let answer: Answer = serde_json::from_str(&std::fs::read_to_string(&order.out).unwrap()).unwrap();
        assert!(
            matches!(answer.report.outcome, Outcome::Failed { .. }),
            "{sync}: {:?}",
            answer.report.outcome
        );
        let expected =
            "is on another host, where shared memory does not reach; choose the transport `auto` or `tcp`";
        assert!(
            said.lines().any(|line| line.contains("] error: ") && line.ends_with(expected)),
            "{sync}: {said}"
        );
    }
}

#[test]
fn ranks_follow_the_hosts() {
    let Some(_network) = network() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR > {}/$ANTDT_NODE",
        folder.path().display()
    );
    let order = Order {
        spec: spec(folder.path(), "allreduce", 0),
        hosts: hosts(),
        out: folder.path().join("answer.json"),
        script: Some(script),
    };
    let Answer { report, .. } = answer(&order, start(&order));
    assert_eq!(report.outcome, Outcome::Completed);
    for worker in 0..2 * HOSTS {
        let file = folder.path().join(NodeId::worker(worker).to_string());
        let said = std::fs::read_to_string(file).unwrap();
        // Where the first worker is, not the master: it listens there for the others.
        let first = Network::address(0);
        assert_eq!(said.trim(), format!("{worker} 6 {} 2 {} 3 {first}", worker % 2, worker / 2));
    }
}

#[test]
fn nodes_on_other_hosts_end_by_themselves_when_their_master_is_gone() {
    let Some(_network) = network() else { return };
    for (sync, servers) in [("allreduce", 0), ("ps-asp", 2)] {
        let folder = tempfile::tempdir().unwrap();
        let order = Order {
            // So slow that the first batch takes longer than the test: no training thread learns of the end.
            spec: JobSpec { emulate_speed: Some(0.01), ..spec(folder.path(), sync, servers) },
            hosts: hosts(),
            out: folder.path().join("answer.json"),
            script: None,
        };
        let mut master = start(&order);
        let left = || -> Vec<String> { hosts().iter().flat_map(|host| pids(host)).collect() };
        let all = (2 * HOSTS + servers) as usize;
        wait_for("all nodes", || (left().len() == all).then_some(()));
        wait_for("all workers", || status(folder.path()).filter(|says| says.contains("6 of 6 workers")));
        master.kill().unwrap();
        master.wait().unwrap();
        assert!(!left().is_empty(), "they do not end with the process that launched them");
        wait_for("the end of all nodes", || left().is_empty().then_some(()));
    }
}

/// The command of all hosts, on this one, with so many workers; the first host has the master.
fn join(host: u32, workers: u32, folder: &Path) -> Child {
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let (name, endpoint) = (Network::name(host), format!("{}:29400", Network::address(0)));
    let (secret, report) = (text(folder.join("secret")), text(folder.join("report")));
    Command::new("ip")
        .args(["netns", "exec", &name, env!("CARGO_BIN_EXE_antdt"), "run", "--nnodes", &HOSTS.to_string()])
        .args(["--rdzv-endpoint", &endpoint, "--rdzv-secret-file", &secret, "--host-name", &name])
        .args([
            "--node-rank",
            &host.to_string(),
            "--nproc-per-node",
            &workers.to_string(),
            "--data",
            &format!("synthetic:{SAMPLES}"),
        ])
        .args(["--global-batch-size", "60", "--policy", "none", "--emulate-speed", "100"])
        .args(["--report-dir", &report, "--grace", "1s"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Adds a host with one worker to that job.
fn add(host: u32, folder: &Path) -> Child {
    let name = Network::name(host);
    Command::new("ip")
        .args(["netns", "exec", &name, env!("CARGO_BIN_EXE_antdt"), "join", &Network::address(0)])
        .args(["--host-name", &name, "--grace", "1s", "--rdzv-secret-file"])
        .arg(folder.join("secret"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn same_command_on_each_host_trains_exactly_though_one_is_added_and_one_dies() {
    let Some(network) = network() else { return };
    let folder = tempfile::tempdir().unwrap();
    // The first host comes last, which makes the secret, and each takes another number of workers.
    let [third, second, first] =
        [(2, 3), (1, 2), (0, 1)].map(|(host, workers)| join(host, workers, folder.path()));
    let report = folder.path().join("report");
    let says = wait_for("a step", || {
        let says = status_of(&report);
        says.filter(|says| !says.contains(", 0 steps"))
    });
    for (worker, host) in [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2), (5, 2)] {
        let line = format!("worker-{worker}, life 0: running on {}", Network::name(host));
        assert!(says.contains(&line), "{says}");
    }
    let added = add(HOSTS, folder.path());
    wait_for("the worker of the host that is added", || {
        let line = format!("worker-6, life 0: running on {}", Network::name(HOSTS));
        status_of(&report).filter(|says| says.contains(&line))
    });
    let mut second = second;
    second.kill().unwrap();
    second.wait().unwrap();
    wait_for("the end of the workers of that host", || pids(&Network::name(1)).is_empty().then_some(()));
    let again = join(1, 2, folder.path());
    let [first, again, third, added] = [first, again, third, added].map(finish);
    for host in [&first, &again, &third, &added] {
        assert!(host.status.success(), "{}", String::from_utf8_lossy(&host.stderr));
    }
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(said.contains(&format!("workers of this host are reached at {}", Network::address(1))), "{said}");
    let text = std::fs::read_to_string(report.join("report.json")).unwrap();
    let report: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(report.outcome, Outcome::Completed);
    let restarts: Vec<u32> = report.workers.iter().map(|worker| worker.restarts).collect();
    assert_eq!(restarts, [0, 1, 1, 0, 0, 0, 0], "{}", String::from_utf8_lossy(&first.stderr));
    let samples = &report.samples;
    assert_eq!((samples.expected, samples.committed), (SAMPLES, SAMPLES));
    assert_eq!((samples.lost, samples.duplicated, samples.quarantined), (0, 0, 0));
    for host in hosts() {
        assert_eq!(pids(&host), Vec::<String>::new(), "{host}");
    }
    drop(network);
}

/// Has a host know the first one, which has an IPv6 address alone, under this name, once `is_known`.
fn name_first(host: u32, is_known: bool) {
    let etc = Path::new("/etc/netns").join(Network::name(host));
    std::fs::create_dir_all(&etc).unwrap();
    let first = if is_known { "fd00::1 first.test\n" } else { "" };
    std::fs::write(etc.join("hosts"), format!("127.0.0.1 localhost\n{first}")).unwrap();
}

#[test]
fn hosts_without_ipv4_meet_at_a_name_that_one_of_them_learns_late() {
    let Some(network) = network() else { return };
    for host in 0..2 {
        let (name, address) = (Network::name(host), format!("fd00::{}/64", host + 1));
        for change in [["flush", "dev", "eth0"].as_slice(), &["add", &address, "dev", "eth0", "nodad"]] {
            let changed = Command::new("ip").args(["-n", &name, "address"]).args(change).status().unwrap();
            assert!(changed.success(), "{change:?}");
        }
        name_first(host, host == 0);
    }
    let folder = tempfile::tempdir().unwrap();
    let take_part = |host: u32| {
        let (name, report) = (Network::name(host), folder.path().join("report"));
        Command::new("ip")
            .args(["netns", "exec", &name, env!("CARGO_BIN_EXE_antdt"), "run", "--nnodes=2", "--insecure"])
            .args(["--rdzv-endpoint=first.test", "--node-rank", &host.to_string(), "--host-name", &name])
            .args(["--data=synthetic:3000", "--global-batch-size=60", "--policy=none", "--report-dir"])
            .arg(report)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let second = take_part(1);
    let first = take_part(0);
    wait_for("the port", || {
        let listens =
            Command::new("ip").args(["netns", "exec", &Network::name(0), "ss", "-ltn"]).output().unwrap();
        String::from_utf8_lossy(&listens.stdout).contains(":29400").then_some(())
    });
    name_first(1, true);
    for host in [first, second].map(finish) {
        assert!(host.status.success(), "{}", String::from_utf8_lossy(&host.stderr));
    }
    let text = std::fs::read_to_string(folder.path().join("report/report.json")).unwrap();
    let report: Report = serde_json::from_str(&text).unwrap();
    assert_eq!((report.outcome, report.samples.committed), (Outcome::Completed, SAMPLES));
    for host in 0..2 {
        std::fs::remove_dir_all(Path::new("/etc/netns").join(Network::name(host))).unwrap();
    }
    drop(network);
}

/// What a port answers first to a client that does not encrypt, which is in the namespace of a host; `None` if nothing.
fn first_answer(host: u32, address: &str) -> Option<u8> {
    // In one piece: what comes after the answer has the connection reset, and the answer with it.
    const GREETING: &str = "import socket, sys
host, port = sys.argv[1].rsplit(':', 1)
stream = socket.create_connection((host, int(port)), 10)
stream.sendall(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n')
print(stream.recv(1)[0])";
    let output = Command::new("ip")
        .args(["netns", "exec", &Network::name(host), "python3", "-c", GREETING, address])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().ok()
}

#[test]
fn hosts_encrypt_what_they_send_unless_told_otherwise() {
    /// First byte of an alert of TLS, and of a frame of HTTP/2.
    const ANSWERS: [u8; 2] = [21, 0];
    let Some(_network) = network() else { return };
    for (insecure, expected) in [false, true].into_iter().zip(ANSWERS) {
        let folder = tempfile::tempdir().unwrap();
        let spec = JobSpec { insecure, ..spec(folder.path(), "allreduce", 0) };
        let order = Order { spec, hosts: hosts(), out: folder.path().join("answer"), script: None };
        let master = start(&order);
        wait_for("a job that trains", || status(folder.path()).filter(|text| text.contains("samples/s")));
        let text = std::fs::read_to_string(folder.path().join("run/master.json")).unwrap();
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(file["tls"], !insecure);
        let address = file["address"].as_str().unwrap();
        assert_eq!(first_answer(0, address), Some(expected), "insecure: {insecure}");
        let report = answer(&order, master).report;
        assert_eq!(report.outcome, Outcome::Completed);
        assert!(report.samples.is_exact() && report.samples.committed == SAMPLES, "{:?}", report.samples);
    }
}

#[test]
fn launcher_of_these_tests_passes_the_suite() {
    let Some(_network) = network() else { return };
    let mut spec = JobSpec::default();
    spec.put("launcher", &json!({ "ssh": launcher() })).unwrap();
    let factory = spec.built_launcher().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _entered = runtime.enter();
    check_launcher(|outlets| factory(outlets), LIMIT).unwrap_or_else(|violation| panic!("{violation}"));
}
