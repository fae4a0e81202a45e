//! A link that is slower than the others for a while.

use std::time::Duration;

use antdt_core::{DetRng, InvalidValue, JobTime};

use crate::model::{Collective, Host, Hosts, Network, Site, at_least, scaled};

/// A network model in which every message to or from one host takes longer for a while. A collective takes as
/// long as its slowest link, because all members wait for that host.
#[derive(Debug, Clone)]
pub struct SlowLink<N> {
    network: N,
    hosts: Hosts,
    host: Host,
    slow: f64,
    from: JobTime,
    to: JobTime,
}

impl<N: Network> SlowLink<N> {
    /// Returns the model `network`, in which the link of `host` is `slow` times slower from the time `from`
    /// to the time `to`. `hosts` assigns workers to hosts; the slow host takes part in every collective.
    ///
    /// # Errors
    /// If the factor is below 1.
    pub fn new(
        network: N,
        hosts: Hosts,
        host: Host,
        slow: f64,
        (from, to): (JobTime, JobTime),
    ) -> Result<Self, InvalidValue> {
        at_least("slow-link", slow, 1.0, "at least 1: how many times longer it takes than normal")?;
        Ok(Self { network, hosts, host, slow, from, to })
    }

    fn crosses(&self, from: Site, to: Site) -> bool {
        let [from, to] = [from, to].map(|site| self.hosts.of(site));
        from != to && (from == self.host || to == self.host)
    }

    fn is_slow(&self, at: JobTime) -> bool {
        self.from <= at && at < self.to
    }
}

impl<N: Network> Network for SlowLink<N> {
    fn message(
        &mut self,
        at: JobTime,
        from: Site,
        to: Site,
        bytes: u64,
        rng: &mut DetRng,
    ) -> Option<JobTime> {
        let arrival = self.network.message(at, from, to, bytes, rng)?;
        let crosses = self.crosses(from, to);
        Some(if crosses && self.is_slow(at) { at + scaled(arrival.since(at), self.slow) } else { arrival })
    }

    fn collective(&mut self, at: JobTime, operation: Collective, world: u32, rng: &mut DetRng) -> Duration {
        let time = self.network.collective(at, operation, world, rng);
        if self.is_slow(at) { scaled(time, self.slow) } else { time }
    }

    fn transfer(&self, at: JobTime, from: Site, to: Site, bytes: u64) -> Option<Duration> {
        let time = self.network.transfer(at, from, to, bytes)?;
        Some(if self.crosses(from, to) && self.is_slow(at) { scaled(time, self.slow) } else { time })
    }

    fn form(&mut self, at: JobTime, world: u32, rng: &mut DetRng) -> Duration {
        self.network.form(at, world, rng)
    }
}

#[cfg(test)]
mod tests {
    use antdt_collective::schedule::{Choice, CostModel};
    use antdt_core::{NodeId, Seed};

    use super::*;
    use crate::model::network::AlphaBeta;

    #[test]
    fn only_messages_over_the_link_take_longer_and_only_then() {
        let hosts = Hosts::default();
        let network = AlphaBeta::new(hosts, CostModel::ADAPTER, CostModel::ADAPTER, Choice::Auto).unwrap();
        let (from, to) = (JobTime(1_000_000_000), JobTime(2_000_000_000));
        let host = Host::Workers(1);
        let slowed = SlowLink::new(network.clone(), hosts, host, 4.0, (from, to)).unwrap();
        let takes = |network: &mut dyn Network, at: JobTime, worker: u32| {
            let site = Site::Node(NodeId::worker(worker));
            let arrival = network.message(at, site, Site::Master, 1 << 20, &mut Seed(1).rng()).unwrap();
            arrival.since(at)
        };
        let (mut network, mut slowed) = (network, slowed);
        for (at, worker, factor) in [(from, 1, 4), (from, 0, 1), (JobTime(9), 1, 1), (to, 1, 1)] {
            let normal = takes(&mut network, at, worker);
            assert_eq!(takes(&mut slowed, at, worker), normal * factor, "{at} {worker}");
        }
        let sends = |network: &dyn Network, at: JobTime, from: u32, to: u32| {
            let [from, to] = [from, to].map(|worker| Site::Node(NodeId::worker(worker)));
            network.transfer(at, from, to, 1 << 20).unwrap()
        };
        for (at, ends, factor) in [(from, (1, 2), 4), (from, (0, 1), 4), (from, (2, 0), 1), (to, (1, 2), 1)] {
            let normal = sends(&network, at, ends.0, ends.1);
            assert_eq!(sends(&slowed, at, ends.0, ends.1), normal * factor, "{at} {ends:?}");
        }
        let all = |network: &mut dyn Network, at: JobTime| {
            network.collective(at, Collective::AllReduce(1 << 20), 4, &mut Seed(1).rng())
        };
        assert_eq!(all(&mut slowed, from), all(&mut network, from) * 4);
        assert_eq!(all(&mut slowed, to), all(&mut network, to));
        let error = SlowLink::new(network, hosts, host, 0.5, (from, to)).unwrap_err().to_string();
        assert!(error.starts_with("slow-link = 0.5"), "{error}");
    }
}
