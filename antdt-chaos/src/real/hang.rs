//! Stops the main thread of a process while its other threads go on, with `ptrace`, as a debugger would.

use std::thread::JoinHandle;
use std::time::Duration;

use antdt_rt::CancellationToken;
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Pause between two looks at the thread.
const LOOK: Duration = Duration::from_millis(5);

/// A main thread that stands still until this is dropped, or its process ends.
#[derive(Debug)]
pub(super) struct Hang {
    end: CancellationToken,
    /// Only the thread that stopped it can let it go.
    tracer: Option<JoinHandle<()>>,
}

impl Hang {
    /// Stops the main thread of a process.
    pub(super) fn begin(pid: i32) -> Result<Self, Errno> {
        let end = CancellationToken::new();
        let (told, begun) = std::sync::mpsc::channel();
        let until = end.clone();
        let tracer = std::thread::Builder::new().name("hang".to_owned()).spawn(move || {
            let pid = Pid::from_raw(pid);
            let stopped = ptrace::seize(pid, Options::empty()).and_then(|()| ptrace::interrupt(pid));
            let is_stopped = stopped.is_ok();
            // A waiter for it is told below as well.
            let _ = told.send(stopped);
            if is_stopped {
                hold(pid, &until);
            }
        });
        let tracer = tracer.map_err(|_| Errno::EAGAIN)?;
        match begun.recv() {
            Ok(Ok(())) => Ok(Self { end, tracer: Some(tracer) }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Errno::ECANCELED),
        }
    }
}

impl Drop for Hang {
    fn drop(&mut self) {
        self.end.cancel();
        if let Some(tracer) = self.tracer.take() {
            let _ = tracer.join();
        }
    }
}

/// Holds a thread that was told to stop. The end of its process reaches its parent only when it was seen here.
fn hold(pid: Pid, until: &CancellationToken) {
    let mut stopped = false;
    loop {
        match waitpid(pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
            Ok(WaitStatus::StillAlive) => {
                if stopped && until.is_cancelled() {
                    // It may have been killed just now.
                    let _ = ptrace::detach(pid, None);
                    return;
                }
            }
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(_) => return,
            // Stopped, as asked, or by a signal, which it gets when it goes on.
            Ok(_) => stopped = true,
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    fn state(pid: i32) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap()[..1].to_owned()
    }

    #[test]
    fn a_thread_stands_still_and_goes_on_and_a_process_that_is_killed_meanwhile_ends() {
        // Its parent is another process than the one that holds it, as the master is.
        let script = "sleep 600 & echo $!; wait $!; echo $?";
        let mut parent = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
        let pid: i32 = lines.next().unwrap().unwrap().parse().unwrap();
        let kill = || nix::sys::signal::kill(Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        let hang = match Hang::begin(pid) {
            Ok(hang) => hang,
            Err(error) => {
                println!("skipped: a process cannot be traced here: {error}");
                kill();
                parent.wait().unwrap();
                return;
            }
        };
        while state(pid) != "t" {
            std::thread::yield_now();
        }
        drop(hang);
        while state(pid) == "t" {
            std::thread::yield_now();
        }
        let hang = Hang::begin(pid).unwrap();
        kill();
        assert_eq!(lines.next().unwrap().unwrap(), "137", "its parent sees how it ended");
        parent.wait().unwrap();
        drop(hang);
    }
}
