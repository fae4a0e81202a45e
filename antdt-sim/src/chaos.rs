//! The chaos suite: simulated jobs of any kind, with random faults for a while and none afterwards. All
//! invariants must hold after every event, and once the faults are over the job must end.
//!
//! A [`Case`] is a function of its seed, and what happens in it is a function of the case. So a failure is
//! identified by its seed; [`shrink`](crate::shrink) reduces the case of a seed to a smaller one that fails
//! alike.
//!
//! Source: deterministic simulation with a safety and then a liveness phase, as in `TigerBeetle`'s VOPR: our design after its
//! documents.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use antdt_controller::Policy;
use antdt_controller::policy;
use antdt_core::{DetRng, Exit, InvalidValue, JobTime, NodeId, Seed};
use antdt_job::SyncMode;
use antdt_job::head::CheckpointEvery;

use crate::happening::{Happening, Observer};
use crate::invariant::{self, Checkers};
use crate::journal::SimulatedJob;
use crate::model::Fault;
use crate::model::faults::{Chaos, Listed};
use crate::world::{Blind, World};
use crate::{Models, Setup, Tracer, Violation};

mod crashed;
mod restless;
mod rough;
mod story;
mod tally;
#[cfg(test)]
mod tests;

use self::crashed::Left;
pub use self::crashed::{Crashed, Resumption, crashed};
pub use self::restless::Restless;
pub use self::rough::Rough;
pub use self::story::Story;
pub use self::tally::{FaultKind, Tally};
pub use crate::invariant::epoch_ends::JobEnding;

/// Virtual time after which a job is not waited for any more: longer than [`EpochEnds`](invariant::EpochEnds) waits.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Events after which a case counts as one that never ends. The longest of 100,000 had a tenth of it.
const EVENTS_MAX: u64 = 5_000_000;

/// Number of seeds from which on every kind of fault and every ending must occur at least once.
pub const SEEDS_ENOUGH: u64 = 1000;

/// Most faults of a case.
const FAULTS_MAX: u32 = 12;

/// A random case of the chaos suite: a job, its conditions, and the faults that hit it.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Settings of the job.
    pub setup: Setup,
    /// Name of the policy: a registered one, or [`Restless`].
    pub policy: &'static str,
    /// Conditions of the job: how fast and how reliable workers and messages are.
    pub rough: Rough,
    /// Faults with their times, in order of time.
    pub faults: Vec<(JobTime, Fault)>,
}

/// Reason why a case failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// The settings of the case are invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// An invariant was violated.
    #[error(transparent)]
    Violated(#[from] Violation),
    /// A job that had to complete ended otherwise.
    #[error("the job does not complete: {0}")]
    Unfinished(String),
    /// The model of an interrupted job contains other samples than that of an uninterrupted one.
    #[error("{0}")]
    Counted(String),
}

/// Returns the random case that belongs to this seed.
pub fn case(seed: u64) -> Case {
    let rng = &mut Seed(seed).derive("chaos").rng();
    let mut setup = setup(seed, rng);
    let rough = Rough::draw(setup.workers, rng);
    // Faults go on for about as long as the job would take without them.
    let busy = rough.duration(&setup) + Duration::from_secs(2);
    let mut faults = faults(seed, setup.workers, setup.servers, busy * 3 / 2, rng);
    let mut chance = Seed(seed).derive("masters").rng();
    if chance.below(MASTERS_EVERY) == 0 {
        setup.goes_back = true;
        let mut often = Seed(seed).derive("checkpoints").rng();
        setup.checkpoint_every =
            (often.below(2) == 0).then(|| CheckpointEvery::Steps(1 + often.below(CHECKPOINT_STEPS_MAX)));
        if setup.checkpoint_every.is_some() {
            // A job that takes checkpoints has its shard service in the master's process.
            faults.retain(|(_, fault)| *fault != Fault::RestartLedger);
        }
        let masters = chaos(Vec::new(), busy * 3 / 2).draw_masters(&mut chance);
        faults.extend(masters.left().copied());
        if setup.checkpoint_every.is_some() {
            faults.extend(changes_of_servers(seed, setup.servers, busy * 3 / 2));
        }
        faults.sort_by_key(|(at, _)| *at);
    }
    hand_over(&mut setup, &rough, &mut faults);
    // Drawn apart, so that all other seeds keep their histories.
    let evaluates = setup.seed.derive("evaluations").rng().below(EVALUATIONS_EVERY) == 0;
    if evaluates && setup.goes_back && setup.checkpoint_every.is_some() && setup.epochs > 1 {
        setup.eval_every = Some(1);
    }
    let policy = ["none", "nd", Restless::NAME][index(rng, 3)];
    let calm = faults.last().map_or(JobTime::ZERO, |(at, _)| *at);
    Case { setup, policy, rough: Rough { calm_from: calm, ..rough }, faults }
}

/// Modes that were there first: seeds that are known by name keep their histories whatever is added to the registry.
const FIRST_MODES: usize = 3;

/// One case in so many runs a mode that came later.
const LATER_MODES_EVERY: u64 = 5;

/// In one case in so many there are also faults of kinds that came later.
const LATER_FAULTS_EVERY: u64 = 5;

/// In one case in so many the master ends, and another one goes on with the job.
const MASTERS_EVERY: u64 = 8;

/// In one case in so many, of those with several epochs that take checkpoints and go back, the model is evaluated after each epoch.
const EVALUATIONS_EVERY: u64 = 4;

/// In one case in so many, of those that have servers and keep their master, the number of servers changes while the job trains.
const HAND_OVERS_EVERY: u64 = 20;

/// Most steps between two checkpoints.
const CHECKPOINT_STEPS_MAX: u64 = 12;

fn setup(seed: u64, rng: &mut DetRng) -> Setup {
    let modes = SyncMode::examples();
    let (first, later) = modes.split_at(FIRST_MODES);
    // The default mode twice as often as each other one: it has the most protocol.
    let mut sync = &first[index(rng, FIRST_MODES + 1).saturating_sub(1)];
    let mut chance = Seed(seed).derive("later modes").rng();
    if !later.is_empty() && chance.below(LATER_MODES_EVERY) == 0 {
        sync = &later[index(&mut chance, later.len())];
    }
    let workers = 1 + below(rng, 6);
    let heartbeat = Duration::from_millis(50 + rng.below(450));
    Setup {
        sync: sync.clone(),
        workers,
        servers: if sync.capabilities().needs_servers() { 1 + below(rng, 2) } else { 0 },
        global_batch_size: workers * (1 + below(rng, 12)) + below(rng, workers),
        samples: 20 + rng.below(580),
        epochs: 1 + below(rng, 3),
        shard_len: (rng.below(4) > 0).then(|| 1 + rng.below(40)),
        static_sharding: rng.below(8) == 0,
        workers_per_host: 1 + below(rng, 3),
        gradient_bytes: 1 << rng.below(20),
        max_restarts: [0, 1, 3, 50, 50, 50][index(rng, 6)],
        control_tick: Duration::from_millis(50 + rng.below(450)),
        heartbeat,
        silence_limit: heartbeat * 3 + up_to(rng, Duration::from_secs(8)),
        collective_timeout: Duration::from_millis(500 + rng.below(10_000)),
        seed: Seed(seed),
        ..Setup::default()
    }
}

/// What goes wrong in `lasting`.
fn faults(
    seed: u64,
    workers: u32,
    servers: u32,
    lasting: Duration,
    rng: &mut DetRng,
) -> Vec<(JobTime, Fault)> {
    // The loss of a server ends the job: rarely, or nothing else would be seen.
    let many = (0..workers).flat_map(|index| [NodeId::worker(index); 20]);
    let chaos = chaos(many.chain((0..servers).map(NodeId::server)).collect(), lasting);
    let drawn = chaos.draw(rng).expect("there is a worker, and a code");
    let mut faults: Vec<(JobTime, Fault)> = drawn.left().copied().collect();
    let mut chance = Seed(seed).derive("later faults").rng();
    if chance.below(LATER_FAULTS_EVERY) == 0 {
        let chaos = Chaos { nodes: (0..workers).map(NodeId::worker).collect(), ..chaos };
        let later = chaos.draw_later(&mut chance).expect("there is a worker");
        faults.extend(later.left().copied());
        faults.sort_by_key(|(at, _)| *at);
    }
    faults
}

/// Changes of the number of servers in `lasting`, in a job that has some and takes checkpoints: one in two has none.
fn changes_of_servers(seed: u64, servers: u32, lasting: Duration) -> Vec<(JobTime, Fault)> {
    let mut chance = Seed(seed).derive("servers").rng();
    if servers == 0 || chance.below(2) == 0 {
        return Vec::new();
    }
    chaos(Vec::new(), lasting).draw_servers(&mut chance).left().copied().collect()
}

/// Adds changes of the number of servers while the job trains, and the checkpoints that they need, to a few of the jobs that have
/// servers and keep their master. They are drawn apart, so that all other seeds keep their histories.
fn hand_over(setup: &mut Setup, rough: &Rough, faults: &mut Vec<(JobTime, Fault)>) {
    let mut chance = setup.seed.derive("hand-overs").rng();
    if setup.goes_back || setup.servers == 0 || chance.below(HAND_OVERS_EVERY) > 0 {
        return;
    }
    setup.goes_back = true;
    setup.checkpoint_every = Some(CheckpointEvery::Steps(1 + chance.below(CHECKPOINT_STEPS_MAX)));
    // A job that takes checkpoints has its shard service in the master's process.
    faults.retain(|(_, fault)| *fault != Fault::RestartLedger);
    let trains = rough.duration(setup).saturating_sub(rough.start).max(Duration::from_millis(1));
    let changes = chaos(Vec::new(), trains).draw_servers(&mut chance);
    faults.extend(changes.left().map(|(at, fault)| (*at + rough.start, *fault)));
    faults.sort_by_key(|(at, _)| *at);
}

/// Faults that hit these nodes in `lasting`.
fn chaos(nodes: Vec<NodeId>, lasting: Duration) -> Chaos {
    Chaos {
        nodes,
        codes: vec![Exit::CODE_RETRY, Exit::CODE_RETRY, 1, Exit::CODE_NEVER],
        faults_max: FAULTS_MAX,
        until: JobTime::ZERO + lasting,
        longest: Duration::from_secs(60),
    }
}

fn up_to(rng: &mut DetRng, most: Duration) -> Duration {
    most.mul_f64(rng.unit())
}

fn below(rng: &mut DetRng, bound: u32) -> u32 {
    u32::try_from(rng.below(bound.into())).expect("below a u32")
}

fn index(rng: &mut DetRng, len: usize) -> usize {
    usize::try_from(rng.below(len as u64)).expect("below a usize")
}

impl Case {
    /// Runs the case and checks all invariants after every event.
    ///
    /// # Errors
    /// If the settings of the case are invalid, or an invariant is violated.
    pub fn run(&self) -> Result<SimulatedJob, CaseError> {
        Ok(self.run_watched(Blind)?.0?)
    }

    /// Runs the case as [`run`](Self::run) does, and also returns which faults hit it and how it ended.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_counted(&self) -> Result<(SimulatedJob, Tally), CaseError> {
        let (outcome, seen) = self.run_watched(tally::Seen::default())?;
        let outcome = outcome?;
        let tally = Tally::of(&seen, &outcome.result);
        Ok((outcome, tally))
    }

    /// The same; `and` sees everything that the invariants see, before they do.
    fn run_watched<O: Observer>(&self, and: O) -> Result<(Result<SimulatedJob, Violation>, O), InvalidValue> {
        self.run_from(None, and)
    }

    /// The same for a job that goes on from there.
    fn run_from<O: Observer>(
        &self,
        from: Option<&Left>,
        and: O,
    ) -> Result<(Result<SimulatedJob, Violation>, O), InvalidValue> {
        let (setup, policy, models) = (self.settings(from), self.policy()?, self.models()?);
        let mut watched = (and, Checkers::new(invariant::all(&setup)?));
        let world = match from {
            None => World::watched(setup, policy, models, watched)?,
            Some(Left { moment, committed }) => {
                if let Err(violation) = watched.saw(JobTime::ZERO, &Happening::Resumed(committed)) {
                    return Ok((Err(violation), watched.0));
                }
                World::resumed(setup, policy, models, watched, moment)?
            }
        };
        Ok(match world.at_most(EVENTS_MAX).run(JobTime::ZERO + LIMIT) {
            Ok((outcome, (and, mut checkers))) => (checkers.finish().map(|()| outcome), and),
            Err((violation, (and, _))) => (Err(violation), and),
        })
    }

    /// The settings of the job, if it goes on from there.
    fn settings(&self, from: Option<&Left>) -> Setup {
        match from {
            None => self.setup.clone(),
            Some(left) => left.moment.settings(self.setup.clone()),
        }
    }

    pub(crate) fn models(&self) -> Result<Models, InvalidValue> {
        self.rough.models(self.setup.workers_per_host, Box::new(Listed::new(self.faults.iter().copied())))
    }

    /// Returns the case's policy, which has decided nothing yet.
    ///
    /// # Errors
    /// If there is no policy of this name.
    pub fn policy(&self) -> Result<Box<dyn Policy>, InvalidValue> {
        if self.policy == Restless::NAME {
            return Ok(Box::new(Restless::new(self.setup.seed)));
        }
        policy::build(self.policy, &BTreeMap::new())
            .map_err(|error| InvalidValue::new("policy", self.policy, error.to_string()))
    }

    /// Runs the case again and writes a trace of it to `out`, up to the violation of an invariant if there is
    /// one. Returns `out`.
    ///
    /// # Errors
    /// If the trace cannot be written, or the settings of the case are invalid.
    pub fn trace<W: Write>(&self, out: W) -> io::Result<W> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let name = format!("chaos seed {}", self.setup.seed.0);
        let tracer = Tracer::new(out, &name, &self.setup, self.policy().map_err(invalid)?)?;
        match self.run_watched(tracer).map_err(invalid)? {
            (Ok(_), tracer) => tracer.finish(),
            (Err(_), tracer) => tracer.break_off(),
        }
    }

    /// Runs the case again, and returns the history of the nodes, leases and shards that its failure names.
    pub fn story(&self) -> Story {
        match self.run_watched(story::Lines::default()) {
            Ok((result, lines)) => Story::new(lines.0, result.err().map(CaseError::Violated)),
            Err(invalid) => Story::new(Vec::new(), Some(invalid.into())),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setup { sync, workers, servers, samples, epochs, global_batch_size, shard_len, .. } = &self.setup;
        write!(f, "{}, {workers} workers", sync.name())?;
        if *servers > 0 {
            write!(f, ", {servers} servers")?;
        }
        write!(f, ", {samples} samples, {epochs} epochs, batches of {global_batch_size}")?;
        if let Some(len) = shard_len {
            write!(f, ", shards of {len}")?;
        }
        if self.setup.static_sharding {
            f.write_str(", static")?;
        }
        if self.setup.goes_back {
            f.write_str(", goes back")?;
        }
        if let Some(every) = self.setup.checkpoint_every {
            write!(f, ", a checkpoint every {every}")?;
        }
        write!(f, ", policy {}", self.policy)?;
        for (at, fault) in &self.faults {
            write!(f, "\n  {at} {fault:?}")?;
        }
        Ok(())
    }
}
