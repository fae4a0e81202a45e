//! How many restarts a job may spend on slow nodes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use antdt_core::{ActionId, Holder, JobTime, NodeId, Reason};

/// Limits on restarts for slowness. Restarts after a crash have their own limit, see
/// [`RelaunchBudget`](crate::RelaunchBudget).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetConfig {
    /// Most restarts of one node in a job. 3, as in `DLRover`: what three restarts did not cure, a fourth will not cure
    /// either.
    pub per_node: u32,
    /// Most restarts within an hour, in percent of the nodes; see also [`per_hour_least`](Self::per_hour_least).
    pub per_hour_percent: u32,
    /// Number of restarts within an hour that even the smallest job may have.
    pub per_hour_least: u32,
    /// Most restarts in progress at a time, in percent of the workers; one is always allowed. 5 by default,
    /// because the other workers carry the load of a worker that restarts.
    pub at_once_percent: u32,
    /// After a restart that took `t` the node is left alone for `cool_down_factor · t`. 10: no node spends more
    /// than a tenth of its time on restarts. Relative, so that it suits nodes that start in 1 s or in 10 min.
    pub cool_down_factor: u32,
    /// Whether the chief may be restarted.
    pub chief_allowed: bool,
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self {
            per_node: 3,
            per_hour_percent: 10,
            per_hour_least: 3,
            at_once_percent: 5,
            cool_down_factor: 10,
            chief_allowed: false,
        }
    }
}

/// Reason why the budget does not allow a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetRefusal {
    /// The node is being restarted already.
    #[error("{node} is being restarted already")]
    Running {
        /// The node.
        node: NodeId,
    },
    /// As many other nodes as allowed are being restarted.
    #[error("{running} nodes are being restarted, at most {most} may be at once")]
    AtOnce {
        /// Number of restarts in progress.
        running: usize,
        /// Most restarts in progress at a time.
        most: usize,
    },
    /// The node has had as many restarts as one node may have.
    #[error("{node} was restarted {times} times, its limit")]
    Node {
        /// The node.
        node: NodeId,
        /// Number of restarts of the node so far.
        times: u32,
    },
    /// The job has had as many restarts within the hour as it may have.
    #[error("{times} nodes were restarted within an hour, the limit")]
    Hour {
        /// Number of restarts in the last hour.
        times: usize,
    },
    /// The node was restarted a short while ago.
    #[error("{node} was restarted a short while ago; not again before {until}")]
    CoolDown {
        /// The node.
        node: NodeId,
        /// Earliest time of the next restart.
        until: JobTime,
    },
}

impl BudgetRefusal {
    /// Returns the refusal as the reason for which `node` is not restarted.
    pub const fn reason(&self, node: NodeId) -> Reason {
        match self {
            Self::Running { .. } => Reason::Unsettled,
            Self::AtOnce { .. } | Self::CoolDown { .. } => Reason::TooSoon,
            Self::Node { .. } | Self::Hour { .. } => Reason::BudgetExhausted { node },
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    restarts: u32,
    /// How long the node is left alone after the last of them, and until when.
    rest: Duration,
    not_before: JobTime,
}

/// Counts the restarts of stragglers and says whether another one is allowed. Its memory is bounded by the number of
/// nodes and the limit per hour.
#[derive(Debug, Clone, Default)]
pub struct RestartBudget {
    config: BudgetConfig,
    nodes: BTreeMap<NodeId, Spent>,
    running: BTreeMap<ActionId, (NodeId, JobTime)>,
    /// Starts of the restarts of the last hour.
    recent: VecDeque<JobTime>,
}

impl RestartBudget {
    const HOUR: Duration = Duration::from_secs(3600);

    /// Returns a budget of which nothing is used.
    pub const fn new(config: BudgetConfig) -> Self {
        Self { config, nodes: BTreeMap::new(), running: BTreeMap::new(), recent: VecDeque::new() }
    }

    /// Returns the limits.
    pub const fn config(&self) -> &BudgetConfig {
        &self.config
    }

    /// Returns how many more of `workers` workers one decision may take away now.
    pub fn room(&self, now: JobTime, workers: usize) -> usize {
        let at_once = self.most_at_once(workers).saturating_sub(self.running.len());
        at_once.min(self.most_an_hour(workers).saturating_sub(self.last_hour(now)))
    }

    /// Whether `node` may be restarted now in a job of `workers` workers.
    ///
    /// # Errors
    /// The first limit that forbids it.
    pub fn allows(&self, now: JobTime, node: NodeId, workers: usize) -> Result<(), BudgetRefusal> {
        if self.running.values().any(|(running, _)| *running == node) {
            return Err(BudgetRefusal::Running { node });
        }
        let spent = self.nodes.get(&node).copied().unwrap_or_default();
        if spent.restarts >= self.config.per_node {
            return Err(BudgetRefusal::Node { node, times: spent.restarts });
        }
        if now < spent.not_before {
            return Err(BudgetRefusal::CoolDown { node, until: spent.not_before });
        }
        let times = self.last_hour(now);
        if times >= self.most_an_hour(workers) {
            return Err(BudgetRefusal::Hour { times });
        }
        let (running, most) = (self.running.len(), self.most_at_once(workers));
        if running >= most {
            return Err(BudgetRefusal::AtOnce { running, most });
        }
        Ok(())
    }

    /// Records that a restart begins. The caller has checked [`allows`](Self::allows).
    pub fn started(&mut self, now: JobTime, id: ActionId, target: Holder) {
        self.nodes.entry(target.node).or_default().restarts += 1;
        self.running.insert(id, (target.node, now));
        self.recent.retain(|start| now.since(*start) < Self::HOUR);
        self.recent.push_back(now);
    }

    /// Records that a restart ended, whether the node came back or not. An unknown or repeated id changes nothing.
    pub fn ended(&mut self, now: JobTime, id: ActionId) {
        if let Some((node, start)) = self.running.remove(&id) {
            let rest = now.since(start).saturating_mul(self.config.cool_down_factor);
            let spent = self.nodes.entry(node).or_default();
            (spent.rest, spent.not_before) = (rest, now + rest);
        }
    }

    /// Returns the number of restarts of a node so far, and how long it is left alone after the last of them.
    pub fn spent(&self, node: NodeId) -> (u32, Duration) {
        self.nodes.get(&node).map_or((0, Duration::ZERO), |spent| (spent.restarts, spent.rest))
    }

    /// Returns the number of restarts that count towards the limit of an hour, as of the newest of them.
    pub fn recent(&self) -> u32 {
        u32::try_from(self.recent.len()).unwrap_or(u32::MAX)
    }

    /// Goes on from what was spent under an earlier master, whose clock nobody knows: as if its restarts had ended just now.
    pub fn resume(
        &mut self,
        now: JobTime,
        nodes: impl IntoIterator<Item = (NodeId, u32, Duration)>,
        recent: u32,
    ) {
        for (node, restarts, rest) in nodes {
            self.nodes.insert(node, Spent { restarts, rest, not_before: now + rest });
        }
        self.recent = (0..recent).map(|_| now).collect();
    }

    /// Restarts that began within the last hour.
    fn last_hour(&self, now: JobTime) -> usize {
        self.recent.iter().filter(|start| now.since(**start) < Self::HOUR).count()
    }

    fn most_an_hour(&self, workers: usize) -> usize {
        let percent = usize::try_from(self.config.per_hour_percent).unwrap_or(usize::MAX);
        let least = usize::try_from(self.config.per_hour_least).unwrap_or(usize::MAX);
        (workers.saturating_mul(percent) / 100).max(least)
    }

    fn most_at_once(&self, workers: usize) -> usize {
        let percent = usize::try_from(self.config.at_once_percent).unwrap_or(usize::MAX);
        (workers.saturating_mul(percent) / 100).max(1)
    }
}

#[cfg(test)]
mod tests;
