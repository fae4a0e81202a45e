//! [`World`]: a simulated job, made of the state machines of production and of a simulated clock, processes
//! and network.
//!
//! All decisions are made by the code of production: the [`Head`], the [`ShardLedger`], and in each worker a
//! [`WorkerLoop`](antdt_job::WorkerLoop) and an [`AgentSession`](antdt_agent::AgentSession). Only their environment is simulated:
//! how long a gradient takes, how messages travel, when a process starts and dies, and which members of a
//! group get a result when one of them dies at that moment.
//!
//! The simulation is a function of its [`Setup`], policy and models: same seed, same history.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use antdt_controller::{Policy, action};
use antdt_core::{
    AckPoint, BatchReport, Contribution, DetRng, Generation, Holder, InvalidValue, JobTime, Machine,
    MembershipVersion, NodeId, ServerWeights, StepCommit,
};
use antdt_job::{EventKind, Head, HeadAnswer, HeadEffect, HeadEvent, Note, Reply};
use antdt_shard::{Event as LedgerEvent, Record, RecoverError, Recovery, ShardLedger};
use slab::Slab;

use crate::happening::{Happening, Observer};
use crate::journal::{Journal, SimulatedJob};
use crate::model::Models;
use crate::queue::Queue;
use crate::{Setup, Violation};

mod config;
mod due;
mod life;
mod process;

mod heartbeat;
mod message;
mod parked;

mod group;
mod reduce;
mod service;
mod thread;
mod transfer;

mod checkpoints;
mod master;
mod places;

use checkpoints::Checkpoints;
pub use checkpoints::Moment;
pub(crate) use config::{dataset, head_config};
use due::{Answered, Due, Lost, Message, Question, Work};
use group::SimGroup;
use life::{LifeId, Lives};
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
    lives: Lives,
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
        let head = Self::head(&setup, policy, from)?;
        let dataset = dataset(&setup);
        let from = from.map(|from| from.continued(&dataset)).transpose()?;
        let damaged = |e: RecoverError| InvalidValue::new("samples", setup.samples, e.to_string());
        let recovery = Recovery::new(dataset).map_err(damaged)?;
        let (ledger, begun) = Self::ledger(recovery.clone(), from.as_ref()).map_err(damaged)?;
        let mut fault_rng = setup.seed.derive("faults").rng();
        let mut queue = Queue::new();
        let fault = models.faults.next(&mut fault_rng);
        // A restart of the service needs its log.
        let log = (observer.watches() || fault.is_some()).then(|| begun.clone());
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
            lives: Lives::with_capacity(lives),
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
        begun.iter().for_each(|record| world.saw(&Happening::Record(record)));
        if calm {
            world.saw(&Happening::Calm);
        }
        Ok(world)
    }

    /// The head of a job before its first event.
    fn head(setup: &Setup, policy: Box<dyn Policy>, from: Option<&Moment>) -> Result<Head, InvalidValue> {
        let mut config = head_config(setup, policy);
        if let Some((schedule, from)) = config.checkpoints.as_mut().zip(from) {
            schedule.first = from.next_checkpoint();
        }
        if let Some((schedule, from)) = config.evaluations.as_mut().zip(from) {
            schedule.done = from.counts().acked + from.counts().quarantined;
        }
        let head = Head::new(config)?;
        Ok(if setup.goes_back { head.journaled() } else { head })
    }

    /// The ledger of a job before its first event, and the records that it began with.
    fn ledger(recovery: Recovery, from: Option<&Moment>) -> Result<(ShardLedger, Vec<Record>), RecoverError> {
        let mut ledger = recovery.finish(Generation(1))?;
        if let Some(from) = from {
            ledger.restore(&from.ledger, Generation(2))?;
        }
        let mut begun = Vec::new();
        while let Some(effect) = ledger.poll_effect() {
            if let antdt_shard::Effect::Record(record) = effect {
                begun.push(record);
            }
        }
        Ok((ledger, begun))
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
            && self.observer.watches()
            && let Err(violation) = self.observer.saw(self.now, what)
        {
            self.violation = Some(violation);
        }
    }

    /// Until when a process stands still that this is due at.
    fn stands_still(&self, due: &Due) -> Option<JobTime> {
        let of_life = |id: LifeId, call: Option<u64>| {
            let life = &self.lives[id];
            let waits = !life.is_dead() && call.is_none_or(|call| call == life.call);
            if waits { life.paused_until } else { JobTime::ZERO }
        };
        let until = match due {
            Due::Start(id) | Due::Beat(id) | Due::Beaten(id, _) | Due::Copy(id, ..) => of_life(*id, None),
            Due::Reply(id, call, _)
            | Due::Over(id, call, _)
            | Due::Told(id, call, _)
            | Due::Again(id, call, _) => of_life(*id, Some(*call)),
            Due::ToHead(..)
            | Due::Copied(_)
            | Due::ToLedger(..)
            | Due::AskedAgain(..)
            | Due::ToLauncher(_)
            | Due::Restore(_) => self.master_paused_until,
            // These look for themselves, or are about no process that could stand still.
            Due::Deadline
            | Due::Tick
            | Due::Unkept(..)
            | Due::Reask(_)
            | Due::Done(..)
            | Due::Late(_)
            | Due::Kill(_)
            | Due::Dies(..)
            | Due::Fault(_)
            | Due::TakeOver
            | Due::Cut(_)
            | Due::Written(..) => JobTime::ZERO,
        };
        Some(until).filter(|until| self.now < *until)
    }

    fn happen(&mut self, due: Due) {
        if let Some(until) = self.stands_still(&due) {
            return self.queue.push(until, due);
        }
        match due {
            Due::Deadline => self.head_deadline(),
            Due::Tick => self.tick(),
            Due::Start(life) => self.start(life),
            Due::Beat(life) => self.beat(life),
            Due::ToHead(life, call, message) => self.at_head(life, call, message),
            Due::Copied(message) => self.copied(message),
            Due::Beaten(life, reply) => self.beaten(life, *reply),
            Due::ToLedger(life, call, question) => self.at_ledger(life, call, question),
            Due::AskedAgain(question, generation) => self.asked_again(question, generation),
            Due::Unkept(life, call) => self.unkept(life, call),
            Due::Reply(life, call, reply) => self.reply(life, call, reply),
            Due::Over(life, call, work) => self.over(life, call, work),
            Due::Told(life, call, answer) => self.told(life, call, *answer),
            Due::Again(life, call, lost) => self.again(life, call, *lost),
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

    fn head_deadline(&mut self) {
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
            self.saw(&Happening::HeadDeadline);
            self.head_effects();
        }
        self.arm_deadline();
    }

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
                    let (kind, text) = (EventKind::Refused, error.to_string());
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
            HeadEffect::Committed(holder, commit) => self.committed(holder, commit),
            HeadEffect::Rested { holder, keep: false, .. } => self.unpark(holder, None, || Reply::Rested),
            HeadEffect::Rested { holder, checkpoint, keep: true, .. } => self.keep(holder, checkpoint),
            HeadEffect::Undone(holder) => {
                let parked = self.life_of(holder).and_then(|id| self.lives[id].parked.as_deref());
                if let Some((HeadEvent::Ready { step, .. }, _)) = parked {
                    let step = *step;
                    self.unpark(holder, Some(step), || Reply::Broken);
                }
            }
            HeadEffect::RollBack(rollback) => self.roll_back(rollback),
            HeadEffect::Epochs(epochs) => {
                self.ask_ledger(LedgerEvent::EndAfter { epochs });
            }
            HeadEffect::Servers(servers) => self.setup.servers = servers,
            HeadEffect::Weights(weights) => self.weights = weights,
            HeadEffect::Record(record) => {
                if let Some(successor) = self.successor.as_deref_mut() {
                    successor.record = *record;
                }
            }
            HeadEffect::GoOn(mode) => self.end(Err(format!("goes on with --sync {mode}"))),
            HeadEffect::End(result) => self.end(result),
            HeadEffect::Note { at, note: Note::Batches(reports) } => {
                self.journal.batches(at, &reports);
                self.spare_reports.push_back(reports);
            }
            HeadEffect::Note { at, note } => {
                if let (Note::EpochEvaluated(entry), Some(successor)) = (&note, self.successor.as_deref_mut())
                {
                    successor.evaluations.retain(|earlier| earlier.epoch < entry.epoch);
                    successor.evaluations.push(entry.clone());
                }
                self.journal.note(at, note);
            }
        }
    }

    /// A worker is told that what it contributed to is committed.
    fn committed(&mut self, holder: Holder, commit: Box<StepCommit>) {
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

    fn end(&mut self, result: Result<(), String>) {
        self.saw(&Happening::Ended(&result));
        self.ended = Some(result);
    }

    fn tick(&mut self) {
        if self.master_away(Due::Tick) {
            return;
        }
        let status = self.ledger.status();
        self.saw(&Happening::Ledger(&LedgerEvent::Status, &antdt_shard::Answer::Status(status)));
        if status.failed {
            let why = "too many samples could not be read".to_owned();
            self.ask_head(HeadEvent::Stop(why));
        }
        self.ask_head(HeadEvent::Tick(Some(status.counts)));
        self.queue.push(self.now + self.setup.control_tick, Due::Tick);
    }
}

#[cfg(test)]
mod tests;
