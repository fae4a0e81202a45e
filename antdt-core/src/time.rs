//! Times of a job as numbers: nanoseconds since the job began.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time of a job: nanoseconds since its start, on the master's monotonic clock.
///
/// There is no `now()`. State machines are told the time, so that a test, a simulator and a recording can
/// tell it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct JobTime(pub u64);

impl JobTime {
    /// The start of the job.
    pub const ZERO: Self = Self(0);
    /// A time later than any that a job reaches.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the time `since_start` after the job began.
    pub fn from_duration(since_start: Duration) -> Self {
        Self(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the seconds since the job began.
    #[allow(clippy::cast_precision_loss, reason = "for display and reports; 2^53 ns are 104 days")]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the duration since the job began.
    pub const fn since_start(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Returns the duration from `earlier` to this time; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for JobTime {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(Self::from_duration(by).0))
    }
}

impl Sub<Duration> for JobTime {
    type Output = Self;
    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(Self::from_duration(by).0))
    }
}

impl fmt::Display for JobTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.as_secs_f64())
    }
}

/// Serializes a [`Duration`] as whole nanoseconds, at most `u64::MAX`; for `#[serde(with = ...)]`.
#[cfg(feature = "serde")]
pub mod nanoseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    /// Serializes a duration as a number of nanoseconds.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Deserializes a duration from a number of nanoseconds.
    ///
    /// # Errors
    /// If the value is not such a number.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_nanos)
    }
}
