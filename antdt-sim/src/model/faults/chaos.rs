//! A random mix of all faults there are, until it is calm.

use std::time::Duration;

use antdt_core::{DetRng, InvalidValue, JobTime, NodeId};

use super::Listed;
use crate::model::{Fault, scaled};

/// Limits within which random faults of every kind are drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chaos {
    /// Nodes that faults hit; a node named twice is hit twice as often.
    pub nodes: Vec<NodeId>,
    /// Exit codes of processes that end by themselves.
    pub codes: Vec<i32>,
    /// Largest number of faults.
    pub faults_max: u32,
    /// Time from which on no fault happens.
    pub until: JobTime,
    /// Longest duration of a pause or of a cut from the network; the shortest is a thousandth of it, and each
    /// order of magnitude between is equally likely. With a duration above the silence limit, a node that was
    /// declared lost comes back.
    pub longest: Duration,
}

impl Chaos {
    /// Exit codes of three usual failures: 1, an error that a new process would meet again; 75, a request to
    /// be started again; 137, an end by signal 9, by which the kernel also ends a process for lack of memory.
    pub const CODES: [i32; 3] = [1, 75, 137];

    /// Returns a list of faults whose number, times, kinds and nodes are drawn from `rng`. One in four
    /// happens at the same time as the one before, because double failures are where recoveries go wrong.
    /// Kinds that were added later are drawn by [`draw_later`](Self::draw_later),
    /// [`draw_masters`](Self::draw_masters) and [`draw_servers`](Self::draw_servers).
    ///
    /// # Errors
    /// If there are no nodes or no exit codes.
    pub fn draw(&self, rng: &mut DetRng) -> Result<Listed, InvalidValue> {
        self.draw_with(rng, |rng, node, length, code| match rng.below(10) {
            0..=2 => Fault::Crash(node),
            3 => Fault::Exit(node, code),
            4..=5 => Fault::Pause(node, length),
            6 => Fault::PauseMaster(length),
            7..=8 => Fault::Cut(node, length),
            _ => Fault::RestartLedger,
        })
    }

    /// Returns a list of faults as [`draw`](Self::draw) does, each made by `fault` from a random node,
    /// duration and exit code.
    ///
    /// # Errors
    /// If there are no nodes or no exit codes.
    pub fn draw_with(
        &self,
        rng: &mut DetRng,
        mut fault: impl FnMut(&mut DetRng, NodeId, Duration, i32) -> Fault,
    ) -> Result<Listed, InvalidValue> {
        if self.nodes.is_empty() {
            return Err(InvalidValue::new("chaos.nodes", "(nothing)", "at least one node"));
        }
        if self.codes.is_empty() {
            return Err(InvalidValue::new("chaos.codes", "(nothing)", "at least one exit code"));
        }
        let count = rng.below(u64::from(self.faults_max) + 1);
        let mut before = JobTime(rng.below(self.until.0));
        let faults = (0..count).map(|_| {
            let again = rng.below(4) == 0;
            let at = if again { before } else { JobTime(rng.below(self.until.0)) };
            before = at;
            let node = self.nodes[rng.below(self.nodes.len() as u64) as usize];
            let length = self.length(rng);
            let code = self.codes[rng.below(self.codes.len() as u64) as usize];
            (at, fault(rng, node, length, code))
        });
        Ok(Listed::new(faults.collect::<Vec<_>>()))
    }

    /// Returns one to four faults of the kinds that [`draw`](Self::draw) does not draw. They are drawn
    /// separately, so that `draw` gives the same faults for a seed when a kind is added here.
    ///
    /// # Errors
    /// If there are no nodes.
    pub fn draw_later(&self, rng: &mut DetRng) -> Result<Listed, InvalidValue> {
        if self.nodes.is_empty() {
            return Err(InvalidValue::new("chaos.nodes", "(nothing)", "at least one node"));
        }
        let fault = |rng: &mut DetRng| {
            let node = self.nodes[rng.below(self.nodes.len() as u64) as usize];
            let length = self.length(rng);
            match rng.below(3) {
                0 => Fault::Preempt(node, length),
                1 => Fault::Hang(node, length),
                _ => Fault::Duplicate(node, length),
            }
        };
        let count = 1 + rng.below(4);
        let faults = (0..count).map(|_| (JobTime(rng.below(self.until.0)), fault(rng)));
        Ok(Listed::new(faults.collect::<Vec<_>>()))
    }

    /// Returns one to four ends of the master, each with the time until a successor takes over.
    pub fn draw_masters(&self, rng: &mut DetRng) -> Listed {
        let count = 1 + rng.below(4);
        let end = |_| {
            let (at, length) = (JobTime(rng.below(self.until.0)), self.length(rng));
            let effects = (rng.below(2) == 0).then(|| rng.below(4) as u32);
            (at, Fault::RestartMaster(length, effects))
        };
        Listed::new((0..count).map(end).collect::<Vec<_>>())
    }

    /// Returns one to three changes of the number of servers, each to at most four.
    pub fn draw_servers(&self, rng: &mut DetRng) -> Listed {
        let count = 1 + rng.below(3);
        let change = |_| (JobTime(rng.below(self.until.0)), Fault::ScaleServers(1 + rng.below(4) as u32));
        Listed::new((0..count).map(change).collect::<Vec<_>>())
    }

    fn length(&self, rng: &mut DetRng) -> Duration {
        scaled(self.longest, 10_f64.powf(-3.0 * rng.unit()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use antdt_core::Seed;

    use super::*;

    fn chaos() -> Chaos {
        Chaos {
            nodes: vec![NodeId::worker(0), NodeId::worker(1), NodeId::server(0)],
            codes: Chaos::CODES.to_vec(),
            faults_max: 8,
            until: JobTime(1_000_000),
            longest: Duration::from_secs(20),
        }
    }

    #[test]
    fn every_kind_of_fault_is_drawn_before_the_calm_and_within_the_limits() {
        let mut kinds = BTreeSet::new();
        let (mut together, mut most) = (0, 0);
        for seed in 0..500 {
            let list: Vec<_> = chaos().draw(&mut Seed(seed).rng()).unwrap().left().copied().collect();
            most = most.max(list.len());
            together += list.windows(2).filter(|pair| pair[0].0 == pair[1].0).count();
            let later = chaos().draw_later(&mut Seed(seed).rng()).unwrap();
            let masters = chaos().draw_masters(&mut Seed(seed).rng());
            let servers = chaos().draw_servers(&mut Seed(seed).rng());
            let others = later.left().chain(masters.left()).chain(servers.left()).copied();
            for (at, fault) in list.into_iter().chain(others) {
                assert!(at < JobTime(1_000_000));
                let (kind, length) = match fault {
                    Fault::Crash(_) => (0, None),
                    Fault::Exit(..) => (1, None),
                    Fault::Pause(_, length) => (2, Some(length)),
                    Fault::PauseMaster(length) => (3, Some(length)),
                    Fault::Cut(_, length) => (4, Some(length)),
                    Fault::RestartLedger => (5, None),
                    Fault::Preempt(_, length) => (6, Some(length)),
                    Fault::Hang(_, length) => (7, Some(length)),
                    Fault::Duplicate(_, length) => (8, Some(length)),
                    Fault::RestartMaster(length, _) => (9, Some(length)),
                    Fault::ScaleServers(servers) => {
                        assert!((1..=4).contains(&servers));
                        (10, None)
                    }
                    Fault::CrashAll(_) => unreachable!("it ends the world"),
                };
                kinds.insert(kind);
                let bounds = Duration::from_millis(20)..=Duration::from_secs(20);
                assert!(length.is_none_or(|length| bounds.contains(&length)), "{length:?}");
            }
        }
        assert_eq!((kinds.len(), most), (11, 8));
        assert!(together > 200, "{together}");
    }

    #[test]
    fn a_seed_draws_the_same_faults_again() {
        let draw = |seed| chaos().draw(&mut Seed(seed).rng()).unwrap();
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }

    #[test]
    fn chaos_without_nodes_is_refused_and_without_time_is_at_the_start() {
        assert!(Chaos { nodes: vec![], ..chaos() }.draw(&mut Seed(0).rng()).is_err());
        assert!(Chaos { nodes: vec![], ..chaos() }.draw_later(&mut Seed(0).rng()).is_err());
        assert!(Chaos { codes: vec![], ..chaos() }.draw(&mut Seed(0).rng()).is_err());
        let list = Chaos { until: JobTime::ZERO, ..chaos() }.draw(&mut Seed(0).rng()).unwrap();
        assert!(list.left().all(|(at, _)| *at == JobTime::ZERO));
    }
}
