//! Delays that differ from message to message.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{DetRng, JobTime};

use crate::model::{Collective, Network, Site, exponential, scaled};

/// A network model that adds an exponentially distributed delay to the messages of another one.
///
/// A collective waits once, for the longest delay of its members; on average that is `mean` times the
/// harmonic number of the number of members.
#[derive(Debug, Clone)]
pub struct Jitter<N> {
    network: N,
    mean: Duration,
    order: Order,
    latest: BTreeMap<(Site, Site), JobTime>,
}

/// Whether messages may overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Messages between two processes arrive in the order in which they were sent, as on one connection.
    #[default]
    Kept,
    /// Each message arrives after its own delay, so that messages overtake each other.
    Lost,
}

impl<N: Network> Jitter<N> {
    /// Returns the model `network`, in which each message is delayed by `mean` on average.
    pub const fn new(network: N, mean: Duration, order: Order) -> Self {
        Self { network, mean, order, latest: BTreeMap::new() }
    }
}

impl<N: Network> Network for Jitter<N> {
    fn message(
        &mut self,
        at: JobTime,
        from: Site,
        to: Site,
        bytes: u64,
        rng: &mut DetRng,
    ) -> Option<JobTime> {
        let arrival = self.network.message(at, from, to, bytes, rng)? + scaled(self.mean, exponential(rng));
        match self.order {
            Order::Lost => Some(arrival),
            Order::Kept => {
                let latest = self.latest.entry((from, to)).or_default();
                *latest = arrival.max(*latest);
                Some(*latest)
            }
        }
    }

    fn collective(&mut self, at: JobTime, operation: Collective, world: u32, rng: &mut DetRng) -> Duration {
        let time = self.network.collective(at, operation, world, rng);
        if world < 2 {
            return time;
        }
        // The latest of n by one draw: its distribution function is that of one, to the power of n.
        let latest = -(-(rng.unit().ln() / f64::from(world)).exp_m1()).ln();
        time.saturating_add(scaled(self.mean, latest))
    }
    fn transfer(&self, at: JobTime, from: Site, to: Site, bytes: u64) -> Option<Duration> {
        self.network.transfer(at, from, to, bytes)
    }

    fn form(&mut self, at: JobTime, world: u32, rng: &mut DetRng) -> Duration {
        self.network.form(at, world, rng)
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Seed;

    use super::*;
    use crate::model::network::AlphaBeta;

    const MILLISECOND: Duration = Duration::from_millis(1);

    // Of messages sent 10 us apart: the delay beyond that of the network, in ms.
    fn delays(order: Order, count: u32) -> Vec<(JobTime, f64)> {
        let mut network = Jitter::new(AlphaBeta::default(), MILLISECOND, order);
        let mut rng = Seed(2).rng();
        let plain =
            seconds_of(AlphaBeta::default().message(JobTime::ZERO, Site::Master, Site::Master, 0, &mut rng));
        let mut at = JobTime::ZERO;
        (0..count)
            .map(|_| {
                at = at + MILLISECOND / 100;
                let arrival = network.message(at, Site::Master, Site::Master, 0, &mut rng);
                (arrival.unwrap(), (seconds_of(arrival) - at.as_secs_f64() - plain) * 1e3)
            })
            .collect()
    }

    fn seconds_of(at: Option<JobTime>) -> f64 {
        at.unwrap().as_secs_f64()
    }

    #[test]
    fn delays_have_the_mean_asked_for_and_messages_overtake_each_other() {
        let delays = delays(Order::Lost, 50_000);
        let mean: f64 = delays.iter().map(|(_, delay)| delay).sum::<f64>() / 50_000.0;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!(delays.windows(2).filter(|pair| pair[1].0 < pair[0].0).count() > 10_000);
    }

    #[test]
    fn on_a_connection_nothing_overtakes() {
        let delays = delays(Order::Kept, 5_000);
        assert!(delays.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }

    #[test]
    fn a_collective_waits_for_the_latest_of_its_members() {
        let mut network = Jitter::new(AlphaBeta::default(), MILLISECOND, Order::Kept);
        let mut rng = Seed(9).rng();
        let plain = AlphaBeta::default().collective(JobTime::ZERO, Collective::AllReduce(8), 10, &mut rng);
        let mut sum = 0.0;
        for _ in 0..20_000 {
            let time = network.collective(JobTime::ZERO, Collective::AllReduce(8), 10, &mut rng);
            sum += (time - plain).as_secs_f64() * 1e3;
        }
        // 1 + 1/2 + .. + 1/10.
        let harmonic = 2.928_968;
        assert!((sum / 20_000.0 - harmonic).abs() < 0.03, "{}", sum / 20_000.0);
        let alone = network.collective(JobTime::ZERO, Collective::AllReduce(8), 1, &mut rng);
        assert_eq!(alone, Duration::ZERO);
    }
}
