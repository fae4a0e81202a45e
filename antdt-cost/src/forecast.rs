//! Forecast of the duration of a synchronous step, which is the time of its slowest worker, noise included.
//!
//! The largest of several noisy times is on average longer than the largest of their medians. A forecast
//! without that would promise a gain from workers that only look slow: when one of them is made faster, noise
//! makes another one the slowest.
//!
//! With the time of a batch log-normal around its median, and independent of those of other workers, `E[max]
//! = L + integral from L of (1 - product of F_i(t)) dt`, where `F_i(t)` is the probability that worker `i` is done by `t`, and
//! the slowest worker is not done before `L`. It is integrated over `POINTS` points, each O(workers).
//!
//! A step that need not wait for its `b` slowest workers ends when all but `b` workers are done. The
//! probability that at most `b` workers are not done at a time is computed by adding one worker after the
//! other to the distribution of their number: O(workers * b) for each point.

use std::sync::LazyLock;
use std::time::Duration;

/// Points of the integral: with 64 its error is about 0.1 % of the step at most.
const POINTS: u32 = 64;

/// Standard deviations beyond which no batch is expected.
const FAR: f64 = 4.0;

/// Returns the expected duration of a step. `batches` holds, for each worker, the median time of its batch
/// and the standard deviation of the logarithm of that time.
pub fn expected_step(batches: &[(Duration, f64)]) -> Duration {
    // One in a million: no caller counts on it that all are done.
    const HARDLY: f64 = -13.8;
    let ln_normal = &*LN_NORMAL;
    let times = || batches.iter().map(|(median, spread)| (median.as_secs_f64(), *spread));
    let low = times().map(|(median, spread)| median * (-FAR * spread).exp()).fold(0.0, f64::max);
    let (mut high, mut late) = (0.0_f64, Vec::new());
    for (median, spread) in times() {
        let done = median * (FAR * spread).exp();
        high = high.max(done);
        // A worker that is done by then in any case makes no difference.
        if done > low {
            let (median, spread) = (median.ln(), spread.max(1e-6));
            late.push((median + FAR * spread, median, 1.0 / spread));
        }
    }
    // Workers that may be the last come first: of many workers, few decide about a point.
    late.sort_unstable_by(|(a, ..), (b, ..)| b.total_cmp(a));
    let width = (high - low) / f64::from(POINTS);
    let mut expected = low;
    for point in 0..POINTS {
        let log = (low + width * (f64::from(point) + 0.5)).ln();
        let mut all_done = 0.0;
        for (done, median, per_deviation) in &late {
            // All others are done by then; or what is left of the product changes nothing any more.
            if log >= *done || all_done < HARDLY {
                break;
            }
            all_done += ln_normal.at((log - median) * per_deviation);
        }
        expected += (1.0 - all_done.exp()) * width;
    }
    Duration::try_from_secs_f64(expected).unwrap_or(Duration::MAX)
}

/// Returns the expected duration of a step and the expected number of samples in it, for each number of
/// backup workers from 0 to `most`. `most` is limited to one less than the number of workers.
///
/// A step with `b` backups ends when all workers but `b` have done their batch. Its samples are those of the
/// workers that are done by then. `batches` holds, for each worker, the median time of its batch, the
/// standard deviation of the logarithm of that time, and the number of samples in the batch.
pub fn expected_steps_with_backups(batches: &[(Duration, f64, u32)], most: usize) -> Vec<(Duration, f64)> {
    let most = most.min(batches.len().saturating_sub(1));
    let times = |far: f64| {
        batches.iter().map(move |(median, spread, _)| median.as_secs_f64() * (far * spread.max(1e-6)).exp())
    };
    let (low, high) = (times(-FAR).fold(f64::INFINITY, f64::min), times(FAR).fold(0.0, f64::max));
    // Times of workers may be far apart: the points are as dense, in proportion, everywhere.
    let (low, high) = (low.max(f64::MIN_POSITIVE).ln(), high.max(f64::MIN_POSITIVE).ln());
    let width = (high - low) / f64::from(POINTS * 4);
    let total: f64 = batches.iter().map(|(_, _, samples)| f64::from(*samples)).sum();
    let mut done = vec![0.0; batches.len()];
    let mut steps = vec![(low.exp(), total); most + 1];
    let mut ended_before = vec![0.0; most + 1];
    for point in 0..POINTS * 4 {
        let at = low + width * f64::from(point + 1);
        // The chance that so many are late, by how many they are.
        let mut late = vec![0.0; most + 1];
        late[0] = 1.0;
        for ((median, spread, _), done) in batches.iter().zip(&mut done) {
            *done = normal((at - median.as_secs_f64().ln()) / spread.max(1e-6));
            for count in (0..=most).rev() {
                let one_less = if count > 0 { late[count - 1] } else { 0.0 };
                late[count] = late[count] * *done + one_less * (1.0 - *done);
            }
        }
        let (mut ended, span) = (0.0, at.exp() - (at - width).exp());
        for (backups, chance) in late.iter().enumerate() {
            ended += chance;
            let (before, step) = (&mut ended_before[backups], &mut steps[backups]);
            step.0 += (1.0 - f64::midpoint(*before, ended)) * span;
            // The late workers are asked once, at the median end of the step.
            if *before < 0.5 && ended >= 0.5 {
                step.1 = total - left_out(batches, &done, backups);
            }
            *before = ended;
        }
    }
    let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    steps.into_iter().map(|(seconds, samples)| (time(seconds), samples)).collect()
}

/// Expected samples of the batches that are late, if exactly `backups` are, and these are the chances of each that it is done.
///
/// With the odds `o` of being late, the chance of each is close to `x * o / (1 + x * o)`, with the one `x` for which they add up to the number.
fn left_out(batches: &[(Duration, f64, u32)], done: &[f64], backups: usize) -> f64 {
    if backups == 0 {
        return 0.0;
    }
    /// Halvings of an interval of 30 powers of ten: far below a thousandth of a sample.
    const HALVINGS: u32 = 48;
    let odds: Vec<f64> =
        done.iter().map(|done| done.clamp(1e-9, 1.0 - 1e-9)).map(|done| (1.0 - done) / done).collect();
    let chances = |log: f64| {
        let x = log.exp();
        odds.iter().map(move |odds| x * odds / (1.0 + x * odds))
    };
    #[allow(clippy::cast_precision_loss, reason = "a number of workers")]
    let wanted = backups as f64;
    let (mut low, mut high) = (-35.0, 35.0);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if chances(middle).sum::<f64>() < wanted { low = middle } else { high = middle }
    }
    batches.iter().zip(chances(high)).map(|((_, _, samples), chance)| f64::from(*samples) * chance).sum()
}

/// The normal distribution function, to 0.0002.
///
/// Source: the logistic approximation of Bowling et al., 2009, recalled.
fn normal(x: f64) -> f64 {
    1.0 / (1.0 + (-(0.070_56 * x * x * x + 1.5976 * x)).exp())
}

/// The logarithm of [`normal`] from [`LEAST`](Self::LEAST) to [`FAR`], tabulated: a forecast asks for it some thirty times for each worker.
struct LnNormal(Vec<f64>);

static LN_NORMAL: LazyLock<LnNormal> = LazyLock::new(LnNormal::new);

impl LnNormal {
    /// Below, the chance is less than one in ten million and counts as none.
    const LEAST: f64 = -6.0;

    /// Entries for each standard deviation: what lies between two is off by less than 5e-6, and by less than 2e-7 where the chance is above
    /// 0.99, as it is wherever many workers decide.
    const EACH: f64 = 256.0;

    fn new() -> Self {
        let points = (0..).map(|point| Self::LEAST + f64::from(point) / Self::EACH);
        Self(points.take_while(|x| *x <= FAR + 1.0 / Self::EACH).map(|x| normal(x).ln()).collect())
    }

    /// At `x`, which is at most [`FAR`].
    fn at(&self, x: f64) -> f64 {
        let place = (x - Self::LEAST) * Self::EACH;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in the table")]
        let index = place as usize;
        match self.0.get(index..index + 2) {
            Some([below, above]) if place >= 0.0 => {
                #[allow(clippy::cast_precision_loss, reason = "a place in the table")]
                let part = place - index as f64;
                below + (above - below) * part
            }
            _ => f64::NEG_INFINITY,
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Seed;

    use super::*;

    #[test]
    fn the_table_is_off_by_no_more_than_it_says() {
        let table = LnNormal::new();
        let off = |x: f64| (table.at(x) - normal(x).ln()).abs();
        let most =
            |xs: std::ops::Range<u32>| xs.map(|x| off(f64::from(x) / 10_000.0 - 6.0)).fold(0.0, f64::max);
        let (all, likely) = (most(0..100_000), most(84_000..100_000));
        assert!(all > 0.0 && all < 5e-6 && likely < 2e-7, "{all:e}, {likely:e}");
        assert!(normal(2.4) > 0.99 && off(FAR) < 1e-7, "the last entries");
        assert!(normal(LnNormal::LEAST) < 1e-7);
        assert_eq!((table.at(-6.01), table.at(-1e9)), (f64::NEG_INFINITY, f64::NEG_INFINITY));
    }

    /// The same integral with each chance computed as it is, and none left out.
    fn directly(batches: &[(Duration, f64)]) -> f64 {
        let far =
            |far: f64| batches.iter().map(|(m, s)| m.as_secs_f64() * (far * s).exp()).fold(0.0, f64::max);
        let (low, high) = (far(-FAR), far(FAR));
        let width = (high - low) / f64::from(POINTS);
        let missing = |point: u32| {
            let log = (low + width * (f64::from(point) + 0.5)).ln();
            let done = |(m, s): &(Duration, f64)| {
                let deviations = (log - m.as_secs_f64().ln()) / s.max(1e-6);
                if deviations >= FAR { 1.0 } else { normal(deviations) }
            };
            1.0 - batches.iter().map(done).product::<f64>()
        };
        low + (0..POINTS).map(missing).sum::<f64>() * width
    }

    #[test]
    fn the_table_agrees_with_the_integral_to_a_hundred_thousandth() {
        let mut rng = Seed(3).rng();
        for (workers, least, most) in
            [(1, 0.05, 0.05), (2, 0.01, 0.5), (40, 0.05, 0.3), (1000, 0.04, 0.06), (3000, 0.02, 0.4)]
        {
            for apart in [0.0, 0.1, 1.0] {
                let batches: Vec<(Duration, f64)> = (0..workers)
                    .map(|_| {
                        let median = Duration::from_secs_f64((rng.normal() * apart).exp() / 2.0);
                        (median, least + rng.unit() * (most - least))
                    })
                    .collect();
                let (found, exact) = (expected_step(&batches).as_secs_f64(), directly(&batches));
                assert!(
                    (found / exact - 1.0).abs() < 1e-5,
                    "{workers} workers, {apart}: {found} and {exact}"
                );
            }
        }
    }

    #[test]
    fn terms_that_are_left_out_change_nothing() {
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

    #[test]
    fn with_backups_it_is_the_mean_of_the_slowest_but_some() {
        let mut rng = Seed(2).rng();
        for batches in [
            vec![(1.0, 0.1, 64); 4],
            vec![(1.0, 0.5, 32); 8],
            vec![(1.0, 0.2, 10), (1.1, 0.2, 20), (4.0, 0.2, 30)],
            vec![(1.0, 0.02, 64), (1.0, 0.02, 64), (1.0, 0.02, 64), (50.0, 0.02, 64)],
            vec![(1.0, 0.0, 1), (2.0, 0.0, 3)],
        ] {
            let draws = 40_000;
            let most = batches.len() - 1;
            let mut sums = vec![(0.0, 0.0); most + 1];
            for _ in 0..draws {
                let draw = |(m, s, n): &(f64, f64, u32)| (m * (s * rng.normal()).exp(), f64::from(*n));
                let mut times: Vec<(f64, f64)> = batches.iter().map(draw).collect();
                times.sort_by(|a, b| a.0.total_cmp(&b.0));
                for (backups, sum) in sums.iter_mut().enumerate() {
                    let taken = &times[..times.len() - backups];
                    sum.0 += taken[taken.len() - 1].0;
                    sum.1 += taken.iter().map(|(_, samples)| samples).sum::<f64>();
                }
            }
            let given: Vec<_> =
                batches.iter().map(|(m, s, n)| (Duration::from_secs_f64(*m), *s, *n)).collect();
            for (backups, (time, samples)) in
                expected_steps_with_backups(&given, most).into_iter().enumerate()
            {
                let (mean, in_step) =
                    (sums[backups].0 / f64::from(draws), sums[backups].1 / f64::from(draws));
                let off = (time.as_secs_f64() / mean - 1.0).abs();
                assert!(off < 0.02, "{batches:?} but {backups}: {time:?} and {mean}");
                assert!(
                    (samples / in_step - 1.0).abs() < 0.03,
                    "{batches:?} but {backups}: {samples} and {in_step}"
                );
            }
        }
    }
}
