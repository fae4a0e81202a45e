//! The benchmark `shard`: measures the ledger alone, its journal, and calls over gRPC.

use std::time::Duration;

use antdt_shard::{DatasetSpec, Epochs};
use anyhow::{Context, Result, bail};

use crate::{Rows, Settings, meter};

mod crowd;
mod host;
mod ledger;
mod puller;
mod recording;
mod recovery;
mod service;

/// Name of every data set here.
const NAME: &str = "bench";
/// Samples of a shard.
const SHARD_LEN: u64 = 100;
/// What is measured beside: the master of `DLRover` with a get and a report for each shard, 16 clients over gRPC and
/// loopback on two cores, measured by us (1,860 pairs/s, p99 21 to 41 ms). Its ledger has no journal.
const DLROVER: &str = "DLRover's master:";

/// How much is measured and how much noise is forgiven.
struct Scale {
    /// Times that each thing is measured; the median counts.
    rounds: usize,
    /// Calls of a ledger in one round.
    ledger_calls: u64,
    /// Done shards, anywhere in an epoch of 10⁸.
    holes: u64,
    /// Length of the journal that is recovered.
    journal_mib: u64,
    /// Length of one round of calls.
    round: Duration,
    /// For how long ten thousand holders are watched.
    crowd: Duration,
    /// How many times slower than the target the machine may be: others may be at work on it. Ratios and sizes do not
    /// depend on that and are never forgiven anything.
    slack: f64,
}

impl Scale {
    const FULL: Self = Self {
        rounds: 7,
        ledger_calls: 1_000_000,
        holes: 10_000_000,
        journal_mib: 1024,
        round: Duration::from_secs(2),
        crowd: Duration::from_secs(20),
        slack: 1.0,
    };

    /// Done within 45 s.
    const QUICK: Self = Self {
        rounds: 5,
        ledger_calls: 100_000,
        holes: 1_000_000,
        journal_mib: 64,
        round: Duration::from_millis(400),
        crowd: Duration::from_secs(4),
        slack: 4.0,
    };

    /// Returns the least rate that passes, for a target rate.
    fn floor(&self, target: f64) -> f64 {
        target / self.slack
    }

    /// The longest time, for a target.
    fn ceiling(&self, target: f64) -> f64 {
        target * self.slack
    }
}

/// Without an end, so that nothing measured is the end of the data.
fn spec(shards: u64) -> DatasetSpec {
    DatasetSpec {
        epochs: Epochs::Infinite,
        epoch_overlap: 1,
        max_leases_per_holder: 32,
        ..DatasetSpec::new(NAME, shards * SHARD_LEN, SHARD_LEN)
    }
}

/// Runs the benchmark `shard`, one measurement after the other, and adds its rows to `rows`.
///
/// # Errors
/// If a measurement cannot be run. A missed target is a row that has failed.
pub fn run(settings: &Settings, rows: &mut Rows) -> Result<()> {
    let scale = if settings.quick { Scale::QUICK } else { Scale::FULL };
    let journals = tempfile::Builder::new().prefix("journals-").tempdir_in(&settings.report_dir);
    let journals = journals.context("cannot create a folder for the journals")?;
    if settings.only.iter().any(|text| "recording".contains(text.as_str())) {
        recording::recording(&scale, journals.path(), rows)?;
        return Ok(());
    }
    if !settings.only.is_empty() {
        bail!("--only = {}: here it is `recording`, or nothing for all but that", settings.only.join(", "));
    }
    // First, while the process has no memory of anything else.
    ledger::opening(rows)?;
    progress("transitions of the ledger");
    ledger::transitions(&scale, rows)?;
    progress("snapshots");
    ledger::snapshots(&scale, rows)?;
    progress("recovery");
    recovery::recovery(&scale, &journals.path().join("recovery"), rows)?;
    progress("calls over gRPC");
    service::service(&scale, journals.path(), rows)?;
    progress("recording");
    recording::recording(&scale, journals.path(), rows)?;
    progress("10,000 holders");
    crowd::crowd(&scale, &journals.path().join("crowd"), rows)?;
    Ok(())
}

fn progress(what: &str) {
    println!("{what} ...");
}
