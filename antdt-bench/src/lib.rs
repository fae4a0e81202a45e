#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

pub mod arguments;
pub mod entry;
pub mod environment;
pub mod program;
pub mod rows;

pub mod collective;
pub mod job;
pub mod pytorch;

pub mod meter;
pub mod oracle;
pub mod run;
pub mod tree;

use arguments::{Name, Peer};
pub use entry::Entry;
pub use environment::Environment;
pub use rows::Rows;

/// Settings of a run of a benchmark.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// The `antdt` program under test.
    pub antdt: PathBuf,
    /// The program `antdt-bench`, whose processes are the ranks of `collective`.
    pub antdt_bench: PathBuf,
    /// Other projects' libraries of collectives that the benchmark `collective` measures beside this project's.
    pub peers: Vec<Peer>,
    /// Time that a peer may take for one order before its processes are ended.
    pub peer_limit: Duration,
    /// Texts that select rows: a row is measured only if its name has one of them; empty to measure all rows.
    /// For `collective`, for `job` (`overlap`), for `shard` (`recording`), and for `policies` and `survive` (their parts, such as
    /// `replay` and `kills`).
    pub only: Vec<String>,
    /// Whether to hurt six jobs once each, and to judge no time (`survive`).
    pub smoke: bool,
    /// Whether the run must end within four minutes; three for `policies`.
    pub quick: bool,
    /// Whether to measure the whole matrix (`baselines`), everything that the targets name (`survive`), or more seeds and longer jobs
    /// (`policies`).
    pub full: bool,
    /// Whether to keep the cells (combinations of settings) that an earlier `--full` run of the same benchmark has measured, and to
    /// measure only the others (`baselines`, `policies`, `survive`).
    pub go_on: bool,
    /// Folder for reports and logs.
    pub report_dir: PathBuf,
}

impl Settings {
    /// Returns how much is measured, in a word: `smoke`, `quick`, or `full` for all else.
    pub const fn mode(&self) -> &'static str {
        match (self.smoke, self.quick) {
            (true, _) => "smoke",
            (false, true) => "quick",
            (false, false) => "full",
        }
    }

    /// Returns whether what has this name is to be measured, by [`only`](Self::only).
    pub fn asks_for(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text.as_str()))
    }
}

/// Function that runs a benchmark.
pub type Bench = fn(&Settings, &mut Rows) -> anyhow::Result<()>;

/// Returns the function that runs the benchmark of this name; `None` for those of `antdt-lab`.
pub const fn bench(name: Name) -> Option<Bench> {
    match name {
        Name::Job => Some(job::run),
        Name::Collective => Some(collective::run),
        Name::Pytorch => Some(pytorch::run),
        Name::Shard
        | Name::Sim
        | Name::Calibrate
        | Name::Policies
        | Name::Survive
        | Name::Cluster
        | Name::Baselines => None,
    }
}
