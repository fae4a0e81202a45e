//! Processes on this machine.
//!
//! # Nothing is left behind
//!
//! A child of our own program ([`ChildInput::Watched`]) reads its standard input and exits when that ends. The
//! launcher holds the other end and never writes, so the input ends when the launcher closes it, and also when the
//! launching process dies in whatever way, `kill -9` included. (A parent-death signal would do the same, but can be
//! asked for only in code between fork and exec, which is unsafe.)
//!
//! A foreign program ([`ChildInput::Null`]) has no standard input. It is ended on shutdown and when the launcher is
//! dropped, but would outlive a launching process that is killed with `kill -9`.
//!
//! Each child is the head of its own process group: an interrupt typed at the terminal reaches the launcher only,
//! and a kill reaches what the child has started.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use antdt_core::Holder;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::launcher::{LaunchError, LaunchRequest, Launcher, LauncherEvent, OutputLine, OutputStream};

/// Lines of output kept for the message about a failure.
const TAIL_LINES: usize = 50;

/// Bytes of a line that are held before they are passed on: bounds the memory of a child that never ends a line.
const LINE_BYTES: usize = 8 * 1024;

/// Events that may wait for the receiver; a child's end is reported late beyond that, never dropped.
const EVENTS_MAX: usize = 1024;

/// After its end, a child's output is read for this long: something it has started may hold the pipe open for ever.
const OUTPUT_LIMIT: Duration = Duration::from_secs(1);

/// What a child has as its standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildInput {
    /// A pipe that ends when the child should exit.
    Watched,
    /// Nothing; the child and what it has started are asked to exit by SIGTERM.
    Null,
}

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSpec {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its standard input, and how it is asked to exit.
    pub input: ChildInput,
    /// How long it may take to exit on shutdown before it is killed.
    pub grace: Duration,
}

/// Gets every line that a child writes. Called from a runtime task: it should not block for long; while it does,
/// the child that wrote the line may have to wait.
pub type LineSink = Arc<dyn Fn(OutputLine<'_>) + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Run,
    Stop,
    Kill,
}

/// Runs children on this machine, all with the same program.
///
/// Dropping it kills them; [`shutdown`](Self::shutdown) asks them first.
pub struct ProcessLauncher {
    spec: ProcessSpec,
    lines: LineSink,
    events: mpsc::Sender<LauncherEvent>,
    orders: BTreeMap<Holder, watch::Sender<Order>>,
    tasks: JoinSet<()>,
    closed: bool,
}

impl fmt::Debug for ProcessLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessLauncher").field("spec", &self.spec).field("running", &self.running()).finish()
    }
}

impl ProcessLauncher {
    /// A launcher and where its events come out. Dropping the receiver does no harm.
    pub fn new(spec: ProcessSpec, lines: LineSink) -> (Self, mpsc::Receiver<LauncherEvent>) {
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let launcher =
            Self { spec, lines, events, orders: BTreeMap::new(), tasks: JoinSet::new(), closed: false };
        (launcher, receiver)
    }

    /// The lives whose processes were started and have not been reaped, by id.
    pub fn running(&self) -> Vec<Holder> {
        self.orders.iter().filter(|(_, order)| !order.is_closed()).map(|(holder, _)| *holder).collect()
    }

    /// Asks all children to exit, kills those that do not within the grace, and waits for their end. No child is
    /// left when this returns, and none can be started after it was called.
    ///
    /// # Cancel safety
    /// It may be called again, and goes on where it was.
    pub async fn shutdown(&mut self) {
        self.closed = true;
        for order in self.orders.values() {
            order.send_if_modified(|order| {
                let asked = *order == Order::Run;
                if asked {
                    *order = Order::Stop;
                }
                asked
            });
        }
        while self.tasks.join_next().await.is_some() {}
        self.orders.clear();
    }
}

impl Launcher for ProcessLauncher {
    /// Starts a child.
    ///
    /// # Errors
    /// If the program cannot be executed, or that life was started before.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time.
    fn launch(&mut self, request: &LaunchRequest) -> Result<(), LaunchError> {
        let holder = request.holder;
        if self.closed {
            return Err(LaunchError::ShuttingDown { holder });
        }
        if self.orders.contains_key(&holder) {
            return Err(LaunchError::Running { holder });
        }
        while self.tasks.try_join_next().is_some() {}
        let input = match self.spec.input {
            ChildInput::Watched => Stdio::piped(),
            ChildInput::Null => Stdio::null(),
        };
        let mut child = Command::new(&self.spec.program)
            .args(&self.spec.args)
            .envs(request.env.iter().map(|(name, value)| (name, value)))
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| {
                let program = self.spec.program.display().to_string();
                LaunchError::Spawn { holder, program, source }
            })?;
        // Taken out of the child because `Child::wait` would close it.
        let stdin = child.stdin.take();
        let (order, orders) = watch::channel(Order::Run);
        self.orders.insert(holder, order);
        let watcher = Watcher {
            holder,
            input: self.spec.input,
            grace: self.spec.grace,
            stdin,
            lines: Arc::clone(&self.lines),
            events: self.events.clone(),
        };
        self.tasks.spawn(watcher.watch(child, orders));
        Ok(())
    }

    fn kill(&mut self, holder: Holder) -> bool {
        self.orders.get(&holder).is_some_and(|order| order.send(Order::Kill).is_ok())
    }
}

/// Follows one child to its end.
struct Watcher {
    holder: Holder,
    input: ChildInput,
    grace: Duration,
    stdin: Option<ChildStdin>,
    lines: LineSink,
    events: mpsc::Sender<LauncherEvent>,
}

impl Watcher {
    async fn watch(mut self, mut child: Child, orders: watch::Receiver<Order>) {
        let holder = self.holder;
        let pid = child.id().unwrap_or_default();
        tracing::debug!(%holder, pid, "process started");
        // A receiver that is gone has no use for events.
        let _ = self.events.send(LauncherEvent::Started { holder, pid }).await;

        let tail = Arc::new(Mutex::new(VecDeque::with_capacity(TAIL_LINES)));
        let mut readers = JoinSet::new();
        if let Some(out) = child.stdout.take() {
            readers.spawn(forward(
                out,
                holder,
                OutputStream::Out,
                Arc::clone(&self.lines),
                Arc::clone(&tail),
            ));
        }
        if let Some(err) = child.stderr.take() {
            readers.spawn(forward(
                err,
                holder,
                OutputStream::Err,
                Arc::clone(&self.lines),
                Arc::clone(&tail),
            ));
        }

        let status = self.wait(&mut child, orders).await;
        // Give what was written last a moment to be read.
        let _ = timeout(OUTPUT_LIMIT, async { while readers.join_next().await.is_some() {} }).await;
        readers.abort_all();

        let code = status.and_then(|status| status.code());
        let signal = status.and_then(|status| status.signal());
        tracing::debug!(%holder, pid, ?code, ?signal, "process ended");
        let tail = tail.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
        let _ = self.events.send(LauncherEvent::Exited { holder, code, signal, tail }).await;
    }

    /// Carries out orders until the child has ended. `None` if the system does not say how.
    async fn wait(&mut self, child: &mut Child, mut orders: watch::Receiver<Order>) -> Option<ExitStatus> {
        let mut deadline: Option<Instant> = None;
        let mut listening = true;
        loop {
            tokio::select! {
                status = child.wait() => return status.ok(),
                changed = orders.changed(), if listening => {
                    // A launcher that is gone cannot ask any more.
                    let order = if changed.is_ok() { *orders.borrow_and_update() } else { Order::Kill };
                    match order {
                        Order::Run => {}
                        Order::Stop => {
                            self.ask_to_exit(child);
                            deadline = Some(Instant::now() + self.grace);
                        }
                        Order::Kill => {
                            listening = false;
                            self.kill(child);
                        }
                    }
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    deadline = None;
                    self.kill(child);
                }
            }
        }
    }

    fn ask_to_exit(&mut self, child: &Child) {
        drop(self.stdin.take());
        if self.input == ChildInput::Null
            && let Some(pid) = unreaped(child)
        {
            // It may have ended in this moment; then there is nobody left to ask.
            let _ = kill_process_group(pid, Signal::TERM);
        }
    }

    /// Ends the child and what it has started. The id cannot belong to anybody else: the child is not reaped yet.
    fn kill(&mut self, child: &mut Child) {
        drop(self.stdin.take());
        if let Some(pid) = unreaped(child) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = child.start_kill();
    }
}

fn unreaped(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// Passes on the lines of one output until it ends.
async fn forward(
    mut output: impl AsyncRead + Unpin,
    holder: Holder,
    stream: OutputStream,
    lines: LineSink,
    tail: Arc<Mutex<VecDeque<String>>>,
) {
    let emit = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes.strip_suffix(b"\r").unwrap_or(bytes));
        lines(OutputLine { holder, stream, text: &text });
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(text.into_owned());
    };
    let mut held = Vec::new();
    let mut chunk = vec![0; LINE_BYTES];
    // An output that cannot be read any more has ended.
    while let Ok(count @ 1..) = output.read(&mut chunk).await {
        for piece in chunk[..count].split_inclusive(|byte| *byte == b'\n') {
            held.extend_from_slice(piece);
            if held.last() == Some(&b'\n') {
                held.pop();
                emit(&held);
                held.clear();
            } else if held.len() >= LINE_BYTES {
                emit(&held);
                held.clear();
            }
        }
    }
    if !held.is_empty() {
        emit(&held);
    }
}

#[cfg(test)]
mod tests;
