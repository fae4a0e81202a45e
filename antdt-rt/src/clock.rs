//! The job's clock.

use antdt_core::JobTime;
use tokio::time::Instant;

/// The job's clock: returns [`JobTime`], monotonic nanoseconds since the clock was made. Follows tokio's
/// paused time in tests.
#[derive(Debug, Clone, Copy)]
pub struct JobClock {
    start: Instant,
}

impl JobClock {
    /// Returns a clock that stands at zero now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns the present time of the job.
    pub fn now(&self) -> JobTime {
        JobTime::from_duration(self.start.elapsed())
    }

    /// Converts a time of the job to one for tokio's timers; `None` if it is beyond their range.
    pub fn instant(&self, at: JobTime) -> Option<Instant> {
        self.start.checked_add(at.since_start())
    }
}
