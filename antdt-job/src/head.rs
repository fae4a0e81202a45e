//! The master's mind: one pure machine that joins the judges and deciders of the other crates.
//!
//! Events come from nodes, from the launcher and from the ledger; effects go to the launcher, the ledger, and the
//! callers that wait. Nothing here reads a clock or touches a socket, so the same type can be driven by a test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::BeatReply;
use antdt_controller::{
    Policy, Relaunch, RelaunchBudget, RelaunchConfig, RestartConfig, RestartEffect, RestartEvent, RestartSaga,
};
use antdt_core::{
    BatchReport, Contribution, Counts, Exit, Holder, Incarnation, InvalidValue, JobTime, Joined, Machine,
    NodeId, NodeInfo, NodeStatus, Plan, PlanVersion, Readiness, Role, Standing, StepCommit,
};
use antdt_monitor::MonitorConfig;

use crate::mode::{Departure, HeadHalf, SyncMode};

mod core;
mod participants;
mod timers;

pub use core::HeadCore;
use core::{Phase, Registered};
use timers::Timers;

/// Settings of a [`Head`].
#[derive(Debug)]
pub struct HeadConfig {
    /// How workers combine what they compute.
    pub sync: SyncMode,
    /// Workers of the job.
    pub workers: u32,
    /// Parameter servers; 0 with all-reduce.
    pub servers: u32,
    /// Samples of a synchronous step over all workers.
    pub global_batch_size: u32,
    /// Time between two heartbeats of a node.
    pub heartbeat: Duration,
    /// Times that a node which died is started again.
    pub max_restarts: u32,
    /// Whether every process must register; somebody else's program may take no part in the protocol.
    pub must_register: bool,
    /// What decides.
    pub policy: Box<dyn Policy>,
    /// Windows and limits of the detector.
    pub monitor: MonitorConfig,
}

/// What a node says when it registers.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Registration {
    /// Who it is, and what it can do.
    pub info: NodeInfo,
    /// Where its peers reach it.
    pub data_address: String,
    /// Its process, for people.
    pub process_id: u32,
}

/// Everything that can happen to a job.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HeadEvent {
    /// Start all nodes.
    Begin,
    /// A life of a node says that it is there.
    Register(Registration),
    /// What a node says now and then.
    Heartbeat {
        /// Who.
        holder: Holder,
        /// Its batches since the last heartbeat, oldest first, each with the sum of its samples' losses.
        #[cfg_attr(feature = "serde", serde(deserialize_with = "settings::read_reports"))]
        reports: Vec<(BatchReport, f64)>,
        /// Newest plan that it holds.
        plan_ready: PlanVersion,
        /// Plan in force on it, and since which of its steps.
        plan_applied: (PlanVersion, u64),
    },
    /// A worker wants to take part.
    Join {
        /// Who.
        holder: Holder,
        /// What it brings.
        standing: Standing,
    },
    /// The push of a worker is on all servers.
    Ready {
        /// Who.
        holder: Holder,
        /// Which step.
        step: u64,
        /// What it pushed.
        readiness: Readiness,
    },
    /// A worker stops training.
    Leave {
        /// Who.
        holder: Holder,
        /// Because there are no samples left; otherwise because it was drained.
        end_of_data: bool,
        /// It has the model, and samples that were held out.
        can_evaluate: bool,
    },
    /// How good the model is.
    Evaluated {
        /// Who tried.
        holder: Holder,
        /// On how many samples.
        samples: u64,
        /// Their mean loss.
        loss: Option<f64>,
        /// Area under the ROC curve.
        auc: Option<f64>,
    },
    /// A process runs.
    Started(Holder),
    /// A process could not be started.
    LaunchFailed(Holder, String),
    /// A process ended; its last lines of output.
    Exited(Holder, Exit, Vec<String>),
    /// A control tick, with the state of the ledger; `None` if the job has none.
    Tick(Option<Counts>),
    /// The user wants the job to end.
    Stop(String),
}

/// What the sender of an event is told at once.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HeadAnswer {
    /// To a registration.
    Registered {
        /// Time between two heartbeats.
        #[cfg_attr(feature = "serde", serde(with = "antdt_core::time::nanoseconds"))]
        heartbeat: Duration,
        /// The newest plan that names the node.
        plan: Option<Plan>,
        /// Addresses of the servers by index; empty until all are known.
        servers: Arc<[String]>,
    },
    /// To a heartbeat.
    Beat(Box<BeatReply>),
    /// An effect will bring the answer.
    Parked,
    /// To a worker that leaves.
    Left {
        /// It shall try the model on the samples that were held out.
        evaluate: bool,
    },
    /// There is nothing to say.
    Noted,
    /// For the progress line.
    Seen(Seen),
    /// The request contradicts what is known.
    Refused(String),
    /// The sender was declared dead.
    Fenced,
}

/// What a tick shows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Seen {
    /// Samples per second over the short window.
    pub samples_per_second: f64,
    /// Workers that are alive.
    pub members: usize,
    /// Nodes that are slower than their peers.
    pub stragglers: usize,
}

/// What the outside must do, in order.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum HeadEffect {
    /// Start this life of a node.
    Launch(Holder),
    /// End it.
    Kill(Holder),
    /// Samples of a dead or coordinated holder count as committed.
    Settle(Contribution),
    /// The holder's leases go back.
    LedgerLost(Holder),
    /// The answer to a parked join.
    Joined(Holder, Box<Joined>),
    /// The answer to a parked readiness.
    Committed(Holder, Box<StepCommit>),
    /// The job is over: everything is committed, or why not.
    End(Result<(), String>),
    /// Something worth writing down. Nothing depends on it.
    Note {
        /// When it happened.
        at: JobTime,
        /// What happened.
        note: Note,
    },
}

/// What the report of a job is made of.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Note {
    /// The job did something, or refused to.
    Action {
        /// `ADJUST_BS`, `KILL_RESTART`, ...
        kind: &'static str,
        /// A node, or `all`.
        target: String,
        /// Why.
        reason: String,
    },
    /// Something happened.
    Event {
        /// To whom; `None` if to the job.
        node: Option<NodeId>,
        /// In one word.
        kind: &'static str,
        /// For people.
        text: String,
    },
    /// A life of a node begins.
    Launched(Holder),
    /// A plan was made known.
    Published(Plan),
    /// A plan is in force on a node.
    Applied(NodeId, PlanVersion),
    /// A life that took part ended without leaving, while this plan was in force on it.
    Died(NodeId, PlanVersion),
    /// Reports of one heartbeat, oldest first, each with the sum of its samples' losses.
    Batches(Vec<(BatchReport, f64)>),
    /// Everything is committed.
    Completed,
    /// How good the model is.
    Evaluated {
        /// Samples it was tried on.
        samples: u64,
        /// Their mean loss.
        loss: Option<f64>,
        /// Area under the ROC curve.
        auc: Option<f64>,
    },
}

/// The master of one job: what all sync modes share, and the head half of the job's mode.
#[derive(Debug)]
pub struct Head {
    core: HeadCore,
    mode: Box<dyn HeadHalf>,
    sagas: BTreeMap<NodeId, RestartSaga>,
    saga_due: Timers<()>,
    relaunch: RelaunchBudget,
    relaunch_due: Timers<Holder>,
}

impl Head {
    /// The master of a job in which nothing has happened yet.
    ///
    /// # Errors
    /// If the windows and limits of the detector make no sense.
    pub fn new(config: HeadConfig) -> Result<Self, InvalidValue> {
        Ok(Self {
            mode: config.sync.head(),
            sagas: BTreeMap::new(),
            saga_due: Timers::new(),
            relaunch: RelaunchBudget::new(RelaunchConfig {
                max_restarts: config.max_restarts,
                ..RelaunchConfig::default()
            }),
            relaunch_due: Timers::new(),
            core: HeadCore::new(config)?,
        })
    }

    fn begin(&mut self, now: JobTime) {
        let nodes: Vec<NodeId> = self.core.nodes.iter().map(|(node, _)| node).collect();
        // Servers first: workers need them.
        for node in nodes.into_iter().rev() {
            self.core.launch(now, Holder::new(node, Incarnation(0)));
        }
    }

    fn register(&mut self, now: JobTime, registration: Registration) -> HeadAnswer {
        let holder = registration.info.holder;
        let Some(node) = self.core.nodes.get_mut(holder.node) else {
            return HeadAnswer::Refused(format!("this job has no {}", holder.node));
        };
        let repeated = node.status == NodeStatus::Running;
        if holder.incarnation != node.incarnation || !(repeated || node.status == NodeStatus::Pending) {
            return HeadAnswer::Fenced;
        }
        let Registration { info, data_address, process_id } = registration;
        node.registered = Some(Box::new(Registered { info: info.clone(), data_address }));
        self.core.set_status(holder.node, NodeStatus::Running);
        if holder.node.role == Role::Worker {
            self.core.membership.register(holder);
        }
        if repeated {
            // The answer was lost, and the heartbeats wait for it: this is a sign of life.
            self.core.detector.heartbeat(now, holder);
        } else {
            self.core.detector.node_joined(now, &info);
            let text = format!("{holder} registered as process {process_id}");
            self.core.event(now, Some(holder.node), "joined", text);
        }
        self.saga_event(now, holder.node, RestartEvent::Registered(holder));
        HeadAnswer::Registered {
            heartbeat: self.core.config.heartbeat,
            plan: self.core.plan_newer_than(PlanVersion(0), holder.node),
            servers: self.core.servers.clone(),
        }
    }

    fn heartbeat(
        &mut self,
        now: JobTime,
        holder: Holder,
        reports: Vec<(BatchReport, f64)>,
        plan_ready: PlanVersion,
        plan_applied: PlanVersion,
    ) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        self.core.detector.heartbeat(now, holder);
        for (report, _) in &reports {
            self.core.detector.report(now, report);
        }
        let reported = !reports.is_empty();
        if reported {
            self.core.note(now, Note::Batches(reports));
        }
        let node = &mut self.core.nodes[holder.node];
        if reported && !node.first_report {
            node.first_report = true;
            let took = now.since(node.launched);
            // Half old, half new: the last start says most about the next.
            self.core.start_delay = Some(self.core.start_delay.map_or(took, |before| (before + took) / 2));
        }
        if plan_applied > node.plan_applied {
            node.plan_applied = plan_applied;
            self.core.joined.applied(holder, plan_applied);
            self.core.note(now, Note::Applied(holder.node, plan_applied));
        }
        self.core.note_applied(now);
        let plan = self.core.plan_newer_than(plan_ready, holder.node);
        let lost = match holder.node.role {
            // All of them every time: a reply may be lost, and they are few.
            Role::Server => self.core.lost.clone(),
            Role::Worker => Vec::new(),
        };
        HeadAnswer::Beat(Box::new(BeatReply {
            plan,
            drain: self.core.draining.contains(&holder),
            reform: self.core.membership.reform_wanted() && self.core.joined.contains(holder),
            fenced: false,
            servers: self.core.servers.clone(),
            lost,
            finished: self.core.phase == Phase::Over,
            broken_group: self.core.membership.broken().filter(|_| self.core.joined.contains(holder)),
        }))
    }

    fn join(&mut self, now: JobTime, holder: Holder, standing: Standing) -> HeadAnswer {
        if !self.core.is_current(holder) || holder.node.role != Role::Worker {
            return HeadAnswer::Fenced;
        }
        if self.core.phase == Phase::Over {
            self.core.send_home(holder);
            return HeadAnswer::Parked;
        }
        self.mode.joining(now, &mut self.core, holder, standing);
        HeadAnswer::Parked
    }

    fn ready(&mut self, now: JobTime, holder: Holder, step: u64, readiness: Readiness) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        match self.mode.ready(now, &mut self.core, holder, step, readiness) {
            Ok(()) => HeadAnswer::Parked,
            Err(why) => HeadAnswer::Refused(why),
        }
    }

    fn leave(&mut self, now: JobTime, holder: Holder, end_of_data: bool, can_evaluate: bool) -> HeadAnswer {
        if !self.core.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        self.core.membership.leave(holder);
        self.core.joined.remove(holder);
        if !end_of_data {
            self.core.set_status(holder.node, NodeStatus::Lost);
            self.core.remember_pace(now, holder.node);
            self.core.detector.node_left(now, holder);
            self.core.membership_changed = true;
            // It gave its leases back; from now on nothing of it counts.
            self.core.lost.push(holder);
            self.core.release_leases(holder);
            self.core.event(now, Some(holder.node), "left", format!("{holder} drained"));
            self.saga_event(now, holder.node, RestartEvent::Drained(holder));
            self.mode.left(now, &mut self.core, holder, Departure::Drained);
            return HeadAnswer::Left { evaluate: false };
        }
        self.core.set_status(holder.node, NodeStatus::Finished);
        // A restart that was under way is pointless now.
        self.sagas.remove(&holder.node);
        self.saga_due.clear(holder.node);
        self.core.draining.remove(&holder);
        self.core.complete(now);
        self.core.event(now, Some(holder.node), "finished", format!("{holder} saw the end of the data"));
        self.mode.left(now, &mut self.core, holder, Departure::EndOfData);
        // The same answer to a call that was repeated.
        let mine = self.core.evaluator.is_none_or(|evaluator| evaluator == holder);
        let evaluate = can_evaluate && mine && !self.core.evaluated;
        if evaluate {
            // It stays under watch: the job waits for what it finds.
            self.core.evaluator = Some(holder);
        } else {
            self.core.detector.node_left(now, holder);
        }
        self.core.end_if_done(now);
        HeadAnswer::Left { evaluate }
    }

    /// A life ended without leaving.
    fn lose(&mut self, now: JobTime, holder: Holder) {
        let Some(node) = self.core.nodes.get(holder.node) else { return };
        if node.incarnation != holder.incarnation
            || matches!(node.status, NodeStatus::Lost | NodeStatus::Finished)
        {
            return;
        }
        self.core.set_status(holder.node, NodeStatus::Lost);
        self.core.remember_pace(now, holder.node);
        self.core.detector.node_left(now, holder);
        self.core.draining.remove(&holder);
        if holder.node.role != Role::Worker {
            return;
        }
        self.core.lost.push(holder);
        let took_part = self.core.joined.remove(holder);
        for released in self.core.membership.lost(holder) {
            self.core.release_leases(released);
        }
        if took_part {
            let plan = self.core.nodes[holder.node].plan_applied;
            self.core.note(now, Note::Died(holder.node, plan));
            self.core.membership_changed = true;
        }
        self.mode.lost(now, &mut self.core, holder, took_part);
    }

    fn exited(&mut self, now: JobTime, holder: Holder, exit: Exit, tail: &[String]) {
        let Some(node) = self.core.nodes.get_mut(holder.node) else { return };
        if node.incarnation != holder.incarnation {
            return;
        }
        node.exited = true;
        let status = node.status;
        if self.core.phase == Phase::Over {
            return;
        }
        if holder.node.role == Role::Server {
            self.core.fail(format!(
                "{} ended ({exit}), and the parameters it held with it{}",
                holder.node,
                last_words(tail)
            ));
            return;
        }
        if status == NodeStatus::Finished {
            self.core.detector.node_left(now, holder);
            if self.core.evaluator == Some(holder) && !self.core.evaluated {
                // The training is complete all the same; the report says that nobody knows how good the model is.
                self.core.evaluated = true;
                self.core.event(
                    now,
                    Some(holder.node),
                    "lost",
                    format!("{holder} ended while it evaluated ({exit})"),
                );
            }
            self.core.end_if_done(now);
            return;
        }
        let unregistered = status == NodeStatus::Pending;
        let ordered = self.sagas.get(&holder.node).is_some_and(|saga| saga.old() == holder);
        self.lose(now, holder);
        self.saga_event(now, holder.node, RestartEvent::Exited(holder));
        if ordered {
            return;
        }
        if exit == Exit::Finished && unregistered {
            // A program that takes no part in the protocol: it is done when it says so.
            self.finish_quietly(now, holder);
            return;
        }
        self.core.event(now, Some(holder.node), "lost", format!("{holder} ended: {exit}"));
        match self.relaunch.exited(holder, exit) {
            Relaunch::Repeated => {}
            Relaunch::Again { holder: next, after, reason } => {
                self.core.action(now, "RESTART", holder.node.to_string(), reason.to_string());
                self.relaunch_due.set(holder.node, now + after, next);
                self.relaunch_what_is_due(now);
            }
            Relaunch::Finished => {
                self.core.fail(format!("{holder} ended before the end of the data{}", last_words(tail)));
            }
            Relaunch::Hopeless(reason) => self.core.fail(format!("{reason}{}", last_words(tail))),
            Relaunch::Exhausted(reason) => {
                let limit = self.core.config.max_restarts;
                self.core.fail(format!(
                    "{reason}; it was restarted {limit} times already (--max-restarts){}",
                    last_words(tail)
                ));
            }
        }
    }

    fn finish_quietly(&mut self, now: JobTime, holder: Holder) {
        self.core.set_status(holder.node, NodeStatus::Finished);
        self.core.membership.give_up(holder.node);
        self.core.event(now, Some(holder.node), "finished", format!("{holder} ended"));
        self.core.end_if_done(now);
    }

    fn relaunch_what_is_due(&mut self, now: JobTime) {
        for (_, holder) in self.relaunch_due.take_due(now) {
            self.core.launch(now, holder);
        }
    }

    /// Begins the restarts that the policy asked for.
    fn begin_restarts(&mut self, now: JobTime) {
        while let Some(action) = self.core.actions.pop_front() {
            let node = action.target.node;
            self.sagas.insert(node, RestartSaga::begin(now, &action, RestartConfig::default()));
            self.saga_effects(now, node);
        }
    }

    fn saga_event(&mut self, now: JobTime, node: NodeId, event: RestartEvent) {
        if let Some(saga) = self.sagas.get_mut(&node) {
            saga.event(now, event);
            self.saga_effects(now, node);
        }
    }

    fn saga_effects(&mut self, now: JobTime, node: NodeId) {
        while let Some(effect) = self.sagas.get_mut(&node).and_then(RestartSaga::poll_effect) {
            match effect {
                RestartEffect::Drain(holder) => {
                    self.core.draining.insert(holder);
                    if let Some(state) = self.core.nodes.get(node)
                        && state.incarnation == holder.incarnation
                        && state.status == NodeStatus::Running
                    {
                        self.core.set_status(node, NodeStatus::Draining);
                    }
                }
                RestartEffect::Fence(holder) => self.lose(now, holder),
                RestartEffect::Kill(holder) => self.core.effects.push_back(HeadEffect::Kill(holder)),
                RestartEffect::Launch(holder) => {
                    self.core.draining.remove(&saga_old(&self.sagas, node));
                    self.core.launch(now, holder);
                }
                RestartEffect::Outcome(outcome) => {
                    self.core.event(now, Some(node), "restart", format!("{outcome:?}"));
                    self.core.dispatcher.action_ended(now, &outcome);
                }
                _ => {}
            }
        }
        if self.sagas.get(&node).is_some_and(RestartSaga::is_over) {
            self.sagas.remove(&node);
        }
        match self.sagas.get(&node).and_then(Machine::deadline) {
            Some(at) => self.saga_due.set(node, at, ()),
            None => self.saga_due.clear(node),
        }
    }

    fn tick(&mut self, now: JobTime, counts: Option<Counts>) -> HeadAnswer {
        if let Some(counts) = counts {
            self.core.counts = counts;
        }
        self.relaunch_what_is_due(now);
        self.core.end_what_never_registers(now);
        let samples_per_second = self.core.detector.samples_per_second();
        let data_left = self.core.counts.acked + self.core.counts.quarantined < self.core.counts.total;
        if self.core.phase == Phase::Running && self.core.started && data_left && !self.core.joined.is_empty()
        {
            self.core.tick += 1;
            let view = self.core.view(now, samples_per_second);
            self.core.membership_changed = false;
            self.core.dispatcher.tick(now, &view);
            self.core.dispatch_effects(now);
            self.begin_restarts(now);
        }
        HeadAnswer::Seen(Seen {
            samples_per_second,
            members: self.core.membership.live_count(),
            stragglers: self.core.detector.stragglers().count(),
        })
    }
}

fn saga_old(sagas: &BTreeMap<NodeId, RestartSaga>, node: NodeId) -> Holder {
    sagas.get(&node).map_or(Holder::new(node, Incarnation(0)), RestartSaga::old)
}

/// The last thing a process said, for the message about its end.
fn last_words(tail: &[String]) -> String {
    let said = tail.iter().rev().find(|line| line.contains("error:")).or_else(|| tail.last());
    said.map(|line| format!("; it said: {}", line.trim().trim_start_matches("error: "))).unwrap_or_default()
}

impl Machine for Head {
    type Event = HeadEvent;
    type Answer = HeadAnswer;
    type Effect = HeadEffect;

    fn handle(&mut self, now: JobTime, event: HeadEvent) -> HeadAnswer {
        let answer = match event {
            HeadEvent::Begin => {
                self.begin(now);
                HeadAnswer::Noted
            }
            HeadEvent::Register(registration) => self.register(now, registration),
            HeadEvent::Heartbeat { holder, reports, plan_ready, plan_applied } => {
                self.heartbeat(now, holder, reports, plan_ready, plan_applied.0)
            }
            HeadEvent::Join { holder, standing } => self.join(now, holder, standing),
            HeadEvent::Ready { holder, step, readiness } => self.ready(now, holder, step, readiness),
            HeadEvent::Leave { holder, end_of_data, can_evaluate } => {
                self.leave(now, holder, end_of_data, can_evaluate)
            }
            HeadEvent::Evaluated { holder, samples, loss, auc } => {
                if self.core.evaluator == Some(holder) {
                    self.core.note(now, Note::Evaluated { samples, loss, auc });
                    self.core.evaluated = true;
                    self.core.end_if_done(now);
                }
                HeadAnswer::Noted
            }
            HeadEvent::Started(holder) => {
                self.saga_event(now, holder.node, RestartEvent::Started(holder));
                HeadAnswer::Noted
            }
            HeadEvent::LaunchFailed(holder, why) => {
                self.saga_event(now, holder.node, RestartEvent::LaunchFailed(holder));
                self.core.fail(why);
                HeadAnswer::Noted
            }
            HeadEvent::Exited(holder, exit, tail) => {
                self.exited(now, holder, exit, &tail);
                HeadAnswer::Noted
            }
            HeadEvent::Tick(counts) => self.tick(now, counts),
            HeadEvent::Stop(why) => {
                self.core.fail(why);
                HeadAnswer::Noted
            }
        };
        self.core.detector_effects(now);
        answer
    }

    fn poll_effect(&mut self) -> Option<HeadEffect> {
        self.core.effects.pop_front()
    }

    fn deadline(&self) -> Option<JobTime> {
        let due = [self.saga_due.next(), self.relaunch_due.next(), self.core.detector.deadline()];
        due.into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: JobTime) {
        if self.deadline().is_some_and(|due| now.since(due) > self.core.config.heartbeat) {
            // The master itself was away, stopped at the terminal or starved: nobody's silence proves anything.
            for (id, node) in self.core.nodes.iter() {
                self.core.detector.heartbeat(now, Holder::new(id, node.incarnation));
            }
        }
        let due = self.saga_due.take_due(now);
        for (node, ()) in &due {
            let needed =
                self.sagas.get(node).map(RestartSaga::old).filter(|old| self.core.alone_has_model(*old));
            if let Some(saga) = self.sagas.get_mut(node) {
                if let Some(old) = needed {
                    saga.event(now, RestartEvent::Needed(old));
                }
                saga.on_deadline(now);
            }
        }
        for (node, ()) in due {
            self.saga_effects(now, node);
        }
        self.relaunch_what_is_due(now);
        if self.core.detector.deadline().is_some_and(|at| at <= now) {
            self.core.detector.on_deadline(now);
        }
        self.core.detector_effects(now);
    }
}

#[cfg(feature = "serde")]
mod settings;

#[cfg(feature = "serde")]
pub use settings::HeadSettings;

#[cfg(test)]
mod tests;
