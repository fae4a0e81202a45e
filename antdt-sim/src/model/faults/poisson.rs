//! Faults at random times, at known rates.

use std::time::Duration;

use antdt_core::{DetRng, InvalidValue, JobTime};

use crate::model::{Fault, Faults, exponential, scaled};

/// Rate at which one kind of fault happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rate {
    /// The faults of this kind, of which each is equally likely. A fault of the master names no node.
    pub faults: Vec<Fault>,
    /// Mean time between two faults of this kind in the whole job.
    pub every: Duration,
}

/// A fault model in which faults are independent of each other and of the past, each kind at its own rate.
///
/// Source: superposed Poisson processes: times between faults of all kinds together are exponentially distributed, and
/// the kind of each is drawn by its share of the rates.
#[derive(Debug, Clone)]
pub struct Poisson {
    rates: Vec<(f64, Vec<Fault>)>,
    total: f64,
    until: JobTime,
    now: JobTime,
}

impl Poisson {
    /// Returns a model in which these kinds of faults happen from the start until `until`.
    ///
    /// # Errors
    /// If a kind has no time between its faults, or names no fault.
    pub fn new(rates: impl IntoIterator<Item = Rate>, until: JobTime) -> Result<Self, InvalidValue> {
        let rates = rates.into_iter().map(|rate| {
            // A shorter time means more faults than events.
            if rate.every < Duration::from_micros(1) {
                let remedy =
                    "at least 1us in the whole job, which is the mean time of one node divided by the nodes";
                return Err(InvalidValue::new("faults.every", format!("{:?}", rate.every), remedy));
            }
            if rate.faults.is_empty() {
                return Err(InvalidValue::new("faults.nodes", "(nothing)", "at least one node"));
            }
            Ok((1.0 / rate.every.as_secs_f64(), rate.faults))
        });
        let rates: Vec<(f64, Vec<Fault>)> = rates.collect::<Result<_, _>>()?;
        let total = rates.iter().map(|(rate, _)| rate).sum();
        Ok(Self { rates, total, until, now: JobTime::ZERO })
    }
}

impl Faults for Poisson {
    fn next(&mut self, rng: &mut DetRng) -> Option<(JobTime, Fault)> {
        let (_, last) = self.rates.last()?;
        self.now = self.now + scaled(Duration::from_secs(1), exponential(rng) / self.total);
        if self.now >= self.until {
            // Later calls must not find an earlier time.
            self.rates.clear();
            return None;
        }
        let mut place = rng.unit() * self.total;
        let kind = self.rates.iter().find(|(rate, _)| {
            place -= rate;
            place < 0.0
        });
        // Rounding may leave a hair at the end.
        let faults = kind.map_or(last, |(_, faults)| faults);
        Some((self.now, faults[rng.below(faults.len() as u64) as usize]))
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{NodeId, Seed};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn all(mut faults: Poisson) -> Vec<(JobTime, Fault)> {
        let mut rng = Seed(11).rng();
        std::iter::from_fn(|| faults.next(&mut rng)).collect()
    }

    #[test]
    fn each_kind_comes_at_its_rate_and_nothing_after_the_end() {
        let nodes: Vec<_> = (0..10).map(NodeId::worker).collect();
        let crashes =
            Rate { faults: nodes.iter().map(|node| Fault::Crash(*node)).collect(), every: HOUR / 10 };
        let pauses = Rate { faults: vec![Fault::PauseMaster(HOUR)], every: HOUR / 20 };
        let end = JobTime::from_duration(HOUR * 1000);
        let faults = all(Poisson::new([crashes, pauses], end).unwrap());
        // 10 and 20 an hour for 1,000 hours; a standard deviation is 100 and 141.
        let pauses = faults.iter().filter(|(_, fault)| matches!(fault, Fault::PauseMaster(_))).count();
        assert!((19_500..20_500).contains(&pauses), "{pauses}");
        assert!((9_600..10_400).contains(&(faults.len() - pauses)), "{}", faults.len() - pauses);
        let of_one = faults.iter().filter(|(_, fault)| *fault == Fault::Crash(nodes[3])).count();
        assert!((870..1_130).contains(&of_one), "{of_one}");
        assert!(faults.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        assert!(faults.iter().all(|(at, _)| *at < end));
    }

    #[test]
    fn without_kinds_nothing_happens_and_after_the_end_nothing_happens_again() {
        assert_eq!(all(Poisson::new([], JobTime::NEVER).unwrap()), []);
        let rate = Rate { faults: vec![Fault::RestartLedger], every: HOUR };
        let mut faults = Poisson::new([rate], JobTime::ZERO).unwrap();
        let mut rng = Seed(0).rng();
        assert_eq!((faults.next(&mut rng), faults.next(&mut rng)), (None, None));
    }

    #[test]
    fn kinds_without_time_or_nodes_are_refused() {
        let refused = |rate| Poisson::new([rate], JobTime::NEVER).unwrap_err().to_string();
        let rate = Rate { faults: vec![Fault::RestartLedger], every: Duration::ZERO };
        assert!(refused(rate).starts_with("faults.every = 0ns: must be at least 1us"));
        assert!(refused(Rate { faults: vec![], every: HOUR }).starts_with("faults.nodes = (nothing)"));
    }
}
