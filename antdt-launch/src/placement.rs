//! Which node runs on which host, and the ranks within a host that follow from it.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::NodeId;

/// The ranks of one worker among all workers and among those of its host, named as torchrun's environment
/// variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostRanks {
    /// `RANK`: position among all workers of the job.
    pub rank: u32,
    /// `WORLD_SIZE`: number of workers of the job.
    pub world_size: u32,
    /// `LOCAL_RANK`: position among the workers of the same host.
    pub local_rank: u32,
    /// `LOCAL_WORLD_SIZE`: number of workers of the same host.
    pub local_world_size: u32,
    /// `GROUP_RANK`: position of the host among the hosts with workers, in the order of their first workers.
    pub group_rank: u32,
    /// `GROUP_WORLD_SIZE`: number of hosts with workers.
    pub group_world_size: u32,
}

/// The host of each worker of a job. A worker whose host is not known yet counts as alone on a host of its own.
///
/// The ranks of a worker depend on the hosts of all workers. When a worker moves to another host,
/// incarnations that start afterwards get new ranks; those that run keep the ranks that they were started
/// with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    hosts: BTreeMap<NodeId, Option<String>>,
}

impl Placement {
    /// Records the host of a worker, in place of its earlier one; `None` until it is known.
    pub fn set(&mut self, worker: NodeId, host: Option<String>) {
        self.hosts.insert(worker, host);
    }

    /// Returns the host of a worker, if it is known.
    pub fn host(&self, worker: NodeId) -> Option<&str> {
        self.hosts.get(&worker)?.as_deref()
    }

    /// Returns the ranks of a worker; `None` if the placement does not have it.
    pub fn ranks(&self, worker: NodeId) -> Option<HostRanks> {
        let spot = Spot::of(worker, self.hosts.get(&worker)?);
        let mut ranks = HostRanks {
            rank: 0,
            world_size: 0,
            local_rank: 0,
            local_world_size: 0,
            group_rank: 0,
            group_world_size: 0,
        };
        let mut spots = BTreeSet::new();
        for (other, host) in &self.hosts {
            let before = u32::from(*other < worker);
            ranks.world_size += 1;
            ranks.rank += before;
            let other = Spot::of(*other, host);
            if other == spot {
                ranks.local_world_size += 1;
                ranks.local_rank += before;
            }
            let earlier = other != spot && !spots.contains(&spot);
            if spots.insert(other) {
                ranks.group_world_size += 1;
                ranks.group_rank += u32::from(earlier);
            }
        }
        Some(ranks)
    }
}

/// The host of a worker; or, as long as that is not known, the worker itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Spot<'a> {
    Host(&'a str),
    Alone(NodeId),
}

impl<'a> Spot<'a> {
    fn of(worker: NodeId, host: &'a Option<String>) -> Self {
        host.as_deref().map_or(Self::Alone(worker), Self::Host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts of workers 0 and following; `?` is one that is not known yet.
    fn placement(hosts: &[&str]) -> Placement {
        let mut placement = Placement::default();
        for (index, host) in (0..).zip(hosts) {
            placement.set(NodeId::worker(index), Some(*host).filter(|host| *host != "?").map(str::to_owned));
        }
        placement
    }

    /// Rank, local rank, local world, group rank of every worker.
    fn ranks(hosts: &[&str]) -> Vec<(u32, u32, u32, u32)> {
        let placement = placement(hosts);
        let workers = (0..hosts.len() as u32).map(NodeId::worker);
        workers
            .map(|worker| {
                let ranks = placement.ranks(worker).unwrap();
                assert_eq!(ranks.world_size as usize, hosts.len());
                (ranks.rank, ranks.local_rank, ranks.local_world_size, ranks.group_rank)
            })
            .collect()
    }

    #[test]
    fn on_one_host_local_ranks_are_ranks() {
        assert_eq!(ranks(&["a", "a", "a"]), [(0, 0, 3, 0), (1, 1, 3, 0), (2, 2, 3, 0)]);
    }

    #[test]
    fn ranks_follow_the_hosts_in_the_order_of_their_first_workers() {
        let expected = [(0, 0, 2, 0), (1, 0, 3, 1), (2, 1, 2, 0), (3, 1, 3, 1), (4, 0, 1, 2), (5, 2, 3, 1)];
        assert_eq!(ranks(&["b", "a", "b", "a", "c", "a"]), expected);
        assert_eq!(placement(&["b", "a", "b"]).ranks(NodeId::worker(0)).unwrap().group_world_size, 2);
    }

    #[test]
    fn a_worker_that_moves_changes_the_ranks_and_an_unknown_one_has_none() {
        let mut placement = placement(&["a", "a", "b"]);
        placement.set(NodeId::worker(0), Some("b".to_owned()));
        let ranks = placement.ranks(NodeId::worker(2)).unwrap();
        assert_eq!((ranks.local_rank, ranks.local_world_size, ranks.group_rank), (1, 2, 0));
        assert_eq!(placement.host(NodeId::worker(0)), Some("b"));
        assert_eq!(placement.ranks(NodeId::worker(3)), None);
    }

    #[test]
    fn workers_of_unknown_hosts_count_as_alone_until_they_are_placed() {
        let expected = [(0, 0, 1, 0), (1, 0, 1, 1), (2, 0, 2, 2), (3, 1, 2, 2), (4, 0, 1, 3)];
        assert_eq!(ranks(&["?", "?", "a", "a", "?"]), expected);
        let mut placement = placement(&["?", "?", "a"]);
        assert_eq!((placement.host(NodeId::worker(0)), placement.host(NodeId::worker(2))), (None, Some("a")));
        placement.set(NodeId::worker(0), Some("a".to_owned()));
        let ranks = placement.ranks(NodeId::worker(2)).unwrap();
        assert_eq!(
            (ranks.local_rank, ranks.local_world_size, ranks.group_rank, ranks.group_world_size),
            (1, 2, 0, 2)
        );
    }

    #[test]
    fn ten_workers_are_ranked_by_number_and_not_by_name() {
        let placement = placement(&["a"; 12]);
        assert_eq!(placement.ranks(NodeId::worker(10)).unwrap().local_rank, 10);
    }
}
