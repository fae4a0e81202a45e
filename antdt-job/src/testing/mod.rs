//! Tests for sync modes of other crates: random histories of a whole job, and the invariants that must hold
//! after each event.
//!
//! [`check_mode`] replays the histories with the master and the worker loops of this crate and the mode under
//! test; network, shard service and servers are simulated. To examine single histories, draw them with
//! [`history::any`] and replay them with [`Invariants::check`].

pub use antdt_core::testing::find_break;

use crate::mode::SyncMode;

pub mod history;
mod invariant;
mod service;
mod trial;

pub use history::History;
pub use invariant::{Invariant, Invariants};

/// Histories that [`check_mode`] plays.
const CASES: u32 = 1000;

/// Replays random histories of a job in this mode, with deaths, joins, plans, ends of data, duplicated and
/// reordered messages, and restarts of the shard service. The histories are the same in each run.
///
/// # Errors
/// The invariant that is broken in the smallest history that breaks one; the text of the error has the line
/// that replays the history.
pub fn check_mode(mode: &SyncMode) -> Result<(), Broken> {
    let all = Invariants::all();
    find_break(CASES, history::any(), |history| all.check(history, mode))
}

/// Report that a mode broke an invariant in a history.
pub type Broken = antdt_core::testing::Broken<Invariant, history::Job>;

#[cfg(test)]
mod tests;
