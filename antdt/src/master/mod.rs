//! The master of a job: serves shards and the control plane, starts the nodes, and writes down what happens.

mod console;
mod operate;
mod record;
mod recorder;
mod runner;
mod service;
mod shards;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use antdt_controller::policy::PolicyError;
use antdt_controller::runtime::launcher::ProcessLauncher;
use antdt_controller::{LauncherEvent, LauncherFactory, Outlets};
use antdt_core::{Counts, Epoch, Exit, Holder, Incarnation, InvalidValue, JobTime, NodeId, Seed};
use antdt_job::{Head, HeadAnswer, HeadConfig, HeadEvent};
use antdt_monitor::{LivenessConfig, MonitorConfig, classify};
use antdt_proto::v1::control_server::ControlServer;
use antdt_proto::v1::job_server::JobServer;
use antdt_proto::{Token, TokenCheck};
use antdt_rt::{CancellationToken, JobClock, Mailbox, TraceWriter, drive_recorded, mailbox};
use antdt_shard::runtime::{ShardHandle, ShardServer, ShardService};
use antdt_shard::{Assignment, DatasetSpec, Epochs, MissingWhy, NullStore, OnQuarantine, SourceError};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::InterceptorLayer;

use crate::job::{JobSpec, Sharding};
use crate::net;
use crate::node::NodeEnv;
use crate::report::{MeasuredOn, MissingEntry, Outcome, Progress, Report, SampleBalance};
use crate::run_dir::{self, RunDir, RunDirError};
use crate::worker::TRAIN_DATASET;
use console::Console;
use operate::{JobService, Pace};
use recorder::Recorder;
use runner::{HeadRunner, NodeTemplate, Nodes};
use service::{ControlService, Parked};
use shards::{ShardTap, ShardWatch};

/// Events that may wait for the head; a caller beyond that waits its turn.
const INBOX_BOUND: usize = 1024;

/// How long nodes may take to exit by themselves after the job is over.
const EXIT_PATIENCE: Duration = Duration::from_secs(3);

/// How long a node that was asked to exit may take before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// How long the launcher may take to end the nodes that were killed, before the master gives up waiting.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// What runs as a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Programs {
    /// The worker program and its arguments.
    pub worker: (std::path::PathBuf, Vec<std::ffi::OsString>),
    /// The server program and its arguments; not needed without servers.
    pub server: (std::path::PathBuf, Vec<std::ffi::OsString>),
    /// Environment variables for all nodes, besides those of [`NodeEnv`] and of torchrun.
    pub env: Vec<(String, String)>,
    /// Whether the worker program is the user's own, which may do without the master: it need not register.
    pub foreign: bool,
}

/// Why a job could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// A setting cannot be used.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// The policy is unknown.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The port is taken, or the address is not this machine's.
    #[error(
        "--bind, --master-port = {address}: {source}; choose an address of this machine, and another port or 0 for a free one"
    )]
    Listen {
        /// The address that was asked for.
        address: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The master listens on all addresses and cannot know which of them others reach it by.
    #[error(
        "--advertise = (nothing): with --bind {bind} it is needed; say the address or name by which the nodes reach this machine"
    )]
    Advertise {
        /// The address that was asked for.
        bind: String,
    },
    /// The run directory cannot be used.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The job cannot be recorded there.
    #[error("--record = {}: {why}", file.display())]
    Record {
        /// The file that was asked for.
        file: std::path::PathBuf,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// A part of the master failed.
    #[error("the master failed: {0}")]
    Master(String),
}

/// Builds the launcher of nodes that are processes of this machine.
pub fn local() -> LauncherFactory {
    Box::new(|outlets| Box::new(ProcessLauncher::new(outlets)))
}

/// Runs a job to its end and returns its report. `samples` is the number of training samples; `None` if the program
/// takes its data from elsewhere. `launcher` builds the launcher that starts the nodes; [`local`] starts them on this
/// machine. Cancel `stop` to end the job early: it then counts as failed.
///
/// When this returns, no node is left that the launcher can reach.
///
/// # Errors
/// If the job could not start. A job that started and failed is a report with another outcome than
/// [`Outcome::Completed`].
pub async fn run(
    spec: &JobSpec,
    samples: Option<u64>,
    programs: &Programs,
    launcher: LauncherFactory,
    stop: CancellationToken,
) -> Result<Report, JobError> {
    spec.validate()?;
    let record = match &spec.record {
        Some(path) => Some((path.as_path(), record::open(path)?)),
        None => None,
    };
    let listen = |source| JobError::Listen { address: net::join(&spec.bind, spec.master_port), source };
    let ip = net::bind_address(&spec.bind).map_err(listen)?;
    let listener = TcpListener::bind((ip, spec.master_port)).await.map_err(listen)?;
    let local = listener.local_addr().map_err(listen)?;
    let master = match &spec.advertise {
        Some(host) => net::join(host, local.port()),
        None if ip.is_unspecified() => return Err(JobError::Advertise { bind: spec.bind.clone() }),
        None => local.to_string(),
    };
    let token = secret()?;
    let stop = stop.child_token();
    let clock = JobClock::start();
    let job_start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let job = spec.job_id.clone().unwrap_or_else(|| format!("antdt-{:x}", job_start.as_nanos()));

    // The head outlives the servers, so that late calls are answered; the ledger outlives the head.
    let (stop_servers, stop_head, stop_ledger) =
        (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    let watch = Arc::new(Mutex::new(ShardWatch::default()));
    let config = HeadConfig {
        sync: spec.sync.clone(),
        workers: spec.workers,
        servers: spec.servers,
        global_batch_size: spec.global_batch_size,
        heartbeat: spec.heartbeat,
        max_restarts: spec.max_restarts,
        must_register: !programs.foreign,
        policy: spec.built_policy()?,
        monitor: MonitorConfig {
            liveness: LivenessConfig::of(spec.heartbeat, spec.silence_limit),
            ..MonitorConfig::default()
        },
    };
    let dataset = samples.map(|samples| dataset(spec, samples));
    let trace = match record {
        Some((path, file)) => Some(record::start(path, file, spec, &job, &config, dataset.as_ref())?),
        None => None,
    };
    let ledger = match dataset {
        Some(dataset) => {
            Some(start_ledger(dataset, clock, stop_ledger.clone(), &watch, trace.as_ref()).await?)
        }
        None => None,
    };
    let head = Head::new(config)?;
    let _run_dir = announce(spec, &master, &job, &token)?;
    let (mailbox, inbox) = mailbox(INBOX_BOUND);
    let parked = Parked::default();
    let recorder = Arc::new(Mutex::new(Recorder::new(spec.sync.capabilities(), spec.workers)));
    let console = Console::start(spec.quiet);
    // Whichever way this function is left, nobody goes on waiting to write.
    let closing = console.close_on_drop();
    // Bounded by what it carries: two events for each life, and the head bounds the lives.
    let (told, events) = mpsc::unbounded_channel();
    let nodes = Nodes::new(launcher(outlets(told, &console)), spec.workers);
    let nodes = Arc::new(Mutex::new(Some(nodes)));
    let (ended, end) = oneshot::channel();
    let runner = HeadRunner {
        nodes: Arc::clone(&nodes),
        template: template(spec, (local.ip(), &master), (&job, &token), job_start, programs).await?,
        ledger: ledger.as_ref().map(ShardService::handle),
        parked: parked.clone(),
        recorder: Arc::clone(&recorder),
        head: mailbox.clone(),
        ended: Some(ended),
    };
    let head_trace = trace.as_ref().map(|trace| trace.recorder("head"));
    let head_task = tokio::spawn(drive_recorded(head, inbox, runner, clock, stop_head.clone(), head_trace));
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(forward_events(events, mailbox.clone()));

    let pace = Arc::new(Mutex::new(Pace::default()));
    let operate = JobService {
        job: job.clone(),
        workers: spec.workers,
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
        .add_service(ControlServer::new(ControlService::new(job.clone(), mailbox.clone(), parked.clone())))
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
    let closed = |_| JobError::Master("the head has ended".to_owned());
    mailbox.call(HeadEvent::Begin).await.map_err(closed)?;
    let outcome =
        watch_job(spec, &mailbox, (&recorder, &pace), handle.as_ref(), &console, end, &stop).await?;
    drop(closing);

    parked.clear();
    // Nothing is started any more.
    let taken = lock(&nodes).take();
    if let Some(nodes) = taken {
        end_nodes(nodes, outcome.is_ok()).await;
    }
    console.finish();
    stop_servers.cancel();
    let (counts, missing) = match &handle {
        Some(handle) => balance(spec, handle).await.map_err(|e| JobError::Master(e.to_string()))?,
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
    let recorder = lock(&recorder).clone();
    Ok(report(spec, job, outcome, (&counts, missing), recorder, watch, clock.now()))
}

/// What the ledger hands out.
fn dataset(spec: &JobSpec, samples: u64) -> DatasetSpec {
    let (batch, workers) = (spec.global_batch_size, spec.workers);
    let mut dataset = DatasetSpec::of_job(TRAIN_DATASET, samples, batch, workers, spec.shard_len);
    dataset.epochs = Epochs::Finite(spec.epochs);
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
    clock: JobClock,
    shutdown: CancellationToken,
    watch: &Arc<Mutex<ShardWatch>>,
    trace: Option<&TraceWriter>,
) -> Result<ShardService<std::convert::Infallible>, JobError> {
    let watchers = (ShardTap::new(Arc::clone(watch)), trace.map(|trace| trace.recorder("ledger")));
    ShardService::start_watched(dataset, NullStore, clock, shutdown, watchers)
        .await
        .map_err(|e| JobError::Master(e.to_string()))
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
    Ok(NodeTemplate {
        node: NodeEnv {
            master: master.to_string(),
            job: job.to_owned(),
            token: token.clone(),
            bind: spec.bind.clone(),
            advertise: spec.advertise.clone(),
            holder: Holder::new(NodeId::worker(0), Incarnation(0)),
            job_start,
            spec: spec.clone(),
        },
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

/// Writes the run directory of the job. A directory that was not asked for is no reason to refuse the job.
fn announce(spec: &JobSpec, master: &str, job: &str, token: &Token) -> Result<Option<RunDir>, JobError> {
    let Some(path) = run_dir::place(spec, job) else {
        tracing::info!("neither XDG_STATE_HOME nor HOME is set: the job has no run directory");
        return Ok(None);
    };
    match RunDir::announce(&path, master, job, token) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if spec.run_dir.is_none() => {
            tracing::warn!(%error, "the job has no run directory: no later command can reach it");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Where the launcher's events and its nodes' lines go.
fn outlets(events: mpsc::UnboundedSender<LauncherEvent>, console: &Console) -> Outlets {
    let console = console.clone();
    Outlets {
        // A master that has ended has no use for events.
        events: Arc::new(move |event| drop(events.send(event))),
        lines: Arc::new(move |output| console.line(output.stream, output.to_string())),
    }
}

/// What became of the samples, and which of them are not done.
async fn balance(spec: &JobSpec, ledger: &ShardHandle) -> Result<(Counts, Vec<MissingEntry>), SourceError> {
    /// Shards looked at in each epoch: more than the ranges that are listed.
    const SHARDS: usize = 4 * Report::MISSING_MAX;
    let counts = ledger.status().await?.counts;
    let mut missing = Vec::new();
    if counts.acked < counts.total {
        for epoch in (0..spec.epochs).map(Epoch) {
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

async fn forward_events(mut events: mpsc::UnboundedReceiver<LauncherEvent>, head: Mailbox<Head>) {
    while let Some(event) = events.recv().await {
        let event = match event {
            LauncherEvent::Started { holder } => HeadEvent::Started(holder),
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
    (recorder, pace): (&Mutex<Recorder>, &Mutex<Pace>),
    ledger: Option<&ShardHandle>,
    console: &Console,
    mut end: oneshot::Receiver<Result<(), String>>,
    stop: &CancellationToken,
) -> Result<Result<(), String>, JobError> {
    let mut tick = tokio::time::interval(spec.control_tick);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let gone = || JobError::Master("the head has ended".to_owned());
    let mut stopping = false;
    loop {
        tokio::select! {
            outcome = &mut end => return outcome.map_err(|_| gone()),
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                head.send(HeadEvent::Stop("interrupted".to_owned())).await.map_err(|_| gone())?;
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
                let counts = counts.unwrap_or_default();
                #[allow(clippy::cast_precision_loss, reason = "an estimate for people")]
                let left = counts.total.saturating_sub(counts.acked) as f64;
                let (steps, loss) = lock(recorder).pulse();
                let rate = seen.samples_per_second;
                *lock(pace) = Pace { members: seen.members, samples_per_second: rate };
                console.progress(Progress {
                    step: steps,
                    samples_per_second: rate,
                    loss,
                    members: seen.members,
                    workers: spec.workers as usize,
                    stragglers: seen.stragglers,
                    committed: counts.acked,
                    expected: counts.total,
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
    recorder: Recorder,
    watch: ShardWatch,
    now: JobTime,
) -> Report {
    let samples = SampleBalance::of(counts, watch.duplicated(), recorder.repeated_at_most);
    let (shards, by_worker) = watch.finish(now);
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
        job_completion_time_s: recorder.completed.unwrap_or(now).as_secs_f64(),
        samples,
        steps: recorder.steps,
        policy: spec.policy.clone(),
        sync: spec.sync.to_string(),
        seed: spec.seed,
        emulated: spec.emulate_speed.is_some(),
        actions: recorder.actions,
        events: recorder.events,
        workers,
        final_quality: quality,
        loss_curve: recorder.loss,
        shards,
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
