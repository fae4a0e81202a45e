use antdt_core::{ActionId, Capabilities, DeviceClass, PlanVersion, Progress, StepView};

use super::*;
use crate::budget::BudgetConfig;
use crate::testing::{Invariants, history, quiet_view};

const NOW: JobTime = JobTime(1_000_000_000);
const WORKER_3: NodeId = NodeId::worker(3);

fn decide(view: &ClusterView) -> Decision {
    NonDedicated::default().decide(NOW, view, &RestartBudget::default())
}

/// Four workers, worker 3 four times slower all the time, with 1 000 s to go and 10 s to start a node.
fn persistent(mode: Capabilities) -> ClusterView {
    let mut view = quiet_view(mode, &[1000, 1000, 1000, 4000]);
    make_persistent(&mut view, 3);
    view
}

fn make_persistent(view: &mut ClusterView, index: usize) {
    view.workers[index].pace = Pace::Straggler(StragglerKind::Persistent);
    view.workers[index].slow_fraction_long = 1.0;
}

fn sizes(decision: &Decision) -> Option<Vec<u32>> {
    decision.batch_sizes.as_ref().map(|sizes| sizes.values().copied().collect())
}

#[test]
fn a_transient_straggler_gets_smaller_batches_in_synchronous_modes() {
    for mode in [Capabilities::REPLICAS_IN_STEP, Capabilities::SERVERS_IN_STEP] {
        let decision = decide(&quiet_view(mode, &[1000, 1000, 1000, 4000]));
        assert_eq!(sizes(&decision), Some(vec![79, 79, 79, 19]), "{mode:?}");
        let gain_percent = 68; // 256 ms to 79 ms, and a little noise
        let expected = Reason::Rebalance { slowest: WORKER_3, slowness_percent: 400, gain_percent };
        assert_eq!(decision.reasons, [expected]);
        assert!(decision.node_actions.is_empty());
    }
}

#[test]
fn a_transient_straggler_is_left_to_the_shards_in_asynchronous_mode() {
    let decision = decide(&quiet_view(Capabilities::SERVERS_AT_OWN_PACE, &[1000, 1000, 1000, 4000]));
    assert_eq!(decision, Decision::nothing(Reason::Balanced));
}

#[test]
fn of_two_workers_the_slow_one_gets_less() {
    assert_eq!(
        sizes(&decide(&quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 3000]))),
        Some(vec![96, 32])
    );
}

#[test]
fn a_gain_below_five_percent_is_not_worth_a_plan() {
    let small = decide(&quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 1000, 1000, 1050]));
    assert_eq!(small, Decision::nothing(Reason::GainTooSmall { percent: 2 }));
    assert_eq!(
        decide(&quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4])),
        Decision::nothing(Reason::Balanced)
    );
}

#[test]
fn a_straggler_that_recovered_gets_its_share_back() {
    let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]);
    for (worker, size) in view.workers.iter_mut().zip([79, 79, 79, 19]) {
        worker.batch_size = size;
    }
    assert_eq!(sizes(&decide(&view)), Some(vec![64; 4]));
}

#[test]
fn equal_slowness_of_all_is_no_reason_to_act() {
    assert_eq!(
        decide(&quiet_view(Capabilities::REPLICAS_IN_STEP, &[9000; 4])),
        Decision::nothing(Reason::Balanced)
    );
}

#[test]
fn nothing_is_decided_in_motion_or_without_numbers() {
    let base = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 1000, 1000, 4000]);
    let pending = ClusterView { plan_pending: true, ..base.clone() };
    assert_eq!(decide(&pending), Decision::nothing(Reason::Unsettled));
    let changed = ClusterView { membership_changed: true, ..base.clone() };
    assert_eq!(decide(&changed), Decision::nothing(Reason::Unsettled));
    let mut unknown = base;
    unknown.workers[0].estimate = None;
    assert_eq!(decide(&unknown), Decision::nothing(Reason::NotEnoughData { known: 3, needed: 4 }));
    let empty = quiet_view(Capabilities::REPLICAS_IN_STEP, &[]);
    assert_eq!(decide(&empty), Decision::nothing(Reason::NotEnoughData { known: 0, needed: 1 }));
}

#[test]
fn of_many_workers_one_in_ten_may_be_unknown_and_counts_as_typical() {
    let mut view = quiet_view(
        Capabilities::REPLICAS_IN_STEP,
        &[1000, 1000, 1000, 4000, 1000, 1000, 1000, 1000, 1000, 1000],
    );
    view.workers[9].estimate = None;
    let sizes = sizes(&decide(&view)).expect("a plan");
    assert_eq!(sizes.iter().sum::<u32>(), 640);
    assert!(sizes[9].abs_diff(sizes[8]) <= 1 && sizes[3] < 20, "{sizes:?}");
}

#[test]
fn a_persistent_straggler_is_restarted_when_that_pays() {
    for mode in Capabilities::COMMON {
        let decision = decide(&persistent(mode));
        let expected = ProposedAction {
            target: Holder::new(WORKER_3, Incarnation(0)),
            kind: NodeActionKind::KillRestart { drain: Duration::from_secs(30) },
            reason: Reason::PersistentStraggler { node: WORKER_3, slowness_percent: 400, has_cured: false },
        };
        assert_eq!(decision.node_actions, [expected], "{mode:?}");
        assert_eq!(decision.batch_sizes, None, "the membership changes first");
    }
}

/// Break-even time for 10 s of starting: speeds are 1000 and 250 samples/s, the others make 3000.
#[test]
fn the_break_even_time_follows_the_table() {
    let cases = [
        (Capabilities::SERVERS_AT_OWN_PACE, true, 10.0 * 1000.0 / 750.0),
        (Capabilities::REPLICAS_IN_STEP, true, (1000.0 * 10.0 + 2.0 * 3000.0) / 750.0),
        (Capabilities::SERVERS_IN_STEP, true, (1000.0 * 10.0 + 2.0 * 3000.0) / 750.0),
        (Capabilities::REPLICAS_IN_STEP, false, 10.0 * 4000.0 / 750.0),
    ];
    for (mode, elastic, seconds) in cases {
        for (left, pays) in [(0.99, false), (1.01, true)] {
            let mut view = ClusterView { elastic, ..persistent(mode) };
            view.progress.samples_per_second = 1000.0;
            view.progress.committed = view.progress.expected - (left * seconds * 1000.0) as u64;
            let decision = decide(&view);
            assert_eq!(!decision.node_actions.is_empty(), pays, "{mode:?} {elastic} {left}");
            if !pays {
                let Reason::RestartNotWorthIt { node, break_even } = decision.reasons[0] else {
                    panic!("{decision:?}")
                };
                assert_eq!(node, WORKER_3);
                assert!((break_even.as_secs_f64() - seconds).abs() < 1e-6);
                assert_eq!(
                    decision.batch_sizes.is_some(),
                    mode.sums_to_global_batch(),
                    "batch sizes instead"
                );
            }
        }
    }
}

#[test]
fn a_busy_cluster_or_an_unknown_rate_means_batch_sizes_instead() {
    let mut busy = persistent(Capabilities::REPLICAS_IN_STEP);
    busy.scheduler.busy = true;
    assert!(decide(&busy).node_actions.is_empty() && decide(&busy).batch_sizes.is_some());
    let mut unknown = persistent(Capabilities::REPLICAS_IN_STEP);
    unknown.progress.samples_per_second = 0.0;
    assert!(decide(&unknown).node_actions.is_empty() && decide(&unknown).batch_sizes.is_some());
}

#[test]
fn the_chief_is_restarted_only_with_the_users_word() {
    let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[4000, 1000, 1000, 1000]);
    make_persistent(&mut view, 0);
    let decision = decide(&view);
    assert!(decision.node_actions.is_empty() && decision.batch_sizes.is_some());
    assert!(decision.reasons[0].to_string().contains("worker-0 is the chief"));
    let allowed = RestartBudget::new(BudgetConfig { chief_allowed: true, ..BudgetConfig::default() });
    assert_eq!(NonDedicated::default().decide(NOW, &view, &allowed).node_actions.len(), 1);
}

/// What is done about worker 3 after a restart that left it at `ratio`, having been at 4.
fn after_restart(ratio: f64) -> Decision {
    let mut policy = NonDedicated::default();
    let mut view = persistent(Capabilities::REPLICAS_IN_STEP);
    assert_eq!(policy.decide(NOW, &view, &RestartBudget::default()).node_actions.len(), 1);
    view.workers[3].incarnation = Incarnation(1);
    view.workers[3].slowness_ratio = Some(ratio);
    let sample_time = Duration::from_micros(1000).mul_f64(ratio);
    view.workers[3].estimate = Some(PaceEstimate { sample_time, spread: 0.02, batches: 64 });
    policy.decide(NOW, &view, &RestartBudget::default())
}

#[test]
fn a_node_that_came_back_as_slow_is_not_restarted_again() {
    let decision = after_restart(3.9);
    assert_eq!(decision.reasons[0], Reason::RestartDidNotHelp { node: WORKER_3 });
    assert!(decision.node_actions.is_empty() && decision.batch_sizes.is_some());
    assert_eq!(after_restart(3.1).node_actions.len(), 1, "it became a fifth faster: another try");
}

#[test]
fn restart_is_said_to_be_a_try_until_one_has_cured() {
    let mut policy = NonDedicated::default();
    let mut view = persistent(Capabilities::REPLICAS_IN_STEP);
    let mut reason = |view: &ClusterView| {
        let decision = policy.decide(NOW, view, &RestartBudget::default());
        decision.node_actions[0].reason.to_string()
    };
    let said = reason(&view);
    assert!(said.ends_with("; a try: no restart has cured a node of this job yet"), "{said}");
    view.workers[3] = NodeView { incarnation: Incarnation(1), ..view.workers[2].clone() };
    view.workers[3].id = WORKER_3;
    view.workers[3].slowness_ratio = Some(1.0);
    view.workers[2].estimate =
        Some(PaceEstimate { sample_time: Duration::from_millis(4), spread: 0.02, batches: 64 });
    make_persistent(&mut view, 2);
    let said = reason(&view);
    assert!(said.starts_with("worker-2 took ") && said.ends_with("through the long window"), "{said}");
}

#[test]
fn a_proposal_that_was_not_carried_out_is_no_strike() {
    let mut policy = NonDedicated::default();
    let view = persistent(Capabilities::REPLICAS_IN_STEP);
    for _ in 0..3 {
        assert_eq!(policy.decide(NOW, &view, &RestartBudget::default()).node_actions.len(), 1);
    }
}

#[test]
fn restarts_keep_to_the_budget() {
    let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 1000, 1000, 4000, 5000, 1000]);
    make_persistent(&mut view, 3);
    make_persistent(&mut view, 4);
    let decision = decide(&view);
    assert_eq!(decision.node_actions.len(), 1, "one at once in a small job");
    assert_eq!(decision.node_actions[0].target.node, NodeId::worker(4), "the slowest first");

    let mut budget = RestartBudget::default();
    budget.started(JobTime(0), ActionId(1), Holder::new(WORKER_3, Incarnation(0)));
    budget.ended(JobTime(0), ActionId(1));
    let none = BudgetConfig { per_node: 0, ..BudgetConfig::default() };
    let decision = NonDedicated::default().decide(
        NOW,
        &persistent(Capabilities::REPLICAS_IN_STEP),
        &RestartBudget::new(none),
    );
    assert_eq!(decision.reasons[0], Reason::BudgetExhausted { node: WORKER_3 });
    assert!(decision.batch_sizes.is_some());
}

#[test]
fn slow_hardware_is_never_restarted() {
    let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 1000, 4000, 4000]);
    for worker in &mut view.workers[2..] {
        worker.device = DeviceClass("old".into());
        worker.pace = Pace::Straggler(StragglerKind::Deterministic);
    }
    let decision = decide(&view);
    assert!(decision.node_actions.is_empty());
    assert_eq!(sizes(&decision), Some(vec![103, 103, 25, 25]));
}

/// Four equal workers with 1 000 s to go, which wait for servers in a quarter of each step; server 1 takes four times as long as the
/// others, all the time.
fn with_a_slow_server() -> ClusterView {
    let mut view = quiet_view(Capabilities::SERVERS_IN_STEP, &[1000; 4]);
    let server = |index, ratio, pace| NodeView {
        id: NodeId::server(index),
        slowness_ratio: Some(ratio),
        pace,
        chief: false,
        ..view.workers[3].clone()
    };
    let slow = Pace::Straggler(StragglerKind::Persistent);
    view.servers = vec![server(0, 1.0, Pace::Normal), server(1, 4.0, slow), server(2, 1.5, slow)];
    let (time, overhead) = (Duration::from_millis(400), Duration::from_millis(100));
    view.step = Some(StepView { plan: view.plan, steps: 30, time, overhead });
    view
}

/// A policy that takes restarts to cure.
fn trusts_restarts() -> NonDedicated {
    NonDedicated::new(NonDedicatedConfig { restart_cures: 1.0, ..NonDedicatedConfig::default() })
}

/// The same job, with so many seconds to go.
fn with_seconds_left(view: &ClusterView, left: u32) -> ClusterView {
    let mut view = view.clone();
    let Progress { expected, samples_per_second, .. } = view.progress;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number of samples")]
    let samples = (f64::from(left) * samples_per_second) as u64;
    view.progress.committed = expected - samples;
    view
}

#[test]
fn a_server_that_is_slow_all_the_time_is_restarted_beyond_break_even_where_restarts_cure() {
    let view = with_a_slow_server();
    let decide = |view: &ClusterView| trusts_restarts().decide(NOW, view, &RestartBudget::default());
    let decision = decide(&view);
    let [action] = &decision.node_actions[..] else { panic!("{decision:?}") };
    assert_eq!(action.target, Holder::new(NodeId::server(1), Incarnation(0)), "the slowest one");
    let expected =
        Reason::PersistentStraggler { node: NodeId::server(1), slowness_percent: 400, has_cured: false };
    assert_eq!(action.reason, expected);

    // 10 s to start nodes, 1 s of pause, 2 s to write a checkpoint and 2 s to read it, of 3/16 of the time.
    for (left, pays) in [(79, false), (81, true)] {
        let view = with_seconds_left(&view, left);
        let decision = decide(&view);
        assert_eq!(!decision.node_actions.is_empty(), pays, "{left} s: {decision:?}");
        let not_worth = |reason: &Reason| matches!(reason, Reason::RestartNotWorthIt { node, .. } if *node == NodeId::server(1));
        assert_eq!(decision.reasons.iter().any(not_worth), !pays, "{left} s: {decision:?}");
    }
}

#[test]
fn a_slow_server_is_named_and_kept_where_it_cannot_hand_over_or_may_recover_or_the_cost_is_unknown() {
    let kept = |change: &dyn Fn(&mut ClusterView), why: &str| {
        let mut view = with_a_slow_server();
        change(&mut view);
        let decision = decide(&view);
        assert!(decision.node_actions.is_empty(), "{decision:?}");
        let said = decision.reasons[0].to_string();
        assert!(said.starts_with("server-1 is slow; ") && said.contains(why), "{said}");
    };
    kept(&|view| view.hands_over = false, "takes no checkpoints");
    kept(&|view| view.servers[1].pace = Pace::Straggler(StragglerKind::Transient), "may pass");
    kept(&|view| view.step = None, "not known in this sync mode");
    kept(&|view| view.checkpoint_time = None, "not known before its first checkpoint");
    // One that workers do not wait for.
    let mut view = with_a_slow_server();
    view.step = view.step.map(|step| StepView { overhead: Duration::ZERO, ..step });
    assert!(matches!(decide(&view).reasons[0], Reason::RepartitionNotWorthIt { .. }));
}

/// What a policy wants of the servers: their weights, or a restart of one of them.
fn wanted(decision: &Decision) -> Option<String> {
    let [action] = &decision.node_actions[..] else { return None };
    Some(match &action.kind {
        NodeActionKind::Repartition { weights } => format!("{weights} for {}", action.target.node),
        kind => format!("{} {}", kind.name(), action.target.node),
    })
}

#[test]
fn a_server_that_is_slow_all_the_time_gets_a_smaller_share_before_it_is_restarted() {
    let view = with_a_slow_server();
    let decision = decide(&view);
    assert_eq!(wanted(&decision).as_deref(), Some("64,16,43 for server-1"));
    let said = decision.node_actions[0].reason.to_string();
    assert_eq!(
        said,
        "server-1 takes 4.00x its peers' time per byte; with 13 % of the parameters instead of 33 %, workers are expected to wait 61 % less for servers"
    );
    // 10 s to start nodes, 1 s of pause, 2 s to write a checkpoint and 2 s to read it, of 0.61 of a quarter of the time.
    for (left, pays) in [(98, false), (100, true)] {
        let decision = decide(&with_seconds_left(&view, left));
        assert_eq!(wanted(&decision).is_some(), pays, "{left} s: {decision:?}");
        let not_worth = |reason: &Reason| matches!(reason, Reason::RepartitionNotWorthIt { node, .. } if *node == NodeId::server(1));
        assert_eq!(decision.reasons.iter().any(not_worth), !pays, "{left} s: {decision:?}");
    }
    let mut busy = view.clone();
    busy.scheduler.busy = true;
    assert!(wanted(&decide(&busy)).is_none());
    let none = RestartBudget::new(BudgetConfig { per_node: 0, ..BudgetConfig::default() });
    let decision = NonDedicated::default().decide(NOW, &view, &none);
    assert_eq!(decision.reasons[0], Reason::BudgetExhausted { node: NodeId::server(1) });
}

#[test]
fn a_restart_that_did_not_cure_a_server_is_followed_by_a_smaller_share() {
    let (mut nd, mut view) = (trusts_restarts(), with_a_slow_server());
    let decision = nd.decide(NOW, &view, &RestartBudget::default());
    assert_eq!(wanted(&decision).as_deref(), Some("KILL_RESTART server-1"));
    view.servers[1].incarnation = Incarnation(1);
    let decision = nd.decide(NOW, &view, &RestartBudget::default());
    assert_eq!(wanted(&decision).as_deref(), Some("64,16,43 for server-1"));
}

/// Its process is another one after the hand-over: a restart has been tried.
#[test]
fn a_server_that_is_as_slow_after_it_got_a_smaller_share_is_not_restarted() {
    let (mut nd, mut view) = (NonDedicated::default(), with_a_slow_server());
    let decision = nd.decide(NOW, &view, &RestartBudget::default());
    assert_eq!(wanted(&decision).as_deref(), Some("64,16,43 for server-1"));
    view.server_weights = "64,16,43".parse().unwrap();
    view.servers[1].incarnation = Incarnation(1);
    let decision = nd.decide(NOW, &view, &RestartBudget::default());
    assert_eq!(decision.reasons[0], Reason::RestartDidNotHelp { node: NodeId::server(1) });
    assert_eq!(wanted(&decision), None);
}

#[test]
fn a_share_that_fits_the_speeds_stays_and_follows_a_server_that_is_slow_no_more() {
    let mut view = with_a_slow_server();
    view.server_weights = "64,16,43".parse().unwrap();
    // Each server takes 1.57 times what a healthy one takes for an equal share: a restart could still save.
    let slow = decide(&view);
    assert_eq!(wanted(&slow).as_deref(), Some("KILL_RESTART server-1"), "{slow:?}");
    view.servers.truncate(2);
    view.servers.push(NodeView { id: NodeId::server(2), ..view.servers[0].clone() });
    view.server_weights = "64,20,64".parse().unwrap();
    for ratio in [3.0, 3.2, 3.4] {
        view.servers[1].slowness_ratio = Some(ratio);
        let decision = decide(&view);
        let kept = wanted(&decision).is_none_or(|wanted| wanted.starts_with("KILL_RESTART"));
        assert!(kept, "{ratio}: {decision:?}");
    }
    let mut settled = view.clone();
    settled.servers.push(NodeView { id: NodeId::server(3), ..view.servers[0].clone() });
    settled.servers[1].slowness_ratio = Some(3.0);
    settled.server_weights = "64,21,64,64".parse().unwrap();
    let decision = decide(&settled);
    assert!(wanted(&decision).is_none(), "{decision:?}");
    let said = decision.reasons[0].to_string();
    assert_eq!(said, "server-1 is slow; its share of the parameters is as small as it should be");
    // Slow no more, and known to be so.
    settled.servers[1].pace = Pace::Normal;
    settled.servers[1].slowness_ratio = Some(1.0);
    assert_eq!(wanted(&decide(&settled)).as_deref(), Some("equal for server-1"));
    settled.servers[1].pace = Pace::Unknown;
    assert!(wanted(&decide(&settled)).is_none(), "it has just started");
    settled.servers[1].pace = Pace::Normal;
    settled.servers[1].estimate = settled.servers[1].estimate.map(|it| PaceEstimate { batches: 3, ..it });
    assert!(wanted(&decide(&settled)).is_none(), "it has hardly served");
}

#[test]
fn servers_that_are_noisy_and_healthy_are_left_alone() {
    let mut view = with_a_slow_server();
    for (index, ratio) in [0.7, 1.4, 1.1].into_iter().enumerate() {
        view.servers[index].slowness_ratio = Some(ratio);
        view.servers[index].pace = Pace::Normal;
    }
    assert_eq!(wanted(&decide(&view)), None);
    assert!(decide(&view).batch_sizes.is_none());
}

#[test]
fn a_global_batch_that_no_longer_fits_changes_nothing_and_says_so() {
    let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 4000]);
    view.global_batch_size = 1;
    let decision = decide(&view);
    assert_eq!(decision.batch_sizes, None);
    assert!(decision.reasons[0].to_string().contains("below 2"), "{:?}", decision.reasons);
}

#[test]
fn after_a_loss_the_survivors_keep_their_proportions() {
    let seat = |index, us: Option<u64>| Seat {
        id: NodeId::worker(index),
        batch_size_min: 1,
        batch_size_max: 1000,
        estimate: us.map(|us| PaceEstimate {
            sample_time: Duration::from_micros(us),
            spread: 0.02,
            batches: 64,
        }),
    };
    let policy = NonDedicated::default();
    let split =
        |seats: &[Seat]| policy.split(90, seats).unwrap().batch_sizes.into_values().collect::<Vec<_>>();
    assert_eq!(split(&[seat(0, Some(1000)), seat(3, Some(2000))]), [60, 30]);
    assert_eq!(
        split(&[seat(0, Some(1000)), seat(1, None), seat(3, Some(2000))]),
        [36, 36, 18],
        "unknown is typical"
    );
    assert_eq!(split(&[seat(0, None), seat(1, None), seat(3, None)]), [30, 30, 30]);
}

#[test]
fn one_decision_does_not_go_beyond_the_restarts_of_an_hour() {
    let line = r#"{"job":{"sync":0,"workers":5,"samples_per_worker":1,"batch_size_min":0,"restarts_per_hour":1,"at_once_percent":100,"chief_allowed":false},"steps":[{"pace":{"node":1,"percent":130,"lasting":true}},{"pace":{"node":2,"percent":436,"lasting":true}},{"applied":{"late":false}},{"tick":{"after":65}}]}"#;
    Invariants::all().check(&history::replay(line), NonDedicated::default()).unwrap();
}

#[test]
fn broken_promises_count_less_until_promises_are_kept_again() {
    let view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 1000, 1000, 1300]);
    let mut policy = NonDedicated::default();
    let promised = |policy: &mut NonDedicated| match policy.decide(NOW, &view, &RestartBudget::default()) {
        Decision { forecast: Some(_), reasons, .. } => match reasons[..] {
            [Reason::Rebalance { gain_percent, .. }] => gain_percent,
            _ => panic!("{reasons:?}"),
        },
        decision => {
            assert!(matches!(decision.reasons[..], [Reason::GainTooSmall { .. }]), "{decision:?}");
            0
        }
    };
    let tell = |policy: &mut NonDedicated, step_ms| {
        let forecast = Forecast { without: Duration::from_millis(100), with: Duration::from_millis(80) };
        let step = Duration::from_millis(step_ms);
        policy.on_outcome(NOW, &ActionOutcome::Measured { version: PlanVersion(2), forecast, step });
    };
    assert_eq!(promised(&mut policy), 16);
    tell(&mut policy, 90);
    assert_eq!(promised(&mut policy), 12, "half of the newest promise was kept");
    for _ in 0..5 {
        tell(&mut policy, 110);
    }
    assert_eq!(promised(&mut policy), 0, "a tenth of what it promises is not worth a plan");
    for _ in 0..5 {
        tell(&mut policy, 70);
    }
    assert_eq!(promised(&mut policy), 16);
}

#[test]
fn between_two_plans_there_are_some_steps() {
    let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 1000, 1000, 4000]);
    let under = |plan, steps| {
        let (time, overhead) = (Duration::from_millis(256), Duration::ZERO);
        Some(StepView { plan: PlanVersion(plan), steps, time, overhead })
    };
    view.plan = PlanVersion(2);
    for (step, acts) in [(under(1, 50), false), (under(2, 2), false), (under(2, 3), true), (None, true)] {
        view.step = step;
        let decision = decide(&view);
        assert_eq!(decision.batch_sizes.is_some(), acts, "{step:?}");
        assert!(acts || decision.reasons == [Reason::TooSoon]);
    }
}

#[test]
fn communication_makes_the_same_plan_gain_less() {
    let promised = |overhead_ms| {
        let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 1000, 1000, 4000]);
        let (time, overhead) = (Duration::from_millis(256), Duration::from_millis(overhead_ms));
        view.step = Some(StepView { plan: PlanVersion(1), steps: 20, time, overhead });
        decide(&view).forecast.map(|forecast| (forecast.promised() * 100.0).round())
    };
    assert_eq!((promised(0), promised(256), promised(10_000)), (Some(69.0), Some(34.0), None));
}
