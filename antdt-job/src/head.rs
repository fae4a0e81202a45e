//! The master's mind: one pure machine that joins the judges and deciders of the other crates.
//!
//! Events come from nodes, from the launcher and from the ledger; effects go to the launcher, the ledger, and the
//! callers that wait. Nothing here reads a clock or touches a socket, so the same type can be driven by a test.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::BeatReply;
use antdt_controller::{
    Arrival, Decided, DecisionRecord, DispatchEffect, Dispatcher, DispatcherConfig, Formation, Membership,
    Policy, Relaunch, RelaunchBudget, RelaunchConfig, RestartConfig, RestartEffect, RestartEvent,
    RestartSaga, Seat, StepCoordinator,
};
use antdt_core::{
    BatchReport, ClusterView, Contribution, Counts, Exit, Holder, Incarnation, InvalidValue, JobTime, Joined,
    Machine, MembershipVersion, NodeId, NodeInfo, NodeMap, NodeStatus, NodeView, Pace, Plan, PlanVersion,
    Progress, Readiness, Role, SchedulerView, Standing, StepCommit, SyncMode,
};
use antdt_monitor::{MonitorConfig, MonitorEffect, StragglerDetector};

mod participants;
mod timers;

use participants::Participants;
use timers::Timers;

/// What a restart is expected to take before the job has seen one.
const START_DELAY_PRIOR: Duration = Duration::from_secs(180);

/// How long a process of ours may take from its launch to its registration: it reads its data in between, and there
/// may be a lot. One that is stuck must not be waited for for ever.
const REGISTER_LIMIT: Duration = Duration::from_secs(1800);

/// Expected start delay above which nodes count as hard to get.
const BUSY_ABOVE: Duration = Duration::from_secs(300);

/// Settings of a [`Head`].
#[derive(Debug)]
pub struct HeadConfig {
    /// How gradients are combined.
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

#[derive(Debug, Clone)]
struct Node {
    incarnation: Incarnation,
    status: NodeStatus,
    /// What it said of itself; boxed, so that what every heartbeat needs is close together.
    registered: Option<Box<Registered>>,
    launched: JobTime,
    first_report: bool,
    plan_applied: PlanVersion,
    /// Time per sample of the life before, until this one has shown its own.
    sample_time_before: Option<Duration>,
    exited: bool,
}

#[derive(Debug, Clone)]
struct Registered {
    info: NodeInfo,
    data_address: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Over,
}

/// The master of one job.
#[derive(Debug)]
pub struct Head {
    config: HeadConfig,
    nodes: NodeMap<Node>,
    /// Workers that are [`NodeStatus::Finished`].
    finished: usize,
    /// Addresses of the servers by index; empty until all are known.
    servers: Arc<[String]>,
    membership: Membership,
    coordinator: StepCoordinator,
    detector: StragglerDetector,
    dispatcher: Dispatcher,
    sagas: BTreeMap<NodeId, RestartSaga>,
    saga_due: Timers<()>,
    relaunch: RelaunchBudget,
    relaunch_due: Timers<Holder>,
    draining: BTreeSet<Holder>,
    /// Workers that joined and are neither lost nor gone.
    joined: Participants,
    /// With servers: workers that wait for the first common start.
    at_start: BTreeSet<Holder>,
    started: bool,
    /// All-reduce: what the members of the group in force were told.
    formed: Option<Box<Joined>>,
    lost: Vec<Holder>,
    published: Option<Plan>,
    plan_membership: MembershipVersion,
    membership_changed: bool,
    start_delay: Option<Duration>,
    counts: Counts,
    evaluator: Option<Holder>,
    evaluated: bool,
    tick: u64,
    phase: Phase,
    /// The first moment at which everything was known to be committed.
    completed: Option<JobTime>,
    effects: VecDeque<HeadEffect>,
}

impl Head {
    /// The master of a job in which nothing has happened yet.
    ///
    /// # Errors
    /// If the windows and limits of the detector make no sense.
    pub fn new(config: HeadConfig) -> Result<Self, InvalidValue> {
        let dispatcher_config = DispatcherConfig::new(config.sync, config.global_batch_size, config.workers);
        let workers = (0..config.workers).map(NodeId::worker);
        let nodes = workers
            .clone()
            .chain((0..config.servers).map(NodeId::server))
            .map(|node| {
                let node_state = Node {
                    incarnation: Incarnation(0),
                    status: NodeStatus::Pending,
                    registered: None,
                    launched: JobTime::ZERO,
                    first_report: false,
                    plan_applied: PlanVersion(0),
                    sample_time_before: None,
                    exited: false,
                };
                (node, node_state)
            })
            .collect();
        Ok(Self {
            nodes,
            finished: 0,
            servers: Arc::default(),
            membership: Membership::new(workers),
            coordinator: StepCoordinator::new(),
            detector: StragglerDetector::new(config.monitor)?,
            dispatcher: Dispatcher::new(dispatcher_config, config.policy.clone()),
            sagas: BTreeMap::new(),
            saga_due: Timers::new(),
            relaunch: RelaunchBudget::new(RelaunchConfig {
                max_restarts: config.max_restarts,
                ..RelaunchConfig::default()
            }),
            relaunch_due: Timers::new(),
            draining: BTreeSet::new(),
            joined: Participants::default(),
            at_start: BTreeSet::new(),
            started: false,
            formed: None,
            lost: Vec::new(),
            published: None,
            plan_membership: MembershipVersion(0),
            membership_changed: false,
            start_delay: None,
            counts: Counts::default(),
            evaluator: None,
            evaluated: false,
            tick: 0,
            phase: Phase::Running,
            completed: None,
            effects: VecDeque::new(),
            config,
        })
    }

    fn note(&mut self, at: JobTime, note: Note) {
        self.effects.push_back(HeadEffect::Note { at, note });
    }

    fn action(&mut self, at: JobTime, kind: &'static str, target: String, reason: String) {
        self.note(at, Note::Action { kind, target, reason });
    }

    fn event(&mut self, at: JobTime, node: Option<NodeId>, kind: &'static str, text: String) {
        self.note(at, Note::Event { node, kind, text });
    }

    fn complete(&mut self, now: JobTime) {
        if self.completed.is_none() {
            self.completed = Some(now);
            self.note(now, Note::Completed);
        }
    }

    fn begin(&mut self, now: JobTime) {
        let nodes: Vec<NodeId> = self.nodes.iter().map(|(node, _)| node).collect();
        // Servers first: workers need them.
        for node in nodes.into_iter().rev() {
            self.launch(now, Holder::new(node, Incarnation(0)));
        }
    }

    fn launch(&mut self, now: JobTime, holder: Holder) {
        let Some(node) = self.nodes.get_mut(holder.node) else { return };
        node.incarnation = holder.incarnation;
        node.launched = now;
        node.first_report = false;
        node.exited = false;
        node.plan_applied = PlanVersion(0);
        self.set_status(holder.node, NodeStatus::Pending);
        if holder.node.role == Role::Worker {
            self.membership.launched(holder);
        }
        self.note(now, Note::Launched(holder));
        self.effects.push_back(HeadEffect::Launch(holder));
    }

    fn set_status(&mut self, id: NodeId, status: NodeStatus) {
        let before = std::mem::replace(&mut self.nodes[id].status, status);
        match id.role {
            Role::Worker => {
                self.finished -= usize::from(before == NodeStatus::Finished);
                self.finished += usize::from(status == NodeStatus::Finished);
            }
            Role::Server => self.find_servers(),
        }
    }

    /// Learns the addresses of the servers, once all are known.
    fn find_servers(&mut self) {
        let servers = self.nodes.of_role(Role::Server).map(|(_, node)| {
            let running = node.status == NodeStatus::Running;
            node.registered.as_ref().filter(|_| running).map(|registered| registered.data_address.clone())
        });
        self.servers = servers.collect::<Option<Vec<String>>>().unwrap_or_default().into();
    }

    /// Whether this life may still change anything.
    fn is_current(&self, holder: Holder) -> bool {
        self.nodes.get(holder.node).is_some_and(|node| {
            node.incarnation == holder.incarnation
                && matches!(node.status, NodeStatus::Running | NodeStatus::Draining | NodeStatus::Finished)
        })
    }

    fn register(&mut self, now: JobTime, registration: Registration) -> HeadAnswer {
        let holder = registration.info.holder;
        let Some(node) = self.nodes.get_mut(holder.node) else {
            return HeadAnswer::Refused(format!("this job has no {}", holder.node));
        };
        let repeated = node.status == NodeStatus::Running;
        if holder.incarnation != node.incarnation || !(repeated || node.status == NodeStatus::Pending) {
            return HeadAnswer::Fenced;
        }
        let Registration { info, data_address, process_id } = registration;
        node.registered = Some(Box::new(Registered { info: info.clone(), data_address }));
        self.set_status(holder.node, NodeStatus::Running);
        if holder.node.role == Role::Worker {
            self.membership.register(holder);
        }
        if repeated {
            // The answer was lost, and the heartbeats wait for it: this is a sign of life.
            self.detector.heartbeat(now, holder);
        } else {
            self.detector.node_joined(now, &info);
            let text = format!("{holder} registered as process {process_id}");
            self.event(now, Some(holder.node), "joined", text);
        }
        self.saga_event(now, holder.node, RestartEvent::Registered(holder));
        HeadAnswer::Registered {
            heartbeat: self.config.heartbeat,
            plan: self.plan_newer_than(PlanVersion(0), holder.node),
            servers: self.servers.clone(),
        }
    }

    /// The published plan, if it is newer and names the node.
    fn plan_newer_than(&self, known: PlanVersion, node: NodeId) -> Option<Plan> {
        let newer = self.published.as_ref().filter(|plan| plan.version > known);
        newer.filter(|plan| plan.batch_sizes.contains_key(&node)).cloned()
    }

    fn heartbeat(
        &mut self,
        now: JobTime,
        holder: Holder,
        reports: Vec<(BatchReport, f64)>,
        plan_ready: PlanVersion,
        plan_applied: PlanVersion,
    ) -> HeadAnswer {
        if !self.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        self.detector.heartbeat(now, holder);
        for (report, _) in &reports {
            self.detector.report(now, report);
        }
        let reported = !reports.is_empty();
        if reported {
            self.note(now, Note::Batches(reports));
        }
        let node = &mut self.nodes[holder.node];
        if reported && !node.first_report {
            node.first_report = true;
            let took = now.since(node.launched);
            // Half old, half new: the last start says most about the next.
            self.start_delay = Some(self.start_delay.map_or(took, |before| (before + took) / 2));
        }
        if plan_applied > node.plan_applied {
            node.plan_applied = plan_applied;
            self.joined.applied(holder, plan_applied);
            self.note(now, Note::Applied(holder.node, plan_applied));
        }
        self.note_applied(now);
        let plan = self.plan_newer_than(plan_ready, holder.node);
        let lost = match holder.node.role {
            // All of them every time: a reply may be lost, and they are few.
            Role::Server => self.lost.clone(),
            Role::Worker => Vec::new(),
        };
        HeadAnswer::Beat(Box::new(BeatReply {
            plan,
            drain: self.draining.contains(&holder),
            reform: self.membership.reform_wanted() && self.joined.contains(holder),
            fenced: false,
            servers: self.servers.clone(),
            lost,
            finished: self.phase == Phase::Over,
            broken_group: self.membership.broken().filter(|_| self.joined.contains(holder)),
        }))
    }

    /// Notes the newest plan that is in force everywhere: the one on its way, or one that was withdrawn too late.
    fn note_applied(&mut self, now: JobTime) {
        let applied = self.joined.applied_by_all();
        let before = self.dispatcher.in_force().map(|plan| plan.version);
        if applied <= before {
            return;
        }
        self.dispatcher.plan_applied(now, applied.unwrap_or_default());
        if let Some(plan) = self.dispatcher.in_force().filter(|plan| Some(plan.version) != before) {
            let text = format!("all workers switched to plan {}", plan.version);
            self.event(now, None, "plan", text);
        }
    }

    fn join(&mut self, now: JobTime, holder: Holder, standing: Standing) -> HeadAnswer {
        if !self.is_current(holder) || holder.node.role != Role::Worker {
            return HeadAnswer::Fenced;
        }
        if self.phase == Phase::Over {
            self.send_home(holder);
            return HeadAnswer::Parked;
        }
        match self.config.sync {
            SyncMode::AllReduce => match self.membership.join(holder, standing) {
                Arrival::Waits => self.form(now),
                Arrival::Member if self.completed.is_some() => self.send_home(holder),
                Arrival::Member => {
                    let joined = self.formed.clone().expect("a group with members was formed");
                    self.effects.push_back(HeadEffect::Joined(holder, joined));
                }
                Arrival::NotLive => {}
            },
            SyncMode::PsBsp | SyncMode::PsAsp => {
                self.at_start.insert(holder);
                self.start_with_servers(now);
            }
        }
        HeadAnswer::Parked
    }

    fn send_home(&mut self, holder: Holder) {
        let joined = self.joined_reply(self.membership.version(), Arc::default());
        self.effects.push_back(HeadEffect::Joined(holder, Box::new(Joined { finished: true, ..joined })));
    }

    fn joined_reply(&self, membership: MembershipVersion, members: Arc<[(Holder, String)]>) -> Joined {
        Joined {
            membership,
            members,
            commit_prepared: false,
            source: None,
            next_step: 0,
            plan: self
                .published
                .clone()
                .unwrap_or_else(|| Plan::new(PlanVersion(0), membership, BTreeMap::new())),
            last_commit: None,
            finished: false,
        }
    }

    /// With servers: lets workers in; the first ones all at once.
    fn start_with_servers(&mut self, now: JobTime) {
        if self.at_start.is_empty() || (!self.started && self.is_anyone_awaited()) {
            return;
        }
        let entering = std::mem::take(&mut self.at_start);
        for holder in &entering {
            self.joined.insert(*holder, self.nodes[holder.node].plan_applied);
            self.coordinator.join(*holder);
        }
        let first = !std::mem::replace(&mut self.started, true);
        if first {
            self.replan(now, self.membership.version());
        }
        for holder in entering {
            let mut joined = Joined {
                next_step: self.coordinator.step(),
                last_commit: self.coordinator.last_with_samples().cloned(),
                ..self.joined_reply(self.membership.version(), Arc::default())
            };
            if !first && self.config.sync.is_synchronous() {
                // A worker that comes later, or again, keeps an empty batch until all have switched to the plan that
                // names it, so that the batches of one step always add up to the same. The published plan may name it
                // too soon: as an earlier life, or because it is a member already and its answer was lost.
                joined.plan = Plan::new(PlanVersion(0), joined.membership, BTreeMap::new());
            }
            self.effects.push_back(HeadEffect::Joined(holder, Box::new(joined)));
        }
        if !first {
            self.membership_changed = true;
            self.replan(now, self.membership.version());
        }
    }

    /// With servers: whether a worker that has not finished is not yet there for the first common start.
    fn is_anyone_awaited(&self) -> bool {
        let unfinished = self.config.workers as usize - self.finished;
        // Counted first: everyone but the last is told in O(1) that others are awaited.
        self.at_start.len() < unfinished
            || self.nodes.of_role(Role::Worker).any(|(id, node)| {
                let finished = node.status == NodeStatus::Finished;
                !finished && !self.at_start.contains(&Holder::new(id, node.incarnation))
            })
    }

    /// All-reduce: forms a group if everyone has come.
    fn form(&mut self, now: JobTime) {
        if self.completed.is_some() {
            // Everything is committed; a late replacement has nothing to do.
            for holder in self.membership.dismiss() {
                self.send_home(holder);
            }
            return;
        }
        let Some(formation) = self.membership.form() else { return };
        let Formation { version, members, commit, source, next_step, settled, released, model_lost } =
            formation;
        for contribution in settled {
            self.effects.push_back(HeadEffect::Settle(contribution));
        }
        for holder in released {
            self.effects.push_back(HeadEffect::LedgerLost(holder));
        }
        // Even if no step was reported: one may have been committed since the last heartbeat.
        if model_lost {
            self.fail("all workers were lost at once, and the model with them".to_owned());
            return;
        }
        self.started = true;
        self.membership_changed = true;
        self.joined = Participants::default();
        for holder in &members {
            self.joined.insert(*holder, self.nodes[holder.node].plan_applied);
        }
        self.replan(now, version);
        let address = |holder: &Holder| {
            let registered = self.nodes[holder.node].registered.as_ref();
            (*holder, registered.map(|registered| registered.data_address.clone()).unwrap_or_default())
        };
        let addresses: Arc<[(Holder, String)]> = members.iter().map(address).collect();
        let text = format!("group {version} of {} workers takes step {next_step}", members.len());
        self.event(now, None, "membership", text);
        let joined = Joined {
            commit_prepared: commit.is_some(),
            source,
            next_step,
            ..self.joined_reply(version, addresses)
        };
        let joined = Box::new(joined);
        for holder in members {
            self.effects.push_back(HeadEffect::Joined(holder, joined.clone()));
        }
        self.formed = Some(joined);
    }

    /// Remembers how fast a life was that is about to be forgotten. Its successor is taken to be as fast until it has
    /// shown otherwise: that costs little if a restart cured it, and a too large batch costs everybody if not.
    fn remember_pace(&mut self, now: JobTime, id: NodeId) {
        if let Some(time) = self.seat_of(now, id).sample_time {
            self.nodes[id].sample_time_before = Some(time);
        }
    }

    fn seat_of(&self, now: JobTime, id: NodeId) -> Seat {
        let node = &self.nodes[id];
        let (batch_size_min, batch_size_max) = self.bounds_of(node);
        let observed = self.detector.observe(now, id);
        let sample_time = observed.and_then(|o| o.sample_time_short.or(o.sample_time_long));
        Seat { id, batch_size_min, batch_size_max, sample_time: sample_time.or(node.sample_time_before) }
    }

    /// The smallest and the largest batch that a node accepts.
    fn bounds_of(&self, node: &Node) -> (u32, u32) {
        let info = node.registered.as_ref().map(|registered| &registered.info);
        info.map_or((1, self.config.global_batch_size), |info| (info.batch_size_min, info.batch_size_max))
    }

    /// A plan for the workers that take part now.
    fn replan(&mut self, now: JobTime, membership: MembershipVersion) {
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

    fn ready(&mut self, holder: Holder, step: u64, readiness: Readiness) -> HeadAnswer {
        if !self.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        match self.coordinator.ready(holder, step, readiness) {
            Ok(Some(commit)) => {
                self.effects.push_back(HeadEffect::Committed(holder, Box::new(commit.clone())));
            }
            Ok(None) => self.commit(),
            Err(error) => return HeadAnswer::Refused(error.to_string()),
        }
        HeadAnswer::Parked
    }

    /// With a synchronous server: commits the open step if all are ready.
    fn commit(&mut self) {
        let Some(commit) = self.coordinator.commit() else { return };
        for (holder, acks) in commit.contributors.iter() {
            let contribution = Contribution { holder: *holder, acks: acks.as_slice().into() };
            self.effects.push_back(HeadEffect::Settle(contribution));
        }
        for holder in self.coordinator.members() {
            self.effects.push_back(HeadEffect::Committed(holder, Box::new(commit.clone())));
        }
    }

    fn leave(&mut self, now: JobTime, holder: Holder, end_of_data: bool, can_evaluate: bool) -> HeadAnswer {
        if !self.is_current(holder) {
            return HeadAnswer::Fenced;
        }
        self.membership.leave(holder);
        self.coordinator.remove(holder);
        self.joined.remove(holder);
        self.at_start.remove(&holder);
        if !end_of_data {
            self.set_status(holder.node, NodeStatus::Lost);
            self.remember_pace(now, holder.node);
            self.detector.node_left(now, holder);
            self.membership_changed = true;
            // It gave its leases back; from now on nothing of it counts.
            self.lost.push(holder);
            self.effects.push_back(HeadEffect::LedgerLost(holder));
            self.event(now, Some(holder.node), "left", format!("{holder} drained"));
            self.saga_event(now, holder.node, RestartEvent::Drained(holder));
            self.form(now);
            self.commit();
            self.start_with_servers(now);
            if self.config.sync.has_servers() {
                self.replan(now, self.membership.version());
            }
            return HeadAnswer::Left { evaluate: false };
        }
        self.set_status(holder.node, NodeStatus::Finished);
        // A restart that was under way is pointless now.
        self.sagas.remove(&holder.node);
        self.saga_due.clear(holder.node);
        self.draining.remove(&holder);
        self.complete(now);
        self.event(now, Some(holder.node), "finished", format!("{holder} saw the end of the data"));
        self.commit();
        self.form(now);
        // The same answer to a call that was repeated.
        let mine = self.evaluator.is_none_or(|evaluator| evaluator == holder);
        let evaluate = can_evaluate && mine && !self.evaluated;
        if evaluate {
            // It stays under watch: the job waits for what it finds.
            self.evaluator = Some(holder);
        } else {
            self.detector.node_left(now, holder);
        }
        self.end_if_done(now);
        HeadAnswer::Left { evaluate }
    }

    /// A life ended without leaving.
    fn lose(&mut self, now: JobTime, holder: Holder) {
        let Some(node) = self.nodes.get(holder.node) else { return };
        if node.incarnation != holder.incarnation
            || matches!(node.status, NodeStatus::Lost | NodeStatus::Finished)
        {
            return;
        }
        self.set_status(holder.node, NodeStatus::Lost);
        self.remember_pace(now, holder.node);
        self.detector.node_left(now, holder);
        self.draining.remove(&holder);
        if holder.node.role != Role::Worker {
            return;
        }
        self.lost.push(holder);
        self.at_start.remove(&holder);
        let took_part = self.joined.remove(holder);
        for released in self.membership.lost(holder) {
            self.effects.push_back(HeadEffect::LedgerLost(released));
        }
        self.coordinator.remove(holder);
        self.commit();
        self.form(now);
        if took_part {
            let plan = self.nodes[holder.node].plan_applied;
            self.note(now, Note::Died(holder.node, plan));
            self.membership_changed = true;
            if self.config.sync.has_servers() {
                self.replan(now, self.membership.version());
            }
        }
    }

    fn exited(&mut self, now: JobTime, holder: Holder, exit: Exit, tail: &[String]) {
        let Some(node) = self.nodes.get_mut(holder.node) else { return };
        if node.incarnation != holder.incarnation {
            return;
        }
        node.exited = true;
        let status = node.status;
        if self.phase == Phase::Over {
            return;
        }
        if holder.node.role == Role::Server {
            self.fail(format!(
                "{} ended ({exit}), and the parameters it held with it{}",
                holder.node,
                last_words(tail)
            ));
            return;
        }
        if status == NodeStatus::Finished {
            self.detector.node_left(now, holder);
            if self.evaluator == Some(holder) && !self.evaluated {
                // The training is complete all the same; the report says that nobody knows how good the model is.
                self.evaluated = true;
                self.event(
                    now,
                    Some(holder.node),
                    "lost",
                    format!("{holder} ended while it evaluated ({exit})"),
                );
            }
            self.end_if_done(now);
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
        self.event(now, Some(holder.node), "lost", format!("{holder} ended: {exit}"));
        match self.relaunch.exited(holder, exit) {
            Relaunch::Repeated => {}
            Relaunch::Again { holder: next, after, reason } => {
                self.action(now, "RESTART", holder.node.to_string(), reason.to_string());
                self.relaunch_due.set(holder.node, now + after, next);
                self.relaunch_what_is_due(now);
            }
            Relaunch::Finished => {
                self.fail(format!("{holder} ended before the end of the data{}", last_words(tail)));
            }
            Relaunch::Hopeless(reason) => self.fail(format!("{reason}{}", last_words(tail))),
            Relaunch::Exhausted(reason) => {
                let limit = self.config.max_restarts;
                self.fail(format!(
                    "{reason}; it was restarted {limit} times already (--max-restarts){}",
                    last_words(tail)
                ));
            }
        }
    }

    fn finish_quietly(&mut self, now: JobTime, holder: Holder) {
        self.set_status(holder.node, NodeStatus::Finished);
        self.membership.give_up(holder.node);
        self.event(now, Some(holder.node), "finished", format!("{holder} ended"));
        self.end_if_done(now);
    }

    fn end_what_never_registers(&mut self, now: JobTime) {
        let stuck = |node: &Node| {
            node.status == NodeStatus::Pending && !node.exited && now.since(node.launched) >= REGISTER_LIMIT
        };
        if self.config.must_register {
            for (id, node) in self.nodes.iter().filter(|(_, node)| stuck(node)) {
                // Its exit, which the launcher tells, does the rest. Killing it twice does no harm.
                self.effects.push_back(HeadEffect::Kill(Holder::new(id, node.incarnation)));
            }
        }
    }

    fn relaunch_what_is_due(&mut self, now: JobTime) {
        for (_, holder) in self.relaunch_due.take_due(now) {
            self.launch(now, holder);
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
                    self.draining.insert(holder);
                    if let Some(state) = self.nodes.get(node)
                        && state.incarnation == holder.incarnation
                        && state.status == NodeStatus::Running
                    {
                        self.set_status(node, NodeStatus::Draining);
                    }
                }
                RestartEffect::Fence(holder) => self.lose(now, holder),
                RestartEffect::Kill(holder) => self.effects.push_back(HeadEffect::Kill(holder)),
                RestartEffect::Launch(holder) => {
                    self.draining.remove(&saga_old(&self.sagas, node));
                    self.launch(now, holder);
                }
                RestartEffect::Outcome(outcome) => {
                    self.event(now, Some(node), "restart", format!("{outcome:?}"));
                    self.dispatcher.action_ended(now, &outcome);
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

    /// All-reduce: whether no other worker is known to have the model. One that has reported a batch has it; one that
    /// drains is about to leave with it.
    fn alone_has_model(&self, holder: Holder) -> bool {
        self.config.sync == SyncMode::AllReduce
            && self.membership.is_live(holder)
            && !self.nodes.of_role(Role::Worker).any(|(id, node)| {
                id != holder.node && node.status == NodeStatus::Running && node.first_report
            })
    }

    fn detector_effects(&mut self, now: JobTime) {
        while let Some(effect) = self.detector.poll_effect() {
            match effect {
                MonitorEffect::PaceChanged { holder, from, to, slowness_ratio } => {
                    self.pace_changed(now, holder, from, to, slowness_ratio);
                }
                MonitorEffect::Late(holder) => {
                    self.event(now, Some(holder.node), "late", format!("{holder} missed heartbeats"));
                }
                MonitorEffect::Silent(holder) => {
                    let text = format!("{holder} fell silent; it is killed and started again");
                    self.event(now, Some(holder.node), "lost", text);
                    // Its exit, which the launcher tells, does the rest.
                    self.effects.push_back(HeadEffect::Kill(holder));
                }
                _ => {}
            }
        }
    }

    fn pace_changed(&mut self, now: JobTime, holder: Holder, from: Pace, to: Pace, ratio: Option<f64>) {
        let ratio =
            ratio.map(|ratio| format!(", {ratio:.2}x the time per sample of its peers")).unwrap_or_default();
        match (from.is_straggler(), to) {
            (_, Pace::Straggler(kind)) => {
                let text = format!("{holder} is a {kind:?} straggler{ratio}").to_lowercase();
                self.event(now, Some(holder.node), "straggler", text);
            }
            (true, _) => {
                self.event(
                    now,
                    Some(holder.node),
                    "recovered",
                    format!("{holder} is no straggler any more{ratio}"),
                );
            }
            (false, _) => {}
        }
    }

    fn dispatch_effects(&mut self, now: JobTime) {
        while let Some(effect) = self.dispatcher.poll_effect() {
            match effect {
                DispatchEffect::Publish(plan) => {
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
                DispatchEffect::Start(action) => {
                    let node = action.target.node;
                    let saga = RestartSaga::begin(now, &action, RestartConfig::default());
                    self.sagas.insert(node, saga);
                    self.saga_effects(now, node);
                }
                DispatchEffect::Record(record) => self.decided(&record),
                _ => {}
            }
        }
    }

    fn decided(&mut self, record: &DecisionRecord) {
        let target = record.target().map_or_else(|| "all".to_owned(), |holder| holder.node.to_string());
        match record.decided {
            Decided::Plan(_) | Decided::Restart(..) | Decided::Refused => {
                self.action(record.at, record.kind(), target, record.reason());
            }
            // Why nothing was done is worth knowing, but is no action.
            Decided::Nothing => self.event(record.at, None, "none", record.reason()),
            _ => {}
        }
    }

    fn tick(&mut self, now: JobTime, counts: Option<Counts>) -> HeadAnswer {
        if let Some(counts) = counts {
            self.counts = counts;
        }
        self.relaunch_what_is_due(now);
        self.end_what_never_registers(now);
        let samples_per_second = self.detector.samples_per_second();
        let data_left = self.counts.acked + self.counts.quarantined < self.counts.total;
        if self.phase == Phase::Running && self.started && data_left && !self.joined.is_empty() {
            self.tick += 1;
            let view = self.view(now, samples_per_second);
            self.membership_changed = false;
            self.dispatcher.tick(now, &view);
            self.dispatch_effects(now);
        }
        HeadAnswer::Seen(Seen {
            samples_per_second,
            members: self.membership.live_count(),
            stragglers: self.detector.stragglers().count(),
        })
    }

    fn view(&self, now: JobTime, samples_per_second: f64) -> ClusterView {
        let start_delay = self.start_delay.unwrap_or(START_DELAY_PRIOR);
        let of_role = |role| self.nodes.of_role(role).map(|(id, node)| self.view_of(now, id, node)).collect();
        ClusterView {
            tick: self.tick,
            sync: self.config.sync,
            elastic: true,
            membership: self.plan_membership,
            membership_changed: self.membership_changed
                || self.joined.len() != self.membership.live_count()
                || self.nodes.iter().any(|(_, node)| node.status == NodeStatus::Draining),
            plan: self.dispatcher.in_force().map_or(PlanVersion(0), |plan| plan.version),
            plan_pending: self.dispatcher.pending().is_some(),
            global_batch_size: self.config.global_batch_size,
            workers: of_role(Role::Worker),
            servers: of_role(Role::Server),
            progress: Progress {
                committed: self.counts.acked,
                expected: self.counts.total,
                samples_per_second,
            },
            scheduler: SchedulerView { start_delay, busy: start_delay > BUSY_ABOVE },
        }
    }

    fn view_of(&self, now: JobTime, id: NodeId, node: &Node) -> NodeView {
        let observed = self.detector.observe(now, id);
        let in_force = self.dispatcher.in_force().or_else(|| self.dispatcher.newest());
        let (batch_size_min, batch_size_max) = self.bounds_of(node);
        let device = node.registered.as_ref().map(|registered| registered.info.device.clone());
        NodeView {
            id,
            incarnation: node.incarnation,
            device: device.unwrap_or_default(),
            status: node.status,
            batch_size: in_force.and_then(|plan| plan.batch_sizes.get(&id).copied()).unwrap_or(0),
            batch_size_min,
            batch_size_max,
            pace: observed.map_or(Pace::Unknown, |o| o.pace),
            sample_time_short: observed.and_then(|o| o.sample_time_short),
            sample_time_long: observed.and_then(|o| o.sample_time_long),
            slowness_ratio: observed.and_then(|o| o.slowness_ratio),
            slow_fraction_long: observed.map_or(0.0, |o| o.slow_fraction_long),
            last_report_age: observed.and_then(|o| o.last_report_age),
            restarts: node.incarnation.0,
            chief: id == NodeId::worker(0),
        }
    }

    fn end_if_done(&mut self, now: JobTime) {
        let all_done = self.finished == self.config.workers as usize;
        let evaluating = self.evaluator.is_some() && !self.evaluated;
        if self.phase == Phase::Running && all_done && !evaluating {
            self.phase = Phase::Over;
            self.complete(now);
            self.effects.push_back(HeadEffect::End(Ok(())));
        }
    }

    fn fail(&mut self, why: String) {
        if self.phase == Phase::Running {
            self.phase = Phase::Over;
            self.effects.push_back(HeadEffect::End(Err(why)));
        }
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
            HeadEvent::Ready { holder, step, readiness } => self.ready(holder, step, readiness),
            HeadEvent::Leave { holder, end_of_data, can_evaluate } => {
                self.leave(now, holder, end_of_data, can_evaluate)
            }
            HeadEvent::Evaluated { holder, samples, loss, auc } => {
                if self.evaluator == Some(holder) {
                    self.note(now, Note::Evaluated { samples, loss, auc });
                    self.evaluated = true;
                    self.end_if_done(now);
                }
                HeadAnswer::Noted
            }
            HeadEvent::Started(holder) => {
                self.saga_event(now, holder.node, RestartEvent::Started(holder));
                HeadAnswer::Noted
            }
            HeadEvent::LaunchFailed(holder, why) => {
                self.saga_event(now, holder.node, RestartEvent::LaunchFailed(holder));
                self.fail(why);
                HeadAnswer::Noted
            }
            HeadEvent::Exited(holder, exit, tail) => {
                self.exited(now, holder, exit, &tail);
                HeadAnswer::Noted
            }
            HeadEvent::Tick(counts) => self.tick(now, counts),
            HeadEvent::Stop(why) => {
                self.fail(why);
                HeadAnswer::Noted
            }
        };
        self.detector_effects(now);
        answer
    }

    fn poll_effect(&mut self) -> Option<HeadEffect> {
        self.effects.pop_front()
    }

    fn deadline(&self) -> Option<JobTime> {
        let due = [self.saga_due.next(), self.relaunch_due.next(), self.detector.deadline()];
        due.into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: JobTime) {
        if self.deadline().is_some_and(|due| now.since(due) > self.config.heartbeat) {
            // The master itself was away, stopped at the terminal or starved: nobody's silence proves anything.
            for (id, node) in self.nodes.iter() {
                self.detector.heartbeat(now, Holder::new(id, node.incarnation));
            }
        }
        let due = self.saga_due.take_due(now);
        for (node, ()) in &due {
            let needed = self.sagas.get(node).map(RestartSaga::old).filter(|old| self.alone_has_model(*old));
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
        if self.detector.deadline().is_some_and(|at| at <= now) {
            self.detector.on_deadline(now);
        }
        self.detector_effects(now);
    }
}

#[cfg(feature = "serde")]
mod settings;

#[cfg(feature = "serde")]
pub use settings::HeadSettings;

#[cfg(test)]
mod tests;
