//! Workers of different and changing speed, a network that delays, reorders and loses, and starts that take their time.

use std::time::Duration;

use antdt_core::{DetRng, Holder, JobTime, NodeId, Role};

use super::{below, up_to};
use crate::Setup;
use crate::model::{Collective, Compute, Network, Scheduler, Site};

/// How fast, how reliable and how lucky a random world is.
#[derive(Debug, Clone, PartialEq)]
pub struct Rough {
    /// Time of a gradient for each sample, by worker.
    pub sample_time: Vec<Duration>,
    /// A gradient takes up to so much longer, as a factor above 1.
    pub spread: f64,
    /// The shortest way of a message.
    pub latency: Duration,
    /// A message takes up to so much longer, so one may overtake another.
    pub jitter: Duration,
    /// Share of the messages that are lost before it is calm.
    pub loss: f64,
    /// The longest start of a process.
    pub start: Duration,
    /// From now on no message is lost.
    pub calm_from: JobTime,
}

impl Rough {
    pub(super) fn draw(setup: &Setup, rng: &mut DetRng) -> Self {
        let usual = Duration::from_micros(200 + rng.below(8_000));
        let of_one = |_| if rng.below(4) == 0 { usual * (2 + below(rng, 6)) } else { usual };
        Self {
            sample_time: (0..setup.workers).map(of_one).collect(),
            spread: [0.0, 0.1, 3.0][usize::from(rng.below(2) == 0) + usize::from(rng.below(4) == 0)],
            latency: Duration::from_micros(50 + rng.below(2_000)),
            jitter: if rng.below(2) == 0 { Duration::ZERO } else { up_to(rng, Duration::from_millis(20)) },
            loss: if rng.below(2) == 0 { 0.0 } else { 0.03 * rng.unit() },
            start: Duration::from_millis(10) + up_to(rng, Duration::from_secs(3)),
            calm_from: JobTime::ZERO,
        }
    }

    /// About how long the job takes if nothing goes wrong.
    pub(super) fn duration(&self, setup: &Setup) -> Duration {
        let slowest = self.sample_time.iter().max().copied().unwrap_or_default();
        let samples = setup.samples * u64::from(setup.epochs);
        let steps = samples.div_ceil(setup.global_batch_size.into());
        let batch = setup.global_batch_size.div_ceil(setup.workers);
        let step = slowest * batch + (self.latency + self.jitter) * 6;
        self.start + step * u32::try_from(steps).unwrap_or(u32::MAX)
    }

    fn delay(&self, rng: &mut DetRng) -> Duration {
        self.latency + up_to(rng, self.jitter)
    }
}

impl Compute for Rough {
    fn time(&mut self, _at: JobTime, holder: Holder, samples: u64, rng: &mut DetRng) -> Duration {
        let NodeId { role: Role::Worker, index } = holder.node else { return Duration::ZERO };
        let each = self.sample_time.get(index as usize).copied().unwrap_or_default();
        let samples = u32::try_from(samples).unwrap_or(u32::MAX);
        each.saturating_mul(samples).mul_f64(self.spread.mul_add(rng.unit(), 1.0))
    }
}

impl Network for Rough {
    fn message(&mut self, at: JobTime, _: Site, _: Site, _: u64, rng: &mut DetRng) -> Option<JobTime> {
        let lost = rng.unit() < self.loss && at < self.calm_from;
        (!lost).then(|| at + self.delay(rng))
    }

    fn collective(&mut self, _: JobTime, _: Collective, world: u32, rng: &mut DetRng) -> Duration {
        self.delay(rng) * world.ilog2().max(1)
    }
}

impl Scheduler for Rough {
    fn start(&mut self, _: JobTime, _: Holder, rng: &mut DetRng) -> Option<Duration> {
        Some(up_to(rng, self.start))
    }
}
