//! Plans of the job: what the controller is shown, and what it decides.

use std::sync::Arc;
use std::time::Duration;

use antdt_controller::{Decided, DecisionRecord, DispatchEffect, Seat};
use antdt_core::{
    ClusterView, JobTime, Machine, MembershipVersion, NodeId, NodeStatus, NodeView, Pace, Plan, PlanVersion,
    Progress, Role, SchedulerView,
};

use super::core::{HeadCore, Node};
use super::{EventKind, HeadEffect, Note};

/// What a restart is expected to take before the job has seen one.
const START_DELAY_PRIOR: Duration = Duration::from_secs(180);

/// Expected start delay above which nodes count as hard to get.
const BUSY_ABOVE: Duration = Duration::from_secs(300);

impl HeadCore {
    /// Remembers how fast a life was that is about to be forgotten. Its successor is taken to be as fast until it has
    /// shown otherwise: that costs little if a restart cured it, and a too large batch costs all workers if not.
    pub(super) fn remember_pace(&mut self, now: JobTime, id: NodeId) {
        if let Some(estimate) = self.seat_of(now, id).estimate {
            self.nodes[id].estimate_before = Some(estimate);
        }
    }

    /// The published plan, if it is newer and names the node.
    pub(super) fn plan_newer_than(&self, known: PlanVersion, node: NodeId) -> Option<Plan> {
        let newer = self.published.as_ref().filter(|plan| plan.version > known);
        newer.filter(|plan| plan.batch_sizes.contains_key(&node)).cloned()
    }

    /// Notes the newest plan that is in force everywhere: the one on its way, or one that was withdrawn too late.
    pub(super) fn note_applied(&mut self, now: JobTime) {
        let applied = self.joined.applied_by_all();
        let before = self.dispatcher.in_force().map(|plan| plan.version);
        if applied <= before {
            return;
        }
        // All workers have gone on from the one before, so they have computed its batches.
        self.note_computed();
        self.dispatcher.plan_applied(now, applied.unwrap_or_default());
        if let Some(plan) = self.dispatcher.in_force().filter(|plan| Some(plan.version) != before) {
            let text = format!("all workers switched to plan {}", plan.version);
            let values = Arc::clone(&plan.actions);
            self.event(now, None, EventKind::Plan, text);
            if *values != self.ordered {
                self.ordered = (*values).clone();
                self.effects.push_back(HeadEffect::Order(self.ordered.clone()));
            }
        }
    }

    pub(super) fn seat_of(&self, now: JobTime, id: NodeId) -> Seat {
        let node = &self.nodes[id];
        let (batch_size_min, batch_size_max) = self.bounds_of(node);
        let observed = self.detector.observe(now, id);
        let estimate = observed.and_then(|o| o.estimate).or(node.estimate_before);
        Seat { id, batch_size_min, batch_size_max, estimate }
    }

    /// The smallest and the largest batch that a node accepts.
    pub(super) fn bounds_of(&self, node: &Node) -> (u32, u32) {
        let info = node.registered.as_ref().map(|registered| &registered.info);
        info.map_or((1, self.config.global_batch_size), |info| {
            let most = self.memory.most(&info.device).unwrap_or(u32::MAX).min(info.batch_size_max);
            (info.batch_size_min, most.max(info.batch_size_min))
        })
    }

    /// What workers compute at once under the plan that was in force fits their devices.
    pub(super) fn note_computed(&mut self) {
        let Some(plan) = self.dispatcher.in_force() else { return };
        for (id, size) in plan.batch_sizes.iter() {
            let registered = self.nodes.get(*id).and_then(|node| node.registered.as_ref());
            if let Some(registered) = registered {
                self.memory.computed(&registered.info.device, size.div_ceil(plan.micro_batches(*id)));
            }
        }
    }

    /// Publishes a plan for the members of this membership, which are the workers that take part from now on.
    pub fn replan(&mut self, now: JobTime, membership: MembershipVersion) {
        let seats: Vec<Seat> = self.joined.iter().map(|holder| self.seat_of(now, holder.node)).collect();
        if seats.is_empty() {
            return;
        }
        self.plan_membership = membership;
        if let Err(error) = self.dispatcher.replan(now, membership, &seats) {
            self.fail(format!("no batch sizes fit {} workers: {error}", seats.len()));
        }
        self.dispatch_effects(now);
    }

    pub(super) fn dispatch_effects(&mut self, now: JobTime) {
        while let Some(effect) = self.dispatcher.poll_effect() {
            match effect {
                DispatchEffect::Publish(plan) => {
                    self.newest_plan = plan.version;
                    self.note(now, Note::Published(plan.clone()));
                    self.published = Some(plan);
                }
                DispatchEffect::Withdraw(version) => {
                    let withdrawn = self.published.take_if(|plan| plan.version == version);
                    self.published = self
                        .published
                        .take()
                        .or_else(|| withdrawn.and_then(|_| self.dispatcher.in_force().cloned()));
                }
                DispatchEffect::Start(action) => self.actions.push_back(action),
                DispatchEffect::Record(record) => self.decided(&record),
                DispatchEffect::Measured { version, forecast, step } => {
                    let percent = |cut: f64| format!("{:.0} %", cut * 100.0);
                    let text = format!(
                        "plan {version} was expected to cut the step time by {}, to {:.1} ms, and cut it by {}, to {:.1} ms",
                        percent(forecast.promised()),
                        forecast.with.as_secs_f64() * 1e3,
                        percent(forecast.cut(step)),
                        step.as_secs_f64() * 1e3,
                    );
                    self.event(now, None, EventKind::Forecast, text);
                }
                _ => {}
            }
        }
    }

    pub(super) fn decided(&mut self, record: &DecisionRecord) {
        let target = record.target().map_or_else(|| "all".to_owned(), |holder| holder.node.to_string());
        match record.decided {
            Decided::Plan(..)
            | Decided::Node(..)
            | Decided::Refused
            | Decided::WouldPlan(_)
            | Decided::WouldNode(..) => {
                self.action(record.at, record.kind(), target, record.reason());
            }
            // Why nothing was done is worth knowing, but is no action.
            Decided::Nothing => self.event(record.at, None, EventKind::None, record.reason()),
            _ => {}
        }
    }

    pub(super) fn view(&self, now: JobTime, samples_per_second: f64) -> ClusterView {
        let start_delay = self.start_delay.unwrap_or(START_DELAY_PRIOR);
        let in_force = self.dispatcher.in_force().or_else(|| self.dispatcher.newest());
        // Nodes and batch sizes have one order, and the views of all nodes take one piece of memory.
        let mut sizes = in_force.map(|plan| plan.batch_sizes.iter()).into_iter().flatten().peekable();
        let mut of_role = |role, count| {
            let mut views = Vec::with_capacity(count);
            for (id, node) in self.nodes.of_role(role) {
                if role == Role::Server && node.retired {
                    continue;
                }
                while sizes.next_if(|(known, _)| **known < id).is_some() {}
                let size = sizes.next_if(|(known, _)| **known == id).map_or(0, |(_, size)| *size);
                views.push(self.view_of(now, id, node, in_force, size));
            }
            views
        };
        let mode = self.capabilities_now();
        ClusterView {
            tick: self.tick,
            mode,
            elastic: true,
            membership: self.plan_membership,
            membership_changed: self.membership_changed
                || self.joined.len() != self.membership.live_count()
                || self.nodes.iter().any(|(_, node)| node.status == NodeStatus::Draining),
            plan: self.dispatcher.in_force().map_or(PlanVersion(0), |plan| plan.version),
            plan_pending: self.dispatcher.pending().is_some(),
            actions: self.dispatcher.in_force().map_or_else(Arc::default, |plan| Arc::clone(&plan.actions)),
            hosts: Arc::clone(&self.config.hosts),
            global_batch_size: self.config.global_batch_size,
            workers: of_role(Role::Worker, self.workers),
            servers: of_role(Role::Server, self.config.servers as usize),
            checkpoint_time: self.checkpoint_time,
            server_weights: self.weights.clone(),
            hands_over: mode.needs_servers()
                && self.config.checkpoints.is_some()
                && self.config.can_roll_back,
            step: mode.steps_together().then(|| self.detector.steps()).flatten(),
            progress: Progress {
                committed: self.counts.acked,
                expected: self.counts.total,
                samples_per_second,
            },
            scheduler: SchedulerView { start_delay, busy: start_delay > BUSY_ABOVE },
        }
    }

    pub(super) fn view_of(
        &self,
        now: JobTime,
        id: NodeId,
        node: &Node,
        in_force: Option<&Plan>,
        batch_size: u32,
    ) -> NodeView {
        let observed = self.detector.observe(now, id);
        let (batch_size_min, batch_size_max) = self.bounds_of(node);
        let device = node.registered.as_ref().map(|registered| registered.info.device.clone());
        NodeView {
            id,
            incarnation: node.incarnation,
            device: device.unwrap_or_default(),
            host: node
                .registered
                .as_ref()
                .map_or_else(Arc::default, |registered| Arc::clone(&registered.host)),
            status: node.status,
            batch_size,
            micro_batches: in_force.map_or(1, |plan| plan.micro_batches(id)),
            batch_size_min,
            batch_size_max,
            pace: observed.map_or(Pace::Unknown, |o| o.pace),
            sample_time_short: observed.and_then(|o| o.sample_time_short),
            sample_time_long: observed.and_then(|o| o.sample_time_long),
            estimate: observed.and_then(|o| o.estimate),
            batch: observed.and_then(|o| o.batch),
            slowness_ratio: observed.and_then(|o| o.slowness_ratio),
            slow_fraction_long: observed.map_or(0.0, |o| o.slow_fraction_long),
            last_report_age: observed.and_then(|o| o.last_report_age),
            restarts: node.incarnation.0,
            chief: id == NodeId::worker(0),
        }
    }
}
