//! A parameter server: one thread per connection around one [`Partition`].

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use antdt_collective::runtime::abort::Interest;
use antdt_collective::runtime::{BulkListener, BulkStream, ChannelError, Fabric};
use antdt_collective::{AbortHandle, CollectiveError, JobToken};
use antdt_core::{CallerId, CheckpointId, Connections, DoorwayLimits, Holder, InvalidValue, PushMark};

use super::door::Door;
use super::stream::{MessageStream, StreamError};
use crate::gradient::SparseGradient;
use crate::wire::{PsHello, PsRefusal, PsReply, PsRequest};
use crate::{CommitError, Partition, PartitionConfig, Portion, PullError, Push, PushError, Trained};

/// Copies that are kept for their writers: beyond, the oldest is one that no caller waits for any more.
const COPIES_MAX: usize = 4;

/// Longest hello, in bytes: room for the shapes of thousands of tables.
const HELLO_MAX_BYTES: u64 = 64 << 10;

/// Settings of a parameter server.
#[derive(Debug, Clone, PartialEq)]
pub struct PsServerConfig {
    /// Partition of the model that the server holds.
    pub partition: PartitionConfig,
    /// Token of the job; processes of other jobs are refused.
    pub job: JobToken,
    /// How workers connect with the server. Default: over plain streams.
    pub connections: Connections,
    /// Largest number of connections with workers at a time; each costs a thread. Default 1024.
    pub connections_max: usize,
    /// Limits of the connections whose callers have not said hello. They take none of the places of workers.
    pub doorway: DoorwayLimits,
    /// Longest message, in bytes. Default 4 GiB.
    pub message_max: u64,
    /// Longest pause of a connection between two requests. Default 10 min, because a slow worker may compute
    /// for long in between.
    pub idle_max: Duration,
    /// Longest duration of one message from its first byte to its last. Default 60 s.
    pub message_timeout: Duration,
}

impl PsServerConfig {
    /// Returns settings with the default limits.
    pub fn new(partition: PartitionConfig, job: JobToken) -> Self {
        Self {
            partition,
            job,
            connections: Connections::default(),
            connections_max: 1024,
            doorway: DoorwayLimits::default(),
            message_max: 4 << 30,
            idle_max: Duration::from_secs(600),
            message_timeout: Duration::from_secs(60),
        }
    }
}

/// Counters of a parameter server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PsServerStats {
    /// Number of pulls that the server answered.
    pub pulls: u64,
    /// Number of pushes that the server accepted.
    pub pushes: u64,
    /// Number of requests that the server refused.
    pub refused: u64,
    /// Total length of requests and replies, in bytes.
    pub bytes: u64,
    /// Time spent on requests: for each, from its last byte to its reply, without the time that it waited for
    /// other requests.
    pub service_time: Duration,
}

#[derive(Debug, Default)]
struct Counters {
    pulls: AtomicU64,
    pushes: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
    service_ns: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    config: PsServerConfig,
    partition: Mutex<Partition>,
    counters: Counters,
    /// Connections with workers.
    connections: AtomicUsize,
    door: Door,
    shutdown: AbortHandle,
    fabric: Box<dyn Fabric>,
    /// Factor by which requests take longer than they need, as the bits of a float.
    slowdown: AtomicU64,
    /// Copies that were not taken out, oldest first: the last one of a job may come while one before it is still here.
    copies: Mutex<VecDeque<ServerCopy>>,
}

/// A copy of a server's part of the model, for a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerCopy {
    /// Checkpoint that the copy is for.
    pub checkpoint: CheckpointId,
    /// Parameters and optimizer state of the server's part.
    pub portion: Portion,
}

impl Shared {
    /// Takes longer over a request than it needed, as an emulated slow server does.
    fn slow_down(&self, needed: Duration) {
        let factor = f64::from_bits(self.slowdown.load(Ordering::Relaxed));
        if factor > 1.0 {
            let longer = Duration::try_from_secs_f64(needed.as_secs_f64() * (factor - 1.0));
            // Not for so long that its workers give it up.
            let longer = longer.unwrap_or(Duration::MAX).min(self.config.message_timeout / 2);
            // An abort ends it, and the connection with the next wait.
            let _ = self.shutdown.wait_until(Instant::now() + longer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Partition> {
        self.partition.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reason why a parameter server could not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PsServerError {
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] InvalidValue),
    /// The operating system refused an operation on this host.
    #[error(transparent)]
    Io(#[from] CollectiveError),
}

/// A running parameter server. Dropping it stops it and waits for its threads.
#[derive(Debug)]
pub struct PsServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl PsServer {
    /// Listens at `address` (port 0 takes any free port) and serves over `fabric` until it is shut down.
    ///
    /// # Errors
    /// If a setting is invalid, the address is in use or does not belong to this host, or no thread can be
    /// started.
    pub fn bind(
        address: SocketAddr,
        config: PsServerConfig,
        fabric: Box<dyn Fabric>,
    ) -> Result<Self, PsServerError> {
        let partition = Partition::new(&config.partition)?;
        let listener = BulkListener::bind(address, config.connections.clone())
            .map_err(|e| CollectiveError::io(&format!("listening at {address}"), &e))?;
        let local = listener.local_address();
        let shared = Arc::new(Shared {
            door: Door::new(config.doorway),
            config,
            partition: Mutex::new(partition),
            counters: Counters::default(),
            connections: AtomicUsize::new(0),
            shutdown: AbortHandle::new()?,
            fabric,
            slowdown: AtomicU64::new(1.0_f64.to_bits()),
            copies: Mutex::new(VecDeque::new()),
        });
        let for_thread = shared.clone();
        let acceptor = std::thread::Builder::new()
            .name("ps-accept".to_owned())
            .spawn(move || accept(&for_thread, &listener))
            .map_err(|e| CollectiveError::io("starting the server's thread", &e))?;
        Ok(Self { shared, address: local, acceptor: Some(acceptor) })
    }

    /// Returns the address that the server listens on.
    pub const fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Declares an incarnation of a worker lost: its later pushes, and those of earlier incarnations, are
    /// refused. In asynchronous training its pushes up to the mark are applied, and the others are dropped.
    pub fn lost(&self, mark: PushMark) {
        self.shared.lock().lost(mark);
    }

    /// Overwrites the values that a checkpoint's portion and this server's part have in common; with
    /// `with_state`, their optimizer state too. Returns the number of dense values that were set; the part is
    /// complete when all are. The caller does this before workers get the address.
    ///
    /// # Errors
    /// If the portion does not fit the model, or its optimizer keeps other numbers.
    pub fn restore(&self, portion: &Portion, with_state: bool) -> Result<usize, InvalidValue> {
        self.shared.lock().restore(portion, with_state)
    }

    /// Returns the length of the server's piece of the flat vector.
    pub fn dense_len(&self) -> usize {
        self.shared.lock().dense_len()
    }

    /// Sets the numbers of steps and samples that the model was trained for, after its portions were
    /// restored.
    pub fn set_trained(&self, trained: Trained) {
        self.shared.lock().set_trained(trained);
    }

    /// Removes and returns the oldest copy that a worker asked for; `None` if there is none left.
    pub fn take_copy(&self) -> Option<ServerCopy> {
        self.shared.copies.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Makes every request from now on take `factor` times as long as it needs, to see what a job does about a slow
    /// server; 1, or less, is normal.
    pub fn set_slowdown(&self, factor: f64) {
        self.shared.slowdown.store(factor.to_bits(), Ordering::Relaxed);
    }

    /// Returns the server's counters so far.
    pub fn stats(&self) -> PsServerStats {
        let Counters { pulls, pushes, refused, bytes, service_ns } = &self.shared.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PsServerStats {
            pulls: load(pulls),
            pushes: load(pushes),
            refused: load(refused),
            bytes: load(bytes),
            service_time: Duration::from_nanos(load(service_ns)),
        }
    }

    /// Stops the server: requests in progress are answered, all other connections are closed. Returns once
    /// all threads have ended.
    pub fn shutdown(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        self.shared.shutdown.abort("the server shuts down");
        if let Some(acceptor) = self.acceptor.take()
            && acceptor.join().is_err()
        {
            tracing::error!("the server's accepting thread panicked");
        }
    }
}

impl Drop for PsServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Threads are let go of at least as often.
const REAP: Duration = Duration::from_secs(10);

fn accept(shared: &Arc<Shared>, listener: &BulkListener) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while shared.shutdown.reason().is_none() {
        threads.retain(|thread| !thread.is_finished());
        if let Some(closed) = shared.door.closed_for() {
            if shared.shutdown.wait_until(Instant::now() + closed).is_err() {
                break;
            }
            continue;
        }
        match listener.accept() {
            Ok((stream, peer)) => threads.extend(admit(shared, stream, peer)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let deadline = Instant::now() + shared.door.patience().map_or(REAP, |left| left.min(REAP));
                if let Err(error) = shared.shutdown.wait_for(listener, Interest::Read, deadline) {
                    tracing::error!(%error, "waiting for connections");
                    break;
                }
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
            Err(error) => shared.door.starved(&error),
        }
    }
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a connection's thread panicked");
        }
    }
}

/// Starts the thread of a connection; `None` if the system has too little for another one.
fn admit(shared: &Arc<Shared>, stream: BulkStream, peer: SocketAddr) -> Option<JoinHandle<()>> {
    let caller = match stream.hanging_up() {
        Ok(handle) => shared.door.enter(handle),
        Err(error) => {
            shared.door.starved(&error);
            return None;
        }
    };
    let serving = shared.clone();
    let spawned = std::thread::Builder::new()
        .name("ps-serve".to_owned())
        .spawn(move || serve(&serving, stream, peer, caller));
    if let Err(error) = &spawned {
        shared.door.pass(caller);
        shared.door.starved(error);
    }
    spawned.ok()
}

/// Counts a worker's connection as long as it lives.
#[derive(Debug)]
struct Seat<'a>(&'a AtomicUsize);

impl<'a> Seat<'a> {
    /// `None` if all are taken.
    fn take(taken: &'a AtomicUsize, most: usize) -> Option<Self> {
        let more = |taken| (taken < most).then_some(taken + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self(taken))
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve(shared: &Shared, stream: BulkStream, peer: SocketAddr, caller: CallerId) {
    let config = &shared.config;
    let soon = Instant::now() + config.message_timeout;
    let channel = shared.fabric.accept(stream, config.job, soon, &shared.shutdown);
    let mut connection = Connection { shared, caller, worker: None };
    let ended = match channel {
        Ok(channel) => connection.run(&mut MessageStream::new(channel)),
        Err(error) => Err(error.into()),
    };
    shared.door.pass(caller);
    match (ended, &connection.worker) {
        (Ok(()) | Err(StreamError::Channel(ChannelError::Closed | ChannelError::Aborted { .. })), _) => {}
        (Err(error), Some((holder, _))) => tracing::warn!(%peer, %holder, ?error, "connection ended"),
        (Err(error), None) => shared.door.stranger(peer, &error),
    }
}

struct Connection<'a> {
    shared: &'a Shared,
    caller: CallerId,
    // Known once it has said hello.
    worker: Option<(Holder, Seat<'a>)>,
}

type Refused = (PsRefusal, String);

/// Values of a pull on their way into a reply.
#[derive(Default)]
struct Buffers {
    dense: Vec<f32>,
    rows: Vec<f32>,
}

impl<'a> Connection<'a> {
    fn run(&mut self, stream: &mut MessageStream) -> Result<(), StreamError> {
        let config = &self.shared.config;
        let (mut reply, mut buffers) = (Vec::new(), Buffers::default());
        loop {
            // A connection that has not identified itself gets the time of one message.
            let patience = if self.worker.is_some() { config.idle_max } else { config.message_timeout };
            stream.await_message(Instant::now() + patience)?;
            // Before the hello, no more is accepted than a hello has.
            let most = if self.worker.is_some() { config.message_max } else { HELLO_MAX_BYTES };
            let payload = stream.receive(most, Instant::now() + config.message_timeout)?;
            let bytes = payload.len();
            let began = Instant::now();
            let request = PsRequest::decode(payload).map_err(StreamError::Wire)?;
            let mut waited = Duration::ZERO;
            let answered = self.answer(request, &mut buffers, &mut waited);
            let refused = answered.is_err();
            match &answered {
                Ok(answer) => answer.encode(&mut reply),
                Err((refusal, why)) => PsReply::Refused { refusal: *refusal, why }.encode(&mut reply),
            }
            let counters = &self.shared.counters;
            let add = |counter: &AtomicU64, by: u64| counter.fetch_add(by, Ordering::Relaxed);
            add(&counters.refused, u64::from(refused));
            add(&counters.pulls, u64::from(matches!(answered, Ok(PsReply::Pulled { .. }))));
            add(&counters.pushes, u64::from(matches!(answered, Ok(PsReply::Pushed(_)))));
            add(&counters.bytes, (bytes + reply.len()) as u64);
            self.shared.slow_down(began.elapsed().saturating_sub(waited));
            let busy = began.elapsed().saturating_sub(waited);
            add(&counters.service_ns, u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX));
            stream.send(&reply, Instant::now() + config.message_timeout)?;
            if self.worker.is_none() {
                return Ok(());
            }
        }
    }

    fn answer<'b>(
        &mut self,
        request: PsRequest<'_>,
        buffers: &'b mut Buffers,
        waited: &mut Duration,
    ) -> Result<PsReply<'b>, Refused> {
        let Some(holder) = self.worker.as_ref().map(|(holder, _)| *holder) else {
            self.worker = Some(self.greet(&request)?);
            return Ok(PsReply::Welcome(self.shared.config.partition.weights.clone()));
        };
        let asked = Instant::now();
        let mut partition = self.shared.lock();
        *waited = asked.elapsed();
        match request {
            PsRequest::Hello(_) => Err((PsRefusal::Invalid, "a second hello".to_owned())),
            PsRequest::Init(values) => {
                partition.init_dense(values.into_owned()).map(PsReply::Init).map_err(push_refused)
            }
            PsRequest::Pull { commit, rows } => {
                if let Some(commit) = commit {
                    partition.commit(&commit).map_err(commit_refused)?;
                }
                buffers.dense.clear();
                buffers.rows.clear();
                partition.pull(&rows, &mut buffers.dense, &mut buffers.rows).map_err(pull_refused)?;
                let (dense, rows) =
                    (bytemuck::cast_slice(&buffers.dense), bytemuck::cast_slice(&buffers.rows));
                Ok(PsReply::Pulled { dense, rows })
            }
            PsRequest::Count(marks) => {
                marks.iter().for_each(|mark| partition.count(*mark));
                Ok(PsReply::Counted)
            }
            PsRequest::Copy { commit, checkpoint } => {
                if let Some(commit) = commit {
                    partition.commit(&commit).map_err(commit_refused)?;
                }
                let portion = partition.portion().ok_or_else(|| pull_refused(PullError::NotInitialised))?;
                let copy = ServerCopy { checkpoint, portion };
                let mut copies = self.shared.copies.lock().unwrap_or_else(PoisonError::into_inner);
                // A call that was repeated.
                copies.retain(|earlier| earlier.checkpoint != checkpoint);
                while copies.len() >= COPIES_MAX {
                    copies.pop_front();
                }
                copies.push_back(copy);
                Ok(PsReply::Copied(partition.trained()))
            }
            PsRequest::Push { step, samples, rate_share, dense, rows, values } => {
                let rows = SparseGradient { rows: rows.into_owned(), values: values.into_owned() };
                let push = Push { samples, rate_share, dense: dense.into_owned(), rows };
                partition.push(holder, step, push).map(PsReply::Pushed).map_err(push_refused)
            }
        }
    }

    fn greet(&self, request: &PsRequest<'_>) -> Result<(Holder, Seat<'a>), Refused> {
        let Shared { config, connections, door, .. } = self.shared;
        let PartitionConfig { layout, server, servers, .. } = &config.partition;
        let PsRequest::Hello(hello) = request else {
            return Err((PsRefusal::Stranger, "the first message must be a hello".to_owned()));
        };
        if hello.job != config.job {
            return Err((PsRefusal::Stranger, "this server belongs to another job".to_owned()));
        }
        let ours = PsHello::new(config.job, hello.holder, *server, *servers, layout);
        if *hello != ours {
            return Err((
                PsRefusal::Stranger,
                format!("this server is {ours:?}, the caller means {hello:?}"),
            ));
        }
        let most = config.connections_max;
        let seat = Seat::take(connections, most).ok_or_else(|| {
            (
                PsRefusal::Full,
                format!("this server has {most} workers already, its most; connect again later"),
            )
        })?;
        door.pass(self.caller);
        Ok((hello.holder, seat))
    }
}

fn push_refused(error: PushError) -> Refused {
    let refusal = match error {
        PushError::NotInitialised => PsRefusal::NotInitialised,
        PushError::Fenced { .. } => PsRefusal::Fenced,
        PushError::Stale { .. } => PsRefusal::Stale,
        PushError::TooManyPending { .. }
        | PushError::DenseLength { .. }
        | PushError::RateShare { .. }
        | PushError::Table(_) => PsRefusal::Invalid,
    };
    (refusal, error.to_string())
}

fn pull_refused(error: PullError) -> Refused {
    let refusal = match error {
        PullError::NotInitialised => PsRefusal::NotInitialised,
        PullError::Table(_) => PsRefusal::Invalid,
    };
    (refusal, error.to_string())
}

fn commit_refused(error: CommitError) -> Refused {
    (PsRefusal::Commit, error.to_string())
}
