//! The emulated network: which process is on which emulated host, and how fast the links are.

use std::time::Duration;

use antdt_core::{InvalidValue, NodeId, Role};

use super::line::Speed;
use crate::schedule::CostModel;

/// Emulated hosts that servers have to themselves are numbered from here on.
const SERVERS_FROM: u32 = 1 << 11;

/// Number of emulated hosts at most.
pub(super) const HOSTS_MAX: u32 = 1 << 12;

/// Emulated hosts on which parameter servers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerHosts {
    /// Each server runs on an emulated host without workers.
    #[default]
    Apart,
    /// Server `n` runs on emulated host `n`, together with the workers of that host.
    Beside,
}

/// The emulated network of a job: its hosts, and the bandwidth and latency of its links.
#[derive(Debug, Clone, PartialEq)]
pub struct EmulatedNetwork {
    /// Bandwidth of a host's network card in each direction, in bytes per second.
    pub bandwidth: f64,
    /// Time from the sending of a message's last byte until its arrival.
    pub latency: Duration,
    /// Number of workers on an emulated host: worker `n` is on host `n / workers_per_host`.
    pub workers_per_host: u32,
    /// Emulated hosts on which parameter servers run.
    pub servers: ServerHosts,
    /// Hosts with another bandwidth, each with its bytes per second.
    pub slow: Vec<(u32, f64)>,
}

impl EmulatedNetwork {
    /// Returns a network in which every process has an emulated host of its own; `bandwidth` is in bytes per
    /// second.
    pub const fn new(bandwidth: f64, latency: Duration) -> Self {
        Self { bandwidth, latency, workers_per_host: 1, servers: ServerHosts::Apart, slow: Vec::new() }
    }

    /// Checks that every setting is one that a network can have.
    ///
    /// # Errors
    /// Names the first invalid setting.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        let slow = self.slow.iter().map(|(_, bandwidth)| ("network slow", *bandwidth));
        for (field, bandwidth) in [("network bandwidth", self.bandwidth)].into_iter().chain(slow) {
            if !(bandwidth.is_finite() && bandwidth >= 1.0) {
                return Err(InvalidValue::new(field, bandwidth, "at least 1 byte per second"));
            }
        }
        if self.latency > Duration::from_secs(10) {
            return Err(InvalidValue::new("network latency", format!("{:?}", self.latency), "at most 10 s"));
        }
        if self.workers_per_host == 0 {
            return Err(InvalidValue::new("network per-host", 0, "at least 1 worker"));
        }
        if let Some((host, _)) = self.slow.iter().find(|(host, _)| *host >= SERVERS_FROM) {
            return Err(InvalidValue::new("network slow", host, format!("a host below {SERVERS_FROM}")));
        }
        Ok(())
    }

    /// Returns the number of the emulated host that a process runs on.
    pub fn host(&self, node: NodeId) -> u32 {
        let host = match (node.role, self.servers) {
            (Role::Server, ServerHosts::Apart) => SERVERS_FROM.saturating_add(node.index),
            (Role::Server, ServerHosts::Beside) => node.index,
            (Role::Worker, _) => node.index / self.workers_per_host.max(1),
        };
        // Beyond the last one they share it; so many processes are on no machine.
        host.min(HOSTS_MAX - 1)
    }

    /// Bytes per second of a host's network card.
    fn bandwidth_of(&self, host: u32) -> f64 {
        let slow = self.slow.iter().find(|(slow, _)| *slow == host);
        slow.map_or(self.bandwidth, |(_, bandwidth)| *bandwidth)
    }

    /// Cost of messages in a group whose ranks are on these hosts, where they cost `below` without the network: that of its
    /// slowest card, since a rank that waits for another is as slow as that one.
    pub(super) fn cost(&self, hosts: &[u32], below: CostModel) -> CostModel {
        if hosts.iter().all(|host| *host == hosts[0]) {
            return below;
        }
        let slowest = hosts.iter().map(|host| self.bandwidth_of(*host)).fold(f64::INFINITY, f64::min);
        CostModel {
            alpha: below.alpha + self.latency.as_secs_f64(),
            bandwidth: below.bandwidth.min(slowest),
            ..below
        }
    }

    pub(super) fn speed(&self, host: u32) -> Speed {
        let bandwidth = self.bandwidth_of(host);
        let latency_ns = u64::try_from(self.latency.as_nanos()).unwrap_or(u64::MAX);
        Speed { ns_per_byte: 1e9 / bandwidth, latency_ns }
    }
}
