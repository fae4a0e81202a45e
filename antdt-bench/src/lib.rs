#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

pub mod arguments;
pub mod entry;
pub mod environment;
pub mod rows;

pub mod baselines;
pub mod calibrate;
pub mod collective;
pub mod job;
pub mod oracle;
pub mod policies;
pub mod run;
pub mod shard;
pub mod sim;
pub mod survive;

mod groups;
mod meter;
mod walk;

use arguments::{Name, Peer};
pub use entry::Entry;
pub use environment::Environment;
pub use rows::Rows;

/// How a benchmark is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The `antdt` program under test.
    pub antdt: PathBuf,
    /// The program `antdt-bench`, whose processes are the ranks of `collective`.
    pub antdt_bench: PathBuf,
    /// What `collective` is measured beside.
    pub peers: Vec<Peer>,
    /// What an order may take a peer, before it is ended.
    pub peer_limit: Duration,
    /// Measures only what has one of these texts in its name, if any is given; `collective` knows this, and `shard` knows `recording`.
    pub only: Vec<String>,
    /// Whether to be done within three minutes.
    pub quick: bool,
    /// Whether to measure the whole matrix; `baselines` knows this.
    pub full: bool,
    /// Whether to keep what an earlier run of the whole matrix has measured.
    pub go_on: bool,
    /// Where runs leave their reports and logs.
    pub report_dir: PathBuf,
}

/// How a benchmark is run.
pub type Bench = fn(&Settings, &mut Rows) -> anyhow::Result<()>;

impl Name {
    /// Returns the function that runs the benchmark.
    pub const fn bench(self) -> Bench {
        match self {
            Self::Job => job::run,
            Self::Collective => collective::run,
            Self::Shard => shard::run,
            Self::Sim => sim::run,
            Self::Calibrate => calibrate::run,
            Self::Policies => policies::run,
            Self::Survive => survive::run,
            Self::Baselines => baselines::run,
        }
    }
}
