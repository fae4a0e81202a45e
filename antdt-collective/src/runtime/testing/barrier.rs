//! A barrier that also opens when a participant panics.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often one that is busy while it waits looks up.
const LOOK_UP: Duration = Duration::from_millis(5);

/// A barrier for one use, like [`std::sync::Barrier`], that also opens when a participant panics. The failure
/// of one member is then reported at once, and not only after a timeout.
#[derive(Debug)]
pub struct Barrier {
    missing: Mutex<usize>,
    all_came: Condvar,
}

/// The claim of one expected participant at a [`Barrier`]; dropping it counts as arriving.
#[derive(Debug)]
pub struct Place<'a>(&'a Barrier);

impl Barrier {
    /// Returns a barrier for this many participants. Each participant takes a [`place`](Self::place) before
    /// any of its code can fail.
    pub const fn of(members: usize) -> Self {
        Self { missing: Mutex::new(members), all_came: Condvar::new() }
    }

    /// Returns the token with which one participant arrives at this barrier: by [`Place::wait`], or by dropping the token, as a panic
    /// does. Each participant takes exactly one.
    pub const fn place(&self) -> Place<'_> {
        Place(self)
    }
}

impl Place<'_> {
    /// Arrives at the barrier, and waits until all participants have arrived.
    pub fn wait(self) {
        let barrier = self.0;
        drop(self);
        let missing = barrier.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let all_came = barrier.all_came.wait_while(missing, |missing| *missing > 0);
        drop(all_came.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits as [`wait`](Self::wait) does, and does something now and then meanwhile.
    pub fn wait_busy(self, mut work: impl FnMut()) {
        let barrier = self.0;
        drop(self);
        loop {
            let missing = barrier.missing.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = barrier.all_came.wait_timeout_while(missing, LOOK_UP, |missing| *missing > 0);
            let (missing, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if *missing == 0 {
                return;
            }
            drop(missing);
            work();
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut missing = self.0.missing.lock().unwrap_or_else(PoisonError::into_inner);
        *missing = missing.saturating_sub(1);
        if *missing == 0 {
            self.0.all_came.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::testing::{Watchdog, at_once};

    #[test]
    fn no_thread_waits_for_one_that_panicked() {
        let _watchdog = Watchdog::over("a meeting");
        let barrier = Barrier::of(3);
        let met = std::panic::catch_unwind(|| {
            at_once(0..3, |member| {
                let place = barrier.place();
                assert!(member != 1, "found something");
                place.wait();
            });
        });
        assert!(met.is_err(), "the panic is passed on");
    }
}
