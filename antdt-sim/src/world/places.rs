//! [`Places`]: the host of each worker, as the launcher of the simulated cluster chooses it.

use std::collections::{BTreeMap, BTreeSet};

use antdt_controller::action::Cluster;
use antdt_core::NodeId;

/// The hosts that run workers, and those that the job has asked to avoid. A worker starts on the host of its index; where that is to be avoided, on the
/// one of the others with the fewest workers, the first of these, and it stays there.
#[derive(Debug)]
pub(super) struct Places {
    workers_per_host: u32,
    hosts: u32,
    avoided: BTreeSet<u32>,
    moved: BTreeMap<NodeId, u32>,
}

impl Places {
    pub(super) fn new(workers: u32, workers_per_host: u32) -> Self {
        let hosts = workers.div_ceil(workers_per_host);
        Self { workers_per_host, hosts, avoided: BTreeSet::new(), moved: BTreeMap::new() }
    }

    /// The name of a host, as nodes on it give it.
    pub(super) fn name(host: u32) -> String {
        format!("host-{host}")
    }

    /// The names of the hosts that workers may be started on.
    pub(super) fn names(&self) -> BTreeSet<String> {
        (0..self.hosts).map(Self::name).collect()
    }

    /// The host of a worker.
    pub(super) fn of(&self, worker: NodeId) -> u32 {
        self.moved.get(&worker).copied().unwrap_or(worker.index / self.workers_per_host)
    }

    /// A life of a worker starts. Returns the worker's host if that is another one than before.
    pub(super) fn start(&mut self, worker: NodeId) -> Option<u32> {
        if !self.avoided.contains(&self.of(worker)) {
            return None;
        }
        let mut loads: BTreeMap<u32, u32> = (0..self.hosts).map(|host| (host, 0)).collect();
        for index in 0..self.hosts * self.workers_per_host {
            *loads.entry(self.of(NodeId::worker(index))).or_default() += 1;
        }
        let free = loads.into_iter().filter(|(host, _)| !self.avoided.contains(host));
        let (host, _) = free.min_by_key(|(host, load)| (*load, *host))?;
        self.moved.insert(worker, host);
        Some(host)
    }
}

impl Cluster for Places {
    fn avoid(&mut self, hosts: &BTreeSet<String>) {
        self.avoided = (0..self.hosts).filter(|host| hosts.contains(&Self::name(*host))).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_leave_a_host_that_is_avoided_when_they_are_started_and_spread_over_the_others() {
        let mut places = Places::new(6, 2);
        let worker = NodeId::worker;
        assert_eq!((0..6).map(|index| places.of(worker(index))).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2]);
        assert_eq!(places.start(worker(2)), None);
        places.avoid(&BTreeSet::from(["host-1".to_owned(), "elsewhere".to_owned()]));
        assert_eq!((places.of(worker(2)), places.start(worker(2))), (1, Some(0)));
        assert_eq!(
            (places.start(worker(3)), places.start(worker(2)), places.start(worker(0))),
            (Some(2), None, None)
        );
        places.avoid(&BTreeSet::new());
        assert_eq!((places.start(worker(2)), places.of(worker(2))), (None, 0));
        assert_eq!(places.names().len(), 3);
    }
}
