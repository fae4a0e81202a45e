//! A job whose launcher learns the host of a node only when a scheduler has placed it: ranks, status and policies follow.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use antdt::job::{DataSpec, JobSpec};
use antdt::master::{self, Programs, Seams, TrainingData};
use antdt::report::Outcome;
use antdt_controller::action::{ExcludeHost, ValueAction};
use antdt_controller::policy::{self, FromFn, ProposedAction};
use antdt_controller::{Decision, RestartBudget};
use antdt_core::{ClusterView, Holder, JobTime, NodeActionKind, NodeId, Reason};
use antdt_launch::runtime::process::ProcessLauncher;
use antdt_launch::testing::check_launcher;
use antdt_launch::{LaunchError, LaunchStatus, Launcher, LauncherEvent, NodeSpec, Outlets};
use antdt_rt::CancellationToken;

const LIMIT: Duration = Duration::from_secs(120);

const HOSTS: [&str; 3] = ["rack-0", "rack-1", "rack-2"];

/// Workers of each host, as long as none is avoided.
const PER_HOST: u32 = 2;

const SAMPLES: u64 = 2000;

/// Processes of this machine that count as nodes of several hosts, which are chosen when they have started.
struct LateLauncher {
    processes: ProcessLauncher,
    avoided: Arc<Mutex<BTreeSet<String>>>,
}

impl LateLauncher {
    fn new(outlets: Outlets) -> Self {
        let avoided = Arc::new(Mutex::new(BTreeSet::new()));
        let Outlets { events, lines } = outlets;
        let known = Arc::clone(&avoided);
        let events = Arc::new(move |event: LauncherEvent| {
            let started = match &event {
                LauncherEvent::Started { holder } => Some(*holder),
                LauncherEvent::Placed { .. } | LauncherEvent::Gone { .. } | LauncherEvent::Room { .. } => {
                    None
                }
            };
            events(event);
            if let Some(holder) = started {
                let host = host(holder.node, &known.lock().unwrap());
                events(LauncherEvent::Placed { holder, host });
            }
        });
        Self { processes: ProcessLauncher::new(Outlets { events, lines }), avoided }
    }
}

/// Where the scheduler puts a node.
fn host(node: NodeId, avoided: &BTreeSet<String>) -> String {
    let from = (node.index / PER_HOST) as usize;
    let mut hosts = (0..HOSTS.len()).map(|next| HOSTS[(from + next) % HOSTS.len()]);
    hosts.find(|host| !avoided.contains(*host)).unwrap().to_owned()
}

impl Launcher for LateLauncher {
    fn place(&mut self, _node: NodeId) -> Option<String> {
        None
    }

    fn hosts(&self) -> BTreeSet<String> {
        HOSTS.map(str::to_owned).into()
    }

    fn avoid(&mut self, hosts: &BTreeSet<String>) {
        *self.avoided.lock().unwrap() = hosts.clone();
    }

    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
        self.processes.launch(spec)
    }

    fn end(&mut self, holder: Holder, grace: Duration) -> bool {
        self.processes.end(holder, grace)
    }

    fn status(&self, holder: Holder) -> Option<LaunchStatus> {
        self.processes.status(holder)
    }
}

/// Name of the policy of this test.
const LEAVE: &str = "leave-rack-1";

/// Keeps workers from the second host, and restarts those that are there, one at a time.
fn leave(now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
    let host = HOSTS[1].to_owned();
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

/// Waits until `antdt status` says a line.
fn wait_for_status(run_dir: &Path, line: &str) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let output = Command::new(env!("CARGO_BIN_EXE_antdt")).arg("status").arg(run_dir).output().unwrap();
        let says = String::from_utf8(output.stdout).unwrap();
        if says.contains(line) {
            return;
        }
        assert!(Instant::now() < deadline, "`{line}` was not said: {says}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

#[test]
fn policy_restarts_workers_by_the_host_that_a_scheduler_chose() {
    let policy = policy::Entry::new(LEAVE, "leaves a host", |_| Ok(Box::new(FromFn(LEAVE, leave))));
    policy::REGISTRY.register(policy).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run_dir = folder.path().join("run");
    let spec = JobSpec {
        workers: 4,
        data: Some(DataSpec::Synthetic { rows: SAMPLES }),
        global_batch_size: 40,
        policy: LEAVE.to_owned(),
        // Long enough for two restarts, one after the other.
        emulate_speed: Some(25.0),
        run_dir: Some(run_dir.clone()),
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
    let seams = Seams {
        launcher: Some(Arc::new(|outlets| Box::new(LateLauncher::new(outlets)))),
        ..Seams::default()
    };
    let job = std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let data = Some(TrainingData::of(SAMPLES));
        runtime.block_on(master::run(&spec, data, &programs, seams, CancellationToken::new())).unwrap()
    });
    for (worker, host) in [(2, "rack-2"), (3, "rack-2")] {
        wait_for_status(&run_dir, &format!("worker-{worker}, life 1: running on {host}"));
    }
    wait_for_status(&run_dir, "worker-0, life 0: running on rack-0");
    let report = job.join().unwrap();
    assert_eq!(report.outcome, Outcome::Completed);
    let restarts: Vec<u32> = report.workers.iter().map(|worker| worker.restarts).collect();
    assert_eq!(restarts, [0, 0, 1, 1]);
    let samples = &report.samples;
    assert_eq!((samples.committed, samples.lost, samples.duplicated), (SAMPLES, 0, 0));
    let excluded = report.actions.iter().filter(|action| action.kind == ExcludeHost::NAME);
    assert_eq!(excluded.count(), 1, "{:?}", report.actions);
}

#[test]
fn late_launcher_passes_the_suite() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _entered = runtime.enter();
    check_launcher(|outlets| Box::new(LateLauncher::new(outlets)), LIMIT)
        .unwrap_or_else(|violation| panic!("{violation}"));
}
