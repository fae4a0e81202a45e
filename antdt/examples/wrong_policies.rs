//! Two policies that are wrong on purpose beside the ones that ship, as a page with charts:
//! `cargo run --release -p antdt --example wrong_policies [TRACE] > wrong.html`.
//!
//! TRACE is a recording, a CSV of slowdowns or a scenario; without it, `straggler.toml` of those that ship.

use std::path::Path;

use antdt::simulate::page;
use antdt_controller::Policy;
use antdt_controller::policy::{NonDedicated, Unmanaged};
use antdt_sim::whatif::Run;
use antdt_sim::{Calibration, WhatIf};

#[path = "../../antdt-sim/examples/own_policy.rs"]
#[allow(dead_code, reason = "its main prints a table")]
mod own_policy;

use own_policy::{KillsTooEagerly, Oscillates};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../antdt-sim/scenarios/straggler.toml").to_owned();
    let trace = std::env::args().nth(1).unwrap_or(shipped);
    let world = WhatIf::read_with(Path::new(&trace), antdt_rt::open_trace)?;
    let policies: [Box<dyn Policy>; 4] = [
        Box::new(Unmanaged),
        Box::new(NonDedicated::default()),
        Box::new(Oscillates::default()),
        Box::new(KillsTooEagerly),
    ];
    // If the simulator is not to be trusted there are no figures.
    let calibration = Calibration::line()?;
    let mut runs: Vec<Run> = world.recorded().into_iter().collect();
    for policy in policies {
        runs.push(world.run(policy)?);
    }
    let beyond = runs.iter().map(|run| world.beyond(run)).find(|lines| !lines.is_empty()).unwrap_or_default();
    let notes: Vec<&str> = beyond.iter().chain([&calibration]).map(String::as_str).collect();
    print!("{}", page::render(&trace, &world.setup, &runs, &notes));
    Ok(())
}
