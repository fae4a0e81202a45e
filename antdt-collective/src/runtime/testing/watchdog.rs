//! A time limit for tests that might never return.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Longest that a check may take: many times what it takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Ends the process if the watchdog is not dropped in time: a call that never returns cannot be ended from
/// outside.
#[derive(Debug)]
pub struct Watchdog {
    // Hung up when this is dropped.
    _alive: Sender<()>,
}

impl Watchdog {
    /// Starts the time limit of the test called `what`; dropping the watchdog ends it.
    pub fn over(what: &str) -> Self {
        let (alive, watched) = channel();
        let what = what.to_owned();
        thread::spawn(move || {
            if watched.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{what} is not over after {LIMIT:?}: a call hangs");
                std::process::abort();
            }
        });
        Self { _alive: alive }
    }
}
