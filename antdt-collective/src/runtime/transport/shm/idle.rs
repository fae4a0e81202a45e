//! How a waiting thread spends its time: it polls for a little while, yields the core, then sleeps.

use std::hint;
use std::num::NonZero;
use std::ops::Deref;
use std::thread;
use std::time::{Duration, Instant};

use crate::handover::{Atomic, Bell};

/// How long to look again and again before sleeping. A core that sleeps takes some 5 µs to come back, more on a virtual
/// machine, and the one that wakes it as long to say so; looking for that long at most doubles what the wait would have
/// cost anyway.
const SPIN: Duration = Duration::from_micros(20);

/// After so long, others get the core between two glances at the clock: a member that wakes two others at once may have put
/// both on one core, and then the one that looks keeps the other from what it looks for.
const ALONE: Duration = Duration::from_micros(2);

/// The same where members outnumber cores: the one that is waited for may need this very core.
const SPIN_CROWDED: Duration = Duration::from_nanos(500);

/// How often to let others have the core before sleeping, where members outnumber cores.
const YIELDS_CROWDED: u32 = 64;

/// Looks between two glances at the clock.
const LOOKS: u32 = 16;

/// How a member waits on this host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    spin: Duration,
    yields: u32,
}

impl Patience {
    /// For one of two processes that take turns: what is awaited is the other one's work, which mostly takes longer than a
    /// sleep. To let others have the core between looks costs milliseconds where processes outnumber cores, and a server's
    /// host has more of them than cores: no yields.
    pub(super) const TURNS: Self = Self { spin: ALONE, yields: 0 };

    /// For `members` on this host.
    pub(super) fn of(members: usize) -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        if members <= cores {
            Self { spin: SPIN, yields: 0 }
        } else {
            Self { spin: SPIN_CROWDED, yields: YIELDS_CROWDED }
        }
    }
}

/// One wait.
#[derive(Debug)]
pub(in crate::runtime::transport) struct Idle {
    patience: Patience,
    looks: u32,
    yields: u32,
    since: Option<Instant>,
    heard: Option<u32>,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime::transport) enum Next {
    /// Look for new messages again.
    Look,
    /// Check the connections, then sleep unless the bell has rung since this number.
    Sleep(u32),
}

impl Idle {
    pub(super) const fn new(patience: Patience) -> Self {
        Self { patience, looks: 0, yields: 0, since: None, heard: None }
    }

    /// Something moved: the wait begins anew.
    pub(super) fn moved<A: Deref<Target: Atomic<Value = u32>>>(&mut self, bell: &Bell<A>) {
        self.awake(bell);
        (self.looks, self.yields, self.since) = (0, 0, None);
    }

    /// Slept, or found something before: not asleep any more. The next sleep follows at once if nothing moved.
    pub(super) fn awake<A: Deref<Target: Atomic<Value = u32>>>(&mut self, bell: &Bell<A>) {
        if self.heard.take().is_some() {
            bell.wake();
        }
    }

    /// Nothing moved.
    pub(super) fn next<A: Deref<Target: Atomic<Value = u32>>>(&mut self, bell: &Bell<A>) -> Next {
        if let Some(heard) = self.heard {
            return Next::Sleep(heard);
        }
        self.looks += 1;
        if !self.looks.is_multiple_of(LOOKS) {
            hint::spin_loop();
            return Next::Look;
        }
        let now = Instant::now();
        let waited = now.duration_since(*self.since.get_or_insert(now));
        if waited < self.patience.spin {
            if waited >= ALONE {
                thread::yield_now();
            }
            return Next::Look;
        }
        if self.yields < self.patience.yields {
            self.yields += 1;
            // Each look from now on is worth a yield.
            self.looks -= 1;
            thread::yield_now();
            return Next::Look;
        }
        self.looks -= 1;
        self.heard = Some(bell.listen());
        Next::Look
    }
}
