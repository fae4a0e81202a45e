//! Slowdowns: which nodes are slow, when, and by how much.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{DetRng, DeviceClass, Holder, InvalidValue, JobTime, NodeId};

use crate::model::{Compute, Host, Hosts, Site, at_least, scaled};

/// The nodes that a slowdown affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// One node.
    Node(NodeId),
    /// All nodes of one host.
    Host(Host),
}

/// A slowdown of one node or of one host's nodes for some time, by the rules of `antdt run --straggler`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Straggler {
    /// The nodes that are slow.
    pub who: Who,
    /// Factor by which every computation of these nodes takes longer.
    pub slow: f64,
    /// Time at which the slowdown begins.
    pub from: JobTime,
    /// Time at which the slowdown ends; [`JobTime::NEVER`] if it lasts to the end of the job.
    pub to: JobTime,
    /// Whether a restart ends the slowdown of a node, because the cause was in its process.
    pub cured_by_restart: bool,
}

/// A compute model that multiplies the times of another model for some nodes. Several stragglers that affect
/// one node multiply.
#[derive(Debug, Clone)]
pub struct Slow<C> {
    normally: C,
    hosts: Hosts,
    // By node, and by host, so that a job of many nodes with few stragglers pays for few.
    nodes: BTreeMap<NodeId, Vec<Straggler>>,
    /// Hosts of nodes that are not where `hosts` says any more.
    moved: BTreeMap<NodeId, Host>,
    shared: BTreeMap<Host, Vec<Straggler>>,
}

impl<C: Compute> Slow<C> {
    /// Returns the model `normally` with these stragglers; `hosts` says which nodes run on a host.
    ///
    /// # Errors
    /// If a factor is below 1, or a slowdown ends before it begins.
    pub fn new(
        normally: C,
        hosts: Hosts,
        stragglers: impl IntoIterator<Item = Straggler>,
    ) -> Result<Self, InvalidValue> {
        let (mut nodes, mut shared) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
        for straggler in stragglers {
            at_least(
                "straggler.slow",
                straggler.slow,
                1.0,
                "at least 1: how many times longer it takes than normal",
            )?;
            if straggler.from >= straggler.to {
                let remedy = format!("before to, {}", straggler.to);
                return Err(InvalidValue::new("straggler.from", straggler.from, remedy));
            }
            match straggler.who {
                Who::Node(node) => nodes.entry(node).or_default().push(straggler),
                Who::Host(host) => shared.entry(host).or_default().push(straggler),
            }
        }
        Ok(Self { normally, hosts, nodes, moved: BTreeMap::new(), shared })
    }

    fn factor(&self, at: JobTime, holder: Holder) -> f64 {
        let of_node = self.nodes.get(&holder.node);
        let of_host = (!self.shared.is_empty())
            .then(|| {
                let moved = self.moved.get(&holder.node).copied();
                self.shared.get(&moved.unwrap_or_else(|| self.hosts.of(Site::Node(holder.node))))
            })
            .flatten();
        let active = |straggler: &&Straggler| {
            straggler.from <= at
                && at < straggler.to
                && !(straggler.cured_by_restart && holder.incarnation.0 > 0)
        };
        of_node.into_iter().chain(of_host).flatten().filter(active).map(|straggler| straggler.slow).product()
    }
}

impl<C: Compute> Compute for Slow<C> {
    fn time(&mut self, at: JobTime, holder: Holder, samples: u64, rng: &mut DetRng) -> Duration {
        let time = self.normally.time(at, holder, samples, rng);
        let factor = self.factor(at, holder);
        if factor > 1.0 { scaled(time, factor) } else { time }
    }

    fn device(&self, node: NodeId) -> DeviceClass {
        self.normally.device(node)
    }

    fn batch_size_max(&self, node: NodeId) -> Option<u32> {
        self.normally.batch_size_max(node)
    }

    fn moved(&mut self, node: NodeId, host: Host) {
        self.moved.insert(node, host);
        self.normally.moved(node, host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::compute::testing::{SECOND, time_of, worker};

    const STRAGGLER: Straggler = Straggler {
        who: Who::Node(NodeId::worker(1)),
        slow: 4.0,
        from: JobTime(10_000_000_000),
        to: JobTime(20_000_000_000),
        cured_by_restart: false,
    };

    fn times(stragglers: &[Straggler], cases: &[(u32, u32, u64)]) -> Vec<u64> {
        let hosts = Hosts::new(2).unwrap();
        let mut slow = Slow::new(SECOND, hosts, stragglers.iter().copied()).unwrap();
        cases
            .iter()
            .map(|(index, life, at_s)| time_of(&mut slow, worker(*index, *life), *at_s, 1).as_secs())
            .collect()
    }

    #[test]
    fn a_straggler_is_slow_from_its_first_moment_until_before_its_last() {
        let cases = [(1, 0, 9), (1, 0, 10), (1, 0, 19), (1, 0, 20), (0, 0, 15)];
        assert_eq!(times(&[STRAGGLER], &cases), [1, 4, 4, 1, 1]);
    }

    #[test]
    fn a_restart_cures_slowness_of_the_old_process_only() {
        let curable = Straggler { cured_by_restart: true, ..STRAGGLER };
        assert_eq!(times(&[curable], &[(1, 0, 15), (1, 1, 15)]), [4, 1]);
        assert_eq!(times(&[STRAGGLER], &[(1, 1, 15)]), [4]);
    }

    #[test]
    fn a_slow_host_slows_its_workers_and_reasons_multiply() {
        let host = Straggler { who: Who::Host(Host::Workers(0)), slow: 3.0, ..STRAGGLER };
        let cases = [(0, 0, 15), (1, 0, 15), (2, 0, 15)];
        assert_eq!(times(&[host, STRAGGLER], &cases), [3, 12, 1]);
        // A server is on a host of its own.
        let server = Straggler { who: Who::Node(NodeId::server(0)), ..STRAGGLER };
        let mut slow = Slow::new(SECOND, Hosts::default(), [server]).unwrap();
        let holder = Holder { node: NodeId::server(0), ..worker(0, 0) };
        assert_eq!(time_of(&mut slow, holder, 15, 1).as_secs(), 4);
    }

    #[test]
    fn a_worker_that_moved_leaves_a_slow_host_behind_and_may_come_to_one() {
        let host = Straggler { who: Who::Host(Host::Workers(0)), ..STRAGGLER };
        let mut slow = Slow::new(SECOND, Hosts::new(2).unwrap(), [host]).unwrap();
        slow.moved(NodeId::worker(1), Host::Workers(1));
        slow.moved(NodeId::worker(2), Host::Workers(0));
        let times = [0, 1, 2, 3].map(|index| time_of(&mut slow, worker(index, 1), 15, 1).as_secs());
        assert_eq!(times, [4, 1, 4, 1]);
    }

    #[test]
    fn stragglers_that_cannot_be_are_refused() {
        let refused = |straggler| Slow::new(SECOND, Hosts::default(), [straggler]).unwrap_err().to_string();
        for slow in [0.5, f64::NAN, f64::INFINITY] {
            assert!(refused(Straggler { slow, ..STRAGGLER }).starts_with("straggler.slow = "));
        }
        let late = refused(Straggler { to: STRAGGLER.from, ..STRAGGLER });
        assert_eq!(late, "straggler.from = 10.000s: must be before to, 10.000s");
    }
}
