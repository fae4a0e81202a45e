//! The scenarios that ship come out as they say.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use antdt_controller::policy;
use antdt_core::{JobTime, Seed};
use antdt_sim::invariant::{self, Checkers};
use antdt_sim::{Outcome, Scenario, World};

fn shipped(name: &str) -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("scenarios/{name}.toml"));
    Scenario::read(&path).unwrap()
}

// Under all invariants, as `antdt sim` runs it.
fn outcome(scenario: &Scenario, seed: u64) -> Outcome {
    let (setup, policy, models) = scenario.build(Seed(seed)).unwrap();
    let checkers = Checkers::new(invariant::all(&setup).unwrap());
    let world = World::watched(setup, policy::by_name(&policy).unwrap(), models, checkers).unwrap();
    let day = JobTime::from_duration(Duration::from_secs(24 * 3600));
    let (outcome, mut checkers) = world.run(day).map_err(|(violation, _)| violation).unwrap();
    checkers.finish().unwrap();
    outcome
}

fn deviations(name: &str, seed: u64) -> Vec<String> {
    let scenario = shipped(name);
    let outcome = outcome(&scenario, seed);
    println!("{name}, seed {seed}: {} at {}", outcome.result.is_ok(), outcome.completed);
    scenario.expect.check(&outcome)
}

macro_rules! comes_out_as_it_says {
    ($($name:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            for seed in 0..2 {
                assert_eq!(deviations(stringify!($name), seed), [""; 0], "seed {seed}");
            }
        }
    )*};
}

comes_out_as_it_says!(
    even,
    straggler,
    bursts,
    cured_by_restart,
    slow_server,
    crash_and_rejoin,
    zombie,
    partition,
    spot_market,
    busy_cluster,
    static_sharding,
    recorded_slowdowns,
    mixed_devices,
    slow_starts,
    chaos,
);

#[test]
fn chaos_ends_well_from_any_seed() {
    for seed in 2..40 {
        assert_eq!(deviations("chaos", seed), [""; 0], "seed {seed}");
    }
}

#[test]
fn who_has_its_share_of_the_data_from_the_start_keeps_it() {
    let mut scenario = shipped("static_sharding");
    let dealt = outcome(&scenario, 0).completed.as_secs_f64();
    scenario.setup.static_sharding = false;
    let shared = outcome(&scenario, 0).completed.as_secs_f64();
    // A quarter of the samples at a quarter of the speed; and all at the speed of all.
    assert!((150.0..200.0).contains(&dealt) && (60.0..70.0).contains(&shared), "{dealt} {shared}");
}

#[test]
fn ten_thousand_comes_out_as_it_says_with_a_tenth_of_its_workers() {
    let mut scenario = shipped("ten_thousand");
    scenario.setup.workers /= 10;
    scenario.setup.global_batch_size /= 10;
    scenario.setup.samples = 3 * u64::from(scenario.setup.global_batch_size);
    assert_eq!(scenario.expect.check(&outcome(&scenario, 0)), [""; 0]);
}
