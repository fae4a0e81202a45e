//! [`HeadCore`]: what all sync modes share of the head, and what the head half of a mode works with.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use antdt_controller::action::ActionValues;
use antdt_controller::{Dispatcher, DispatcherConfig, Membership};
use antdt_core::{
    Ack, Capabilities, Contribution, Counts, Holder, Incarnation, InvalidValue, JobTime, Joined,
    MembershipVersion, NodeAction, NodeId, NodeInfo, NodeMap, NodeStatus, PaceEstimate, Plan, PlanVersion,
    PushMark, Role, RollbackId, ServerWeights, StepCommit,
};
use antdt_monitor::StragglerDetector;

use super::checkpoints::Rested;
use super::diagnosis::{Done, DoneLog};
use super::memory::MemoryBounds;
use super::participants::Participants;
use super::rollback::Rollbacks;
use super::{EventKind, HeadConfig, HeadEffect, Note};
use crate::mode::SyncMode;

/// How long a process of ours may take from its launch to its registration: it reads its data in between, and there
/// may be a lot. One that is stuck must not be waited for for ever.
pub(super) const REGISTER_LIMIT: Duration = Duration::from_secs(1800);

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) incarnation: Incarnation,
    pub(super) status: NodeStatus,
    /// What it said of itself; boxed, so that what every heartbeat needs is close together.
    pub(super) registered: Option<Box<Registered>>,
    /// Host of this life, where the launcher has named it after the start.
    pub(super) placed: Option<Arc<str>>,
    pub(super) launched: JobTime,
    pub(super) first_report: bool,
    pub(super) plan_applied: PlanVersion,
    /// Speed of the life before, until this one has shown its own.
    pub(super) estimate_before: Option<PaceEstimate>,
    pub(super) exited: bool,
    /// The newest rollback that a worker was let in after.
    pub(super) rollback: RollbackId,
    /// The job goes on without it, until it is launched again; of a server, until the job has so many again.
    pub(super) retired: bool,
}

impl Node {
    /// A node that is about to be launched for the first time.
    pub(super) const fn new() -> Self {
        Self {
            incarnation: Incarnation(0),
            status: NodeStatus::Pending,
            registered: None,
            placed: None,
            launched: JobTime::ZERO,
            first_report: false,
            plan_applied: PlanVersion(0),
            estimate_before: None,
            exited: false,
            retired: false,
            rollback: RollbackId(0),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Registered {
    pub(super) info: NodeInfo,
    /// The host's name, shared by all views.
    pub(super) host: Arc<str>,
    pub(super) data_address: String,
    pub(super) process_id: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    Over,
}

/// The part of the head that all sync modes share: nodes and their incarnations, the set of workers, plans,
/// the detector, and the effects to be carried out.
///
/// Every method of a mode's [`HeadHalf`](crate::mode::HeadHalf) gets it, to read the state of the job and to
/// let workers in and out.
#[derive(Debug)]
pub struct HeadCore {
    pub(super) config: HeadConfig,
    pub(super) nodes: NodeMap<Node>,
    /// Grows with everything of a node that a [`HeadRecord`](super::HeadRecord) has, so that nothing is compared in vain.
    pub(super) changes: u64,
    /// Workers among them, retired ones too.
    pub(super) workers: usize,
    /// Workers that are [`NodeStatus::Finished`]: they saw the end of the data, or are retired.
    pub(super) finished: usize,
    /// Addresses of the servers by index; empty until all are known.
    pub(super) servers: Arc<[String]>,
    /// How much of the parameters each server holds.
    pub(super) weights: ServerWeights,
    pub(super) membership: Membership,
    pub(super) detector: StragglerDetector,
    pub(super) dispatcher: Dispatcher,
    /// Actions of the policy that are to be begun.
    pub(super) actions: VecDeque<NodeAction>,
    pub(super) draining: BTreeSet<Holder>,
    /// Workers that joined and are neither lost nor gone.
    pub(super) joined: Participants,
    pub(super) started: bool,
    pub(super) lost: Vec<Holder>,
    pub(super) published: Option<Plan>,
    /// Version of the newest plan that was ever published.
    pub(super) newest_plan: PlanVersion,
    pub(super) plan_membership: MembershipVersion,
    pub(super) membership_changed: bool,
    /// Values of actions that the cluster was told last.
    pub(super) ordered: ActionValues,
    /// Workers that a step need not wait for, if the sync mode has said how many.
    backups: Option<u32>,
    pub(super) memory: MemoryBounds,
    pub(super) start_delay: Option<Duration>,
    /// Time that the newest checkpoint took from its copies to its manifest.
    pub(super) checkpoint_time: Option<Duration>,
    pub(super) counts: Counts,
    pub(super) evaluator: Option<Holder>,
    pub(super) evaluated: bool,
    pub(super) tick: u64,
    pub(super) phase: Phase,
    /// The first moment at which everything was known to be committed.
    pub(super) completed: Option<JobTime>,
    pub(super) rollbacks: Rollbacks,
    /// Where each worker pushes at its own pace: the newest push of each life that counts, since the last rollback.
    pushes: BTreeMap<Holder, u64>,
    pub(super) done: DoneLog,
    pub(super) effects: VecDeque<HeadEffect>,
}

impl HeadCore {
    /// A job in which nothing has happened yet.
    pub(super) fn new(config: HeadConfig, plan: PlanVersion) -> Result<Self, InvalidValue> {
        let dispatcher_config = DispatcherConfig {
            dry_run: config.dry_run,
            first_version: plan.next(),
            ..DispatcherConfig::new(config.sync.capabilities(), config.global_batch_size, config.workers)
        };
        let workers = (0..config.workers).map(NodeId::worker);
        let all = workers.clone().chain((0..config.servers).map(NodeId::server));
        let nodes = all.map(|node| (node, Node::new())).collect();
        Ok(Self {
            nodes,
            changes: 0,
            workers: config.workers as usize,
            finished: 0,
            servers: Arc::default(),
            weights: ServerWeights::default(),
            membership: Membership::new(workers),
            detector: StragglerDetector::new(config.monitor.clone())?,
            dispatcher: Dispatcher::new(dispatcher_config, config.policy.clone()),
            actions: VecDeque::new(),
            draining: BTreeSet::new(),
            joined: Participants::default(),
            started: false,
            lost: Vec::new(),
            published: None,
            newest_plan: plan,
            plan_membership: MembershipVersion(0),
            membership_changed: false,
            ordered: ActionValues::new(),
            backups: None,
            memory: MemoryBounds::default(),
            start_delay: None,
            checkpoint_time: None,
            counts: Counts::default(),
            evaluator: None,
            evaluated: false,
            tick: 0,
            phase: Phase::Running,
            completed: None,
            rollbacks: Rollbacks::new(),
            pushes: BTreeMap::new(),
            done: DoneLog::default(),
            effects: VecDeque::new(),
            config,
        })
    }

    /// Returns the job's sync mode.
    pub const fn sync(&self) -> &SyncMode {
        &self.config.sync
    }

    /// Returns the capabilities of the job's sync mode.
    pub fn capabilities(&self) -> Capabilities {
        self.config.sync.capabilities()
    }

    /// Returns the plan of this version; `None` unless it is in force or workers may still switch to it.
    pub fn plan(&self, version: PlanVersion) -> Option<&Plan> {
        self.dispatcher.plan(version)
    }

    /// Sets the number of workers that a step need not wait for, from the open step on. Until then it is that of the plan in
    /// force.
    pub const fn set_backups(&mut self, backups: u32) {
        self.backups = Some(backups);
    }

    /// What the sync mode asks of others at present.
    pub(super) fn capabilities_now(&self) -> Capabilities {
        let mode = self.capabilities();
        let planned = || self.dispatcher.in_force().and_then(|plan| plan.backups);
        self.backups.or_else(planned).map_or(mode, |backups| mode.with_backups(backups))
    }

    /// Returns the set of live workers, and the group in force where the model lives in the workers.
    pub const fn membership(&mut self) -> &mut Membership {
        &mut self.membership
    }

    /// Returns whether training has begun.
    pub const fn started(&self) -> bool {
        self.started
    }

    /// Returns whether all samples of the job are committed.
    pub const fn is_complete(&self) -> bool {
        self.completed.is_some()
    }

    /// Returns the address of a registered worker's data plane, at which its peers reach it; empty if the
    /// worker is not registered.
    pub fn data_address(&self, holder: Holder) -> String {
        let registered = self.nodes.get(holder.node).and_then(|node| node.registered.as_ref());
        registered.map(|registered| registered.data_address.clone()).unwrap_or_default()
    }

    /// Returns the name of the host that a registered worker runs on; empty if the worker is not registered.
    pub fn host(&self, holder: Holder) -> &str {
        let registered = self.nodes.get(holder.node).and_then(|node| node.registered.as_ref());
        registered.map_or("", |registered| &registered.info.host)
    }

    /// Records that training has begun. Returns whether this is the first time.
    pub const fn start(&mut self) -> bool {
        !std::mem::replace(&mut self.started, true)
    }

    /// Records that the set of workers that take part is changing: the head asks no policy until the next
    /// plan is in force.
    pub const fn membership_changes(&mut self) {
        self.membership_changed = true;
    }

    /// Makes these workers the only ones that take part from now on.
    pub fn take_in_only(&mut self, members: &[Holder]) {
        self.joined = Participants::default();
        self.take_in(members);
    }

    /// Adds these workers to those that take part.
    pub fn take_in(&mut self, members: &[Holder]) {
        for holder in members {
            self.joined.insert(*holder, self.nodes[holder.node].plan_applied);
        }
    }

    /// Returns whether the master has ordered this worker to leave.
    pub fn is_draining(&self, holder: Holder) -> bool {
        self.draining.contains(&holder)
    }

    /// Returns the number of workers that have not seen the end of the data.
    pub fn unfinished(&self) -> usize {
        self.workers - self.finished
    }

    /// Sends a worker that waits to join its answer: it takes part from now on.
    pub fn let_in(&mut self, holder: Holder, joined: Arc<Joined>) {
        let node = &mut self.nodes[holder.node];
        if node.incarnation == holder.incarnation {
            node.rollback = joined.rollback;
        }
        self.effects.push_back(HeadEffect::Joined(holder, joined));
    }

    /// Sends a worker the commit that it waits for.
    pub fn tell_commit(&mut self, holder: Holder, commit: StepCommit) {
        self.effects.push_back(HeadEffect::Committed(holder, Box::new(commit)));
    }

    /// Answers a worker that stands still for a checkpoint.
    pub(super) fn tell_rested(&mut self, told: Rested) {
        let Rested { holder, checkpoint, keep } = told;
        let pushes = if keep { self.push_marks() } else { Arc::default() };
        self.effects.push_back(HeadEffect::Rested { holder, checkpoint, keep, pushes });
    }

    /// Tells a worker that waits for a commit that its step is undone: by a rollback, or because its group broke up.
    pub fn tell_undone(&mut self, holder: Holder) {
        self.effects.push_back(HeadEffect::Undone(holder));
    }

    /// Tells the ledger to count these samples of a worker as trained.
    pub fn settle(&mut self, contribution: Contribution) {
        self.effects.push_back(HeadEffect::Settle(contribution));
    }

    /// Counts a push of a worker that pushes at its own pace, which all servers have: its samples are trained, and the
    /// servers apply it as soon as they hear of that. Idempotent. The worker tells them itself; if it dies before, the head
    /// does.
    pub fn count_push(&mut self, holder: Holder, step: u64, acks: Vec<Ack>) {
        if self.pushes.get(&holder).is_some_and(|newest| step <= *newest) {
            return;
        }
        self.pushes.insert(holder, step);
        self.settle(Contribution { holder, acks: acks.into() });
    }

    /// The pushes that count and that servers may not have applied.
    pub(super) fn push_marks(&self) -> Arc<[PushMark]> {
        self.pushes.iter().map(|(holder, step)| PushMark { holder: *holder, step: Some(*step) }).collect()
    }

    /// Lives that are lost, with their newest pushes that count: all of them every time, because a reply may be lost, and they
    /// are few.
    pub(super) fn lost_marks(&self) -> Vec<PushMark> {
        let mark = |holder: &Holder| PushMark { holder: *holder, step: self.pushes.get(holder).copied() };
        self.lost.iter().map(mark).collect()
    }

    /// Gives the leases of this incarnation back to the ledger.
    pub fn release_leases(&mut self, holder: Holder) {
        self.effects.push_back(HeadEffect::LedgerLost(holder));
    }

    pub(super) fn note(&mut self, at: JobTime, note: Note) {
        self.effects.push_back(HeadEffect::Note { at, note });
    }

    pub(super) fn action(&mut self, at: JobTime, kind: &'static str, target: String, reason: String) {
        let (to, why) = (target.clone(), reason.clone());
        self.done.push(Done { at, kind: kind.to_owned(), target: to, reason: why });
        self.note(at, Note::Action { kind, target, reason });
    }

    /// Records an event of a node, or of the job if `node` is `None`, for the report and the log. `text` is
    /// for the user.
    pub fn event(&mut self, at: JobTime, node: Option<NodeId>, kind: EventKind, text: String) {
        self.note(at, Note::Event { node, kind, text });
    }

    /// Every sample is committed, up to an evaluation after which the job may go on (`for_now`) or for good.
    pub(super) fn complete(&mut self, now: JobTime, for_now: bool) {
        if self.completed.is_none() {
            self.completed = Some(now);
            if !for_now {
                self.note(now, Note::Completed);
            }
        }
    }

    pub(super) fn launch(&mut self, now: JobTime, holder: Holder) {
        let Some(node) = self.nodes.get_mut(holder.node) else { return };
        node.incarnation = holder.incarnation;
        node.placed = None;
        node.launched = now;
        node.first_report = false;
        node.exited = false;
        node.retired = false;
        node.plan_applied = PlanVersion(0);
        node.rollback = RollbackId(0);
        self.set_status(holder.node, NodeStatus::Pending);
        if holder.node.role == Role::Worker {
            self.membership.launched(holder);
        }
        self.note(now, Note::Launched(holder));
        self.effects.push_back(HeadEffect::Launch(holder));
    }

    pub(super) fn set_status(&mut self, id: NodeId, status: NodeStatus) {
        self.changes += 1;
        let before = std::mem::replace(&mut self.nodes[id].status, status);
        match id.role {
            Role::Worker => {
                self.finished -= usize::from(before == NodeStatus::Finished);
                self.finished += usize::from(status == NodeStatus::Finished);
            }
            Role::Server => self.find_servers(),
        }
    }

    /// Returns whether all parameter servers of the job have registered.
    pub fn knows_servers(&self) -> bool {
        self.config.servers == 0 || !self.servers.is_empty()
    }

    /// Begins a rollback to the newest checkpoint because the model is lost, for the reason `why`. Ends the
    /// job if it cannot roll back.
    pub fn roll_back(&mut self, why: String) {
        if self.config.can_roll_back {
            self.rollbacks.want(why);
        } else {
            self.fail(why);
        }
    }

    /// Returns whether the job has been rolled back before, or is being rolled back now.
    pub fn was_rolled_back(&self) -> bool {
        self.rollbacks.newest() > RollbackId(0)
    }

    /// Returns whether a rollback is in progress, during which no worker may join.
    pub const fn is_rolling_back(&self) -> bool {
        self.rollbacks.is_busy()
    }

    /// Whether a worker was let in before the newest rollback, and not since: what it has trained is undone.
    pub(super) fn is_undone(&self, holder: Holder) -> bool {
        self.nodes.get(holder.node).is_some_and(|node| node.rollback < self.rollbacks.newest())
            && self.nodes[holder.node].status != NodeStatus::Pending
    }

    /// Nothing is trained, as at the start of the job. Returns lives that are over, each with the one that follows: servers, whose
    /// parameters are too new, and workers that have seen the end of the data.
    pub(super) fn set_back(&mut self, now: JobTime) -> Vec<(Holder, Holder)> {
        self.completed = None;
        (self.evaluator, self.evaluated) = (None, false);
        self.started = false;
        self.pushes.clear();
        self.membership_changed = true;
        self.joined = Participants::default();
        let is_over = |(id, node): &(NodeId, &Node)| {
            !node.retired && (id.role == Role::Server || node.status == NodeStatus::Finished)
        };
        let over: Vec<Holder> =
            self.nodes.iter().filter(is_over).map(|(id, node)| Holder::new(id, node.incarnation)).collect();
        let succeeded = over.into_iter().map(|old| (old, self.succeed(now, old))).collect();
        self.find_servers();
        succeeded
    }

    /// A life is over, whatever it still says: returns the one that follows, which is not launched yet.
    pub(super) fn succeed(&mut self, now: JobTime, old: Holder) -> Holder {
        let next = Holder::new(old.node, old.incarnation.next());
        self.detector.node_left(now, old);
        self.set_status(old.node, NodeStatus::Lost);
        let node = &mut self.nodes[old.node];
        (node.incarnation, node.exited) = (next.incarnation, true);
        (node.registered, node.placed) = (None, None);
        next
    }

    /// Returns the workers that must join before training begins: those that have not finished. After a
    /// rollback only the live ones count, because the others are being restarted.
    pub fn awaited_workers(&self) -> impl Iterator<Item = Holder> {
        let again = self.was_rolled_back();
        let is_awaited = move |status| match status {
            NodeStatus::Running | NodeStatus::Draining => true,
            NodeStatus::Finished => false,
            NodeStatus::Pending | NodeStatus::Lost => !again,
        };
        let workers = self.nodes.of_role(Role::Worker);
        workers
            .filter(move |(_, node)| is_awaited(node.status))
            .map(|(id, node)| Holder::new(id, node.incarnation))
    }

    /// Learns the addresses of the servers, once all are known.
    pub(super) fn find_servers(&mut self) {
        let present = self.nodes.of_role(Role::Server).filter(|(_, node)| !node.retired);
        let servers = present.map(|(_, node)| {
            let running = node.status == NodeStatus::Running;
            node.registered.as_ref().filter(|_| running).map(|registered| registered.data_address.clone())
        });
        self.servers = servers.collect::<Option<Vec<String>>>().unwrap_or_default().into();
    }

    /// Returns whether this incarnation of a node may still change anything: it is registered and was not
    /// declared lost.
    pub fn is_current(&self, holder: Holder) -> bool {
        self.nodes.get(holder.node).is_some_and(|node| {
            node.incarnation == holder.incarnation
                && !node.retired
                && matches!(node.status, NodeStatus::Running | NodeStatus::Draining | NodeStatus::Finished)
        })
    }

    /// Whether this life may ask for a group or a commit. One that has left at the end of the data asks for nothing: what comes of it
    /// is a late copy. Its process may still evaluate.
    pub(super) fn may_ask(&self, holder: Holder) -> bool {
        self.is_current(holder) && self.nodes[holder.node].status != NodeStatus::Finished
    }

    /// Answers a worker that asks to join that the job is over.
    pub fn send_home(&mut self, holder: Holder) {
        let joined = self.joined_reply(self.membership.version(), Arc::default());
        self.let_in(holder, Arc::new(Joined { finished: true, ..joined }));
    }

    /// Returns the answer to a worker that joins this membership, with the newest plan. The mode adds what it
    /// knows about the model.
    pub fn joined_reply(&self, membership: MembershipVersion, members: Arc<[(Holder, String)]>) -> Joined {
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
            pushes: self.push_marks(),
            finished: false,
            rollback: self.rollbacks.newest(),
            checkpoint: self.rollbacks.checkpoint(),
            servers: self.servers.clone(),
        }
    }

    /// A worker has ended out of memory: no other one of its class is given as much again.
    pub(super) fn ran_out_of_memory(&mut self, now: JobTime, holder: Holder) {
        let node = &self.nodes[holder.node];
        let Some(registered) = &node.registered else { return };
        let plan = self.dispatcher.plan(node.plan_applied).or(self.dispatcher.newest());
        let size = plan.and_then(|plan| plan.batch_sizes.get(&holder.node));
        let (Some(plan), Some(size)) = (plan, size) else { return };
        let samples = size.div_ceil(plan.micro_batches(holder.node));
        let (class, least) = (registered.info.device.clone(), registered.info.batch_size_min);
        let Some(most) = self.memory.exceeded(&class, samples, least) else { return };
        self.changes += 1;
        let text = format!(
            "{holder} ran out of memory with {samples} samples at once; workers of class {class} get at most {most} from now on"
        );
        self.event(now, Some(holder.node), EventKind::Memory, text);
    }

    pub(super) fn end_nodes_that_never_register(&mut self, now: JobTime) {
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

    /// Whether the model would be lost with this worker, as far as is known: it lives in the workers, and no other one
    /// has it. A worker that has reported a batch has it; one that drains is about to leave with it.
    pub(super) fn alone_has_model(&self, holder: Holder) -> bool {
        self.capabilities().workers_have_model()
            && self.membership.is_live(holder)
            && !self.nodes.of_role(Role::Worker).any(|(id, node)| {
                id != holder.node && node.status == NodeStatus::Running && node.first_report
            })
    }

    /// Whether a worker is to evaluate the model and has not told what it found.
    pub(super) const fn is_evaluating(&self) -> bool {
        self.evaluator.is_some() && !self.evaluated
    }

    /// Whether all workers have left at the end of the data, and no evaluation is awaited.
    pub(super) fn is_done(&self) -> bool {
        self.phase == Phase::Running && self.unfinished() == 0 && !self.is_evaluating()
    }

    /// Ends the job: it is done.
    pub(super) fn end(&mut self, now: JobTime) {
        self.phase = Phase::Over;
        self.complete(now, false);
        self.effects.push_back(HeadEffect::End(Ok(())));
    }

    /// Ends the job, which goes on in another mode, unless it is over.
    pub(super) fn go_on(&mut self, mode: SyncMode) {
        if self.phase == Phase::Running {
            self.phase = Phase::Over;
            self.effects.push_back(HeadEffect::GoOn(mode));
        }
    }

    /// Ends the job with this reason, unless it is over.
    pub fn fail(&mut self, why: String) {
        if self.phase == Phase::Running {
            self.phase = Phase::Over;
            self.effects.push_back(HeadEffect::End(Err(why)));
        }
    }
}
