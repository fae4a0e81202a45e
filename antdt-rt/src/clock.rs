//! The job's clock.

use antdt_core::JobTime;
use tokio::time::Instant;

/// Gives [`JobTime`]: nanoseconds since the clock was made, monotonic. Follows tokio's paused time in tests.
#[derive(Debug, Clone, Copy)]
pub struct JobClock {
    start: Instant,
}

impl JobClock {
    /// A clock that stands at zero now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// The present moment.
    pub fn now(&self) -> JobTime {
        JobTime::from_duration(self.start.elapsed())
    }

    /// The moment as tokio's timers take it; `None` if it lies beyond their range.
    pub fn instant(&self, at: JobTime) -> Option<Instant> {
        self.start.checked_add(at.since_start())
    }
}
