//! A barrier that also opens when a participant panics.

use std::sync::{Condvar, Mutex, PoisonError};

/// As [`std::sync::Barrier`], once, and passed by panicking as well: what a member found wrong is then reported at once,
/// and not only after a timeout.
#[derive(Debug)]
pub struct Barrier {
    missing: Mutex<usize>,
    all_came: Condvar,
}

/// A place at a [`Barrier`], of a participant that is expected; dropping it counts as having come.
#[derive(Debug)]
pub struct Place<'a>(&'a Barrier);

impl Barrier {
    /// A meeting of as many; each takes a [`place`](Self::place) before anything can go wrong with it.
    pub const fn of(members: usize) -> Self {
        Self { missing: Mutex::new(members), all_came: Condvar::new() }
    }

    /// The place of one of them.
    pub const fn place(&self) -> Place<'_> {
        Place(self)
    }
}

impl Place<'_> {
    /// Comes, and waits until all have.
    pub fn wait(self) {
        let barrier = self.0;
        drop(self);
        let missing = barrier.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let all_came = barrier.all_came.wait_while(missing, |missing| *missing > 0);
        drop(all_came.unwrap_or_else(PoisonError::into_inner));
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
    fn nobody_waits_for_one_that_panicked() {
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
