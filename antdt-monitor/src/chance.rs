//! [`ratio_by_chance`]: the slowness ratio that noise alone may give a healthy node, at a stated error rate.
//!
//! A node's ratio is the median of the `k` batches in its window over the lower median of the same of its `n` peers, itself included.
//! Where one batch has noise of standard deviation `s` (of its logarithm), and all nodes are alike:
//!
//! * the logarithm of a median of `k` batches has a variance of at most `v = π/2 · s²/k`, which is its limit for many batches, and above the
//!   exact one for few;
//! * the median of the `n - 1` others, which is what a node that looks slow is held against, adds at most `2/n · v`: exactly that for
//!   `n = 2`, where it is the only peer; less for more of them;
//! * so a healthy node's ratio exceeds `exp(z · sqrt(v · (1 + 2/n)))` with a chance of at most `Φ(-z)`;
//! * `s` is an estimate. Half the mean square of `m` differences of neighbours is worth `2/3 · m` independent squares, so `z` is replaced by the
//!   quantile of Student's distribution with `d = 2/3 · m` degrees of freedom, to first order `z · (1 + (z² + 1) / 4d)`.
//!
//! The rate is per **look**: one node at one verdict. Boole's inequality adds looks up, however much they depend on each other: `W` workers that
//! are looked at `L` times each are called slow by noise at most `W · L ·` [`ERROR_RATE`] times. A verdict comes every 5 batches, so that
//! 8 workers over 1,000 jobs of 600 steps are 960,000 looks, of which 0.01 are wrong; 100 workers with batches of 100 ms are 173 million
//! looks a day, and fewer than two are wrong.
//!
//! What this assumes: noise of one batch is independent of that of the next, and no heavier in its tails than a log-normal one. A median
//! bounds what single outliers can do. Noise that lasts over batches is a change of pace, which a label is for.
//!
//! Tried and rejected: a larger fixed ratio. At noise of 20 % the limit of 1.3 is 4.3 standard deviations of the ratio away, at which
//! 4 of 936,000 looks were wrong; one that suits such noise is blind to a straggler among quiet workers.
//!
//! Source: our design; the variance of a median, von Neumann's mean square of differences and the expansion of Student's quantile are
//! textbook results, recalled.

use std::f64::consts::FRAC_PI_2;

/// Largest chance that one look at a healthy node calls it slow. A chance a hundred times smaller would
/// require 0.7 standard deviations of the ratio more: 4 % more slowness at noise of 20 %.
pub const ERROR_RATE: f64 = 1e-8;

/// The quantile of the normal distribution that is exceeded with a chance of [`ERROR_RATE`].
const QUANTILE: f64 = 5.612;

/// Independent squares that one difference of neighbours is worth.
const SQUARES: f64 = 2.0 / 3.0;

/// Returns the ratio above which noise explains a node's slowness with a chance of at most [`ERROR_RATE`].
///
/// `spread` is the standard deviation of the logarithm of one batch, estimated from `known` batches; `batches` are those that the node's median
/// is taken over, and `peers` the nodes that it is compared with, itself included.
pub(crate) fn ratio_by_chance(spread: f64, known: f64, batches: u32, peers: usize) -> f64 {
    ratio_at(QUANTILE, spread, known, batches, peers)
}

#[allow(clippy::cast_precision_loss, reason = "a number of nodes")]
fn ratio_at(quantile: f64, spread: f64, known: f64, batches: u32, peers: usize) -> f64 {
    let freedom = (known * SQUARES).max(1.0);
    let quantile = quantile * (1.0 + (quantile * quantile + 1.0) / (4.0 * freedom));
    let median = FRAC_PI_2 * spread * spread / f64::from(batches.max(1));
    (quantile * (median * (1.0 + 2.0 / peers.max(1) as f64)).sqrt()).exp()
}

#[cfg(test)]
mod tests {
    use antdt_core::{DetRng, Seed};

    use super::*;
    use crate::segment::{Noise, Segment};
    use crate::stats::lower_median;
    use crate::window::SampleTime;

    #[test]
    fn the_quantile_is_that_of_the_error_rate() {
        // The tail of the normal distribution beyond z, by its asymptotic series: off by less than a thousandth at 5.6.
        let z2 = QUANTILE * QUANTILE;
        let series = 1.0 - 1.0 / z2 + 3.0 / z2.powi(2) - 15.0 / z2.powi(3) + 105.0 / z2.powi(4);
        let tail = (-z2 / 2.0).exp() / (QUANTILE * (2.0 * std::f64::consts::PI).sqrt()) * series;
        assert!((tail / ERROR_RATE - 1.0).abs() < 0.01, "{tail}");
    }

    /// How often healthy nodes of jobs of `peers` exceed the ratio of a quantile, over `jobs` jobs.
    fn exceeded(quantile: f64, spread: f64, peers: usize, batches: u32, jobs: u64, rng: &mut DetRng) -> u64 {
        let mut count = 0;
        for _ in 0..jobs {
            let mut noise = Noise::default();
            let mut segments = vec![Segment::default(); peers];
            let mut medians = Vec::new();
            for segment in &mut segments {
                // The first batch is the warm-up of a segment; a window of as many more follows.
                let mut times: Vec<SampleTime> = (0..=2 * batches)
                    .map(|_| {
                        #[allow(
                            clippy::cast_possible_truncation,
                            clippy::cast_sign_loss,
                            reason = "a time in picoseconds"
                        )]
                        let time = SampleTime((1e9 * (spread * rng.normal()).exp()) as u64);
                        segment.push(time, &mut noise);
                        time
                    })
                    .collect();
                let window = times.len() - batches as usize;
                medians.extend(lower_median(&mut times[window..]));
            }
            let reference = lower_median(&mut medians.clone()).unwrap();
            for (segment, median) in segments.iter().zip(&medians) {
                let spread = segment.spread(&noise).max(noise.deviation());
                #[allow(clippy::cast_precision_loss, reason = "a ratio")]
                let ratio = median.0 as f64 / reference.0 as f64;
                count += u64::from(ratio > ratio_at(quantile, spread, noise.batches(), batches, peers));
            }
        }
        count
    }

    /// The quantile of a rate that a test can count: 1 %.
    const OFTEN: (f64, f64) = (0.01, 2.3263);

    #[test]
    fn noise_of_any_size_among_any_number_of_peers_exceeds_the_ratio_no_more_often_than_stated() {
        let (rate, quantile) = OFTEN;
        let mut rng = Seed(20).derive("chance").rng();
        let (mut all, mut looks_all) = (0, 0);
        for spread in [0.05, 0.1, 0.2, 0.4] {
            for peers in [2, 3, 4, 8, 13] {
                for batches in [5, 20] {
                    let jobs = 2_000 / peers as u64;
                    let looks = jobs * peers as u64;
                    let count = exceeded(quantile, spread, peers, batches, jobs, &mut rng);
                    #[allow(clippy::cast_precision_loss, reason = "a number of looks")]
                    let expected = rate * looks as f64;
                    println!("spread {spread}, {peers} peers, {batches} batches: {count} of {looks}");
                    // Five standard deviations above: looks of one job share their reference, so that they come in pairs.
                    #[allow(clippy::cast_precision_loss, reason = "a number of looks")]
                    let few = (count as f64) <= expected + 5.0 * (2.0 * expected).sqrt();
                    assert!(few, "{count} of {looks} at {spread}, {peers}");
                    (all, looks_all) = (all + count, looks_all + looks);
                }
            }
        }
        #[allow(clippy::cast_precision_loss, reason = "a number of looks")]
        let share = all as f64 / looks_all as f64;
        // The bound is one, and not a wild guess.
        assert!(share <= rate && share > rate / 20.0, "{share}");
    }

    #[test]
    fn little_noise_and_many_batches_explain_little() {
        let ratio = |spread, batches, peers| ratio_by_chance(spread, 1e9, batches, peers);
        assert!((ratio(0.05, 20, 8) - 1.092).abs() < 0.001, "{}", ratio(0.05, 20, 8));
        assert!((ratio(0.2, 20, 8) - 1.422).abs() < 0.001, "{}", ratio(0.2, 20, 8));
        assert!(ratio(0.2, 5, 8) > ratio(0.2, 20, 8) && ratio(0.2, 20, 2) > ratio(0.2, 20, 8));
        assert!(
            ratio_by_chance(0.2, 30.0, 20, 8) > ratio(0.2, 20, 8),
            "an estimate from few batches is believed less"
        );
        assert!((ratio(0.0, 20, 8) - 1.0).abs() < 1e-12);
    }
}
