//! Policies that are wrong on purpose are visibly wrong.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::path::Path;

use antdt_controller::policy::{NonDedicated, Unmanaged};
use antdt_sim::WhatIf;
use antdt_sim::whatif::Run;

#[path = "../examples/own_policy.rs"]
#[allow(dead_code, reason = "its main is for people")]
mod own_policy;

use own_policy::{KillsTooEagerly, Oscillates};

fn world(name: &str) -> WhatIf {
    WhatIf::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name)).unwrap()
}

fn seconds(run: &Run) -> f64 {
    assert_eq!(run.result, Ok(()), "{}", run.policy);
    run.completed.as_secs_f64()
}

#[test]
fn a_policy_that_oscillates_is_slower_than_none_and_acts_all_the_time() {
    let mut world = world("even.toml");
    // A plan takes about a heartbeat to be in force everywhere; then comes the next.
    world.setup.samples *= 2;
    let none = world.run(Box::new(Unmanaged)).unwrap();
    let wrong = world.run(Box::new(Oscillates::default())).unwrap();
    assert!(seconds(&wrong) > 1.3 * seconds(&none), "{} against {}", seconds(&wrong), seconds(&none));
    // One: the first batch sizes.
    assert!(none.actions.len() <= 1, "{:?}", none.actions);
    assert!(wrong.actions.len() > 20, "{}", wrong.actions.len());
}

#[test]
fn a_policy_that_kills_too_eagerly_is_slower_than_none_and_than_the_one_that_ships() {
    let world = world("slow_starts.toml");
    let none = world.run(Box::new(Unmanaged)).unwrap();
    let nd = world.run(Box::new(NonDedicated::default())).unwrap();
    let wrong = world.run(Box::new(KillsTooEagerly)).unwrap();
    let kills = |run: &Run| run.actions.iter().filter(|action| action.kind == "KILL_RESTART").count();
    assert_eq!((kills(&none), kills(&nd)), (0, 0));
    assert!(kills(&wrong) >= 2, "{}", kills(&wrong));
    assert!(nd.actions.len() <= 10, "batches only differ as they always do: {:?}", nd.actions);
    for right in [&none, &nd] {
        assert!(seconds(&wrong) > 1.2 * seconds(right), "{} against {}", seconds(&wrong), seconds(right));
    }
}
