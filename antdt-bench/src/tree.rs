//! Ends the processes that a benchmark has started when the benchmark itself is ended by a signal, or a part of it has failed.
//!
//! The nodes of a job outlive its master for a while, because they wait for another one. So this process
//! adopts all of its descendants that lose their parent, and ends all of its descendants.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use tokio::signal::unix::{SignalKind, signal};

/// How long a job may take to end in order: its last checkpoint is written, and its nodes are ended.
const GRACE: Duration = Duration::from_secs(10);

/// How long processes that were killed may take to be gone.
const KILLED: Duration = Duration::from_secs(10);

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Held while this process starts another one; held for good from when it ends.
static STARTS: RwLock<()> = RwLock::new(());

/// May be held while a process is started, or this one is about to exit. Once everything is being ended, no caller gets it any more.
pub fn starting() -> RwLockReadGuard<'static, ()> {
    STARTS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread that catches termination signals: at the first one it ends all processes that the
/// benchmark has started, and this process.
///
/// # Errors
/// If signals cannot be caught.
pub fn end_on_signal() -> Result<()> {
    set_child_subreaper(Some(getpid())).context("cannot adopt the nodes of masters that end")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let caught = {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    };
    let (mut interrupt, mut terminate) = (caught.0?, caught.1?);
    thread::spawn(move || {
        let signal = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => Signal::INT,
                _ = terminate.recv() => Signal::TERM,
            }
        });
        eprintln!("ending what the benchmark has started");
        let _never_again = STARTS.write().unwrap_or_else(PoisonError::into_inner);
        end();
        std::process::exit(128 + signal.as_raw());
    });
    Ok(())
}

/// Returns if no termination signal has arrived; otherwise it blocks until this process exits.
pub fn unless_ending() {
    drop(starting());
}

/// Ends all processes below this one: those that it started by a request, and what is left of all of them by force.
pub fn end() {
    let (began, mut asked) = (Instant::now(), BTreeSet::new());
    while !below(getpid()).is_empty() && began.elapsed() < GRACE {
        // Masters first; nodes that theirs did not end become children of this process.
        for child in children(getpid()) {
            if asked.insert(child.as_raw_nonzero()) {
                // It may have ended meanwhile.
                let _ = kill_process(child, Signal::TERM);
            }
        }
        thread::sleep(LOOK);
    }
    let began = Instant::now();
    loop {
        let left = below(getpid());
        if left.is_empty() || began.elapsed() > KILLED {
            return;
        }
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(LOOK);
    }
}

/// Processes below this one that have not ended.
fn below(pid: Pid) -> Vec<Pid> {
    let mut all = children(pid);
    let mut at = 0;
    while let Some(next) = all.get(at).copied() {
        all.extend(children(next));
        at += 1;
    }
    all.retain(|pid| is_alive(*pid));
    all
}

/// Returns the process ids of the children of a process.
pub fn children(pid: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|child| Pid::from_raw(child.parse().ok()?))
        .collect()
}

/// Returns whether a process exists and is not a zombie.
pub fn is_alive(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}
