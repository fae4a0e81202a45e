#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

use std::path::PathBuf;

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

pub use entry::Entry;

/// How a benchmark is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The `antdt` program under test.
    pub antdt: PathBuf,
    /// The program `antdt-bench`, whose processes are the ranks of `collective`.
    pub antdt_bench: PathBuf,
    /// What `collective` is measured beside.
    pub peers: Vec<collective::Peer>,
    /// Measures only what has one of these texts in its name, if any is given; `collective` knows this, and `shard` knows `recording`.
    pub only: Vec<String>,
    /// Whether to be done within three minutes.
    pub quick: bool,
    /// Where runs leave their reports and logs.
    pub report_dir: PathBuf,
}

/// One benchmark: its name, what it measures, how it is run.
pub type Bench = (&'static str, &'static str, fn(&Settings) -> anyhow::Result<Vec<Entry>>);

/// All benchmarks. A new one is added here.
pub const BENCHES: [Bench; 5] = [
    ("job", "whole jobs of four workers, with and without a straggler, against their oracles", job::run),
    ("collective", "all-reduces beside gloo, Open MPI and the machine's bounds", collective::run),
    ("shard", "the shard service: ledger, journal, and calls over gRPC", shard::run),
    ("sim", "the simulator: events a second, large jobs, memory", sim::run),
    ("calibrate", "real jobs beside their simulation: the gate of every simulated figure", calibrate::run),
];
