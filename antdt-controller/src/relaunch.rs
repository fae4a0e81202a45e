//! The decision whether a process that ended by itself is started again.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{Exit, Holder, Incarnation, NodeId, Reason};

/// Limits on starting nodes again after they ended by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelaunchConfig {
    /// Most new incarnations of one node that ended by itself, in a row without a commit in between. Default
    /// 3, as in `DLRover`, which counts all of them.
    pub max_restarts: u32,
    /// Delay before the second new incarnation of a node; it doubles with each further one. The first starts
    /// at once.
    pub delay: Duration,
    /// Longest delay before a new incarnation.
    pub delay_most: Duration,
}

impl Default for RelaunchConfig {
    fn default() -> Self {
        Self { max_restarts: 3, delay: Duration::from_secs(1), delay_most: Duration::from_secs(30) }
    }
}

/// Decision about a node that ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Relaunch {
    /// The node has finished its work and is not started again.
    Finished,
    /// The end of this incarnation was reported before; there is nothing to do.
    Repeated,
    /// Start the next incarnation of the node.
    Again {
        /// Node and incarnation to start.
        holder: Holder,
        /// Delay before the start; it keeps a process that ends at once from being started a thousand times a
        /// second.
        after: Duration,
        /// Reason for the restart, for the log of decisions.
        reason: Reason,
    },
    /// The node is given up, because a new incarnation would end the same way.
    Hopeless(Reason),
    /// The node is given up, because it has ended too often.
    Exhausted(Reason),
}

#[derive(Debug, Clone, Copy)]
struct Lives {
    latest_end: Incarnation,
    restarts: u32,
}

/// Counts how often each node ended by itself, and decides whether it is started again.
#[derive(Debug, Clone, Default)]
pub struct RelaunchBudget {
    config: RelaunchConfig,
    nodes: BTreeMap<NodeId, Lives>,
}

impl RelaunchBudget {
    /// Returns a budget that has seen no node end.
    pub const fn new(config: RelaunchConfig) -> Self {
        Self { config, nodes: BTreeMap::new() }
    }

    /// Continues with what an earlier budget knew of a node: its newest incarnation, which counts as running,
    /// and its number of restarts.
    pub fn resume(&mut self, newest: Holder, restarts: u32) {
        if let (1.., Some(before)) = (restarts, newest.incarnation.0.checked_sub(1)) {
            let latest_end = Incarnation(before);
            self.nodes.insert(newest.node, Lives { latest_end, restarts });
        }
    }

    /// Records that an update of this node was committed, which sets its count of restarts to 0: whatever
    /// ends the node from now on has another cause.
    pub fn committed(&mut self, node: NodeId) {
        if let Some(lives) = self.nodes.get_mut(&node) {
            lives.restarts = 0;
        }
    }

    /// Returns the number of new incarnations that a node got after it ended by itself, since its last
    /// commit.
    pub fn restarts(&self, node: NodeId) -> u32 {
        self.nodes.get(&node).map_or(0, |lives| lives.restarts)
    }

    /// Decides whether an incarnation that ended without an order is started again. A second call for the
    /// same incarnation returns [`Relaunch::Repeated`].
    pub fn exited(&mut self, holder: Holder, exit: Exit) -> Relaunch {
        let node = holder.node;
        let restarts = match self.nodes.get(&node) {
            Some(lives) if holder.incarnation <= lives.latest_end => return Relaunch::Repeated,
            known => known.map_or(0, |lives| lives.restarts),
        };
        let lives = self.nodes.entry(node).or_insert(Lives { latest_end: holder.incarnation, restarts });
        lives.latest_end = holder.incarnation;
        if exit == Exit::Finished {
            return Relaunch::Finished;
        }
        let reason = Reason::NodeLost { node, exit: exit.to_string() };
        if !exit.retryable() {
            return Relaunch::Hopeless(reason);
        }
        if restarts >= self.config.max_restarts {
            return Relaunch::Exhausted(reason);
        }
        lives.restarts += 1;
        let doubling = restarts.checked_sub(1).map(|times| 2_u32.saturating_pow(times));
        let after = doubling.map_or(Duration::ZERO, |times| self.config.delay.saturating_mul(times));
        Relaunch::Again {
            holder: Holder::new(node, holder.incarnation.next()),
            after: after.min(self.config.delay_most),
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId::worker(1);
    const KILLED: Exit = Exit::Killed { signal: 9 };

    fn life(incarnation: u32) -> Holder {
        Holder::new(NODE, Incarnation(incarnation))
    }

    #[test]
    fn a_killed_process_is_started_again_three_times_with_growing_delay() {
        let mut budget = RelaunchBudget::default();
        for (incarnation, seconds) in [(0, 0), (1, 1), (2, 2)] {
            let expected = Relaunch::Again {
                holder: life(incarnation + 1),
                after: Duration::from_secs(seconds),
                reason: Reason::NodeLost { node: NODE, exit: "killed by signal 9".to_owned() },
            };
            assert_eq!(budget.exited(life(incarnation), KILLED), expected);
        }
        assert!(matches!(budget.exited(life(3), KILLED), Relaunch::Exhausted(_)));
        assert_eq!(budget.restarts(NODE), 3);
    }

    #[test]
    fn only_ends_without_a_commit_in_between_count() {
        let mut budget = RelaunchBudget::default();
        for incarnation in 0..100 {
            let Relaunch::Again { after, .. } = budget.exited(life(incarnation), KILLED) else {
                panic!("given up at life {incarnation}");
            };
            assert_eq!(after, Duration::ZERO);
            budget.committed(NODE);
        }
        assert_eq!(budget.restarts(NODE), 0);
    }

    #[test]
    fn an_end_that_is_said_twice_starts_one_process() {
        let mut budget = RelaunchBudget::default();
        assert!(matches!(budget.exited(life(1), KILLED), Relaunch::Again { .. }));
        assert_eq!(budget.exited(life(1), KILLED), Relaunch::Repeated);
        assert_eq!(budget.exited(life(0), KILLED), Relaunch::Repeated, "an earlier life ended long ago");
    }

    #[test]
    fn a_restart_that_cannot_help_is_not_tried() {
        let mut budget = RelaunchBudget::default();
        assert_eq!(budget.exited(life(0), Exit::Finished), Relaunch::Finished);
        assert!(matches!(budget.exited(life(1), Exit::Unretryable { code: 1 }), Relaunch::Hopeless(_)));
        assert_eq!(budget.restarts(NODE), 0);
    }

    #[test]
    fn delays_have_a_limit() {
        let config = RelaunchConfig { max_restarts: 100, ..RelaunchConfig::default() };
        let mut budget = RelaunchBudget::new(config);
        for incarnation in 0..50 {
            let Relaunch::Again { after, .. } = budget.exited(life(incarnation), KILLED) else {
                panic!("refused")
            };
            assert!(after <= config.delay_most);
        }
    }
}
