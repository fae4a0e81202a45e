//! The master of a job: serves shards and the control plane, starts the nodes, and records what happens.

mod claim;
mod console;
mod desk;
mod evaluations;
mod fleet;
mod journal;
mod operate;
mod probe;
mod record;
mod recorder;
mod restorer;
mod runner;
mod seams;
mod service;
mod shards;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use antdt_checkpoint::{CheckpointWriteError, Folder};
use antdt_collective::runtime::transport::paced::Lines;
use antdt_core::registry::BuildError;
use antdt_core::{
    CheckpointId, Counts, Epoch, Exit, Holder, Incarnation, InvalidValue, JobTime, NodeId, NodeStatus,
    ParamLayout, Role, Seed, ServerWeights,
};
use antdt_job::head::CheckpointSchedule;
use antdt_job::{Head, HeadAnswer, HeadConfig, HeadEvent, SyncMode};
use antdt_launch::{Launcher, LauncherEvent, OutputStream};
use antdt_monitor::{MonitorConfig, classify};
use antdt_proto::v1::control_server::ControlServer;
use antdt_proto::v1::job_server::JobServer;
use antdt_proto::{Token, TokenCheck};
use antdt_rt::{CancellationToken, JobClock, Mailbox, TraceWriter, drive_recorded, mailbox};
use antdt_shard::runtime::{FileStore, FileStoreOptions, ShardHandle, ShardServer, ShardService};
use antdt_shard::{
    Assignment, BoxStore, DatasetSpec, Epochs, LedgerSnapshot, MissingWhy, NullStore, OnQuarantine,
    SourceError, StoreError,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::InterceptorLayer;

use crate::job::evaluation::Verdict;
use crate::job::{EvalEvery, JobSpec, NetworkSpec, Sharding};
use crate::lead::Elector;
use crate::net;
use crate::node::NodeEnv;
use crate::report::{LiveProgress, MeasuredOn, MissingEntry, Outcome, Report, SampleBalance, ShardSpan};
use crate::resume::{self, ResumeError};
use crate::run_dir::{self, RunDir, RunDirError};
use crate::worker::TRAIN_DATASET;
use claim::Claim;
use console::Console;
use desk::Desk;
use journal::{HeadJournal, HeadState, JobFile};
use operate::{JobService, Pace};
use probe::Chooser;
use recorder::Recorder;
use restorer::{Restorer, Start};
use runner::{HeadRunner, NodeTemplate, Nodes};
use service::{ControlService, Parked};
use shards::{ShardTap, ShardWatch};

pub use claim::ClaimError;
pub(crate) use evaluations::lacks as lacks_evaluation;
pub(crate) use fleet::Fleet;
pub(crate) use journal::{Orphaned, first_checkpoint};
#[cfg(feature = "cli")]
pub(crate) use journal::{left_settings, settings};
pub use seams::{PartError, PartsAgain, RecorderFactory, Seams, StoreFactory};

/// Events that may wait for the head; a caller beyond that waits its turn.
const INBOX_BOUND: usize = 1024;

/// Why a job ended that was told to stop.
const INTERRUPTED: &str = "interrupted";

/// How long the advertised name may take to be resolved, and a connection to it to be made.
const REACH_LIMIT: Duration = Duration::from_secs(5);

/// How long nodes may take to exit by themselves after the job is over.
const EXIT_PATIENCE: Duration = Duration::from_secs(3);

/// How long a node that was asked to exit may take before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// How long the launcher may take to end the nodes that were killed, before the master gives up waiting.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// Programs that the nodes of a job run, with their environment.
#[derive(Debug, Clone, PartialEq)]
pub struct Programs {
    /// Path of the worker program, and its arguments.
    pub worker: (PathBuf, Vec<std::ffi::OsString>),
    /// Path of the server program, and its arguments; unused without servers.
    pub server: (PathBuf, Vec<std::ffi::OsString>),
    /// Environment variables for all nodes, besides those of [`NodeEnv`] and of torchrun.
    pub env: Vec<(String, String)>,
    /// Shape of the parameters, which servers need; `None` if the worker program has its data from elsewhere.
    pub layout: Option<ParamLayout>,
    /// Whether the worker program is the user's own, which need not register with the master.
    pub foreign: bool,
}

/// Reason why a job could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// A setting is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// The policy or the pace rule is unknown, or one of its settings is invalid.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The master cannot listen: the port is taken, or the address does not belong to this machine.
    #[error(
        "--bind, --master-port = {address}: {source}; choose an address of this machine, and another port or 0 for a free one"
    )]
    Listen {
        /// Address at which the master was to listen.
        address: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The master listens on all addresses, so that it cannot know the one at which other hosts reach it:
    /// `--advertise` must be set.
    #[error(
        "--advertise = (nothing): with --bind {bind} it is needed; say the address or name by which the nodes reach this machine"
    )]
    Advertise {
        /// Address that the master listens on.
        bind: String,
    },
    /// The name of `--advertise` has no address, or this machine does not reach itself there.
    #[error("--advertise = {host}: {why}; say the address or name by which the nodes reach this machine")]
    Unreachable {
        /// Value of the flag.
        host: String,
        /// Description of the failure.
        why: String,
    },
    /// The run directory cannot be used.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The job cannot continue from the checkpoint.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The folder or store for checkpoints cannot be used.
    #[error("--checkpoint-dir: {0}")]
    Checkpoints(CheckpointWriteError),
    /// A running job keeps its checkpoints in the folder.
    #[error(transparent)]
    Claimed(#[from] ClaimError),
    /// The recording cannot be written.
    #[error("--record = {}: {why}", file.display())]
    Record {
        /// Path of the recording.
        file: PathBuf,
        /// Why the recording cannot be written, and the remedy.
        why: String,
    },
    /// A part that the program replaces could not be built.
    #[error("the {part} cannot be used: {source}")]
    Part {
        /// Name of the replaced part, such as the launcher.
        part: &'static str,
        /// Error of the program's factory.
        source: PartError,
    },
    /// A part of the master failed, with this message.
    #[error("the master failed: {0}")]
    Master(String),
}

/// The training data of a job, as far as its master must know them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainingData {
    /// Number of training samples of one epoch.
    pub samples: u64,
    /// Digest of the data's content, by which a resumed job recognises its data; with `None` only the
    /// location is compared.
    pub fingerprint: Option<String>,
}

impl TrainingData {
    /// Returns the description of data with this many training samples, without a digest.
    pub const fn of(samples: u64) -> Self {
        Self { samples, fingerprint: None }
    }
}

/// Runs a job to its end and returns its report. `data` describes the training data; it is `None` if the
/// worker program has its data from elsewhere. `seams` are the parts that the program may replace. Cancelling
/// `stop` ends the job early; the job then counts as failed.
///
/// When this returns, no node is left that the launcher can reach.
///
/// # Errors
/// If the job could not start. A job that started and failed returns a report with another outcome than
/// [`Outcome::Completed`].
pub async fn run(
    spec: &JobSpec,
    data: Option<TrainingData>,
    programs: &Programs,
    seams: Seams,
    stop: CancellationToken,
) -> Result<Report, JobError> {
    let Seams { launcher, store, recorder, again } = seams;
    let fleet = Fleet::new(launcher.map_or_else(|| spec.built_launcher(), Ok)?, spec.quiet);
    run_or_take_over(spec, data, programs, (store, recorder, again), fleet, stop, None).await
}

/// As [`run`], with the parts besides the launcher; goes on with the nodes of `orphaned`, whose settings are `spec`.
pub(crate) async fn run_or_take_over(
    spec: &JobSpec,
    data: Option<TrainingData>,
    programs: &Programs,
    (store, recorder, again): (Option<StoreFactory>, RecorderFactory, Option<PartsAgain>),
    fleet: Fleet,
    stop: CancellationToken,
    orphaned: Option<Orphaned>,
) -> Result<Report, JobError> {
    spec.validate()?;
    let modes = spec.choices();
    let first = spec.in_mode(modes[0].clone());
    if spec.eval_every != EvalEvery::End && again.is_none() {
        let expected = "end in a job whose master has parts of its own: they cannot be started again";
        return Err(InvalidValue::new("--eval-every", spec.eval_every, expected).into());
    }
    let mut chooser = (spec.sync.choice().is_some() && orphaned.is_none()).then(|| {
        let fixed = match (&again, &data) {
            (None, _) => Some("parts of its master are replaced"),
            (_, None) => Some("its program has its data from elsewhere"),
            _ => None,
        };
        chooser(spec, modes, programs, fixed)
    });
    let launcher = fleet.factory();
    let (mut now, mut parts, mut fleet, mut again) = (first, (store, recorder), fleet, again);
    let (mut orphaned, mut before) = (orphaned, None);
    loop {
        let stop_now = stop.clone();
        let (report, next) = run_once(
            &now,
            data.clone(),
            programs,
            parts,
            fleet,
            stop_now,
            orphaned.take(),
            chooser.take(),
            before.take(),
        )
        .await?;
        let (Some((mode, behind)), Some(make)) = (next, again.take()) else {
            return Ok(report);
        };
        let resume = report.checkpoint.map(|checkpoint| checkpoint.folder).or_else(|| now.resume.clone());
        let scaled = as_scaled(spec.in_mode(mode), &behind);
        now = JobSpec { resume, job_id: Some(report.job_id), ..scaled };
        let seams = make();
        fleet = Fleet::new(Arc::clone(&launcher), now.quiet);
        (parts, again, before) = ((seams.store, seams.recorder), seams.again, Some(behind));
    }
}

/// The job with as many workers and servers as it has by now. A number that another setting forbids, such as that of a straggler
/// that is gone, stays as it was.
fn as_scaled(spec: JobSpec, behind: &Before) -> JobSpec {
    let servers = if spec.servers > 0 && behind.servers > 0 { behind.servers } else { spec.servers };
    let spec = JobSpec { servers, ..spec };
    let scaled = JobSpec { workers: behind.workers, ..spec.clone() };
    match scaled.validate() {
        Ok(()) => scaled,
        Err(error) => {
            let (workers, wanted) = (spec.workers, scaled.workers);
            tracing::warn!(%error, "the job goes on with {workers} workers, and not with {wanted}");
            spec
        }
    }
}

/// What the mode of a job is chosen by.
fn chooser(
    spec: &JobSpec,
    modes: Vec<SyncMode>,
    programs: &Programs,
    fixed: Option<&'static str>,
) -> Chooser {
    let layout = programs.layout.as_ref();
    let latency = spec.emulate_network.as_ref().map(|NetworkSpec(network)| network.latency.as_secs_f64());
    Chooser {
        modes,
        workers: spec.workers,
        servers: spec.servers,
        latency: latency.unwrap_or_default(),
        whole: layout.map_or(1.0, |layout| whole(layout, spec.global_batch_size)),
        global_batch_size: spec.global_batch_size,
        fixed,
    }
}

/// Size of a model in units of what a step changes: the flat vector, and of each table a row for each sample.
fn whole(layout: &ParamLayout, batch: u32) -> f64 {
    let rows = |most: u64| -> f64 {
        let values =
            layout.tables().iter().map(|table| table.rows.min(most).saturating_mul(table.dim as u64));
        #[allow(clippy::cast_precision_loss, reason = "an estimate")]
        let values = values.fold(layout.dense_len() as u64, u64::saturating_add) as f64;
        values
    };
    (rows(u64::MAX) / rows(batch.into()).max(1.0)).max(1.0)
}

/// What a job has behind it whose processes are started again, to go on in another mode or after an evaluation.
struct Before {
    recorder: Recorder,
    shards: Vec<ShardSpan>,
    /// Samples of each worker.
    samples: BTreeMap<NodeId, u64>,
    duplicated: u64,
    /// Numbers of workers and servers that the user has scaled the job to.
    workers: u32,
    servers: u32,
    /// How long that took.
    took: Duration,
    /// When the job began, since the epoch of the system's clock.
    job_start: Duration,
}

/// Runs a job until its mode changes, its next evaluation, or its end. Returns the mode that it is to go on in, if it is to, and what
/// it then has behind it.
#[allow(clippy::too_many_arguments, reason = "the two ways in have nothing in common but these")]
async fn run_once(
    spec: &JobSpec,
    data: Option<TrainingData>,
    programs: &Programs,
    (store, recorder): (Option<StoreFactory>, RecorderFactory),
    fleet: Fleet,
    stop: CancellationToken,
    orphaned: Option<Orphaned>,
    chooser: Option<Chooser>,
    before: Option<Before>,
) -> Result<(Report, Option<(SyncMode, Before)>), JobError> {
    let Fleet { mut launcher, events, console, .. } = fleet;
    // Whichever way this function is left, nobody goes on waiting to write.
    let closing = console.close_on_drop();
    let fingerprint = data.as_ref().and_then(|data| data.fingerprint.clone());
    let (record, job_start, job, begun, new_dir) = match &orphaned {
        None => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let start = before.as_ref().map_or(now, |before| before.job_start);
            let job = spec.job_id.clone().unwrap_or_else(|| format!("antdt-{:x}", start.as_nanos()));
            // Before anything is written: recording, checkpoints and report of a job that runs there are its own.
            let dir = lock_run_dir(spec, &job)?;
            let record = recorder(spec).map_err(|source| part("recorder", source))?;
            let begun = begin(spec, data.as_ref(), programs.layout.clone(), &job)?;
            (record, start, job, begun, dir)
        }
        // What was recorded stays as it is: this half cannot be replayed without the other.
        Some(orphaned) => (None, orphaned.file.job_start, orphaned.file.job.clone(), go_on(orphaned)?, None),
    };
    let Begun { spec, dataset, folder, snapshot, resumed, claim: _claim } = begun;
    let spec = &spec;
    let until = match dataset.as_ref().map(|dataset| dataset.epochs) {
        Some(Epochs::Finite(epochs)) => epochs,
        Some(Epochs::Infinite) | None => spec.epochs,
    };
    // Samples of the epochs after the next evaluation, which the ledger does not have yet.
    let later = dataset
        .as_ref()
        .map_or(0, |dataset| dataset.num_samples * u64::from(spec.epochs.saturating_sub(until)));
    // Before a port is taken: two masters of one job must not be.
    let earlier = match (&before, &spec.resume, &orphaned, &spec.checkpoint_dir) {
        (None, _, Some(_), Some(place)) => evaluations::read(place, until),
        (None, Some(path), None, _) => {
            path.parent().map_or_else(Vec::new, |place| evaluations::read(place, until))
        }
        _ => Vec::new(),
    };
    if let (Some(rule), Some(path), None) = (&spec.early_stopping, &spec.resume, &orphaned)
        && let Verdict::Stop(why) = rule.judge(&earlier)
    {
        return Err(ResumeError::Stopped { path: path.clone(), why }.into());
    }
    let (mut run_dir, taken, before_at) = match orphaned {
        None => (clear_run_dir(spec, new_dir, &*launcher)?, None, None),
        Some(Orphaned { dir, file, state, token, address, .. }) => {
            (Some(dir), Some((file, state, token)), Some(address))
        }
    };
    let port = taken.as_ref().map_or(spec.master_port, |(file, ..)| file.port);
    let listen = |source| JobError::Listen { address: net::join(&spec.bind, port), source };
    let ip = net::bind_address(&spec.bind).map_err(listen)?;
    let listener = match TcpListener::bind((ip, port)).await {
        // The last master was put out by etcd, and its process has not ended yet.
        Err(error)
            if error.kind() == std::io::ErrorKind::AddrInUse && taken.is_some() && spec.elect.is_some() =>
        {
            TcpListener::bind((ip, 0)).await.map_err(listen)?
        }
        bound => bound.map_err(listen)?,
    };
    let local = listener.local_addr().map_err(listen)?;
    let master = match &spec.advertise {
        Some(host) => {
            // A successor has the address of the master before it.
            if taken.is_none() {
                let machine = crate::host::name();
                let is_here = |worker| launcher.place(NodeId::worker(worker)).as_ref() == Some(&machine);
                let here = (0..spec.workers).all(is_here);
                reach(host, local, here).await?;
            }
            net::join(host, local.port())
        }
        None if ip.is_unspecified() => return Err(JobError::Advertise { bind: spec.bind.clone() }),
        None => local.to_string(),
    };
    // Nodes know one address; those of a master elsewhere cannot find this one.
    let moved = before_at.is_some_and(|before| before != master);
    let token = match &taken {
        None => secret()?,
        Some((_, _, token)) => token.clone(),
    };
    let stop = stop.child_token();
    let clock = JobClock::start();

    // The head outlives the servers, so that late calls are answered; the ledger outlives the head.
    let (stop_servers, stop_head, stop_ledger) =
        (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    let watch = Arc::new(Mutex::new(ShardWatch::default()));
    let config = HeadConfig {
        sync: SyncMode::clone(&spec.sync),
        workers: spec.workers,
        servers: spec.servers,
        global_batch_size: spec.global_batch_size,
        heartbeat: spec.heartbeat,
        max_restarts: spec.max_restarts,
        // Nobody else trains the share of a worker, or takes its rank in a program of the user's.
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
            epochs: until,
        }),
        can_roll_back: dataset.is_some(),
        // Emulated hosts are not the launcher's.
        hosts: Arc::new(if spec.emulate_network.is_some() { BTreeSet::new() } else { launcher.hosts() }),
    };
    let trace = match record {
        Some(to) => Some(record::start(to, spec, &job, &config, dataset.as_ref())?),
        None => None,
    };
    let mut nodes = Nodes::new(launcher, spec.workers);
    let journaled = match &run_dir {
        Some(dir) if dataset.is_some() && may_be_taken_over(spec, programs) => {
            let output = dir.path().join(run_dir::OUTPUT);
            std::fs::create_dir_all(&output)
                .map_err(|source| RunDirError::File { path: output.clone(), source })?;
            nodes.outlive(&output).then(|| dir.journals())
        }
        _ => None,
    };
    if let (Some(_), Some(dir)) = (&journaled, &run_dir)
        && dir.journals() != dir.path()
    {
        let last = dir.last_journals();
        journal::inherit(dir, taken.is_some().then_some(&*last))?;
    }
    let ledger = match &dataset {
        Some(dataset) => {
            let store = match (store, &journaled) {
                (Some(store), _) => store(spec, dataset),
                (None, None) => Ok(BoxStore::new(NullStore)),
                (None, Some(dir)) => {
                    FileStore::open(dir.join(run_dir::LEDGER), dataset.clone(), FileStoreOptions::default())
                        .map(BoxStore::new)
                        .map_err(Into::into)
                }
            };
            let store = store.map_err(|source| part("ledger store", source))?;
            let service =
                start_ledger(dataset.clone(), store, clock, stop_ledger.clone(), &watch, trace.as_ref())
                    .await?;
            if let Some(snapshot) = snapshot {
                service.handle().restore(snapshot).await.map_err(|e| JobError::Master(e.to_string()))?;
            }
            Some(service)
        }
        None => None,
    };
    let start = match (&ledger, &taken, &run_dir) {
        (Some(_), Some((file, ..)), Some(dir)) => Some(file.snapshot(dir.path())?),
        (Some(ledger), ..) => {
            Some(ledger.handle().snapshot().await.map_err(|e| JobError::Master(e.to_string()))?)
        }
        (None, ..) => None,
    };
    let head = match &taken {
        None if journaled.is_some() => Head::new(config)?.journaled(),
        None => Head::new(config)?,
        Some((_, state, ..)) => Head::resume(config, &state.record)?,
    };
    if let (Some(_), Some(dir), Some(dataset), Some(start), None) =
        (&journaled, &run_dir, &dataset, &start, &taken)
    {
        let first = folder.as_ref().map(|(_, first)| *first);
        JobFile::new(spec, (&job, job_start, local.port()), dataset, start, first).write(dir.path())?;
    }
    announce(spec, &mut run_dir, &master, &job, &token)?;
    let (mailbox, inbox) = mailbox(INBOX_BOUND);
    let parked = Parked::default();
    let goes_on = before.is_some();
    let before = before.unwrap_or_else(|| Before {
        recorder: Recorder::new(spec.sync.capabilities(), spec.workers).after(earlier),
        shards: Vec::new(),
        samples: BTreeMap::new(),
        duplicated: 0,
        workers: spec.workers,
        servers: spec.servers,
        took: Duration::ZERO,
        job_start,
    });
    let recorder = before.recorder.clone().later(spec.sync.capabilities(), before.took);
    let recorder = Arc::new(Mutex::new(recorder));
    let chooser = chooser.map(|chooser| {
        let fixed =
            folder.is_none().then_some("it keeps no checkpoints (--report-dir, --run-dir, --checkpoint-dir)");
        Chooser { fixed: chooser.fixed.or(fixed), ..chooser }
    });
    let state = taken.as_ref().map(|(_, state, ..)| state.clone()).unwrap_or_default();
    let mut gone = nodes.adopt(&state.handles);
    if moved {
        nodes.end_all(Duration::ZERO);
    }
    gone.extend(unknown(&state));
    let workers = match &taken {
        None => spec.workers,
        Some(_) => present(&state),
    };
    let nodes = Arc::new(Mutex::new(Some(nodes)));
    let from = Arc::new(Mutex::new(spec.resume.clone()));
    let servers = Arc::new(AtomicU32::new(spec.servers));
    let desk = match (&folder, &ledger, &dataset) {
        (Some((folder, _)), Some(ledger), Some(dataset)) => {
            let (mailbox, recorder) = (mailbox.clone(), Arc::clone(&recorder));
            let (folder, dataset) = (folder.clone(), dataset.clone());
            let source = (spec.clone(), fingerprint);
            let now = (Arc::clone(&from), Arc::clone(&servers));
            Some(Desk::new(folder, source, dataset, ledger.handle(), mailbox, recorder, now))
        }
        _ => None,
    };
    let restorer = match (&ledger, dataset) {
        (Some(ledger), Some(dataset)) => {
            let ledger = ledger.handle();
            let snapshot = start.ok_or_else(|| JobError::Master("the ledger has no start".to_owned()))?;
            let start = (Start { snapshot, checkpoint: spec.resume.clone() }, from);
            Some(Restorer::new(ledger, dataset, folder, desk.clone(), start, mailbox.clone()))
        }
        _ => None,
    };
    let (ended, end) = oneshot::channel();
    let runner = HeadRunner {
        nodes: Arc::clone(&nodes),
        template: template(spec, (local.ip(), &master), (&job, &token), job_start, programs).await?,
        ledger: ledger.as_ref().map(ShardService::handle),
        parked: parked.clone(),
        recorder: Arc::clone(&recorder),
        servers: Arc::clone(&servers),
        restorer,
        journal: journaled.as_ref().map(|dir| HeadJournal::new(dir, state)),
        lead: run_dir.as_ref().map(RunDir::lead),
        head: mailbox.clone(),
        ended: Some(ended),
    };
    // A job that goes on after an evaluation was not resumed by anybody.
    if let Some(text) = resumed.as_ref().filter(|_| !goes_on || spec.eval_every == EvalEvery::End) {
        lock(&recorder).resumed = Some(text.clone());
        console.line(OutputStream::Err, text.clone());
    }
    let head_trace = trace.as_ref().map(|trace| record::HeadRecorder(Box::new(trace.recorder("head"))));
    let head_task = tokio::spawn(drive_recorded(head, inbox, runner, clock, stop_head.clone(), head_trace));
    let closed = |_| JobError::Master("the head has ended".to_owned());
    // Before anybody can be answered: a head that takes over knows nobody until then.
    mailbox.call(HeadEvent::Begin).await.map_err(closed)?;
    for holder in gone {
        let unknown = classify(None, None);
        mailbox.call(HeadEvent::Exited(holder, unknown, Vec::new())).await.map_err(closed)?;
    }
    let mut tasks = tokio::task::JoinSet::new();
    // Emulated hosts are not the launcher's.
    let names_hosts = spec.emulate_network.is_none();
    tasks.spawn(forward_events(events, mailbox.clone(), Arc::clone(&nodes), names_hosts));

    let (pace, workers) = (Arc::new(Mutex::new(Pace::default())), Arc::new(AtomicU32::new(workers)));
    let operate = JobService {
        job: job.clone(),
        policy: spec.policy.clone(),
        dry_run: spec.dry_run,
        workers: Arc::clone(&workers),
        fixed: (spec.sharding == Sharding::Static).then_some(
            "--sharding static divides the data among the workers that the job began with; their number cannot change",
        ),
        spec: Arc::new(spec.clone()),
        head: mailbox.clone(),
        clock,
        pace: Arc::clone(&pace),
        recorder: Arc::clone(&recorder),
        nodes: Arc::clone(&nodes),
        ledger: ledger.as_ref().map(ShardService::handle),
        stop: stop.clone(),
    };
    let mut server = tonic::transport::Server::builder()
        .tcp_nodelay(true)
        // Around all services, so that none is forgotten.
        .layer(InterceptorLayer::new(TokenCheck::new(token)))
        .add_service(ControlServer::new(ControlService::new(
            job.clone(),
            mailbox.clone(),
            parked.clone(),
            desk,
        )))
        .add_service(JobServer::new(operate));
    if let Some(service) = &ledger {
        server = server.add_service(ShardServer::new().with(service.handle())?.into_service());
    }
    let shutdown = stop_servers.clone();
    tasks.spawn(async move {
        let incoming = TcpListenerStream::new(listener);
        let nodelay = tokio_stream::StreamExt::map(incoming, |stream| {
            // Without it every answer may wait 40 ms for the next one.
            stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream))
        });
        if let Err(error) = server.serve_with_incoming_shutdown(nodelay, shutdown.cancelled_owned()).await {
            tracing::error!(%error, "the control plane failed");
        }
    });

    let handle = ledger.as_ref().map(ShardService::handle);
    if let Some(dir) = &mut run_dir {
        // From here on the job ends with this function, or with a master that dies within it.
        dir.keep = false;
    }
    let watched = (&*recorder, &*pace, &*workers);
    let (outcome, next) =
        watch_job(spec, &mailbox, watched, (handle.as_ref(), later), &console, (end, &stop), chooser).await?;
    drop(closing);

    parked.clear();
    // Nothing is started any more.
    let taken = lock(&nodes).take();
    if let Some(nodes) = taken {
        end_nodes(nodes, outcome.is_ok()).await;
    }
    console.finish();
    stop_servers.cancel();
    let (mut counts, missing) = match &handle {
        Some(handle) => balance(until, handle).await.map_err(|e| JobError::Master(e.to_string()))?,
        None => (Counts::default(), Vec::new()),
    };
    stop_head.cancel();
    head_task.await.map_err(|e| JobError::Master(e.to_string()))?;
    stop_ledger.cancel();
    if let Some(ledger) = ledger {
        ledger.join().await.map_err(|e| JobError::Master(e.to_string()))?;
    }
    if let Some(trace) = trace {
        // Nothing happens any more: all that did is in it.
        record::finish(trace);
    }
    tasks.shutdown().await;
    let watch = std::mem::take(&mut *lock(&watch));
    let mut recorder = lock(&recorder).clone();
    let (mut outcome, mut next) = (outcome, next);
    if spec.eval_every != EvalEvery::End {
        if outcome.is_err() {
            if counts.acked + counts.quarantined == counts.total && recorder.keeps(counts.acked) {
                // Whoever resumes the job begins after this evaluation, and does not repeat it.
                note_evaluation(spec, until, &mut recorder);
            }
        } else {
            match after_evaluation(spec, until, counts.acked, &mut recorder) {
                // Between two epochs nothing runs that an interrupt could end.
                Ok(true) if stop.is_cancelled() => outcome = Err(INTERRUPTED.to_owned()),
                Ok(goes_on) => next = goes_on.then(|| SyncMode::clone(&spec.sync)),
                Err(why) => outcome = Err(why),
            }
        }
    }
    if next.is_none() {
        outcome = recorder.ended(outcome, counts.acked);
    }
    if outcome.is_err() {
        counts.total += later;
    }
    let Before { mut shards, samples: by_worker, duplicated, took: earlier, .. } = before;
    let took = earlier + clock.now().since_start();
    let duplicated = duplicated + watch.duplicated();
    let (spans, in_mode) = watch.finish(clock.now());
    let by_worker = sum(by_worker, in_mode);
    shards.extend(spans.into_iter().map(|span| span.later(earlier)));
    let next = next.map(|mode| {
        let (recorder, shards, samples) = (recorder.clone(), shards.clone(), by_worker.clone());
        let [workers, servers] = [&workers, &servers].map(|count| count.load(Ordering::Relaxed));
        (mode, Before { recorder, shards, samples, duplicated, workers, servers, took, job_start })
    });
    let report =
        report(spec, job, outcome, (&counts, missing), recorder, (shards, by_worker, duplicated), took);
    Ok((report, next))
}

/// Writes down the evaluation after epoch `until`, for the report and for whoever resumes the job. Returns whether there was one.
fn note_evaluation(spec: &JobSpec, until: u32, recorder: &mut Recorder) -> bool {
    let evaluated = recorder.evaluated(until);
    if let (true, Some(place)) = (evaluated, &spec.checkpoint_dir) {
        evaluations::write(place, &recorder.evaluations, None);
    }
    evaluated
}

/// The workers have trained up to the end of epoch `until`, and evaluated the model. Returns whether the job goes on.
fn after_evaluation(spec: &JobSpec, until: u32, acked: u64, recorder: &mut Recorder) -> Result<bool, String> {
    if note_evaluation(spec, until, recorder) {
        let verdict = spec.early_stopping.as_ref().map(|rule| rule.judge(&recorder.evaluations));
        match verdict {
            Some(Verdict::Unknown(why)) => return Err(why),
            Some(Verdict::Stop(why)) if until < spec.epochs => {
                recorder.stopped_early = Some(why);
                return Ok(false);
            }
            Some(Verdict::Stop(_) | Verdict::GoOn) | None => {}
        }
    } else if let Some(place) = &spec.checkpoint_dir {
        // Whoever resumes the job need not try again.
        evaluations::write(place, &recorder.evaluations, Some(until));
    }
    if until >= spec.epochs {
        return Ok(false);
    }
    if !recorder.keeps(acked) {
        let why = recorder.not_kept.as_deref().unwrap_or("none was taken");
        return Err(format!(
            "the model after epoch {until} is in no checkpoint, from which the job could go on: {why}"
        ));
    }
    Ok(true)
}

fn sum(mut first: BTreeMap<NodeId, u64>, second: BTreeMap<NodeId, u64>) -> BTreeMap<NodeId, u64> {
    for (node, samples) in second {
        *first.entry(node).or_default() += samples;
    }
    first
}

/// What a job begins with.
struct Begun {
    /// Its settings, as the nodes get them: with the folder of checkpoints, and the checkpoint that it goes on from.
    spec: JobSpec,
    dataset: Option<DatasetSpec>,
    /// Where checkpoints go, and the number of the first.
    folder: Option<(Folder, CheckpointId)>,
    /// Keeps other jobs out of it.
    claim: Option<Claim>,
    /// What is done already.
    snapshot: Option<LedgerSnapshot>,
    /// For people.
    resumed: Option<String>,
}

/// Finds what the job goes on from, and where it keeps its own checkpoints.
fn begin(
    spec: &JobSpec,
    data: Option<&TrainingData>,
    layout: Option<ParamLayout>,
    job: &str,
) -> Result<Begun, JobError> {
    let mut spec = spec.clone();
    let mut dataset = data.map(|data| dataset(&spec, data.samples));
    let (mut snapshot, mut resumed, mut before, mut claim) = (None, None, None, None);
    if let (Some(dir), Some(data), Some(ours)) = (&spec.resume, data, &dataset) {
        let found = resume::prepare(&spec, dir, data, ours, layout)?;
        let path = found.checkpoint.path().to_owned();
        before = path.parent().map(Path::to_owned);
        spec.resume = Some(absolute(path));
        (dataset, snapshot, resumed) = (Some(found.dataset), Some(found.snapshot), Some(found.text));
    }
    let default = (spec.run_dir.is_some() || spec.report_dir.is_some())
        .then(|| run_dir::place(&spec, job).map(|run| run.join(resume::CHECKPOINTS)));
    // A job without a folder of its own goes on in the one that it was resumed from.
    let place = spec.checkpoint_dir.clone().or(default.flatten()).or(before).filter(|_| dataset.is_some());
    let folder = match place {
        Some(place) => {
            let place = absolute(place);
            if let (Some(run), None) = (&spec.run_dir, &spec.checkpoint_dir) {
                // It is this folder that was asked for.
                std::fs::create_dir_all(run)
                    .map_err(|source| RunDirError::File { path: run.clone(), source })?;
            }
            match Folder::create(&place) {
                Ok(folder) => {
                    claim = claimed(&spec, &place, Duration::ZERO)?;
                    let first = folder.next_id().map_err(ResumeError::from)?;
                    spec.checkpoint_dir = Some(place);
                    Some((folder, first))
                }
                Err(error) if spec.checkpoint_dir.is_some() || spec.run_dir.is_some() => {
                    return Err(JobError::Checkpoints(error));
                }
                // A folder that was not asked for is no reason to refuse the job.
                Err(error) => {
                    tracing::warn!(%error, "the job keeps no checkpoints");
                    None
                }
            }
        }
        None => None,
    };
    Ok(Begun { spec, dataset, folder, claim, snapshot, resumed })
}

/// Checks that nodes can reach this master, which listens at `local`, as `host`. Nodes of other machines may take a way that this
/// one does not have, so that a failure to connect is a warning unless all nodes are `here`.
async fn reach(host: &str, local: SocketAddr, here: bool) -> Result<(), JobError> {
    let refused = |why: String| JobError::Unreachable { host: host.to_owned(), why };
    let address = net::join(host, local.port());
    let resolve = tokio::task::spawn_blocking(move || net::resolve(&address, local.ip()));
    let address = match tokio::time::timeout(REACH_LIMIT, resolve).await {
        Ok(Ok(found)) => found.map_err(|error| refused(format!("it has no address: {error}")))?,
        Ok(Err(error)) => return Err(JobError::Master(error.to_string())),
        Err(_) => return Err(refused(format!("it was not resolved within {REACH_LIMIT:?}"))),
    };
    let why = match tokio::time::timeout(REACH_LIMIT, TcpStream::connect(address)).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => format!("this machine does not reach its own port at {address}: {error}"),
        Err(_) => format!("this machine does not reach its own port at {address} within {REACH_LIMIT:?}"),
    };
    if here {
        return Err(refused(why));
    }
    tracing::warn!("--advertise = {host}: {why}; the nodes of other machines may");
    Ok(())
}

/// The nodes may have another working directory. A URL stays as it is.
fn absolute(path: PathBuf) -> PathBuf {
    if path.to_string_lossy().contains("://") {
        return path;
    }
    std::path::absolute(&path).unwrap_or(path)
}

/// Why a part that the program brought cannot be used; the parts that ship say it themselves.
fn part(part: &'static str, source: PartError) -> JobError {
    match source.downcast::<JobError>() {
        Ok(error) => *error,
        Err(source) => JobError::Part { part, source },
    }
}

/// What the ledger hands out.
fn dataset(spec: &JobSpec, samples: u64) -> DatasetSpec {
    let (batch, workers) = (spec.global_batch_size, spec.workers);
    let mut dataset = DatasetSpec::of_job(TRAIN_DATASET, samples, batch, workers, spec.shard_len);
    dataset.epochs = Epochs::Finite(spec.eval_every.next(0, spec.epochs));
    dataset.seed = Seed(spec.seed).derive("data");
    if spec.max_quarantined > 0 {
        dataset.on_quarantine = OnQuarantine::Continue { max_samples: spec.max_quarantined };
    }
    dataset.assignment = match spec.sharding {
        Sharding::Dynamic => Assignment::Dynamic,
        Sharding::Static => Assignment::Static { workers: spec.workers },
    };
    dataset
}

async fn start_ledger(
    dataset: DatasetSpec,
    store: BoxStore,
    clock: JobClock,
    shutdown: CancellationToken,
    watch: &Arc<Mutex<ShardWatch>>,
    trace: Option<&TraceWriter>,
) -> Result<ShardService<StoreError>, JobError> {
    let watchers = (ShardTap::new(Arc::clone(watch)), trace.map(|trace| trace.recorder("ledger")));
    ShardService::start_watched(dataset, store, clock, shutdown, watchers)
        .await
        .map_err(|e| part("ledger store", Box::new(e)))
}

/// What the nodes find in their environment besides what is particular to each.
async fn template(
    spec: &JobSpec,
    (ip, master): (IpAddr, &str),
    (job, token): (&str, &Token),
    job_start: Duration,
    programs: &Programs,
) -> Result<NodeTemplate, JobError> {
    // For the user's own rendezvous, as torchrun gives it: a port that is free now and not ours.
    let probe = TcpListener::bind((ip, 0)).await;
    let port =
        probe.and_then(|probe| probe.local_addr()).map_err(|e| JobError::Master(e.to_string()))?.port();
    let lines = spec.emulate_network.as_ref().map(|_| Lines::new()).transpose();
    let lines = lines.map_err(|error| JobError::Master(format!("--emulate-network: {error}")))?;
    Ok(NodeTemplate {
        node: NodeEnv {
            master: master.to_string(),
            job: job.to_owned(),
            token: token.clone(),
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

/// A new secret.
fn secret() -> Result<Token, JobError> {
    let mut bytes = [0_u8; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(count) if count == bytes.len() => {}
        Ok(_) => return Err(JobError::Master("the system gave too few random bytes".to_owned())),
        Err(error) => return Err(JobError::Master(format!("the system gives no random bytes: {error}"))),
    }
    Ok(Token::new(format!("{:032x}", u128::from_be_bytes(bytes)))?)
}

/// Opens the run directory of the job for this master alone, and leaves what is there as it is. A directory that was not asked for
/// is no reason to refuse the job.
fn lock_run_dir(spec: &JobSpec, job: &str) -> Result<Option<RunDir>, JobError> {
    let Some(path) = run_dir::place(spec, job) else {
        tracing::info!("neither XDG_STATE_HOME nor HOME is set: the job has no run directory");
        return Ok(None);
    };
    let elector = Elector::new(spec.elect.as_ref(), job);
    RunDir::open(&path, true, &elector)
        .map_or_else(|error| without_run_dir(spec, error).map(|()| None), |dir| Ok(Some(dir)))
}

/// Removes what an earlier job has left in the run directory, unless nodes of it live.
fn clear_run_dir(
    spec: &JobSpec,
    dir: Option<RunDir>,
    launcher: &dyn Launcher,
) -> Result<Option<RunDir>, JobError> {
    let Some(mut dir) = dir else { return Ok(None) };
    match journal::clear(&dir, launcher) {
        Ok(()) => {
            dir.keep = false;
            Ok(Some(dir))
        }
        Err(error) => without_run_dir(spec, error).map(|()| None),
    }
}

/// Writes who the master of the job is.
fn announce(
    spec: &JobSpec,
    dir: &mut Option<RunDir>,
    master: &str,
    job: &str,
    token: &Token,
) -> Result<(), JobError> {
    let Some(announced) = dir.as_ref().map(|dir| dir.announce(master, job, token)) else { return Ok(()) };
    match announced {
        Ok(generation) => tracing::debug!(generation, "this master is announced"),
        Err(error) => {
            without_run_dir(spec, error)?;
            *dir = None;
        }
    }
    Ok(())
}

fn without_run_dir(spec: &JobSpec, error: RunDirError) -> Result<(), JobError> {
    let asked = spec.run_dir.is_some() || spec.elect.is_some();
    // Even where no directory was asked for: the report folder and its checkpoints are of the job that runs there.
    let in_use =
        matches!(error, RunDirError::Taken { .. } | RunDirError::Orphans { .. } | RunDirError::Torn { .. });
    if asked || in_use {
        return Err(error.into());
    }
    tracing::warn!(%error, "the job has no run directory: no later command can reach it");
    Ok(())
}

/// Whether another master may go on with the nodes of the job when this one dies: the job has a place of its own, which the
/// user finds again, and its nodes are AntDT's, which wait for a master. An emulated network is in the master's memory.
fn may_be_taken_over(spec: &JobSpec, programs: &Programs) -> bool {
    (spec.run_dir.is_some() || spec.report_dir.is_some())
        && !programs.foreign
        && spec.emulate_network.is_none()
}

/// How long the kernel may still be at the end of a master whose job another one takes over.
const CLAIM_PATIENCE: Duration = Duration::from_secs(1);

/// Claims the folder of checkpoints, unless masters are elected: the last one may stand still, with its claim.
fn claimed(spec: &JobSpec, place: &Path, patience: Duration) -> Result<Option<Claim>, ClaimError> {
    if spec.elect.is_some() { Ok(None) } else { Claim::take(place, patience) }
}

/// What a job goes on with whose master has ended.
fn go_on(orphaned: &Orphaned) -> Result<Begun, JobError> {
    let JobFile { spec, job, dataset, first, .. } = &orphaned.file;
    let mut claim = None;
    let folder = match (&spec.checkpoint_dir, first) {
        (Some(place), Some(first)) => {
            claim = claimed(spec, place, CLAIM_PATIENCE)?;
            Some((Folder::create(place.clone()).map_err(JobError::Checkpoints)?, *first))
        }
        _ => None,
    };
    let alive = orphaned.alive;
    let mut resumed = format!(
        "took over job {job} from a master that ended: {alive} of its nodes live; times, steps and events are those from here on"
    );
    if let Some(file) = &spec.record {
        resumed += &format!(", and the recording {} ends with that master", file.display());
    }
    // It may have other servers than it began with.
    let spec = JobSpec { servers: servers(&orphaned.state).unwrap_or(spec.servers), ..spec.clone() };
    Ok(Begun { spec, dataset: Some(dataset.clone()), folder, claim, snapshot: None, resumed: Some(resumed) })
}

/// Lives of which the launcher of an earlier master has left nothing, though they had not ended.
fn unknown(state: &HeadState) -> Vec<Holder> {
    let known = |holder| state.handles.iter().any(|(known, _)| *known == holder);
    let live = |status| !matches!(status, NodeStatus::Lost | NodeStatus::Finished);
    let nodes = state.record.nodes.iter().filter(|node| live(node.status) && !known(node.holder));
    nodes.map(|node| node.holder).collect()
}

/// Number of workers that the job had and wanted.
fn present(state: &HeadState) -> u32 {
    let nodes = state.record.nodes.iter();
    let workers = nodes.filter(|node| node.holder.node.role == Role::Worker && !node.retiring).count();
    u32::try_from(workers).unwrap_or(u32::MAX)
}

/// Number of servers that the job had; `None` if its master ended before it had started any.
fn servers(state: &HeadState) -> Option<u32> {
    let servers = state.record.nodes.iter().filter(|node| node.holder.node.role == Role::Server);
    let present = servers.filter(|node| !node.retired).count();
    u32::try_from(present).ok().filter(|servers| *servers > 0)
}

/// What became of the samples, and which of them are not done.
async fn balance(epochs: u32, ledger: &ShardHandle) -> Result<(Counts, Vec<MissingEntry>), SourceError> {
    /// Shards looked at in each epoch: more than the ranges that are listed.
    const SHARDS: usize = 4 * Report::MISSING_MAX;
    let counts = ledger.status().await?.counts;
    let mut missing = Vec::new();
    if counts.acked < counts.total {
        for epoch in (0..epochs).map(Epoch) {
            let ranges = ledger.missing(epoch, SHARDS).await?;
            missing.extend(ranges.into_iter().take(Report::MISSING_MAX - missing.len()).map(|range| {
                MissingEntry {
                    epoch: range.epoch.0,
                    first: range.samples.start,
                    last: range.samples.end.saturating_sub(1),
                    why: match range.why {
                        MissingWhy::Waiting => "waiting",
                        MissingWhy::Leased => "leased",
                        MissingWhy::Quarantined => "quarantined",
                    }
                    .to_owned(),
                }
            }));
            if missing.len() == Report::MISSING_MAX {
                break;
            }
        }
    }
    Ok((counts, missing))
}

async fn forward_events(
    mut events: mpsc::UnboundedReceiver<LauncherEvent>,
    head: Mailbox<Head>,
    nodes: Arc<Mutex<Option<Nodes>>>,
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
        };
        if head.send(event).await.is_err() {
            return;
        }
    }
}

/// Ticks until the job is over.
async fn watch_job(
    spec: &JobSpec,
    head: &Mailbox<Head>,
    (recorder, pace, workers): (&Mutex<Recorder>, &Mutex<Pace>, &AtomicU32),
    (ledger, later): (Option<&ShardHandle>, u64),
    console: &Console,
    (mut end, stop): (oneshot::Receiver<Result<(), String>>, &CancellationToken),
    mut chooser: Option<Chooser>,
) -> Result<(Result<(), String>, Option<SyncMode>), JobError> {
    let mut tick = tokio::time::interval(spec.control_tick);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let gone = || JobError::Master("the head has ended".to_owned());
    let (mut stopping, mut next) = (false, None::<(SyncMode, String)>);
    loop {
        tokio::select! {
            outcome = &mut end => {
                if let Some(Chooser { modes, .. }) = &chooser {
                    let text = format!("--sync auto: {}, since the job ended before its steps were measured", modes[0]);
                    lock(recorder).chosen = Some(text);
                }
                let outcome = outcome.map_err(|_| gone())?;
                // It may have come to an end of its own meanwhile.
                let next = next.filter(|(_, why)| outcome.as_ref().is_err_and(|ended| ended == why));
                return Ok((outcome, next.map(|(mode, _)| mode)));
            }
            () = stop.cancelled(), if !stopping => {
                (stopping, next) = (true, None);
                head.send(HeadEvent::Stop(INTERRUPTED.to_owned())).await.map_err(|_| gone())?;
            }
            _ = tick.tick() => {
                let status = match ledger {
                    Some(ledger) => Some(ledger.status().await.map_err(|e| JobError::Master(e.to_string()))?),
                    None => None,
                };
                if status.is_some_and(|status| status.failed) {
                    let why = "too many samples could not be read; the report lists them".to_owned();
                    head.send(HeadEvent::Stop(why)).await.map_err(|_| gone())?;
                }
                let counts = status.map(|status| status.counts);
                let HeadAnswer::Seen(seen) = head.call(HeadEvent::Tick(counts)).await.map_err(|_| gone())? else {
                    continue;
                };
                let Counts { acked, total, .. } = counts.unwrap_or_default();
                let total = total + later;
                #[allow(clippy::cast_precision_loss, reason = "an estimate for people")]
                let left = total.saturating_sub(acked) as f64;
                if let Some(choice) = chooser
                    .as_ref()
                    .and_then(|chooser| lock(recorder).probe.choose(chooser, total.saturating_sub(acked)))
                {
                    let Some(Chooser { modes, fixed, .. }) = chooser.take() else { continue };
                    let text = match fixed {
                        Some(why) if choice.at != 0 => {
                            format!("--sync auto: goes on in {}, since {why}; {}", modes[0], choice.why)
                        }
                        _ => format!("--sync auto: {}", choice.why),
                    };
                    console.line(OutputStream::Err, text.clone());
                    lock(recorder).chosen = Some(text);
                    if choice.at != 0 && fixed.is_none() {
                        let mode = modes[choice.at].clone();
                        let why = format!("goes on with --sync {mode}");
                        next = Some((mode, why.clone()));
                        head.send(HeadEvent::Stop(why)).await.map_err(|_| gone())?;
                    }
                }
                let (steps, loss) = lock(recorder).pulse();
                let rate = seen.samples_per_second;
                *lock(pace) = Pace { members: seen.members, samples_per_second: rate };
                console.progress(LiveProgress {
                    step: steps,
                    samples_per_second: rate,
                    loss,
                    members: seen.members,
                    workers: workers.load(Ordering::Relaxed) as usize,
                    stragglers: seen.stragglers,
                    committed: acked,
                    expected: total,
                    remaining_s: (rate > 0.0).then(|| left / rate),
                });
            }
        }
    }
}

/// Waits until all nodes are gone. Nodes of a job that went well exit by themselves: workers are done, servers are told
/// with their next heartbeat. All others are asked to, and then killed.
async fn end_nodes(mut nodes: Nodes, went_well: bool) {
    if went_well && wait_until_gone(&mut nodes, EXIT_PATIENCE).await {
        return;
    }
    nodes.end_all(GRACE);
    if !wait_until_gone(&mut nodes, GRACE + KILL_PATIENCE).await {
        tracing::error!(
            ?nodes,
            "the launcher could not end all nodes; they end by themselves after --master-grace"
        );
    }
}

/// Returns whether all nodes are gone, at the latest when `patience` is over.
async fn wait_until_gone(nodes: &mut Nodes, patience: Duration) -> bool {
    let deadline = tokio::time::Instant::now() + patience;
    while nodes.any_left() {
        if tokio::time::Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // What is behind these locks is valid after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn report(
    spec: &JobSpec,
    job: String,
    outcome: Result<(), String>,
    (counts, missing): (&Counts, Vec<MissingEntry>),
    mut recorder: Recorder,
    (shards, by_worker, duplicated): (Vec<ShardSpan>, BTreeMap<NodeId, u64>, u64),
    took: Duration,
) -> Report {
    let samples = SampleBalance::of(counts, outcome.is_err(), duplicated);
    let model_spread = recorder.model_spread();
    recorder.enter_times();
    let workers = recorder
        .workers
        .into_iter()
        .map(|(node, mut worker)| {
            worker.samples = by_worker.get(&node).copied().unwrap_or(0);
            worker
        })
        .collect();
    let mut quality = recorder.quality;
    if spec.eval_fraction > 0.0 {
        quality.measured_on = MeasuredOn::HeldOut;
    }
    if quality.loss.is_none() {
        quality.loss = recorder.loss.points().last().map(|point| point.loss);
    }
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        job_id: job,
        outcome: match outcome {
            Ok(()) => Outcome::Completed,
            Err(why) => Outcome::Failed { why },
        },
        missing,
        job_completion_time_s: recorder.completed.map_or(took, JobTime::since_start).as_secs_f64(),
        samples,
        steps: recorder.steps,
        policy: spec.policy.clone(),
        sync: spec.sync.to_string(),
        seed: spec.seed,
        emulated: (0..spec.workers).any(|worker| spec.speed(worker).is_some()),
        actions: recorder.actions,
        events: recorder.events,
        workers,
        final_quality: quality,
        loss_curve: recorder.loss,
        shards,
        resumed: recorder.resumed,
        chosen: recorder.chosen,
        evaluations: recorder.evaluations,
        stopped_early: recorder.stopped_early,
        checkpoint: recorder.checkpoint,
        model_spread,
        config: spec.texts(),
    };
    let SampleBalance { lost, duplicated, quarantined, expected, .. } = samples;
    if report.outcome == Outcome::Completed && (!samples.is_exact() || quarantined > 0) {
        let which = report.missing_text();
        report.outcome = Outcome::Incomplete {
            why: format!(
                "{} of {expected} samples are missing, {quarantined} of them unreadable, {duplicated} were committed \
                 twice: {which}",
                lost + quarantined
            ),
        };
    }
    report
}
