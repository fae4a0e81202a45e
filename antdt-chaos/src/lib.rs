#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod kind;
mod outcome;
mod schedule;

pub mod count;
pub mod settings;

mod real;

pub use kind::ChaosKind;
pub use outcome::{ChaosReport, FaultEntry, KindEntry};
pub use real::{ChaosError, ChaosRun, run};
pub use schedule::{ChaosFault, ChaosPlan, ChaosSchedule, ChaosStep};
pub use settings::JobSettings;

/// Name of the file in the job's report folder that holds the report of the faults.
pub const FILE: &str = "chaos.json";
