//! Forecast of the duration of a synchronous step: that of its slowest worker, noise included.
//!
//! The largest of several noisy times is on average longer than the largest of their medians. A forecast
//! without that would promise a gain from workers that only look slow: when one of them is made faster, noise
//! makes another one the slowest.
//!
//! With the time of a batch log-normal around its median, and independent of those of other workers, `E[max]
//! = L + integral from L of (1 - product of F_i(t)) dt`, where no batch is done before `L`. It is integrated
//! over `POINTS` points: O(workers).

use std::time::Duration;

/// Points of the integral: with 64 its error is about 0.1 % of the step at most.
const POINTS: u32 = 64;

/// Returns the expected duration of a step. `batches` holds, for each worker, the median time of its batch
/// and the standard deviation of the logarithm of that time.
pub fn expected_step(batches: &[(Duration, f64)]) -> Duration {
    /// Standard deviations beyond which no batch is expected.
    const FAR: f64 = 4.0;
    let largest = |far: f64| {
        let at = |(median, spread): &(Duration, f64)| median.as_secs_f64() * (far * spread).exp();
        batches.iter().map(at).fold(0.0, f64::max)
    };
    let (low, high) = (largest(-FAR), largest(FAR));
    // Whoever is done by then in any case makes no difference.
    let mut late: Vec<(f64, f64)> = batches
        .iter()
        .filter(|(median, spread)| median.as_secs_f64() * (FAR * spread).exp() > low)
        .map(|(median, spread)| (median.as_secs_f64().ln(), spread.max(1e-6)))
        .collect();
    // Whoever may be the last comes first: of many workers, few decide about a point.
    late.sort_unstable_by(|(a, by), (b, with)| (b + FAR * with).total_cmp(&(a + FAR * by)));
    let width = (high - low) / f64::from(POINTS);
    let mut expected = low;
    for point in 0..POINTS {
        let log = (low + width * (f64::from(point) + 0.5)).ln();
        let mut all_done = 1.0;
        for (median, spread) in &late {
            let deviations = (log - median) / spread;
            // All others are done by then; or what is left of the product changes nothing any more.
            if deviations >= FAR || all_done < f64::EPSILON / 4.0 {
                break;
            }
            all_done *= normal(deviations);
        }
        expected += (1.0 - all_done) * width;
    }
    Duration::try_from_secs_f64(expected).unwrap_or(Duration::MAX)
}

/// The normal distribution function, to 0.0002.
///
/// Source: the logistic approximation of Bowling et al., 2009, recalled.
fn normal(x: f64) -> f64 {
    1.0 / (1.0 + (-(0.070_56 * x * x * x + 1.5976 * x)).exp())
}

#[cfg(test)]
mod tests {
    use antdt_core::Seed;

    use super::*;

    #[test]
    fn leaving_out_what_changes_nothing_changes_nothing() {
        let mut rng = Seed(2).rng();
        for workers in [1, 2, 16, 500] {
            let spread = [0.01, 0.05, 0.3];
            let batches: Vec<(f64, f64)> =
                (0..workers).map(|i| ((rng.normal() * 0.2).exp(), spread[i % 3])).collect();
            // Every worker at every point of a finer integral.
            let far = |far: f64| batches.iter().map(|(m, s)| m * (far * s).exp()).fold(0.0, f64::max);
            let (low, points) = (far(-4.0), 400);
            let width = (far(4.0) - low) / f64::from(points);
            let missing = |point: i32| {
                let at: f64 = low + width * (f64::from(point) + 0.5);
                1.0 - batches.iter().map(|(m, s)| normal((at / m).ln() / s)).product::<f64>()
            };
            let mean = low + (0..points).map(missing).sum::<f64>() * width;
            let given: Vec<_> = batches.iter().map(|(m, s)| (Duration::from_secs_f64(*m), *s)).collect();
            let expected = expected_step(&given).as_secs_f64();
            assert!((expected / mean - 1.0).abs() < 0.002, "{workers} workers: {expected} and {mean}");
        }
    }

    #[test]
    fn it_is_the_mean_of_the_slowest_of_many_steps() {
        let mut rng = Seed(1).rng();
        for batches in [
            vec![(1.0, 0.1); 4],
            vec![(1.0, 0.3); 8],
            vec![(1.0, 0.2), (1.0, 0.2), (4.0, 0.2)],
            vec![(1.0, 0.02), (1.1, 0.4)],
            vec![(1.0, 0.0), (2.0, 0.0)],
        ] {
            let steps = 40_000;
            let step = |rng: &mut antdt_core::DetRng| {
                batches.iter().map(|(m, s): &(f64, f64)| m * (s * rng.normal()).exp()).fold(0.0, f64::max)
            };
            let mean = (0..steps).map(|_| step(&mut rng)).sum::<f64>() / f64::from(steps);
            let given: Vec<_> = batches.iter().map(|(m, s)| (Duration::from_secs_f64(*m), *s)).collect();
            let expected = expected_step(&given).as_secs_f64();
            assert!((expected / mean - 1.0).abs() < 0.01, "{batches:?}: {expected} and {mean}");
        }
    }
}
