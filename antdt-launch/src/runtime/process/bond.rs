//! The child's side of a process launcher: to die with it.

use std::io;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::entry::ProcessEntry;

/// Name of the environment variable that tells every child of a process launcher the process id of the
/// launching process.
pub const LAUNCHER_PID: &str = "ANTDT_LAUNCHER_PID";

/// How the death of the launching process affects this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bond {
    /// Not directly: no process launcher started this process, or another process stands in between. The
    /// process ends once its master stays silent for too long.
    Free,
    /// The kernel kills this process when the launching process dies.
    Bound,
    /// The launching process is dead already: this process should exit.
    Orphan,
}

/// Binds the life of this process to that of the launching process, if a process launcher started it. A
/// node's program calls it when it starts.
///
/// # Errors
/// If the operating system refuses the request.
pub fn bind_to_launcher() -> io::Result<Bond> {
    bond(Signal::KILL)
}

/// Has the kernel send this process a signal when the launching process dies.
pub(super) fn bond(signal: Signal) -> io::Result<Bond> {
    let launcher = std::env::var(LAUNCHER_PID).ok().and_then(|pid| pid.parse().ok());
    let Some(launcher) = launcher.and_then(Pid::from_raw) else { return Ok(Bond::Free) };
    if getppid() == Some(launcher) {
        set_parent_process_death_signal(Some(signal))?;
    }
    // Looked at again: a parent that died before the call above does not count for the kernel.
    let parent = getppid();
    Ok(match parent {
        Some(parent) if parent == launcher => Bond::Bound,
        Some(parent) if is_ancestor(launcher, parent) => Bond::Free,
        _ => Bond::Orphan,
    })
}

/// Whether `launcher` is the process, or started it through others.
fn is_ancestor(launcher: Pid, process: Pid) -> bool {
    let mut next = Some(process);
    // A process that ends meanwhile hands its children to the system's first one, and so ends the search.
    while let Some(process) = next.filter(|process| process.as_raw_nonzero().get() > 1) {
        if process == launcher {
            return true;
        }
        next = ProcessEntry::of(process).and_then(|entry| Pid::from_raw(entry.parent));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_are_found_through_others_and_strangers_are_not() {
        let me = rustix::process::getpid();
        let parent = getppid().unwrap();
        assert!(is_ancestor(parent, me), "through this process");
        assert!(is_ancestor(me, me));
        assert!(!is_ancestor(Pid::from_raw(i32::MAX).unwrap(), me));
    }
}
