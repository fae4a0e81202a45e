//! When a message has crossed a line: pure, times are nanoseconds of any clock.

/// A call that begins so soon after the last message was through continues it: the time between is that of the
/// emulation, a late wake-up and the copy of the bytes, and not that of the program. Nanoseconds.
const CONTINUES_NS: u64 = 1_000_000;

/// How fast lines are, and how long a message is on its way besides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Speed {
    /// Nanoseconds that a line takes for a byte.
    pub(super) ns_per_byte: f64,
    /// Nanoseconds from the last byte sent to the last byte received.
    pub(super) latency_ns: u64,
}

impl Speed {
    /// Time that a line is occupied by a message, in nanoseconds.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of nanoseconds")]
    pub(super) fn occupies(&self, bytes: usize) -> u64 {
        (bytes as f64 * self.ns_per_byte).ceil() as u64
    }
}

/// When a line is free again, that is free at `free` before, if a message is handed to it at `now` that takes `occupied`.
pub(super) fn free_after(free: u64, now: u64, occupied: u64) -> u64 {
    free.max(now).saturating_add(occupied)
}

/// The emulated clock of one process: where it stands in the emulation, which is a little before the machine's clock
/// after each wait.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stand {
    /// When the last message was through.
    through: u64,
}

impl Stand {
    /// The time of a call that begins at `clock`.
    pub(super) fn now(self, clock: u64) -> u64 {
        // What is through later than now is awaited all the same: another thread of this process may send meanwhile.
        if clock.saturating_sub(self.through) <= CONTINUES_NS { self.through.min(clock) } else { clock }
    }

    /// Takes note that a message is through at `time`.
    pub(super) fn reaches(&mut self, time: u64) {
        self.through = self.through.max(time);
    }
}
