//! The cells once more in the simulator, up to more workers than one machine can run. A way to train whose simulated throughput is not that of
//! its real job is shown no further.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use antdt_controller::policy;
use antdt_sim::WhatIf;
use anyhow::{Context, Result};

use super::cell::{Cell, Measured, Scheme, Slow};
use super::setting::{LATENCY, Setting};
use crate::Entry;
use crate::entry::State;
use crate::meter::median;

/// Workers of the simulated jobs beyond those of the real ones.
const WORLDS: [u32; 4] = [16, 64, 256, 1024];

/// How far the simulated throughput may be from the real one, as a share of that.
const NEAR: f64 = 0.1;

/// A row for each measured cell: its simulated throughput where that is near the real one, of the seeds together; and then one for each larger
/// cluster.
///
/// # Errors
/// If a scenario cannot be written to `folder`, or not be simulated.
pub(super) fn rows(setting: &Setting, cells: &[Measured], folder: &Path) -> Result<Vec<Entry>> {
    let mut seen: Vec<Cell> = Vec::new();
    let mut rows = Vec::new();
    for it in cells {
        let cell = Cell { seed: 1, ..it.cell };
        if seen.contains(&cell) {
            continue;
        }
        seen.push(cell);
        let alike = cells.iter().filter(|it| Cell { seed: 1, ..it.cell } == cell && !it.is_overloaded());
        let real: Vec<f64> = alike.map(|it| it.throughput).collect();
        if real.is_empty() {
            continue;
        }
        rows.extend(of_cell(setting, &cell, median(real), folder)?);
    }
    Ok(rows)
}

fn of_cell(setting: &Setting, cell: &Cell, real: f64, folder: &Path) -> Result<Vec<Entry>> {
    let name = |workers: u32| {
        format!(
            "simulated: {}, {}, R_e {}, {workers} workers: throughput",
            cell.scheme.name(),
            cell.slowness(),
            cell.ratio
        )
    };
    let simulated = match throughput(setting, cell, folder)? {
        Ok(simulated) => simulated,
        Err(why) => return Ok(vec![Entry::without(name(setting.workers), State::Ok, why)]),
    };
    if !is_near(simulated, real) {
        let far = simulated / real;
        let why = format!("not shown: {far:.2} times the real throughput, where 0.9 to 1.1 is near");
        return Ok(vec![Entry::without(name(setting.workers), State::Ok, why)]);
    }
    let shown = |workers, value| Entry::shown(name(workers), value, "samples/s");
    let mut rows = vec![shown(setting.workers, simulated).beside(format!("real: {real:.0} samples/s"))];
    for workers in WORLDS.into_iter().filter(|workers| *workers > setting.workers) {
        rows.push(match throughput(&Setting { workers, ..*setting }, cell, folder)? {
            Ok(value) => shown(workers, value),
            Err(why) => Entry::without(name(workers), State::Ok, why),
        });
    }
    Ok(rows)
}

fn is_near(simulated: f64, real: f64) -> bool {
    (simulated / real - 1.0).abs() <= NEAR
}

/// Samples per second of the simulated job; or why there is no such figure. A job may fail: the card of a single server that sends a
/// model to each of hundreds of workers is so busy that no worker hears of the server in time.
fn throughput(setting: &Setting, cell: &Cell, folder: &Path) -> Result<Result<f64, String>> {
    let Some(text) = scenario(setting, cell) else {
        return Ok(Err("the simulator changes no sync mode in the middle of a job".to_owned()));
    };
    let file = folder.join("simulated.toml");
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    let world = WhatIf::read(&file)?;
    let run = world.run(policy::build(cell.scheme.policy(), &BTreeMap::new())?)?;
    let goodput = run.goodput();
    Ok(run.result.map(|()| goodput).map_err(|why| format!("the simulated job fails: {why}")))
}

/// The job of a cell for the simulator.
fn scenario(setting: &Setting, cell: &Cell) -> Option<String> {
    if cell.scheme == Scheme::Auto {
        return None;
    }
    let servers = cell.scheme.servers(setting).map_or(0, |(servers, _)| servers);
    let mut text = format!(
        "[job]\nsync = \"{}\"\npolicy = \"{}\"\nworkers = {}\nservers = {servers}\nworkers-per-host = {}\n\
         global-batch-size = {}\nsamples = {}\nshard-len = 32\ngradient-bytes = {}\n\n\
         [compute]\nspeed = {}\n\n\
         [network]\nlatency = \"{}ms\"\nbandwidth = {}\ninside-latency = \"20us\"\ninside-bandwidth = 5e9\n",
        cell.scheme.sync(setting),
        cell.scheme.policy(),
        setting.workers,
        setting.per_host,
        setting.global_batch_size(),
        setting.samples(),
        Setting::model_bytes(),
        setting.speed(),
        LATENCY.as_millis(),
        setting.bandwidth(cell.ratio),
    );
    for worker in cell.slow_workers(setting) {
        let span = if cell.slow == Slow::Transient { "from = \"3s\"\nto = \"9s\"\n" } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(text, "\n[[straggler]]\nworker = {worker}\nslow = {:?}\n{span}", cell.sigma);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SETTING: Setting =
        Setting { workers: 8, per_host: 4, steps: 48, compute: Duration::from_millis(100) };

    #[test]
    fn every_cell_but_auto_is_a_scenario() {
        let folder = tempfile::tempdir().unwrap();
        for scheme in Scheme::ALL {
            for (slow, sigma) in
                [(Slow::One, 1.0), (Slow::Several, 5.0), (Slow::Host, 5.0), (Slow::Transient, 5.0)]
            {
                let cell = Cell { slow, ..Cell::one_slow(scheme, sigma, 0.5, 1) };
                let found = throughput(&SETTING, &cell, folder.path()).unwrap();
                assert_eq!(found.is_ok(), scheme != Scheme::Auto, "{}: {found:?}", cell.name());
                assert!(found.is_err() || found.is_ok_and(|speed| speed > 100.0), "{}", cell.name());
            }
        }
    }

    #[test]
    fn a_simulated_job_that_fails_is_a_row_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let cell = Cell::one_slow(Scheme::PsBspOne, 1.0, 0.5, 1);
        let simulated = throughput(&SETTING, &cell, folder.path()).unwrap().unwrap();
        let rows = of_cell(&SETTING, &cell, simulated, folder.path()).unwrap();
        let of_256 = rows.iter().find(|row| row.name.contains(" 256 workers")).unwrap();
        assert!(of_256.value.is_none() && of_256.peer.as_ref().unwrap().contains("server-0"), "{of_256:?}");
        assert!(rows[0].value.is_some() && rows.len() == 1 + WORLDS.len(), "{rows:?}");
    }

    #[test]
    fn an_all_reduce_takes_the_time_of_its_slowest_gradient_and_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        for sigma in [1.0, 5.0] {
            let cell = Cell::one_slow(Scheme::AllReduce, sigma, 0.5, 1);
            let speed = throughput(&SETTING, &cell, folder.path()).unwrap().unwrap();
            let share = speed / SETTING.all_reduce_bound(sigma, 0.5);
            assert!((0.8..=1.2).contains(&share), "sigma {sigma}: {share} of the bound");
        }
    }

    #[test]
    fn only_a_throughput_near_the_real_one_goes_on_to_larger_clusters() {
        let folder = tempfile::tempdir().unwrap();
        let cell = Cell::one_slow(Scheme::AllReduce, 1.0, 0.5, 1);
        let simulated = throughput(&SETTING, &cell, folder.path()).unwrap().unwrap();
        let of = |real: f64| {
            let measured = |seed, throughput| Measured {
                throughput,
                load: Some(0.2),
                ..Measured::of(Cell { seed, ..cell })
            };
            let cells = [measured(1, real), measured(2, real), measured(3, 9.0 * real)];
            rows(&SETTING, &cells, folder.path()).unwrap()
        };
        let near = of(simulated / 1.09);
        assert_eq!(near.len(), 1 + WORLDS.len(), "{near:?}");
        assert!(near.iter().all(|row| row.value.is_some()));
        assert!(near[4].name.contains("1024 workers"), "{near:?}");
        let far = of(simulated / 1.12);
        assert_eq!(far.len(), 1, "{far:?}");
        assert!(far[0].value.is_none() && far[0].peer.as_ref().unwrap().contains("1.12 times"), "{far:?}");
    }
}
