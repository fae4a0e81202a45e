//! The master of a job: serves shards and the control plane, starts the nodes, and records what happens.
//!
//! A job goes through five steps, a file each: `prepare`, `listen`, `start`, `watch` and `close`.

mod again;
mod choice;
mod claim;
mod close;
mod commit_rate;
mod console;
mod desk;
mod error;
mod evaluations;
mod fleet;
mod http;
mod journal;
mod listen;
pub(crate) mod node_logs;
mod operate;
mod outcome;
mod prepare;
mod record;
mod restorer;
pub(crate) mod runner;
mod scaler;
mod seams;
mod serve;
mod service;
mod shards;
mod sink;
mod start;
mod used;
mod waits;
mod watch;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use antdt_core::ParamLayout;
use antdt_job::SyncMode;
use antdt_rt::CancellationToken;

use crate::descriptors;
use crate::job::JobSpec;
use crate::report::Report;
use again::{Before, as_scaled};
use http::{HttpServer, Window};
use start::Order;

pub use antdt_job::{EventKind, Note};
pub use claim::ClaimError;
pub use error::JobError;
pub(crate) use evaluations::lacks as lacks_evaluation;
pub(crate) use fleet::Fleet;
#[cfg(feature = "cli")]
pub(crate) use journal::settings;
pub(crate) use journal::{Orphaned, left_settings};
pub use seams::{PartError, RecorderFactory, Seams, StoreFactory};
pub use sink::{JobNote, JobStart, NoteSink, SinkFactory};

/// Why a job ended that was told to stop.
const INTERRUPTED: &str = "interrupted";

/// Programs that the nodes of a job run, with their environment.
#[derive(Debug, Clone, PartialEq)]
pub struct Programs {
    /// Path of the worker program, and its arguments.
    pub worker: (PathBuf, Vec<std::ffi::OsString>),
    /// Path of the server program, and its arguments; unused without servers.
    pub server: (PathBuf, Vec<std::ffi::OsString>),
    /// Environment variables for all nodes, besides those of [`NodeEnv`](crate::node::NodeEnv) and of torchrun.
    pub env: Vec<(String, String)>,
    /// Shape of the parameters, which servers need; `None` if the worker program has its data from elsewhere.
    pub layout: Option<ParamLayout>,
    /// Whether the worker program is the user's own, which need not register with the master.
    pub foreign: bool,
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
/// [`Outcome::Completed`](crate::report::Outcome::Completed).
pub async fn run(
    spec: &JobSpec,
    data: Option<TrainingData>,
    programs: &Programs,
    seams: Seams,
    stop: CancellationToken,
) -> Result<Report, JobError> {
    let launcher = seams.launcher.clone().map_or_else(|| spec.built_launcher(), Ok)?;
    let fleet = Fleet::new(&launcher, spec, spec.quiet);
    run_or_take_over(spec, data, programs, &seams, fleet, stop, None).await
}

/// As [`run`], with the launcher of `fleet` first; goes on with the nodes of `orphaned`, whose settings are `spec`.
pub(crate) async fn run_or_take_over(
    spec: &JobSpec,
    data: Option<TrainingData>,
    programs: &Programs,
    seams: &Seams,
    fleet: Fleet,
    stop: CancellationToken,
    orphaned: Option<Orphaned>,
) -> Result<Report, JobError> {
    spec.validate()?;
    descriptors::raise();
    descriptors::check_master(spec.workers, spec.servers).map_err(JobError::Descriptors)?;
    let modes = spec.choices();
    let mut now = spec.in_mode(modes[0].clone());
    let choice = (spec.sync.choice().is_some() && orphaned.is_none())
        .then(|| choice::of(spec, modes, programs, data.is_some()));
    let (launcher, console, logs) = (fleet.factory(), fleet.console.clone(), fleet.logs.clone());
    let mut orphaned = orphaned;
    let server = open_http(spec, orphaned.is_some()).await?;
    let window = server.as_ref().map(HttpServer::window);
    let before = None;
    let mut order =
        Order { programs, seams, fleet, window: window.clone(), choice, before, stop: stop.clone() };
    let ended = loop {
        let (report, next) = match run_once(&now, data.as_ref(), orphaned.take(), order).await {
            Ok((report, Some(next))) => (report, next),
            ended => break ended.map(|(report, _)| report),
        };
        let (mode, behind) = next;
        let resume = report.checkpoint.map(|checkpoint| checkpoint.folder).or_else(|| now.resume.clone());
        let scaled = as_scaled(spec.in_mode(mode), behind.workers, behind.servers);
        now = JobSpec { resume, job_id: Some(report.job_id), ..scaled };
        let fleet = Fleet::with(&launcher, console.clone(), logs.clone());
        let (window, before) = (window.clone(), Some(behind));
        order = Order { programs, seams, fleet, window, choice: None, before, stop: stop.clone() };
    };
    if let Some(server) = server {
        server.close().await;
    }
    console.finish();
    ended
}

/// Opens the listener for readers of the job's page. That a successor of a dead master cannot have it is no reason to give its nodes
/// up.
async fn open_http(spec: &JobSpec, is_successor: bool) -> Result<Option<HttpServer>, JobError> {
    match HttpServer::open(spec).await {
        Err(error) if is_successor => {
            tracing::warn!(%error, "the job goes on without its page");
            Ok(None)
        }
        opened => opened,
    }
}

/// Runs a job until its mode changes, or to its end. Returns the mode that it is to go on in, if it is to, and what
/// it then has behind it.
async fn run_once(
    spec: &JobSpec,
    data: Option<&TrainingData>,
    orphaned: Option<Orphaned>,
    mut order: Order<'_>,
) -> Result<(Report, Option<(SyncMode, Before)>), JobError> {
    // Whichever way this function is left, no writer goes on waiting.
    let closing = order.fleet.console.close_on_drop();
    let since = order.before.as_ref().map(|before| before.job_start);
    let parts = (order.seams, &*order.fleet.launcher);
    let mut prepared = prepare::prepare(spec, data, order.programs, parts, orphaned, since)?;
    if let Some(before) = &order.before {
        prepared.evaluations.clone_from(&before.recorder.evaluations);
    }
    // Not before: the run directory and the folders of a job that runs there are its own.
    let sinks = match &order.before {
        Some(before) => before.sinks.clone(),
        None => sink::open(spec, (&order.fleet.console, order.window.as_ref()), &order.seams.sinks)?,
    };
    let window: Option<Window> = order.window.clone();
    let listening = listen::listen(&prepared, &mut *order.fleet.launcher, &order.seams.connections).await?;
    let mut running = start::start(prepared, listening, order, sinks).await?;
    let ended = watch::watch(&mut running).await;
    if let Some(window) = window {
        window.operate(None);
    }
    let ended = ended?;
    drop(closing);
    close::close(running, ended).await
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // What is behind these locks is valid after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
