#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

use std::path::PathBuf;

pub mod entry;

pub mod job;
pub mod oracle;
pub mod run;
pub mod shard;

pub use entry::Entry;

/// How a benchmark is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The `antdt` program under test.
    pub antdt: PathBuf,
    /// Whether to be done within three minutes.
    pub quick: bool,
    /// Where runs leave their reports and logs.
    pub report_dir: PathBuf,
}

/// One benchmark: its name, what it measures, how it is run.
pub type Bench = (&'static str, &'static str, fn(&Settings) -> anyhow::Result<Vec<Entry>>);

/// All benchmarks. A new one is added here.
pub const BENCHES: [Bench; 2] = [
    ("job", "whole jobs of four workers, with and without a straggler, against their oracles", job::run),
    ("shard", "the shard service: ledger, journal, and calls over gRPC", shard::run),
];
