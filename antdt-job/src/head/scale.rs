//! The number of workers changes while the job runs: new ones are launched, and the last ones are drained.
//!
//! Worker 0 always stays. A worker that is to leave finishes its step, gives its leases back and ends; it is killed only if
//! it has not done so in time. The model stays with the others: no worker is drained before one that stays has the model.
//!
//! Source: our design; the meaning of growing and shrinking between steps is that of torchrun's `--nnodes MIN:MAX`, without
//! a restart of those that stay.

use std::collections::BTreeSet;
use std::time::Duration;

use antdt_core::{Holder, Incarnation, JobTime, NodeId, NodeStatus, Role};

use super::core::{Node, Phase};
use super::timers::Timers;
use super::{EventKind, Head, HeadAnswer, HeadEffect};
use crate::mode::Departure;

/// How long a worker that is to leave may take to finish its step, before it is killed.
const RETIRE_LIMIT: Duration = Duration::from_secs(30);

/// Workers that the job is to go on without, and those that it went on without before.
#[derive(Debug)]
pub(super) struct Retiring {
    /// All of them, whether they are gone or not.
    nodes: BTreeSet<NodeId>,
    /// Those that were not told yet.
    untold: BTreeSet<NodeId>,
    /// When each of those that were told is killed.
    due: Timers<()>,
}

impl Retiring {
    pub(super) const fn new() -> Self {
        Self { nodes: BTreeSet::new(), untold: BTreeSet::new(), due: Timers::new() }
    }

    /// A worker was to leave under an earlier master; whether it has.
    pub(super) fn wants_to_leave(&mut self, node: NodeId, has_left: bool) {
        self.nodes.insert(node);
        if !has_left {
            self.untold.insert(node);
        }
    }

    /// Whether the job is to go on without this worker, or does.
    pub(super) fn is_to_leave(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }

    pub(super) fn deadline(&self) -> Option<JobTime> {
        self.due.next()
    }
}

impl Head {
    /// Begins to change the number of workers.
    pub(super) fn scale(&mut self, now: JobTime, workers: u32) -> HeadAnswer {
        if let Some(why) = self.why_not_scale(workers) {
            return HeadAnswer::Refused(why);
        }
        let present: Vec<NodeId> = self.present().collect();
        let before = u32::try_from(present.len()).unwrap_or(u32::MAX);
        if before != workers {
            let reason = format!("from {before} to {workers} workers, as the user wants");
            self.core.action(now, "SCALE", "all".to_owned(), reason);
        }
        for node in present.iter().skip(workers as usize) {
            self.retiring.nodes.insert(*node);
            self.retiring.untold.insert(*node);
            self.core.changes += 1;
        }
        for _ in before..workers {
            self.launch_one_more(now);
        }
        self.retire_ready_workers(now);
        HeadAnswer::Scaled { before }
    }

    /// Workers that the job has and wants.
    fn present(&self) -> impl Iterator<Item = NodeId> {
        let workers = self.core.nodes.of_role(Role::Worker).map(|(id, _)| id);
        workers.filter(|node| !self.retiring.nodes.contains(node))
    }

    /// Whether the job goes on with one worker less.
    pub(super) fn can_spare_one(&self) -> bool {
        self.present().count() > self.core.config.min_workers.max(1) as usize
    }

    /// The job goes on without a worker whose life has ended.
    pub(super) fn give_up(&mut self, now: JobTime, holder: Holder, why: String) {
        self.core.action(now, "GIVE_UP", holder.node.to_string(), why);
        self.retiring.nodes.insert(holder.node);
        self.core.changes += 1;
        self.retired_without_leaving(now, holder);
    }

    fn why_not_scale(&self, workers: u32) -> Option<String> {
        let most = self.core.config.global_batch_size;
        let leaves = |node: &NodeId| self.core.nodes.get(*node).is_some_and(|state| !state.exited);
        let leaving = self.retiring.nodes.iter().filter(|node| leaves(node)).count();
        if workers == 0 {
            Some("a job has at least 1 worker; `antdt stop` ends it".to_owned())
        } else if workers > most {
            Some(format!(
                "{workers} workers are more than the samples of a global batch, --global-batch-size {most}"
            ))
        } else if workers as usize + leaving > most as usize {
            Some(format!(
                "{leaving} workers are still leaving, and with {workers} there would be more than the samples of a \
                 global batch, --global-batch-size {most}; ask again in a moment"
            ))
        } else if self.core.phase == Phase::Over || self.stopping.is_some() {
            Some("the job is ending".to_owned())
        } else if self.core.is_complete() {
            Some("nothing is left to train: every sample is committed".to_owned())
        } else if !self.core.config.must_register {
            Some("a program of your own keeps the number of workers that it was started with".to_owned())
        } else {
            None
        }
    }

    /// Launches the first worker that is not there: one that is gone, or one that never was.
    fn launch_one_more(&mut self, now: JobTime) {
        for node in (0..).map(NodeId::worker) {
            match self.core.nodes.get(node) {
                None => {
                    self.core.nodes.insert(node, Node::new());
                    self.core.workers += 1;
                    return self.core.launch(now, Holder::new(node, Incarnation(0)));
                }
                Some(state) if state.exited && self.retiring.nodes.contains(&node) => {
                    let next = Holder::new(node, state.incarnation.next());
                    self.forget_restarts(node);
                    // Whatever ended it before, the user wants it again.
                    self.restarts.committed(node);
                    self.retiring.nodes.remove(&node);
                    self.retiring.untold.remove(&node);
                    self.retiring.due.clear(node);
                    return self.core.launch(now, next);
                }
                Some(_) => {}
            }
        }
    }

    /// Tells the workers that are to leave, once one that stays has the model.
    pub(super) fn retire_ready_workers(&mut self, now: JobTime) {
        if self.retiring.untold.is_empty() || self.core.phase == Phase::Over {
            return;
        }
        let stays = |node: NodeId| !self.retiring.nodes.contains(&node);
        let has_model = self.core.nodes.of_role(Role::Worker).any(|(id, node)| {
            stays(id)
                && matches!(node.status, NodeStatus::Running | NodeStatus::Finished)
                && node.first_report
        });
        if self.core.capabilities().workers_have_model() && self.core.started && !has_model {
            return;
        }
        for node in std::mem::take(&mut self.retiring.untold) {
            self.retire(now, node);
        }
    }

    fn retire(&mut self, now: JobTime, node: NodeId) {
        let Some(state) = self.core.nodes.get(node) else { return };
        let (holder, status) = (Holder::new(node, state.incarnation), state.status);
        self.forget_restarts(node);
        match status {
            NodeStatus::Running | NodeStatus::Draining => {
                self.core.draining.insert(holder);
                self.core.set_status(node, NodeStatus::Draining);
                self.retiring.due.set(node, now + RETIRE_LIMIT, ());
            }
            // It ends by itself.
            NodeStatus::Finished => {}
            NodeStatus::Pending | NodeStatus::Lost => self.end_retired(now, holder),
        }
    }

    /// Whatever was planned for a node is pointless now.
    fn forget_restarts(&mut self, node: NodeId) {
        self.restarts.give_up(node);
    }

    /// Kills the workers that were told to leave and did not, or did not end afterwards.
    pub(super) fn end_workers_that_do_not_retire(&mut self, now: JobTime) {
        for (node, ()) in self.retiring.due.take_due(now) {
            let Some(state) = self.core.nodes.get(node) else { continue };
            let holder = Holder::new(node, state.incarnation);
            if state.status == NodeStatus::Draining {
                self.end_retired(now, holder);
            } else if !state.exited && self.retiring.nodes.contains(&node) {
                // It left in order, and does not end.
                self.core.effects.push_back(HeadEffect::Kill(holder));
            }
        }
    }

    fn end_retired(&mut self, now: JobTime, holder: Holder) {
        if !self.core.nodes[holder.node].exited {
            self.core.effects.push_back(HeadEffect::Kill(holder));
        }
        self.lose(now, holder);
        self.retired_without_leaving(now, holder);
    }

    /// The same for a life that ended without leaving: others may have waited for its successor.
    pub(super) fn retired_without_leaving(&mut self, now: JobTime, holder: Holder) -> bool {
        let retired = self.retired(now, holder);
        if retired {
            self.mode.left(now, &mut self.core, holder, Departure::Drained);
        }
        retired
    }

    /// Whether the job goes on without this worker, whose life has ended; then nothing waits for it any more.
    pub(super) fn retired(&mut self, now: JobTime, holder: Holder) -> bool {
        if !self.retiring.nodes.contains(&holder.node) {
            return false;
        }
        self.retiring.untold.remove(&holder.node);
        self.core.draining.remove(&holder);
        self.core.set_status(holder.node, NodeStatus::Finished);
        if let Some(node) = self.core.nodes.get_mut(holder.node) {
            node.retired = true;
        }
        self.core.membership.give_up(holder.node);
        self.core.event(
            now,
            Some(holder.node),
            EventKind::Retired,
            format!("the job goes on without {holder}"),
        );
        self.end_if_done(now);
        true
    }
}
