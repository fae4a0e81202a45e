//! [`JobHost`]: a machine that has joined a job, whose nodes are processes below this one.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use antdt_core::{Connections, Holder, StreamEnd};
use antdt_rt::WrappedStream;
use tokio::net::TcpStream;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};

use super::wire::{
    BEAT, Ended, FRAME_MAX, FromHost, Hello, HostLine, Known, LINES_WINDOW, SILENCE_LIMIT,
    STRANGER_FRAME_MAX, Side, ToHost, is_proved, nonce, proof, read, write,
};
use crate::launcher::{ADVERTISE, BIND, Launcher, LauncherEvent, NodeExit, NodeSpec, Outlets, OutputStream};
use crate::runtime::process::ProcessLauncher;

/// Pause between two attempts to reach the gate.
const RETRY: Duration = Duration::from_millis(300);

/// How long one attempt may take.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(5);

/// How long nodes may take to end when this machine leaves the job, beyond their grace.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// A machine as it joins a job.
#[derive(Clone)]
pub struct HostConfig {
    /// `HOST:PORT` of the job's gate. A name that is not known yet is asked for again.
    pub gate: String,
    /// Name of this machine, which no other host of the job has.
    pub name: String,
    /// Address that nodes of this machine bind to and are reached at; `None` for the one from which the gate is reached.
    pub address: Option<String>,
    /// Number of workers that it takes.
    pub slots: u32,
    /// Position among the hosts.
    pub rank: Option<u32>,
    /// Whether the job grows by its slots, however many hosts it has.
    pub adds: bool,
    /// Secret of the job; empty if it has none.
    pub secret: String,
    /// What wraps the connection once both ends have proved that they know the secret.
    pub connections: Connections,
    /// Version of this program.
    pub version: String,
    /// Path of this program, which nodes run.
    pub program: PathBuf,
    /// How long the gate may be out of reach, before the machine has joined and later.
    pub patience: Duration,
}

impl fmt::Debug for HostConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gate, name, slots, rank, .. } = self;
        f.debug_struct("HostConfig")
            .field("gate", gate)
            .field("name", name)
            .field("slots", slots)
            .field("rank", rank)
            .finish_non_exhaustive()
    }
}

/// Reason why a machine takes no part in a job, or no more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostJoinError {
    /// The gate was out of reach for too long.
    #[error(
        "{gate} is not reached for {patience:?}: {why}; is the job's first host started, and the port open?"
    )]
    Unreachable {
        /// The gate.
        gate: String,
        /// How long it was tried.
        patience: Duration,
        /// What went wrong the last time.
        why: String,
    },
    /// The gate refuses this machine.
    #[error("{gate} does not let this host in: {why}")]
    Denied {
        /// The gate.
        gate: String,
        /// Why.
        why: String,
    },
    /// What answers does not know the secret.
    #[error("{gate} does not know the secret of the job; give all hosts the same --rdzv-secret-file")]
    Stranger {
        /// The gate.
        gate: String,
    },
    /// The system gives no random bytes.
    #[error("the system gives no random bytes: {0}")]
    Random(#[source] io::Error),
}

/// What a machine tells its user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostNotice {
    /// It has joined, and nodes of it bind to this address.
    Joined {
        /// The address.
        address: String,
    },
    /// The gate is out of reach; its nodes go on.
    Away {
        /// What went wrong.
        why: String,
    },
}

/// See the module.
struct JobHost {
    config: HostConfig,
    process: u64,
    round: u64,
    /// Of the round.
    launcher: Option<ProcessLauncher>,
    nodes: BTreeMap<Holder, Option<Ended>>,
    /// What nodes do, with the round that they are of.
    events: (mpsc::UnboundedSender<NodeEvent>, mpsc::UnboundedReceiver<NodeEvent>),
    /// What they write.
    lines: (mpsc::UnboundedSender<HostLine>, mpsc::UnboundedReceiver<HostLine>),
    backlog: Arc<Backlog>,
    /// Ends that are told once the lines before them have been passed on, each with their number, or at a time.
    held: VecDeque<(u64, Instant, FromHost)>,
    address: String,
    /// When this machine leaves the job at the latest, once it is to.
    leaving: Option<Instant>,
}

type NodeEvent = (u64, LauncherEvent);

/// Lines of nodes that the gate has not passed on yet.
#[derive(Debug, Default)]
struct Backlog {
    /// Lines that nodes have written, and those of them that were passed on or given up.
    written: AtomicU64,
    done: AtomicU64,
    /// Whether the gate is away: then nodes do not wait until their lines are passed on.
    is_away: AtomicBool,
}

impl Backlog {
    fn len(&self) -> u64 {
        self.written.load(Ordering::Acquire) - self.done.load(Ordering::Acquire)
    }

    /// Whether a line is kept. Waits for room while lines are passed on.
    fn has_room(&self) -> bool {
        let is_full = || self.len() >= LINES_MAX;
        let wait = || {
            while is_full() && !self.is_away.load(Ordering::Relaxed) {
                std::thread::sleep(ROOM_PAUSE);
            }
        };
        if is_full() {
            // The task that reads the node's output waits, and nothing else on its thread.
            match Handle::try_current().map(|handle| handle.runtime_flavor()) {
                Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
                _ => return false,
            }
        }
        !is_full()
    }
}

/// Lines that wait to be passed on, at most. Beyond, nodes that write more wait; while the gate is away, what they write is left out.
const LINES_MAX: u64 = 1 << 14;

/// How long an end waits until the lines before it have been passed on.
const HELD_LIMIT: Duration = Duration::from_secs(1);

/// How often a line that finds no room asks again.
const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// Takes part in a job until it is over, or until `leave` is ready: then the nodes of this machine are asked to end, with this grace.
///
/// # Errors
/// If the job cannot be reached for as long as the configuration allows, or does not want this machine. Its nodes have been killed then.
pub async fn join(
    config: HostConfig,
    leave: impl Future<Output = Duration>,
    notice: impl Fn(HostNotice),
) -> Result<(), HostJoinError> {
    let random = nonce().map_err(HostJoinError::Random)?;
    let process = u64::from_le_bytes(random[..8].try_into().expect("8 of 32 bytes"));
    let mut host = JobHost {
        config,
        process,
        round: 0,
        launcher: None,
        nodes: BTreeMap::new(),
        events: mpsc::unbounded_channel(),
        lines: mpsc::unbounded_channel(),
        backlog: Arc::default(),
        held: VecDeque::new(),
        address: String::new(),
        leaving: None,
    };
    tokio::pin!(leave);
    let mut is_known = false;
    loop {
        let stream = tokio::select! {
            stream = host.reach() => stream?,
            // Nobody is there to be told that its nodes end.
            _ = &mut leave, if host.leaving.is_none() => return Ok(()),
        };
        if !std::mem::replace(&mut is_known, true) {
            notice(HostNotice::Joined { address: host.address.clone() });
        }
        host.backlog.is_away.store(false, Ordering::Relaxed);
        let parted = host.take_part(stream, &mut leave).await;
        host.backlog.is_away.store(true, Ordering::Relaxed);
        match parted {
            Parted::Over => return Ok(()),
            Parted::Away(_) if host.leaving.is_some() => return Ok(()),
            Parted::Away(why) => notice(HostNotice::Away { why: why.to_string() }),
        }
    }
}

/// How a connection ended.
enum Parted {
    /// The job is over, or the machine has left it.
    Over,
    Away(io::Error),
}

impl JobHost {
    /// Connects to the gate and proves that this machine belongs to the job. Tries for as long as the configuration allows.
    async fn reach(&mut self) -> Result<WrappedStream, HostJoinError> {
        let HostConfig { gate, patience, .. } = self.config.clone();
        let deadline = Instant::now() + patience;
        loop {
            let why = match timeout(ATTEMPT_LIMIT, self.attempt()).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(Refusal::Final(error))) => return Err(error),
                Ok(Err(Refusal::Passing(error))) => error.to_string(),
                Err(_) => format!("no answer within {ATTEMPT_LIMIT:?}"),
            };
            if Instant::now() + RETRY >= deadline {
                return Err(HostJoinError::Unreachable { gate, patience, why });
            }
            sleep(RETRY).await;
        }
    }

    async fn attempt(&mut self) -> Result<WrappedStream, Refusal> {
        let HostConfig { gate, name, slots, rank, adds, secret, version, .. } = self.config.clone();
        let mut stream = TcpStream::connect(&*gate).await?;
        stream.set_nodelay(true)?;
        let fresh = nonce()?;
        let local: SocketAddr = stream.local_addr()?;
        let address = self.config.address.clone().unwrap_or_else(|| local.ip().to_string());
        let hello = Hello {
            version,
            name,
            slots,
            rank,
            adds,
            address: address.clone(),
            process: self.process,
            nonce: fresh,
        };
        write(&mut stream, &hello).await?;
        let (theirs, challenge) = match read(&mut stream, STRANGER_FRAME_MAX).await? {
            ToHost::Challenge(theirs, challenge) => (theirs, challenge),
            ToHost::Denied(why) => return Err(HostJoinError::Denied { gate, why }.into()),
            _ => return Err(io::Error::other("an answer out of turn").into()),
        };
        if !is_proved(&proof(secret.as_bytes(), Side::Gate, &hello, &challenge), &theirs) {
            return Err(HostJoinError::Stranger { gate }.into());
        }
        let ours = proof(secret.as_bytes(), Side::Host, &hello, &challenge);
        write(&mut stream, &FromHost::Proof(ours)).await?;
        match read(&mut stream, STRANGER_FRAME_MAX).await? {
            ToHost::Proved => {}
            ToHost::Denied(why) => return Err(HostJoinError::Denied { gate, why }.into()),
            _ => return Err(io::Error::other("an answer out of turn").into()),
        }
        // The gate speaks first.
        let mut stream = WrappedStream::new(stream, StreamEnd::Accepted, &self.config.connections);
        match read(&mut stream, STRANGER_FRAME_MAX).await? {
            ToHost::Welcome(round) => {
                self.address = address;
                self.begin(round);
                let nodes =
                    self.nodes.iter().map(|(holder, gone)| Known { holder: *holder, gone: gone.clone() });
                write(&mut stream, &FromHost::Nodes(round, nodes.collect())).await?;
                Ok(stream)
            }
            ToHost::Denied(why) => Err(HostJoinError::Denied { gate, why }.into()),
            _ => Err(io::Error::other("an answer out of turn").into()),
        }
    }

    /// Nodes of another round are killed.
    fn begin(&mut self, round: u64) {
        if round != self.round || self.launcher.is_none() {
            self.round = round;
            self.nodes.clear();
            self.launcher = Some(ProcessLauncher::new(self.outlets(round)));
        }
    }

    fn outlets(&self, round: u64) -> Outlets {
        let (events, lines, backlog) =
            (self.events.0.clone(), self.lines.0.clone(), Arc::clone(&self.backlog));
        Outlets {
            events: Arc::new(move |event| drop(events.send((round, event)))),
            lines: Arc::new(move |line| {
                if backlog.has_room() {
                    let (holder, text) = (line.holder, line.text.to_owned());
                    let is_error = line.stream == OutputStream::Err;
                    backlog.written.fetch_add(1, Ordering::Release);
                    drop(lines.send(HostLine { round, holder, is_error, text }));
                }
            }),
        }
    }

    /// Serves one connection to its end.
    async fn take_part(
        &mut self,
        stream: WrappedStream,
        leave: &mut (impl Future<Output = Duration> + Unpin),
    ) -> Parted {
        let (mut from, mut to) = tokio::io::split(stream);
        let (inbox, mut orders) = mpsc::channel(1);
        // A message must be read to its end, whatever happens beside it.
        let reader = tokio::spawn(async move {
            loop {
                let message = timeout(SILENCE_LIMIT, read::<ToHost>(&mut from, FRAME_MAX)).await;
                let message = message.unwrap_or_else(|_| {
                    Err(io::Error::new(io::ErrorKind::TimedOut, format!("silent for {SILENCE_LIMIT:?}")))
                });
                let is_last = message.is_err();
                if inbox.send(message).await.is_err() || is_last {
                    return;
                }
            }
        });
        // Not reset by what the gate says: it must hear of this host however much it says itself.
        let mut beats = interval(BEAT);
        // Lines that are on their way, and with which the gate has not dealt.
        let mut sent = 0;
        let parted = loop {
            // Once it leaves, it stays until its last node has ended.
            let is_empty = self.nodes.values().all(Option::is_some)
                && (self.events.1.is_empty() && self.held.is_empty() && self.backlog.len() == 0);
            if self.leaving.is_some_and(|until| is_empty || Instant::now() >= until) {
                break Parted::Over;
            }
            let (held, until) = match self.held.front() {
                Some((line, until, _)) => (*line > self.backlog.done.load(Ordering::Acquire), *until),
                None => (true, Instant::now()),
            };
            let message = tokio::select! {
                order = orders.recv() => match order {
                    Some(Ok(ToHost::Over)) => break Parted::Over,
                    Some(Ok(ToHost::PassedOn(count))) => {
                        let count = count.min(sent);
                        sent -= count;
                        self.backlog.done.fetch_add(count.into(), Ordering::Release);
                        None
                    }
                    Some(Ok(order)) => self.heed(order),
                    Some(Err(error)) => break Parted::Away(error),
                    None => break Parted::Away(io::Error::other("the connection is closed")),
                },
                Some((round, event)) = self.events.1.recv() => self.hear(round, event),
                () = std::future::ready(()), if !held => self.held.pop_front().map(|(.., told)| told),
                () = sleep_until(until), if !self.held.is_empty() => self.held.pop_front().map(|(.., told)| told),
                Some(line) = self.lines.1.recv(), if sent < LINES_WINDOW => {
                    sent += 1;
                    Some(FromHost::Line(line))
                }
                _ = beats.tick() => Some(FromHost::Beat),
                grace = &mut *leave, if self.leaving.is_none() => {
                    self.leaving = Some(Instant::now() + grace + LEAVE_LIMIT);
                    self.end_all(grace);
                    Some(FromHost::Leaving)
                }
            };
            let Some(message) = message else { continue };
            match timeout(SILENCE_LIMIT, write(&mut to, &message)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => break Parted::Away(error),
                Err(_) => {
                    break Parted::Away(io::Error::other(format!("it takes nothing for {SILENCE_LIMIT:?}")));
                }
            }
        };
        reader.abort();
        // What was on its way is lost, and of all nodes the gate is told when it is reached again.
        self.backlog.done.fetch_add(sent.into(), Ordering::Release);
        self.held.clear();
        parted
    }

    fn end_all(&mut self, grace: Duration) {
        let live: Vec<Holder> =
            self.nodes.iter().filter(|(_, gone)| gone.is_none()).map(|(holder, _)| *holder).collect();
        if let Some(launcher) = &mut self.launcher {
            for holder in live {
                launcher.end(holder, grace);
            }
        }
    }

    /// Does what the gate asks for. Returns what there is to answer.
    fn heed(&mut self, order: ToHost) -> Option<FromHost> {
        match order {
            ToHost::Round(round) | ToHost::Welcome(round) => self.begin(round),
            ToHost::Launch(round, order) if round == self.round => {
                let spec = order.spec(&self.config.program);
                let own = [BIND, ADVERTISE].map(|name| (name.to_owned(), self.address.clone()));
                let NodeSpec { mut env, .. } = spec.clone();
                env.extend(own);
                return self.launch(&NodeSpec { env, ..spec });
            }
            ToHost::End { round, holder, grace_ms } if round == self.round => {
                if let Some(launcher) = &mut self.launcher {
                    launcher.end(holder, Duration::from_millis(grace_ms));
                }
            }
            ToHost::Launch(..)
            | ToHost::End { .. }
            | ToHost::Challenge(..)
            | ToHost::Denied(_)
            | ToHost::Proved
            | ToHost::PassedOn(_)
            | ToHost::Beat
            | ToHost::Over => {}
        }
        None
    }

    fn launch(&mut self, spec: &NodeSpec) -> Option<FromHost> {
        let holder = spec.holder;
        let refused = if self.leaving.is_some() {
            // It was on its way when this machine said so.
            Some("it leaves the job".to_owned())
        } else {
            self.launcher.as_mut()?.launch(spec).err().map(|error| {
                let cause = std::error::Error::source(&error).map(|source| format!(": {source}"));
                format!("{error}{}", cause.unwrap_or_default())
            })
        };
        let gone = refused.map(|why| {
            let why = format!("{}host {}: {why}", antdt_core::Exit::CAUSE, self.config.name);
            Ended::of(NodeExit::default(), vec![why])
        });
        self.nodes.insert(holder, gone.clone());
        gone.map(|gone| FromHost::Node(self.round, Known { holder, gone: Some(gone) }))
    }

    /// Notes what a node has done. Returns what the gate is told of it at once.
    fn hear(&mut self, round: u64, event: LauncherEvent) -> Option<FromHost> {
        if round != self.round {
            return None;
        }
        match event {
            LauncherEvent::Started { holder } => Some(FromHost::Node(round, Known { holder, gone: None })),
            LauncherEvent::Gone { holder, exit, tail } => {
                let gone = Some(Ended::of(exit, tail));
                self.nodes.insert(holder, gone.clone());
                let last_line = self.backlog.written.load(Ordering::Acquire);
                let told = FromHost::Node(round, Known { holder, gone });
                self.held.push_back((last_line, Instant::now() + HELD_LIMIT, told));
                None
            }
            // This machine is the host.
            LauncherEvent::Placed { .. } | LauncherEvent::Room { .. } => None,
        }
    }
}

/// Why an attempt failed.
enum Refusal {
    /// Another one would fail, too.
    Final(HostJoinError),
    Passing(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Passing(error)
    }
}

impl From<HostJoinError> for Refusal {
    fn from(error: HostJoinError) -> Self {
        Self::Final(error)
    }
}
