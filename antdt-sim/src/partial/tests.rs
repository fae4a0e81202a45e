use std::time::Duration;

use antdt_core::{JobTime, NodeId, Seed};

use super::*;
use crate::Models;
use crate::invariant::{Checkers, all_of_groups};
use crate::model::compute::{Constant, Slow, Straggler, Who};
use crate::model::faults::Listed;
use crate::model::network::AlphaBeta;
use crate::model::scheduler::Quantiles;
use crate::model::{Fault, Hosts};

const STEP: Duration = Duration::from_millis(100);

/// Equal workers, one of which takes `slow` times as long.
fn models(slow: f64, faults: Listed) -> Models {
    let straggler = Straggler {
        who: Who::Node(NodeId::worker(1)),
        slow,
        from: JobTime::ZERO,
        to: JobTime::NEVER,
        cured_by_restart: false,
    };
    let compute = Constant { fixed: STEP, per_sample: Duration::ZERO };
    Models {
        compute: Box::new(Slow::new(compute, Hosts::default(), [straggler]).unwrap()),
        network: Box::new(AlphaBeta::default()),
        scheduler: Box::new(Quantiles::new(Duration::ZERO, &[(0.0, 0.1), (1.0, 0.1)]).unwrap()),
        faults: Box::new(faults),
    }
}

fn run(setup: &GroupSetup, models: Models) -> SimulatedAveraging {
    let checkers = Checkers::new(all_of_groups());
    let world = GroupWorld::watched(setup.clone(), models, checkers).unwrap();
    let (outcome, mut checkers) = match world.run(JobTime::ZERO + Duration::from_secs(100_000)) {
        Ok(ended) => ended,
        Err((violation, _)) => panic!("{violation}"),
    };
    assert_eq!(outcome.result, Ok(()));
    checkers.finish().unwrap();
    outcome
}

fn setup(formation: GroupFormation) -> GroupSetup {
    GroupSetup {
        workers: 8,
        steps: 60,
        model_bytes: 1 << 20,
        formation,
        seed: Seed(3),
        ..GroupSetup::default()
    }
}

#[test]
fn equal_workers_make_all_their_steps_and_mostly_train() {
    for formation in GroupFormation::ALL {
        let outcome = run(&setup(formation), models(1.0, Listed::default()));
        assert_eq!(outcome.steps, 8 * 60);
        assert!(outcome.averages > 300, "{formation:?}: {outcome:?}");
        let least = if formation == GroupFormation::Random { 0.1 } else { 0.4 };
        assert!((least..1.0).contains(&outcome.busy), "{formation:?}: {outcome:?}");
    }
}

/// All of them in one group are an all-reduce: a step, two messages there and back, and the formula of the average.
#[test]
fn two_workers_take_as_long_as_the_closed_form_says() {
    let setup =
        GroupSetup { workers: 2, workers_per_host: 1, group_size: 2, ..setup(GroupFormation::Division) };
    let outcome = run(&setup, models(1.0, Listed::default()));
    let link = setup.between;
    let choice = antdt_collective::schedule::Choice::Auto.resolve(2, 1 << 20, &link);
    let average = antdt_collective::schedule::select::cost_all_reduce(choice, 2, 1 << 20, &link).unwrap();
    let steps = 60.0 * (0.1 + average) + 0.1;
    // Besides: four messages a step, of 20 us or more each.
    let seen = outcome.completed.as_secs_f64();
    assert!(seen > steps && seen < steps + 60.0 * 4.0 * 0.5e-3, "{seen} of {steps}");
    assert_eq!(outcome.averages, 2 * 60);
}

#[test]
fn a_slow_worker_delays_groups_less_than_it_delays_an_average_of_all() {
    let busy = |formation, group_size, progress_gap_max| {
        let setup = GroupSetup { group_size, progress_gap_max, ..setup(formation) };
        run(&setup, models(8.0, Listed::default())).busy
    };
    let all = busy(GroupFormation::Division, 8, 0);
    assert!(all < 0.3, "everybody waits for the slow one: {all}");
    for formation in [GroupFormation::Division, GroupFormation::InterIntra] {
        let groups = busy(formation, 3, 3);
        assert!(groups > 1.5 * all, "{formation:?}: {groups} of {all}");
    }
}

#[test]
fn a_worker_that_dies_is_replaced_and_its_steps_are_made() {
    let at = |seconds: u64| JobTime::ZERO + Duration::from_secs(seconds);
    let faults = Listed::new([
        (at(1), Fault::Crash(NodeId::worker(2))),
        (at(2), Fault::RestartLedger),
        (at(3), Fault::Pause(NodeId::worker(5), Duration::from_secs(20))),
        (at(4), Fault::Cut(NodeId::worker(6), Duration::from_secs(2))),
    ]);
    let outcome = run(&setup(GroupFormation::InterIntra), models(1.0, faults));
    // The step that was under way when it died is lost.
    assert!((8 * 60 - 2..=8 * 60).contains(&outcome.steps), "{outcome:?}");
}

#[test]
fn impossible_settings_are_refused_by_name() {
    let usual = GroupSetup::default();
    let refused: [(&str, GroupSetup); 12] = [
        ("workers", GroupSetup { workers: 0, ..usual.clone() }),
        ("workers-per-host", GroupSetup { workers_per_host: 0, ..usual.clone() }),
        ("batch-size", GroupSetup { batch_size: 0, ..usual.clone() }),
        ("again-after", GroupSetup { again_after: Duration::ZERO, ..usual.clone() }),
        ("collective-timeout", GroupSetup { collective_timeout: Duration::ZERO, ..usual.clone() }),
        ("silence-limit", GroupSetup { silence_limit: Duration::ZERO, ..usual.clone() }),
        ("steps", GroupSetup { steps: 0, ..usual.clone() }),
        ("workers", GroupSetup { workers: u32::MAX, ..usual.clone() }),
        ("attempts-max", GroupSetup { attempts_max: 0, ..usual.clone() }),
        ("group-limit", GroupSetup { group_limit: Duration::ZERO, ..usual.clone() }),
        ("repeats", GroupSetup { repeats: f64::NAN, ..usual.clone() }),
        ("group-size", GroupSetup { group_size: 1, ..usual }),
    ];
    for (field, setup) in refused {
        let error = GroupWorld::new(setup, models(1.0, Listed::default())).unwrap_err().to_string();
        assert!(error.starts_with(field), "{error}");
    }
}
