//! Machines that come and go by the market.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use antdt_core::{DetRng, Holder, JobTime, NodeId, Role};

use crate::model::{Fault, Scheduler};

/// A change of a spot market: a machine is added or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarketEvent {
    /// The machine of this name is available from now on.
    Added(String),
    /// The machine of this name is taken away.
    Removed(String),
}

/// Reason why a list of changes of a spot market is impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpotError {
    /// A machine is added that the market has already.
    #[error("machine {machine} is added at {at} but is there since {since}: remove it in between")]
    AddedTwice {
        /// Name of the machine.
        machine: String,
        /// Time at which the machine is added.
        at: JobTime,
        /// Time at which the machine was added before.
        since: JobTime,
    },
    /// A machine is removed that the market does not have.
    #[error("machine {machine} is removed at {at} but is not there: add it before")]
    NotThere {
        /// Name of the machine.
        machine: String,
        /// Time at which the machine is removed.
        at: JobTime,
    },
}

/// The assignment of a spot market's machines to workers over time.
///
/// Machines are handed to waiting workers in the order in which both came; a machine without a waiting worker is kept for the
/// next. A worker whose machine is removed crashes and waits in line anew. All of this follows from the list of changes,
/// so the same market gives both the crashes ([`crashes`](Self::crashes)) and the starts ([`Spot`]).
///
/// Source: our design.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Market {
    // By worker: from when until when it has a machine, ascending.
    tenures: Vec<Vec<(JobTime, JobTime)>>,
}

impl Market {
    /// Returns the market of these changes, in any order, with this many workers that wait for a machine from the
    /// start. At the same moment, machines are added before others are removed.
    ///
    /// # Errors
    /// If a machine is added that is there already, or removed while it is not there.
    pub fn new(
        changes: impl IntoIterator<Item = (JobTime, MarketEvent)>,
        workers: u32,
    ) -> Result<Self, SpotError> {
        let mut changes: Vec<_> = changes.into_iter().collect();
        changes.sort_by_key(|(at, change)| (*at, matches!(change, MarketEvent::Removed(_))));
        let mut tenures = vec![Vec::new(); workers as usize];
        let mut waiting: VecDeque<usize> = (0..tenures.len()).collect();
        let mut since = BTreeMap::<String, JobTime>::new();
        let mut tenants = BTreeMap::<String, usize>::new();
        // In the order in which they came.
        let mut free = BTreeSet::<(JobTime, String)>::new();
        for (at, change) in changes {
            match change {
                MarketEvent::Added(machine) => {
                    if let Some(since) = since.insert(machine.clone(), at) {
                        return Err(SpotError::AddedTwice { machine, at, since });
                    }
                    free.insert((at, machine));
                }
                MarketEvent::Removed(machine) => {
                    let Some(since) = since.remove(&machine) else {
                        return Err(SpotError::NotThere { machine, at });
                    };
                    match tenants.remove(&machine) {
                        Some(worker) => {
                            if let Some((_, until)) = tenures[worker].last_mut() {
                                *until = at;
                            }
                            waiting.push_back(worker);
                        }
                        None => {
                            free.remove(&(since, machine));
                        }
                    }
                }
            }
            while let Some(worker) = waiting.front().copied()
                && let Some((_, machine)) = free.pop_first()
            {
                waiting.pop_front();
                tenures[worker].push((at, JobTime::NEVER));
                tenants.insert(machine, worker);
            }
        }
        for tenures in &mut tenures {
            // A machine that came and went at one moment was of no use.
            tenures.retain(|(from, until)| from < until);
        }
        Ok(Self { tenures })
    }

    /// Returns the crashes of workers, with their times: each worker loses its process when its machine is
    /// removed.
    pub fn crashes(&self) -> impl Iterator<Item = (JobTime, Fault)> {
        let crashes = self.tenures.iter().zip(0..).flat_map(|(tenures, index)| {
            let ends = tenures.iter().map(|(_, until)| *until).filter(|until| *until < JobTime::NEVER);
            ends.map(move |until| (until, Fault::Crash(NodeId::worker(index))))
        });
        crashes.collect::<Vec<_>>().into_iter()
    }

    /// Returns the time from which on a worker that needs a machine at `at` has one; `None` if it gets none
    /// any more.
    pub fn available(&self, worker: u32, at: JobTime) -> Option<JobTime> {
        let tenures = self.tenures.get(worker as usize)?;
        let next = tenures.partition_point(|(_, until)| *until <= at);
        tenures.get(next).map(|(from, _)| at.max(*from))
    }
}

/// A scheduler model in which workers start when the market has a machine for them. Servers are not on the
/// market and start at once.
///
/// If a machine is removed before a start on it is over, the start is lost, and [`Market::crashes`] has the
/// crash.
#[derive(Debug, Clone)]
pub struct Spot {
    market: Market,
    boot: Duration,
}

impl Spot {
    /// Returns the model for the workers of `market`; `boot` is the time from getting a machine to
    /// registration.
    pub const fn new(market: Market, boot: Duration) -> Self {
        Self { market, boot }
    }
}

impl Scheduler for Spot {
    fn start(&mut self, at: JobTime, life: Holder, _rng: &mut DetRng) -> Option<Duration> {
        match life.node.role {
            Role::Worker => {
                let from = self.market.available(life.node.index, at)?;
                Some(from.since(at).saturating_add(self.boot))
            }
            Role::Server => Some(self.boot),
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, Seed};

    use super::*;

    const fn second(second: u64) -> JobTime {
        JobTime(second * 1_000_000_000)
    }

    fn added(at: u64, machine: &str) -> (JobTime, MarketEvent) {
        (second(at), MarketEvent::Added(machine.to_owned()))
    }

    fn removed(at: u64, machine: &str) -> (JobTime, MarketEvent) {
        (second(at), MarketEvent::Removed(machine.to_owned()))
    }

    // Two workers, two machines and a third; the first goes at 10 and the second at 20, another comes at 30.
    fn market() -> Market {
        let changes =
            [added(0, "a"), added(0, "b"), added(5, "c"), removed(10, "a"), removed(20, "b"), added(30, "d")];
        Market::new(changes, 2).unwrap()
    }

    #[test]
    fn a_worker_crashes_with_its_machine_and_takes_the_next_that_is_free() {
        let crashes: Vec<_> = market().crashes().collect();
        let crash = |index| Fault::Crash(NodeId::worker(index));
        assert_eq!(crashes, [(second(10), crash(0)), (second(20), crash(1))]);
        // The third machine waited for a node; the second worker has to wait.
        assert_eq!(market().available(0, second(10)), Some(second(10)));
        assert_eq!(market().available(1, second(20)), Some(second(30)));
        assert_eq!(market().available(1, second(40)), Some(second(40)));
    }

    #[test]
    fn starts_wait_for_a_machine_and_boot() {
        let mut spot = Spot::new(market(), Duration::from_secs(2));
        let mut start =
            |node, at| spot.start(second(at), Holder::new(node, Incarnation(1)), &mut Seed(0).rng());
        assert_eq!(start(NodeId::worker(1), 21), Some(Duration::from_secs(11)));
        assert_eq!(start(NodeId::worker(0), 21), Some(Duration::from_secs(2)));
        assert_eq!(start(NodeId::server(0), 21), Some(Duration::from_secs(2)));
        // There never was a machine for a third.
        assert_eq!(start(NodeId::worker(2), 21), None);
        let mut ends = Spot::new(Market::new([added(0, "a"), removed(5, "a")], 1).unwrap(), Duration::ZERO);
        let life = Holder::new(NodeId::worker(0), Incarnation(1));
        assert_eq!(ends.start(second(5), life, &mut Seed(0).rng()), None);
    }

    #[test]
    fn a_node_that_lost_its_machine_waits_behind_those_that_wait_already() {
        let changes = [added(0, "a"), removed(10, "a"), added(20, "b"), added(30, "c")];
        let market = Market::new(changes, 2).unwrap();
        assert_eq!(market.available(1, second(0)), Some(second(20)));
        assert_eq!(market.available(0, second(10)), Some(second(30)));
    }

    #[test]
    fn a_market_that_cannot_be_is_refused() {
        let refused = |changes: Vec<_>| Market::new(changes, 1).unwrap_err().to_string();
        let twice = refused(vec![added(1, "a"), added(3, "a")]);
        assert_eq!(twice, "machine a is added at 3.000s but is there since 1.000s: remove it in between");
        let absent = refused(vec![removed(3, "a")]);
        assert_eq!(absent, "machine a is removed at 3.000s but is not there: add it before");
    }
}
