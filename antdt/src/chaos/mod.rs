//! `antdt chaos`: a real job on this machine while things go wrong, and whether it still trains every sample once.
//!
//! A [`ChaosSchedule`] says when what goes wrong, from a seed alone; `real` has the means, as far as this machine has them, starts the job,
//! carries the faults out and starts another master where the last one has died. A kind of fault that cannot be carried out here is
//! reported with the reason.
//!
//! The verdict does not rest on the job's ledger: a job of the counting model (`--workload counting`) is counted in its trained model
//! ([`count`]).

pub mod count;
mod kind;
mod outcome;
#[cfg(feature = "cli")]
mod real;
mod schedule;

pub use kind::ChaosKind;
pub use outcome::{ChaosReport, FaultEntry, KindEntry};
#[cfg(feature = "cli")]
pub use real::{ChaosError, ChaosRun, run};
pub use schedule::{ChaosFault, ChaosPlan, ChaosSchedule, ChaosStep};

/// Name of the file with the report, in the job's report folder.
pub const FILE: &str = "chaos.json";
