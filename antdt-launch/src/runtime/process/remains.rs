//! What a node has started and leaves behind: no other life takes its rank before all of it is gone.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use antdt_core::Holder;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::time::{Instant, sleep};

use crate::launcher::NODE_FILE;

/// Pause between two looks at the processes that remain.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// How long what remains has after it was asked to end, and then after it was killed: a process in a system call that cannot be
/// interrupted ends later.
pub(super) const STAGES: [(Signal, Duration); 2] =
    [(Signal::TERM, Duration::from_secs(2)), (Signal::KILL, Duration::from_secs(5))];

/// A process that lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
}

impl Process {
    /// `None` if it has ended.
    fn of(pid: Pid) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        // The name, in brackets, may have spaces of its own; the state, the parent and the group follow it.
        let mut fields = stat.rsplit(')').next()?.split_whitespace();
        if matches!(fields.next()?, "Z" | "X") {
            return None;
        }
        Some(Self { pid, parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
    }

    fn all() -> Vec<Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        pids.filter_map(Self::of).collect()
    }
}

/// The processes that descend from this one, which it has not waited for.
pub(super) fn descendants(of: Pid) -> Vec<Pid> {
    let all = Process::all();
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
        let group = self.group.filter(|pid| Process::of(*pid).is_none());
        let variable = self.file.as_deref().map(variable);
        let is_left = |process: &Process| {
            let named = |variable: &Vec<u8>| {
                let environment = fs::read(format!("/proc/{}/environ", process.pid.as_raw_nonzero()));
                environment.is_ok_and(|text| text.split(|byte| *byte == 0).any(|one| one == variable))
            };
            group.is_some_and(|group| process.group == group.as_raw_nonzero().get())
                || variable.as_ref().is_some_and(named)
        };
        Process::all().into_iter().filter(is_left).map(|process| process.pid).collect()
    }

    /// Ends what is left, which has a moment to end in order unless it `is_killed`.
    pub(super) async fn end(&self, holder: Holder, is_killed: bool) {
        for (signal, patience) in STAGES.into_iter().skip(usize::from(is_killed)) {
            let until = Instant::now() + patience;
            let mut told = Vec::new();
            while Instant::now() < until {
                let left = self.find();
                if left.is_empty() {
                    return;
                }
                for pid in left.iter().filter(|pid| !told.contains(*pid)) {
                    send(*pid, signal);
                }
                told = left;
                sleep(LOOK).await;
            }
        }
        let pids: Vec<String> = self.find().iter().map(|pid| pid.as_raw_nonzero().to_string()).collect();
        tracing::warn!(%holder, processes = pids.join(" "), "what this node has started cannot be ended");
    }
}

/// Sends a signal to the process that has this number now.
pub(super) fn send(pid: Pid, signal: Signal) {
    // Fails if it has ended in this moment, which is what the signal is for.
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
        && Process::of(pid).is_some()
    {
        let _ = pidfd_send_signal(process, signal);
    }
}

/// The line of an environment that names the file.
fn variable(file: &Path) -> Vec<u8> {
    [OsStr::new(NODE_FILE).as_bytes(), b"=", file.as_os_str().as_bytes()].concat()
}
