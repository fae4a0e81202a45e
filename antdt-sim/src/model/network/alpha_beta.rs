//! A network model of latencies and bandwidths: one pair for messages inside a host, one for those between
//! hosts.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_collective::schedule::select::cost_all_reduce;
use antdt_collective::schedule::{Choice, CostModel};
use antdt_core::{DetRng, InvalidValue, JobTime};

use crate::model::{Collective, Hosts, Network, Site, at_least, seconds};

/// A network model in which a message takes a latency and the time of its bytes, and messages do not delay
/// each other.
///
/// There are two links: one inside a host, one between hosts. A collective takes the time that the closed
/// formulas of `antdt-collective` give for the algorithm that its communicator would choose. In a group of
/// several hosts with several members each, the members of one host share its link to the others; the ring
/// sends over it once each way, and the hierarchical algorithm is also a choice. No other message delays a
/// collective.
///
/// Source: Hockney's model with the overhead per message of LogP, both as [`CostModel`] has them; the price of the
/// hierarchical all-reduce follows the formula in the documentation of
/// [`Hierarchical`](antdt_collective::schedule::Hierarchical), with rounds that do not overlap priced in full.
#[derive(Debug, Clone)]
pub struct AlphaBeta {
    hosts: Hosts,
    inside: CostModel,
    between: CostModel,
    choice: Choice,
    prices: BTreeMap<(Collective, u32), Duration>,
}

impl AlphaBeta {
    /// Returns the network of `hosts`, in which processes of one host have the link `inside`, and others the
    /// link `between`. `choice` picks the algorithm of all-reduces.
    ///
    /// # Errors
    /// If a number of a link is negative or not finite, or a bandwidth is below one byte per second.
    pub fn new(
        hosts: Hosts,
        inside: CostModel,
        between: CostModel,
        choice: Choice,
    ) -> Result<Self, InvalidValue> {
        for link in [&inside, &between] {
            at_least("latency", link.alpha, 0.0, "at least 0 seconds")?;
            at_least("overhead", link.overhead, 0.0, "at least 0 seconds per message")?;
            at_least("bandwidth", link.bandwidth, 1.0, "at least 1 byte per second")?;
            at_least("fold-time", link.gamma, 0.0, "at least 0 seconds per byte")?;
        }
        Ok(Self { hosts, inside, between, choice, prices: BTreeMap::new() })
    }

    /// Returns the assignment of nodes to hosts.
    pub const fn hosts(&self) -> Hosts {
        self.hosts
    }

    /// Returns the link between two processes.
    pub fn link(&self, from: Site, to: Site) -> &CostModel {
        if self.hosts.of(from) == self.hosts.of(to) { &self.inside } else { &self.between }
    }

    fn price(&self, operation: Collective, world: u32) -> f64 {
        if world < 2 {
            return 0.0;
        }
        // The formulas shift by its logarithm, and no rank has more.
        let world = world.min(1 << 24);
        let per_host = self.hosts.workers_per_host();
        let link = if world > per_host { &self.between } else { &self.inside };
        match operation {
            Collective::AllReduce(bytes) => self.price_all_reduce(bytes, world, link),
            Collective::AllGather(bytes) => price_all_gather(bytes, world, link),
            Collective::Broadcast(bytes) => price_broadcast(bytes, world, link),
        }
    }

    fn price_all_reduce(&self, bytes: u64, world: u32, link: &CostModel) -> f64 {
        let per_host = self.hosts.workers_per_host();
        let sharing = world > per_host && per_host > 1;
        let len_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if sharing && self.choice == Choice::Auto && bytes > HOSTS_MIN_BYTES {
            return self.price_hierarchical(bytes as f64, world);
        }
        let choice = self.choice.resolve(world, len_bytes, link);
        let shared = CostModel { bandwidth: link.bandwidth / f64::from(per_host), ..*link };
        let link = if sharing && choice != Choice::Ring { &shared } else { link };
        cost_all_reduce(choice, world, len_bytes, link).expect("a resolved choice names one way")
    }

    fn price_hierarchical(&self, bytes: f64, world: u32) -> f64 {
        let (inside, between) = (&self.inside, &self.between);
        let members = f64::from(self.hosts.workers_per_host());
        let hosts = f64::from(world.div_ceil(self.hosts.workers_per_host()));
        let across = 2.0 * (hosts - 1.0) * (between.alpha + bytes / hosts / between.bandwidth);
        let rounds = 2.0 * hosts + 1.0;
        let share = (members - 1.0) / members * bytes;
        let within = rounds * inside.alpha + 2.0 * share / inside.bandwidth + share * inside.gamma;
        // The first two rounds inside hosts and the last one have nothing to hide behind.
        let alone = within * 3.0 / rounds;
        alone + across.max(within - alone)
    }
}

// As the communicator decides: shorter buffers are a matter of latency.
const HOSTS_MIN_BYTES: u64 = 64 << 10;

// As the communicator cuts a broadcast.
const BROADCAST_SEGMENT: u64 = 1 << 20;

// The number of bytes of each rank, for all: gathers and broadcasts begin with it.
fn price_lengths(world: u32, link: &CostModel) -> f64 {
    let others = f64::from(world - 1);
    link.alpha + link.overhead * (others - 1.0) + others * 8.0 / link.bandwidth
}

fn price_all_gather(bytes: u64, world: u32, link: &CostModel) -> f64 {
    let (others, block) = (f64::from(world - 1), bytes as f64 / f64::from(world));
    let long = bytes > (link.burst as u64).saturating_mul(world.into());
    let blocks = if long {
        others * (link.alpha + block / link.bandwidth)
    } else {
        link.alpha + link.overhead * (others - 1.0) + others * block / link.bandwidth
    };
    price_lengths(world, link) + blocks
}

fn price_broadcast(bytes: u64, world: u32, link: &CostModel) -> f64 {
    let segments = bytes.div_ceil(BROADCAST_SEGMENT).max(1);
    let (rounds, segments) = if bytes <= BROADCAST_SEGMENT.min(link.burst as u64) {
        (f64::from(world.next_power_of_two().ilog2()), 1.0)
    } else {
        (f64::from(world) + segments as f64 - 2.0, segments as f64)
    };
    price_lengths(world, link) + rounds * (link.alpha + bytes as f64 / segments / link.bandwidth)
}

impl Network for AlphaBeta {
    fn message(
        &mut self,
        at: JobTime,
        from: Site,
        to: Site,
        bytes: u64,
        _rng: &mut DetRng,
    ) -> Option<JobTime> {
        let link = self.link(from, to);
        Some(at + seconds(link.alpha + bytes as f64 / link.bandwidth))
    }

    fn collective(&mut self, _at: JobTime, operation: Collective, world: u32, _rng: &mut DetRng) -> Duration {
        if let Some(price) = self.prices.get(&(operation, world)) {
            return *price;
        }
        let price = seconds(self.price(operation, world));
        // Groups change and gradients of embeddings have many lengths: a bound on the memory, not a tuned number.
        if self.prices.len() >= PRICES_MAX {
            self.prices.clear();
        }
        self.prices.insert((operation, world), price);
        price
    }

    fn transfer(&self, _at: JobTime, from: Site, to: Site, bytes: u64) -> Option<Duration> {
        let crosses = self.hosts.of(from) != self.hosts.of(to);
        crosses.then(|| seconds(self.between.alpha + bytes as f64 / self.between.bandwidth))
    }
}

const PRICES_MAX: usize = 4096;

impl Default for AlphaBeta {
    /// Loopback, as [`CostModel::LOOPBACK`] has it, each worker on its own host.
    fn default() -> Self {
        let link = CostModel::LOOPBACK;
        Self {
            hosts: Hosts::default(),
            inside: link,
            between: link,
            choice: Choice::Auto,
            prices: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_collective::schedule::{
        Algorithm, BinomialBroadcast, ChainBroadcast, DirectGather, RingGather,
    };
    use antdt_core::{NodeId, Rank, Seed};

    use super::*;

    // 10 us and 1 GB/s between hosts, a tenth of that time inside.
    const BETWEEN: CostModel =
        CostModel { alpha: 1e-5, overhead: 1e-6, bandwidth: 1e9, gamma: 0.0, burst: 64 << 10 };
    const INSIDE: CostModel = CostModel { alpha: 1e-6, bandwidth: 1e10, ..BETWEEN };

    fn network(workers_per_host: u32, choice: Choice) -> AlphaBeta {
        AlphaBeta::new(Hosts::new(workers_per_host).unwrap(), INSIDE, BETWEEN, choice).unwrap()
    }

    fn price(network: &mut AlphaBeta, operation: Collective, world: u32) -> f64 {
        let mut rng = Seed(0).rng();
        let first = network.collective(JobTime::ZERO, operation, world, &mut rng);
        assert_eq!(network.collective(JobTime(7), operation, world, &mut rng), first);
        first.as_secs_f64()
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 + 1e-9 * b
    }

    #[test]
    fn a_message_takes_the_latency_and_the_time_of_its_bytes() {
        let mut network = network(2, Choice::Auto);
        let mut arrival = |from, to| {
            let (from, to) = (Site::Node(NodeId::worker(from)), Site::Node(NodeId::worker(to)));
            network.message(JobTime(5), from, to, 1000, &mut Seed(0).rng())
        };
        assert_eq!(arrival(0, 2), Some(JobTime(5 + 10_000 + 1_000)));
        assert_eq!(arrival(0, 1), Some(JobTime(5 + 1_000 + 100)));
    }

    #[test]
    fn a_ring_costs_two_times_all_other_chunks() {
        for world in [2, 3, 8, 1000] {
            let others = f64::from(world - 1);
            let closed = 2.0 * others * (1e-5 + 1e6 / f64::from(world) / 1e9);
            let seen = price(&mut network(1, Choice::Ring), Collective::AllReduce(1_000_000), world);
            assert!(near(seen, closed), "{world}: {seen} {closed}");
            // It crosses the link of a host once each way, however many share it.
            if world > 2 {
                assert_eq!(
                    seen,
                    price(&mut network(2, Choice::Ring), Collective::AllReduce(1_000_000), world)
                );
            }
        }
        assert_eq!(price(&mut network(1, Choice::Ring), Collective::AllReduce(1_000_000), 1), 0.0);
    }

    #[test]
    fn members_of_one_host_share_its_link() {
        let halving = |workers_per_host| {
            price(
                &mut network(workers_per_host, Choice::HalvingDoubling),
                Collective::AllReduce(8_000_000),
                8,
            )
        };
        let bytes = |bandwidth: f64| 6.0 * 1e-5 + 14_000_000.0 / bandwidth;
        assert!(near(halving(1), bytes(1e9)) && near(halving(4), bytes(1e9 / 4.0)), "{}", halving(4));
        // On one host, no message crosses a link.
        assert!(near(halving(8), 6.0 * 1e-6 + 14_000_000.0 / 1e10));
    }

    #[test]
    fn hosts_first_beats_a_schedule_that_shares_the_link_and_not_one_that_crosses_it() {
        let choose = |choice| price(&mut network(4, choice), Collective::AllReduce(64 << 20), 16);
        let across = 2.0 * 3.0 / 4.0 * f64::from(64 << 20) / 1e9;
        assert!(choose(Choice::Auto) < choose(Choice::HalvingDoubling));
        assert!((across..across * 1.2).contains(&choose(Choice::Auto)), "{}", choose(Choice::Auto));
    }

    #[test]
    fn gathers_and_broadcasts_cost_as_a_walk_over_their_schedules() {
        let walk = |algorithm: &dyn Algorithm, world: u32, len: usize| {
            let all: Vec<_> = (0..world).map(|me| algorithm.schedule(Rank(me), world, len)).collect();
            BETWEEN.price(&all, 1) + price_lengths(world, &BETWEEN)
        };
        let root = Rank(0);
        for world in [2_u32, 3, 8, 17] {
            for block in [100, 1 << 20] {
                let blocks = vec![block; world as usize];
                let algorithm: &dyn Algorithm =
                    if block == 100 { &DirectGather { blocks } } else { &RingGather { blocks } };
                let bytes = block as u64 * u64::from(world);
                let seen = price(&mut network(1, Choice::Auto), Collective::AllGather(bytes), world);
                assert!(near(seen, walk(algorithm, world, 0)), "{world} of {block}: {seen}");
            }
            let seen = price(&mut network(1, Choice::Auto), Collective::Broadcast(1000), world);
            assert!(near(seen, walk(&BinomialBroadcast { root }, world, 1000)), "{world}: {seen}");
            let seen = price(&mut network(1, Choice::Auto), Collective::Broadcast(8 << 20), world);
            let chain = ChainBroadcast { root, segment: 1 << 20 };
            assert!(near(seen, walk(&chain, world, 8 << 20)), "{world}: {seen}");
        }
    }

    #[test]
    fn a_link_that_cannot_be_is_refused_by_its_field() {
        let refused = |link| {
            let error = AlphaBeta::new(Hosts::default(), INSIDE, link, Choice::Auto).unwrap_err();
            error.to_string()
        };
        assert!(refused(CostModel { alpha: -1.0, ..BETWEEN }).starts_with("latency = -1: must be"));
        assert!(refused(CostModel { bandwidth: 0.0, ..BETWEEN }).starts_with("bandwidth = 0: must be"));
        assert!(refused(CostModel { gamma: f64::NAN, ..BETWEEN }).starts_with("fold-time = NaN"));
    }

    #[test]
    fn no_amount_of_bytes_and_no_number_of_members_is_too_much() {
        let mut network = AlphaBeta::default();
        for operation in [Collective::AllReduce, Collective::AllGather, Collective::Broadcast] {
            for world in [0, 1, u32::MAX] {
                price(&mut network, operation(u64::MAX), world);
            }
        }
    }
}
