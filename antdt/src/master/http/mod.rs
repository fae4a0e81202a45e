//! The job on `--http-addr`: its live page, metrics for Prometheus, and buttons for the holder of the job's token.
//!
//! Everything is one listener of plain HTTP/1. Callers are strangers until they have shown the token: their connections are bounded
//! and timed by the same doorway as those of the gRPC port, carry one request each, and are closed when that takes too long. They may
//! read; whoever changes something must be a page of this address and have the token, and goes through the very same
//! [service](super::operate::JobService) as `antdt scale` and its like.
//!
//! The listener outlives the starts of the job's processes: it is opened before the first, and closed after the last.

mod answer;
mod door;
mod events;
mod guard;
mod routes;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use antdt_core::JobTime;
use antdt_proto::TokenCheck;
use antdt_rt::CancellationToken;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::operate::JobService;
use super::runner::Nodes;
use super::{JobError, JobNote, lock};
use crate::job::JobSpec;
use crate::live::JobView;
use crate::{host, net};
use guard::HostNames;

/// Readers of the live page at a time: a master has so many descriptors to spare. With 1,000 workers each costs some ten kilobytes a
/// second.
const READERS_MAX: usize = 16;

/// Pause between two states that a reader is sent: what changes between them is seen together.
const STATE_EVERY: Duration = Duration::from_secs(1);

/// How long readers may take for the last state after the job is over.
const LAST_STATE: Duration = Duration::from_secs(2);

/// How long a head may be silent that tells of every control tick, before the job counts as ill.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// The state of a job, and what wakes the readers of it.
#[derive(Debug)]
pub(super) struct Board {
    view: Mutex<JobView>,
    /// The version that readers should see.
    version: watch::Sender<u64>,
    told: Mutex<Instant>,
}

impl Board {
    fn new() -> Self {
        Self { view: Mutex::default(), version: watch::Sender::new(0), told: Mutex::new(Instant::now()) }
    }

    /// Takes a note of the job.
    pub(super) fn note(&self, at: JobTime, note: &JobNote) {
        *lock(&self.told) = Instant::now();
        let is_over = {
            let mut view = lock(&self.view);
            view.note(at, note);
            view.is_over()
        };
        if is_over {
            self.publish();
        }
    }

    /// Wakes readers that have not seen the newest state.
    fn publish(&self) {
        let newest = lock(&self.view).version();
        self.version.send_if_modified(|version| std::mem::replace(version, newest) != newest);
    }
}

/// What answers operators while the processes of the job run.
#[derive(Debug, Clone)]
struct Operator {
    service: JobService,
    check: TokenCheck,
}

/// What the listener and the job share.
#[derive(Debug)]
struct Shown {
    /// Where the page is, without the scheme.
    address: String,
    names: HostNames,
    board: Arc<Board>,
    operator: Mutex<Option<Operator>>,
    seats: Arc<Semaphore>,
    stop: CancellationToken,
}

/// The job's side of the listener. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Window(Arc<Shown>);

impl Window {
    /// The address of the page.
    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.0.address)
    }

    /// Where notes go.
    pub(super) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.0.board)
    }

    /// From now on operators are answered by `service`, if they have the token that `check` wants; by none with `None`.
    pub(super) fn operate(&self, answers: Option<(JobService, TokenCheck)>) {
        *lock(&self.0.operator) = answers.map(|(service, check)| Operator { service, check });
    }

    /// Learns where the launcher has placed the nodes.
    fn look(&self) {
        let operator = lock(&self.0.operator).clone();
        let Some(Operator { service, .. }) = operator else { return };
        let nodes = lock(&service.nodes).as_ref().map(Nodes::latest).unwrap_or_default();
        let placed = nodes.into_iter().filter_map(|node| Some((node.holder.node, node.host?)));
        lock(&self.0.board.view).placed(placed);
    }
}

/// The listener, which is closed when this is dropped.
#[derive(Debug)]
pub(super) struct HttpServer {
    window: Window,
    tasks: JoinSet<()>,
}

impl HttpServer {
    /// Opens the listener that the settings ask for, if they ask for one.
    pub(super) async fn open(spec: &JobSpec) -> Result<Option<Self>, JobError> {
        let Some(wanted) = &spec.http_addr else { return Ok(None) };
        let refused = |source| JobError::HttpListen { address: wanted.to_string(), source };
        let ip = net::bind_address(&wanted.host).map_err(refused)?;
        let listener = TcpListener::bind((ip, wanted.port)).await.map_err(refused)?;
        let port = listener.local_addr().map_err(refused)?.port();
        let name = if ip.is_unspecified() {
            spec.advertise.clone().unwrap_or_else(host::name)
        } else {
            wanted.host.clone()
        };
        let names = [Some(wanted.host.clone()), spec.advertise.clone(), Some(host::name())];
        let window = Window(Arc::new(Shown {
            address: net::join(&name, port),
            names: HostNames::new(names.into_iter().flatten()),
            board: Arc::new(Board::new()),
            operator: Mutex::default(),
            seats: Arc::new(Semaphore::new(READERS_MAX)),
            stop: CancellationToken::new(),
        }));
        let mut tasks = JoinSet::new();
        tasks.spawn(door::serve(listener, routes::router(window.clone()), window.0.stop.clone()));
        tasks.spawn(events::pulse(window.clone()));
        Ok(Some(Self { window, tasks }))
    }

    pub(super) fn window(&self) -> Window {
        self.window.clone()
    }

    /// Lets readers have the last state, for a moment at most, and closes the listener.
    pub(super) async fn close(mut self) {
        self.window.0.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        // Those that are left are ended with the tasks.
        let _ = tokio::time::timeout(LAST_STATE, ended).await;
    }
}
