//! Starts a job that is prepared: its ledger, its head, and the services that answer its nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use antdt_checkpoint::Folder;
use antdt_collective::runtime::transport::paced::Lines;
use antdt_core::{
    CheckpointId, Connections, Exit, Holder, Incarnation, NodeId, NodeStatus, Role, ServerWeights,
};
use antdt_job::head::{CheckpointSchedule, EvaluationSchedule, ModeChoice};
use antdt_job::{Head, HeadConfig, HeadEvent, SyncMode};
use antdt_launch::{Launcher, LauncherEvent};
use antdt_monitor::{MonitorConfig, classify};
use antdt_proto::Token;
use antdt_rt::{CancellationToken, JobClock, Mailbox, TraceWriter, drive_recorded, mailbox};
use antdt_shard::runtime::{FileStore, FileStoreOptions, ShardHandle, ShardService};
use antdt_shard::{BoxStore, DatasetSpec, LedgerSnapshot, NullStore, StoreError};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use super::again::Before;
use super::claim::Claim;
use super::desk::Desk;
use super::http::Window;
use super::journal::{self, HeadJournal, HeadState, JobFile};
use super::listen::{self, Listening};
use super::operate::Pace;
use super::prepare::{self, Begun, Prepared};
use super::restorer::{Restorer, Start};
use super::runner::{Ended, HeadRunner, NodeTemplate, Nodes};
use super::scaler::Scaler;
use super::service::Parked;
use super::shards::{ShardTap, ShardWatch};
use super::sink::{JobNote, JobStart, Notes, Recorder, Sinks};
use super::{Fleet, JobError, Programs, Seams, choice, lock, record, serve};
use crate::job::{EvalEvery, JobSpec, Sharding};
use crate::node::NodeEnv;
use crate::run_dir::{self, RunDir, RunDirError};

/// Events that may wait for the head; a caller beyond that waits its turn.
const INBOX_BOUND: usize = 1024;

/// A job that runs, with all that its end needs.
pub(super) struct Running {
    pub(super) spec: JobSpec,
    pub(super) job: String,
    pub(super) shared: Shared,
    pub(super) ledger: Option<ShardService<StoreError>>,
    pub(super) shards: Arc<Mutex<ShardWatch>>,
    pub(super) before: Before,
    pub(super) trace: Option<TraceWriter>,
    pub(super) notes: Notes,
    /// Told by the head how the job ended.
    pub(super) end: oneshot::Receiver<Ended>,
    pub(super) tasks: Tasks,
    /// Keep other jobs out until this one is closed.
    pub(super) own: (Option<RunDir>, Option<Claim>),
}

/// What the tasks of a master share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) clock: JobClock,
    pub(super) head: Mailbox<Head>,
    pub(super) ledger: Option<ShardHandle>,
    pub(super) nodes: Arc<Mutex<Option<Nodes>>>,
    pub(super) parked: Parked,
    pub(super) recorder: Arc<Mutex<Recorder>>,
    pub(super) pace: Arc<Mutex<Pace>>,
    /// Numbers of workers and of servers that the job should have.
    pub(super) workers: Arc<AtomicU32>,
    pub(super) servers: Arc<AtomicU32>,
    /// Ends the job early.
    pub(super) stop: CancellationToken,
}

/// The tasks of a master. The head outlives the servers, so that late calls are answered; the ledger outlives the head.
pub(super) struct Tasks {
    pub(super) others: JoinSet<()>,
    pub(super) head: JoinHandle<Head>,
    pub(super) stop_servers: CancellationToken,
    pub(super) stop_head: CancellationToken,
    pub(super) stop_ledger: CancellationToken,
}

/// What a job is started with.
pub(super) struct Order<'a> {
    pub(super) programs: &'a Programs,
    pub(super) seams: &'a Seams,
    pub(super) fleet: Fleet,
    /// Where the job is shown, if it is.
    pub(super) window: Option<Window>,
    /// How the job chooses its mode, if it does.
    pub(super) choice: Option<ModeChoice>,
    /// What the job has behind it, if its processes are started again.
    pub(super) before: Option<Before>,
    pub(super) stop: CancellationToken,
}

/// Starts the job.
pub(super) async fn start(
    mut prepared: Prepared,
    listening: Listening,
    order: Order<'_>,
    sinks: Sinks,
) -> Result<Running, JobError> {
    let Order { programs, seams, fleet, window, choice, before, stop } = order;
    let Fleet { launcher, events, .. } = fleet;
    let Listening { listener, local, master, token, tls, connections, moved } = listening;
    let (clock, stop_ledger) = (JobClock::start(), CancellationToken::new());
    let of = (clock, stop_ledger.clone(), local.port());
    let machines = machines(&mut prepared, (programs, seams, choice), launcher, of).await?;
    let Machines { head, ledger, origin, shards, mut nodes, trace, journals } = machines;
    let Prepared { begun, job, job_start, fingerprint, mut run_dir, taken, evaluations, .. } = prepared;
    let Begun { spec, dataset, folder, claim, resumed, .. } = begun;
    let page = window.as_ref().map(Window::url);
    prepare::announce(&spec, &mut run_dir, (&master, page.as_deref(), tls), &job, &token)?;

    let (mailbox, inbox) = mailbox(INBOX_BOUND);
    let before = before.unwrap_or_else(|| Before::nothing(&spec, evaluations, job_start, sinks));
    let state = taken.as_ref().map(|taken| taken.state.clone()).unwrap_or_default();
    let gone = adopt(&mut nodes, &state, moved);
    let shared = Shared {
        clock,
        head: mailbox,
        ledger: ledger.as_ref().map(ShardService::handle),
        nodes: Arc::new(Mutex::new(Some(nodes))),
        parked: Parked::default(),
        recorder: Arc::new(Mutex::new(before.recorder.clone().later(spec.sync.capabilities()))),
        pace: Arc::default(),
        workers: Arc::new(AtomicU32::new(taken.as_ref().map_or(spec.workers, |_| present(&state)))),
        servers: Arc::new(AtomicU32::new(spec.servers)),
        stop: stop.child_token(),
    };
    let (recorder, sinks) = (Arc::clone(&shared.recorder), before.sinks.clone());
    let notes = Notes { earlier: before.took, recorder, sinks };
    let place = run_dir.as_ref().map(|dir| dir.path().to_owned());
    let start = JobStart { job: job.clone(), spec: spec.clone(), run_dir: place, page, resumed };
    notes.tell(clock.now(), JobNote::Started(Box::new(start)));
    let (desk, restorer) = keepers(&spec, &shared, (dataset, fingerprint), folder, origin);
    let (ended, end) = oneshot::channel();
    let of_nodes = template(&spec, (local.ip(), &master), (&job, &token, tls), job_start, programs).await?;
    let runner = HeadRunner {
        nodes: Arc::clone(&shared.nodes),
        template: of_nodes,
        ledger: shared.ledger.clone(),
        parked: shared.parked.clone(),
        notes: notes.clone(),
        servers: Arc::clone(&shared.servers),
        restorer,
        journal: journals.as_ref().map(|dir| HeadJournal::new(dir, state)),
        lead: run_dir.as_ref().map(RunDir::lead),
        head: shared.head.clone(),
        ended: Some(ended),
    };
    let (stop_servers, stop_head) = (CancellationToken::new(), CancellationToken::new());
    let head_trace = trace.as_ref().map(|trace| record::HeadRecorder(Box::new(trace.recorder("head"))));
    let head = tokio::spawn(drive_recorded(head, inbox, runner, clock, stop_head.clone(), head_trace));
    begin(&shared.head, gone).await?;
    let mut others = JoinSet::new();
    let scaler = Scaler::new(&spec, Arc::clone(&shared.workers), shared.head.clone());
    others.spawn(forward_events(events, (shared.clone(), scaler.clone()), spec.emulate_network.is_none()));
    others.spawn(serve::serve(
        &spec,
        &job,
        (listener, token, connections),
        &shared,
        (scaler, window),
        desk,
        stop_servers.clone(),
    )?);
    let tasks = Tasks { others, head, stop_servers, stop_head, stop_ledger };
    if let Some(dir) = &mut run_dir {
        // From here on the job ends with this process's work, or with a master that dies within it.
        dir.keep = false;
    }
    let own = (run_dir, claim);
    Ok(Running { spec, job, shared, ledger, shards, before, trace, notes, end, tasks, own })
}

/// The machines of a job, none of which has done anything.
struct Machines {
    head: Head,
    ledger: Option<ShardService<StoreError>>,
    /// The ledger as the job began.
    origin: Option<LedgerSnapshot>,
    shards: Arc<Mutex<ShardWatch>>,
    nodes: Nodes,
    trace: Option<TraceWriter>,
    /// Where a successor of this master finds what it must know, if there may be one.
    journals: Option<PathBuf>,
}

async fn machines(
    prepared: &mut Prepared,
    (programs, seams, choice): (&Programs, &Seams, Option<ModeChoice>),
    launcher: Box<dyn Launcher>,
    (clock, stop_ledger, port): (JobClock, CancellationToken, u16),
) -> Result<Machines, JobError> {
    let config = head_config(prepared, (programs, choice), &*launcher)?;
    let Prepared { begun, job, job_start, recording, run_dir, taken, .. } = prepared;
    let Begun { spec, dataset, folder, snapshot, .. } = begun;
    let trace = match recording.take() {
        Some(to) => Some(record::start(to, spec, job, &config, dataset.as_ref())?),
        None => None,
    };
    let mut nodes = Nodes::new(launcher, spec.workers);
    let journals = match run_dir {
        Some(dir) if dataset.is_some() && may_be_taken_over(spec, programs) => {
            journals(dir, taken.is_some(), &mut nodes)?
        }
        _ => None,
    };
    let shards = Arc::new(Mutex::new(ShardWatch::default()));
    let ledger = match dataset {
        Some(dataset) => {
            let store = ledger_store(spec, dataset, seams, journals.as_deref())?;
            let recorder = trace.as_ref().map(|trace| trace.recorder("ledger"));
            let watchers = (ShardTap::new(Arc::clone(&shards)), recorder);
            let started = ShardService::start_watched(dataset.clone(), store, clock, stop_ledger, watchers);
            let service = started.await.map_err(|e| JobError::of_part("ledger store", Box::new(e)))?;
            if let Some(snapshot) = snapshot.take() {
                service.handle().restore(snapshot).await.map_err(JobError::master)?;
            }
            Some(service)
        }
        None => None,
    };
    let origin = match (&ledger, &taken, &run_dir) {
        (Some(_), Some(taken), Some(dir)) => Some(taken.file.snapshot(dir.path())?),
        (Some(ledger), ..) => Some(ledger.handle().snapshot().await.map_err(JobError::master)?),
        (None, ..) => None,
    };
    let head = match taken {
        None if journals.is_some() => Head::new(config)?.journaled(),
        None => Head::new(config)?,
        Some(taken) => Head::resume(config, &taken.state.record)?,
    };
    if let (Some(_), Some(dir), Some(dataset), Some(origin), None) =
        (&journals, &run_dir, &dataset, &origin, &taken)
    {
        let first = folder.as_ref().map(|(_, first)| *first);
        JobFile::new(spec, (job.as_str(), *job_start, port), dataset, origin, first).write(dir.path())?;
    }
    Ok(Machines { head, ledger, origin, shards, nodes, trace, journals })
}

fn head_config(
    prepared: &Prepared,
    (programs, choice): (&Programs, Option<ModeChoice>),
    launcher: &dyn Launcher,
) -> Result<HeadConfig, JobError> {
    let Prepared { begun: Begun { spec, dataset, folder, .. }, evaluations, done, .. } = prepared;
    let evaluations = match (spec.eval_every, dataset, folder) {
        (EvalEvery::Epochs(every), Some(dataset), Some(_)) => Some(EvaluationSchedule {
            every,
            epochs: spec.epochs,
            samples: dataset.num_samples,
            done: *done,
            stopping: spec.early_stopping.clone(),
            earlier: evaluations.clone(),
        }),
        _ => None,
    };
    Ok(HeadConfig {
        sync: SyncMode::clone(&spec.sync),
        workers: spec.workers,
        servers: spec.servers,
        global_batch_size: spec.global_batch_size,
        heartbeat: spec.heartbeat,
        max_restarts: spec.max_restarts,
        // No other worker trains the share of one, or takes its rank in a program of the user's.
        min_workers: if spec.sharding == Sharding::Static || programs.foreign {
            spec.workers
        } else {
            spec.min_workers
        },
        must_register: !programs.foreign,
        policy: spec.built_policy()?,
        dry_run: spec.dry_run,
        monitor: MonitorConfig { rule: spec.built_pace_rule()?, ..spec.limits() },
        checkpoints: folder.as_ref().map(|(_, first)| CheckpointSchedule {
            every: spec.checkpoint_every,
            first: *first,
            epochs: spec.epochs,
        }),
        evaluations,
        choice: match folder {
            Some(_) => choice,
            None => choice.map(choice::without_checkpoints),
        },
        can_roll_back: dataset.is_some(),
        // Emulated hosts are not the launcher's.
        hosts: Arc::new(if spec.emulate_network.is_some() { BTreeSet::new() } else { launcher.hosts() }),
    })
}

/// Whether another master may go on with the nodes of the job when this one dies: the job has a place of its own, which the
/// user finds again, and its nodes are AntDT's, which wait for a master. An emulated network is in the master's memory.
fn may_be_taken_over(spec: &JobSpec, programs: &Programs) -> bool {
    (spec.run_dir.is_some() || spec.report_dir.is_some())
        && !programs.foreign
        && !spec.has_own_model()
        && spec.emulate_network.is_none()
}

/// Has nodes outlive this process, and says where its successor finds what it must know. `None` if the launcher cannot do that.
fn journals(dir: &RunDir, is_successor: bool, nodes: &mut Nodes) -> Result<Option<PathBuf>, JobError> {
    let output = dir.path().join(run_dir::OUTPUT);
    std::fs::create_dir_all(&output).map_err(|source| RunDirError::File { path: output.clone(), source })?;
    if !nodes.outlive(&output) {
        return Ok(None);
    }
    if dir.journals() != dir.path() {
        let last = dir.last_journals();
        journal::inherit(dir, is_successor.then_some(&*last))?;
    }
    Ok(Some(dir.journals()))
}

fn ledger_store(
    spec: &JobSpec,
    dataset: &DatasetSpec,
    seams: &Seams,
    journals: Option<&Path>,
) -> Result<BoxStore, JobError> {
    let store = match (&seams.store, journals) {
        (Some(store), _) => store(spec, dataset),
        (None, None) => Ok(BoxStore::new(NullStore)),
        (None, Some(dir)) => {
            FileStore::open(dir.join(run_dir::LEDGER), dataset.clone(), FileStoreOptions::default())
                .map(BoxStore::new)
                .map_err(Into::into)
        }
    };
    store.map_err(|source| JobError::of_part("ledger store", source))
}

/// Takes over the lives that an earlier master has started; ends them if they cannot find this one. Returns those of which nothing is
/// left, though they had not ended.
fn adopt(nodes: &mut Nodes, state: &HeadState, moved: bool) -> Vec<Holder> {
    let mut gone = nodes.adopt(&state.handles);
    if moved {
        nodes.end_all(Duration::ZERO);
    }
    let known = |holder| state.handles.iter().any(|(known, _)| *known == holder);
    let live = |status| !matches!(status, NodeStatus::Lost | NodeStatus::Finished);
    let unknown = state.record.nodes.iter().filter(|node| live(node.status) && !known(node.holder));
    gone.extend(unknown.map(|node| node.holder));
    gone
}

/// Number of workers that the job had and wanted.
fn present(state: &HeadState) -> u32 {
    let nodes = state.record.nodes.iter();
    let workers = nodes.filter(|node| node.holder.node.role == Role::Worker && !node.retiring).count();
    u32::try_from(workers).unwrap_or(u32::MAX)
}

/// What puts checkpoints together, and what sets the job back to one.
fn keepers(
    spec: &JobSpec,
    shared: &Shared,
    (dataset, fingerprint): (Option<DatasetSpec>, Option<String>),
    folder: Option<(Folder, CheckpointId)>,
    origin: Option<LedgerSnapshot>,
) -> (Option<Desk>, Option<Restorer>) {
    let (Some(ledger), Some(dataset), Some(snapshot)) = (&shared.ledger, dataset, origin) else {
        return (None, None);
    };
    let from = Arc::new(Mutex::new(spec.resume.clone()));
    let desk = folder.as_ref().map(|(folder, _)| {
        let (head, recorder) = (shared.head.clone(), Arc::clone(&shared.recorder));
        let source = (spec.clone(), fingerprint);
        let now = (Arc::clone(&from), Arc::clone(&shared.servers));
        Desk::new(folder.clone(), source, dataset.clone(), ledger.clone(), head, recorder, now)
    });
    let start = (Start { snapshot, checkpoint: spec.resume.clone() }, from);
    let head = shared.head.clone();
    let restorer = Restorer::new(ledger.clone(), dataset, folder, desk.clone(), start, head);
    (desk, Some(restorer))
}

/// What the nodes find in their environment besides what is particular to each.
async fn template(
    spec: &JobSpec,
    (ip, master): (IpAddr, &str),
    (job, token, tls): (&str, &Token, bool),
    job_start: Duration,
    programs: &Programs,
) -> Result<NodeTemplate, JobError> {
    // For the user's own rendezvous, as torchrun gives it: a port that is free now and not ours.
    let probe = TcpListener::bind(&spec.ports(ip, 0)[..]).await;
    let local = probe.and_then(|probe| probe.local_addr());
    let port = local.map_err(|error| listen::refused(spec, 0, error))?.port();
    let lines = spec.emulate_network.as_ref().map(|_| Lines::new()).transpose();
    let lines = lines.map_err(|error| JobError::Master(format!("--emulate-network: {error}")))?;
    Ok(NodeTemplate {
        node: NodeEnv {
            master: master.to_string(),
            job: job.to_owned(),
            token: token.clone(),
            tls,
            connections: Connections::default(),
            bind: spec.bind.clone(),
            advertise: spec.advertise.clone(),
            holder: Holder::new(NodeId::worker(0), Incarnation(0)),
            job_start,
            host: None,
            network: None,
            weights: ServerWeights::default(),
            layout: programs.layout.clone(),
            spec: spec.clone(),
        },
        lines,
        programs: programs.clone(),
        user_port: port,
    })
}

/// Begins the job, before any node can be answered: a head that takes over knows none until then. `gone` have ended since the last
/// master did.
async fn begin(head: &Mailbox<Head>, gone: Vec<Holder>) -> Result<(), JobError> {
    let closed = |_| JobError::master("the head has ended");
    head.call(HeadEvent::Begin).await.map_err(closed)?;
    for holder in gone {
        let unknown = classify(None, None);
        head.call(HeadEvent::Exited(holder, unknown, Vec::new())).await.map_err(closed)?;
    }
    Ok(())
}

/// Tells the head what the launcher does. Emulated hosts are not the launcher's, which then `names_hosts` in vain.
async fn forward_events(
    mut events: mpsc::UnboundedReceiver<LauncherEvent>,
    (Shared { head, nodes, .. }, scaler): (Shared, Scaler),
    names_hosts: bool,
) {
    while let Some(event) = events.recv().await {
        let event = match event {
            LauncherEvent::Started { holder } => HeadEvent::Started(holder),
            LauncherEvent::Placed { holder, host } => {
                let newest = lock(&nodes).as_mut().is_some_and(|nodes| nodes.placed(holder, &host));
                if !newest || !names_hosts {
                    continue;
                }
                HeadEvent::Placed { holder, host }
            }
            LauncherEvent::Gone { holder, exit, tail } => {
                let exit: Exit = classify(exit.code, exit.signal);
                HeadEvent::Exited(holder, exit, tail)
            }
            LauncherEvent::Room { workers } => {
                let workers = scaler.now().saturating_add(workers);
                match scaler.workers(workers).await {
                    Ok(_) => tracing::info!("a host has joined; the job grows to {workers} workers"),
                    Err(why) => {
                        let why = why.message();
                        tracing::warn!("a host has joined, and the job keeps its number of workers: {why}");
                    }
                }
                continue;
            }
        };
        if head.send(event).await.is_err() {
            return;
        }
    }
}
