//! How fast a random world is, and how unreliable.

use std::time::Duration;

use antdt_collective::schedule::{Choice, CostModel};
use antdt_core::{DetRng, InvalidValue, JobTime, NodeId};

use super::{below, up_to};
use crate::model::compute::{ByRole, Constant, LogNormal, Slow, Straggler, Who};
use crate::model::network::{AlphaBeta, Jitter, Loss, Order};
use crate::model::scheduler::Quantiles;
use crate::model::{Faults, Hosts};
use crate::{Models, Setup};

/// The conditions of a random case: workers of different and changing speed, a network that delays, reorders
/// and loses messages, and processes that start slowly.
#[derive(Debug, Clone, PartialEq)]
pub struct Rough {
    /// Time that a gradient takes for each sample.
    pub sample_time: Duration,
    /// Slowness of each worker: how many times longer its gradients take.
    pub slow: Vec<u32>,
    /// Standard deviation of the time of one gradient, as a share of that time.
    pub variation: f64,
    /// Shortest time that a message takes.
    pub latency: Duration,
    /// Mean additional time that a message takes, so that a message may overtake another.
    pub jitter: Duration,
    /// Share of the messages that are lost before `calm_from`.
    pub loss: f64,
    /// Longest time that a process takes to start.
    pub start: Duration,
    /// Time from which on no message is lost.
    pub calm_from: JobTime,
}

impl Rough {
    pub(super) fn draw(workers: u32, rng: &mut DetRng) -> Self {
        let sample_time = Duration::from_micros(200 + rng.below(8_000));
        let of_one = |_| if rng.below(4) == 0 { 2 + below(rng, 6) } else { 1 };
        Self {
            sample_time,
            slow: (0..workers).map(of_one).collect(),
            variation: [0.0, 0.1, 2.0][usize::from(rng.below(2) == 0) + usize::from(rng.below(4) == 0)],
            latency: Duration::from_micros(50 + rng.below(2_000)),
            jitter: if rng.below(2) == 0 { Duration::ZERO } else { up_to(rng, Duration::from_millis(10)) },
            loss: if rng.below(2) == 0 { 0.0 } else { 0.03 * rng.unit() },
            start: Duration::from_millis(10) + up_to(rng, Duration::from_secs(3)),
            calm_from: JobTime::ZERO,
        }
    }

    /// About how long the job takes if nothing goes wrong.
    pub(super) fn duration(&self, setup: &Setup) -> Duration {
        let slowest = self.sample_time * self.slow.iter().max().copied().unwrap_or(1);
        let samples = setup.samples * u64::from(setup.epochs);
        let steps = samples.div_ceil(setup.global_batch_size.into());
        let batch = setup.global_batch_size.div_ceil(setup.workers);
        let step = slowest * batch + (self.latency + self.jitter * 2) * 6;
        self.start + step * u32::try_from(steps).unwrap_or(u32::MAX)
    }

    /// A world that is so rough, and in which this goes wrong.
    pub(crate) fn models(
        &self,
        workers_per_host: u32,
        faults: Box<dyn Faults>,
    ) -> Result<Models, InvalidValue> {
        let hosts = Hosts::new(workers_per_host)?;
        let straggler = |(index, slow): (u32, &u32)| Straggler {
            who: Who::Node(NodeId::worker(index)),
            slow: f64::from(*slow),
            from: JobTime::ZERO,
            to: JobTime::NEVER,
            cured_by_restart: false,
        };
        let usual = Constant { fixed: Duration::ZERO, per_sample: self.sample_time };
        let workers = Slow::new(usual, hosts, (0..).zip(&self.slow).map(straggler))?;
        let workers = LogNormal::new(workers, self.variation)?;
        let link = CostModel {
            alpha: self.latency.as_secs_f64(),
            overhead: 0.0,
            bandwidth: 1e9,
            gamma: 0.0,
            burst: 64 << 10,
        };
        let network = AlphaBeta::new(hosts, link, link, Choice::Auto)?;
        let network = Jitter::new(network, self.jitter, Order::Lost);
        Ok(Models {
            compute: Box::new(ByRole { workers, servers: Constant::default() }),
            network: Box::new(Loss::new(network, self.loss)?.until(self.calm_from)),
            scheduler: Box::new(Quantiles::new(
                Duration::ZERO,
                &[(0.0, 0.0), (1.0, self.start.as_secs_f64())],
            )?),
            faults,
        })
    }
}
