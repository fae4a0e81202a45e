//! [`World`]: a simulated job, made of the state machines of production and of a simulated clock, processes
//! and network.
//!
//! All decisions are made by the code of production: the [`Head`], the [`ShardLedger`], and in each worker a
//! [`WorkerLoop`] and an [`AgentSession`](antdt_agent::AgentSession). Only their environment is simulated:
//! how long a gradient takes, how messages travel, when a process starts and dies, and which members of a
//! group get a result when one of them dies at that moment.
//!
//! The simulation is a function of its [`Setup`], policy and models: same seed, same history.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::{BeatReply, Notice, Reported, SessionState};
use antdt_controller::{Policy, action};
use antdt_core::{
    AckPoint, BatchReport, CheckpointId, Contribution, DetRng, Exit, Generation, Holder, InvalidValue,
    Iteration, JobTime, Joined, Machine, MembershipVersion, Metrics, NodeId, NodeInfo, Phase, PlanVersion,
    Role, RollbackId, ServerWeights, Stall,
};
use antdt_job::head::CheckpointSchedule;
use antdt_job::limits::{CALL_TIMEOUT, MASTER_TIMEOUT, PARK_MAX};
use antdt_job::{
    Call, End, Head, HeadAnswer, HeadConfig, HeadEffect, HeadEvent, Note, Peers, Registration, Reply,
    WorkerLoop,
};
use antdt_monitor::{LivenessConfig, MonitorConfig, classify};
use antdt_shard::{Assignment, DatasetSpec, Epochs, Event as LedgerEvent, Record, Recovery, ShardLedger};
use slab::Slab;

use crate::happening::{Happening, Observer};
use crate::journal::{Journal, SimulatedJob};
use crate::model::{Fault, Host, Models, Site};
use crate::queue::Queue;
use crate::{Setup, Violation};

mod checkpoints;
mod group;
mod life;
mod master;
mod places;
mod reduce;
mod service;

pub use checkpoints::Moment;
use checkpoints::{Checkpoints, Copied};
use group::{Part, SimGroup};
use life::{Life, LifeId, Stage};
use master::Successor;
use places::Places;
use service::Held;

/// From an order to start or end a process until the system has done it, and until its end is noticed.
const PROCESS_DELAY: Duration = Duration::from_millis(2);

/// Size of a message without a payload: headers of TCP, HTTP/2 and gRPC.
const MESSAGE_BYTES: u64 = 200;

/// Bytes of a report in a heartbeat.
const REPORT_BYTES: u64 = 60;

/// Bytes of an entry of a contribution: an ack.
const ACK_BYTES: u64 = 24;

/// Until a process knows that a peer is gone: a connection reset, and the message of the peer that saw it.
const BREAK_DELAY: Duration = Duration::from_millis(1);

/// How much later than the first a second copy of a message arrives, at most.
const COPY_DELAY: Duration = Duration::from_millis(300);

/// Why a simulation ends in which all processes do.
pub(crate) const ALL_CRASHED: &str = "all processes of the job ended at once";

/// Events after which a simulation counts as one that never ends, unless the caller says otherwise.
const EVENTS_MAX: u64 = 10_000_000_000;

/// What is due.
#[derive(Debug)]
enum Due {
    /// A deadline of the head.
    Deadline,
    /// The policy is asked.
    Tick,
    /// A process has read its data and registers.
    Start(LifeId),
    /// A life says that it is alive.
    Beat(LifeId),
    /// A message from a life arrives at the head; for what the training thread asks, the number of its call.
    ToHead(LifeId, u64, Message),
    /// A message from a life arrives at the head once more; nobody waits for the answer.
    Copied(Message),
    /// The answer to a heartbeat arrives.
    Beaten(LifeId, Box<BeatReply>),
    /// A question arrives at the shard service.
    ToLedger(LifeId, u64, Question),
    /// A question arrives once more at the shard service of this generation; nobody waits for the answer.
    AskedAgain(Question, Generation),
    /// A kept question is given up.
    Unkept(LifeId, u64),
    /// The training thread gets a reply to this call.
    Reply(LifeId, u64, Answered),
    /// What the training thread did by itself is over.
    Over(LifeId, u64, Work),
    /// The head's answer to a registration or a farewell arrives.
    Told(LifeId, u64, Box<HeadAnswer>),
    /// What was lost on its way is sent again.
    Again(LifeId, u64, Box<Lost>),
    /// A parked call may have to be repeated.
    Reask(LifeId),
    /// The result of a group's operation arrives.
    Done(MembershipVersion, u64),
    /// Members of a group may have waited too long.
    Late(MembershipVersion),
    /// The launcher reaches the host of a process that shall end, or tries to.
    Kill(LifeId),
    /// The process was ordered to end, or ends by itself.
    Dies(LifeId, i32, i32),
    /// The launcher's word.
    ToLauncher(Box<HeadEvent>),
    /// Something goes wrong.
    Fault(Box<Fault>),
    /// Another master goes on with the job.
    TakeOver,
    /// The ledger goes back to the newest checkpoint, or to the start of the job.
    Restore(RollbackId),
    /// The copy of the model for a checkpoint exists, of the worker that made this call.
    Copy(LifeId, u64, CheckpointId),
    /// The ledger is to be cut for a copy of the model.
    Cut(Copied),
    /// The copies for a checkpoint are written, of which this worker has had one made.
    Written(LifeId, CheckpointId),
}

/// A message to the head that is on its way: its place among all of them.
#[derive(Debug, Clone, Copy)]
struct Message(usize);

/// A question to the shard service that is on its way: its place among all of them.
#[derive(Debug, Clone, Copy)]
struct Question(usize);

/// A reply to a training thread that is on its way: its place among all of them.
#[derive(Debug, Clone, Copy)]
struct Answered(usize);

/// What the training thread does by itself: all that comes of it is that it is done.
#[derive(Debug, Clone, Copy)]
enum Work {
    Begin,
    Sleep,
    Load,
    Pull,
    Compute,
    /// To begin to compute beside other calls.
    Begun,
    /// To compute beside other calls.
    Beside,
    Apply,
    Advance,
    Revert,
    Push,
    /// To tell the servers what counts.
    Count,
    /// To find out that the group broke.
    Break,
}

/// A message that did not arrive.
#[derive(Debug)]
enum Lost {
    Head(HeadEvent),
    Ledger(LedgerEvent, Duration),
}

/// An observer that ignores everything that happens.
#[derive(Debug, Clone, Copy, Default)]
pub struct Blind;

impl Observer for Blind {
    fn watches(&self) -> bool {
        false
    }
    fn saw(&mut self, _at: JobTime, _what: &Happening<'_>) -> Result<(), Violation> {
        Ok(())
    }
}

/// A simulated job on a virtual clock, with an observer of everything that happens.
#[derive(Debug)]
pub struct World<O = Blind> {
    setup: Setup,
    models: Models,
    observer: O,
    now: JobTime,
    queue: Queue<Due>,
    events: u64,
    events_max: u64,
    /// Messages on their way to the head.
    messages: Slab<HeadEvent>,
    /// Memory of reports that the head has taken in: no more than there were heartbeats on their way at a time. With
    /// thousands of lives it is too much for the allocator to keep.
    spare_reports: VecDeque<Vec<(BatchReport, f64)>>,
    /// Questions on their way to the shard service, which may keep each for so long.
    questions: Slab<(LedgerEvent, Duration)>,
    /// Replies on their way to training threads.
    replies: Slab<Reply>,
    head: Head,
    ledger: ShardLedger,
    /// Records of the ledger since its last snapshot; `None` if nothing will ask for them.
    log: Option<Vec<Record>>,
    recovery: Option<Recovery>,
    /// Questions that the shard service keeps.
    kept: Vec<Held>,
    /// Where workers run.
    places: Places,
    /// How much of the parameters each server holds.
    weights: ServerWeights,
    lives: Vec<Life>,
    /// The newest life of each node.
    current: BTreeMap<NodeId, LifeId>,
    groups: BTreeMap<MembershipVersion, SimGroup>,
    deadline: JobTime,
    master_paused_until: JobTime,
    /// What another master goes on from; `None` if none may.
    successor: Option<Box<Successor>>,
    checkpoints: Checkpoints,
    /// All processes end after so many further events.
    doomed: Option<u64>,
    network_rng: DetRng,
    scheduler_rng: DetRng,
    fault_rng: DetRng,
    chance: DetRng,
    journal: Journal,
    /// Whether the last fault there is was drawn.
    faults_over: bool,
    ended: Option<Result<(), String>>,
    violation: Option<Violation>,
}

impl World {
    /// Returns a simulated job before its first event, without an observer.
    ///
    /// # Errors
    /// If a setting is invalid; the error names it.
    pub fn new(setup: Setup, policy: Box<dyn Policy>, models: Models) -> Result<Self, InvalidValue> {
        World::watched(setup, policy, models, Blind)
    }
}

impl<O: Observer> World<O> {
    /// Returns a simulated job before its first event, with an observer.
    ///
    /// # Errors
    /// If a setting is invalid; the error names it.
    pub fn watched(
        setup: Setup,
        policy: Box<dyn Policy>,
        models: Models,
        observer: O,
    ) -> Result<Self, InvalidValue> {
        Self::begun(setup, policy, models, observer, None)
    }

    /// Returns a job that continues from a checkpoint of another simulated job, before its first event, with an
    /// observer. The sync mode, the policy, the batch size and the numbers of workers and servers may be others, and
    /// there may be more epochs. All else of the earlier job is gone: nodes begin with their first incarnation,
    /// the budgets of restarts are whole, and the policy has decided nothing.
    ///
    /// # Errors
    /// If a setting is invalid, or decides the order of the samples and differs from before: the number of samples,
    /// the seed, the length of the shards ([`Moment::settings`] takes it over), and the number of workers if each
    /// has a fixed part of the data. The error names it.
    pub fn resumed(
        setup: Setup,
        policy: Box<dyn Policy>,
        models: Models,
        observer: O,
        from: &Moment,
    ) -> Result<Self, InvalidValue> {
        Self::begun(setup, policy, models, observer, Some(from))
    }

    fn begun(
        setup: Setup,
        policy: Box<dyn Policy>,
        mut models: Models,
        observer: O,
        from: Option<&Moment>,
    ) -> Result<Self, InvalidValue> {
        setup.validate()?;
        let own_policy = setup.goes_back.then(|| policy.clone_box());
        let mut config = head_config(&setup, policy);
        if let Some((schedule, from)) = config.checkpoints.as_mut().zip(from) {
            schedule.first = from.next_checkpoint();
        }
        let mut head = Head::new(config)?;
        if setup.goes_back {
            head = head.journaled();
        }
        let dataset = dataset(&setup);
        let from = from.map(|from| from.continued(&dataset)).transpose()?;
        let damaged =
            |e: antdt_shard::RecoverError| InvalidValue::new("samples", setup.samples, e.to_string());
        let recovery = Recovery::new(dataset).map_err(damaged)?;
        let mut ledger = recovery.clone().finish(Generation(1)).map_err(damaged)?;
        if let Some(from) = &from {
            ledger.restore(&from.ledger, Generation(2)).map_err(damaged)?;
        }
        let mut fault_rng = setup.seed.derive("faults").rng();
        let mut queue = Queue::new();
        let fault = models.faults.next(&mut fault_rng);
        // Who restarts the service needs its log.
        let mut log = (observer.watches() || fault.is_some()).then(Vec::new);
        let mut begun = Vec::new();
        while let Some(effect) = ledger.poll_effect() {
            if let (antdt_shard::Effect::Record(record), Some(log)) = (effect, &mut log) {
                log.push(record.clone());
                begun.push(record);
            }
        }
        let successor = own_policy.map(|policy| Box::new(Successor::new(policy, &ledger, &setup)));
        let calm = fault.is_none();
        let lives = setup.workers as usize + setup.servers as usize;
        if let Some((at, fault)) = fault {
            queue.push(at, Due::Fault(Box::new(fault)));
        }
        let rng = |label: &str| setup.seed.derive(label).rng();
        let mut world = Self {
            network_rng: rng("network"),
            scheduler_rng: rng("scheduler"),
            chance: rng("chance"),
            fault_rng,
            recovery: log.is_some().then_some(recovery),
            journal: Journal::new(&setup),
            places: Places::new(setup.workers, setup.workers_per_host),
            weights: ServerWeights::default(),
            setup,
            models,
            observer,
            now: JobTime::ZERO,
            queue,
            events: 0,
            events_max: EVENTS_MAX,
            messages: Slab::new(),
            spare_reports: VecDeque::new(),
            questions: Slab::new(),
            replies: Slab::new(),
            head,
            ledger,
            log,
            kept: Vec::new(),
            lives: Vec::with_capacity(lives),
            current: BTreeMap::new(),
            groups: BTreeMap::new(),
            deadline: JobTime::NEVER,
            master_paused_until: JobTime::ZERO,
            successor,
            checkpoints: from.map(Checkpoints::after).unwrap_or_default(),
            doomed: None,
            faults_over: false,
            ended: None,
            violation: None,
        };
        if world.observer.watches() {
            begun.iter().for_each(|record| world.saw(&Happening::Record(record)));
        }
        if calm {
            world.saw(&Happening::Calm);
        }
        Ok(world)
    }

    /// Returns the same job, whose simulation ends after this many events at the latest.
    #[must_use]
    pub const fn at_most(mut self, events: u64) -> Self {
        self.events_max = events;
        self
    }

    /// Runs the job to its end, or to the virtual time `limit`.
    ///
    /// # Errors
    /// If the observer reports a violation.
    pub fn run(mut self, limit: JobTime) -> Result<(SimulatedJob, O), (Violation, O)> {
        self.ask_head(HeadEvent::Begin);
        self.queue.push(JobTime::ZERO + self.setup.control_tick, Due::Tick);
        let mut why = None;
        while self.ended.is_none() && self.violation.is_none() {
            let Some((at, due)) = self.queue.pop() else {
                why = Some("nothing can happen any more, and the job is not over".to_owned());
                break;
            };
            if at > limit {
                why = Some(format!("the job is not over after {:.0} s", limit.as_secs_f64()));
                self.now = limit;
                break;
            }
            if self.events >= self.events_max {
                why = Some(format!("the job is not over after {} events", self.events));
                break;
            }
            self.events += 1;
            self.now = at;
            self.happen(due);
            self.crash_all();
        }
        if let Some(violation) = self.violation {
            return Err((violation, self.observer));
        }
        let result = self.ended.take().unwrap_or_else(|| Err(why.unwrap_or_default()));
        let lives = self.lives.iter().map(|life| life.usage(self.now));
        let outcome = self.journal.finish(
            result,
            self.now,
            self.events,
            self.ledger.counts(),
            self.checkpoints.newest,
            lives,
        );
        Ok((outcome, self.observer))
    }

    fn saw(&mut self, what: &Happening<'_>) {
        if self.violation.is_none()
            && let Err(violation) = self.observer.saw(self.now, what)
        {
            self.violation = Some(violation);
        }
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Deadline => {
                if self.deadline > self.now {
                    // A newer one was set.
                    return;
                }
                self.deadline = JobTime::NEVER;
                if self.master_away(Due::Deadline) {
                    return;
                }
                if self.head.deadline().is_some_and(|at| at <= self.now) {
                    self.head.on_deadline(self.now);
                    if self.observer.watches() {
                        self.saw(&Happening::HeadDeadline);
                    }
                    self.head_effects();
                }
                self.arm_deadline();
            }
            Due::Tick => self.tick(),
            Due::Start(life) => self.start(life),
            Due::Beat(life) => self.beat(life),
            Due::ToHead(life, call, message) => self.at_head(life, call, message),
            Due::Copied(message) => self.copied(message),
            Due::Beaten(life, reply) => self.beaten(life, reply),
            Due::ToLedger(life, call, question) => self.at_ledger(life, call, question),
            Due::AskedAgain(question, generation) => self.asked_again(question, generation),
            Due::Unkept(life, call) => self.unkept(life, call),
            Due::Reply(life, call, reply) => self.reply(life, call, reply),
            Due::Over(life, call, work) => self.over(life, call, work),
            Due::Told(life, call, answer) => self.told(life, call, answer),
            Due::Again(life, call, lost) => self.again(life, call, lost),
            Due::Reask(life) => self.reask(life),
            Due::Done(group, operation) => self.done(group, operation),
            Due::Late(group) => self.late(group),
            Due::Kill(life) => self.kill(life),
            Due::Dies(life, code, signal) => self.dies(life, code, signal),
            Due::ToLauncher(event) => self.news(*event),
            Due::Fault(fault) => self.fault(*fault),
            Due::TakeOver => self.take_over(),
            Due::Restore(rollback) => self.restore(rollback),
            Due::Copy(life, call, checkpoint) => self.model_copied(life, call, checkpoint),
            Due::Cut(copied) => self.cut_ledger(copied),
            Due::Written(life, checkpoint) => self.written(life, checkpoint),
        }
    }

    // The master.

    /// Puts `due` off if the master stands still, or there is none.
    fn master_away(&mut self, due: Due) -> bool {
        let paused = Some(self.master_paused_until).filter(|until| self.now < *until);
        let until = self.next_master().or(paused);
        if let Some(until) = until {
            if matches!(due, Due::Deadline) {
                self.deadline = until;
            }
            self.queue.push(until, due);
        }
        until.is_some()
    }

    fn master_paused(&mut self, event: &HeadEvent) -> bool {
        let away = self.now < self.master_paused_until;
        if away {
            self.queue.push(self.master_paused_until, Due::ToLauncher(Box::new(event.clone())));
        }
        away
    }

    /// Passes an event to the head, of this incarnation or of none.
    fn ask_head(&mut self, event: HeadEvent) -> HeadAnswer {
        let answer = if self.observer.watches() {
            let answer = self.head.handle(self.now, event.clone());
            self.saw(&Happening::Head(&event, &answer));
            answer
        } else {
            self.head.handle(self.now, event)
        };
        self.head_effects();
        self.arm_deadline();
        answer
    }

    fn arm_deadline(&mut self) {
        if let Some(at) = self.head.deadline().map(|at| at.max(self.now))
            && at < self.deadline
        {
            self.deadline = at;
            self.queue.push(at, Due::Deadline);
        }
    }

    fn carry_out(&mut self, effect: HeadEffect) {
        match effect {
            HeadEffect::Launch(holder) => self.launch(holder),
            HeadEffect::Order(values) => {
                if let Err(error) = action::order(&values, &mut self.places) {
                    let (kind, text) = ("action", error.to_string());
                    self.journal.note(self.now, Note::Event { node: None, kind, text });
                }
            }
            HeadEffect::Kill(holder) => {
                if let Some(life) = self.life_of(holder) {
                    self.kill(life);
                }
            }
            HeadEffect::Settle(contribution) => {
                if !contribution.acks.is_empty() {
                    let Contribution { holder, acks } = contribution;
                    self.ask_ledger(LedgerEvent::Settle { holder, acks: acks.into_vec() });
                }
            }
            HeadEffect::LedgerLost(holder) => {
                self.ask_ledger(LedgerEvent::WorkerLost { holder });
            }
            HeadEffect::Joined(holder, joined) => {
                self.unpark(holder, None, || Reply::Joined(Box::new(Arc::unwrap_or_clone(joined))));
            }
            HeadEffect::Committed(holder, commit) => {
                let mode = self.setup.sync.capabilities();
                // Where each commits steps or pushes of its own, those are counted.
                if !mode.steps_in_common() {
                    if commit.contributors.get(&holder).is_some_and(|acks| !acks.is_empty()) {
                        self.journal.pushed();
                    }
                } else if mode.acks == AckPoint::Commit {
                    self.journal.committed(commit.step, commit.samples);
                    self.checkpoints.committed(commit.step, commit.samples);
                }
                self.unpark(holder, Some(commit.asked), || Reply::Committed(commit));
            }
            HeadEffect::Rested { holder, keep: false, .. } => self.unpark(holder, None, || Reply::Rested),
            HeadEffect::Rested { holder, checkpoint, keep: true, .. } => self.keep(holder, checkpoint),
            HeadEffect::Undone(holder) => {
                let parked = self.life_of(holder).and_then(|id| self.lives[id.0 as usize].parked.as_deref());
                if let Some((HeadEvent::Ready { step, .. }, _)) = parked {
                    let step = *step;
                    self.unpark(holder, Some(step), || Reply::Broken);
                }
            }
            HeadEffect::RollBack(rollback) => self.roll_back(rollback),
            HeadEffect::Servers(servers) => self.setup.servers = servers,
            HeadEffect::Weights(weights) => self.weights = weights,
            HeadEffect::Record(record) => {
                if let Some(successor) = self.successor.as_deref_mut() {
                    successor.record = *record;
                }
            }
            HeadEffect::End(result) => {
                if self.observer.watches() {
                    self.saw(&Happening::Ended(&result));
                }
                self.ended = Some(result);
            }
            HeadEffect::Note { at, note: Note::Batches(reports) } => {
                self.journal.batches(at, &reports);
                self.spare_reports.push_back(reports);
            }
            HeadEffect::Note { at, note } => self.journal.note(at, note),
        }
    }

    fn tick(&mut self) {
        if self.master_away(Due::Tick) {
            return;
        }
        let status = self.ledger.status();
        if self.observer.watches() {
            self.saw(&Happening::Ledger(&LedgerEvent::Status, &antdt_shard::Answer::Status(status)));
        }
        if status.failed {
            let why = "too many samples could not be read".to_owned();
            self.ask_head(HeadEvent::Stop(why));
        }
        self.ask_head(HeadEvent::Tick(Some(status.counts)));
        self.queue.push(self.now + self.setup.control_tick, Due::Tick);
    }

    // Processes.

    fn life_of(&self, holder: Holder) -> Option<LifeId> {
        let id = *self.current.get(&holder.node)?;
        let life = &self.lives[id.0 as usize];
        (life.holder == holder && !life.is_dead()).then_some(id)
    }

    fn launch(&mut self, holder: Holder) {
        let id = LifeId(u32::try_from(self.lives.len()).expect("fewer than 2^32 processes"));
        let mut life =
            Life::new(holder, self.setup.seed, self.now, self.setup.collective_timeout, MASTER_TIMEOUT);
        if holder.node.role == Role::Worker
            && let Some(host) = self.places.start(holder.node)
        {
            self.models.compute.moved(holder.node, Host::Workers(host));
        }
        let delay = self.models.scheduler.start(self.now, holder, &mut self.scheduler_rng);
        life.stage = Stage::Starting;
        self.lives.push(life);
        self.current.insert(holder.node, id);
        self.queue.push(self.now + PROCESS_DELAY, Due::ToLauncher(Box::new(HeadEvent::Started(holder))));
        if let Some(delay) = delay {
            self.queue.push(self.now + delay.max(PROCESS_DELAY), Due::Start(id));
        }
        if self.observer.watches() {
            self.saw(&Happening::Born(holder));
        }
    }

    fn start(&mut self, id: LifeId) {
        if self.put_off(id, Due::Start(id)) {
            return;
        }
        let life = &mut self.lives[id.0 as usize];
        life.stage = Stage::Running;
        life.call += 1;
        let (holder, call) = (life.holder, life.call);
        let host = match holder.node.role {
            Role::Worker => self.places.of(holder.node),
            Role::Server => holder.node.index / self.setup.workers_per_host,
        };
        let most = self.models.compute.batch_size_max(holder.node);
        let info = NodeInfo {
            holder,
            host: Places::name(host),
            device: self.models.compute.device(holder.node),
            memory_bytes: None,
            batch_size_min: 1,
            batch_size_max: most.unwrap_or(u32::MAX).min(self.setup.global_batch_size).max(1),
        };
        let registration = Registration { info, data_address: holder.to_string(), process_id: id.0 };
        self.send_head(id, call, HeadEvent::Register(registration));
    }

    /// A process that stands still is killed like any other. The caller that ordered the end of a cut-off process tries again
    /// as often as every caller does.
    fn kill(&mut self, id: LifeId) {
        let life = &self.lives[id.0 as usize];
        if self.now < life.cut_until {
            self.queue.push(self.now + CALL_TIMEOUT, Due::Kill(id));
        } else {
            self.queue.push(self.now + PROCESS_DELAY, Due::Dies(id, -1, 9));
        }
    }

    /// Whether the life is dead, or stands still: then `due` is put off until it goes on.
    fn put_off(&mut self, id: LifeId, due: Due) -> bool {
        let life = &self.lives[id.0 as usize];
        if !life.is_dead() && self.now < life.paused_until {
            self.queue.push(life.paused_until, due);
            return true;
        }
        life.is_dead()
    }

    fn dies(&mut self, id: LifeId, code: i32, signal: i32) {
        if self.lives[id.0 as usize].is_dead() {
            return;
        }
        let life = &mut self.lives[id.0 as usize];
        life.stage = Stage::Dead;
        life.died = self.now;
        life.worker = None;
        life.parked = None;
        let (holder, group) = (life.holder, life.group.take());
        let exit = if signal == 0 { classify(Some(code), None) } else { classify(None, Some(signal)) };
        self.journal.exited(self.now, holder, exit);
        if self.observer.watches() {
            self.saw(&Happening::Died(holder));
        }
        self.kept.retain(|held| held.life != id);
        if let Some((group, _)) = group {
            self.leave_group(group, Some(id));
        }
        self.break_apart(id);
        if holder.node.role == Role::Server {
            for worker in (0..).map(LifeId).take(self.lives.len()) {
                let life = &self.lives[worker.0 as usize];
                if !life.is_dead() && life.transfer == life.call && life.servers.contains(&id) {
                    self.break_transfer(worker);
                }
            }
        }
        // The news of it comes from its host.
        let told = self.lives[id.0 as usize].cut_until.max(self.now) + PROCESS_DELAY;
        let exited = HeadEvent::Exited(holder, exit, Vec::new());
        self.queue.push(told, Due::ToLauncher(Box::new(exited)));
    }

    fn exit(&mut self, id: LifeId, code: i32) {
        self.dies(id, code, 0);
    }

    fn fault(&mut self, fault: Fault) {
        let next = self.models.faults.next(&mut self.fault_rng);
        match next {
            Some((at, next)) => self.queue.push(at.max(self.now), Due::Fault(Box::new(next))),
            None => self.faults_over = true,
        }
        if self.observer.watches() {
            self.saw(&Happening::Fault(fault));
        }
        let alive = |world: &Self, node: NodeId| {
            let id = *world.current.get(&node)?;
            (!world.lives[id.0 as usize].is_dead()).then_some(id)
        };
        match fault {
            Fault::Crash(node) => {
                if let Some(id) = alive(self, node) {
                    self.dies(id, -1, 9);
                }
            }
            Fault::Exit(node, code) => {
                if let Some(id) = alive(self, node) {
                    self.dies(id, code, 0);
                }
            }
            Fault::Preempt(node, grace) => {
                if let Some(id) = alive(self, node) {
                    self.lives[id.0 as usize].session.preempted = true;
                    self.queue.push(self.now + grace, Due::Dies(id, -1, 9));
                }
            }
            Fault::Hang(node, lasting) => {
                if let Some(id) = alive(self, node) {
                    let life = &mut self.lives[id.0 as usize];
                    life.hang = life.hang.max(lasting);
                }
            }
            Fault::Duplicate(node, lasting) => {
                if let Some(id) = alive(self, node) {
                    let life = &mut self.lives[id.0 as usize];
                    life.doubled_until = life.doubled_until.max(self.now + lasting);
                }
            }
            Fault::Pause(node, lasting) => {
                if let Some(id) = alive(self, node) {
                    let life = &mut self.lives[id.0 as usize];
                    life.paused_until = life.paused_until.max(self.now + lasting);
                }
            }
            // Nobody is there who could stand still.
            Fault::PauseMaster(_) if self.next_master().is_some() => {}
            Fault::PauseMaster(lasting) => {
                self.master_paused_until = self.master_paused_until.max(self.now + lasting);
            }
            Fault::Cut(node, lasting) => {
                if let Some(id) = alive(self, node) {
                    let life = &mut self.lives[id.0 as usize];
                    life.cut_until = life.cut_until.max(self.now + lasting);
                    if let Some((group, _)) = life.group {
                        // Its peers hear nothing any more; they find out when they wait for it.
                        self.draw_fates(group);
                    }
                }
            }
            // It is started again with the next master.
            Fault::RestartLedger if self.next_master().is_some() => {}
            Fault::RestartLedger => {
                self.restart_ledger();
                self.let_askers_go();
            }
            Fault::RestartMaster(lasting, None) => self.end_master(lasting),
            Fault::RestartMaster(lasting, Some(effects)) => self.doom_master(effects, lasting),
            Fault::ScaleServers(servers) => self.news(HeadEvent::ScaleServers { servers }),
            Fault::CrashAll(events) => self.doomed = Some(events),
        }
        self.note_calm();
    }

    /// Ends the job after an event if all processes end here.
    fn crash_all(&mut self) {
        match &mut self.doomed {
            Some(0) if self.ended.is_none() => {
                self.ended = Some(Err(ALL_CRASHED.to_owned()));
                if self.observer.watches() {
                    self.saw(&Happening::AllCrashed);
                }
            }
            Some(left) => *left = left.saturating_sub(1),
            None => {}
        }
    }

    /// Says so once no fault happens any more.
    fn note_calm(&mut self) {
        if self.faults_over && !self.master_is_doomed() && self.observer.watches() {
            self.saw(&Happening::Calm);
        }
    }

    // Messages.

    /// When a message of a life arrives at the master or back; `None` if it is lost.
    fn travel(&mut self, id: LifeId, bytes: u64, to_master: bool) -> Option<JobTime> {
        let life = &self.lives[id.0 as usize];
        if self.now < life.cut_until {
            return None;
        }
        let node = Site::Node(life.holder.node);
        let (from, to) = if to_master { (node, Site::Master) } else { (Site::Master, node) };
        let holder = life.holder;
        let arrives = self.models.network.message(self.now, from, to, bytes, &mut self.network_rng);
        if arrives.is_none() && self.observer.watches() {
            self.saw(&Happening::Lost(holder));
        }
        arrives
    }

    /// When a second copy of a message of a life arrives that arrives at `at`; `None` if there is none.
    fn second_arrival(&mut self, id: LifeId, at: JobTime) -> Option<JobTime> {
        let life = &mut self.lives[id.0 as usize];
        let overtakes = at < life.newest_arrival;
        life.newest_arrival = life.newest_arrival.max(at);
        let (holder, doubled) = (life.holder, self.now < life.doubled_until);
        if overtakes && self.observer.watches() {
            self.saw(&Happening::Overtaken(holder));
        }
        doubled.then(|| at + COPY_DELAY.mul_f64(self.network_rng.unit()))
    }

    fn send_head(&mut self, id: LifeId, call: u64, event: HeadEvent) {
        let bytes = match &event {
            HeadEvent::Heartbeat { reports, .. } => MESSAGE_BYTES + REPORT_BYTES * reports.len() as u64,
            _ => MESSAGE_BYTES,
        };
        match self.travel(id, bytes, true) {
            Some(at) => {
                if let Some(later) = self.second_arrival(id, at) {
                    let copy = Message(self.messages.insert(event.clone()));
                    self.queue.push(later, Due::Copied(copy));
                }
                let message = Message(self.messages.insert(event));
                self.queue.push(at, Due::ToHead(id, call, message));
            }
            None => self.lost(id, call, Lost::Head(event)),
        }
    }

    fn send_ledger(&mut self, id: LifeId, call: u64, event: LedgerEvent, wait: Duration) {
        match self.travel(id, MESSAGE_BYTES, true) {
            Some(at) => {
                if let Some(later) = self.second_arrival(id, at) {
                    let copy = Question(self.questions.insert((event.clone(), Duration::ZERO)));
                    self.queue.push(later, Due::AskedAgain(copy, self.ledger.generation()));
                }
                let question = Question(self.questions.insert((event, wait)));
                self.queue.push(at, Due::ToLedger(id, call, question));
            }
            None => self.lost(id, call, Lost::Ledger(event, wait)),
        }
    }

    /// The caller notices after a while, and asks again.
    fn lost(&mut self, id: LifeId, call: u64, lost: Lost) {
        if matches!(
            lost,
            Lost::Head(HeadEvent::Preempted(_) | HeadEvent::Stalled { .. } | HeadEvent::Transferred { .. })
        ) {
            // It is said again with the next heartbeat; what went to peers is missing in one.
            return;
        }
        if matches!(lost, Lost::Head(HeadEvent::Heartbeat { .. })) {
            let Lost::Head(HeadEvent::Heartbeat { reports, plan_ready, plan_applied, .. }) = lost else {
                return;
            };
            self.beat_failed(id, reports, plan_ready, plan_applied);
            return;
        }
        let life = &mut self.lives[id.0 as usize];
        life.attempts = life.attempts.saturating_add(1);
        if CALL_TIMEOUT * u32::from(life.attempts) > MASTER_TIMEOUT {
            // It gives the master up.
            let code = Exit::CODE_RETRY;
            self.queue.push(self.now + CALL_TIMEOUT, Due::Dies(id, code, 0));
            return;
        }
        self.queue.push(self.now + CALL_TIMEOUT, Due::Again(id, call, Box::new(lost)));
    }

    fn again(&mut self, id: LifeId, call: u64, lost: Box<Lost>) {
        if self.lives[id.0 as usize].is_dead() || self.lives[id.0 as usize].call != call {
            return;
        }
        if self.now < self.lives[id.0 as usize].paused_until {
            self.queue.push(self.lives[id.0 as usize].paused_until, Due::Again(id, call, lost));
            return;
        }
        match *lost {
            Lost::Head(event) => self.send_head(id, call, event),
            Lost::Ledger(event, wait) => self.send_ledger(id, call, event, wait),
        }
    }

    /// A second copy of a message reached the head: whoever copied it drops the answer.
    fn copied(&mut self, message: Message) {
        if self.now < self.master_paused_until {
            self.queue.push(self.master_paused_until, Due::Copied(message));
            return;
        }
        let event = self.messages.remove(message.0);
        if self.next_master().is_none() {
            self.ask_head(event);
        }
    }

    /// A life's message reached the head.
    fn at_head(&mut self, id: LifeId, call: u64, message: Message) {
        if self.now < self.master_paused_until {
            self.queue.push(self.master_paused_until, Due::ToHead(id, call, message));
            return;
        }
        let event = self.messages.remove(message.0);
        if self.next_master().is_some() {
            if !self.lives[id.0 as usize].is_dead() {
                self.lost(id, call, Lost::Head(event));
            }
            return;
        }
        let is_beat = matches!(event, HeadEvent::Heartbeat { .. });
        let is_parked =
            matches!(event, HeadEvent::Join { .. } | HeadEvent::Ready { .. } | HeadEvent::Rest { .. });
        // The way back is decided before, so that what is lost can be sent again.
        let back =
            if self.lives[id.0 as usize].is_dead() { None } else { self.travel(id, MESSAGE_BYTES, false) };
        let dead = self.lives[id.0 as usize].is_dead();
        let again = ((back.is_none() || self.master_is_doomed()) && !dead).then(|| event.clone());
        let answer = self.ask_head(event);
        if dead {
            return;
        }
        // It ended before it could answer.
        let back = back.filter(|_| self.next_master().is_none());
        match (answer, back) {
            (HeadAnswer::Beat(reply), Some(at)) => self.queue.push(at, Due::Beaten(id, reply)),
            (HeadAnswer::Fenced, Some(at)) if is_beat => {
                let reply = BeatReply { fenced: true, ..BeatReply::default() };
                self.queue.push(at, Due::Beaten(id, Box::new(reply)));
            }
            // An effect brings the answer, or has brought it.
            (HeadAnswer::Parked, _) if is_parked => {}
            (answer, Some(at)) => self.queue.push(at, Due::Told(id, call, Box::new(answer))),
            (_, None) => {
                if let Some(event) = again {
                    self.lost(id, call, Lost::Head(event));
                }
            }
        }
    }

    /// The head's answer to the training thread, or to the process that starts or leaves.
    fn told(&mut self, id: LifeId, call: u64, answer: Box<HeadAnswer>) {
        if self.lives[id.0 as usize].is_dead() || self.lives[id.0 as usize].call != call {
            return;
        }
        if self.now < self.lives[id.0 as usize].paused_until {
            self.queue.push(self.lives[id.0 as usize].paused_until, Due::Told(id, call, answer));
            return;
        }
        self.lives[id.0 as usize].attempts = 0;
        match *answer {
            HeadAnswer::Registered { plan, .. } => self.registered(id, plan),
            HeadAnswer::Left { evaluate, checkpoint, .. } => {
                let life = &mut self.lives[id.0 as usize];
                life.call += 1;
                (life.last, life.evaluates) = (checkpoint, evaluate);
                match checkpoint {
                    Some(checkpoint) => self.copy_model(id, self.now, checkpoint),
                    None => self.leave(id),
                }
            }
            // To an evaluation.
            HeadAnswer::Noted => self.exit(id, 0),
            HeadAnswer::Fenced => self.exit(id, Exit::CODE_RETRY),
            HeadAnswer::Refused(_) => self.exit(id, Exit::CODE_NEVER),
            HeadAnswer::Undone => {
                self.lives[id.0 as usize].parked = None;
                self.advance(id, &Reply::Broken);
            }
            HeadAnswer::Beat(_)
            | HeadAnswer::Parked
            | HeadAnswer::Seen(_)
            | HeadAnswer::Diagnosed(_)
            | HeadAnswer::Checkpointed { .. }
            | HeadAnswer::Scaled { .. } => {}
        }
    }

    /// What is left to do for a worker that has left: it evaluates the model, or exits.
    fn leave(&mut self, id: LifeId) {
        let life = &self.lives[id.0 as usize];
        if life.evaluates {
            let (call, holder) = (life.call, life.holder);
            let found = HeadEvent::Evaluated { holder, samples: 0, metrics: Metrics::default() };
            self.send_head(id, call, found);
        } else {
            self.exit(id, 0);
        }
    }

    fn registered(&mut self, id: LifeId, plan: Option<antdt_core::Plan>) {
        let life = &mut self.lives[id.0 as usize];
        life.session.beat_answered(self.now, BeatReply { plan, ..BeatReply::default() });
        life.call += 1;
        self.queue.push(self.now, Due::Beat(id));
        if life.holder.node.role == Role::Worker {
            let (call, holder) = (life.call, life.holder);
            let ready = self.now + self.models.scheduler.ready(self.now, holder, &mut self.scheduler_rng);
            // What comes before is in no report.
            self.lives[id.0 as usize].worker = Some(WorkerLoop::new(holder, &self.setup.sync, ready));
            self.queue.push(ready, Due::Over(id, call, Work::Begin));
        }
    }

    // Heartbeats.

    fn beat(&mut self, id: LifeId) {
        if self.put_off(id, Due::Beat(id)) {
            return;
        }
        let every = self.setup.heartbeat;
        let life = &mut self.lives[id.0 as usize];
        if life.stage != Stage::Running && life.stage != Stage::Leaving {
            return;
        }
        if life.worker.is_none() && life.holder.node.role == Role::Server {
            life.report_service(every);
        }
        self.send_beat(id);
        self.queue.push(self.now + every, Due::Beat(id));
    }

    fn send_beat(&mut self, id: LifeId) {
        let life = &self.lives[id.0 as usize];
        let (holder, preempted, (since, until)) = (life.holder, life.session.preempted, life.hung);
        // Both travel with the heartbeat, which is more than one message here.
        if preempted {
            self.send_head(id, 0, HeadEvent::Preempted(holder));
        }
        if self.now < until {
            let stall = Stall { work: antdt_core::Work::Training, lasts: self.now.since(since) };
            self.send_head(id, 0, HeadEvent::Stalled { holder, stall });
        }
        let life = &mut self.lives[id.0 as usize];
        let beat = match self.spare_reports.pop_front() {
            Some(mut spare) => {
                // That a vector taken over so keeps its memory is how the library does it; without, it would cost time only.
                spare.clear();
                life.session.beat_with(spare.into_iter().map(reported).collect())
            }
            None => life.session.beat(),
        };
        let links = beat.links;
        if !links.is_empty() {
            self.send_head(id, 0, HeadEvent::Transferred { holder, links });
        }
        let reports = beat.reports.into_iter().map(|r| (r.report, r.loss_sum)).collect();
        let event = HeadEvent::Heartbeat {
            holder,
            reports,
            plan_ready: beat.plan_ready,
            plan_applied: beat.plan_applied,
        };
        self.send_head(id, 0, event);
    }

    fn beat_failed(
        &mut self,
        id: LifeId,
        reports: Vec<(BatchReport, f64)>,
        plan_ready: PlanVersion,
        plan_applied: (PlanVersion, u64),
    ) {
        let reports = reports.into_iter().map(reported).collect();
        let life = &mut self.lives[id.0 as usize];
        // Models are not simulated, and so neither is how far they are apart.
        let (model_distance, links) = (None, Vec::new());
        let beat = antdt_agent::Beat { reports, plan_ready, plan_applied, model_distance, links };
        life.session.beat_failed(self.now, beat);
        if life.session.state() == SessionState::MasterLost {
            self.exit(id, Exit::CODE_RETRY);
        }
    }

    fn beaten(&mut self, id: LifeId, reply: Box<BeatReply>) {
        if self.lives[id.0 as usize].is_dead() {
            return;
        }
        if self.now < self.lives[id.0 as usize].paused_until {
            self.queue.push(self.lives[id.0 as usize].paused_until, Due::Beaten(id, reply));
            return;
        }
        let life = &mut self.lives[id.0 as usize];
        let notice = reply.broken_group.map(Notice::GroupBroken);
        life.session.beat_answered(self.now, *reply);
        let state = life.session.state();
        let is_server = life.holder.node.role == Role::Server;
        if self.observer.watches() {
            let (holder, session) = (life.holder, life.session.clone());
            self.saw(&Happening::Beat(holder, &session));
        }
        match state {
            SessionState::Fenced | SessionState::MasterLost => return self.exit(id, Exit::CODE_RETRY),
            SessionState::Draining | SessionState::Finished if is_server => return self.exit(id, 0),
            _ => {}
        }
        if let Some(Notice::GroupBroken(version)) = notice {
            let life = &self.lives[id.0 as usize];
            let is_part = |group: MembershipVersion| group == version || life.home == Some(version);
            if life.in_group_call && life.group.is_some_and(|(group, _)| is_part(group)) {
                self.break_off(id);
            }
        }
    }

    // The training thread.

    /// The training thread will get a reply to this call.
    fn send_reply(&mut self, at: JobTime, id: LifeId, call: u64, reply: Reply) {
        let reply = Answered(self.replies.insert(reply));
        self.queue.push(at, Due::Reply(id, call, reply));
    }

    /// A reply to a call of the training thread. One to an older call is void.
    fn reply(&mut self, id: LifeId, call: u64, reply: Answered) {
        let life = &self.lives[id.0 as usize];
        let void = life.is_dead() || life.call != call;
        if !void && self.now < life.paused_until {
            self.queue.push(life.paused_until, Due::Reply(id, call, reply));
            return;
        }
        let reply = self.replies.remove(reply.0);
        if !void {
            self.advance(id, &reply);
        }
    }

    /// What the training thread did by itself is over, unless it broke that off.
    fn over(&mut self, id: LifeId, call: u64, work: Work) {
        let life = &self.lives[id.0 as usize];
        if life.is_dead() || life.call != call {
            return;
        }
        if self.now < life.paused_until {
            self.queue.push(life.paused_until, Due::Over(id, call, work));
            return;
        }
        if matches!(work, Work::Pull | Work::Push | Work::Count) {
            let (limit, done) = (life.transfer_limit, self.transferred(id));
            if done > self.now {
                if self.now < limit {
                    self.queue.push(done.min(limit), Due::Over(id, call, work));
                } else {
                    // A server did not answer in time.
                    self.lose_servers(id);
                }
                return;
            }
            // It ended before its answer had got through.
            let servers = &self.lives[id.0 as usize].servers;
            if servers.iter().any(|server| self.lives[server.0 as usize].died < done) {
                return self.lose_servers(id);
            }
        }
        if matches!(work, Work::Break) && self.setup.servers > 0 {
            return self.lose_servers(id);
        }
        if matches!(work, Work::Beside) {
            // It waits for the master no more.
            self.lives[id.0 as usize].parked = None;
        }
        self.advance(id, &self.result_of(id, work));
    }

    /// A call to the servers breaks: a worker that is let in again connects to them again.
    fn lose_servers(&mut self, id: LifeId) {
        self.lives[id.0 as usize].servers.clear();
        self.advance(id, &Reply::Broken);
    }

    /// A worker is let in: it connects to the servers that it is told of, unless it is connected and they are the same.
    fn let_in(&mut self, id: LifeId, joined: &Joined) {
        let life = &self.lives[id.0 as usize];
        let is_new = joined.rollback > life.rollback;
        let again = joined.finished || !(is_new || life.servers.is_empty());
        let servers = (0..).zip(joined.servers.iter()).filter(|_| !again);
        let reached = servers.filter_map(|(index, address)| {
            let server = *self.current.get(&NodeId::server(index))?;
            let life = &self.lives[server.0 as usize];
            (!life.is_dead() && life.holder.to_string() == *address).then_some(server)
        });
        let reached: Vec<LifeId> = reached.collect();
        let life = &mut self.lives[id.0 as usize];
        if is_new {
            // Its model is of before.
            (life.rollback, life.trained) = (joined.rollback, false);
        }
        if !again {
            life.servers = reached;
        }
    }

    fn result_of(&self, id: LifeId, work: Work) -> Reply {
        match work {
            Work::Begin => Reply::Begin,
            Work::Sleep => Reply::Slept,
            Work::Load => Reply::Loaded,
            Work::Pull => Reply::Pulled,
            Work::Compute => Reply::Computed { samples: self.lives[id.0 as usize].piece, loss_sum: 0.0 },
            Work::Begun => Reply::Computing,
            Work::Beside => {
                let (_, took, samples) = self.lives[id.0 as usize].beside.unwrap_or_default();
                Reply::ComputedBeside { samples, loss_sum: 0.0, took }
            }
            Work::Apply | Work::Count => Reply::Applied,
            Work::Advance => Reply::Advanced,
            Work::Revert => Reply::Reverted,
            Work::Push => Reply::Pushed,
            Work::Break => Reply::Broken,
        }
    }

    /// Lets the training loop go on, until it waits for something that takes time.
    fn advance(&mut self, id: LifeId, reply: &Reply) {
        let mut at_once = self.step(id, reply);
        while let Some(work) = at_once {
            at_once = self.step(id, &self.result_of(id, work));
        }
    }

    /// Lets the training loop make its next call, if it has one. What that is, if it takes no time.
    fn step(&mut self, id: LifeId, reply: &Reply) -> Option<Work> {
        if let Reply::Joined(joined) = reply {
            self.let_in(id, joined);
        }
        let life = &mut self.lives[id.0 as usize];
        match reply {
            Reply::Agreed(verdict) => life.agreed = verdict.samples,
            Reply::Applied => life.samples += std::mem::take(&mut life.agreed),
            _ => {}
        }
        life.call += 1;
        life.attempts = 0;
        life.in_group_call = false;
        let (holder, worker) = (life.holder, life.worker.as_mut()?);
        let call = worker.step(self.now, &mut life.session, reply);
        if self.observer.watches() {
            self.saw(&Happening::Worker(holder, reply, &call));
        }
        self.begin(id, holder, call)
    }

    /// Begins a call. What it is, if it takes no time.
    fn begin(&mut self, id: LifeId, holder: Holder, call: Call) -> Option<Work> {
        let life = &mut self.lives[id.0 as usize];
        let number = life.call;
        match call {
            Call::Join(standing) => {
                if let Some((group, _)) = life.group.take() {
                    self.leave_group(group, None);
                }
                self.park(id, HeadEvent::Join { holder, standing });
                None
            }
            Call::Enter(joined) => {
                self.enter(id, &joined);
                None
            }
            Call::Register(held) => {
                self.send_ledger(id, number, LedgerEvent::Register { holder, held }, Duration::ZERO);
                None
            }
            Call::Exchange { request, acks, want, wait } => {
                let generation = life.generation;
                let event = LedgerEvent::Exchange { holder, generation, request, acks, want };
                self.send_ledger(id, number, event, wait);
                None
            }
            Call::Release(acks) => {
                self.send_ledger(id, number, LedgerEvent::Release { holder, acks }, Duration::ZERO);
                None
            }
            Call::Fail { at, .. } => {
                self.send_ledger(id, number, LedgerEvent::Fail { holder, ack: at }, Duration::ZERO);
                None
            }
            Call::Sleep(time) => {
                self.later(id, time, Work::Sleep);
                None
            }
            Call::Load(batch) => {
                (life.batch, life.piece) = (batch.len(), batch.len());
                Some(Work::Load)
            }
            Call::LoadPiece(batch, micro) => {
                (life.batch, life.piece) = (batch.len(), batch.piece(micro).len());
                Some(Work::Load)
            }
            Call::Pull => {
                self.transfer(id, Work::Pull);
                None
            }
            Call::Compute => {
                let samples = life.piece;
                if samples == 0 {
                    return Some(Work::Compute);
                }
                let time = self.compute_time(id, samples);
                self.later(id, time, Work::Compute);
                None
            }
            Call::ComputeBeside => {
                let samples = life.piece;
                let time = self.compute_time(id, samples);
                self.lives[id.0 as usize].beside = Some((self.now + time, time, samples));
                Some(Work::Begun)
            }
            Call::Finish => self.finish_beside(id),
            Call::ReadyBeside { step, readiness } => {
                let is_there = self.finish_beside(id);
                if is_there.is_none() {
                    self.park(id, HeadEvent::Ready { holder, step, readiness });
                }
                is_there
            }
            Call::Combine { step, acks, peers, .. } => {
                if let Peers::Apart { group, ranks } = &peers {
                    self.go_apart(id, *group, ranks);
                }
                self.meet(id, Part::Combine { step, acks, peers });
                None
            }
            Call::Agree(lanes) => {
                self.meet(id, Part::Agree(lanes));
                None
            }
            Call::Apply if self.setup.sync.capabilities().needs_servers() => {
                self.transfer(id, Work::Count);
                None
            }
            Call::Apply => Some(Work::Apply),
            // A small part of the gradient's time, which the compute model counts.
            Call::Advance => Some(Work::Advance),
            Call::Revert => Some(Work::Revert),
            Call::Push { .. } => {
                self.transfer(id, Work::Push);
                None
            }
            Call::Ready { step, readiness } => {
                self.park(id, HeadEvent::Ready { holder, step, readiness });
                None
            }
            Call::Rest(checkpoint) => {
                self.park(id, HeadEvent::Rest { holder, checkpoint });
                None
            }
            Call::Stop(end) => {
                self.stop(id, &end);
                None
            }
        }
    }

    /// How long a worker computes a gradient, from now on.
    fn compute_time(&mut self, id: LifeId, samples: u64) -> Duration {
        let life = &mut self.lives[id.0 as usize];
        let time = self.models.compute.time(self.now, life.holder, samples, &mut life.rng);
        life.busy += time;
        let stands = std::mem::take(&mut life.hang);
        if !stands.is_zero() {
            life.hung = (self.now, self.now + stands);
        }
        time + stands
    }

    /// The gradient that is computed beside other calls: what it is, if it is there; else the call ends when it will be.
    fn finish_beside(&mut self, id: LifeId) -> Option<Work> {
        let due = self.lives[id.0 as usize].beside.map_or(self.now, |(due, ..)| due);
        if due <= self.now {
            return Some(Work::Beside);
        }
        self.later(id, due.since(self.now), Work::Beside);
        None
    }

    fn later(&mut self, id: LifeId, time: Duration, work: Work) {
        let call = self.lives[id.0 as usize].call;
        self.queue.push(self.now + time, Due::Over(id, call, work));
    }

    /// Sends the gradient to all servers, gets the parameters from them, or tells them what counts: one call, with one limit.
    fn transfer(&mut self, id: LifeId, work: Work) {
        let (push, word) = (matches!(work, Work::Push), matches!(work, Work::Count));
        let servers = self.setup.servers.max(1);
        let shares: Vec<f64> = (0..servers).map(|server| self.weights.share(server, servers)).collect();
        let life = &mut self.lives[id.0 as usize];
        life.transfer = life.call;
        let life = &self.lives[id.0 as usize];
        let lives = |server: &LifeId| !self.lives[server.0 as usize].is_dead();
        if life.servers.len() < self.setup.servers as usize || !life.servers.iter().all(lives) {
            return self.break_transfer(id);
        }
        let connected = life.servers.clone();
        let (holder, samples) = (life.holder, if push { life.batch } else { life.piece });
        let node = holder.node;
        let (mut last, mut lost) = (self.now, false);
        for index in 0..servers {
            let server = NodeId::server(index);
            // What a server has to serve is in proportion to what it holds.
            let share = shares[index as usize];
            let bytes = match self.weights.is_equal() {
                true => self.setup.gradient_bytes / u64::from(servers),
                false => (self.setup.gradient_bytes as f64 * share) as u64,
            } + MESSAGE_BYTES;
            let bytes = if word { MESSAGE_BYTES } else { bytes };
            let (there, back) = if push { (bytes, MESSAGE_BYTES) } else { (MESSAGE_BYTES, bytes) };
            let (me, it) = (Site::Node(node), Site::Node(server));
            let network = &mut self.models.network;
            let rng = &mut self.network_rng;
            // TCP sends again what is lost; what it costs is time.
            let mut cross = |at: JobTime, from, to, bytes| {
                let again = (0..16).find_map(|i| {
                    let at = at + Duration::from_millis(200) * i;
                    let arrives = network.message(at, from, to, bytes, rng);
                    lost |= arrives.is_none();
                    arrives
                });
                again.unwrap_or(at + Duration::from_secs(4))
            };
            let arrived = cross(self.now, me, it, there);
            let server = connected[index as usize];
            // One request after the other: the table of a server is one.
            let served = &mut self.lives[server.0 as usize];
            let begin = arrived.max(served.busy_until);
            let time = self.models.compute.time(begin, served.holder, samples.max(1), &mut served.rng);
            let time = match self.weights.is_equal() {
                // The time of an update is counted with its gradient.
                _ if word => Duration::ZERO,
                true => time,
                false => time.mul_f64(share * f64::from(servers)),
            };
            served.busy_until = begin + time;
            served.served.0 += bytes;
            served.served.1 += time;
            let answered = cross(begin + time, it, me, back);
            last = last.max(answered);
        }
        let (limit, call) = (self.now + self.setup.collective_timeout, self.lives[id.0 as usize].call);
        let life = &mut self.lives[id.0 as usize];
        (life.transfer_done, life.transfer_limit) = (last, limit);
        self.queue.push(last.min(limit), Due::Over(id, call, work));
        if lost && self.observer.watches() {
            self.saw(&Happening::Lost(holder));
        }
    }

    /// A server is gone: the call of a worker to all of them breaks, as soon as it can hear of that.
    fn break_transfer(&mut self, id: LifeId) {
        let life = &self.lives[id.0 as usize];
        let (call, limit) = (life.call, self.now + self.setup.collective_timeout);
        let heard = life.cut_until.max(self.now).min(limit) + BREAK_DELAY;
        self.queue.push(heard, Due::Over(id, call, Work::Break));
    }

    /// When the transfer of a life is done. What is on its way to or from a host that is cut off is sent again until it gets
    /// through, and a server that stands still answers when it goes on.
    fn transferred(&self, id: LifeId) -> JobTime {
        let life = &self.lives[id.0 as usize];
        let servers = life.servers.iter().map(|server| &self.lives[server.0 as usize]);
        let reached = servers.map(|server| server.cut_until.max(server.paused_until)).max();
        life.transfer_done.max(life.cut_until).max(reached.unwrap_or_default())
    }

    /// Asks the head something that it answers when it has decided.
    fn park(&mut self, id: LifeId, event: HeadEvent) {
        let (now, life) = (self.now, &mut self.lives[id.0 as usize]);
        life.parked = Some(Box::new((event.clone(), now)));
        let call = life.call;
        if !life.reask_armed {
            life.reask_armed = true;
            self.queue.push(now + PARK_MAX, Due::Reask(id));
        }
        self.send_head(id, call, event);
    }

    /// A parked call is given up after a while and made again, as middle boxes demand.
    fn reask(&mut self, id: LifeId) {
        let now = self.now;
        let life = &mut self.lives[id.0 as usize];
        life.reask_armed = false;
        if life.is_dead() {
            return;
        }
        let Some((event, since)) = life.parked.as_deref_mut() else { return };
        let due = *since + PARK_MAX;
        life.reask_armed = true;
        if due > now {
            self.queue.push(due, Due::Reask(id));
            return;
        }
        *since = now;
        let (event, call) = (event.clone(), life.call);
        self.queue.push(now + PARK_MAX, Due::Reask(id));
        if now >= life.paused_until {
            self.send_head(id, call, event);
        }
    }

    /// Answers a parked call, if the life still waits for it: of a commit, that of this step.
    fn unpark(&mut self, holder: Holder, step: Option<u64>, reply: impl FnOnce() -> Reply) {
        if let Some((id, at)) = self.let_go(holder, step) {
            let call = self.lives[id.0 as usize].call;
            self.send_reply(at, id, call, reply());
        }
    }

    /// A worker that stands still is told to have the copies made for a checkpoint.
    fn keep(&mut self, holder: Holder, checkpoint: CheckpointId) {
        if let Some((id, at)) = self.let_go(holder, None) {
            self.copy_model(id, at, checkpoint);
        }
    }

    /// A call is no longer parked: of which life, and when the answer arrives.
    fn let_go(&mut self, holder: Holder, step: Option<u64>) -> Option<(LifeId, JobTime)> {
        let id = self.life_of(holder)?;
        let waits = match (self.lives[id.0 as usize].parked.as_deref(), step) {
            (Some((HeadEvent::Join { .. } | HeadEvent::Rest { .. }, _)), None) => true,
            (Some((HeadEvent::Ready { step: waits, .. }, _)), Some(step)) => *waits == step,
            _ => false,
        };
        if !waits {
            return None;
        }
        // Lost on its way back: it asks again when it has waited long enough.
        let at = self.travel(id, MESSAGE_BYTES, false)?;
        self.lives[id.0 as usize].parked = None;
        Some((id, at))
    }

    /// The training loop is over.
    fn stop(&mut self, id: LifeId, end: &End) {
        let (end_of_data, trained) = match end {
            End::EndOfData { trained } => (true, *trained),
            End::Drained => (false, false),
            End::Failed(_) => return self.exit(id, Exit::CODE_NEVER),
        };
        let life = &mut self.lives[id.0 as usize];
        life.stage = Stage::Leaving;
        if let Some((group, _)) = life.group.take() {
            self.leave_group(group, None);
        }
        // What was reported last goes first, as `Agent::leave` does.
        self.send_beat(id);
        let life = &mut self.lives[id.0 as usize];
        life.call += 1;
        let (holder, call) = (life.holder, life.call);
        self.send_head(
            id,
            call,
            HeadEvent::Leave { holder, end_of_data, can_evaluate: end_of_data && trained },
        );
    }
}

impl Life {
    /// A server says what it served `since` the last time.
    fn report_service(&mut self, since: Duration) {
        let (bytes, time) = std::mem::take(&mut self.served);
        if bytes == 0 {
            return;
        }
        self.reports += 1;
        let report = BatchReport {
            holder: self.holder,
            sequence: self.reports,
            iteration: Iteration(self.reports),
            plan: PlanVersion(0),
            phase: Phase::Train,
            samples: bytes,
            micro_batches: 1,
            data_wait: since.saturating_sub(time),
            compute: time,
            communicate: Duration::ZERO,
            barrier_wait: Duration::ZERO,
        };
        self.session.report(Reported { report, loss_sum: 0.0 });
    }
}

/// What the head heard, as the session says it.
fn reported((report, loss_sum): (BatchReport, f64)) -> Reported {
    Reported { report, loss_sum }
}

/// What the head is made from, as `antdt run` does.
pub(crate) fn head_config(setup: &Setup, policy: Box<dyn Policy>) -> HeadConfig {
    HeadConfig {
        sync: setup.sync.clone(),
        workers: setup.workers,
        servers: setup.servers,
        global_batch_size: setup.global_batch_size,
        heartbeat: setup.heartbeat,
        max_restarts: setup.max_restarts,
        // A simulated job keeps its number of workers.
        min_workers: setup.workers,
        must_register: true,
        dry_run: setup.dry_run,
        policy,
        monitor: MonitorConfig {
            liveness: LivenessConfig::of(setup.heartbeat, setup.silence_limit),
            rule: setup.pace_rule.clone(),
            ..MonitorConfig::default()
        },
        checkpoints: setup.checkpoint_every.map(|every| CheckpointSchedule {
            every,
            first: CheckpointId(1),
            epochs: setup.epochs,
        }),
        can_roll_back: setup.goes_back,
        hosts: Arc::new(Places::new(setup.workers, setup.workers_per_host).names()),
    }
}

/// The data set, as `antdt run` makes it.
pub(crate) fn dataset(setup: &Setup) -> DatasetSpec {
    let (batch, workers) = (setup.global_batch_size, setup.workers);
    let mut dataset = DatasetSpec::of_job("train", setup.samples, batch, workers, setup.shard_len);
    dataset.epochs = Epochs::Finite(setup.epochs);
    dataset.seed = setup.seed.derive("data");
    if setup.static_sharding {
        dataset.assignment = Assignment::Static { workers: setup.workers };
    }
    dataset
}

#[cfg(test)]
mod tests;
