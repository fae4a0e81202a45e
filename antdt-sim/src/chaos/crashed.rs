//! Jobs of which all processes end at once, at any event, and that continue from their newest checkpoint with
//! another number of workers: each sample is in the trained model as often as in that of the same job without an
//! interruption.
//!
//! Samples are counted apart from the ledger ([`trained`](crate::invariant::trained)), and all invariants hold in
//! each of these jobs.

use std::fmt;

use antdt_core::{Exit, JobTime, Seed};
use antdt_job::SyncMode;
use antdt_job::head::CheckpointEvery;

use super::rough::Rough;
use super::{Case, CaseError, below, case, changes_of_servers, faults, index};
use crate::happening::{Happening, Observer};
use crate::invariant::Invariant;
use crate::invariant::trained::Times;
use crate::invariant::{Committed, CommittedOnce};
use crate::journal::SimulatedJob;
use crate::model::Fault;
use crate::world::{Moment, dataset};
use crate::{Setup, Violation};

/// Most steps between two checkpoints: few, so that many crashes are after one.
const STEPS_MAX: u64 = 4;

/// A random job of which all processes end at once, possibly more than once.
#[derive(Debug, Clone, PartialEq)]
pub struct Crashed {
    /// The jobs, each of which continues the one before; of all but the last one all processes end. The first one
    /// without the crash is the uninterrupted job.
    pub lives: Vec<Case>,
    /// For each crash, the event after which it happens: this number modulo the events of the uninterrupted job.
    pub points: Vec<u64>,
}

/// What happened when a crashed job was resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resumption {
    /// Jobs that continued from a checkpoint.
    pub resumed: u32,
    /// Jobs that began anew, because the job before had not completed a checkpoint.
    pub anew: u32,
    /// Whether the last job had nothing left to train.
    pub done: bool,
    /// Samples that were trained after the checkpoint and before the crash, and were trained again.
    pub again: u64,
}

/// Returns the random crashed job that belongs to this seed. Sync modes take turns.
pub fn crashed(seed: u64) -> Crashed {
    let mut first = case(seed);
    let rng = &mut Seed(seed).derive("crashed").rng();
    let modes = SyncMode::examples();
    let often = match rng.below(8) {
        0 => CheckpointEvery::Epoch,
        1 => CheckpointEvery::Time(first.rough.duration(&first.setup) / 4),
        _ => CheckpointEvery::Steps(1 + rng.below(STEPS_MAX)),
    };
    let sync = modes[(seed % modes.len() as u64) as usize].clone();
    first.setup = Setup {
        servers: if sync.capabilities().needs_servers() { 1 + below(rng, 2) } else { 0 },
        sync,
        goes_back: true,
        checkpoint_every: Some(often),
        epochs: 2 + below(rng, 3),
        // Every job is to complete.
        max_restarts: 50,
        ..first.setup
    };
    let crashes = 1 + usize::from(rng.below(4) == 0);
    let mut lives = vec![first];
    for life in 0..crashes as u64 {
        let before = &lives[lives.len() - 1].setup;
        let (workers, sync) = if before.static_sharding {
            // Each worker has a part of the data that is its own.
            (before.workers, before.sync.clone())
        } else {
            let other = 1 + below(rng, 5);
            let sync =
                if rng.below(2) == 0 { before.sync.clone() } else { modes[index(rng, modes.len())].clone() };
            (if other >= before.workers { other + 1 } else { other }, sync)
        };
        let setup = Setup {
            workers,
            servers: if sync.capabilities().needs_servers() { 1 + below(rng, 2) } else { 0 },
            sync,
            global_batch_size: workers * (1 + below(rng, 12)) + below(rng, workers),
            ..before.clone()
        };
        let rough = Rough::draw(workers, rng);
        let busy = rough.duration(&setup);
        let faults = faults(seed ^ (life + 1) << 32, workers, setup.servers, busy, rng);
        let policy = ["none", "nd"][index(rng, 2)];
        lives.push(Case { setup, policy, rough, faults });
    }
    for (number, life) in (0..).zip(&mut lives) {
        let Setup { workers, servers, .. } = life.setup;
        let busy = life.rough.duration(&life.setup);
        life.faults.extend(changes_of_servers(seed ^ (number + 1) << 32, servers, busy));
        life.faults.sort_by_key(|(at, _)| *at);
        let calm = rng.below(2) == 0;
        life.faults.retain(|(_, fault)| match fault {
            _ if calm => false,
            // What starting again cannot help ends a job.
            Fault::Exit(_, code) if *code != Exit::CODE_RETRY => false,
            // A job that takes checkpoints has its shard service in the master's process.
            Fault::RestartLedger => false,
            fault => fault.fits(workers, servers),
        });
        life.rough.calm_from = life.faults.last().map_or(JobTime::ZERO, |(at, _)| *at);
    }
    let points = (0..crashes).map(|_| rng.below(u64::MAX)).collect();
    Crashed { lives, points }
}

impl Crashed {
    /// Runs the job without an interruption, then with its crashes, checks all invariants after every event, and compares
    /// how often each sample is in the two trained models.
    ///
    /// # Errors
    /// If the settings of a job are invalid, an invariant is violated, a job does not complete, or the models differ.
    pub fn run(&self) -> Result<Resumption, CaseError> {
        let Some((first, last)) = self.lives.first().zip(self.lives.len().checked_sub(1)) else {
            return Ok(Resumption::default());
        };
        let (uninterrupted, counted) = run(first, None)?;
        uninterrupted.result.map_err(CaseError::Unfinished)?;
        let expected = counted.times();
        let (mut seen, mut left): (Resumption, Option<Left>) = (Resumption::default(), None);
        for (number, life) in self.lives.iter().enumerate() {
            if left.as_ref().is_some_and(|left| left.moment.counts().todo == 0) {
                break;
            }
            if number > 0 {
                (seen.resumed, seen.anew) =
                    (seen.resumed + u32::from(left.is_some()), seen.anew + u32::from(left.is_none()));
            }
            let mut life = life.clone();
            let point = self.points.get(number).map(|point| point % uninterrupted.simulated.max(1));
            life.faults.splice(0..0, point.map(|point| (JobTime::ZERO, Fault::CrashAll(point))));
            let (outcome, counted) = run(&life, left.as_ref())?;
            match outcome.result {
                Ok(()) => return compare(counted.times(), expected, seen),
                Err(why) if number == last || why != crate::world::ALL_CRASHED => {
                    return Err(CaseError::Unfinished(why));
                }
                Err(_) => {}
            }
            let committed = counted.0.at_checkpoint();
            let kept = outcome.kept.map(|moment| Left { moment, committed });
            let before = kept.as_ref().map_or(0, |left| left.moment.counts().acked);
            seen.again += outcome.counts.acked - before;
            left = kept;
        }
        seen.done = true;
        let times = left.map(|left| left.committed.times().clone()).unwrap_or_default();
        compare(&times, expected, seen)
    }
}

fn compare(times: &Times, expected: &Times, seen: Resumption) -> Result<Resumption, CaseError> {
    times.difference(expected).map_or(Ok(seen), |difference| Err(CaseError::Counted(difference)))
}

/// What is left of a job whose processes have all ended.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) moment: Moment,
    pub(super) committed: Committed,
}

/// Runs a job, which goes on from there, and counts.
fn run(case: &Case, from: Option<&Left>) -> Result<(SimulatedJob, Counted), CaseError> {
    let setup = case.settings(from);
    let counted = Counted(CommittedOnce::new(&setup, &dataset(&setup)).counting());
    let (outcome, counted) = case.run_from(from, counted)?;
    Ok((outcome?, counted))
}

/// Counts how often each sample is in the model.
#[derive(Debug)]
struct Counted(CommittedOnce);

impl Counted {
    fn times(&self) -> &Times {
        self.0.times().expect("it was made to count")
    }
}

impl Observer for Counted {
    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), Violation> {
        let invariant = self.0.name();
        self.0.saw(at, what).map_err(|what| Violation { invariant, at, what })
    }
}

impl fmt::Display for Crashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, life) in self.lives.iter().enumerate() {
            if number > 0 {
                f.write_str("\nresumed as ")?;
            }
            write!(f, "{life}")?;
            if let Some(point) = self.points.get(number) {
                write!(f, "\n  crash after event {point} modulo those of the uninterrupted job")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
