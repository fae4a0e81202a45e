//! [`RestartBudget`]: limits the number of restarts of slow nodes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use antdt_core::{ActionId, Holder, JobTime, NodeId, Reason};

/// Limits on restarts for slowness. Restarts after a crash have their own limit, see
/// [`RelaunchBudget`](crate::RelaunchBudget).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetConfig {
    /// Most restarts of one node for slowness in a job. The default is 3, as in `DLRover`: what three
    /// restarts did not cure, a fourth will not cure either.
    pub per_node: u32,
    /// Most restarts that may begin within an hour, in percent of the workers; see also
    /// [`per_hour_least`](Self::per_hour_least).
    pub per_hour_percent: u32,
    /// Number of restarts within an hour that the budget allows even if
    /// [`per_hour_percent`](Self::per_hour_percent) comes to fewer.
    pub per_hour_least: u32,
    /// Most restarts in progress at a time, in percent of the workers; one is always allowed. 5 by default,
    /// because the other workers carry the load of a worker that restarts.
    pub at_once_percent: u32,
    /// Length of the cool-down of a node after a restart, as a multiple of the time that the restart took.
    /// The default is 10: no node spends more than a tenth of its time on restarts, whether it starts in 1 s
    /// or in 10 min.
    pub cool_down_factor: u32,
    /// Whether the chief, the first worker, may be restarted for slowness.
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
        /// Node that is being restarted.
        node: NodeId,
    },
    /// As many other nodes as the budget allows are being restarted.
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
        /// Node that may not be restarted again.
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
        /// Node that was restarted.
        node: NodeId,
        /// End of the node's cool-down, the earliest time of its next restart.
        until: JobTime,
    },
}

impl BudgetRefusal {
    /// Returns this refusal as the [`Reason`] for which `node` is not restarted.
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

    /// Returns a budget of which no restart is spent.
    pub const fn new(config: BudgetConfig) -> Self {
        Self { config, nodes: BTreeMap::new(), running: BTreeMap::new(), recent: VecDeque::new() }
    }

    /// Returns the limits of the budget.
    pub const fn config(&self) -> &BudgetConfig {
        &self.config
    }

    /// Returns how many of a job's `workers` workers may be restarted now, by the limits on restarts at a
    /// time and within an hour.
    pub fn room(&self, now: JobTime, workers: usize) -> usize {
        let at_once = self.most_at_once(workers).saturating_sub(self.running.len());
        at_once.min(self.most_an_hour(workers).saturating_sub(self.last_hour(now)))
    }

    /// Checks that `node` may be restarted now, in a job of `workers` workers.
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

    /// Records at `now` that a restart begins. The caller has asked [`allows`](Self::allows) before.
    pub fn started(&mut self, now: JobTime, id: ActionId, target: Holder) {
        self.nodes.entry(target.node).or_default().restarts += 1;
        self.running.insert(id, (target.node, now));
        self.recent.retain(|start| now.since(*start) < Self::HOUR);
        self.recent.push_back(now);
    }

    /// Records at `now` that a restart ended, whether or not the node came back, and begins the node's
    /// cool-down. An unknown or repeated id changes nothing.
    pub fn ended(&mut self, now: JobTime, id: ActionId) {
        if let Some((node, start)) = self.running.remove(&id) {
            let rest = now.since(start).saturating_mul(self.config.cool_down_factor);
            let spent = self.nodes.entry(node).or_default();
            (spent.rest, spent.not_before) = (rest, now + rest);
        }
    }

    /// Returns the number of restarts of a node so far, and the length of the cool-down after the last of
    /// them.
    pub fn spent(&self, node: NodeId) -> (u32, Duration) {
        self.nodes.get(&node).map_or((0, Duration::ZERO), |spent| (spent.restarts, spent.rest))
    }

    /// Returns the number of restarts in the hour before the newest restart; a successor of the master
    /// continues with it.
    pub fn recent(&self) -> u32 {
        u32::try_from(self.recent.len()).unwrap_or(u32::MAX)
    }

    /// Continues with what an earlier master has spent. The clock of that master is unknown, so all its
    /// restarts count as ended at `now`. `nodes` gives each node's number of restarts and the length of its
    /// last cool-down.
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
