//! Estimates of the time per sample that policies rely on, in which differences that noise can explain are
//! removed.
//!
//! A median of few noisy batches is off, and of several workers the slowest always looks slower than it is. Batch sizes
//! that follow such numbers follow the noise, and the gain that they promise is not there afterwards (regression to the
//! mean). So a worker is taken to be like its peers as far as noise can explain the difference:
//!
//! ```text
//! d  = ln(own time per sample) - ln(lower median of all workers)
//! r  = radius of a confidence sequence of both: the truth is within it at all times at once,
//!      with a chance of error-rate for all workers of the job together
//! time counted on = median * exp(d * max(0, 1 - (r / d)^2))
//! ```
//!
//! The radius for a median of `n` batches with spread `s` and an error rate `a` is
//! `s * sqrt(pi/2 * (n + 1) / n^2 * (ln(n + 1) + 2 ln(1/a)))`. It holds however often it is looked at, so a decision may be
//! made at every tick, as soon as the evidence suffices. A difference within the radius counts for nothing, one far beyond it
//! for itself, with a smooth passage in between.
//!
//! Source: the normal-mixture confidence sequence of Robbins (1970) and the positive-part estimator of James and Stein
//! (1961), both recalled; that one is the radius of the other is our design.

use std::time::Duration;

use antdt_core::PaceEstimate;

/// Returns the time per sample to rely on for each worker, in the order of the estimates. A worker without an
/// estimate gets the median. `None` if there is no estimate at all.
pub fn believed(estimates: &[Option<PaceEstimate>], error_rate: f64) -> Option<Vec<Duration>> {
    let peers = Peers::of(estimates, error_rate)?;
    let believe = |estimate: &Option<PaceEstimate>| match estimate.and_then(|it| peers.compare(&it)) {
        Some((distance, radius)) => {
            let share = if distance * distance > radius { 1.0 - radius / (distance * distance) } else { 0.0 };
            if share > 0.0 { peers.median.mul_f64((distance * share).exp()) } else { peers.median }
        }
        None => peers.median,
    };
    Some(estimates.iter().map(believe).collect())
}

/// A worker's time per sample divided by the lower median of all workers (the worker itself included), with
/// its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slowness {
    /// Estimated ratio: 4 means four times slower than the median worker.
    pub ratio: f64,
    /// Lower bound of the ratio at the error rate that [`slowness`] was given.
    pub low: f64,
    /// Upper bound of the ratio at the error rate that [`slowness`] was given.
    pub high: f64,
}

/// Compares each worker's time per sample with the median, in the order of the estimates. `error_rate` is the
/// chance that a bound is wrong. An entry is `None` where a worker has no estimate, or no other worker has
/// one.
pub fn slowness(estimates: &[Option<PaceEstimate>], error_rate: f64) -> Vec<Option<Slowness>> {
    let peers = Peers::of(estimates, error_rate).filter(|peers| peers.known > 1);
    let compare = |estimate: &Option<PaceEstimate>| {
        let (distance, radius) = peers.as_ref()?.compare(estimate.as_ref()?)?;
        let radius = radius.sqrt();
        let (low, high) = ((distance - radius).exp(), (distance + radius).exp());
        Some(Slowness { ratio: distance.exp(), low, high })
    };
    estimates.iter().map(compare).collect()
}

/// What workers are compared with.
struct Peers {
    /// Lower median of the times per sample.
    median: Duration,
    /// Square of the radius of the median's logarithm.
    radius_squared: f64,
    /// Workers of which something is known.
    known: usize,
    /// Part of a radius that is the same for all of them: twice the logarithm of the workers over the error rate.
    looks: f64,
}

impl Peers {
    /// `None` if nothing is known of any worker.
    fn of(estimates: &[Option<PaceEstimate>], error_rate: f64) -> Option<Self> {
        #[allow(clippy::cast_precision_loss, reason = "a number of workers")]
        let looks = 2.0 * (estimates.len() as f64 / error_rate).ln();
        let known = |estimate: &&PaceEstimate| !estimate.sample_time.is_zero();
        let mut known: Vec<(Duration, f64)> = estimates
            .iter()
            .flatten()
            .filter(known)
            .map(|estimate| (estimate.sample_time, radius_squared(estimate, looks)))
            .collect();
        let middle = known.len().checked_sub(1)? / 2;
        let (_, (median, _), _) = known.select_nth_unstable_by(middle, |a, b| a.0.cmp(&b.0));
        let median = *median;
        let (_, (_, radius), _) = known.select_nth_unstable_by(middle, |a, b| a.1.total_cmp(&b.1));
        // The median of two is one of them; of many it is known much better than each of them.
        #[allow(clippy::cast_precision_loss, reason = "a number of workers")]
        let radius_squared = *radius * (2.0 / known.len() as f64).min(1.0);
        Some(Self { median, radius_squared, known: known.len(), looks })
    }

    /// The logarithm of a worker's time over the median, and the square of the radius that noise explains.
    fn compare(&self, estimate: &PaceEstimate) -> Option<(f64, f64)> {
        let time = estimate.sample_time;
        let distance = (time.as_secs_f64() / self.median.as_secs_f64()).ln();
        let radius = radius_squared(estimate, self.looks) + self.radius_squared;
        (!time.is_zero()).then_some((distance, radius))
    }
}

fn radius_squared(estimate: &PaceEstimate, looks: f64) -> f64 {
    let batches = f64::from(estimate.batches.max(1));
    let looks = (batches + 1.0).ln() + looks;
    let variance = estimate.spread * estimate.spread * std::f64::consts::FRAC_PI_2;
    variance * (batches + 1.0) / (batches * batches) * looks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(us: u64, spread: f64, batches: u32) -> Option<PaceEstimate> {
        Some(PaceEstimate { sample_time: Duration::from_micros(us), spread, batches })
    }

    fn ratios(estimates: &[Option<PaceEstimate>]) -> Vec<f64> {
        let times = believed(estimates, 0.01).unwrap();
        let least = times.iter().min().unwrap().as_secs_f64();
        times.iter().map(|time| (time.as_secs_f64() / least * 100.0).round() / 100.0).collect()
    }

    #[test]
    fn a_difference_that_noise_can_explain_counts_for_nothing() {
        let noisy = |us| estimate(us, 0.2, 10);
        assert_eq!(ratios(&[noisy(1000), noisy(1150), noisy(950), noisy(1300)]), [1.0; 4]);
    }

    #[test]
    fn a_difference_beyond_noise_counts_the_more_the_better_it_is_known() {
        let of = |batches| ratios(&[1000, 1010, 1020, 4000].map(|us| estimate(us, 0.1, batches)))[3];
        let slowness = [2, 4, 10, 60].map(of);
        assert!(slowness.is_sorted() && slowness[0] > 2.5 && slowness[3] > 3.9, "{slowness:?}");
    }

    #[test]
    fn one_of_two_is_slower_only_beyond_the_noise_of_both() {
        let two = |us| ratios(&[estimate(1000, 0.1, 20), estimate(us, 0.1, 20)]);
        assert_eq!(two(1100), [1.0, 1.0]);
        assert!(two(3000)[1] > 2.8);
    }

    #[test]
    fn the_bounds_of_a_ratio_hold_it_and_close_in_with_more_batches() {
        let of = |batches| {
            let all = slowness(&[1000, 1000, 4000].map(|us| estimate(us, 0.1, batches)), 0.001);
            all[2].unwrap()
        };
        let (few, many) = (of(3), of(60));
        assert!((few.ratio - 4.0).abs() < 1e-6 && few.low < 3.0 && few.high > 5.0, "{few:?}");
        assert!(many.low > 3.3 && many.high < 4.8, "{many:?}");
        assert_eq!(
            slowness(&[estimate(1000, 0.1, 9), None], 0.001),
            [None, None],
            "there is nobody to compare with"
        );
    }

    #[test]
    fn an_unknown_worker_counts_as_typical() {
        let times =
            believed(&[None, estimate(1000, 0.02, 60), estimate(4000, 0.02, 60), None], 0.01).unwrap();
        assert_eq!(times[0], Duration::from_micros(1000));
        assert_eq!(times[0], times[3]);
        assert_eq!(believed(&[None, None], 0.01), None);
    }
}
