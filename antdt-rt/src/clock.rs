//! [`JobClock`]: tells the time since the job began.

use antdt_core::JobTime;
use tokio::time::Instant;

/// The job's clock: returns [`JobTime`], monotonic nanoseconds since the clock was made. Follows tokio's
/// paused time in tests.
#[derive(Debug, Clone, Copy)]
pub struct JobClock {
    start: Instant,
}

impl JobClock {
    /// Returns a clock that starts at zero now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns the present job time.
    pub fn now(&self) -> JobTime {
        JobTime::from_duration(self.start.elapsed())
    }

    /// Converts a job time to an instant for tokio's timers; `None` if it is beyond their range.
    pub fn instant(&self, at: JobTime) -> Option<Instant> {
        self.start.checked_add(at.since_start())
    }
}
