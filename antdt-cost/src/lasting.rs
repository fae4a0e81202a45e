//! [`Lasting`]: predicts how much longer a present slowness will last.
//!
//! The durations of a job's slownesses are modelled as exponential with one unknown rate. The prior is a gamma distribution,
//! worth `PRIOR_ENDED` ended slownesses with a total duration of `PRIOR`. After `n` slownesses that ended and together
//! lasted `T`, one that has lasted `t` so far is expected to last for another
//!
//! ```text
//! (PRIOR + T + t) / (PRIOR_ENDED + n),    at least t / 2
//! ```
//!
//! The lower bound is for jobs that mix short and long slownesses: one that has outlived all others is not a short one. The
//! first slowness of a job is expected to last for another 10 s plus twice the time that it has lasted so far; after many
//! short ones, the next is expected to be short as well.
//!
//! Source: the conjugate prior of an exponential rate, textbook; its use here is our design.

use std::time::Duration;

/// Ends that the prior counts as seen, half of one: the job's own first end outweighs it.
const PRIOR_ENDED: f64 = 0.5;

/// Slowness in which the prior has seen them, 5 s: what is slow for the first time is answered at once, whatever a plan costs.
const PRIOR: f64 = 5.0;

/// The durations of a job's slownesses so far, from which the rest of the present one is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lasting {
    ended: f64,
    seconds: f64,
}

impl Lasting {
    /// Records that a slowness ended after it had lasted for `lasted`.
    pub fn observe(&mut self, lasted: Duration) {
        self.ended += 1.0;
        self.seconds += lasted.as_secs_f64();
    }

    /// Returns how much longer a slowness is expected to last that has lasted for `age` so far.
    pub fn expected(&self, age: Duration) -> Duration {
        let age = age.as_secs_f64();
        let seconds = (PRIOR + self.seconds + age) / (PRIOR_ENDED + self.ended);
        Duration::try_from_secs_f64(seconds.max(age / 2.0)).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Seed;

    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_first_goes_on_for_longer_than_it_lasted() {
        let lasting = Lasting::default();
        assert_eq!([0.0, 10.0, 60.0].map(|age| lasting.expected(seconds(age)).as_secs()), [10, 30, 130]);
    }

    #[test]
    fn a_slowness_that_outlived_all_others_is_not_expected_to_end_like_them() {
        let mut lasting = Lasting::default();
        (0..100).for_each(|_| lasting.observe(seconds(1.0)));
        assert_eq!(lasting.expected(seconds(60.0)), seconds(30.0));
    }

    #[test]
    fn after_many_the_next_is_expected_to_last_like_them() {
        let mut rng = Seed(1).rng();
        for mean in [0.5, 20.0, 400.0] {
            let mut lasting = Lasting::default();
            for _ in 0..400 {
                lasting.observe(seconds(-mean * (1.0 - rng.unit()).ln()));
            }
            let expected = lasting.expected(Duration::ZERO).as_secs_f64();
            assert!((expected / mean - 1.0).abs() < 0.15, "{mean}: {expected}");
        }
    }
}
