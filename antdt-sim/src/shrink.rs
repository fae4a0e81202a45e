//! The smallest case that fails like a given one.
//!
//! Faults are removed in ever smaller portions while the same invariant still fails; then the job is made
//! smaller: fewer samples, epochs, workers and servers, no losses, no policy. Every candidate is run, so the
//! result fails for certain.
//!
//! Source: delta debugging (Zeller and Hildebrandt 2002, recalled).

use std::time::Duration;

use crate::Setup;
use crate::chaos::{Case, CaseError};

/// Candidates tried at most: what is found after so many is small enough to read.
const TRIES_MAX: u32 = 400;

/// Ways to make a case smaller by one step, each of which may be taken again and again.
const STEPS: [fn(&mut Case); 12] = [
    |case| case.setup.samples /= 2,
    |case| case.setup.samples = case.setup.samples.saturating_sub(1),
    |case| case.setup.epochs = 1,
    |case| case.setup.workers -= 1,
    |case| case.setup.servers = u32::from(case.setup.servers > 0),
    |case| case.setup.global_batch_size /= 2,
    |case| case.setup.static_sharding = false,
    |case| case.setup.shard_len = None,
    |case| case.policy = "none",
    |case| case.rough.loss = 0.0,
    |case| case.rough.jitter = Duration::ZERO,
    |case| case.rough.variation = 0.0,
];

/// The smallest failing case that [`shrink`] found.
#[derive(Debug, Clone, PartialEq)]
pub struct Shrunk {
    /// The smallest failing case.
    pub case: Case,
    /// Error of the smallest case.
    pub error: CaseError,
    /// Number of candidates that were tried.
    pub tries: u32,
}

/// Reduces a case that fails with `error` to a smaller one in which the same invariant fails.
pub fn shrink(case: &Case, error: &CaseError) -> Shrunk {
    let mut best = Shrunk { case: case.clone(), error: error.clone(), tries: 0 };
    loop {
        let before = best.case.clone();
        best.fewer_faults();
        best.smaller_job();
        if best.case == before || best.tries >= TRIES_MAX {
            return best;
        }
    }
}

impl Shrunk {
    /// Whether the candidate fails in the same way; if so it is the best so far.
    fn fails(&mut self, candidate: Case) -> bool {
        if self.tries >= TRIES_MAX || candidate == self.case {
            return false;
        }
        self.tries += 1;
        match (candidate.run(), &self.error) {
            (Err(CaseError::Violated(found)), CaseError::Violated(known))
                if found.invariant == known.invariant =>
            {
                self.case = candidate;
                self.error = found.into();
                true
            }
            _ => false,
        }
    }

    fn fewer_faults(&mut self) {
        let mut portion = self.case.faults.len();
        while portion > 0 {
            let mut at = 0;
            while at < self.case.faults.len() {
                let mut candidate = self.case.clone();
                let end = (at + portion).min(candidate.faults.len());
                candidate.faults.drain(at..end);
                if !self.fails(candidate) {
                    at += portion;
                }
            }
            portion /= 2;
        }
    }

    fn smaller_job(&mut self) {
        for step in STEPS {
            loop {
                let mut candidate = self.case.clone();
                step(&mut candidate);
                if !is_one(&candidate) || !self.fails(candidate) {
                    break;
                }
            }
        }
    }
}

/// Whether it is a job, and all faults are about nodes of it.
fn is_one(case: &Case) -> bool {
    let Setup { workers, servers, .. } = case.setup;
    case.setup.validate().is_ok() && case.faults.iter().all(|(_, fault)| fault.fits(workers, servers))
}
