//! One network card per host.

use std::time::Duration;

use antdt_core::{DetRng, JobTime};

use super::AlphaBeta;
use crate::model::host::PerHost;
use crate::model::{Collective, Network, Site, seconds};

/// A network model with one network card per host: each host sends one message at a time and receives one at
/// a time, in the order sent.
///
/// A message leaves when its host has sent the messages before it, and arrives after the latency, once the
/// receiving host has received the messages before it and its own bytes. So `n` workers that push to one
/// server at the same time take `n` times as long as one. Collectives have their own price and do not queue.
#[derive(Debug, Clone)]
pub struct SharedNic {
    network: AlphaBeta,
    cards: PerHost<Card>,
}

// Until when it is busy.
#[derive(Debug, Clone, Copy, Default)]
struct Card {
    out: JobTime,
    into: JobTime,
}

impl SharedNic {
    /// Returns the model `network` with one network card for each of its hosts.
    pub fn new(network: AlphaBeta) -> Self {
        Self { network, cards: PerHost::default() }
    }
}

impl Network for SharedNic {
    fn message(
        &mut self,
        at: JobTime,
        from: Site,
        to: Site,
        bytes: u64,
        rng: &mut DetRng,
    ) -> Option<JobTime> {
        let hosts = self.network.hosts();
        let (source, target) = (hosts.of(from), hosts.of(to));
        if source == target {
            return self.network.message(at, from, to, bytes, rng);
        }
        let link = self.network.link(from, to);
        let (latency, time) = (seconds(link.alpha), seconds(bytes as f64 / link.bandwidth));
        let out = &mut self.cards.of(source).out;
        let left = at.max(*out);
        *out = left + time;
        // The first byte arrives after the latency; bytes are taken in while they are sent.
        let into = &mut self.cards.of(target).into;
        *into = (left + latency).max(*into) + time;
        Some(*into)
    }

    fn collective(&mut self, at: JobTime, operation: Collective, world: u32, rng: &mut DetRng) -> Duration {
        self.network.collective(at, operation, world, rng)
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
    use antdt_collective::schedule::{Choice, CostModel};
    use antdt_core::{NodeId, Seed};

    use super::*;
    use crate::model::Hosts;

    // 10 us, 1 byte per ns.
    const LINK: CostModel = CostModel { alpha: 1e-5, bandwidth: 1e9, ..CostModel::LOOPBACK };

    fn arrivals(workers_per_host: u32, messages: &[(Site, Site)]) -> Vec<u64> {
        let hosts = Hosts::new(workers_per_host).unwrap();
        let mut network = SharedNic::new(AlphaBeta::new(hosts, LINK, LINK, Choice::Auto).unwrap());
        let mut rng = Seed(0).rng();
        messages
            .iter()
            .map(|(from, to)| network.message(JobTime(0), *from, *to, 1000, &mut rng).unwrap().0)
            .collect()
    }

    const fn worker(index: u32) -> Site {
        Site::Node(NodeId::worker(index))
    }

    const SERVER: Site = Site::Node(NodeId::server(0));

    #[test]
    fn a_message_alone_takes_the_latency_and_the_time_of_its_bytes() {
        assert_eq!(arrivals(1, &[(worker(0), SERVER)]), [11_000]);
        assert_eq!(arrivals(2, &[(worker(0), worker(1)), (worker(0), worker(1))]), [11_000, 11_000]);
    }

    #[test]
    fn messages_into_one_host_queue_and_so_do_those_out_of_one() {
        let into = [0, 1, 2].map(|index| (worker(index), SERVER));
        assert_eq!(arrivals(1, &into), [11_000, 12_000, 13_000]);
        let out = [0, 1, 2].map(|index| (SERVER, worker(index)));
        assert_eq!(arrivals(1, &out), [11_000, 12_000, 13_000]);
    }

    #[test]
    fn both_ways_and_other_hosts_do_not_wait_for_each_other() {
        let messages =
            [(worker(0), worker(1)), (worker(1), worker(0)), (worker(2), worker(3)), (Site::Master, SERVER)];
        assert_eq!(arrivals(1, &messages), [11_000; 4]);
    }
}
