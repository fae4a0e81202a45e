//! A history played: a master, its workers, and what is around them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use antdt_core::{
    Capabilities, CheckpointId, Exit, Fragment, Generation, Holder, JobTime, MembershipVersion, RollbackId,
    Standing,
};
use antdt_monitor::MonitorConfig;

use super::Broken;
use super::history::{History, Job, Step};
use super::invariant::{Invariant, Invariants};
use super::service::Service;
use crate::head::{CheckpointEvery, CheckpointSchedule, Head, HeadConfig, HeadEvent, HeadRecord};
use crate::mode::SyncMode;
use crate::worker::Call;

mod scripted;

mod life;
mod master;
mod worker;

mod call;
mod group;
mod model;

use group::TrialGroup;
use life::{Life, Parts};
use scripted::{Scripted, Wish, pick};

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

/// What is wrong, by the promise.
type Breach = (Invariant, String);

impl Invariants {
    /// Replays a history of a job in a sync mode, and checks the invariants at every step.
    ///
    /// # Errors
    /// The first invariant that is broken, with the step and the history.
    pub fn check(&self, history: &History, mode: &SyncMode) -> Result<(), Broken> {
        let steps = history.steps();
        let broken = |at: usize, (invariant, what): Breach| {
            let place = match steps.get(at) {
                Some(step) => format!("{mode}, in step {} of {}: {step:?}", at + 1, steps.len()),
                None => format!("{mode}, after all {} steps, when nothing went wrong any more", steps.len()),
            };
            Broken::new(invariant, at + 1, place, what, history.clone())
        };
        let mut trial = Trial::new(self, history.setting(), mode);
        for (at, step) in steps.iter().enumerate() {
            trial.take(step).map_err(|breach| broken(at, breach))?;
        }
        trial.calm().map_err(|breach| broken(steps.len(), breach))
    }
}

/// Model and ledger of one moment.
#[derive(Debug, Clone)]
struct Moment {
    in_model: Vec<u32>,
    progress: Vec<u64>,
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
    wish: Wish,
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
fn config(mode: &SyncMode, job: &Job, wish: &Wish) -> HeadConfig {
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
        evaluations: None,
        choice: None,
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
        if holds || !self.invariants.contains(invariant) { Ok(()) } else { Err((invariant, what())) }
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
                    self.ended(holder, late)?;
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
                    self.ended(holder, late)?;
                }
            }
            Step::Break { process } => {
                if let Some(holder) = self.living(process) {
                    self.break_off(holder);
                }
            }
            Step::Plan { .. } | Step::Restart { .. } => {
                *self.wish.lock().unwrap_or_else(PoisonError::into_inner) = Some(step.clone());
            }
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

    /// A process was killed. If `late`, the master hears of it with the next heartbeats.
    fn ended(&mut self, holder: Holder, late: bool) -> Result<(), Breach> {
        if late {
            self.news.push(holder);
            return Ok(());
        }
        self.tell(HeadEvent::Exited(holder, Exit::Killed { signal: 9 }, Vec::new())).map(drop)
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
}
