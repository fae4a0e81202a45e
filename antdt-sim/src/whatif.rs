//! [`WhatIf`]: simulates one job under several policies, to compare them.
//!
//! The job and its conditions are read from a file: a recorded job (`antdt run --record FILE`), the slowdowns
//! of workers over time (`t_s,worker,slowdown`), or a scenario (`.toml`). A [`WhatIf`] runs it under one
//! policy after the other, each time from the same seed, so that all differences come from the policies.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::Duration;

use antdt_collective::schedule::{Choice, CostModel};
use antdt_controller::Policy;
use antdt_core::text::parse_duration;
use antdt_core::{DetRng, InvalidValue, JobTime, NodeId, Role, Seed};
use antdt_shard::{Assignment, Cut, Epochs};

use crate::journal::{self, Point, SimulatedJob};
use crate::model::compute::{Constant, Series, Slowdowns};
use crate::model::faults::Listed;
use crate::model::network::{AlphaBeta, SharedNic};
use crate::model::{Collective, Compute, Faults, Hosts, Models, Network, Scheduler, Site, scheduler};
use crate::read;
use crate::recording::{
    Facts, Open, RecordedCompute, RecordedFaults, RecordedStarts, RecordingError, open_plain,
};
use crate::replay::{ReplayError, read_slowdowns};
use crate::scenario::{Scenario, ScenarioError};
use crate::{Recording, Setup, Violation, World};

#[cfg(test)]
mod tests;

/// Reason why a what-if question cannot be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WhatIfError {
    /// The file cannot be read.
    #[error("{}: {source}; name a recording, a CSV of slowdowns or a scenario", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file contains nothing that can be simulated.
    #[error("{}: nothing is in it: {what}", path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
        /// Description of what is missing, and of the remedy.
        what: &'static str,
    },
    /// The CSV file of slowdowns cannot be read.
    #[error("{}: {source}", path.display())]
    Slowdowns {
        /// Path of the file.
        path: PathBuf,
        /// Reason why the file cannot be parsed.
        source: ReplayError,
    },
    /// The scenario cannot be read.
    #[error("{}: {source}", path.display())]
    Scenario {
        /// Path of the file.
        path: PathBuf,
        /// Reason why the scenario cannot be read.
        source: ScenarioError,
    },
    /// The recording cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The number of workers changed during the recorded job, which cannot be simulated.
    #[error(
        "{}: the number of workers changed while the job was recorded (`antdt scale`), and a simulated job keeps its own; \
         record a job without that", path.display()
    )]
    Scaled {
        /// Path of the file.
        path: PathBuf,
    },
    /// A setting is invalid.
    #[error(transparent)]
    Value(#[from] InvalidValue),
    /// The simulation violated an invariant.
    #[error(transparent)]
    Violated(#[from] Violation),
}

/// What a world is made of.
#[derive(Debug, Clone, PartialEq)]
enum Trace {
    Scenario(Box<Scenario>),
    Slowdowns(Slowdowns),
    Recording(Box<Facts>),
}

/// The conditions of a job, from a file, under which policies can be compared.
///
/// ```
/// use antdt_controller::policy::{NonDedicated, Unmanaged};
/// use antdt_sim::WhatIf;
///
/// let world = WhatIf::read(std::path::Path::new("scenarios/straggler.toml"))?;
/// let left_alone = world.run(Box::new(Unmanaged))?;
/// let managed = world.run(Box::new(NonDedicated::default()))?;
/// assert!(managed.completed < left_alone.completed);
/// # Ok::<(), antdt_sim::whatif::WhatIfError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct WhatIf {
    /// Settings of the job, from the recording or the scenario. A caller may change them before a run.
    pub setup: Setup,
    /// Network to simulate. `None` is the network of the scenario; for a recording, one whose operations take
    /// as long as the recorded ones; otherwise loopback.
    pub network: Option<CostModel>,
    /// Virtual time at which a run is ended.
    pub limit: JobTime,
    trace: Trace,
    speed: f64,
}

/// Samples per second of a worker whose slowdown is 1, by default.
const SPEED_DEFAULT: f64 = 1000.0;

/// Samples per worker and step in a job that only a CSV of slowdowns is known of.
const BATCH_DEFAULT: u32 = 64;

/// Virtual time after which a run is abandoned: a month.
const LIMIT_DEFAULT: Duration = Duration::from_secs(30 * 24 * 3600);

impl WhatIf {
    /// Reads a file: a recording (which begins with its header), a scenario (`.toml`), or else a CSV of
    /// slowdowns.
    ///
    /// # Errors
    /// If the file cannot be read, or contains nothing to simulate.
    pub fn read(path: &Path) -> Result<Self, WhatIfError> {
        Self::read_with(path, open_plain)
    }

    /// Reads a file as [`read`](Self::read) does; `open` opens it, and the files that a scenario names, so
    /// that they may be compressed.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_with(path: &Path, open: Open) -> Result<Self, WhatIfError> {
        let failed = |source| WhatIfError::Read { path: path.to_owned(), source };
        let empty = |what| WhatIfError::Empty { path: path.to_owned(), what };
        let (trace, setup) = if path.extension().is_some_and(|extension| extension == "toml") {
            let scenario = Scenario::read_with(path, open)
                .map_err(|source| WhatIfError::Scenario { path: path.to_owned(), source })?;
            let setup = scenario.setup.clone();
            (Trace::Scenario(Box::new(scenario)), setup)
        } else {
            let mut file = open(path).map_err(failed)?;
            let start = file.fill_buf().map_err(failed)?;
            match start.iter().find(|byte| !byte.is_ascii_whitespace()) {
                None => {
                    return Err(empty(
                        "name a recording (antdt run --record FILE), a CSV of slowdowns or a scenario",
                    ));
                }
                Some(b'{') => {
                    let facts = Recording::read_with(path, open)?.facts()?;
                    if facts.batches.is_empty() {
                        return Err(empty("no batch was recorded; record a job that trains"));
                    }
                    if facts.actions.iter().any(|action| action.kind == "SCALE") {
                        return Err(WhatIfError::Scaled { path: path.to_owned() });
                    }
                    let setup = setup_of(&facts)?;
                    (Trace::Recording(Box::new(facts)), setup)
                }
                Some(_) => {
                    let text = read::text(file).map_err(failed)?;
                    let slowdowns = read_slowdowns(&text)
                        .map_err(|source| WhatIfError::Slowdowns { path: path.to_owned(), source })?;
                    let setup = setup_for(&slowdowns);
                    (Trace::Slowdowns(slowdowns), setup)
                }
            }
        };
        let limit = JobTime::from_duration(LIMIT_DEFAULT);
        Ok(Self { setup, network: None, speed: SPEED_DEFAULT, limit, trace })
    }

    /// Makes the slowdowns of a CSV pass `factor` times faster, and the job shorter by the same factor.
    ///
    /// # Errors
    /// If the file was not a CSV of slowdowns, or the factor is invalid.
    pub fn compress(&mut self, factor: f64) -> Result<(), InvalidValue> {
        let Trace::Slowdowns(slowdowns) = &self.trace else {
            let remedy =
                "left out: only a CSV of slowdowns can pass faster; a scenario has speedup keys of its own";
            return Err(InvalidValue::new("speedup", factor, remedy));
        };
        let slowdowns = slowdowns.compressed(factor)?;
        self.setup.samples = setup_for(&slowdowns).samples;
        self.trace = Trace::Slowdowns(slowdowns);
        Ok(())
    }

    /// Sets the samples per second of a worker whose slowdown is 1, for a CSV of slowdowns; the default is 1,000. The
    /// job has the same length as before.
    ///
    /// # Errors
    /// If the file was not a CSV of slowdowns, or the speed is invalid.
    pub fn emulate_speed(&mut self, speed: f64) -> Result<(), InvalidValue> {
        const FIELD: &str = "emulate-speed";
        if !matches!(self.trace, Trace::Slowdowns(_)) {
            let remedy = "left out: only with a CSV of slowdowns the speed is not known; a scenario has the key \
                          compute.speed, a recording the times of its batches";
            return Err(InvalidValue::new(FIELD, speed, remedy));
        }
        Constant::speed(speed).map_err(|error| InvalidValue { field: FIELD.to_owned(), ..error })?;
        self.speed = speed;
        Ok(())
    }

    /// Returns the name of the policy of the recorded job or of the scenario; `None` for a CSV of slowdowns.
    pub fn policy(&self) -> Option<&str> {
        match &self.trace {
            Trace::Scenario(scenario) => Some(&scenario.policy),
            Trace::Recording(facts) => Some(&facts.head.policy),
            Trace::Slowdowns(_) => None,
        }
    }

    /// Returns what happened in the job whose recording or trace was read; `None` if the conditions come from another
    /// file.
    pub fn recorded(&self) -> Option<Run> {
        match &self.trace {
            Trace::Recording(facts) => Some(Run::recorded(facts)),
            Trace::Scenario(_) | Trace::Slowdowns(_) => None,
        }
    }

    /// Returns lines to show beside a simulated run that does not follow its recording: after the end of the recording, with workers
    /// that were not recorded, or with an end before the first death or action that was. Empty for other runs.
    pub fn beyond(&self, run: &Run) -> Vec<String> {
        let Trace::Recording(facts) = &self.trace else { return Vec::new() };
        if run.source != Provenance::Simulation {
            return Vec::new();
        }
        let mut lines = Vec::new();
        let last = || facts.batches.values().flatten().map(|batch| batch.end).max();
        if let Some(end) = facts.completed.or_else(last).filter(|end| run.completed > *end) {
            lines.push(format!(
                "the recording reaches until {:.1} s; after that each worker is assumed to be as fast as the median of its \
                 recorded batches, and nothing to go wrong",
                end.as_secs_f64()
            ));
        }
        let recorded = facts.batches.keys().filter(|node| node.role == Role::Worker).count();
        if let Some(more @ 1..) = (self.setup.workers as usize).checked_sub(recorded) {
            lines.push(format!(
                "{recorded} workers were recorded; the other {more} are assumed to be as fast as a typical one of these, and never to \
                 be slow or to die"
            ));
        }
        // The first plan is made before any batch, of every job.
        let begun = facts.batches.values().flatten().map(|batch| batch.end).min();
        let deaths = facts.ends.iter().filter(|end| !end.expected).map(|end| end.at);
        let actions = facts.actions.iter().map(|action| action.at).filter(|at| Some(*at) > begun);
        let first = deaths.chain(actions).min();
        if let Some(first) = first.filter(|first| run.completed < *first) {
            lines.push(format!(
                "the first death or action of the recording was at {:.1} s; a job that ends before shows little of a policy",
                first.as_secs_f64()
            ));
        }
        lines
    }

    /// Simulates the job under this policy, and returns its course.
    ///
    /// # Errors
    /// If the settings of the job are invalid.
    pub fn run(&self, policy: Box<dyn Policy>) -> Result<Run, WhatIfError> {
        let name = policy.name().to_owned();
        let world = World::new(self.setup.clone(), policy, self.models()?)?;
        let (outcome, _) = world.run(self.limit).map_err(|(violation, _)| violation)?;
        Ok(Run::simulated(&name, outcome))
    }

    /// Returns the models that the job runs under.
    fn models(&self) -> Result<Models, WhatIfError> {
        // A recorded job on another network has its processes on machines of their own.
        let moved = self.network.is_some() && matches!(self.trace, Trace::Recording(_));
        let hosts = Hosts::new(if moved { 1 } else { self.setup.workers_per_host })?;
        let priced = |model: CostModel| -> Result<Box<dyn Network>, InvalidValue> {
            Ok(Box::new(SharedNic::new(AlphaBeta::new(hosts, model, model, Choice::Auto)?)))
        };
        let given = self.network.map(priced).transpose()?;
        Ok(match &self.trace {
            Trace::Scenario(scenario) => {
                let mut scenario = scenario.clone();
                scenario.setup = self.setup.clone();
                let (_, _, mut models) = scenario.build(self.setup.seed).map_err(|source| match source {
                    ScenarioError::Value(error) => WhatIfError::Value(error),
                    source => WhatIfError::Scenario { path: PathBuf::from("the scenario"), source },
                })?;
                if let Some(network) = given {
                    models.network = network;
                }
                models
            }
            Trace::Slowdowns(slowdowns) => {
                let compute = Series::new(Constant::speed(self.speed)?, slowdowns.clone());
                Models {
                    compute: Box::new(compute),
                    network: given.map_or_else(|| priced(CostModel::LOOPBACK), Ok)?,
                    scheduler: Box::new(scheduler::Constant(Duration::ZERO)),
                    faults: Box::new(Listed::default()),
                }
            }
            Trace::Recording(facts) => {
                let compute: Box<dyn Compute> = match RecordedCompute::new(facts) {
                    Some(compute) => Box::new(compute),
                    None => Box::new(Constant::speed(self.speed)?),
                };
                let scheduler: Box<dyn Scheduler> = match RecordedStarts::new(facts) {
                    Some(starts) => Box::new(starts),
                    None => Box::new(scheduler::Constant(Duration::ZERO)),
                };
                let faults: Box<dyn Faults> = Box::new(RecordedFaults::new(facts));
                let network = match given {
                    Some(network) => network,
                    None => Box::new(AsRecorded {
                        messages: priced(CostModel::LOOPBACK)?,
                        gradient_bytes: self.setup.gradient_bytes,
                        took: communication(facts),
                        formed: facts.formed,
                    }),
                };
                Models { compute, network, scheduler, faults }
            }
        })
    }
}

/// A network on which the gradients of a step take as long as in the recorded job, however many take part, and whose first
/// group forms as it did.
#[derive(Debug)]
struct AsRecorded {
    messages: Box<dyn Network>,
    gradient_bytes: u64,
    took: Duration,
    /// Of the first group, until it was formed.
    formed: Option<Duration>,
}

impl Network for AsRecorded {
    fn message(
        &mut self,
        at: JobTime,
        from: Site,
        to: Site,
        bytes: u64,
        rng: &mut DetRng,
    ) -> Option<JobTime> {
        match (from, to) {
            // To a server and back, for a pull and for a push.
            (Site::Node(_), Site::Node(_)) => Some(at + self.took / 4),
            (Site::Master, _) | (_, Site::Master) => self.messages.message(at, from, to, bytes, rng),
        }
    }

    fn collective(&mut self, at: JobTime, operation: Collective, world: u32, rng: &mut DetRng) -> Duration {
        match operation {
            Collective::AllReduce(bytes) if bytes == self.gradient_bytes => self.took,
            // Of a step: it is part of what was recorded.
            Collective::AllGather(_) => Duration::ZERO,
            _ => self.messages.collective(at, operation, world, rng),
        }
    }

    fn form(&mut self, at: JobTime, world: u32, rng: &mut DetRng) -> Duration {
        self.formed.take().unwrap_or_else(|| self.messages.form(at, world, rng))
    }
}

/// What sending and receiving took in a step: the median of the worker that waited least for others meanwhile.
fn communication(facts: &Facts) -> Duration {
    let median = |batches: &Vec<crate::recording::BatchFact>| {
        let mut times: Vec<Duration> =
            batches.iter().map(|batch| batch.communicate / batch.batches).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    };
    facts.batches.values().filter_map(median).min().unwrap_or_default()
}

/// The recorded job.
fn setup_of(facts: &Facts) -> Result<Setup, InvalidValue> {
    let head = &facts.head;
    let duration = |name: &str, default: Duration| match facts.settings.get(name) {
        Some(text) => parse_duration(text),
        None => Ok(default),
    };
    let default = Setup::default();
    let mut setup = Setup {
        sync: head.sync.clone(),
        pace_rule: head.monitor.rule.clone(),
        workers: head.workers,
        servers: head.servers,
        global_batch_size: head.global_batch_size,
        max_restarts: head.max_restarts,
        heartbeat: head.heartbeat,
        silence_limit: head.monitor.liveness.lost_after.saturating_sub(head.heartbeat),
        control_tick: duration("control-tick", default.control_tick)?,
        collective_timeout: duration("collective-timeout", default.collective_timeout)?,
        seed: Seed(facts.settings.get("seed").and_then(|seed| seed.parse().ok()).unwrap_or_default()),
        // All processes of `antdt run` share a host.
        workers_per_host: head.workers,
        ..default
    };
    match &facts.dataset {
        Some(dataset) => {
            setup.samples = dataset.num_samples;
            if let Epochs::Finite(epochs) = dataset.epochs {
                setup.epochs = epochs;
            }
            if let Cut::Every(len) = dataset.cut {
                setup.shard_len = Some(len);
            }
            setup.static_sharding = matches!(dataset.assignment, Assignment::Static { .. });
        }
        // A program of the user's, which reads its data by itself: what it trained on is what there was.
        None => {
            let trained = facts.batches.values().flatten().map(|batch| batch.samples).sum();
            setup.samples = u64::max(trained, 1);
        }
    }
    Ok(setup)
}

/// A job for a CSV of slowdowns: as many workers, and as long as the series if no worker were slow.
fn setup_for(slowdowns: &Slowdowns) -> Setup {
    let default = Setup::default();
    let workers = u32::try_from(slowdowns.workers()).unwrap_or(u32::MAX);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast from a float saturates; what is too long is refused below"
    )]
    let samples = (slowdowns.period().as_secs_f64() * SPEED_DEFAULT * f64::from(workers)) as u64;
    let lasts = slowdowns.period() < LIMIT_DEFAULT && samples > 0;
    Setup {
        workers,
        global_batch_size: default.global_batch_size.max(workers.saturating_mul(BATCH_DEFAULT)),
        samples: if lasts { samples } else { default.samples },
        ..default
    }
}

/// An action of the policy in a run, or one that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAction {
    /// Time of the action.
    pub at: JobTime,
    /// Newest step of the job at that time; `None` for an action of a recording.
    pub step: Option<u64>,
    /// Name of the action, such as `ADJUST_BS` or `KILL_RESTART`.
    pub kind: String,
    /// Node that the action concerns, or `all`.
    pub target: String,
    /// Reason for the action, in words.
    pub reason: String,
}

impl From<journal::JournalAction> for RunAction {
    fn from(action: journal::JournalAction) -> Self {
        let journal::JournalAction { at, step, kind, target, reason } = action;
        Self { at, step: Some(step), kind: kind.to_owned(), target, reason }
    }
}

/// Origin of the figures of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provenance {
    /// The figures are from the recording of a real job.
    Recording,
    /// The figures are from the trace of a job that was simulated before.
    Trace,
    /// The figures are from a simulation of this program.
    Simulation,
}

impl Provenance {
    /// Returns the name of the origin: `recording`, `trace` or `simulation`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recording => "recording",
            Self::Trace => "trace",
            Self::Simulation => "simulation",
        }
    }

    /// Returns whether the figures are those of a real job. All other figures are only as good as the
    /// calibration says.
    pub const fn is_real(self) -> bool {
        matches!(self, Self::Recording)
    }
}

/// The course of one job: simulated under a policy, or read from a recording.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Name of the policy.
    pub policy: String,
    /// Origin of the figures.
    pub source: Provenance,
    /// `Ok` if every sample was committed; otherwise the reason for which the job ended.
    pub result: Result<(), String>,
    /// Whether the recording ends before the job does, so that the rest is unknown.
    pub cut_off: bool,
    /// Job completion time, or the time at which the job ended without completing.
    pub completed: JobTime,
    /// Number of committed samples.
    pub samples: u64,
    /// Number of steps taken.
    pub steps: u64,
    /// Share of the workers' time in which they did not compute, 0 to 1.
    pub idle_share: f64,
    /// Actions that were taken, in order.
    pub actions: Vec<RunAction>,
    /// Batches of each worker over time.
    pub series: BTreeMap<NodeId, Vec<Point>>,
}

impl Run {
    fn simulated(policy: &str, outcome: SimulatedJob) -> Self {
        Self {
            policy: policy.to_owned(),
            source: Provenance::Simulation,
            completed: outcome.completed,
            samples: outcome.counts.acked,
            steps: outcome.steps,
            idle_share: outcome.idle_share(),
            result: outcome.result,
            cut_off: false,
            actions: outcome.actions.into_iter().map(RunAction::from).collect(),
            series: outcome.series,
        }
    }

    fn recorded(facts: &Facts) -> Self {
        let end = facts.completed.unwrap_or(facts.last);
        let cut_off = || Err("the recording ends before the job".to_owned());
        let point = |batch: &crate::recording::BatchFact| Point {
            at: batch.end,
            batches: batch.batches,
            samples: batch.samples,
            compute: batch.compute,
            wall: batch.wall(),
        };
        let series = |batches: &Vec<_>| journal::merged(batches.iter().map(point));
        Self {
            policy: facts.head.policy.clone(),
            source: if facts.simulated { Provenance::Trace } else { Provenance::Recording },
            result: facts.outcome.clone().unwrap_or_else(cut_off),
            cut_off: facts.outcome.is_none(),
            completed: end,
            // What came after the last tick has been committed, if everything was.
            samples: match facts.completed {
                Some(_) => facts.counts.total.saturating_sub(facts.counts.quarantined),
                None => facts.counts.acked,
            },
            steps: facts.steps,
            idle_share: idle_share(facts, end),
            actions: (facts.actions.iter())
                .map(|action| RunAction {
                    at: action.at,
                    step: None,
                    kind: action.kind.clone(),
                    target: action.target.clone(),
                    reason: action.reason.clone(),
                })
                .collect(),
            series: facts.batches.iter().map(|(node, batches)| (*node, series(batches))).collect(),
        }
    }

    /// Returns the number of committed samples per second of the job's time.
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    pub fn goodput(&self) -> f64 {
        self.samples as f64 / self.completed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// As [`SimulatedJob::idle_share`] counts it: a worker's time begins with the order to start it.
fn idle_share(facts: &Facts, end: JobTime) -> f64 {
    let lives = facts.starts.iter().filter(|start| start.life.node.role == Role::Worker);
    let alive: f64 = lives
        .map(|start| {
            let ended = facts.ends.iter().find(|ended| ended.life == start.life);
            ended.map_or(end, |ended| ended.at).since(start.at).as_secs_f64()
        })
        .sum();
    let busy: f64 = facts.batches.values().flatten().map(|batch| batch.compute.as_secs_f64()).sum();
    if alive > 0.0 { (1.0 - busy / alive).clamp(0.0, 1.0) } else { 0.0 }
}
