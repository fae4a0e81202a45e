//! The smallest case that fails like a given one.
//!
//! Faults are taken away in ever smaller portions as long as the same invariant fails; then the job is made smaller: fewer
//! samples, epochs, workers and servers, no losses, no policy. Every candidate is run, so the result fails for certain.
//!
//! Source: delta debugging (Zeller and Hildebrandt 2002, recalled).

use std::time::Duration;

use antdt_core::{JobTime, NodeId, Role};

use crate::chaos::{Case, CaseError, PartialCase};
use crate::model::Fault;

/// Candidates tried at most: what is found after so many is small enough to read.
const TRIES_MAX: u32 = 400;

/// A random case that can be made smaller.
pub trait Shrinks: Clone + PartialEq + 'static {
    /// Runs it under all invariants.
    ///
    /// # Errors
    /// If one of them does not hold, or the case is none.
    fn check(&self) -> Result<(), CaseError>;

    /// What goes wrong in it.
    fn faults(&mut self) -> &mut Vec<(JobTime, Fault)>;

    /// Ways to make it smaller by one step, each of which may be taken again and again.
    fn steps() -> &'static [fn(&mut Self)];

    /// Whether it is a world, and all faults are about nodes of it.
    fn is_one(&self) -> bool;
}

/// The smallest case that was found to fail.
#[derive(Debug, Clone, PartialEq)]
pub struct Shrunk<C = Case> {
    /// The case itself.
    pub case: C,
    /// Error of the smallest case.
    pub error: CaseError,
    /// Number of candidates that were tried.
    pub tries: u32,
}

/// Makes a case small that fails with `error`: the same invariant fails in the result.
pub fn shrink<C: Shrinks>(case: &C, error: &CaseError) -> Shrunk<C> {
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

impl<C: Shrinks> Shrunk<C> {
    /// Whether the candidate fails in the same way; if so it is the best so far.
    fn fails(&mut self, candidate: C) -> bool {
        if self.tries >= TRIES_MAX || candidate == self.case {
            return false;
        }
        self.tries += 1;
        match (candidate.check(), &self.error) {
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
        let mut portion = self.case.faults().len();
        while portion > 0 {
            let mut at = 0;
            while at < self.case.faults().len() {
                let mut candidate = self.case.clone();
                let end = (at + portion).min(candidate.faults().len());
                candidate.faults().drain(at..end);
                if !self.fails(candidate) {
                    at += portion;
                }
            }
            portion /= 2;
        }
    }

    fn smaller_job(&mut self) {
        for step in C::steps() {
            loop {
                let mut candidate = self.case.clone();
                step(&mut candidate);
                if !candidate.is_one() || !self.fails(candidate) {
                    break;
                }
            }
        }
    }
}

impl Shrinks for Case {
    fn check(&self) -> Result<(), CaseError> {
        self.run().map(drop)
    }

    fn faults(&mut self) -> &mut Vec<(JobTime, Fault)> {
        &mut self.faults
    }

    fn steps() -> &'static [fn(&mut Self)] {
        &[
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
        ]
    }

    fn is_one(&self) -> bool {
        let faults = self.faults.iter().map(|(_, fault)| fault);
        self.setup.validate().is_ok() && names_only(faults, self.setup.workers, self.setup.servers)
    }
}

impl Shrinks for PartialCase {
    fn check(&self) -> Result<(), CaseError> {
        self.run().map(drop)
    }

    fn faults(&mut self) -> &mut Vec<(JobTime, Fault)> {
        &mut self.faults
    }

    fn steps() -> &'static [fn(&mut Self)] {
        &[
            |case| case.setup.steps /= 2,
            |case| case.setup.steps = case.setup.steps.saturating_sub(1),
            |case| case.setup.workers -= 1,
            |case| case.setup.group_size = (case.setup.group_size - 1).max(2),
            |case| case.setup.bridges = false,
            |case| case.setup.repeats = 0.0,
            |case| case.rough.loss = 0.0,
            |case| case.rough.jitter = Duration::ZERO,
            |case| case.rough.variation = 0.0,
        ]
    }

    fn is_one(&self) -> bool {
        let faults = self.faults.iter().map(|(_, fault)| fault);
        self.setup.validate().is_ok() && names_only(faults, self.setup.workers, 0)
    }
}

/// Whether all faults are about nodes that there are.
fn names_only<'a>(mut faults: impl Iterator<Item = &'a Fault>, workers: u32, servers: u32) -> bool {
    faults.all(|fault| match fault {
        Fault::Crash(node) | Fault::Exit(node, _) | Fault::Pause(node, _) | Fault::Cut(node, _) => {
            let NodeId { role, index } = *node;
            match role {
                Role::Worker => index < workers,
                Role::Server => index < servers,
            }
        }
        Fault::PauseMaster(_) | Fault::RestartLedger => true,
    })
}
