//! `antdt chaos`: runs a real job on this machine, injects faults into it, and checks that it still trains
//! every sample once.
//!
//! A [`ChaosSchedule`] says when which fault happens, from a seed alone. `real` starts the job, injects the
//! faults that this machine allows, and starts another master when one has died. A kind of fault that cannot
//! be injected here is reported with the reason.
//!
//! The check does not rely on the job's ledger: in a job of the counting model (`--workload counting`), the
//! trained model itself counts the samples ([`count`]).

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

/// Name of the file in the job's report folder that holds the report of the faults.
pub const FILE: &str = "chaos.json";
