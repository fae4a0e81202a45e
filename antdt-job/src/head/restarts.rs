//! [`Restarts`]: which life of a node follows which, and when.
//!
//! Another life follows one that ended, within the budget of restarts; one that the policy restarts, by a [`RestartSaga`]; and a
//! worker that left because its platform takes its machine back, once its process has ended. A machine of its own: the head tells it
//! what happens, and carries its [effects](RestartsEffect) out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use antdt_controller::{
    Relaunch, RelaunchBudget, RelaunchConfig, RestartConfig, RestartEffect, RestartEvent, RestartSaga,
};
use antdt_core::{
    ActionOutcome, Exit, Holder, JobTime, Machine, NodeAction, NodeActionKind, NodeId, NodeStatus, Role,
};

use super::timers::Timers;
use super::{EventKind, Head, HeadEffect};

/// How long a worker that has left may take to end, before it is killed.
const LEAVING_LIMIT: Duration = Duration::from_secs(30);

/// What the head carries out for its restarts, in order.
#[derive(Debug, PartialEq)]
pub(super) enum RestartsEffect {
    /// This life is to finish its step and leave.
    Drain(Holder),
    /// This life counts as lost from now on.
    Fence(Holder),
    /// The process of this life is to be ended.
    Kill(Holder),
    /// A life begins; the one before it, if it was ordered to leave, does so no more.
    Launch {
        /// Life that begins.
        holder: Holder,
        /// Life that was ordered to leave for it.
        old: Option<Holder>,
    },
    /// The restart of a node that the policy wanted has ended.
    Ended(NodeId, ActionOutcome),
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Restarts {
    sagas: BTreeMap<NodeId, RestartSaga>,
    saga_due: Timers<()>,
    budget: RelaunchBudget,
    launch_due: Timers<Holder>,
    /// Lives that leave because their platform told them to; others follow the workers among them.
    preempted: BTreeSet<Holder>,
    /// When those of them that have left are killed, if they have not ended.
    leaving_due: Timers<Holder>,
    effects: VecDeque<RestartsEffect>,
}

impl Restarts {
    /// Allows so many restarts of a node in a row, without a committed step in between.
    pub(super) fn new(max_restarts: u32) -> Self {
        Self {
            sagas: BTreeMap::new(),
            saga_due: Timers::new(),
            budget: RelaunchBudget::new(RelaunchConfig { max_restarts, ..RelaunchConfig::default() }),
            launch_due: Timers::new(),
            preempted: BTreeSet::new(),
            leaving_due: Timers::new(),
            effects: VecDeque::new(),
        }
    }

    pub(super) fn poll_effect(&mut self) -> Option<RestartsEffect> {
        self.effects.pop_front()
    }

    pub(super) fn deadline(&self) -> Option<JobTime> {
        [self.saga_due.next(), self.launch_due.next(), self.leaving_due.next()].into_iter().flatten().min()
    }

    /// Does what is due. A life that `is_needed`, because the model would be lost with it, is not killed yet.
    pub(super) fn on_deadline(&mut self, now: JobTime, is_needed: impl Fn(Holder) -> bool) {
        let due = self.saga_due.take_due(now);
        for (node, ()) in &due {
            let Some(saga) = self.sagas.get_mut(node) else { continue };
            let old = saga.old();
            if is_needed(old) {
                saga.event(now, RestartEvent::Needed(old));
            }
            saga.on_deadline(now);
        }
        for (node, ()) in due {
            self.advance(node);
        }
        self.launch_due(now);
        // Their exits, which the launcher tells, do the rest.
        let late = self.leaving_due.take_due(now).into_iter();
        self.effects.extend(late.map(|(_, holder)| RestartsEffect::Kill(holder)));
    }

    /// Has the nodes launched whose delay before a restart is over.
    pub(super) fn launch_due(&mut self, now: JobTime) {
        let due = self.launch_due.take_due(now).into_iter();
        self.effects.extend(due.map(|(_, holder)| RestartsEffect::Launch { holder, old: None }));
    }

    /// The policy restarts a worker.
    pub(super) fn order(&mut self, now: JobTime, action: &NodeAction) {
        let node = action.target.node;
        self.sagas.insert(node, RestartSaga::begin(now, action, RestartConfig::default()));
        self.advance(node);
    }

    /// Something happened to a node that may be restarted.
    pub(super) fn told(&mut self, now: JobTime, node: NodeId, event: RestartEvent) {
        if let Some(saga) = self.sagas.get_mut(&node) {
            saga.event(now, event);
            self.advance(node);
        }
    }

    /// Takes over what the restart of a node wants.
    fn advance(&mut self, node: NodeId) {
        let Some(saga) = self.sagas.get_mut(&node) else { return };
        while let Some(effect) = saga.poll_effect() {
            self.effects.extend(match effect {
                RestartEffect::Drain(holder) => Some(RestartsEffect::Drain(holder)),
                RestartEffect::Fence(holder) => Some(RestartsEffect::Fence(holder)),
                RestartEffect::Kill(holder) => Some(RestartsEffect::Kill(holder)),
                RestartEffect::Launch(holder) => {
                    Some(RestartsEffect::Launch { holder, old: Some(saga.old()) })
                }
                RestartEffect::Outcome(outcome) => Some(RestartsEffect::Ended(node, outcome)),
                _ => None,
            });
        }
        let due = if saga.is_over() { None } else { saga.deadline() };
        if saga.is_over() {
            self.sagas.remove(&node);
        }
        match due {
            Some(at) => self.saga_due.set(node, at, ()),
            None => self.saga_due.clear(node),
        }
    }

    /// Whether a restart of this node is under way.
    pub(super) fn is_restarting(&self, node: NodeId) -> bool {
        self.sagas.contains_key(&node)
    }

    /// Whether the end of this life was ordered by a restart.
    pub(super) fn is_ordered(&self, holder: Holder) -> bool {
        self.sagas.get(&holder.node).is_some_and(|saga| saga.old() == holder)
    }

    /// The restart of a node that may be under way is pointless now.
    pub(super) fn cancel(&mut self, node: NodeId) {
        self.sagas.remove(&node);
        self.saga_due.clear(node);
    }

    /// No life follows for now: neither by a restart nor after an end.
    pub(super) fn give_up(&mut self, node: NodeId) {
        self.cancel(node);
        self.launch_due.clear(node);
    }

    /// A life has ended by itself. Returns what follows from the budget.
    pub(super) fn exited(&mut self, holder: Holder, exit: Exit) -> Relaunch {
        self.budget.exited(holder, exit)
    }

    /// A life is to begin at this moment.
    pub(super) fn launch_at(&mut self, at: JobTime, holder: Holder) {
        self.launch_due.set(holder.node, at, holder);
    }

    /// A node has committed a step: its budget is whole again.
    pub(super) fn committed(&mut self, node: NodeId) {
        self.budget.committed(node);
    }

    /// Restarts of a node since its last commit.
    pub(super) fn count(&self, node: NodeId) -> u32 {
        self.budget.restarts(node)
    }

    /// Goes on with a life that an earlier master has restarted so often.
    pub(super) fn resume(&mut self, holder: Holder, restarts: u32) {
        self.budget.resume(holder, restarts);
    }

    // Platforms that take their machines back.

    /// The platform of this life wants it to leave. Returns whether that is news.
    pub(super) fn preempt(&mut self, holder: Holder) -> bool {
        self.preempted.insert(holder)
    }

    /// Takes those out whose platform wants them to leave and that `stay` for now.
    pub(super) fn take_staying(&mut self, stay: impl Fn(&Holder) -> bool) -> BTreeSet<Holder> {
        let (staying, others) = std::mem::take(&mut self.preempted).into_iter().partition(stay);
        self.preempted = others;
        staying
    }

    /// A life has left in order. If its platform wanted that, its process is watched until it has ended.
    pub(super) fn left(&mut self, now: JobTime, holder: Holder) {
        if self.is_restarting(holder.node) {
            self.preempted.remove(&holder);
        } else if self.preempted.contains(&holder) {
            self.leaving_due.set(holder.node, now + LEAVING_LIMIT, holder);
        }
    }

    /// The process of a life has ended. Returns whether another follows because its platform took the machine back.
    pub(super) fn follows(&mut self, holder: Holder) -> bool {
        let follows = self.preempted.remove(&holder);
        if follows {
            self.leaving_due.clear(holder.node);
        }
        follows
    }

    /// What the platform of this life wants is of no interest any more.
    pub(super) fn forget(&mut self, holder: Holder) {
        self.preempted.remove(&holder);
    }
}

impl Head {
    pub(super) fn launch_due_nodes(&mut self, now: JobTime) {
        self.restarts.launch_due(now);
        self.carry_out_restarts(now);
    }

    /// Begins the restarts that the policy asked for.
    pub(super) fn begin_restarts(&mut self, now: JobTime) {
        while let Some(action) = self.core.actions.pop_front() {
            self.core.changes += 1;
            match &action.kind {
                NodeActionKind::Repartition { weights } => self.repartition(now, &action, weights),
                _ if action.target.node.role == Role::Server => self.restart_server(now, &action),
                _ => {
                    self.restarts.order(now, &action);
                    self.carry_out_restarts(now);
                }
            }
        }
    }

    pub(super) fn restart_event(&mut self, now: JobTime, node: NodeId, event: RestartEvent) {
        self.restarts.told(now, node, event);
        self.carry_out_restarts(now);
    }

    pub(super) fn carry_out_restarts(&mut self, now: JobTime) {
        while let Some(effect) = self.restarts.poll_effect() {
            match effect {
                RestartsEffect::Drain(holder) => {
                    self.core.draining.insert(holder);
                    if let Some(state) = self.core.nodes.get(holder.node)
                        && state.incarnation == holder.incarnation
                        && state.status == NodeStatus::Running
                    {
                        self.core.set_status(holder.node, NodeStatus::Draining);
                    }
                }
                RestartsEffect::Fence(holder) => self.lose(now, holder),
                RestartsEffect::Kill(holder) => self.core.effects.push_back(HeadEffect::Kill(holder)),
                RestartsEffect::Launch { holder, old } => {
                    if let Some(old) = old {
                        self.core.draining.remove(&old);
                    }
                    self.core.launch(now, holder);
                }
                RestartsEffect::Ended(node, outcome) => self.restart_ended(now, node, &outcome),
            }
        }
    }

    pub(super) fn restart_ended(&mut self, now: JobTime, node: NodeId, outcome: &ActionOutcome) {
        let text = match outcome {
            ActionOutcome::Restarted { holder, took, .. } => {
                format!("Restarted as {holder} after {:.1} s", took.as_secs_f64())
            }
            ActionOutcome::RestartFailed { why, .. } => format!("not restarted: {why}"),
            // Of a plan; no restart ends so.
            outcome => format!("{outcome:?}"),
        };
        self.core.event(now, Some(node), EventKind::Restart, text);
        self.core.dispatcher.action_ended(now, outcome);
        self.core.changes += 1;
    }
}
