#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

use std::path::PathBuf;

pub mod arguments;
pub mod entry;

pub mod calibrate;
pub mod collective;
pub mod job;
pub mod oracle;
pub mod run;
pub mod shard;
pub mod sim;

mod groups;
mod meter;
mod walk;

use arguments::{Name, Peer};
pub use entry::Entry;

/// How a benchmark is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The `antdt` program under test.
    pub antdt: PathBuf,
    /// The program `antdt-bench`, whose processes are the ranks of `collective`.
    pub antdt_bench: PathBuf,
    /// What `collective` is measured beside.
    pub peers: Vec<Peer>,
    /// Measures only what has one of these texts in its name, if any is given; `collective` knows this, and `shard` knows `recording`.
    pub only: Vec<String>,
    /// Whether to be done within three minutes.
    pub quick: bool,
    /// Where runs leave their reports and logs.
    pub report_dir: PathBuf,
}

/// How a benchmark is run.
pub type Bench = fn(&Settings) -> anyhow::Result<Vec<Entry>>;

impl Name {
    /// What runs it.
    pub const fn bench(self) -> Bench {
        match self {
            Self::Job => job::run,
            Self::Collective => collective::run,
            Self::Shard => shard::run,
            Self::Sim => sim::run,
            Self::Calibrate => calibrate::run,
        }
    }
}
