//! Hosts of a simulated cluster, and the assignment of nodes to them.

use antdt_core::{InvalidValue, Role};

use super::Site;

/// A machine of the simulated cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// The host of the master.
    Master,
    /// The host of the server with this index.
    Server(u32),
    /// The host with this number among the hosts that run workers.
    Workers(u32),
}

/// The assignment of a job's processes to hosts: the master and each server have hosts of their own, workers
/// share hosts in order of their indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hosts {
    workers_per_host: u32,
}

impl Hosts {
    /// Returns hosts with this many workers each; the last one may have fewer.
    ///
    /// # Errors
    /// If `workers_per_host` is 0.
    pub fn new(workers_per_host: u32) -> Result<Self, InvalidValue> {
        if workers_per_host == 0 {
            return Err(InvalidValue::new(
                "workers-per-host",
                0,
                "at least 1; 1 gives each worker its own host",
            ));
        }
        Ok(Self { workers_per_host })
    }

    /// Returns the number of workers on each host.
    pub const fn workers_per_host(self) -> u32 {
        self.workers_per_host
    }

    /// Returns the host that a process runs on.
    pub const fn of(self, site: Site) -> Host {
        match site {
            Site::Master => Host::Master,
            Site::Node(node) => match node.role {
                Role::Worker => Host::Workers(node.index / self.workers_per_host),
                Role::Server => Host::Server(node.index),
            },
        }
    }
}

impl Default for Hosts {
    /// Each worker alone.
    fn default() -> Self {
        Self { workers_per_host: 1 }
    }
}

/// A value per host, that of hosts not heard of yet being the default. Found in constant time.
#[derive(Debug, Clone, Default)]
pub(super) struct PerHost<T> {
    master: T,
    servers: Vec<T>,
    workers: Vec<T>,
}

impl<T: Clone + Default> PerHost<T> {
    /// The value of `host`.
    pub(super) fn of(&mut self, host: Host) -> &mut T {
        let (values, index) = match host {
            Host::Master => return &mut self.master,
            Host::Server(index) => (&mut self.servers, index as usize),
            Host::Workers(index) => (&mut self.workers, index as usize),
        };
        if index >= values.len() {
            values.resize(index + 1, T::default());
        }
        &mut values[index]
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::NodeId;

    use super::*;

    #[test]
    fn workers_fill_hosts_in_order_and_servers_are_alone() {
        let hosts = Hosts::new(2).unwrap();
        let worker = |index| hosts.of(Site::Node(NodeId::worker(index)));
        assert_eq!([worker(0), worker(1), worker(2)], [0, 0, 1].map(Host::Workers));
        assert_eq!(hosts.of(Site::Node(NodeId::server(1))), Host::Server(1));
        assert_eq!(hosts.of(Site::Master), Host::Master);
        let error = Hosts::new(0).unwrap_err().to_string();
        assert_eq!(error, "workers-per-host = 0: must be at least 1; 1 gives each worker its own host");
    }
}
