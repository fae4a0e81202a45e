//! Nodes as child processes of this process, on this machine.
//!
//! # Nothing is left behind
//!
//! Each child is the head of its own process group: an interrupt typed at the terminal reaches the launching process only,
//! and a kill reaches what the child has started.
//!
//! A launching process that is killed with `kill -9` cannot kill its children. The children therefore ask the kernel for
//! that: a child that calls [`bind_to_launcher`] at its start is killed when the launching process dies. (The parent could
//! ask for it on the child's behalf only in code between fork and exec, which is unsafe.) The kernel's watch covers the child itself,
//! not what the child has started. A program that does not ask, and may start others, runs below a process that [`supervise`]s it,
//! as with `antdt run -- PROGRAM`: when the program or the launching process ends, that process ends all that the program has started.
//!
//! Should it be killed itself, the launcher ends what is left before it reports the end of the node: two lives of one node are never
//! there at once. A process that has left its process group and has overwritten its environment is not found then.
//!
//! # Nodes that outlive the launching process
//!
//! After [`outlive`](Launcher::outlive) children are not asked to do that. They write to files, because a pipe breaks with its
//! reader, and the launcher of another process can [`adopt`](Launcher::adopt) them: it is told of their end by the kernel, and
//! of which process is meant by its number and the moment of its start.

mod adopted;
mod bond;
mod cause;
mod entry;
mod output;
mod remains;
mod spawner;
mod standing;
mod supervisor;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use antdt_core::{Exit, Holder, NodeId};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::launcher::{
    LaunchError, LaunchStatus, Launcher, LauncherEvent, NODE_FILE, NodeExit, NodeSpec, Outlets, OutputStream,
};
use crate::runtime::node_file::NodeFile;
use crate::runtime::registry::Entry;
use adopted::{Adopted, ProcessHandle};
use cause::MemoryKills;
use output::{Lines, OutputFiles, TAIL_LINES, follow, forward};
use remains::Remains;
use spawner::Spawner;
use standing::standing;

pub use bond::{Bond, LAUNCHER_PID, bind_to_launcher};
pub use entry::boot_id;
pub use supervisor::{supervise, unblock};

/// The launcher's line in the registry.
pub const ENTRY: Entry = Entry::new("process", "processes of this machine", |_| {
    Ok(Arc::new(|outlets| Box::new(ProcessLauncher::new(outlets))))
});

/// After its end, a child's output is read for this long: something it has started may hold the pipe open for ever.
const OUTPUT_LIMIT: Duration = Duration::from_secs(1);

/// Longest grace; a longer one is cut to it, so that its end can be computed.
const GRACE_MOST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A launcher that runs nodes as child processes of this process.
///
/// It must be used within a tokio runtime that has I/O and time enabled. Dropping it kills all children.
pub struct ProcessLauncher {
    host: String,
    outlets: Outlets,
    spawner: Spawner,
    lives: BTreeMap<Holder, Life>,
    memory_kills: Arc<MemoryKills>,
    /// Where the output of nodes is that outlive this process; `None` if they end with it.
    outlive: Option<PathBuf>,
}

/// A life as the launcher sees it; its [`Watcher`] has the other ends.
struct Life {
    /// When the child is killed; `None` as long as it should run.
    end_by: watch::Sender<Option<Instant>>,
    status: watch::Receiver<LaunchStatus>,
    /// By which another launcher adopts it.
    handle: Option<ProcessHandle>,
}

impl fmt::Debug for ProcessLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessLauncher").field("host", &self.host).finish_non_exhaustive()
    }
}

impl ProcessLauncher {
    /// Returns a launcher without children, which reports through `outlets`.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(outlets: Outlets) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let memory_kills = Arc::new(MemoryKills::here());
        let (spawner, lives) = (Spawner::start(), BTreeMap::new());
        Self { host, outlets, spawner, lives, memory_kills, outlive: None }
    }

    /// Follows a life to its end.
    fn watch(
        &mut self,
        holder: Holder,
        process: Process,
        files: (Option<OutputFiles>, Option<NodeFile>),
        handle: Option<ProcessHandle>,
    ) {
        let (end_by, orders) = watch::channel(None);
        let (status, seen) = watch::channel(LaunchStatus::Running);
        self.lives.insert(holder, Life { end_by, status: seen, handle });
        let (outlets, spawner) = (self.outlets.clone(), self.spawner.clone());
        let (files, node_file) = files;
        let kills = (Arc::clone(&self.memory_kills), self.memory_kills.count());
        let watcher = Watcher { holder, outlets, status, files, node_file, kills, _spawner: spawner };
        tokio::spawn(watcher.watch(process, orders));
    }

    /// Starts an incarnation by `command`, which has its program, arguments, environment and input, and keeps `file` until its end.
    pub(super) fn start(
        &mut self,
        holder: Holder,
        mut command: Command,
        file: Option<NodeFile>,
    ) -> Result<(), LaunchError> {
        if self.lives.contains_key(&holder) {
            return Err(LaunchError::Launched { holder });
        }
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        let unable = |source| LaunchError::Spawn { holder, program, source };
        command.process_group(0).kill_on_drop(true);
        let files = self.outlive.as_deref().map(|folder| OutputFiles::of(folder, holder));
        let opened = files.as_ref().map(OutputFiles::create).transpose();
        let child = opened.and_then(|opened| {
            match opened {
                Some((out, err)) => command.env_remove(LAUNCHER_PID).stdout(out).stderr(err),
                None => {
                    command.env(LAUNCHER_PID, std::process::id().to_string());
                    command.stdout(Stdio::piped()).stderr(Stdio::piped())
                }
            };
            self.spawner.spawn(command)
        });
        let child = child.map_err(|error| {
            if let Some(files) = &files {
                files.remove();
            }
            unable(error)
        })?;
        let handle = files.is_some().then(|| raw_id(&child).and_then(ProcessHandle::of)).flatten();
        self.watch(holder, Process::Child(child), (files, file), handle);
        Ok(())
    }
}

impl Launcher for ProcessLauncher {
    fn place(&mut self, _node: NodeId) -> Option<String> {
        Some(self.host.clone())
    }

    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
        let holder = spec.holder;
        if self.lives.contains_key(&holder) {
            return Err(LaunchError::Launched { holder });
        }
        let file = NodeFile::create(self.outlive.as_deref(), holder, &spec.file)
            .map_err(|source| LaunchError::File { holder, source })?;
        let mut command = Command::new(&spec.program);
        command
            .args(&spec.args)
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .env(NODE_FILE, file.path())
            .stdin(Stdio::null());
        self.start(holder, command, Some(file))
    }

    fn end(&mut self, holder: Holder, grace: Duration) -> bool {
        let Some(life) = self.lives.get(&holder) else { return false };
        if matches!(*life.status.borrow(), LaunchStatus::Gone(_)) {
            return false;
        }
        let deadline = Instant::now() + grace.min(GRACE_MOST);
        life.end_by.send_if_modified(|end_by| {
            let sooner = end_by.is_none_or(|end_by| deadline < end_by);
            if sooner {
                *end_by = Some(deadline);
            }
            sooner
        });
        true
    }

    fn status(&self, holder: Holder) -> Option<LaunchStatus> {
        self.lives.get(&holder).map(|life| *life.status.borrow())
    }

    fn outlive(&mut self, folder: &Path) -> bool {
        self.outlive = Some(folder.to_owned());
        true
    }

    fn ends_with_host(&self) -> bool {
        true
    }

    fn handle(&self, holder: Holder) -> Option<String> {
        let life = self.lives.get(&holder)?;
        let gone = matches!(*life.status.borrow(), LaunchStatus::Gone(_));
        life.handle.as_ref().filter(|_| !gone).map(ToString::to_string)
    }

    fn lives(&self, handle: &str) -> bool {
        ProcessHandle::parse(handle).is_some_and(|handle| handle.lives())
    }

    fn adopt(&mut self, holder: Holder, handle: &str) -> Result<(), LaunchError> {
        if self.lives.contains_key(&holder) {
            return Err(LaunchError::Launched { holder });
        }
        let refused = |why| LaunchError::Refused { holder, why };
        let handle = ProcessHandle::parse(handle)
            .ok_or_else(|| refused(format!("`{handle}` is no process; expected PID START BOOT")))?;
        let watched = Adopted::watch(handle.clone());
        let process = match watched.map_err(|error| refused(format!("it cannot be watched: {error}")))? {
            Some(adopted) => Process::Adopted(adopted),
            None => Process::Ended,
        };
        let folder = self.outlive.as_deref();
        let files = folder.map(|folder| OutputFiles::of(folder, holder));
        let file = folder.map(|folder| NodeFile::left(folder, holder));
        self.watch(holder, process, (files, file), Some(handle));
        Ok(())
    }
}

/// A process that is watched.
#[derive(Debug)]
enum Process {
    Child(Child),
    Adopted(Adopted),
    /// It had ended when it was to be adopted.
    Ended,
}

impl Process {
    fn pid(&self) -> Option<Pid> {
        match self {
            Self::Child(child) => raw_id(child),
            Self::Adopted(adopted) => Some(adopted.pid()),
            Self::Ended => None,
        }
    }

    /// Waits for its end. `None` if the system does not say how it ended.
    async fn ended(&mut self) -> Option<ExitStatus> {
        match self {
            Self::Child(child) => child.wait().await.ok(),
            Self::Adopted(adopted) => {
                adopted.ended().await;
                None
            }
            Self::Ended => None,
        }
    }

    /// Sends a signal to the process and to what it has started.
    fn signal(&self, signal: Signal) {
        match self {
            // The id cannot belong to another process: the child is not reaped yet.
            Self::Child(child) => {
                if let Some(pid) = raw_id(child) {
                    // Fails if the child has ended in this moment, which is what the signal is for.
                    let _ = kill_process_group(pid, signal);
                }
            }
            Self::Adopted(adopted) => adopted.signal(signal),
            Self::Ended => {}
        }
    }
}

/// `None` if the child has ended and was asked for.
fn raw_id(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// Follows one process to its end.
struct Watcher {
    holder: Holder,
    outlets: Outlets,
    status: watch::Sender<LaunchStatus>,
    /// Where it writes to, if not to pipes.
    files: Option<OutputFiles>,
    /// What it reads its settings from.
    node_file: Option<NodeFile>,
    /// The kernel's kills for lack of memory, and how many there were when it began.
    kills: (Arc<MemoryKills>, u64),
    /// The thread that the child is bound to must not end before the child.
    _spawner: Spawner,
}

impl Watcher {
    async fn watch(self, mut process: Process, orders: watch::Receiver<Option<Instant>>) {
        let holder = self.holder;
        let remains = Remains { group: process.pid(), file: self.node_file.as_ref().map(NodeFile::path) };
        let pid = process.pid().map(|pid| pid.as_raw_nonzero().get()).unwrap_or_default();
        tracing::debug!(%holder, pid, "process started");
        (self.outlets.events)(LauncherEvent::Started { holder });
        let tail = Arc::new(Mutex::new(VecDeque::with_capacity(TAIL_LINES)));
        let lines = |stream| Lines::new(holder, stream, Arc::clone(&self.outlets.lines), Arc::clone(&tail));
        let mut readers = JoinSet::new();
        let (over, ended) = watch::channel(false);
        if let Process::Child(child) = &mut process {
            if let Some(out) = child.stdout.take() {
                readers.spawn(forward(out, lines(OutputStream::Out)));
            }
            if let Some(err) = child.stderr.take() {
                readers.spawn(forward(err, lines(OutputStream::Err)));
            }
        }
        for (stream, file) in self.files.iter().flat_map(OutputFiles::open) {
            match file {
                Ok(file) => drop(readers.spawn(follow(file, lines(stream), ended.clone()))),
                Err(error) => tracing::warn!(%holder, %error, "what this process writes cannot be read"),
            }
        }
        let (status, is_killed) = wait(holder, &mut process, orders).await;
        remains.end(holder, is_killed).await;
        over.send_replace(true);
        // The reader gets a moment for what was written last.
        let _ = timeout(OUTPUT_LIMIT, async { while readers.join_next().await.is_some() {} }).await;
        readers.abort_all();
        if let Some(files) = &self.files {
            files.remove();
        }
        // Before the end is reported: nothing is left of the node then.
        drop(self.node_file);
        let exit = NodeExit {
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
        };
        tracing::debug!(%holder, pid, ?exit, "process ended");
        let mut tail: Vec<String> = tail.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
        let (kills, kills_before) = self.kills;
        tail.extend(cause::of(exit, &kills, kills_before).map(|cause| format!("{}{cause}", Exit::CAUSE)));
        self.status.send_replace(LaunchStatus::Gone(exit));
        (self.outlets.events)(LauncherEvent::Gone { holder, exit, tail });
    }
}

/// Carries out orders until the process has ended. Returns how it did, if the system says so, and whether it was killed.
async fn wait(
    holder: Holder,
    process: &mut Process,
    mut orders: watch::Receiver<Option<Instant>>,
) -> (Option<ExitStatus>, bool) {
    let mut is_killed = false;
    let mut deadline: Option<Instant> = None;
    let mut asked = false;
    let mut listening = true;
    loop {
        tokio::select! {
            status = process.ended() => return (status, is_killed),
            changed = orders.changed(), if listening => {
                listening = changed.is_ok();
                // A launcher that was dropped can give no orders any more.
                deadline = if listening { *orders.borrow_and_update() } else { Some(Instant::now()) };
                if deadline.is_some_and(|deadline| deadline > Instant::now()) && !asked {
                    asked = true;
                    process.signal(Signal::TERM);
                }
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                (deadline, listening, is_killed) = (None, false, true);
                // One that is not asked has had no chance to end.
                if let Some(pid) = process.pid().filter(|_| asked) {
                    tracing::warn!("{}", killed(holder, &standing(pid)));
                }
                process.signal(Signal::KILL);
            }
        }
    }
}

/// What is said of a node that is killed because it did not end when it was asked.
fn killed(holder: Holder, standing: &[String]) -> String {
    let at =
        if standing.is_empty() { String::new() } else { format!("; it stood at: {}", standing.join("; ")) };
    format!("{} is killed, for it did not end when it was asked to{at}", holder.node)
}

#[cfg(test)]
mod tests;
