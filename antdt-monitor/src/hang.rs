//! Detection of workers whose training thread hangs while their heartbeats go on.

use std::time::Duration;

use antdt_core::{InvalidValue, Stall, Work};

/// Steps without progress after which a thread is reported as stalled, if this share of the limit has passed too. By default that is
/// 1.2 s: longer than a step of 100 ms that takes ten times as long as usual, and with a heartbeat later still within 2 s.
const STALLED_SHARE: (u32, u32) = (2, 5);

/// See [`STALLED_SHARE`].
const STALLED_STEPS: u32 = 3;

/// Steps without progress after which a thread hangs: in a healthy job a single step may take ten times as long as usual.
const HUNG_STEPS: u32 = 12;

/// Reading, a worker's first steps and evaluations have no usual time: their limit is so many times the configured one, or that of a
/// step of the other workers.
const UNKNOWN_FACTOR: u32 = 20;

/// Before the first step of any worker nothing is known at all: the limit is so many times the configured one, 20 minutes by default,
/// which a first step of ten minutes keeps.
const FIRST_FACTOR: u32 = 400;

/// When a training thread without progress counts as hung.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HangConfig {
    /// Least time without progress that counts as a hang, however short the steps are. Default 3 s: a shared
    /// machine may delay a thread by a second.
    #[cfg_attr(feature = "serde", serde(with = "antdt_core::time::nanoseconds"))]
    pub limit: Duration,
}

fn stalled_after(limit: Duration) -> Duration {
    let (part, of) = STALLED_SHARE;
    limit / of * part
}

impl HangConfig {
    /// Checks the limit.
    ///
    /// # Errors
    /// If the limit is so short that no worker reports a stall within it.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        if self.limit < Stall::LEAST * 2 {
            let got = format!("{} s", self.limit.as_secs_f64());
            return Err(InvalidValue::new("hang.limit", got, "at least 1 s"));
        }
        Ok(())
    }

    /// When a worker with steps of usual duration `step` is stalled and when it hangs; `None` before the first step of any worker.
    pub(crate) fn limits(&self, step: Option<Duration>) -> (Duration, Duration) {
        match step {
            Some(step) => (
                stalled_after(self.limit).max(step.saturating_mul(STALLED_STEPS)),
                self.limit.max(step.saturating_mul(HUNG_STEPS)),
            ),
            None => {
                let limit = self.limit.saturating_mul(FIRST_FACTOR);
                (stalled_after(limit), limit)
            }
        }
    }

    /// Judges a stall of a worker. `step` is the usual duration of this worker's steps, `others` that of the
    /// slowest worker's steps; each is `None` while it is unknown.
    pub fn judge(&self, stall: Stall, step: Option<Duration>, others: Option<Duration>) -> Suspicion {
        let (stalled, hung) = match (stall.work, step, others) {
            (Work::Training, Some(step), _) => self.limits(Some(step)),
            (_, None, None) => self.limits(None),
            (_, step, others) => {
                let (_, hung) = self.limits(step.max(others));
                let limit = hung.max(self.limit.saturating_mul(UNKNOWN_FACTOR));
                (stalled_after(limit), limit)
            }
        };
        match stall.lasts {
            lasts if lasts >= hung => Suspicion::Hung,
            lasts if lasts >= stalled => Suspicion::Stalled,
            _ => Suspicion::None,
        }
    }
}

impl Default for HangConfig {
    fn default() -> Self {
        Self { limit: Duration::from_secs(3) }
    }
}

/// Judgement of a training thread, by the time that it has made no progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suspicion {
    /// The thread has been without progress no longer than usual.
    None,
    /// The thread has been without progress longer than usual; this may be a slow step.
    Stalled,
    /// The thread has been without progress for longer than any step of a healthy job takes.
    Hung,
}

#[cfg(test)]
mod tests {
    use antdt_core::Seed;

    use super::*;

    fn training(lasts: Duration) -> Stall {
        Stall { work: Work::Training, lasts }
    }

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_limit_of_a_hang_follows_the_steps_and_work_without_steps_gets_long() {
        let judge = |stall, step| HangConfig::default().judge(stall, step, Some(ms(100)));
        for (lasts, step, expected) in [
            (1199, Some(100), Suspicion::None),
            (1200, Some(100), Suspicion::Stalled),
            (3000, Some(100), Suspicion::Hung),
            (2999, Some(1000), Suspicion::None),
            (3000, Some(1000), Suspicion::Stalled),
            (11_999, Some(1000), Suspicion::Stalled),
            (12_000, Some(1000), Suspicion::Hung),
            (23_999, None, Suspicion::None),
            (60_000, None, Suspicion::Hung),
        ] {
            assert_eq!(judge(training(ms(lasts)), step.map(ms)), expected, "{lasts} ms of {step:?}");
        }
        for work in [Work::Loading, Work::Evaluating] {
            assert_eq!(judge(Stall { work, lasts: ms(23_999) }, Some(ms(1))), Suspicion::None);
            assert_eq!(judge(Stall { work, lasts: ms(60_000) }, Some(ms(1))), Suspicion::Hung);
            assert_eq!(judge(Stall { work, lasts: ms(60_000) }, Some(ms(60_000))), Suspicion::None);
        }
        let first = |lasts| HangConfig::default().judge(training(ms(lasts)), None, None);
        assert_eq!(first(479_999), Suspicion::None, "nobody knows how long a step takes");
        assert_eq!((first(480_000), first(1_200_000)), (Suspicion::Stalled, Suspicion::Hung));
        let slow = HangConfig::default().judge(training(ms(600_000)), None, Some(ms(600_000)));
        assert_eq!(slow, Suspicion::None, "a worker that is new where steps are long");
        assert_eq!(judge(training(Duration::MAX), Some(Duration::MAX)), Suspicion::Hung);
    }

    /// More than ten thousand hours of workers whose steps have a heavy tail, and of which some take ten times as long as usual.
    #[test]
    fn no_healthy_step_counts_as_a_hang() {
        let config = HangConfig::default();
        let (mut rng, mut lived) = (Seed(20).rng(), Duration::ZERO);
        for usual in [ms(10), ms(100), ms(250), ms(1000), ms(10_000), ms(600_000)] {
            for _ in 0..200_000 {
                let usual_tail = (0.5 * rng.normal()).exp().min(10.0);
                let step = usual.mul_f64(if rng.below(1000) == 0 { 10.0 } else { usual_tail });
                assert_ne!(
                    config.judge(training(step), Some(usual), None),
                    Suspicion::Hung,
                    "{step:?} of {usual:?}"
                );
                lived += step;
            }
        }
        assert!(lived > ms(3_600_000) * 10_000, "{lived:?}");
    }

    #[test]
    fn a_limit_below_the_reporting_interval_is_refused() {
        assert!(HangConfig { limit: ms(999) }.validate().unwrap_err().to_string().contains("hang.limit"));
        HangConfig { limit: ms(1000) }.validate().unwrap();
    }
}
