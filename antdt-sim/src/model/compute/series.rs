//! Slowness over time, as it was recorded.

use std::time::Duration;

use antdt_core::{DetRng, DeviceClass, Holder, InvalidValue, JobTime, NodeId, Role};

use crate::model::{Compute, Host, scaled};

/// Recorded slowness of each worker over time: each factor holds from its time until the next one.
#[derive(Debug, Clone, PartialEq)]
pub struct Slowdowns {
    // By worker, in order of time; neither list is empty.
    workers: Vec<Vec<(JobTime, f64)>>,
    period: Duration,
}

impl Slowdowns {
    /// Returns the slowness of each worker from its list of times and factors: from that time on, a gradient
    /// takes `factor` times as long. The lists repeat after each `period`.
    ///
    /// # Errors
    /// If there is no worker, or a worker without an entry, if the times of a worker do not ascend or reach
    /// the period, or if a factor is not above 0.
    pub fn new(workers: Vec<Vec<(JobTime, f64)>>, period: Duration) -> Result<Self, InvalidValue> {
        if workers.is_empty() {
            return Err(InvalidValue::new("slowdown.workers", 0, "at least 1"));
        }
        for (index, entries) in workers.iter().enumerate() {
            let field = |what: &str| format!("slowdown.worker-{index}.{what}");
            let Some((last, _)) = entries.last() else {
                return Err(InvalidValue::new(field("entries"), 0, "at least 1"));
            };
            if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
                let remedy = format!("after the entry before, {}", pair[0].0);
                return Err(InvalidValue::new(field("t_s"), pair[1].0, remedy));
            }
            if last.since_start() >= period {
                let remedy = format!("before the period of {period:?}");
                return Err(InvalidValue::new(field("t_s"), *last, remedy));
            }
            if let Some((_, factor)) =
                entries.iter().find(|(_, factor)| !(factor.is_finite() && *factor > 0.0))
            {
                return Err(InvalidValue::new(field("slowdown"), factor, "a finite number above 0"));
            }
        }
        Ok(Self { workers, period })
    }

    /// Returns the number of workers in the recording.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Returns the time after which the recording repeats.
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// Returns the times and factors of one worker. A worker beyond the recorded ones gets the entries of the
    /// first, the second, and so on.
    pub fn entries(&self, worker: u32) -> &[(JobTime, f64)] {
        &self.workers[worker as usize % self.workers.len()]
    }

    /// Returns the factor of one worker at a time; before its first entry it is that of the first entry.
    pub fn at(&self, worker: u32, at: JobTime) -> f64 {
        let entries = self.entries(worker);
        let period = JobTime::from_duration(self.period).0.max(1);
        let at = JobTime(at.0 % period);
        let after = entries.partition_point(|(from, _)| *from <= at);
        entries[after.saturating_sub(1)].1
    }

    /// Returns the same slowdowns with time running `speedup` times faster.
    ///
    /// # Errors
    /// If `speedup` is not between 0.001 and 1,000,000, or two times would become equal.
    pub fn compressed(&self, speedup: f64) -> Result<Self, InvalidValue> {
        if !(1e-3..=1e6).contains(&speedup) {
            return Err(InvalidValue::new("speedup", speedup, "between 0.001 and 1000000; 1 is as recorded"));
        }
        let moment = |at: JobTime| JobTime::from_duration(scaled(at.since_start(), 1.0 / speedup));
        let workers = self.workers.iter();
        let workers =
            workers.map(|entries| entries.iter().map(|(at, factor)| (moment(*at), *factor)).collect());
        Self::new(workers.collect(), scaled(self.period, 1.0 / speedup))
    }
}

/// A compute model that multiplies the times of another model by the recorded slowness of the worker at that
/// time. Servers are not slowed.
#[derive(Debug, Clone)]
pub struct Series<C> {
    normally: C,
    slowdowns: Slowdowns,
}

impl<C: Compute> Series<C> {
    /// Returns the model `normally`, slowed as recorded.
    pub const fn new(normally: C, slowdowns: Slowdowns) -> Self {
        Self { normally, slowdowns }
    }
}

impl<C: Compute> Compute for Series<C> {
    fn time(&mut self, at: JobTime, holder: Holder, samples: u64, rng: &mut DetRng) -> Duration {
        let time = self.normally.time(at, holder, samples, rng);
        match holder.node.role {
            Role::Worker => scaled(time, self.slowdowns.at(holder.node.index, at)),
            Role::Server => time,
        }
    }

    fn device(&self, node: NodeId) -> DeviceClass {
        self.normally.device(node)
    }

    fn batch_size_max(&self, node: NodeId) -> Option<u32> {
        self.normally.batch_size_max(node)
    }

    fn moved(&mut self, node: NodeId, host: Host) {
        self.normally.moved(node, host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::compute::testing::{SECOND, time_of, worker};

    const fn second(second: u64) -> JobTime {
        JobTime(second * 1_000_000_000)
    }

    fn slowdowns() -> Slowdowns {
        let workers = vec![vec![(second(0), 1.0), (second(10), 3.0)], vec![(second(5), 2.0)]];
        Slowdowns::new(workers, Duration::from_secs(20)).unwrap()
    }

    #[test]
    fn a_factor_holds_until_the_next_and_the_series_begins_anew() {
        let mut series = Series::new(SECOND, slowdowns());
        let mut of = |index, at_s| time_of(&mut series, worker(index, 0), at_s, 1).as_secs();
        assert_eq!([0, 9, 10, 19, 20, 30].map(|at_s| of(0, at_s)), [1, 1, 3, 3, 1, 3]);
        assert_eq!([0, 5, 19].map(|at_s| of(1, at_s)), [2, 2, 2]);
        // The third worker is like the first.
        assert_eq!(of(2, 10), 3);
    }

    #[test]
    fn compressed_time_runs_faster() {
        let fast = slowdowns().compressed(10.0).unwrap();
        assert_eq!(fast.at(0, JobTime(999_999_999)), 1.0);
        assert_eq!(fast.at(0, second(1)), 3.0);
        assert_eq!(fast.period(), Duration::from_secs(2));
        for speedup in [0.0, -1.0, f64::NAN, 1e9] {
            assert!(slowdowns().compressed(speedup).unwrap_err().to_string().starts_with("speedup = "));
        }
    }

    #[test]
    fn series_that_cannot_be_are_refused() {
        let refused = |workers| Slowdowns::new(workers, Duration::from_secs(20)).unwrap_err().to_string();
        assert!(refused(vec![]).starts_with("slowdown.workers = 0"));
        assert!(refused(vec![vec![]]).starts_with("slowdown.worker-0.entries = 0"));
        let twice = vec![(second(1), 1.0), (second(1), 2.0)];
        assert!(refused(vec![twice]).contains("after the entry before, 1.000s"));
        assert!(refused(vec![vec![(second(20), 1.0)]]).contains("before the period"));
        assert!(refused(vec![vec![(second(0), 0.0)]]).starts_with("slowdown.worker-0.slowdown = 0"));
        assert!(refused(vec![vec![(second(0), f64::NAN)]]).starts_with("slowdown.worker-0.slowdown = NaN"));
    }
}
