//! The process between a launcher and a program that is not written for it. Nothing that the program starts outlives it, whoever dies
//! first: orphans become children of this process, which ends them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nix::sys::signal::{SigSet, Signal};
use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Rlimit, Signal as Sent, WaitOptions, WaitStatus, getpid, getppid, kill_process,
    kill_process_group, set_child_subreaper, setrlimit, wait,
};

use super::bond::{Bond, LAUNCHER_PID, bond};
use super::remains::{Ending, LOOK, descendants};

/// Signals that the program gets when this process does.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Signals that the supervisor waits for.
fn kept() -> SigSet {
    PASSED_ON.into_iter().chain([Signal::SIGCHLD]).collect()
}

/// Has this process, which a supervisor has started, get its signals: it begins with those blocked that its parent waits for.
///
/// # Errors
/// If the operating system refuses the request.
pub fn unblock() -> io::Result<()> {
    Ok(kept().thread_unblock()?)
}

/// Runs a command, which [unblocks](unblock) its signals and binds its own life to this process ([`bind_to_launcher`](super::bind_to_launcher)), to the end of all
/// that it starts, and ends as it has ended: with its exit code, or by its signal.
///
/// # Errors
/// If the command cannot be started.
pub fn supervise(mut command: Command) -> io::Result<ExitCode> {
    let signals = kept();
    // Before the child is there, so that nothing is missed.
    signals.thread_block()?;
    set_child_subreaper(Some(getpid()))?;
    let bond = bond(Sent::HUP)?;
    if bond == Bond::Orphan {
        return Ok(ExitCode::FAILURE);
    }
    let launcher = getppid();
    command.env(LAUNCHER_PID, getpid().as_raw_nonzero().to_string()).process_group(0);
    let child = i32::try_from(command.spawn()?.id()).ok().and_then(Pid::from_raw);
    let child = child.ok_or_else(|| io::Error::other("the system gives no process id"))?;
    loop {
        if let Some(status) = reap(child)? {
            end_rest(false);
            return Ok(end_as(status));
        }
        match signals.wait()? {
            Signal::SIGCHLD => {}
            // The launcher has ended, and nobody waits for the program any more.
            _ if bond == Bond::Bound && getppid() != launcher => {
                end_rest(true);
                return Ok(ExitCode::FAILURE);
            }
            signal => {
                if let Some(signal) = Sent::from_named_raw(signal as i32) {
                    let _ = kill_process_group(child, signal);
                }
            }
        }
    }
}

/// Takes every child that has ended; how the program did, if it has.
fn reap(program: Pid) -> io::Result<Option<WaitStatus>> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == program => return Ok(Some(status)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Ends what the program has left, which has a moment to end in order unless it is `killed`.
fn end_rest(killed: bool) {
    let mut ending = Ending::new(killed);
    let left = || {
        while matches!(wait(WaitOptions::NOHANG), Ok(Some(_)) | Err(Errno::INTR)) {}
        descendants(getpid())
    };
    while ending.tell(left()) {
        std::thread::sleep(LOOK);
    }
}

/// Ends this process by the program's signal; returns the program's exit code if it has one.
fn end_as(status: WaitStatus) -> ExitCode {
    let Some(signal) = status.terminating_signal() else {
        let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
        return ExitCode::from(code.unwrap_or(1));
    };
    // What there is to look at is the program's memory.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    if let (Ok(blocked), Some(sent)) = (Signal::try_from(signal), Sent::from_named_raw(signal)) {
        let _ = kill_process(getpid(), sent);
        let _ = SigSet::from(blocked).thread_unblock();
    }
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))
}
