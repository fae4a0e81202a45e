//! Nodes as child processes of this process, on this machine.
//!
//! # Nothing is left behind
//!
//! Each child is the head of its own process group: an interrupt typed at the terminal reaches the launching process only,
//! and a kill reaches what the child has started.
//!
//! A launching process that is killed with `kill -9` cannot kill its children. The children therefore ask the kernel for
//! that: a child that calls [`bind_to_launcher`] at its start is killed when the launching process dies. (The parent could
//! ask for it on the child's behalf only in code between fork and exec, which is unsafe.) A program that does not call it
//! can be started through one that does and then becomes the program, as `antdt run -- PROGRAM` does. The kernel's watch
//! covers the child itself, not what the child has started.

mod bond;
mod output;
mod spawner;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use antdt_core::{Holder, NodeId};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::launcher::{
    LaunchError, LaunchStatus, Launcher, LauncherEvent, NodeExit, NodeSpec, Outlets, OutputStream,
};
use output::{TAIL_LINES, forward};
use spawner::Spawner;

pub use bond::{Bond, LAUNCHER_PID, bind_to_launcher};

/// After its end, a child's output is read for this long: something it has started may hold the pipe open for ever.
const OUTPUT_LIMIT: Duration = Duration::from_secs(1);

/// Longest grace; a longer one is cut to it, so that its end can be computed.
const GRACE_MOST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Runs nodes as children of this process.
///
/// Needs a tokio runtime with I/O and time around it. Dropping it kills all children.
pub struct ProcessLauncher {
    host: String,
    outlets: Outlets,
    spawner: Spawner,
    lives: BTreeMap<Holder, Life>,
}

/// A life as the launcher sees it; its [`Watcher`] has the other ends.
struct Life {
    /// When the child is killed; `None` as long as it should run.
    end_by: watch::Sender<Option<Instant>>,
    status: watch::Receiver<LaunchStatus>,
}

impl fmt::Debug for ProcessLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessLauncher").field("host", &self.host).finish_non_exhaustive()
    }
}

impl ProcessLauncher {
    /// Builds a launcher without children.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(outlets: Outlets) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { host, outlets, spawner: Spawner::start(), lives: BTreeMap::new() }
    }
}

impl Launcher for ProcessLauncher {
    fn place(&mut self, _node: NodeId) -> String {
        self.host.clone()
    }

    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
        let holder = spec.holder;
        if self.lives.contains_key(&holder) {
            return Err(LaunchError::Launched { holder });
        }
        let mut command = Command::new(&spec.program);
        command
            .args(&spec.args)
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .env(LAUNCHER_PID, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let child = self.spawner.spawn(command).map_err(|source| {
            let program = spec.program.display().to_string();
            LaunchError::Spawn { holder, program, source }
        })?;
        let (end_by, orders) = watch::channel(None);
        let (status, seen) = watch::channel(LaunchStatus::Running);
        self.lives.insert(holder, Life { end_by, status: seen });
        let watcher =
            Watcher { holder, outlets: self.outlets.clone(), status, _spawner: self.spawner.clone() };
        tokio::spawn(watcher.watch(child, orders));
        Ok(())
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
}

/// Follows one child to its end.
struct Watcher {
    holder: Holder,
    outlets: Outlets,
    status: watch::Sender<LaunchStatus>,
    /// The thread that the child is bound to must not end before the child.
    _spawner: Spawner,
}

impl Watcher {
    async fn watch(self, mut child: Child, orders: watch::Receiver<Option<Instant>>) {
        let holder = self.holder;
        let pid = child.id().unwrap_or_default();
        tracing::debug!(%holder, pid, "process started");
        (self.outlets.events)(LauncherEvent::Started { holder });

        let tail = Arc::new(Mutex::new(VecDeque::with_capacity(TAIL_LINES)));
        let mut readers = JoinSet::new();
        if let Some(out) = child.stdout.take() {
            let lines = Arc::clone(&self.outlets.lines);
            readers.spawn(forward(out, holder, OutputStream::Out, lines, Arc::clone(&tail)));
        }
        if let Some(err) = child.stderr.take() {
            let lines = Arc::clone(&self.outlets.lines);
            readers.spawn(forward(err, holder, OutputStream::Err, lines, Arc::clone(&tail)));
        }

        let status = wait(&mut child, orders).await;
        // The reader gets a moment for what was written last.
        let _ = timeout(OUTPUT_LIMIT, async { while readers.join_next().await.is_some() {} }).await;
        readers.abort_all();

        let exit = NodeExit {
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
        };
        tracing::debug!(%holder, pid, ?exit, "process ended");
        let tail = tail.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
        self.status.send_replace(LaunchStatus::Gone(exit));
        (self.outlets.events)(LauncherEvent::Gone { holder, exit, tail });
    }
}

/// Carries out orders until the child has ended. `None` if the system does not say how.
async fn wait(child: &mut Child, mut orders: watch::Receiver<Option<Instant>>) -> Option<ExitStatus> {
    let mut deadline: Option<Instant> = None;
    let mut asked = false;
    let mut listening = true;
    loop {
        tokio::select! {
            status = child.wait() => return status.ok(),
            changed = orders.changed(), if listening => {
                listening = changed.is_ok();
                // A launcher that was dropped can give no orders any more.
                deadline = if listening { *orders.borrow_and_update() } else { Some(Instant::now()) };
                if deadline.is_some_and(|deadline| deadline > Instant::now()) && !asked {
                    asked = true;
                    signal(child, Signal::TERM);
                }
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                (deadline, listening) = (None, false);
                signal(child, Signal::KILL);
            }
        }
    }
}

/// Sends a signal to the child and to what it has started. The id cannot belong to another process: the child is not
/// reaped yet.
fn signal(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // Fails if the child has ended in this moment, which is what the signal is for.
        let _ = kill_process_group(pid, signal);
    }
}

#[cfg(test)]
mod tests;
