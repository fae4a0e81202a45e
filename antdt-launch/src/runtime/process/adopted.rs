//! A process that another process has started, as one that this launcher watches.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::entry::{ProcessEntry, boot_id};

/// Which process is meant, beyond the reuse of its number: `PID START BOOT`, the id, when the process was started in ticks of
/// the kernel, and which start of the machine that counts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessHandle {
    pid: Pid,
    start: u64,
    boot: String,
}

impl ProcessHandle {
    /// Names a process that lives; `None` if it does not, or the system does not say.
    pub(super) fn of(pid: Pid) -> Option<Self> {
        Some(Self { pid, start: ProcessEntry::of(pid)?.start, boot: boot_id()? })
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (pid, start, boot) = (words.next()?, words.next()?, words.next()?);
        let pid = Pid::from_raw(pid.parse().ok().filter(|pid| *pid > 0)?)?;
        Some(Self { pid, start: start.parse().ok()?, boot: boot.to_owned() })
    }

    /// Whether that very process lives.
    pub(super) fn lives(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

impl fmt::Display for ProcessHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.pid.as_raw_nonzero(), self.start, self.boot)
    }
}

/// How often an adopted process is looked at. (Safe code has no way to have tokio wait for a descriptor of this kind.)
const LOOK: Duration = Duration::from_millis(10);

/// A living process that this launcher did not start.
#[derive(Debug)]
pub(super) struct Adopted {
    handle: ProcessHandle,
    /// Readable once the process has ended.
    end: OwnedFd,
}

impl Adopted {
    /// Begins to watch the process; `None` if it has ended.
    pub(super) fn watch(handle: ProcessHandle) -> io::Result<Option<Self>> {
        let fd = match pidfd_open(handle.pid, PidfdFlags::NONBLOCK) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Looked at after it is held: this process has that number, and no later one.
        if !handle.lives() {
            return Ok(None);
        }
        Ok(Some(Self { handle, end: fd }))
    }

    pub(super) const fn pid(&self) -> Pid {
        self.handle.pid
    }

    /// Waits for the end. How it ended is known to the process that started it alone.
    pub(super) async fn ended(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error says that nothing can be waited for, which ends the wait as well.
        while let Ok(0) | Err(Errno::INTR) = poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&now)) {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Sends a signal to the process and what it has started, unless it has ended.
    pub(super) fn signal(&self, signal: Signal) {
        if self.handle.lives() {
            let _ = kill_process_group(self.handle.pid, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_names_one_process_and_no_other_with_its_number() {
        let me = ProcessHandle::of(rustix::process::getpid()).unwrap();
        assert!(me.lives());
        assert_eq!(ProcessHandle::parse(&me.to_string()), Some(me.clone()));
        assert!(!ProcessHandle { start: me.start + 1, ..me.clone() }.lives(), "a later process");
        assert!(
            !ProcessHandle { boot: "another".to_owned(), ..me }.lives(),
            "before the machine was started again"
        );
        for text in ["", "1", "1 2", "x 2 b", "0 2 b", "-1 2 b"] {
            assert_eq!(ProcessHandle::parse(text), None, "{text}");
        }
    }
}
