//! Starts that wait as long as starts of a real cluster did.

use std::time::Duration;

use antdt_core::{DetRng, Holder, InvalidValue, JobTime};

use crate::model::{Scheduler, at_least, scaled, seconds};

/// A scheduler model with waiting times from quantiles: for some shares, the time below which that share of
/// all starts waited. Between two quantiles the time is interpolated linearly.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantiles {
    boot: Duration,
    // Shares ascending, first 0 and last 1.
    points: Vec<(f64, Duration)>,
}

impl Quantiles {
    /// Shares of starts and seconds that they waited at most, of 23,871 instances of recommendation models in
    /// a production cluster (scheduled minus created). Waits above the last quantile count as equal to it.
    ///
    /// Source: these five quantiles of a published trace; the trace itself was not looked at here.
    pub const PRODUCTION: [(f64, f64); 5] =
        [(0.5, 0.0), (0.75, 11.0), (0.9, 59.0), (0.95, 137.0), (0.99, 1651.0)];

    /// Returns the model with waiting times `points`, as shares and seconds, each followed by `boot` until
    /// the process registers. Below the first share the time is that of the first point, above the last share
    /// that of the last.
    ///
    /// # Errors
    /// If there is no point, a share is not between 0 and 1, a time is negative, or shares or times do not
    /// ascend.
    pub fn new(boot: Duration, points: &[(f64, f64)]) -> Result<Self, InvalidValue> {
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return Err(InvalidValue::new("quantiles", "(nothing)", "at least one share and its seconds"));
        };
        for (share, time) in points {
            if !(0.0..=1.0).contains(share) {
                return Err(InvalidValue::new("quantiles.share", share, "between 0 and 1, such as 0.95"));
            }
            at_least("quantiles.seconds", *time, 0.0, "at least 0 seconds")?;
        }
        if let Some(pair) = points.windows(2).find(|pair| pair[0].0 >= pair[1].0 || pair[0].1 > pair[1].1) {
            let point = format!("({}, {})", pair[1].0, pair[1].1);
            let remedy = format!("beyond the one before, ({}, {})", pair[0].0, pair[0].1);
            return Err(InvalidValue::new("quantiles", point, remedy));
        }
        let edges = [(0.0, first.1), (1.0, last.1)];
        let mut points = points.to_vec();
        if points[0].0 > 0.0 {
            points.insert(0, edges[0]);
        }
        if points[points.len() - 1].0 < 1.0 {
            points.push(edges[1]);
        }
        let points = points.into_iter().map(|(share, time)| (share, seconds(time))).collect();
        Ok(Self { boot, points })
    }

    /// Returns the model whose waiting times are distributed like the `recorded` ones, in seconds and any
    /// order.
    ///
    /// # Errors
    /// If the list is empty, or a time is negative.
    pub fn recorded(boot: Duration, recorded: &[f64]) -> Result<Self, InvalidValue> {
        let mut times = recorded.to_vec();
        times.sort_by(f64::total_cmp);
        let count = (times.len().max(2) - 1) as f64;
        let points = times.iter().enumerate().map(|(index, time)| (index as f64 / count, *time));
        Self::new(boot, &points.collect::<Vec<_>>())
    }

    /// Returns the time below which `share` of all starts wait.
    pub fn quantile(&self, share: f64) -> Duration {
        let after = self.points.partition_point(|(known, _)| *known <= share).clamp(1, self.points.len() - 1);
        let ((low, short), (high, long)) = (self.points[after - 1], self.points[after]);
        let within = ((share - low) / (high - low)).clamp(0.0, 1.0);
        short + scaled(long - short, within)
    }

    /// Returns the mean waiting time of a start, without the time to boot.
    pub fn mean(&self) -> Duration {
        let parts = self.points.windows(2);
        parts.map(|pair| scaled((pair[0].1 + pair[1].1) / 2, pair[1].0 - pair[0].0)).sum()
    }
}

impl Scheduler for Quantiles {
    fn start(&mut self, _at: JobTime, _life: Holder, rng: &mut DetRng) -> Option<Duration> {
        Some(self.quantile(rng.unit()).saturating_add(self.boot))
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, NodeId, Seed};

    use super::*;

    const LIFE: Holder = Holder::new(NodeId::worker(0), Incarnation(1));

    fn draws(quantiles: &mut Quantiles, count: usize) -> Vec<Duration> {
        let mut rng = Seed(8).rng();
        let mut draws: Vec<_> =
            (0..count).map(|_| quantiles.start(JobTime::ZERO, LIFE, &mut rng).unwrap()).collect();
        draws.sort_unstable();
        draws
    }

    #[test]
    fn starts_have_the_quantiles_and_the_mean_of_the_cluster() {
        let mut cluster = Quantiles::new(Duration::ZERO, &Quantiles::PRODUCTION).unwrap();
        let draws = draws(&mut cluster, 100_000);
        for (share, time) in Quantiles::PRODUCTION {
            assert_eq!(cluster.quantile(share), seconds(time));
            let seen = draws[(share * 100_000.0) as usize].as_secs_f64();
            assert!((seen - time).abs() <= 0.2 + time * 0.1, "{share}: {seen} for {time}");
        }
        // 1/4 (0+11)/2 + 3/20 (11+59)/2 + 1/20 (59+137)/2 + 1/25 (137+1651)/2 + 1/100 1651.
        assert!((cluster.mean().as_secs_f64() - 63.795).abs() < 1e-6, "{:?}", cluster.mean());
        let mean = draws.iter().sum::<Duration>().as_secs_f64() / 100_000.0;
        assert!((mean / 63.795 - 1.0).abs() < 0.03, "{mean}");
    }

    #[test]
    fn recorded_times_are_spread_as_recorded_and_the_boot_comes_on_top() {
        let second = Duration::from_secs(1);
        let mut quantiles = Quantiles::recorded(second, &[30.0, 10.0, 20.0]).unwrap();
        assert_eq!([0.0, 0.25, 0.5, 1.0].map(|share| quantiles.quantile(share).as_secs()), [10, 15, 20, 30]);
        assert!(draws(&mut quantiles, 100).iter().all(|draw| (second * 11..=second * 31).contains(draw)));
        let mut single = Quantiles::recorded(second, &[4.0]).unwrap();
        assert_eq!(draws(&mut single, 2), [second * 5; 2]);
    }

    #[test]
    fn quantiles_that_cannot_be_are_refused() {
        let refused = |points: &[_]| Quantiles::new(Duration::ZERO, points).unwrap_err().to_string();
        assert!(refused(&[]).starts_with("quantiles = (nothing)"));
        assert!(refused(&[(1.5, 0.0)]).starts_with("quantiles.share = 1.5"));
        assert!(refused(&[(0.5, -1.0)]).starts_with("quantiles.seconds = -1"));
        assert!(refused(&[(0.5, f64::NAN)]).starts_with("quantiles.seconds = NaN"));
        let descending = "quantiles = (0.6, 1): must be beyond the one before, (0.5, 2)";
        assert_eq!(refused(&[(0.5, 2.0), (0.6, 1.0)]), descending);
        assert!(Quantiles::recorded(Duration::ZERO, &[]).is_err());
        assert!(Quantiles::recorded(Duration::ZERO, &[f64::NAN, 1.0]).is_err());
    }
}
