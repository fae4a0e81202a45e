//! Waiting for what a job does.

use std::time::{Duration, Instant};

/// Bound on any one wait; all take seconds.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

/// How often it is asked.
const AGAIN: Duration = Duration::from_millis(10);

/// Asks until there is an answer.
pub(crate) fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::park_timeout(AGAIN);
    }
}
