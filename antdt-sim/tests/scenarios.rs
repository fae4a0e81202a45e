//! The scenarios that ship come out as they say.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use antdt_controller::policy;
use antdt_core::{JobTime, Seed};
use antdt_sim::{Scenario, World};

fn deviations(name: &str, seed: u64) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("scenarios/{name}.toml"));
    let scenario = Scenario::read(&path).unwrap();
    let (setup, policy, models) = scenario.build(Seed(seed)).unwrap();
    let world = World::new(setup, policy::by_name(&policy).unwrap(), models).unwrap();
    let day = JobTime::from_duration(Duration::from_secs(24 * 3600));
    let (outcome, _) = world.run(day).map_err(|(violation, _)| violation).unwrap();
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
    chaos,
);
