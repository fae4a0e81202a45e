//! Checks that the limits of restarts are kept: for each node, of those after it ended by itself, and of
//! those for slowness; of those for slowness within an hour; and of those in progress at a time. The chief is
//! never restarted for slowness.
//!
//! Source: our design; the limit of three per node is `DLRover`'s.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use antdt_controller::BudgetConfig;
use antdt_core::{JobTime, NodeId};
use antdt_job::{EventKind, HeadAnswer, HeadEffect, HeadEvent, Note};

use super::Invariant;
use crate::happening::Happening;
use crate::setup::Setup;

const HOUR: Duration = Duration::from_secs(3600);

/// Checks that no more restarts happen than the budgets allow; see the [module](self).
#[derive(Debug)]
pub struct RestartBudgetHeld {
    workers: usize,
    max_restarts: u32,
    budget: BudgetConfig,
    after_an_end: BTreeMap<NodeId, u32>,
    for_slowness: BTreeMap<NodeId, u32>,
    /// Nodes that are being restarted for slowness.
    running: BTreeMap<NodeId, JobTime>,
    recent: VecDeque<JobTime>,
}

impl RestartBudgetHeld {
    /// Returns the invariant for a job with this setup.
    pub fn new(setup: &Setup) -> Self {
        Self {
            workers: setup.workers as usize,
            max_restarts: setup.max_restarts,
            budget: BudgetConfig::default(),
            after_an_end: BTreeMap::new(),
            for_slowness: BTreeMap::new(),
            running: BTreeMap::new(),
            recent: VecDeque::new(),
        }
    }

    fn ordered(&mut self, at: JobTime, node: NodeId) -> Result<(), String> {
        if node == NodeId::worker(0) && !self.budget.chief_allowed {
            return Err(format!("{node}, the chief, is restarted for slowness"));
        }
        let times = self.for_slowness.entry(node).or_default();
        *times += 1;
        if *times > self.budget.per_node {
            return Err(format!("{node} is restarted for slowness {times} times"));
        }
        if let Some(since) = self.running.insert(node, at) {
            return Err(format!("{node} is restarted again; the restart of {since} has not ended"));
        }
        // Limits follow the live workers, which are no more than all.
        let part = |percent: u32, least: u32| (self.workers * percent as usize / 100).max(least as usize);
        let at_once = part(self.budget.at_once_percent, 1);
        if self.running.len() > at_once {
            return Err(format!("{} nodes are restarted at once, {at_once} may be", self.running.len()));
        }
        self.recent.push_back(at);
        self.recent.retain(|start| at.since(*start) < HOUR);
        let per_hour = part(self.budget.per_hour_percent, self.budget.per_hour_least);
        if self.recent.len() > per_hour {
            return Err(format!("{} restarts within an hour, {per_hour} may be", self.recent.len()));
        }
        Ok(())
    }
}

impl Invariant for RestartBudgetHeld {
    fn name(&self) -> &'static str {
        "restart_budget_held"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match what {
            // Only ends without a commit in between count.
            Happening::Head(HeadEvent::Heartbeat { holder, reports, .. }, HeadAnswer::Beat(_))
                if !reports.is_empty() =>
            {
                self.after_an_end.remove(&holder.node);
            }
            // The master that ordered them is gone; a new life follows all the same.
            Happening::TakenOver => self.running.clear(),
            _ => {}
        }
        let Happening::Effect(HeadEffect::Note { at, note }) = what else { return Ok(()) };
        match note {
            Note::Action { kind: "KILL_RESTART", target, .. } => {
                let node = target.parse::<NodeId>().map_err(|error| error.to_string())?;
                self.ordered(*at, node)?;
            }
            Note::Action { kind: "RESTART", target, .. } => {
                let node = target.parse::<NodeId>().map_err(|error| error.to_string())?;
                let times = self.after_an_end.entry(node).or_default();
                *times += 1;
                if *times > self.max_restarts {
                    let most = self.max_restarts;
                    return Err(format!("{node} is started again {times} times, {most} are allowed"));
                }
            }
            // A restart for slowness has ended.
            Note::Event { node: Some(node), kind: EventKind::Restart, .. } => {
                self.running.remove(node);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{History, action, event};
    use super::*;

    #[test]
    fn restarts_under_the_master_before_are_spent() {
        let mut history = History::new(RestartBudgetHeld::new(&Setup::default()));
        for (at, node) in [(0, "worker-1"), (10, "worker-2"), (20, "worker-1")] {
            history.effect(&action(at, "KILL_RESTART", node)).holds();
            history.saw(&Happening::TakenOver);
        }
        history.effect(&action(30, "KILL_RESTART", "worker-3")).fails("4 restarts within an hour");
    }

    #[test]
    fn a_node_is_started_again_as_often_as_allowed() {
        let setup = Setup { max_restarts: 2, ..Setup::default() };
        let mut history = History::new(RestartBudgetHeld::new(&setup));
        for at in 0..2 {
            history.effect(&action(at, "RESTART", "worker-1")).holds();
        }
        history.effect(&action(3, "RESTART", "worker-2")).holds();
        history.effect(&action(3, "RESTART", "worker-1")).fails("3 times, 2 are allowed");
    }

    #[test]
    fn slow_nodes_are_restarted_one_after_the_other_and_not_for_ever() {
        let new = || History::new(RestartBudgetHeld::new(&Setup::default()));
        let mut history = new();
        for (at, node) in [(0, "worker-1"), (10, "worker-2"), (20, "worker-1")] {
            history.effect(&action(at, "KILL_RESTART", node)).holds();
            history.effect(&event(at + 1, node, EventKind::Restart));
        }
        history.effect(&action(30, "KILL_RESTART", "worker-3")).fails("4 restarts within an hour");
        let mut history = new();
        history.effect(&action(1, "KILL_RESTART", "worker-1")).holds();
        history.effect(&action(2, "KILL_RESTART", "worker-2")).fails("2 nodes are restarted at once");
        new().effect(&action(1, "KILL_RESTART", "worker-0")).fails("the chief");
    }
}
