//! What never returns fails as well.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Longest that a check may take: many times what it takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Ends the process if it lives too long: a call that never returns cannot be ended from outside.
#[derive(Debug)]
pub struct Watchdog {
    // Hung up when this is dropped.
    _alive: Sender<()>,
}

impl Watchdog {
    /// Watches over what is called `what` until it is dropped.
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
