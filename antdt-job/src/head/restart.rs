//! A master that dies is followed by another one, which goes on with the job from a record of its state.
//!
//! A head that is [journaled](Head::journaled) says what its successor must know: the lives of all nodes, and the newest numbers
//! that were given to memberships, plans, rollbacks and checkpoints, none of which is given again, and what was spent of the budgets of restarts. It says so in an effect that
//! comes before all others of the same event. A driver that carries out effects in their order has it on disk before it starts
//! a process or tells a worker of the decision.
//!
//! What the dead master knew beyond that is gone: which calls wait, which step is open, how fast each node is. So the
//! [successor](Head::resume) sets the job back to its newest checkpoint, as after the loss of the model. Where the model is on
//! servers, workers keep their processes and join again; where it is in the workers, they start again with it, because a worker
//! that has not heard of the rollback would acknowledge what is in its own replica only.
//!
//! Source: our design; a write-ahead record of the state and not of the events, because it stays small for ever.

use std::time::Duration;

use antdt_core::{
    CheckpointId, DeviceClass, Holder, Incarnation, InvalidValue, JobTime, MembershipVersion, NodeId,
    NodeStatus, PlanVersion, Role, RollbackId,
};

use super::core::{Node, Registered};
use super::evaluations::Evaluations;
use super::{Head, HeadConfig, HeadEffect, Registration};

/// State of one node that a master passes on to its successor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeRecord {
    /// Newest incarnation of the node.
    pub holder: Holder,
    /// Stage of that incarnation in its life.
    pub status: NodeStatus,
    /// Registration of that incarnation; `None` if it has not registered.
    pub registration: Option<Registration>,
    /// Number of restarts of the node since its last commit.
    pub restarts: u32,
    /// Whether the job goes on without the node, now or as soon as it has left.
    pub retiring: bool,
    /// Whether the node has left because the job goes on without it, or is a server more than the job has.
    pub retired: bool,
    /// Number of restarts of the node for slowness.
    #[cfg_attr(feature = "serde", serde(default))]
    pub slow_restarts: u32,
    /// Cool-down of the node after its last restart for slowness.
    #[cfg_attr(feature = "serde", serde(default, with = "antdt_core::time::nanoseconds"))]
    pub rest: Duration,
}

/// State of a job that a master passes on to its successor. The master's head emits it as
/// [`HeadEffect::Record`], and the successor continues from it with [`Head::resume`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HeadRecord {
    /// All nodes that the job has ever had, ordered by id.
    pub nodes: Vec<NodeRecord>,
    /// Newest version of the membership.
    pub membership: MembershipVersion,
    /// Newest version of a published plan.
    pub plan: PlanVersion,
    /// Number of the newest rollback of the job.
    pub rollback: RollbackId,
    /// Number of the next checkpoint.
    pub checkpoint: CheckpointId,
    /// For each device class, the largest batch or micro-batch, in samples, with which a worker ran out of
    /// memory.
    #[cfg_attr(feature = "serde", serde(default))]
    pub memory: Vec<(DeviceClass, u32)>,
    /// Number of restarts for slowness that count towards the limit per hour.
    #[cfg_attr(feature = "serde", serde(default))]
    pub slow_restarts: u32,
    /// Epoch up to whose end the ledger hands out samples; 0 if it hands out all.
    #[cfg_attr(feature = "serde", serde(default))]
    pub until: u32,
}

/// What an earlier master has spent on slow nodes: restarts of each and how long it is left alone after the last, and the restarts of
/// the last hour.
#[derive(Debug, Default)]
pub(super) struct Spent {
    nodes: Vec<(NodeId, u32, Duration)>,
    recent: u32,
}

/// Nodes of a job up to which a build for tests looks for changes that were not counted. It does so after every event: what that
/// costs in larger jobs would be most of what their masters do.
const CHECKED_NODES: usize = 32;

/// The record that was given out last.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    record: HeadRecord,
    /// The count of changes and the numbers that it was looked at for.
    at: Option<(u64, (MembershipVersion, PlanVersion, RollbackId, CheckpointId))>,
}

impl Head {
    /// Returns this head, which from now on emits a [`HeadRecord`] of its state with each change, for a
    /// successor.
    #[must_use]
    pub fn journaled(mut self) -> Self {
        self.recorded = Some(Recorded::default());
        self
    }

    /// Returns the head of a master that succeeds one that has ended; it is journaled too. On
    /// [`Begin`](super::HeadEvent::Begin) it takes over the incarnations that had registered, and rolls the
    /// job back to the newest checkpoint. Its driver then reports, by [`Exited`](super::HeadEvent::Exited),
    /// which of them have ended meanwhile.
    ///
    /// # Errors
    /// If the windows and limits of the detector are invalid.
    pub fn resume(config: HeadConfig, record: &HeadRecord) -> Result<Self, InvalidValue> {
        let mut head = Self::new_after(config, record.plan)?.journaled();
        let spent = record.nodes.iter().map(|node| (node.holder.node, node.slow_restarts, node.rest));
        head.resumed = Some(Spent { nodes: spent.collect(), recent: record.slow_restarts });
        for node in &record.nodes {
            head.recall(node);
        }
        if head.core.capabilities().needs_servers() {
            head.core.config.servers = head.core.count_servers();
        }
        head.core.membership.continue_after(record.membership);
        head.core.memory.recall(&record.memory);
        head.core.rollbacks.continue_after(record.rollback);
        if let Some(checkpoints) = &mut head.checkpoints {
            checkpoints.continue_at(record.checkpoint);
        }
        if let Some(evaluations) = &mut head.evaluations {
            evaluations.continue_until(record.until);
        }
        Ok(head)
    }

    fn recall(&mut self, record: &NodeRecord) {
        let NodeRecord { holder, status, ref registration, restarts, retiring, retired, .. } = *record;
        let id = holder.node;
        if self.core.nodes.get(id).is_none() {
            self.core.nodes.insert(id, Node::new());
            self.core.workers += usize::from(id.role == Role::Worker);
        }
        let node = &mut self.core.nodes[id];
        node.incarnation = holder.incarnation;
        node.retired = retired;
        // No process hears again of orders that ended before.
        node.exited = matches!(status, NodeStatus::Lost | NodeStatus::Finished);
        node.registered = registration.clone().map(|Registration { info, data_address, process_id }| {
            Box::new(Registered { host: info.host.as_str().into(), info, data_address, process_id })
        });
        self.core.set_status(id, status);
        if id.role == Role::Worker {
            self.core.membership.launched(holder);
            match status {
                NodeStatus::Running | NodeStatus::Draining => {
                    self.core.membership.register(holder);
                }
                NodeStatus::Finished => self.core.membership.give_up(id),
                NodeStatus::Pending | NodeStatus::Lost => {}
            }
        }
        if retiring {
            self.retiring.wants_to_leave(id, retired);
        } else if status == NodeStatus::Draining {
            // The master that ordered it is gone. Another life follows, as after a notice of the platform.
            self.core.draining.insert(holder);
            self.restarts.preempt(holder);
        }
        self.restarts.resume(holder, restarts);
    }

    /// Takes over the lives that a master before has started, and sets the job back.
    pub(super) fn take_over(&mut self, now: JobTime, spent: Spent) {
        self.core.dispatcher.budget_mut().resume(now, spent.nodes, spent.recent);
        // A replica that is newer than the checkpoint acknowledges what the model of the job has not.
        let in_workers = self.core.capabilities().workers_have_model();
        let nodes: Vec<(NodeId, Incarnation, NodeStatus)> =
            self.core.nodes.iter().map(|(id, node)| (id, node.incarnation, node.status)).collect();
        for (id, incarnation, status) in nodes {
            let holder = Holder::new(id, incarnation);
            self.core.nodes[id].launched = now;
            match status {
                NodeStatus::Running | NodeStatus::Draining if !in_workers || id.role == Role::Server => {
                    if let Some(registered) = &self.core.nodes[id].registered {
                        self.core.detector.node_joined(now, &registered.info);
                    }
                }
                // All servers start again, and workers that have seen the end of the data: the rollback sees to that.
                NodeStatus::Finished => {}
                NodeStatus::Pending | NodeStatus::Lost if id.role == Role::Server => {}
                NodeStatus::Running | NodeStatus::Draining | NodeStatus::Pending | NodeStatus::Lost => {
                    // It may still come, or go on with a model that is undone: it is ended, and fenced.
                    self.core.effects.push_back(HeadEffect::Kill(holder));
                    let next = self.core.succeed(now, holder);
                    self.core.rollbacks.launch_later(next, Duration::ZERO);
                }
            }
        }
        self.core.roll_back("the master was started again".to_owned());
    }

    /// What a successor must know now.
    pub(super) fn record(&self) -> HeadRecord {
        let budget = self.core.dispatcher.budget();
        let nodes = self.core.nodes.iter().map(|(id, node)| NodeRecord {
            slow_restarts: budget.spent(id).0,
            rest: budget.spent(id).1,
            holder: Holder::new(id, node.incarnation),
            status: node.status,
            registration: node.registered.as_deref().map(|registered| Registration {
                info: registered.info.clone(),
                data_address: registered.data_address.clone(),
                process_id: registered.process_id,
            }),
            restarts: self.restarts.count(id),
            retiring: self.retiring.is_to_leave(id),
            retired: node.retired,
        });
        let (membership, plan, rollback, checkpoint) = self.numbers();
        let memory = self.core.memory.bounds();
        let slow_restarts = budget.recent();
        let until = self.evaluations.as_ref().map_or(0, Evaluations::until);
        let nodes = nodes.collect();
        HeadRecord { nodes, membership, plan, rollback, checkpoint, memory, slow_restarts, until }
    }

    /// Says what a successor must know, before anything else that the last event brought, if it has changed.
    pub(super) fn note_record(&mut self) {
        let Some(before) = &self.recorded else { return };
        // Most events change nothing of it, and a job may have many nodes.
        let at = Some((self.core.changes, self.numbers()));
        if before.at == at {
            debug_assert!(
                before.record.nodes.len() > CHECKED_NODES || before.record == self.record(),
                "a change that was not counted"
            );
            return;
        }
        let record = self.record();
        if before.record != record {
            self.core.effects.push_front(HeadEffect::Record(Box::new(record.clone())));
        }
        self.recorded = Some(Recorded { at, record });
    }

    /// The newest membership, plan, rollback and checkpoint.
    fn numbers(&self) -> (MembershipVersion, PlanVersion, RollbackId, CheckpointId) {
        let checkpoint = self.checkpoints.as_ref().map_or(CheckpointId(0), |kept| kept.next());
        (self.core.membership.version(), self.core.newest_plan, self.core.rollbacks.newest(), checkpoint)
    }
}
