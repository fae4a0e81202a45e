//! Recordings that the project does not ship. `ANTDT_DATA` names their folder; without it the tests say so and pass.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Read;
use std::path::PathBuf;

use antdt_controller::policy::NonDedicated;
use antdt_core::JobTime;
use antdt_sim::model::Models;
use antdt_sim::model::compute::{DeviceTable, Normal};
use antdt_sim::model::scheduler::Market;
use antdt_sim::replay::{read_gavel, read_market, read_slowdowns};
use antdt_sim::{Scenario, World};
use flate2::read::GzDecoder;

/// The text of a file, or a printed reason to skip.
fn data(name: &str) -> Option<String> {
    let path = std::env::var_os("ANTDT_DATA").map(|folder| PathBuf::from(folder).join(name));
    let Some(bytes) = path.and_then(|path| std::fs::read(path).ok()) else {
        println!("skipped: set ANTDT_DATA to a folder that has {name}");
        return None;
    };
    let mut text = String::new();
    if name.ends_with(".gz") {
        GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
        Some(text)
    } else {
        Some(String::from_utf8(bytes).unwrap())
    }
}

#[test]
fn recorded_slowdowns_have_the_quantiles_that_are_known_of_them() {
    for (name, workers, span_s, median, most) in [
        ("alibaba_job1", 10, 2990, 1.033, 2.358),
        ("alibaba_job2", 10, 2480, 1.211, 1.458),
        ("bytedance_ST", 8, 68, 1.0, 1.017),
    ] {
        let Some(text) = data(&format!("slowdown_series/{name}.csv.gz")) else { return };
        let slowdowns = read_slowdowns(&text).unwrap();
        assert_eq!(slowdowns.workers(), workers, "{name}");
        let entries = || (0..workers as u32).flat_map(|worker| slowdowns.entries(worker));
        let last = entries().map(|(at, _)| *at).max().unwrap();
        assert_eq!(last.since_start().as_secs(), span_s, "{name}");
        let mut factors: Vec<f64> = entries().map(|(_, factor)| *factor).collect();
        factors.sort_by(f64::total_cmp);
        assert!((factors[factors.len() / 2] - median).abs() < 0.002, "{name}");
        assert!((factors[factors.len() - 1] - most).abs() < 0.002, "{name}");
        // An hour passes in six minutes.
        let fast = slowdowns.compressed(10.0).unwrap();
        assert_eq!(fast.at(0, JobTime(1_000_000_000)), slowdowns.at(0, JobTime(10_000_000_000)), "{name}");
    }
}

#[test]
fn a_recorded_market_takes_machines_away_and_gives_them() {
    let Some(text) = data("parcae_spot/p3trace.csv") else { return };
    let changes = read_market(&text, 1.0).unwrap();
    assert_eq!(changes.len(), 344);
    let market = Market::new(changes, 32).unwrap();
    let crashes = market.crashes().count();
    // Of 167 machines that go, some had no node on them.
    assert!((100..=167).contains(&crashes), "{crashes}");
    // Eleven hours later the last machines are gone.
    assert!(market.available(0, JobTime(0)).is_some());
}

#[test]
fn measured_devices_differ_as_they_do() {
    let Some(text) = data("gavel_throughputs/simulation_throughputs.json.gz") else { return };
    let times = read_gavel(&text, "ResNet-50").unwrap();
    let of = |device, samples| times.seconds(device, samples).unwrap();
    for samples in [16, 24, 32, 64, 100] {
        assert!(
            of("v100", samples) < of("p100", samples) && of("p100", samples) < of("k80", samples),
            "{samples}"
        );
    }
    let motivation = data("gavel_throughputs/oracle_throughputs_motivation.json.gz").unwrap();
    let times = read_gavel(&motivation, "ResNet-50").unwrap();
    // As the file has it: 8.108 steps per second.
    assert!((times.seconds("p100", 16).unwrap() - 1.0 / 8.108_348_261_420_462).abs() < 1e-12);
}

#[test]
fn a_measured_device_is_no_straggler_because_others_are_faster() {
    let Some(text) = data("gavel_throughputs/simulation_throughputs.json.gz") else { return };
    let times = read_gavel(&text, "ResNet-50").unwrap();
    let devices = ["v100", "p100", "k80"];
    let scenario = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/mixed_devices.toml"));
    let scenario = Scenario::read(&scenario).unwrap();
    let (mut setup, _, models) = scenario.build(scenario.setup.seed).unwrap();
    (setup.workers, setup.global_batch_size) = (6, 6 * 64);
    let compute = Normal::new(DeviceTable::new(&times, &devices).unwrap(), 0.03).unwrap();
    let models = Models { compute: Box::new(compute), ..models };
    let world = World::new(setup, Box::new(NonDedicated::default()), models).unwrap();
    let (outcome, _) = world.run(JobTime::NEVER).map_err(|(violation, _)| violation).unwrap();
    assert_eq!(outcome.result, Ok(()));
    let kinds: Vec<&str> = outcome.actions.iter().map(|action| action.kind).collect();
    assert!(kinds.contains(&"ADJUST_BS") && !kinds.contains(&"KILL_RESTART"), "{kinds:?}");
}
