//! Phases in which a node is slow.

use std::time::Duration;

use antdt_core::{DetRng, DeviceClass, Holder, InvalidValue, JobTime, NodeId, NodeMap};

use crate::model::{Compute, Host, at_least, scaled};

/// A compute model that multiplies the times of another model in slow phases, which come and go by chance on
/// each node independently.
///
/// How long a node stays normal, and how long slow, is exponentially distributed; this models another user's
/// load on the host. A batch takes the time of the phase in which it begins.
///
/// Source: a Markov chain of two states. Only moments at which a batch begins are looked at, with the probability of
/// each state at that moment, so a quiet hour costs no more than a second.
#[derive(Debug, Clone)]
pub struct Bursts<C> {
    normally: C,
    gap: f64,
    length: f64,
    factor: f64,
    phases: NodeMap<Phase>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Phase {
    seen: JobTime,
    slow: bool,
}

impl<C: Compute> Bursts<C> {
    /// Returns the model whose times are those of `normally`, multiplied by `factor` in slow phases. `gap` is
    /// the mean time from the end of a slow phase to the next one, `length` the mean length of one. The job
    /// begins outside of a slow phase.
    ///
    /// # Errors
    /// If `gap` or `length` is zero, or `factor` is below 1.
    pub fn new(normally: C, gap: Duration, length: Duration, factor: f64) -> Result<Self, InvalidValue> {
        for (field, duration) in [("gap", gap), ("length", length)] {
            if duration.is_zero() {
                return Err(InvalidValue::new(field, "0s", "longer than 0s, such as 60s"));
            }
        }
        let factor = at_least("factor", factor, 1.0, "at least 1: how many times longer a batch takes")?;
        let phases = NodeMap::new();
        Ok(Self { normally, gap: gap.as_secs_f64(), length: length.as_secs_f64(), factor, phases })
    }

    fn slow(&mut self, at: JobTime, node: NodeId, rng: &mut DetRng) -> bool {
        let phase = self.phases.get(node).copied().unwrap_or_default();
        let passed = at.since(phase.seen).as_secs_f64();
        let share = self.length / (self.gap + self.length);
        let memory = (-passed * (1.0 / self.gap + 1.0 / self.length)).exp();
        let before = if phase.slow { 1.0 } else { 0.0 };
        let slow = rng.unit() < share + (before - share) * memory;
        self.phases.insert(node, Phase { seen: at, slow });
        slow
    }
}

impl<C: Compute> Compute for Bursts<C> {
    fn time(&mut self, at: JobTime, holder: Holder, samples: u64, rng: &mut DetRng) -> Duration {
        let time = self.normally.time(at, holder, samples, rng);
        if self.slow(at, holder.node, rng) { scaled(time, self.factor) } else { time }
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
    use antdt_core::Seed;

    use super::*;
    use crate::model::compute::testing::{SECOND, moments, worker};

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_share_of_slow_time_is_that_of_the_lengths() {
        // Slow for a minute in four, five times longer then: 1 + 4 / 4 on average.
        let (mean, _) = moments(&mut Bursts::new(SECOND, MINUTE * 3, MINUTE, 5.0).unwrap(), 200_000);
        assert!((mean - 2.0).abs() < 0.1, "{mean}");
    }

    #[test]
    fn a_phase_lasts_as_long_as_asked_for_however_often_one_looks() {
        let mut rng = Seed(3).rng();
        for step in [Duration::from_millis(100), Duration::from_secs(1)] {
            let mut bursts = Bursts::new(SECOND, MINUTE, MINUTE / 3, 2.0).unwrap();
            let (mut at, mut slow, mut begun, mut before) = (JobTime::ZERO, 0.0, 0.0, false);
            while at.as_secs_f64() < 200_000.0 {
                let now = bursts.slow(at, NodeId::worker(0), &mut rng);
                slow += if now { step.as_secs_f64() } else { 0.0 };
                begun += if now && !before { 1.0 } else { 0.0 };
                before = now;
                at = at + step;
            }
            let length: f64 = slow / begun;
            assert!((length - 20.0).abs() < 1.5, "{length} with {step:?}");
        }
    }

    #[test]
    fn nodes_are_slow_each_for_itself() {
        let mut bursts = Bursts::new(SECOND, MINUTE, MINUTE, 2.0).unwrap();
        let mut rng = Seed(4).rng();
        let at = |second| JobTime::from_duration(Duration::from_secs(second));
        let differ = (0..10_000).filter(|second| {
            let mut slow = |index| bursts.time(at(*second), worker(index, 0), 1, &mut rng) > SECOND.fixed;
            slow(0) != slow(1)
        });
        assert!((4_000..6_000).contains(&differ.count()));
    }

    #[test]
    fn phases_of_no_length_and_factors_that_speed_up_are_refused() {
        let refused = |gap, length, factor| Bursts::new(SECOND, gap, length, factor).unwrap_err().to_string();
        assert!(refused(Duration::ZERO, MINUTE, 2.0).starts_with("gap = 0s: must be longer"));
        assert!(refused(MINUTE, Duration::ZERO, 2.0).starts_with("length = 0s"));
        assert!(refused(MINUTE, MINUTE, 0.5).starts_with("factor = 0.5: must be at least 1"));
        assert!(refused(MINUTE, MINUTE, f64::NAN).starts_with("factor = NaN"));
    }
}
