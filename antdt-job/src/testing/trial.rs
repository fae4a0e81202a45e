//! A history played: a master, its workers, and what is around them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use antdt_agent::{AgentSession, Batch, BeatReply, SessionState};
use antdt_collective::lanes::Lanes;
use antdt_controller::policy::{Decision, ProposedAction};
use antdt_controller::{Policy, RestartBudget};
use antdt_core::{
    AckPoint, Acks, Barrier, Capabilities, CheckpointId, ClusterView, Contribution, DeviceClass, Exit,
    Fragment, Generation, Holder, JobTime, Joined, LocalSteps, Machine, MembershipVersion, Metrics,
    NodeActionKind, NodeId, NodeInfo, PlanVersion, PushMark, Rank, Reason, Role, RollbackId, Stall, Standing,
    StepResult, Work,
};
use antdt_monitor::MonitorConfig;

use super::history::{History, Job, Line, Step};
use super::invariant::{Invariant, Invariants};
use super::service::Service;
use crate::head::{
    CheckpointEvery, CheckpointSchedule, Head, HeadAnswer, HeadConfig, HeadEffect, HeadEvent, HeadRecord,
    Registration, RolledBack,
};
use crate::mode::SyncMode;
use crate::worker::{Call, End, Peers, Reply, WorkerLoop};

/// Restarts of the shard service in a history: a worker gives up a service that does not stay.
const SERVICE_RESTARTS_MAX: u32 = 5;

/// Questions for a group that may come again.
const OLD_JOINS: usize = 6;

/// Rounds in which a job must end when nothing goes wrong any more: each worker does one thing in each. The longest known
/// needs a tenth of them.
const CALM_ROUNDS: u32 = 4_000;

/// How often a keeper looks whether all that is in its model is acknowledged.
const CUT_TRIES: u32 = 40;

/// Time between two events, and between two heartbeats.
const MOMENT: Duration = Duration::from_millis(1);
const MOMENT_NANOS: u64 = 1_000_000;
const HEARTBEAT: Duration = Duration::from_millis(100);

/// Report that a mode broke an invariant in a history. Its text names the invariant and the step, says what
/// happened, and gives the line that replays the history.
#[derive(Clone, PartialEq, Eq)]
pub struct Broken(Box<Found>);

#[derive(Clone, PartialEq, Eq)]
struct Found {
    invariant: Invariant,
    step: usize,
    what: String,
    mode: String,
    history: History,
}

impl Broken {
    /// Returns the broken invariant.
    pub fn invariant(&self) -> Invariant {
        self.0.invariant
    }

    /// Returns the number of the step, from 1, after which the invariant was broken. It is one more than the
    /// number of steps if that was after the last one.
    pub fn step(&self) -> usize {
        self.0.step
    }

    /// Returns a description of how the invariant was broken.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Returns the history in which the invariant was broken.
    pub fn history(&self) -> &History {
        &self.0.history
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found { invariant, step, what, mode, history } = &*self.0;
        writeln!(f, "{mode}: invariant {invariant} is broken: {}", invariant.promise())?;
        match step.checked_sub(1).and_then(|at| history.steps().get(at)) {
            Some(done) => writeln!(f, "  in step {step} of {}: {done:?}", history.steps().len()),
            None => {
                writeln!(f, "  after all {} steps, when nothing went wrong any more", history.steps().len())
            }
        }?;
        writeln!(f, "  {what}")?;
        write!(f, "  replay: {}", Line(history))
    }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Broken {}

/// What is wrong, by the promise.
type Breach = (Invariant, String);

impl Invariants {
    /// Replays a history of a job in a sync mode, and checks the invariants at every step.
    ///
    /// # Errors
    /// The first invariant that is broken, with the step and the history.
    pub fn check(&self, history: &History, mode: &SyncMode) -> Result<(), Broken> {
        let broken = |step, (invariant, what)| {
            let history = history.clone();
            Broken(Box::new(Found { invariant, step, what, mode: mode.to_string(), history }))
        };
        let mut trial = Trial::new(self, history.job(), mode);
        for (at, step) in history.steps().iter().enumerate() {
            trial.take(step).map_err(|breach| broken(at + 1, breach))?;
        }
        trial.calm().map_err(|breach| broken(history.steps().len() + 1, breach))
    }
}

/// What the policy is to decide next.
#[derive(Debug, Clone, Copy)]
enum Wish {
    Plan { shift: u8, pieces: u8, local_steps: u8, backups: u8 },
    Restart { worker: u8, drain_ms: u16 },
}

/// Decides what the history says.
#[derive(Debug, Clone)]
struct Scripted(Arc<Mutex<Option<Wish>>>);

impl Policy for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn decide(&mut self, _: JobTime, view: &ClusterView, _: &RestartBudget) -> Decision {
        let reason = || Reason::Other("the history says so".to_owned());
        let wish = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let live: Vec<_> = view.live_workers().collect();
        match wish {
            Some(Wish::Plan { shift, pieces, local_steps, backups }) if !live.is_empty() => {
                let mut sizes: BTreeMap<NodeId, u32> =
                    live.iter().map(|node| (node.id, node.batch_size)).collect();
                let (first, last) = (live[0].id, live[live.len() - 1].id);
                let given = u32::from(shift).min(sizes[&first].saturating_sub(1));
                *sizes.entry(first).or_default() -= given;
                *sizes.entry(last).or_default() += given;
                // One more in the next worker than in one, up to four; never more than samples.
                let micro = |(at, (id, size)): (u32, (&NodeId, &u32))| {
                    (*id, (1 + (u32::from(pieces) + at) % 4).min(*size))
                };
                let accumulation = match view.mode.sums_to_global_batch() && pieces > 0 {
                    true => (0..).zip(&sizes).map(micro).collect(),
                    false => BTreeMap::new(),
                };
                let several = view.mode.local_steps == LocalSteps::Several;
                let most = u32::try_from(live.len()).unwrap_or(1);
                Decision {
                    // None is named at 0, so that there are jobs in which every plan leaves it to the mode.
                    backups: (view.mode.takes_backups() && backups > 0)
                        .then(|| u32::from(backups - 1) % most),
                    batch_sizes: Some(sizes),
                    accumulation,
                    local_steps: several.then_some(u32::from(local_steps)),
                    reasons: vec![reason()],
                    ..Decision::default()
                }
            }
            Some(Wish::Restart { worker, drain_ms }) => {
                let others: Vec<_> = live.iter().filter(|node| !node.chief).collect();
                let Some(node) = pick(&others, worker) else { return Decision::nothing(reason()) };
                let drain = Duration::from_millis(drain_ms.into());
                Decision {
                    node_actions: vec![ProposedAction {
                        target: Holder::new(node.id, node.incarnation),
                        kind: NodeActionKind::KillRestart { drain },
                        reason: reason(),
                    }],
                    ..Decision::default()
                }
            }
            Some(Wish::Plan { .. }) | None => Decision::nothing(reason()),
        }
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

fn pick<T>(of: &[T], which: u8) -> Option<&T> {
    of.get(usize::from(which) % of.len().max(1))
}

/// What a worker's process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Starting,
    Training,
    Leaving { end_of_data: bool, can_evaluate: bool },
    Evaluating,
    Exiting,
}

/// What each member of a group contributed to a step.
#[derive(Debug, PartialEq)]
struct Made {
    by: BTreeMap<Holder, Vec<Fragment>>,
    /// All members have the same result.
    for_all: bool,
}

type Parts = Arc<Made>;

/// A reply that is on its way, and the sums that come with it.
#[derive(Debug, Clone)]
struct Coming {
    reply: Reply,
    parts: Option<(u64, Parts)>,
    /// The operation of a group that it ends.
    of_group: bool,
}

impl From<Reply> for Coming {
    fn from(reply: Reply) -> Self {
        Self { reply, parts: None, of_group: false }
    }
}

#[derive(Debug)]
struct Life {
    stage: Stage,
    session: AgentSession,
    worker: WorkerLoop,
    /// What the training loop waits for, and what will answer it.
    call: Option<Call>,
    coming: Option<Coming>,
    /// What its gradient is of, and what was loaded last.
    batch: Batch,
    piece: Batch,
    /// Samples of the gradient that is computed beside other calls.
    beside: Option<u64>,
    /// The newest step in the model that the gradient was begun on.
    gradient_of: Option<Option<u64>>,
    /// The plan whose actions its driver has carried out, with a batch that was loaded under it.
    begun: PlanVersion,
    unreadable: bool,
    hangs: bool,
    /// Newest step in its model; `None` without the job's model.
    model: Option<u64>,
    trained: bool,
    /// What was combined last and is not applied.
    prepared: Option<(u64, Parts)>,
    /// Its model is that of the job: the same as all others', where they do not mix.
    of_all: bool,
    /// What its own model has beyond the last average.
    advanced: Vec<Fragment>,
    /// The group of all that it is in, and the one apart from that, or 0.
    group: Option<(MembershipVersion, u64)>,
    /// The checkpoint that it takes the copies of, and how often it has tried.
    keeps: Option<(CheckpointId, u32)>,
    /// The newest rollback that it has joined after, and the servers that it has connections to.
    rollback: RollbackId,
    connected: BTreeSet<Holder>,
}

impl Life {
    /// Whether a gradient that is computed beside others ends the call that the worker waits in.
    fn may_finish(&self) -> bool {
        self.beside.is_some() && matches!(self.call, Some(Call::ReadyBeside { .. }))
    }

    /// The gradient that was computed beside other calls; [`Reply::Broken`] if none was.
    fn finished(&mut self) -> Reply {
        let reply =
            |samples| Reply::ComputedBeside { samples, loss_sum: 0.5, took: Duration::from_millis(1) };
        self.beside.take().map_or(Reply::Broken, reply)
    }
}

/// Model and ledger of one moment.
#[derive(Debug, Clone)]
struct Moment {
    in_model: Vec<u32>,
    progress: Vec<u64>,
}

/// A member's part in the open operation of its group.
#[derive(Debug)]
enum Part {
    Enter,
    Combine { step: u64, acks: Acks, fragments: Vec<Fragment>, peers: Peers },
    Agree(Lanes),
}

impl Part {
    fn kind(&self) -> String {
        match self {
            Self::Enter => "enters".to_owned(),
            Self::Combine { step, peers: Peers::All, .. } => format!("combines step {step} with all"),
            Self::Combine { step, peers: Peers::Few(_), .. } => format!("combines step {step} with a few"),
            // Each is at a step of its own.
            Self::Combine { peers: Peers::Apart { group, .. }, .. } => format!("combines in group {group}"),
            Self::Agree(_) => "agrees".to_owned(),
        }
    }
}

#[derive(Debug)]
struct TrialGroup {
    members: Vec<Holder>,
    parts: BTreeMap<Holder, Part>,
    broken: bool,
}

struct Trial<'a> {
    invariants: &'a Invariants,
    mode: SyncMode,
    job: Job,
    /// What a successor of the master goes on from, and the lives that were ever launched.
    record: HeadRecord,
    launched: BTreeSet<Holder>,
    capabilities: Capabilities,
    global_batch_size: u32,
    now: JobTime,
    head: Head,
    wish: Arc<Mutex<Option<Wish>>>,
    lives: BTreeMap<Holder, Life>,
    /// Those that live.
    servers: BTreeSet<Holder>,
    groups: BTreeMap<(MembershipVersion, u64), TrialGroup>,
    service: Service,
    service_restarts: u32,
    /// What the master has said to a worker may be forgotten: workers that wait for it give each other up.
    has_forgotten: bool,
    /// How often each sample is in the model.
    in_model: Vec<u32>,
    /// At the workers' own pace: of each life, what counts of its pushes and the servers have not been told to apply.
    counted: BTreeMap<Holder, Vec<Fragment>>,
    /// The parts of each step that a worker applied.
    steps: BTreeMap<u64, Parts>,
    /// What waits on the servers for the commit of a step.
    ready: BTreeMap<(u64, Holder), Vec<Fragment>>,
    released: BTreeSet<Holder>,
    joins: VecDeque<(Holder, Standing)>,
    /// Deaths that the master has not heard of.
    news: Vec<Holder>,
    /// Checkpoints that are being written, and which worker still has to write its part.
    written: Vec<(CheckpointId, Option<Holder>)>,
    /// The moments of all checkpoints that were begun, and the newest one that is complete.
    moments: BTreeMap<CheckpointId, Moment>,
    newest: Option<CheckpointId>,
    /// The newest rollback that was ordered, and whether it is still to be carried out.
    rollback: RollbackId,
    to_restore: bool,
    /// Workers that are in a step, each with the steps that others began meanwhile.
    overtaken: BTreeMap<Holder, BTreeMap<Holder, u32>>,
    /// Leases of earlier generations of the service are void since the ledger was set back.
    valid_from: Generation,
    end: Option<Result<(), String>>,
}

/// Settings of the job of a history.
fn config(mode: &SyncMode, job: &Job, wish: &Arc<Mutex<Option<Wish>>>) -> HeadConfig {
    let workers = u32::from(job.workers);
    HeadConfig {
        sync: mode.clone(),
        workers,
        servers: if mode.capabilities().needs_servers() { 2 } else { 0 },
        global_batch_size: workers * u32::from(job.samples_per_worker),
        heartbeat: HEARTBEAT,
        // More than a history has deaths.
        max_restarts: 1000,
        min_workers: 1,
        must_register: true,
        dry_run: false,
        policy: Box::new(Scripted(Arc::clone(wish))),
        monitor: MonitorConfig::default(),
        checkpoints: Some(CheckpointSchedule {
            every: CheckpointEvery::Steps(2),
            first: CheckpointId(1),
            epochs: 1,
        }),
        can_roll_back: true,
        hosts: Arc::default(),
    }
}

impl<'a> Trial<'a> {
    fn new(invariants: &'a Invariants, job: &Job, mode: &SyncMode) -> Self {
        let capabilities = mode.capabilities();
        let wish = Arc::default();
        let workers = u32::from(job.workers);
        let global_batch_size = workers * u32::from(job.samples_per_worker);
        let head =
            Head::new(config(mode, job, &wish)).expect("the defaults of the monitor are valid").journaled();
        let samples = job.shards.iter().map(|len| usize::from(*len)).sum();
        let mut trial = Self {
            invariants,
            mode: mode.clone(),
            job: job.clone(),
            record: HeadRecord::default(),
            launched: BTreeSet::new(),
            capabilities,
            global_batch_size,
            now: JobTime::ZERO,
            head,
            wish,
            lives: BTreeMap::new(),
            servers: BTreeSet::new(),
            groups: BTreeMap::new(),
            service: Service::new(&job.shards),
            service_restarts: 0,
            has_forgotten: false,
            in_model: vec![0; samples],
            counted: BTreeMap::new(),
            steps: BTreeMap::new(),
            ready: BTreeMap::new(),
            released: BTreeSet::new(),
            joins: VecDeque::new(),
            news: Vec::new(),
            written: Vec::new(),
            moments: BTreeMap::new(),
            newest: None,
            rollback: RollbackId(0),
            to_restore: false,
            overtaken: BTreeMap::new(),
            valid_from: Generation(0),
            end: None,
        };
        trial.moments.insert(CheckpointId(0), trial.moment());
        // What the master orders before anything happened cannot break a promise.
        let _ = trial.tell(HeadEvent::Begin);
        trial
    }

    fn holds(&self, invariant: Invariant, holds: bool, what: impl FnOnce() -> String) -> Result<(), Breach> {
        if holds || !self.invariants.holds_to(invariant) { Ok(()) } else { Err((invariant, what())) }
    }

    // What the history says.

    fn take(&mut self, step: &Step) -> Result<(), Breach> {
        if self.end.is_some() {
            return Ok(());
        }
        match *step {
            Step::Run { process, times } => {
                for _ in 0..times {
                    let able: Vec<Holder> = self.lives.keys().copied().filter(|h| self.is_able(*h)).collect();
                    let Some(holder) = pick(&able, process).copied() else { break };
                    self.act(holder)?;
                }
            }
            Step::Beat => self.beat()?,
            Step::Wait { ms } => self.wait(Duration::from_millis(ms.into()))?,
            Step::Die { process, late, luck } => {
                if let Some(holder) = self.living(process) {
                    self.die(holder, luck);
                    if late {
                        self.news.push(holder);
                    } else {
                        self.tell(HeadEvent::Exited(holder, Exit::Killed { signal: 9 }, Vec::new()))?;
                    }
                }
            }
            Step::Hang { process } => {
                if let Some(life) = self.living(process).and_then(|holder| self.lives.get_mut(&holder)) {
                    life.hangs |= matches!(
                        life.call,
                        Some(Call::Load(_) | Call::LoadPiece(..) | Call::Compute | Call::Finish)
                    );
                }
            }
            Step::Preempt { node } => {
                let all: Vec<Holder> = self.servers.iter().chain(self.lives.keys()).copied().collect();
                if let Some(holder) = pick(&all, node).copied() {
                    self.tell(HeadEvent::Preempted(holder))?;
                }
            }
            Step::ServerDies { server, late, written } => {
                let alive: Vec<Holder> = self.servers.iter().copied().collect();
                if let Some(holder) = pick(&alive, server).copied() {
                    self.servers.remove(&holder);
                    if !written {
                        self.written.clear();
                    }
                    if late {
                        self.news.push(holder);
                    } else {
                        self.tell(HeadEvent::Exited(holder, Exit::Killed { signal: 9 }, Vec::new()))?;
                    }
                }
            }
            Step::Break { process } => {
                if let Some(holder) = self.living(process) {
                    self.break_off(holder);
                }
            }
            Step::Plan { shift, pieces, local_steps, backups } => {
                self.wish(Wish::Plan { shift, pieces, local_steps, backups });
            }
            Step::Restart { worker, drain_ms } => self.wish(Wish::Restart { worker, drain_ms }),
            Step::Scale { workers, servers } => {
                self.tell(HeadEvent::Scale { workers: workers.into() })?;
                if servers > 0 && self.capabilities.needs_servers() {
                    self.tell(HeadEvent::ScaleServers { servers: servers.into() })?;
                }
            }
            Step::Checkpoint => {
                self.tell(HeadEvent::Checkpoint(None))?;
            }
            Step::RestartMaster { written } => self.restart_master(written)?,
            // Where no groups are formed a life asks once, and no copy is older than another.
            Step::OldJoin { .. } if !self.capabilities.forms_groups() => {}
            Step::OldJoin { which } => {
                let old = self.joins.get(usize::from(which) % self.joins.len().max(1)).cloned();
                if let Some((holder, standing)) = old {
                    self.tell(HeadEvent::Join { holder, standing })?;
                }
            }
            Step::RestartService if self.service_restarts < SERVICE_RESTARTS_MAX => {
                self.service_restarts += 1;
                self.service.restart();
            }
            Step::RestartService => {}
            Step::Recall { process } => self.service.recall.extend(self.living(process)),
            Step::Unreadable { process } => {
                if let Some(life) = self.living(process).and_then(|holder| self.lives.get_mut(&holder)) {
                    life.unreadable = true;
                }
            }
        }
        Ok(())
    }

    fn living(&self, which: u8) -> Option<Holder> {
        let all: Vec<Holder> = self.lives.keys().copied().collect();
        pick(&all, which).copied()
    }

    fn wish(&self, wish: Wish) {
        *self.wish.lock().unwrap_or_else(PoisonError::into_inner) = Some(wish);
    }

    /// Nothing goes wrong any more: the job must end, with all that it has.
    fn calm(&mut self) -> Result<(), Breach> {
        for round in 0..CALM_ROUNDS {
            if self.end.is_some() {
                break;
            }
            for holder in self.lives.keys().copied().collect::<Vec<_>>() {
                if self.is_able(holder) {
                    self.act(holder)?;
                }
            }
            if round % 5 == 0 {
                self.beat()?;
                self.wait(HEARTBEAT)?;
            }
        }
        let counts = self.service.counts();
        let outcome = match &self.end {
            None => Err(format!("{counts:?}, and the workers wait: {:?}", self.waiting())),
            Some(Err(why)) => Err(why.clone()),
            Some(Ok(())) => Ok(()),
        };
        self.holds(Invariant::SurvivorsGoOn, outcome.is_ok(), || {
            format!("the job does not end well: {}", outcome.err().unwrap_or_default())
        })?;
        if self.end.is_none() {
            return Ok(());
        }
        self.holds(Invariant::NothingLost, self.service.is_done(), || {
            format!(
                "the job has ended, and {} of {} samples are not acknowledged",
                counts.total - counts.acked,
                counts.total
            )
        })?;
        // What counts of the dead, the servers hear with their heartbeats.
        for (holder, fragments) in std::mem::take(&mut self.counted) {
            self.learn(holder, &fragments)?;
        }
        let missing = self.in_model.iter().position(|times| *times == 0);
        self.holds(Invariant::NothingLost, missing.is_none(), || {
            format!("sample {} is not in the model at the end", missing.unwrap_or_default())
        })
    }

    fn waiting(&self) -> Vec<String> {
        let wait = |(holder, life): (&Holder, &Life)| format!("{holder} {:?} {:?}", life.stage, life.call);
        self.lives.iter().map(wait).collect()
    }

    // The master.

    fn tell(&mut self, event: HeadEvent) -> Result<HeadAnswer, Breach> {
        self.wait(MOMENT)?;
        let answer = self.head.handle(self.now, event);
        self.obey()?;
        Ok(answer)
    }

    /// The master dies, and another one takes over. Nothing of it is left but the record; callers ask again.
    fn restart_master(&mut self, written: bool) -> Result<(), Breach> {
        let config = config(&self.mode, &self.job, &self.wish);
        self.head = Head::resume(config, &self.record).expect("the record is of this job");
        self.has_forgotten = true;
        if self.service_restarts < SERVICE_RESTARTS_MAX {
            self.service_restarts += 1;
            self.service.restart();
        }
        if written {
            // Their manifests were written just before.
            self.newest = self.newest.max(self.written.iter().map(|(checkpoint, _)| *checkpoint).max());
        }
        self.written.clear();
        self.to_restore = false;
        self.tell(HeadEvent::Begin)?;
        for holder in self.lives.keys().copied().collect::<Vec<_>>() {
            let Some(life) = self.lives.get_mut(&holder) else { continue };
            let waits = life.stage == Stage::Training && life.coming.is_none() && life.keeps.is_none();
            let call = life.call.clone().filter(|_| waits);
            if let Some(
                call @ (Call::Join(_) | Call::Ready { .. } | Call::ReadyBeside { .. } | Call::Rest(_)),
            ) = call
            {
                self.begin(holder, call)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self, time: Duration) -> Result<(), Breach> {
        let until = self.now + time;
        while let Some(due) = self.head.deadline().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.head.on_deadline(self.now);
            self.obey()?;
        }
        self.now = until;
        Ok(())
    }

    fn obey(&mut self) -> Result<(), Breach> {
        while let Some(effect) = self.head.poll_effect() {
            match effect {
                HeadEffect::Launch(holder) => {
                    let is_new = self.launched.insert(holder);
                    self.holds(Invariant::NumbersGrow, is_new, || format!("{holder} is launched twice"))?;
                    self.launch(holder);
                }
                HeadEffect::Record(record) => {
                    let numbers =
                        |of: &HeadRecord| [of.membership.0, of.plan.0, of.rollback.0, of.checkpoint.0];
                    let (before, after) = (numbers(&self.record), numbers(&record));
                    let grow = before.iter().zip(&after).all(|(before, after)| before <= after);
                    self.holds(Invariant::NumbersGrow, grow, || {
                        format!(
                            "numbers of membership, plan, rollback and checkpoint: {before:?}, then {after:?}"
                        )
                    })?;
                    self.record = *record;
                }
                HeadEffect::Kill(holder) if self.servers.remove(&holder) => {
                    self.written.clear();
                    self.news.push(holder);
                }
                HeadEffect::Kill(holder) if self.lives.contains_key(&holder) => {
                    self.die(holder, 0);
                    self.news.push(holder);
                }
                HeadEffect::Servers(_) | HeadEffect::Weights(_) => {
                    let none = self.servers.is_empty();
                    self.holds(Invariant::NumbersGrow, none, || {
                        "the number of servers or their weights change while some are up".to_owned()
                    })?;
                }
                HeadEffect::Kill(_) | HeadEffect::Order(_) | HeadEffect::Note { .. } => {}
                HeadEffect::Settle(contribution) => {
                    let holder = contribution.holder;
                    self.holds(Invariant::SettledFirst, !self.released.contains(&holder), || {
                        format!("{holder} was settled after its leases went back: {contribution:?}")
                    })?;
                    self.service.settle(&contribution.acks);
                }
                HeadEffect::LedgerLost(holder) => {
                    self.released.insert(holder);
                    self.service.lost(holder);
                }
                HeadEffect::Joined(holder, joined) => self.joined(holder, joined)?,
                HeadEffect::Committed(holder, commit) => {
                    // Of the dead, too: all of them are in the step.
                    for contributor in commit.contributors.keys() {
                        // Where workers take steps of their own, each counts them itself.
                        if self.capabilities.mixes()
                            && let Some((step, of)) =
                                self.ready.keys().copied().find(|(_, of)| of == contributor)
                            && let Some(made) = self.ready.remove(&(step, of))
                        {
                            self.learn(*contributor, &made)?;
                        }
                        if let Some(pushed) = self.ready.remove(&(commit.step, *contributor)) {
                            if self.capabilities.steps_in_common() {
                                self.learn(*contributor, &pushed)?;
                            } else {
                                self.counted.entry(*contributor).or_default().extend(pushed);
                            }
                        }
                    }
                    if let Some(life) = self.lives.get_mut(&holder)
                        && matches!(
                            life.call,
                            Some(Call::Ready { step, .. } | Call::ReadyBeside { step, .. }) if step == commit.asked
                        )
                    {
                        life.coming = Some(Reply::Committed(commit).into());
                    }
                }
                HeadEffect::Undone(holder) => {
                    self.ready.retain(|(_, of), _| *of != holder || !self.capabilities.mixes());
                    if let Some(life) = self.lives.get_mut(&holder)
                        && matches!(life.call, Some(Call::Ready { .. } | Call::ReadyBeside { .. }))
                    {
                        life.coming = Some(Reply::Broken.into());
                    }
                }
                HeadEffect::RollBack(rollback) => {
                    self.rollback = rollback;
                    self.has_forgotten = true;
                    self.to_restore = true;
                    self.overtaken.clear();
                }
                HeadEffect::Rested { holder, checkpoint, keep, pushes } => {
                    self.count(&pushes)?;
                    if let Some(life) = self.lives.get_mut(&holder)
                        && life.call == Some(Call::Rest(checkpoint))
                    {
                        if keep {
                            life.keeps = Some((checkpoint, 0));
                        } else {
                            life.coming = Some(Reply::Rested.into());
                        }
                    }
                }
                HeadEffect::End(outcome) => self.end = Some(outcome),
            }
        }
        Ok(())
    }

    fn launch(&mut self, holder: Holder) {
        if holder.node.role == Role::Server {
            self.servers.insert(holder);
            self.news.push(holder);
            return;
        }
        let life = Life {
            stage: Stage::Starting,
            session: AgentSession::new(self.now, Duration::from_secs(3600)),
            worker: WorkerLoop::new(holder, &self.mode, self.now),
            call: None,
            coming: None,
            batch: Batch::default(),
            piece: Batch::default(),
            beside: None,
            gradient_of: None,
            begun: PlanVersion(0),
            unreadable: false,
            hangs: false,
            model: None,
            trained: false,
            prepared: None,
            of_all: false,
            advanced: Vec::new(),
            group: None,
            keeps: None,
            rollback: RollbackId(0),
            connected: BTreeSet::new(),
        };
        self.lives.insert(holder, life);
    }

    fn register(&mut self, holder: Holder) -> Result<HeadAnswer, Breach> {
        let info = NodeInfo {
            holder,
            host: format!("host-{}", holder.node.index / 2),
            device: DeviceClass::default(),
            memory_bytes: None,
            batch_size_min: 1,
            batch_size_max: self.global_batch_size,
        };
        let data_address = format!("127.0.0.1:{}", 1000 + holder.node.index);
        self.tell(HeadEvent::Register(Registration { info, data_address, process_id: 1 }))
    }

    /// All heartbeats, news of deaths, and a question to the policy.
    fn beat(&mut self) -> Result<(), Breach> {
        for holder in std::mem::take(&mut self.news) {
            if self.servers.contains(&holder) {
                self.register(holder)?;
            } else {
                self.tell(HeadEvent::Exited(holder, Exit::Killed { signal: 9 }, Vec::new()))?;
            }
        }
        for holder in self.servers.clone() {
            let (plan_ready, plan_applied) = Default::default();
            self.tell(HeadEvent::Heartbeat { holder, reports: Vec::new(), plan_ready, plan_applied })?;
        }
        for holder in self.lives.keys().copied().collect::<Vec<_>>() {
            let Some(life) = self.lives.get_mut(&holder).filter(|life| life.stage != Stage::Starting) else {
                continue;
            };
            if life.hangs {
                let stall = Stall { work: Work::Training, lasts: Duration::MAX };
                self.tell(HeadEvent::Stalled { holder, stall })?;
            }
            let Some(life) = self.lives.get_mut(&holder) else { continue };
            let beat = life.session.beat();
            let reports = beat.reports.into_iter().map(|r| (r.report, r.loss_sum)).collect();
            let (plan_ready, plan_applied) = (beat.plan_ready, beat.plan_applied);
            let answer = self.tell(HeadEvent::Heartbeat { holder, reports, plan_ready, plan_applied })?;
            let Some(life) = self.lives.get_mut(&holder) else { continue };
            let reply = match answer {
                HeadAnswer::Beat(reply) => *reply,
                _ => BeatReply { fenced: true, ..BeatReply::default() },
            };
            let of_all = life.group.map(|(version, _)| version);
            let broken = reply.broken_group.filter(|version| of_all == Some(*version));
            life.session.beat_answered(self.now, reply);
            let over = matches!(life.session.state(), SessionState::Fenced | SessionState::MasterLost);
            if over {
                self.die(holder, 0);
                self.news.push(holder);
            } else if broken.is_some() {
                self.break_off(holder);
            }
        }
        for (checkpoint, _) in std::mem::take(&mut self.written) {
            self.newest = self.newest.max(Some(checkpoint));
            self.tell(HeadEvent::Kept { checkpoint, outcome: Ok("here".to_owned()) })?;
        }
        if std::mem::take(&mut self.to_restore) {
            let to = self.restore();
            let rollback = self.rollback;
            self.tell(HeadEvent::RolledBack { rollback, outcome: Ok(to) })?;
        }
        let counts = self.service.counts();
        self.tell(HeadEvent::Tick(Some(counts))).map(|_| ())
    }

    fn moment(&self) -> Moment {
        Moment { in_model: self.in_model.clone(), progress: self.service.progress() }
    }

    /// Model and ledger go back to the newest checkpoint, or to the start.
    fn restore(&mut self) -> RolledBack {
        let moment = self.moments[&self.newest.unwrap_or(CheckpointId(0))].clone();
        self.valid_from = self.service.set_back(&moment.progress);
        self.in_model = moment.in_model;
        self.counted.clear();
        self.steps.clear();
        self.ready.clear();
        self.written.clear();
        RolledBack {
            checkpoint: self.newest.map(|checkpoint| checkpoint.to_string().into()),
            counts: self.service.counts(),
            text: "back".to_owned(),
        }
    }

    /// Whether a worker can reach all servers that it has connections to.
    fn reaches_servers(&self, holder: Holder) -> bool {
        !self.capabilities.needs_servers()
            || self
                .lives
                .get(&holder)
                .is_some_and(|life| !life.connected.is_empty() && life.connected == self.servers)
    }

    fn joined(&mut self, holder: Holder, joined: Arc<Joined>) -> Result<(), Breach> {
        let sizes: u32 = joined.plan.batch_sizes.values().sum();
        let fits = joined.finished
            || joined.plan.batch_sizes.is_empty()
            || !self.capabilities.sums_to_global_batch()
            || sizes == self.global_batch_size;
        self.holds(Invariant::GlobalBatch, fits, || {
            format!(
                "{holder} is told batch sizes of {sizes} in all, where {} is the global batch",
                self.global_batch_size
            )
        })?;
        self.count(&joined.pushes)?;
        if let Some(life) = self.lives.get_mut(&holder)
            && matches!(life.call, Some(Call::Join(_)))
        {
            // All start from the seed.
            life.trained |= !joined.finished && joined.next_step == 0;
            life.coming = Some(Reply::Joined(Box::new(Arc::unwrap_or_clone(joined))).into());
        }
        Ok(())
    }

    // Workers.

    fn is_able(&self, holder: Holder) -> bool {
        self.lives.get(&holder).filter(|life| !life.hangs).is_some_and(|life| match life.stage {
            Stage::Starting => true,
            Stage::Training => life.coming.is_some() || life.keeps.is_some() || life.may_finish(),
            Stage::Leaving { .. } | Stage::Evaluating | Stage::Exiting => true,
        })
    }

    /// A process does the next thing.
    fn act(&mut self, holder: Holder) -> Result<(), Breach> {
        let reaches = self.reaches_servers(holder);
        let Some(life) = self.lives.get_mut(&holder).filter(|_| self.end.is_none()) else { return Ok(()) };
        match life.stage {
            Stage::Starting => {
                self.tell(HeadEvent::Started(holder))?;
                let answer = self.register(holder)?;
                let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
                if let HeadAnswer::Registered { plan, .. } = answer {
                    life.session.beat_answered(self.now, BeatReply { plan, ..BeatReply::default() });
                    life.stage = Stage::Training;
                    life.coming = Some(Reply::Begin.into());
                } else {
                    life.stage = Stage::Exiting;
                }
            }
            Stage::Training if life.keeps.is_some() => self.keep(holder)?,
            Stage::Training => self.train(holder)?,
            Stage::Leaving { end_of_data, can_evaluate } => {
                let answer = self.tell(HeadEvent::Leave { holder, end_of_data, can_evaluate })?;
                let (evaluate, checkpoint) = match answer {
                    HeadAnswer::Left { evaluate, checkpoint, pushes } => {
                        self.count(&pushes)?;
                        (evaluate, checkpoint)
                    }
                    _ => (false, None),
                };
                if (evaluate || checkpoint.is_some()) && !self.reaches_servers(holder) {
                    return self.fails(holder, checkpoint);
                }
                if let Some(checkpoint) = checkpoint {
                    self.is_exact(holder, checkpoint)?;
                    // Before it goes on, it waits until its part is written.
                    self.written.push((checkpoint, None));
                }
                self.enter_stage(holder, if evaluate { Stage::Evaluating } else { Stage::Exiting });
            }
            Stage::Evaluating if !reaches => self.fails(holder, None)?,
            Stage::Evaluating => {
                self.tell(HeadEvent::Evaluated { holder, samples: 1, metrics: Metrics::default() })?;
                self.enter_stage(holder, Stage::Exiting);
            }
            Stage::Exiting => {
                self.remove(holder);
                self.tell(HeadEvent::Exited(holder, Exit::Finished, Vec::new()))?;
            }
        }
        Ok(())
    }

    /// A worker that has left fails at the checkpoint that it is to take, or at the evaluation.
    fn fails(&mut self, holder: Holder, checkpoint: Option<CheckpointId>) -> Result<(), Breach> {
        if let Some(checkpoint) = checkpoint {
            self.tell(HeadEvent::Cut { checkpoint, taken: Err("a server is gone".to_owned()) })?;
        }
        self.remove(holder);
        self.tell(HeadEvent::Exited(holder, Exit::Retryable { code: Exit::CODE_RETRY }, Vec::new()))?;
        Ok(())
    }

    fn enter_stage(&mut self, holder: Holder, stage: Stage) {
        if let Some(life) = self.lives.get_mut(&holder) {
            life.stage = stage;
        }
    }

    /// The training loop gets the reply that is there, and makes its next call.
    fn train(&mut self, holder: Holder) -> Result<(), Breach> {
        self.now = self.now + MOMENT;
        let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
        // An answer of the master may be on its way when the gradient is there.
        if life.may_finish() && (life.coming.is_none() || (self.now.0 / MOMENT_NANOS).is_multiple_of(3)) {
            life.coming = Some(life.finished().into());
        }
        let Some(coming) = life.coming.take() else { return Ok(()) };
        if let Some(parts) = coming.parts {
            life.prepared = Some(parts);
        }
        match &coming.reply {
            Reply::Entered => life.trained = true,
            Reply::Joined(joined) => {
                life.connected.clone_from(&self.servers);
                if joined.rollback > life.rollback {
                    life.rollback = joined.rollback;
                    life.trained = !joined.finished && joined.next_step == 0;
                    life.model = None;
                    life.prepared = None;
                    life.advanced.clear();
                    life.beside = None;
                }
                life.trained |= !self.capabilities.forms_groups() && !joined.finished;
            }
            _ => {}
        }
        let call = life.worker.step(self.now, &mut life.session, &coming.reply);
        life.call = Some(call.clone());
        if let Reply::Joined(joined) = &coming.reply
            && !joined.finished
            && self.capabilities.forms_groups()
            // One that asks again takes it for the answer to an earlier question.
            && !matches!(call, Call::Join(_))
        {
            self.goes_on(holder, joined)?;
        }
        self.begin(holder, call)
    }

    /// A worker goes on in a new group, with the model that it has or with that of another member.
    fn goes_on(&mut self, holder: Holder, joined: &Joined) -> Result<(), Breach> {
        let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
        if !joined.commit_prepared {
            life.prepared = None;
        }
        let to_apply = life.prepared.as_ref().is_some_and(|(step, _)| step + 1 == joined.next_step);
        let before =
            std::mem::replace(&mut life.model, joined.next_step.checked_sub(1 + u64::from(to_apply)));
        let own_steps = self.capabilities.barrier == Barrier::Peers;
        let (same, after) = (own_steps || !life.trained || before == life.model, life.model);
        self.holds(Invariant::SameModel, same, || {
            format!("{holder} has step {before:?}, and goes on with members that have step {after:?}")
        })
    }

    fn allowed(&self, holder: Holder, call: &Call) -> Result<(), Breach> {
        let c = self.capabilities;
        let allowed = match call {
            Call::Combine { peers: Peers::Few(_), .. } => c.mixes() && c.waits_for_all(),
            Call::Combine { peers: Peers::Apart { .. }, .. } => c.mixes() && c.barrier == Barrier::Peers,
            Call::Enter(_) => c.forms_groups(),
            Call::Combine { .. } | Call::Agree(_) => c.forms_groups() && c.steps_in_common(),
            Call::Apply => c.forms_groups() || !c.steps_in_common(),
            Call::Pull | Call::Push { .. } => c.needs_servers(),
            Call::Ready { .. } | Call::ReadyBeside { .. } => {
                c.late_workers_stay() || c.acks == AckPoint::Commit
            }
            Call::ComputeBeside | Call::Finish => c.averages_models() || c.late_workers_stay(),
            Call::Advance | Call::Revert => c.averages_models(),
            // What the master commits, it acknowledges too.
            Call::Exchange { acks, .. } => acks.is_empty() || c.acks != AckPoint::Commit,
            Call::Join(_)
            | Call::Register(_)
            | Call::Release(_)
            | Call::Fail { .. }
            | Call::Sleep(_)
            | Call::Load(_)
            | Call::LoadPiece(..)
            | Call::Compute
            | Call::Rest(_)
            | Call::Stop(_) => true,
        };
        self.holds(Invariant::Capabilities, allowed, || {
            format!("{holder} asks for {call:?}, where the mode says {c:?}")
        })
    }

    fn begin(&mut self, holder: Holder, call: Call) -> Result<(), Breach> {
        self.allowed(holder, &call)?;
        let reply = match call {
            Call::Join(standing) => {
                self.leave_group(holder);
                if self.has_forgotten {
                    self.never_comes(holder);
                }
                self.overtaken.remove(&holder);
                self.joins.push_back((holder, standing.clone()));
                if self.joins.len() > OLD_JOINS {
                    self.joins.pop_front();
                }
                let answer = self.tell(HeadEvent::Join { holder, standing })?;
                if !matches!(answer, HeadAnswer::Parked) {
                    self.enter_stage(holder, Stage::Exiting);
                }
                return Ok(());
            }
            Call::Enter(joined) => {
                let version = (joined.membership, 0);
                let members = || joined.members.iter().map(|(member, _)| *member).collect();
                let new = || TrialGroup { members: members(), parts: BTreeMap::new(), broken: false };
                self.groups.entry(version).or_insert_with(new);
                if let Some(life) = self.lives.get_mut(&holder) {
                    life.group = Some(version);
                }
                return self.meet(holder, Part::Enter);
            }
            Call::Combine { step, samples, acks, peers } => {
                let Some(life) = self.lives.get(&holder) else { return Ok(()) };
                let fragments = match self.capabilities.averages_models() {
                    true => life.advanced.clone(),
                    // A late gradient stays where it is.
                    false if samples == 0 => Vec::new(),
                    false => life.batch.fragments.to_vec(),
                };
                let is_here = samples == 0 || life.beside.is_none() || self.capabilities.averages_models();
                self.holds(Invariant::NeverConfused, is_here, || {
                    format!("{holder} combines a gradient that is being computed")
                })?;
                let (begun, applied) = (life.begun, life.worker.actions().0);
                let has_begun = begun == applied || self.capabilities.averages_models();
                self.holds(Invariant::SameModel, has_begun, || {
                    format!("{holder} takes a step under plan {applied}, and has carried out plan {begun}")
                })?;
                let (of, now) = (life.gradient_of, life.model);
                let is_of_model = samples == 0 || of == Some(now) || self.capabilities.averages_models();
                self.holds(Invariant::SameModel, is_of_model, || {
                    format!("{holder} brings a gradient of the model of step {of:?} to one of step {now:?}")
                })?;
                if let Peers::Apart { group, ranks } = &peers
                    && !self.goes_apart(holder, *group, ranks)
                {
                    self.break_off(holder);
                    return Ok(());
                }
                return self.meet(holder, Part::Combine { step, acks, fragments, peers });
            }
            Call::Agree(lanes) => return self.meet(holder, Part::Agree(lanes)),
            Call::Ready { step, readiness } | Call::ReadyBeside { step, readiness } => {
                // It asks for its next step.
                self.overtaken.remove(&holder);
                let makes_step = match self.capabilities.mixes() {
                    true => readiness.samples > 0,
                    // A worker that asks for its turn has pushed nothing yet.
                    false => !readiness.acks.is_empty(),
                };
                let is_pushed = makes_step && self.capabilities.acks == AckPoint::Commit;
                if let Some(life) = self.lives.get(&holder).filter(|_| is_pushed) {
                    let made = match self.capabilities.averages_models() {
                        true => life.advanced.clone(),
                        false => life.batch.fragments.to_vec(),
                    };
                    self.ready.insert((step, holder), made);
                }
                match self.tell(HeadEvent::Ready { holder, step, readiness })? {
                    HeadAnswer::Parked => return Ok(()),
                    HeadAnswer::Undone => Reply::Broken,
                    _ => {
                        self.enter_stage(holder, Stage::Exiting);
                        return Ok(());
                    }
                }
            }
            Call::Rest(checkpoint) => {
                let answer = self.tell(HeadEvent::Rest { holder, checkpoint })?;
                if !matches!(answer, HeadAnswer::Parked) {
                    self.enter_stage(holder, Stage::Exiting);
                }
                return Ok(());
            }
            Call::Stop(end) => return self.stopped(holder, &end),
            Call::Register(held) => Reply::Registered(self.service.register(holder, &held)),
            Call::Exchange { .. } | Call::Release(_) | Call::Fail { .. } if !self.service.knows(holder) => {
                Reply::ServiceRestarted
            }
            Call::Exchange { acks, want, .. } => Reply::Exchanged(self.exchange(holder, &acks, want)?),
            Call::Release(acks) => {
                self.service.release(holder, &acks);
                self.acked_is_in_model(holder)?;
                Reply::Released
            }
            Call::Fail { at, .. } => {
                self.service.release(holder, &[at]);
                self.acked_is_in_model(holder)?;
                Reply::Released
            }
            Call::Sleep(_) => Reply::Slept,
            Call::Load(_) | Call::LoadPiece(..) => {
                let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
                let (batch, micro) = call.loads().expect("it loads");
                life.begun = life.worker.actions().0;
                life.piece = batch.piece(micro);
                if micro.is_first() {
                    life.batch = Batch::default();
                }
                // A gradient that nobody waited for is dropped.
                life.beside = None;
                let first = life.piece.samples().next();
                match first.filter(|_| std::mem::take(&mut life.unreadable)) {
                    Some(sample) => {
                        life.batch = Batch::default();
                        life.piece = Batch::default();
                        Reply::Unreadable { sample, why: "torn".to_owned() }
                    }
                    None => Reply::Loaded,
                }
            }
            Call::Pull | Call::Push { .. } if !self.reaches_servers(holder) => Reply::Broken,
            Call::Apply if self.capabilities.needs_servers() && !self.reaches_servers(holder) => {
                Reply::Broken
            }
            Call::Apply if self.capabilities.needs_servers() => {
                self.count(&[PushMark { holder, step: None }])?;
                Reply::Applied
            }
            Call::Pull => {
                self.begins_step(holder)?;
                Reply::Pulled
            }
            Call::Compute => {
                let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
                let piece = std::mem::take(&mut life.piece);
                let samples = piece.len();
                life.gradient_of = Some(life.model);
                life.batch.fragments.extend(piece.fragments);
                Reply::Computed { samples, loss_sum: 0.5 }
            }
            Call::ComputeBeside => {
                let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
                let piece = std::mem::take(&mut life.piece);
                life.beside = Some(piece.len());
                life.gradient_of = Some(life.model);
                life.batch.fragments.extend(piece.fragments);
                Reply::Computing
            }
            Call::Finish => {
                let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
                let reply = life.finished();
                self.holds(Invariant::NeverConfused, reply != Reply::Broken, || {
                    format!("{holder} waits for a gradient that was not begun")
                })?;
                reply
            }
            Call::Apply => {
                self.apply(holder)?;
                Reply::Applied
            }
            Call::Push { .. } => Reply::Pushed,
            Call::Advance => {
                let is_here = self.lives.get(&holder).is_none_or(|life| life.beside.is_none());
                self.holds(Invariant::NeverConfused, is_here, || {
                    format!("{holder} applies a gradient that is being computed")
                })?;
                if let Some(life) = self.lives.get_mut(&holder) {
                    let batch = life.batch.fragments.to_vec();
                    life.advanced.extend(batch);
                    life.of_all = false;
                }
                Reply::Advanced
            }
            Call::Revert => {
                if let Some(life) = self.lives.get_mut(&holder) {
                    life.advanced.clear();
                }
                Reply::Reverted
            }
        };
        if let Some(life) = self.lives.get_mut(&holder) {
            life.coming = Some(reply.into());
        }
        Ok(())
    }

    fn stopped(&mut self, holder: Holder, end: &End) -> Result<(), Breach> {
        let stage = match end {
            End::EndOfData { trained } => {
                let undone = self.lives.get(&holder).is_some_and(|life| life.rollback < self.rollback);
                self.holds(Invariant::NoEarlyEnd, undone || self.service.is_done(), || {
                    format!("{holder} says that the data has ended at {:?}", self.service.counts())
                })?;
                Stage::Leaving { end_of_data: true, can_evaluate: *trained }
            }
            End::Drained => Stage::Leaving { end_of_data: false, can_evaluate: false },
            End::Failed(why) => {
                self.holds(Invariant::NeverConfused, false, || format!("{holder} stops: {why}"))?;
                Stage::Exiting
            }
        };
        self.leave_group(holder);
        self.overtaken.remove(&holder);
        self.enter_stage(holder, stage);
        Ok(())
    }

    // Checkpoints.

    /// The keeper has the ledger cut: at once where every worker stands still, else when all that is in its model is
    /// acknowledged.
    fn keep(&mut self, holder: Holder) -> Result<(), Breach> {
        let reaches = self.reaches_servers(holder);
        let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
        let Some((checkpoint, tries)) = life.keeps.take() else { return Ok(()) };
        let in_model: u64 = self.in_model.iter().map(|times| u64::from(*times)).sum();
        let acked = self.service.counts().acked;
        let whole = reaches && (!self.capabilities.steps_in_common() || acked == in_model);
        if !whole && reaches && tries < CUT_TRIES {
            life.keeps = Some((checkpoint, tries + 1));
            return Ok(());
        }
        let taken =
            if whole { Ok(()) } else { Err("the ledger has other samples than the model".to_owned()) };
        if whole {
            self.is_exact(holder, checkpoint)?;
            let writer = self.capabilities.forms_groups().then_some(holder);
            self.written.push((checkpoint, writer));
        }
        self.tell(HeadEvent::Cut { checkpoint, taken })?;
        if self.capabilities.forms_groups() {
            if let Some(life) = self.lives.get_mut(&holder) {
                life.coming = Some(Reply::Rested.into());
            }
            return Ok(());
        }
        // It asks whether the job hands its servers over, and stands still for that if it does.
        self.tell(HeadEvent::Rest { holder, checkpoint }).map(|_| ())
    }

    fn is_exact(&mut self, holder: Holder, checkpoint: CheckpointId) -> Result<(), Breach> {
        self.moments.insert(checkpoint, self.moment());
        let of_all = self.lives.get(&holder).is_some_and(|life| life.of_all);
        self.holds(Invariant::ExactCheckpoint, of_all || !self.capabilities.mixes(), || {
            format!("{holder} takes checkpoint {checkpoint} of a model that is its own")
        })?;
        let acked: BTreeSet<u64> = self.service.acked().collect();
        let wrong = (0_u64..)
            .zip(&self.in_model)
            .find(|(sample, times)| if acked.contains(sample) { **times == 0 } else { **times > 0 });
        self.holds(Invariant::ExactCheckpoint, wrong.is_none(), || {
            let (sample, times) = wrong.expect("one was found");
            let acked = if acked.contains(&sample) { "acknowledged" } else { "not acknowledged" };
            format!("in checkpoint {checkpoint} of {holder}, sample {sample} is {acked} and {times} times in the model")
        })
    }

    // The model.

    /// These samples become part of the model.
    fn learn(&mut self, holder: Holder, fragments: &[Fragment]) -> Result<(), Breach> {
        let old = fragments.iter().find(|fragment| fragment.grant.lease.generation < self.valid_from);
        self.holds(Invariant::ExactRollback, old.is_none(), || {
            format!("after the rollback, what {holder} trained before it gets into the model: {old:?}")
        })?;
        for sample in fragments.iter().flat_map(Fragment::samples) {
            let at = usize::try_from(sample).unwrap_or(usize::MAX);
            self.in_model[at] += 1;
            let times = self.in_model[at];
            self.holds(Invariant::OnceInModel, times == 1, || {
                format!("sample {sample}, of {holder}, is in the model {times} times")
            })?;
        }
        Ok(())
    }

    /// The servers apply what counts of these lives.
    fn count(&mut self, pushes: &[PushMark]) -> Result<(), Breach> {
        for mark in pushes {
            if let Some(fragments) = self.counted.remove(&mark.holder) {
                self.learn(mark.holder, &fragments)?;
            }
        }
        Ok(())
    }

    /// A worker applies what was combined last.
    fn apply(&mut self, holder: Holder) -> Result<(), Breach> {
        let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
        let replaced = std::mem::take(&mut life.advanced);
        let (before, prepared) = (life.model, life.prepared.take());
        let given = prepared.as_ref().and_then(|(_, parts)| parts.by.get(&holder).cloned());
        let is_kept = !self.capabilities.averages_models() || given.is_none_or(|given| given == replaced);
        self.holds(Invariant::MeanKept, is_kept, || {
            format!("{holder} replaces a model by the mean that is not the one which it gave")
        })?;
        let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
        let Some((step, parts)) = prepared else {
            return self.holds(Invariant::SameModel, false, || {
                format!("{holder} applies a step, and no result came since the last one")
            });
        };
        life.model = Some(step);
        life.of_all = parts.for_all;
        if self.capabilities.barrier == Barrier::Peers {
            // Each takes steps of its own, and the master has committed this one.
            return Ok(());
        }
        if life.rollback < self.rollback {
            // The job went back without it; nobody takes its model, and it is started again when it asks for something.
            return Ok(());
        }
        let follows = before.map_or(0, |before| before + 1);
        self.holds(Invariant::SameModel, follows == step, || {
            format!("{holder} applies step {step} to a model of which step {follows} is the next")
        })?;
        if let Some(known) = self.steps.get(&step) {
            return self.holds(Invariant::SameModel, *known == parts, || {
                format!("{holder} applies another step {step} than others: {parts:?}, not {known:?}")
            });
        }
        self.steps.insert(step, Arc::clone(&parts));
        for (member, fragments) in &parts.by {
            self.learn(*member, fragments)?;
        }
        Ok(())
    }

    fn exchange(&mut self, holder: Holder, acks: &Acks, want: u32) -> Result<antdt_core::Exchanged, Breach> {
        let exchanged = self.service.exchange(holder, acks, want);
        self.acked_is_in_model(holder)?;
        Ok(exchanged)
    }

    /// A worker begins a step with the parameters that it pulls. Where workers may be `n` steps ahead, it may have been `n` behind one
    /// that is in a step all the while, and be `n` ahead of it at the end: it begins no more than `2n + 1` meanwhile.
    fn begins_step(&mut self, holder: Holder) -> Result<(), Breach> {
        let Barrier::Within(lead) = self.capabilities.barrier else { return Ok(()) };
        let most = 2 * lead + 1;
        let mut left_behind = None;
        for (slow, others) in self.overtaken.iter_mut().filter(|(slow, _)| **slow != holder) {
            let steps = others.entry(holder).or_default();
            *steps += 1;
            if *steps > most {
                left_behind = Some(*slow);
            }
        }
        self.overtaken.insert(holder, BTreeMap::new());
        self.holds(Invariant::BoundedLead, left_behind.is_none(), || {
            format!(
                "{holder} begins more than {most} steps while {} is in one",
                left_behind.unwrap_or(holder)
            )
        })
    }

    fn acked_is_in_model(&self, holder: Holder) -> Result<(), Breach> {
        // What the master has settled for the dead comes into the survivors' model with their next step.
        if self.capabilities.forms_groups() && !self.released.is_empty() {
            return Ok(());
        }
        // What counts is on its way into the model.
        let counted: BTreeSet<u64> = self.counted.values().flatten().flat_map(Fragment::samples).collect();
        let is_early = |sample: &u64| self.in_model[*sample as usize] == 0 && !counted.contains(sample);
        let early = self.service.acked().find(is_early);
        self.holds(Invariant::AckedIsInModel, early.is_none(), || {
            format!("{holder} acknowledges sample {}, which is in no model", early.unwrap_or_default())
        })
    }

    // Groups.

    /// A member comes to the next operation of its group.
    fn meet(&mut self, holder: Holder, part: Part) -> Result<(), Breach> {
        let version = self.lives.get(&holder).and_then(|life| life.group);
        let alive = |member: &Holder| {
            self.lives.get(member).is_some_and(|life| life.group.is_none_or(|group| Some(group) <= version))
        };
        let group = version.and_then(|version| self.groups.get_mut(&version));
        let Some(group) = group.filter(|group| !group.broken && group.members.iter().all(alive)) else {
            self.break_off(holder);
            return Ok(());
        };
        group.parts.insert(holder, part);
        if group.parts.len() < group.members.len() {
            return Ok(());
        }
        let parts = std::mem::take(&mut group.parts);
        let members = group.members.clone();
        let kinds: BTreeSet<String> = parts.values().map(Part::kind).collect();
        self.holds(Invariant::OneOperation, kinds.len() == 1, || {
            format!(
                "in one operation, one member {}",
                kinds.iter().cloned().collect::<Vec<_>>().join(" and one ")
            )
        })?;
        let coming = match &parts[&holder] {
            Part::Enter => Coming { of_group: true, ..Reply::Entered.into() },
            Part::Agree(_) => {
                let mut totals = [0.0; Lanes::LEN];
                for part in parts.values() {
                    if let Part::Agree(lanes) = part {
                        totals.iter_mut().zip(lanes.encode()).for_each(|(total, lane)| *total += lane);
                    }
                }
                let world = u32::try_from(members.len()).unwrap_or(u32::MAX);
                Coming { of_group: true, ..Reply::Agreed(Lanes::decide(&totals, world)).into() }
            }
            Part::Combine { step, peers, .. } => {
                let for_all = match peers {
                    Peers::All => true,
                    Peers::Few(_) => false,
                    Peers::Apart { .. } => {
                        let of_all = self.lives.get(&holder).and_then(|life| life.group);
                        let of_all = of_all.and_then(|(version, _)| self.groups.get(&(version, 0)));
                        of_all.is_some_and(|of_all| of_all.members.len() == members.len())
                    }
                };
                let (mut contributions, mut made) = (Vec::new(), BTreeMap::new());
                self.keeps_the_mean(&members, &parts)?;
                for member in &members {
                    if let Part::Combine { acks, fragments, .. } = &parts[member] {
                        contributions.push(Contribution { holder: *member, acks: acks.clone() });
                        made.insert(*member, fragments.clone());
                    }
                }
                let result = StepResult { step: *step, contributions: contributions.into() };
                Coming {
                    reply: Reply::Combined(result),
                    parts: Some((*step, Arc::new(Made { by: made, for_all }))),
                    of_group: true,
                }
            }
        };
        for member in &members {
            if let Some(life) = self.lives.get_mut(member) {
                life.coming = Some(coming.clone());
            }
        }
        Ok(())
    }

    /// A worker goes to a group apart from the one of all. Returns whether it is there.
    fn goes_apart(&mut self, holder: Holder, number: u64, ranks: &[Rank]) -> bool {
        let version = self.lives.get(&holder).and_then(|life| life.group).map(|(version, _)| version);
        let Some(version) = version else { return false };
        let Some(all) = self.groups.get(&(version, 0)) else { return false };
        let members = ranks.iter().filter_map(|rank| all.members.get(rank.0 as usize).copied()).collect();
        let new = || TrialGroup { members, parts: BTreeMap::new(), broken: false };
        self.groups.entry((version, number)).or_insert_with(new);
        if let Some(life) = self.lives.get_mut(&holder) {
            life.group = Some((version, number));
        }
        true
    }

    /// In an average, the shares of each member's model in those of all add up to one.
    fn keeps_the_mean(&self, members: &[Holder], parts: &BTreeMap<Holder, Part>) -> Result<(), Breach> {
        let all = || (0..).map(Rank).take(members.len());
        let ranks = || match parts.values().next() {
            Some(Part::Combine { peers: Peers::Apart { ranks, .. }, .. }) => ranks.clone(),
            _ => all().collect(),
        };
        let few: Vec<&Peers> = members
            .iter()
            .filter_map(|member| match &parts[member] {
                Part::Combine { peers, .. } => Some(peers),
                Part::Enter | Part::Agree(_) => None,
            })
            .collect();
        let world = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let ranks = ranks();
        for (me, own) in ranks.iter().copied().zip(&few) {
            let takers = ranks.iter().copied().zip(&few).filter(|(_, peers)| peers.contains(me));
            let share: f64 = takers.clone().map(|(_, peers)| 1.0 / f64::from(peers.count(world))).sum();
            let mutual =
                takers.map(|(taker, _)| taker).eq(ranks.iter().copied().filter(|rank| own.contains(*rank)));
            self.holds(Invariant::MeanKept, mutual && (share - 1.0).abs() < 1e-9, || {
                format!(
                    "rank {me} of {world} has a share of {share} in the averages, and averages with {own:?}"
                )
            })?;
        }
        Ok(())
    }

    /// A worker gives up the operation that it waits in, and so do the workers that wait for it.
    fn break_off(&mut self, holder: Holder) {
        let in_operation = |life: &Life| {
            life.coming.is_none()
                && matches!(life.call, Some(Call::Enter(_) | Call::Combine { .. } | Call::Agree(_)))
        };
        let Some(life) = self.lives.get(&holder).filter(|life| in_operation(life)) else { return };
        let mut members = vec![holder];
        if let Some(group) = life.group.and_then(|version| self.groups.get_mut(&version)) {
            group.broken = true;
            group.parts.clear();
            members.extend(&group.members);
        }
        let group = life.group;
        for member in members {
            if let Some(life) =
                self.lives.get_mut(&member).filter(|life| in_operation(life) && life.group == group)
            {
                life.coming = Some(Reply::Broken.into());
            }
        }
    }

    /// The members of the groups apart that this worker does not come to give them up, after a while.
    fn never_comes(&mut self, holder: Holder) {
        let waits =
            |group: &TrialGroup| group.members.contains(&holder) && !group.parts.contains_key(&holder);
        let of =
            |((_, number), group): &(&(MembershipVersion, u64), &TrialGroup)| *number > 0 && waits(group);
        let waiting: Vec<Holder> = self
            .groups
            .iter()
            .filter(of)
            .filter_map(|(_, group)| group.parts.keys().next().copied())
            .collect();
        for member in waiting {
            self.break_off(member);
        }
    }

    /// A worker takes no part in its group any more.
    fn leave_group(&mut self, holder: Holder) {
        let Some(version) = self.lives.get_mut(&holder).and_then(|life| life.group.take()) else { return };
        let Some(group) = self.groups.get_mut(&version) else { return };
        group.broken = true;
        group.parts.remove(&holder);
        let waiting: Vec<Holder> = std::mem::take(&mut group.parts).into_keys().collect();
        for member in waiting {
            if let Some(life) = self.lives.get_mut(&member) {
                life.coming = Some(Reply::Broken.into());
            }
        }
    }

    /// A process ends at once. `luck` decides which members of its group still get the result that is on its way.
    fn die(&mut self, holder: Holder, luck: u8) {
        let group = self.lives.get(&holder).and_then(|life| life.group);
        if let Some(group) = group.and_then(|version| self.groups.get(&version)) {
            for (at, member) in group.members.clone().into_iter().enumerate() {
                let Some(life) = self.lives.get_mut(&member) else { continue };
                if luck >> (at % 8) & 1 == 0
                    && let Some(coming) = life.coming.as_mut().filter(|coming| coming.of_group)
                {
                    *coming = Reply::Broken.into();
                }
            }
        }
        // Its part of a checkpoint will not be written.
        self.written.retain(|(_, writer)| *writer != Some(holder));
        self.remove(holder);
    }

    fn remove(&mut self, holder: Holder) {
        self.leave_group(holder);
        self.overtaken.remove(&holder);
        self.lives.remove(&holder);
    }
}
