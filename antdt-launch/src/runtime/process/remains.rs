//! What a node has started and leaves behind: no other life takes its rank before all of it is gone.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use antdt_core::Holder;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use tokio::time::sleep;

use super::entry::ProcessEntry;
use crate::launcher::NODE_FILE;

/// Pause between two looks at the processes that remain.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// How long what remains has after it was asked to end, and then after it was killed: a process in a system call that cannot be
/// interrupted ends later.
const STAGES: [(Signal, Duration); 2] =
    [(Signal::TERM, Duration::from_secs(2)), (Signal::KILL, Duration::from_secs(5))];

/// Has processes end: asks them, and kills those that do not for a while.
pub(super) struct Ending {
    stages: &'static [(Signal, Duration)],
    since: Instant,
    told: Vec<Pid>,
}

impl Ending {
    /// Those that are `killed` are not asked.
    pub(super) fn new(killed: bool) -> Self {
        Self { stages: &STAGES[usize::from(killed)..], since: Instant::now(), told: Vec::new() }
    }

    /// Tells those that are `left` and were not told. Returns whether to look again after a [pause](LOOK).
    pub(super) fn tell(&mut self, left: Vec<Pid>) -> bool {
        let Some((_, patience)) = self.stages.first().filter(|_| !left.is_empty()) else { return false };
        if self.since.elapsed() >= *patience {
            *self = Self { stages: &self.stages[1..], since: Instant::now(), told: Vec::new() };
        }
        let Some((signal, _)) = self.stages.first() else { return false };
        left.iter().filter(|pid| !self.told.contains(pid)).for_each(|pid| send(*pid, *signal));
        self.told = left;
        true
    }
}

/// The processes that descend from this one, which it has not waited for.
pub(super) fn descendants(of: Pid) -> Vec<Pid> {
    let all = ProcessEntry::all();
    let mut found = vec![of];
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|pid| pid.as_raw_nonzero().get()) {
        found.extend(all.iter().filter(|process| process.parent == parent).map(|process| process.pid));
        next += 1;
    }
    found.split_off(1)
}

/// How what a life has started is known: by the process group of its first process, which has ended, and by the path of its file,
/// which every process that it starts has in its environment, also one in a session of its own.
#[derive(Debug)]
pub(super) struct Remains {
    pub(super) group: Option<Pid>,
    pub(super) file: Option<PathBuf>,
}

impl Remains {
    fn find(&self) -> Vec<Pid> {
        // A group whose number is that of a process which lives is a later one.
        let group = self.group.filter(|pid| ProcessEntry::of(*pid).is_none());
        let variable = self.file.as_deref().map(variable);
        let is_left = |process: &ProcessEntry| {
            let named = |variable: &Vec<u8>| {
                let environment = fs::read(format!("/proc/{}/environ", process.pid.as_raw_nonzero()));
                environment.is_ok_and(|text| text.split(|byte| *byte == 0).any(|one| one == variable))
            };
            group.is_some_and(|group| process.group == group.as_raw_nonzero().get())
                || variable.as_ref().is_some_and(named)
        };
        // The children of this process are other nodes: what has lost its parent has another one now.
        let own = getpid().as_raw_nonzero().get();
        let others = ProcessEntry::all().into_iter().filter(|process| process.parent != own);
        others.filter(is_left).map(|process| process.pid).collect()
    }

    /// Ends what is left, which has a moment to end in order unless it `is_killed`.
    pub(super) async fn end(&self, holder: Holder, is_killed: bool) {
        let mut ending = Ending::new(is_killed);
        while ending.tell(self.find()) {
            sleep(LOOK).await;
        }
        let left = self.find();
        if left.is_empty() {
            return;
        }
        let pids: Vec<String> = left.iter().map(|pid| pid.as_raw_nonzero().to_string()).collect();
        tracing::warn!(%holder, processes = pids.join(" "), "what this node has started cannot be ended");
    }
}

/// Sends a signal to the process that has this number now.
fn send(pid: Pid, signal: Signal) {
    // Fails if it has ended in this moment, which is what the signal is for.
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
        && ProcessEntry::of(pid).is_some()
    {
        let _ = pidfd_send_signal(process, signal);
    }
}

/// The line of an environment that names the file.
fn variable(file: &Path) -> Vec<u8> {
    [OsStr::new(NODE_FILE).as_bytes(), b"=", file.as_os_str().as_bytes()].concat()
}
