use antdt_core::{Capabilities, PlanVersion, Progress, StepView};

use super::*;
use crate::testing::quiet_view;

fn at(seconds: u64) -> JobTime {
    JobTime::from_duration(Duration::from_secs(seconds))
}

/// Workers with these times per sample, in microseconds, and a step that takes as long as the slowest.
fn view(times_us: &[u64]) -> ClusterView {
    let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, times_us);
    let slowest = times_us.iter().copied().max().unwrap_or_default();
    view.step = Some(StepView {
        plan: PlanVersion(1),
        steps: 20,
        time: Duration::from_micros(slowest * 64),
        overhead: Duration::ZERO,
    });
    view
}

fn decide(policy: &mut Predictive, second: u64, view: &ClusterView) -> Decision {
    policy.decide(at(second), view, &RestartBudget::default())
}

#[test]
fn the_first_straggler_of_a_job_is_answered_as_nd_does() {
    let view = view(&[1000, 1000, 1000, 4000]);
    let nd = NonDedicated::default().decide(at(1), &view, &RestartBudget::default());
    let own = decide(&mut Predictive::default(), 1, &view);
    assert!(nd.batch_sizes.is_some());
    assert_eq!(own.batch_sizes, nd.batch_sizes, "{own:?}");
    let said = own.reasons[1].to_string();
    assert!(said.starts_with("which saves about") && said.ends_with("of the rest of the job"), "{said}");
}

/// Once a backup was asked for between two plans of batch sizes. It dropped a quarter of the work of 20 steps, until it was taken back.
#[test]
fn no_backup_is_asked_for_before_batch_sizes_have_had_their_turn() {
    let mut view = view(&[1000, 1000, 1000, 4000]);
    view.mode = Capabilities::SERVERS_IN_STEP;
    view.step.as_mut().unwrap().steps = SETTLED_STEPS - 1;
    let alone = BackupWorkers::default().decide(at(1), &view, &RestartBudget::default());
    assert_eq!(alone.backups, Some(1), "a backup would help: {alone:?}");
    let mut policy = Predictive::default();
    let early = decide(&mut policy, 1, &view);
    assert!(!early.acts() && early.reasons == [Reason::TooSoon], "{early:?}");
    view.step.as_mut().unwrap().steps = SETTLED_STEPS;
    assert!(decide(&mut policy, 2, &view).batch_sizes.is_some());
}

#[test]
fn a_difference_that_is_known_is_followed_though_it_is_small() {
    // 4 % over peers: nd waits for a gain of 5 %.
    let mut view = view(&[1000, 1000, 1000, 1040]);
    for node in &mut view.workers {
        let estimate = node.estimate.as_mut().unwrap();
        (estimate.spread, estimate.batches) = (0.02, 400);
    }
    assert!(!NonDedicated::default().decide(at(1), &view, &RestartBudget::default()).acts());
    let sizes = decide(&mut Predictive::default(), 1, &view).batch_sizes.expect("it saves 3 %");
    assert!(sizes[&NodeId::worker(3)] < 64, "{sizes:?}");
    // The same seen in few batches, or under more noise, is none.
    for (spread, batches) in [(0.02, 10), (0.3, 400)] {
        for node in &mut view.workers {
            let estimate = node.estimate.as_mut().unwrap();
            (estimate.spread, estimate.batches) = (spread, batches);
        }
        assert!(!decide(&mut Predictive::default(), 1, &view).acts(), "{spread}, {batches}");
    }
}

#[test]
fn slownesses_that_end_before_a_plan_is_in_force_are_let_pass() {
    let (quiet, mut slow) = (view(&[1000; 4]), view(&[1000, 1000, 1000, 4000]));
    let estimate = slow.workers[3].estimate.as_mut().unwrap();
    estimate.batches = 2;
    let mut policy = Predictive::default();
    assert!(decide(&mut policy, 1, &slow).acts(), "the first one may be the one that stays");
    for burst in 1..40 {
        decide(&mut policy, 10 * burst, &slow);
        // Half a second, each of them.
        policy.decide(at(10 * burst) + Duration::from_millis(500), &quiet, &RestartBudget::default());
    }
    assert!(!decide(&mut policy, 1000, &slow).acts());
    // One that does not end is answered after all.
    let acted = (1001..1100).find(|second| decide(&mut policy, *second, &slow).acts());
    assert!(acted.is_some_and(|second| second < 1010), "{acted:?}");
}

#[test]
fn nothing_is_begun_that_the_job_is_too_short_for() {
    let mut view = view(&[1000, 1000, 1000, 4000]);
    view.progress = Progress { committed: 999_500, expected: 1_000_000, samples_per_second: 1000.0 };
    let decision = decide(&mut Predictive::default(), 1, &view);
    assert!(!decision.acts(), "{decision:?}");
}

#[test]
fn no_plan_is_made_that_saves_next_to_nothing() {
    let mut view = view(&[1000, 1000, 1000, 4000]);
    let mut acted = 0;
    for left in (10..20_000).step_by(10) {
        view.progress =
            Progress { committed: 1_000_000 - left, expected: 1_000_000, samples_per_second: 1000.0 };
        let decision = decide(&mut Predictive::default(), 1, &view);
        acted += u32::from(decision.acts());
        let says = |reason: &Reason| reason.to_string().contains("about 0.0 s");
        assert!(!decision.reasons.iter().any(says), "{left}: {decision:?}");
    }
    assert!(acted > 0);
}

#[test]
fn a_restart_waits_until_it_saves_more_than_it_costs_and_follows_the_outcome_of_earlier_ones() {
    let mut view = view(&[1000, 1000, 1000, 4000]);
    // As after a plan: what is left to do is a restart.
    for (node, size) in view.workers.iter_mut().zip([79, 79, 79, 19]) {
        node.batch_size = size;
    }
    let first = |policy: &mut Predictive| {
        (1..400).find(|second| !decide(policy, *second, &view).node_actions.is_empty())
    };
    let fresh = first(&mut Predictive::default()).expect("it stays slow for long enough");
    let mut wiser = Predictive { cures: (0, 6), ..Predictive::default() };
    assert!(first(&mut wiser).is_none_or(|second| second > 2 * fresh), "{fresh}");
    let mut luckier = Predictive { cures: (6, 6), ..Predictive::default() };
    assert!(first(&mut luckier).is_some_and(|second| second <= fresh), "{fresh}");
}

#[test]
fn the_delay_of_a_plan_is_that_of_this_job() {
    let mut policy = Predictive::default();
    assert!(decide(&mut policy, 10, &view(&[1000, 1000, 1000, 4000])).acts());
    policy.on_outcome(at(20), &ActionOutcome::PlanApplied { version: PlanVersion(2) });
    assert_eq!(policy.delay, (DELAY + Duration::from_secs(10)) / 2);
    // A plan for another membership is none of its decisions.
    policy.on_outcome(at(90), &ActionOutcome::PlanApplied { version: PlanVersion(3) });
    assert_eq!(policy.delay, (DELAY + Duration::from_secs(10)) / 2);
}
