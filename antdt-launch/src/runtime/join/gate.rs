//! [`HostGate`]: the port at which hosts join a job, and the launcher whose nodes run on them.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use antdt_core::{Connections, Holder, NodeId, StreamEnd};
use antdt_rt::WrappedStream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};

use super::wire::{
    BEAT, FRAME_MAX, FromHost, Hello, HostLine, Known, LINES_WINDOW, LaunchOrder, SILENCE_LIMIT,
    STRANGER_FRAME_MAX, Side, ToHost, is_proved, nonce, proof, read, write,
};
use crate::launcher::{
    LaunchError, LaunchStatus, Launcher, LauncherFactory, NodeSpec, Outlets, OutputLine, OutputStream,
};
use crate::pool::{HostIntroduction, HostOrder, HostPool, PoolEffect};

/// Peers that have not proved yet that they belong to the job, at most; the next one is turned away.
const STRANGERS_MAX: usize = 64;

/// How long a peer may take to prove it.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// How long the last messages to the hosts may take.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Pause after a connection that could not be accepted, for want of descriptors most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What a gate asks of those who join.
#[derive(Clone)]
pub struct GateConfig {
    /// Secret that the hosts of the job share; empty if whoever reaches the port may join.
    pub secret: String,
    /// What wraps the connections of hosts that have proved that they know the secret.
    pub connections: Connections,
    /// Version of the program: hosts must have the same one.
    pub version: String,
    /// Path of this program, in place of which each host runs its own.
    pub program: PathBuf,
}

impl fmt::Debug for GateConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, program, .. } = self;
        f.debug_struct("GateConfig")
            .field("version", version)
            .field("program", program)
            .finish_non_exhaustive()
    }
}

/// The open port. Hosts that have joined stay while launchers come and go.
#[derive(Debug)]
pub struct HostGate {
    shared: Arc<Shared>,
    local: SocketAddr,
    /// What serves the port; it ends with this value.
    tasks: JoinSet<()>,
}

/// The hosts at a gate. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HostWatch {
    shared: Arc<Shared>,
}

impl HostWatch {
    /// Returns the hosts that are there, with the number of workers that each takes, in the order in which they are filled.
    pub fn hosts(&self) -> Vec<(String, u32)> {
        self.shared.lock().pool.hosts()
    }

    /// Says why the program of a host has ended, to whoever asks for the end of its nodes.
    pub fn explain(&self, host: &str, why: &str) {
        self.shared.act(|state, _| ((), state.pool.explain(host, why)));
    }

    /// Waits until a host has come or gone, or for a moment.
    pub async fn changed(&self) {
        let _ = timeout(BEAT, self.shared.changed.notified()).await;
    }
}

struct Shared {
    config: GateConfig,
    state: Mutex<State>,
    /// Held from a change to its last event, so that events come in the order of the changes.
    turn: Mutex<()>,
    /// A host came or went.
    changed: Notify,
    strangers: AtomicUsize,
    began: Instant,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

struct Way {
    process: u64,
    connection: u64,
    orders: mpsc::UnboundedSender<ToHost>,
}

#[derive(Default)]
struct State {
    pool: HostPool,
    /// Ways to the hosts that are there, with the process of each and the number of its connection.
    ways: BTreeMap<String, Way>,
    connections: u64,
    /// Of the launcher that lives.
    outlets: Option<Outlets>,
    /// Number of the launcher that lives, unique among all gates of this machine and moment.
    round: u64,
}

impl HostGate {
    /// Opens the port at an address.
    ///
    /// # Errors
    /// If the port is taken or the address is not of this machine.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn open(address: SocketAddr, config: GateConfig) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let local = listener.local_addr()?;
        let first = nonce()?;
        let round = u64::from_le_bytes(first[..8].try_into().expect("8 of 32 bytes"));
        let state = Mutex::new(State { round, ..State::default() });
        let shared = Arc::new(Shared {
            config,
            state,
            turn: Mutex::default(),
            changed: Notify::new(),
            strangers: AtomicUsize::new(0),
            began: Instant::now(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&shared)));
        tasks.spawn(keep_time(Arc::clone(&shared)));
        Ok(Self { shared, local, tasks })
    }

    /// Returns the address of the port.
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns a view of the hosts that are there.
    pub fn watch(&self) -> HostWatch {
        HostWatch { shared: Arc::clone(&self.shared) }
    }

    /// The job begins with the hosts that are there, and grows by later ones up to so many.
    pub fn begin(&self, most: u32) {
        self.shared.lock().pool.begin(most);
    }

    /// Returns what builds launchers over the hosts of this gate, one after the other.
    pub fn launchers(&self) -> LauncherFactory {
        let shared = Arc::clone(&self.shared);
        Arc::new(move |outlets| Box::new(HostsLauncher::new(Arc::clone(&shared), outlets)))
    }

    /// Tells the hosts that the job is over, and closes the port.
    pub async fn close(mut self) {
        let ways = std::mem::take(&mut self.shared.lock().ways);
        for way in ways.values() {
            let _ = way.orders.send(ToHost::Over);
        }
        // A way is closed once its last message is written.
        let written = async {
            for way in ways.values() {
                way.orders.closed().await;
            }
        };
        let _ = timeout(LAST_WORDS, written).await;
        self.tasks.shutdown().await;
    }
}

impl State {
    /// Has hosts kill what is not of this round.
    fn tell_round(&self) {
        for way in self.ways.values() {
            let _ = way.orders.send(ToHost::Round(self.round));
        }
    }

    /// Opens the way to a host, in place of an earlier one to the same process. Returns the number of the connection.
    fn open_way(
        &mut self,
        now: Duration,
        hello: &Hello,
        orders: mpsc::UnboundedSender<ToHost>,
    ) -> (Result<u64, String>, Vec<PoolEffect>) {
        let Hello { name, slots, rank, adds, process, address, .. } = hello;
        let effects = self.close_way(now, name, |way| way.process == *process);
        let host = HostIntroduction {
            name: name.clone(),
            slots: *slots,
            rank: *rank,
            adds: *adds,
            address: address.clone(),
        };
        if let Err(why) = self.pool.join(host) {
            return (Err(why), effects);
        }
        self.connections += 1;
        let _ = orders.send(ToHost::Welcome(self.round));
        let way = Way { process: *process, connection: self.connections, orders };
        self.ways.insert(name.clone(), way);
        (Ok(self.connections), effects)
    }

    /// Closes the way to a host, if it is that one.
    fn close_way(&mut self, now: Duration, name: &str, is_it: impl Fn(&Way) -> bool) -> Vec<PoolEffect> {
        if self.ways.get(name).is_some_and(is_it) {
            self.ways.remove(name);
            return self.pool.lose(now, name);
        }
        Vec::new()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Changes the pool, and does what it asks for.
    fn act<T>(&self, change: impl FnOnce(&mut State, Duration) -> (T, Vec<PoolEffect>)) -> T {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        let (answer, effects) = change(&mut state, self.now());
        let (outlets, round) = (state.outlets.clone(), state.round);
        let mut events = Vec::new();
        for effect in effects {
            match effect {
                PoolEffect::Report(event) => events.push(event),
                PoolEffect::Send { host, order } => {
                    let message = match order {
                        HostOrder::Launch(spec) => {
                            ToHost::Launch(round, Box::new(LaunchOrder::of(*spec, &self.config.program)))
                        }
                        HostOrder::End { holder, grace } => {
                            let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
                            ToHost::End { round, holder, grace_ms }
                        }
                    };
                    // A host that has just gone says what it has when it is back.
                    let _ = state.ways.get(&host).map(|way| way.orders.send(message));
                }
            }
        }
        drop(state);
        if let Some(outlets) = outlets {
            events.into_iter().for_each(|event| (outlets.events)(event));
        }
        answer
    }
}

async fn keep_time(shared: Arc<Shared>) {
    let mut ticks = interval(BEAT);
    loop {
        ticks.tick().await;
        shared.act(|state, now| ((), state.pool.tick(now)));
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut served = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let before = shared.strangers.fetch_add(1, Ordering::Relaxed);
                if before >= STRANGERS_MAX {
                    shared.strangers.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                served.spawn(serve(stream, peer, Arc::clone(&shared)));
            }
            Err(error) => {
                tracing::debug!(%error, "a host cannot be let in");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        // Those that have ended.
        while served.try_join_next().is_some() {}
    }
}

/// Serves one connection to its end.
async fn serve(stream: TcpStream, peer: SocketAddr, shared: Arc<Shared>) {
    let admitted = timeout(HELLO_LIMIT, admit(stream, &shared.config)).await;
    shared.strangers.fetch_sub(1, Ordering::Relaxed);
    let (hello, mut stream) = match admitted {
        Ok(Ok(admitted)) => admitted,
        Ok(Err(error)) => return tracing::debug!(%peer, %error, "no host of this job"),
        Err(_) => return tracing::debug!(%peer, "it said nothing"),
    };
    let name = hello.name.clone();
    let (way, orders) = mpsc::unbounded_channel();
    // A way that is closed stays closed, whatever is passed on later.
    let answers = way.downgrade();
    let opened = shared.act(|state, now| state.open_way(now, &hello, way));
    let connection = match opened {
        Ok(connection) => connection,
        Err(why) => {
            let _ = timeout(HELLO_LIMIT, write(&mut stream, &ToHost::Denied(why))).await;
            return;
        }
    };
    tracing::debug!(%peer, host = name, "a host has joined");
    let (lines, passed_on) = mpsc::channel(LINES_WINDOW as usize);
    tokio::spawn(pass_on(passed_on, answers, Arc::clone(&shared)));
    let error = talk(stream, orders, lines, &name, &shared).await;
    shared.act(|state, now| ((), state.close_way(now, &name, |way| way.connection == connection)));
    shared.changed.notify_waiters();
    tracing::debug!(host = name, %error, "a host is away");
}

/// Lets a host prove that it belongs to the job.
async fn admit(mut stream: TcpStream, config: &GateConfig) -> io::Result<(Hello, TcpStream)> {
    stream.set_nodelay(true)?;
    let hello: Hello = read(&mut stream, STRANGER_FRAME_MAX).await?;
    let refuse = async |mut stream: TcpStream, why: String| {
        write(&mut stream, &ToHost::Denied(why.clone())).await?;
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    };
    if hello.version != config.version {
        let (theirs, ours) = (&hello.version, &config.version);
        let why = format!("it has version {theirs} of the program, and the job {ours}; install the same one");
        return refuse(stream, why).await;
    }
    if hello.name.is_empty() || hello.slots == 0 {
        return refuse(stream, "a host has a name, and a slot at least".to_owned()).await;
    }
    let challenge = nonce()?;
    let secret = config.secret.as_bytes();
    write(&mut stream, &ToHost::Challenge(proof(secret, Side::Gate, &hello, &challenge), challenge)).await?;
    let expected = proof(secret, Side::Host, &hello, &challenge);
    match read(&mut stream, STRANGER_FRAME_MAX).await? {
        FromHost::Proof(found) if is_proved(&expected, &found) => Ok((hello, stream)),
        _ => {
            refuse(stream, "its secret is not the job's; give both the same --rdzv-secret-file".to_owned())
                .await
        }
    }
}

/// Wraps the connection of a host that takes part, and carries orders to it and reports from it, until one of both is gone. Returns why.
async fn talk(
    mut stream: TcpStream,
    mut orders: mpsc::UnboundedReceiver<ToHost>,
    lines: mpsc::Sender<HostLine>,
    host: &str,
    shared: &Shared,
) -> io::Error {
    match timeout(HELLO_LIMIT, write(&mut stream, &ToHost::Proved)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return error,
        Err(_) => return io::Error::other("it does not read"),
    }
    // This end speaks first.
    let stream = WrappedStream::new(stream, StreamEnd::Opened, &shared.config.connections);
    let (mut from, mut to) = tokio::io::split(stream);
    let speak = async {
        loop {
            let order = match timeout(BEAT, orders.recv()).await {
                Ok(Some(order)) => order,
                Ok(None) => return io::Error::other("it is told nothing more"),
                Err(_) => ToHost::Beat,
            };
            let is_last = order == ToHost::Over;
            if let Err(error) = write(&mut to, &order).await {
                return error;
            }
            if is_last {
                return io::Error::other("the job is over");
            }
        }
    };
    let listen = async {
        loop {
            match timeout(SILENCE_LIMIT, read(&mut from, FRAME_MAX)).await {
                Ok(Ok(FromHost::Line(line))) => {
                    if lines.try_send(line).is_err() {
                        return io::Error::other("it sends more lines than it may");
                    }
                }
                Ok(Ok(message)) => heed(message, host, shared),
                Ok(Err(error)) => return error,
                Err(_) => return io::Error::other(format!("it was silent for {SILENCE_LIMIT:?}")),
            }
        }
    };
    tokio::select! {
        error = speak => error,
        error = listen => error,
    }
}

/// Does what a host's message is for, if it is of the launcher that lives.
fn heed(message: FromHost, host: &str, shared: &Shared) {
    let is_now = |round| shared.lock().round == round;
    match message {
        FromHost::Nodes(round, nodes) if is_now(round) => {
            let known: BTreeMap<_, _> = nodes.into_iter().map(Known::report).collect();
            shared.act(|state, _| ((), state.pool.recall(host, &known)));
            shared.changed.notify_waiters();
        }
        FromHost::Node(round, node) if is_now(round) => {
            let (holder, report) = node.report();
            shared.act(|state, _| ((), state.pool.report(host, holder, report)));
        }
        FromHost::Leaving => shared.act(|state, _| {
            state.pool.leave(host);
            ((), Vec::new())
        }),
        FromHost::Proof(_)
        | FromHost::Nodes(..)
        | FromHost::Node(..)
        | FromHost::Line(_)
        | FromHost::Beat => {}
    }
}

/// Passes on what nodes of a host write, and tells the host. Whoever reads it may block: nothing else of the host waits for that.
async fn pass_on(
    mut lines: mpsc::Receiver<HostLine>,
    answers: mpsc::WeakUnboundedSender<ToHost>,
    shared: Arc<Shared>,
) {
    let mut passed_on = 0;
    while let Some(HostLine { round, holder, is_error, text }) = lines.recv().await {
        let sink = {
            let state = shared.lock();
            let outlets = state.outlets.as_ref().filter(|_| state.round == round);
            outlets.map(|outlets| Arc::clone(&outlets.lines))
        };
        let stream = if is_error { OutputStream::Err } else { OutputStream::Out };
        if let Some(sink) = sink {
            sink(OutputLine { holder, stream, text: &text });
        }
        passed_on += 1;
        if lines.is_empty() || passed_on >= LINES_WINDOW / 4 {
            let count = std::mem::take(&mut passed_on);
            let _ = answers.upgrade().map(|way| way.send(ToHost::PassedOn(count)));
        }
    }
}

/// A launcher whose nodes run on the hosts of a gate.
struct HostsLauncher {
    shared: Arc<Shared>,
}

impl HostsLauncher {
    fn new(shared: Arc<Shared>, outlets: Outlets) -> Self {
        let mut state = shared.lock();
        state.round = state.round.wrapping_add(1);
        state.pool.clear();
        state.outlets = Some(outlets);
        // Nodes of the launcher before are none of this one.
        state.tell_round();
        drop(state);
        Self { shared }
    }
}

impl fmt::Debug for HostsLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostsLauncher").finish_non_exhaustive()
    }
}

impl Launcher for HostsLauncher {
    fn place(&mut self, node: NodeId) -> Option<String> {
        self.shared.lock().pool.place(node)
    }

    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
        self.shared.act(|state, _| match state.pool.launch(spec) {
            Ok(effects) => (Ok(()), effects),
            Err(error) => (Err(error), Vec::new()),
        })
    }

    fn end(&mut self, holder: Holder, grace: Duration) -> bool {
        self.shared.act(|state, _| state.pool.end(holder, grace))
    }

    fn status(&self, holder: Holder) -> Option<LaunchStatus> {
        self.shared.lock().pool.status(holder)
    }
}

impl Drop for HostsLauncher {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.round = state.round.wrapping_add(1);
        state.outlets = None;
        state.pool.clear();
        state.tell_round();
    }
}
