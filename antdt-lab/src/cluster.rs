//! The benchmark `cluster`: what many hosts cost: their start, the master that they all call, links between them, and encryption.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::{Rows, Settings};

mod control;
mod links;
mod start;

/// What `--only` can select.
const PARTS: [&str; 3] = ["start", "control", "links"];

/// How much is measured.
struct Scale {
    /// Hosts that start, beside torchrun.
    hosts: u32,
    /// Hosts that start by themselves.
    many_hosts: u32,
    /// Times that each of the two starts.
    rounds: usize,
    /// For how long the workers of the master are watched.
    watched: Duration,
    /// Steps of a job over links.
    steps: u32,
}

impl Scale {
    const FULL: Self =
        Self { hosts: 16, many_hosts: 64, rounds: 3, watched: Duration::from_secs(20), steps: 40 };

    /// Done within three minutes.
    const QUICK: Self =
        Self { hosts: 8, many_hosts: 64, rounds: 1, watched: Duration::from_secs(8), steps: 16 };
}

/// Runs the benchmark `cluster`, one part after the other.
///
/// # Errors
/// If a part cannot be measured. A missed target is a row that has failed, and a peer that is missing a row without a figure.
pub fn run(settings: &Settings, rows: &mut Rows) -> Result<()> {
    if !PARTS.iter().any(|part| settings.asks_for(part)) {
        bail!("--only = {}: no part has this name; there are {}", settings.only.join(", "), PARTS.join(", "));
    }
    let scale = if settings.quick { Scale::QUICK } else { Scale::FULL };
    if settings.asks_for("start") {
        println!("start of {} hosts ...", scale.many_hosts);
        start::start(settings, &scale, rows)?;
    }
    if settings.asks_for("control") {
        println!("a master of many hosts ...");
        control::control(settings, &scale, rows)?;
    }
    if settings.asks_for("links") {
        println!("links between three hosts ...");
        links::links(settings, &scale, rows)?;
    }
    Ok(())
}
