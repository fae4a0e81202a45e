//! Tests for sync modes of other crates: random histories of a whole job, and the invariants that must hold
//! after each event.
//!
//! [`check_mode`] replays the histories with the master and the worker loops of this crate and the mode under
//! test; network, shard service and servers are simulated. To examine single histories, draw them with
//! [`history::any`] and replay them with [`Invariants::check`].

use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use crate::mode::SyncMode;

pub mod history;
mod invariant;
mod service;
mod trial;

pub use history::History;
pub use invariant::{Invariant, Invariants};
pub use trial::Broken;

/// Histories that [`check_mode`] plays.
const CASES: u32 = 1000;

/// Replays random histories of a job in this mode, with deaths, joins, plans, ends of data, duplicated and
/// reordered messages, and restarts of the shard service. The histories are the same in each run.
///
/// # Errors
/// The invariant that is broken in the smallest history that breaks one; the text of the error has the line
/// that replays the history.
pub fn check_mode(mode: &SyncMode) -> Result<(), Broken> {
    let config =
        Config { cases: CASES, max_shrink_iters: 4_000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let all = Invariants::all();
    match runner.run(&history::any(), |history| Ok(all.check(&history, mode)?)) {
        Ok(()) => Ok(()),
        Err(TestError::Fail(_, history)) => {
            all.check(&history, mode).map_err(|broken| smallest(&all, mode, broken))
        }
        Err(TestError::Abort(why)) => panic!("no histories could be drawn: {why}"),
    }
}

/// Takes steps away while the same promise is broken. proptest does so before it makes steps smaller, and not again after.
fn smallest(all: &Invariants, mode: &SyncMode, mut broken: Broken) -> Broken {
    let less = |broken: &Broken| {
        let without = |at| all.check(&broken.history().without(at), mode).err();
        let same = |smaller: &Broken| smaller.invariant() == broken.invariant();
        (0..broken.history().steps().len()).rev().find_map(|at| without(at).filter(same))
    };
    while let Some(smaller) = less(&broken) {
        broken = smaller;
    }
    broken
}

#[cfg(test)]
mod tests;
