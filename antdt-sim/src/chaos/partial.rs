//! Random worlds of workers that average in groups.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use antdt_collective::schedule::{Choice, CostModel};
use antdt_core::{DetRng, InvalidValue, JobTime, Seed};

use super::{CaseError, EVENTS_MAX, LIMIT, Rough, Story, Tally, below, faults, index, story, tally, up_to};
use crate::happening::Observer;
use crate::invariant::{Checkers, all_of_groups};
use crate::model::Fault;
use crate::model::faults::Listed;
use crate::partial::{GroupFormation, GroupSetup, GroupWorld, SimulatedAveraging};
use crate::world::Blind;
use crate::{Tracer, Violation};

/// A random world of workers that average in groups.
#[derive(Debug, Clone, PartialEq)]
pub struct PartialCase {
    /// Settings of the workers.
    pub setup: GroupSetup,
    /// Conditions: how fast and how reliable workers and messages are.
    pub rough: Rough,
    /// Faults with their times, in order of time.
    pub faults: Vec<(JobTime, Fault)>,
}

/// The random world of workers that average in groups that belongs to a seed.
pub fn partial_case(seed: u64) -> PartialCase {
    let rng = &mut Seed(seed).derive("chaos in groups").rng();
    let setup = setup(seed, rng);
    let rough = Rough::draw(setup.workers, rng);
    let slowest = rough.slow.iter().max().copied().unwrap_or(1);
    let step = rough.sample_time * slowest * u32::try_from(setup.batch_size).unwrap_or(1);
    let busy = rough.start + (step + (rough.latency + rough.jitter * 2) * 4) * setup.steps;
    let faults = faults(setup.workers, 0, busy * 3 / 2, rng);
    let calm = faults.last().map_or(JobTime::ZERO, |(at, _)| *at);
    PartialCase { setup, rough: Rough { calm_from: calm, ..rough }, faults }
}

fn setup(seed: u64, rng: &mut DetRng) -> GroupSetup {
    let again_after = Duration::from_millis(20 + rng.below(400));
    let collective_timeout = Duration::from_millis(500) + up_to(rng, Duration::from_secs(5));
    let link = CostModel { bandwidth: 1e9, ..CostModel::LOOPBACK };
    GroupSetup {
        workers: 2 + below(rng, 8),
        workers_per_host: 1 + below(rng, 4),
        formation: GroupFormation::ALL[index(rng, GroupFormation::ALL.len())],
        group_size: 2 + below(rng, 4),
        progress_gap_max: rng.below(5),
        bridges: rng.below(2) == 0,
        steps: 4 + below(rng, 24),
        batch_size: 1 + rng.below(8),
        model_bytes: 1 << (10 + rng.below(16)),
        inside: CostModel::SHARED,
        between: link,
        algorithm: Choice::Auto,
        again_after,
        collective_timeout,
        // Shorter than the wait for a peer, now and then.
        group_limit: collective_timeout.mul_f64(0.5 + 1.5 * rng.unit()) + again_after,
        attempts_max: 1 + below(rng, 4),
        silence_limit: Duration::from_millis(500) + up_to(rng, Duration::from_secs(8)),
        max_restarts: [0, 1, 3, 50][index(rng, 4)],
        repeats: if rng.below(2) == 0 { 0.0 } else { 0.2 * rng.unit() },
        seed: Seed(seed),
    }
}

impl PartialCase {
    /// Runs it under all invariants.
    ///
    /// # Errors
    /// If one of them does not hold.
    pub fn run(&self) -> Result<SimulatedAveraging, CaseError> {
        Ok(self.run_watched(Blind)?.0?)
    }

    /// Runs the case under all invariants, and also returns which faults hit it and how it ended.
    ///
    /// # Errors
    /// If an invariant does not hold.
    pub fn run_counted(&self) -> Result<(SimulatedAveraging, Tally), CaseError> {
        let (outcome, seen) = self.run_watched(tally::Seen::default())?;
        let outcome = outcome?;
        let tally = Tally::of(&seen, &outcome.result);
        Ok((outcome, tally))
    }

    fn run_watched<O: Observer>(
        &self,
        and: O,
    ) -> Result<(Result<SimulatedAveraging, Violation>, O), InvalidValue> {
        let faults = Box::new(Listed::new(self.faults.iter().copied()));
        let models = self.rough.models(self.setup.workers_per_host, faults)?;
        let watched = (and, Checkers::new(all_of_groups()));
        let world = GroupWorld::watched(self.setup.clone(), models, watched)?.at_most(EVENTS_MAX);
        Ok(match world.run(JobTime::ZERO + LIMIT) {
            Ok((outcome, (and, mut checkers))) => (checkers.finish().and_then(|()| ended(outcome)), and),
            Err((violation, (and, _))) => (Err(violation), and),
        })
    }

    /// Runs it again and writes its trace, up to where an invariant does not hold any more. Gives `out` back.
    ///
    /// # Errors
    /// If it cannot be written, or the case is none.
    pub fn trace<W: Write>(&self, out: W) -> io::Result<W> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let name = format!("chaos seed {}, in groups", self.setup.seed.0);
        let tracer = Tracer::of_groups(out, &name, &self.setup)?;
        match self.run_watched(tracer).map_err(invalid)? {
            (Ok(_), tracer) => tracer.finish(),
            (Err(_), tracer) => tracer.break_off(),
        }
    }

    /// Runs it again, and tells what happened to those that the failure is about.
    pub fn story(&self) -> Story {
        match self.run_watched(story::Lines::default()) {
            Ok((result, lines)) => Story::new(lines.0, result.err().map(CaseError::Violated)),
            Err(invalid) => Story::new(Vec::new(), Some(invalid.into())),
        }
    }
}

/// Nothing goes wrong at the end, so all steps must have been made.
fn ended(outcome: SimulatedAveraging) -> Result<SimulatedAveraging, Violation> {
    match outcome.result {
        Ok(()) => Ok(outcome),
        Err(what) => Err(Violation { invariant: "epoch_ends", at: outcome.completed, what }),
    }
}

impl fmt::Display for PartialCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GroupSetup { workers, workers_per_host, formation, group_size, steps, .. } = &self.setup;
        write!(
            f,
            "{workers} workers, {workers_per_host} a host, {steps} steps, {formation:?} of {group_size}"
        )?;
        write!(f, ", progress gap {}, bridges {}", self.setup.progress_gap_max, self.setup.bridges)?;
        for (at, fault) in &self.faults {
            write!(f, "\n  {at} {fault:?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
