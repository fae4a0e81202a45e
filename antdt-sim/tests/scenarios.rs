//! The scenarios that ship come out as they say.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use antdt_controller::policy;
use antdt_core::{JobTime, NodeId, Seed};
use antdt_sim::invariant::{self, Checkers};
use antdt_sim::model::compute::{Slow, Straggler, Who};
use antdt_sim::model::{Hosts, Models};
use antdt_sim::{Scenario, SimulatedJob, World};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("scenarios/{name}.toml"))
}

fn shipped(name: &str) -> Scenario {
    Scenario::read(&path(name)).unwrap()
}

fn day() -> JobTime {
    JobTime::from_duration(Duration::from_secs(24 * 3600))
}

// Under all invariants, as `antdt sim` runs it.
fn outcome(scenario: &Scenario, seed: u64) -> SimulatedJob {
    outcome_beside(scenario, seed, |models| models)
}

// When the job meets something else.
fn outcome_beside(scenario: &Scenario, seed: u64, other: impl FnOnce(Models) -> Models) -> SimulatedJob {
    let (setup, policy, models) = scenario.build(Seed(seed)).unwrap();
    let models = other(models);
    let checkers = Checkers::new(invariant::all(&setup).unwrap());
    let world = World::watched(setup, policy::REGISTRY.by_name(&policy).unwrap(), models, checkers).unwrap();
    let (outcome, mut checkers) = world.run(day()).map_err(|(violation, _)| violation).unwrap();
    checkers.finish().unwrap();
    outcome
}

fn deviations(name: &str, seed: u64) -> Vec<String> {
    let scenario = shipped(name);
    let outcome = outcome(&scenario, seed);
    println!("{name}, seed {seed}: until {}, idle {:.3}", outcome.completed, outcome.idle_share());
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
    slow_server_cured,
    slow_server_share,
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
    groups_even,
    groups_slow_worker,
    groups_crash_and_rejoin,
    groups_chaos,
);

#[test]
fn chaos_ends_well_from_any_seed() {
    for seed in 2..40 {
        assert_eq!(deviations("chaos", seed), [""; 0], "seed {seed}");
        assert_eq!(deviations("groups_chaos", seed), [""; 0], "seed {seed}");
    }
}

#[test]
fn the_way_to_form_groups_decides_which_workers_wait_for_a_slow_one() {
    let with = |name: &str, sync: &str| {
        let mut scenario = shipped(name);
        scenario.setup.sync = sync.parse().unwrap();
        outcome(&scenario, 0).completed.as_secs_f64()
    };
    let slow = |sync: &str| with("groups_slow_worker", sync);
    let [all, buffer, division, smart, pairs] =
        ["allreduce", "ripples=buffer:4", "ripples=division:4", "ripples=smart:4", "ad-psgd"].map(slow);
    let found = format!("{all} {buffer} {division} {smart} {pairs}");
    // As the head of the scenario has it.
    assert!(all > 500.0, "everybody waits for the slow one in each step: {found}");
    assert!(buffer < 0.8 * all && buffer > 2.0 * division, "many are in a group with it: {found}");
    assert!([division, smart, pairs].iter().all(|time| *time < 0.3 * all), "few wait: {found}");
    // H5 of the paper: a worker that is five times as slow costs the others little.
    let even = with("groups_even", "ripples=smart:4");
    assert!(smart < 1.25 * even, "{smart} of {even}");
}

#[test]
fn equal_workers_mostly_train_however_their_groups_are_formed() {
    for sync in ["ripples=smart:4", "ripples=division:4", "ripples=buffer:4", "ripples=arrival:4", "ad-psgd"]
    {
        let mut scenario = shipped("groups_even");
        (scenario.setup.workers, scenario.setup.global_batch_size) = (8, 512);
        (scenario.setup.samples, scenario.setup.gradient_bytes) = (512 * 60, 1 << 20);
        scenario.setup.sync = sync.parse().unwrap();
        let trained = 1.0 - outcome(&scenario, 0).idle_share();
        println!("{sync}: trained {trained:.3} of the time");
        assert!(trained > 0.4, "{sync}: {trained}");
    }
}

/// A step of a worker that averages beside its gradient takes as long as the longer of the two, not as both.
#[test]
fn an_average_beside_the_gradient_costs_only_its_excess_over_the_gradient() {
    let per_step = |sync: &str, bytes: u64| {
        let mut scenario = shipped("groups_even");
        (scenario.setup.workers, scenario.setup.global_batch_size) = (8, 512);
        (scenario.setup.samples, scenario.setup.gradient_bytes) = (512 * 60, bytes);
        scenario.setup.sync = sync.parse().unwrap();
        outcome(&scenario, 0).completed.as_secs_f64() / 60.0
    };
    let (compute, mib) = (per_step("ad-psgd=overlap", 1), 1 << 20);
    let [plain, overlap] = ["ad-psgd", "ad-psgd=overlap"].map(|sync| per_step(sync, 128 * mib));
    assert!(overlap < 1.05 * compute, "hidden: {overlap} of {compute}, {plain} without");
    assert!(plain > 1.2 * compute, "not hidden: {plain} of {compute}");
    let long = per_step("ad-psgd=overlap", 2048 * mib);
    // A worker that finds no free partner meanwhile goes on without.
    assert!(long > 1.1 * compute, "longer than the gradient: {long} of {compute}");
}

/// No worker waits for the slow one, and it is not left alone.
#[test]
fn a_slow_worker_that_answers_beside_its_gradient_holds_no_worker_up() {
    let time = |sync: &str| {
        let mut scenario = shipped("groups_slow_worker");
        scenario.setup.sync = sync.parse().unwrap();
        outcome(&scenario, 0).completed.as_secs_f64()
    };
    let (plain, overlap) = (time("ad-psgd"), time("ad-psgd=overlap"));
    // 204,800 samples at 128 a second, by 15 workers and a fifth of one.
    let ideal = 204_800.0 / 128.0 / 15.2;
    assert!(overlap < 1.1 * ideal && overlap < plain, "{overlap} of {ideal}, {plain} without");
}

#[test]
fn a_worker_with_a_static_share_keeps_it() {
    let mut scenario = shipped("static_sharding");
    let dealt = outcome(&scenario, 0).completed.as_secs_f64();
    scenario.setup.static_sharding = false;
    let shared = outcome(&scenario, 0).completed.as_secs_f64();
    // A quarter of the samples at a quarter of the speed; and all at the speed of all.
    assert!((150.0..200.0).contains(&dealt) && (60.0..70.0).contains(&shared), "{dealt} {shared}");
}

#[test]
fn among_mixed_devices_a_worker_slower_than_its_own_kind_is_restarted() {
    let straggler = |worker| Straggler {
        who: Who::Node(NodeId::worker(worker)),
        slow: 3.0,
        from: JobTime(10_000_000_000),
        to: JobTime::NEVER,
        cured_by_restart: true,
    };
    // A fast one that has become as slow as the slow ones, and a slow one that is slower still.
    for worker in [2, 3] {
        let outcome = outcome_beside(&shipped("mixed_devices"), 0, |models| Models {
            compute: Box::new(Slow::new(models.compute, Hosts::default(), [straggler(worker)]).unwrap()),
            ..models
        });
        let restarts = outcome.actions.iter().filter(|action| action.kind == "KILL_RESTART");
        let targets: BTreeSet<&str> = restarts.map(|action| action.target.as_str()).collect();
        assert_eq!(targets, BTreeSet::from([format!("worker-{worker}").as_str()]));
    }
}

#[test]
fn ten_thousand_comes_out_as_it_says_with_a_tenth_of_its_workers() {
    let mut scenario = shipped("ten_thousand");
    scenario.setup.workers /= 10;
    scenario.setup.global_batch_size /= 10;
    scenario.setup.samples = 3 * u64::from(scenario.setup.global_batch_size);
    assert_eq!(scenario.expect.check(&outcome(&scenario, 0)), [""; 0]);
}

#[test]
fn a_dry_run_takes_as_long_as_no_policy_and_names_its_actions() {
    let with = |policy: &str, dry_run: bool| {
        let mut scenario = shipped("straggler");
        policy.clone_into(&mut scenario.policy);
        scenario.setup.dry_run = dry_run;
        outcome(&scenario, 1)
    };
    let (dry, none, nd) = (with("nd", true), with("none", false), with("nd", false));
    assert_eq!(dry.completed, none.completed);
    assert!(nd.completed < none.completed);
    let (would, done): (Vec<_>, Vec<_>) =
        dry.actions.iter().partition(|action| action.kind.starts_with("WOULD_"));
    assert_eq!(
        done.iter().map(|action| action.kind).collect::<Vec<_>>(),
        ["ADJUST_BS"],
        "for the workers that came"
    );
    assert!(would.iter().any(|action| action.kind == "WOULD_ADJUST_BS"), "{would:?}");
    // The same straggler is there for 200 s and a thousand ticks.
    assert!(
        would.len() <= 4 && would.iter().all(|action| action.reason.contains("not carried out")),
        "{would:?}"
    );
}
