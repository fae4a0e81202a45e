use std::sync::Arc;

use antdt_core::{
    Capabilities, DetRng, DeviceClass, Holder, Incarnation, NodeActionKind, NodeStatus, PaceEstimate, Seed,
    StepView,
};
use proptest::prelude::*;

use super::*;
use crate::budget::BudgetConfig;
use crate::policy::{NonDedicated, Unmanaged};
use crate::testing::{quiet_view, random_view};

fn at(seconds: u64) -> JobTime {
    JobTime::from_duration(Duration::from_secs(seconds))
}

fn seats(indices: &[u32]) -> Vec<Seat> {
    let seat =
        |index| Seat { id: NodeId::worker(index), batch_size_min: 1, batch_size_max: 1024, estimate: None };
    indices.iter().copied().map(seat).collect()
}

fn drain(dispatcher: &mut Dispatcher) -> Vec<DispatchEffect> {
    std::iter::from_fn(|| dispatcher.poll_effect()).collect()
}

fn published(effects: &[DispatchEffect]) -> Vec<(u64, Vec<u32>)> {
    let plan = |effect: &DispatchEffect| match effect {
        DispatchEffect::Publish(plan) => Some((plan.version.0, plan.batch_sizes.values().copied().collect())),
        _ => None,
    };
    effects.iter().filter_map(plan).collect()
}

fn records(effects: &[DispatchEffect]) -> Vec<(&'static str, String)> {
    let record = |effect: &DispatchEffect| match effect {
        DispatchEffect::Record(record) => Some((record.kind(), record.reason())),
        _ => None,
    };
    effects.iter().filter_map(record).collect()
}

/// Four workers with a global batch of 256, plan 1 in force for membership 1.
fn settled(mode: Capabilities, policy: Box<dyn Policy>) -> Dispatcher {
    let mut dispatcher = Dispatcher::new(DispatcherConfig::new(mode, 256, 4), policy);
    dispatcher.replan(at(0), MembershipVersion(1), &seats(&[0, 1, 2, 3])).unwrap();
    assert_eq!(published(&drain(&mut dispatcher)), [(1, vec![64; 4])]);
    dispatcher.plan_applied(at(0), PlanVersion(1));
    dispatcher
}

fn slow_view() -> ClusterView {
    quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 1000, 1000, 4000])
}

#[test]
fn the_first_plan_is_even_and_a_straggler_brings_the_second() {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(NonDedicated::default()));
    dispatcher.tick(at(1), &slow_view());
    let effects = drain(&mut dispatcher);
    assert_eq!(published(&effects), [(2, vec![79, 79, 79, 19])]);
    assert_eq!(
        records(&effects),
        [(
            "ADJUST_BS",
            "worker-3 takes 4.00x its peers' time per sample; new batch sizes are expected to cut the step time by 68 %"
                .into()
        )]
    );
    assert_eq!(dispatcher.in_force().unwrap().version, PlanVersion(1), "until everyone has switched");
    dispatcher.plan_applied(at(2), PlanVersion(2));
    assert_eq!(dispatcher.in_force().unwrap().version, PlanVersion(2));
    assert_eq!(dispatcher.pending(), None);
}

#[test]
fn one_plan_is_on_its_way_at_a_time() {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(NonDedicated::default()));
    dispatcher.tick(at(1), &slow_view());
    drain(&mut dispatcher);
    dispatcher.tick(at(2), &slow_view());
    assert_eq!(published(&drain(&mut dispatcher)), []);
}

#[test]
fn a_plan_that_is_not_applied_in_time_is_withdrawn_and_its_version_not_used_again() {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(NonDedicated::default()));
    dispatcher.tick(at(1), &slow_view());
    drain(&mut dispatcher);
    assert_eq!(dispatcher.deadline(), Some(at(31)));
    dispatcher.on_deadline(at(31));
    assert_eq!(drain(&mut dispatcher), [DispatchEffect::Withdraw(PlanVersion(2))]);
    dispatcher.tick(at(32), &slow_view());
    assert_eq!(published(&drain(&mut dispatcher))[0].0, 3);
}

#[test]
fn the_plan_for_a_new_membership_does_not_expire() {
    let mut dispatcher = settled(Capabilities::SERVERS_IN_STEP, Box::new(Unmanaged));
    dispatcher.replan(at(1), MembershipVersion(2), &seats(&[0, 1, 2])).unwrap();
    assert_eq!(published(&drain(&mut dispatcher))[0].0, 2);
    // The master was away for long; plan 1 would leave the workers with batch sizes of another membership for ever.
    assert_eq!(dispatcher.deadline(), None);
    dispatcher.on_deadline(at(1000));
    dispatcher.tick(at(1000), &ClusterView { membership: MembershipVersion(2), ..slow_view() });
    assert_eq!(dispatcher.pending().unwrap().version, PlanVersion(2));
    assert!(!drain(&mut dispatcher).iter().any(|effect| matches!(effect, DispatchEffect::Withdraw(_))));
}

#[test]
fn a_plan_has_ten_steps_to_be_applied_however_long_they_are() {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(NonDedicated::default()));
    let mut view = slow_view();
    view.progress.samples_per_second = 256.0 / 30.0;
    dispatcher.tick(at(1), &view);
    assert_eq!(dispatcher.deadline(), Some(at(301)));
}

#[test]
fn the_switch_of_workers_counts_even_if_the_plan_was_withdrawn_meanwhile() {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(NonDedicated::default()));
    dispatcher.tick(at(1), &slow_view());
    dispatcher.on_deadline(at(31));
    dispatcher.plan_applied(at(32), PlanVersion(2));
    assert_eq!(dispatcher.in_force().unwrap().version, PlanVersion(2));
    dispatcher.plan_applied(at(33), PlanVersion(1));
    dispatcher.plan_applied(at(33), PlanVersion(77));
    assert_eq!(
        dispatcher.in_force().unwrap().version,
        PlanVersion(2),
        "old and unheard-of versions change nothing"
    );
}

#[test]
fn a_change_of_the_membership_voids_the_plan_and_brings_one_for_the_survivors() {
    for (policy, sizes) in [
        (Box::new(Unmanaged) as Box<dyn Policy>, vec![86, 85, 85]),
        (Box::new(NonDedicated::default()), vec![114, 114, 28]),
    ] {
        let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, policy);
        dispatcher.tick(at(1), &slow_view());
        drain(&mut dispatcher);
        let mut survivors = seats(&[0, 1, 3]);
        for (seat, us) in survivors.iter_mut().zip([1000, 1000, 4000]) {
            let sample_time = Duration::from_micros(us);
            seat.estimate = Some(PaceEstimate { sample_time, spread: 0.02, batches: 64 });
        }
        dispatcher.replan(at(2), MembershipVersion(2), &survivors).unwrap();
        let effects = drain(&mut dispatcher);
        assert_eq!(published(&effects)[0].1, sizes);
        assert!(records(&effects).contains(&("ADJUST_BS", "3 live workers share the global batch".into())));
        assert_eq!(dispatcher.pending().unwrap().membership, MembershipVersion(2));
    }
}

#[test]
fn news_of_an_older_membership_change_nothing() {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(Unmanaged));
    dispatcher.replan(at(1), MembershipVersion(5), &seats(&[0, 1])).unwrap();
    drain(&mut dispatcher);
    dispatcher.replan(at(2), MembershipVersion(4), &seats(&[0, 1, 2])).unwrap();
    assert_eq!(drain(&mut dispatcher), []);
    assert_eq!(dispatcher.pending().unwrap().batch_sizes.len(), 2);
}

#[test]
fn a_view_of_another_membership_is_not_decided_on() {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(NonDedicated::default()));
    let view = ClusterView { membership: MembershipVersion(2), ..slow_view() };
    dispatcher.tick(at(1), &view);
    assert_eq!(records(&drain(&mut dispatcher)), [("NONE", Reason::Unsettled.to_string())]);
}

#[test]
fn an_asynchronous_survivor_keeps_its_batch_size() {
    let mut dispatcher = settled(Capabilities::SERVERS_AT_OWN_PACE, Box::new(Unmanaged));
    dispatcher.replan(at(1), MembershipVersion(2), &seats(&[0, 1, 3])).unwrap();
    assert_eq!(published(&drain(&mut dispatcher)), [(2, vec![64; 3])]);
}

#[test]
fn a_global_batch_that_the_survivors_cannot_hold_at_once_is_computed_in_parts() {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(Unmanaged));
    let mut only = seats(&[0]);
    only[0].batch_size_max = 100;
    dispatcher.replan(at(1), MembershipVersion(2), &only).unwrap();
    let plan = dispatcher.pending().unwrap();
    let (worker, batch) = plan.batch_sizes.iter().next().unwrap();
    let parts = plan.accumulation[worker];
    assert_eq!((*batch, plan.batch_sizes.len()), (256, 1));
    assert!(parts >= 3 && batch.div_ceil(parts) <= 100, "{parts}");
    assert!(matches!(
        dispatcher.replan(at(1), MembershipVersion(3), &[]),
        Err(ApportionError::NoWorkers { .. })
    ));
    assert_eq!(dispatcher.pending(), None);
}

#[test]
fn doing_nothing_is_recorded_once_for_each_kind_of_reason() {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(NonDedicated::default()));
    let small = |us| quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 1000, 1000, us]);
    for second in 0..100 {
        dispatcher.tick(at(second), &small(if second % 2 == 0 { 1040 } else { 1050 }));
        dispatcher.tick(at(second), &quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]));
    }
    let effects = drain(&mut dispatcher);
    let texts: Vec<String> = records(&effects).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["predicted gain of 1 % is too small", "balanced"]);
}

fn persistent_view() -> ClusterView {
    let mut view = slow_view();
    view.workers[3].pace = antdt_core::Pace::Straggler(antdt_core::StragglerKind::Persistent);
    view
}

#[test]
fn a_restart_is_started_once_and_charged_to_the_budget() {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(NonDedicated::default()));
    dispatcher.tick(at(1), &persistent_view());
    let effects = drain(&mut dispatcher);
    let [DispatchEffect::Record(record), DispatchEffect::Start(action)] = &effects[..] else {
        panic!("{effects:?}")
    };
    let target = Holder::new(NodeId::worker(3), Incarnation(0));
    assert_eq!((action.target, record.target(), record.kind()), (target, Some(target), "KILL_RESTART"));

    dispatcher.tick(at(2), &persistent_view());
    let starts = |effects: &[DispatchEffect]| effects.iter().any(|e| matches!(e, DispatchEffect::Start(_)));
    assert!(!starts(&drain(&mut dispatcher)), "it is being restarted");
    let outcome = ActionOutcome::Restarted { id: action.id, holder: target, took: Duration::from_secs(2) };
    dispatcher.action_ended(at(3), &outcome);
    // Back to four live workers; the node must rest for 10 times as long as its restart took.
    dispatcher.plan_applied(at(3), PlanVersion(2));
    dispatcher.tick(at(22), &persistent_view());
    assert!(!starts(&drain(&mut dispatcher)));
}

/// Decides by a function of the view.
#[derive(Clone)]
struct Scripted(fn(&ClusterView) -> Decision);

impl std::fmt::Debug for Scripted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scripted")
    }
}

impl Policy for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }
    fn decide(&mut self, _now: JobTime, view: &ClusterView, _budget: &RestartBudget) -> Decision {
        (self.0)(view)
    }
    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[test]
fn a_decision_with_one_fault_is_refused_whole() {
    let policy = Scripted(|_| Decision {
        batch_sizes: Some((0..4).map(|i| (NodeId::worker(i), 65)).collect()),
        node_actions: vec![ProposedAction {
            target: Holder::new(NodeId::worker(1), Incarnation(0)),
            kind: NodeActionKind::KillRestart { drain: Duration::ZERO },
            reason: Reason::Balanced,
        }],
        ..Decision::default()
    });
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(policy));
    dispatcher.tick(at(1), &slow_view());
    let expected = "refused: the batch sizes add up to 260, the global batch is 256";
    assert_eq!(records(&drain(&mut dispatcher)), [("REFUSED", expected.into())]);
}

/// Wants anything: sizes and targets that are sometimes right, mostly not.
#[derive(Debug, Clone)]
struct Fuzz(DetRng);

impl Policy for Fuzz {
    fn name(&self) -> &'static str {
        "fuzz"
    }
    fn decide(&mut self, _now: JobTime, view: &ClusterView, _budget: &RestartBudget) -> Decision {
        let rng = &mut self.0;
        let mut decision = Decision::nothing(Reason::Balanced);
        if rng.below(2) == 0 {
            let mut sizes: BTreeMap<NodeId, u32> =
                view.workers.iter().map(|node| (node.id, node.batch_size)).collect();
            if rng.below(2) == 0 {
                let (a, b) = (NodeId::worker(rng.below(4) as u32), NodeId::worker(rng.below(6) as u32));
                let moved = rng.below(100) as u32;
                sizes.entry(a).and_modify(|size| *size = size.wrapping_sub(moved));
                sizes.entry(b).and_modify(|size| *size = size.wrapping_add(moved)).or_insert(moved);
            }
            decision.batch_sizes = Some(sizes);
        }
        if rng.below(2) == 0 {
            for _ in 0..=rng.below(2) {
                let index = rng.below(6) as u32;
                let node = if rng.below(8) == 0 { NodeId::server(index) } else { NodeId::worker(index) };
                decision.node_actions.push(ProposedAction {
                    target: Holder::new(node, Incarnation(rng.below(3) as u32)),
                    kind: NodeActionKind::KillRestart { drain: Duration::ZERO },
                    reason: Reason::Balanced,
                });
            }
        }
        decision
    }
    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// What the dispatcher says of a plan that was to cut a step from 262 ms to 81 ms, once steps under it take this long.
fn measured(step_ms: u64, steps: u32, batches: u32) -> Vec<DispatchEffect> {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(NonDedicated::default()));
    dispatcher.tick(at(1), &slow_view());
    dispatcher.plan_applied(at(2), PlanVersion(2));
    drain(&mut dispatcher);
    let mut view = slow_view();
    for (worker, size) in view.workers.iter_mut().zip([79, 79, 79, 19]) {
        worker.batch_size = size;
        worker.estimate = worker.estimate.map(|estimate| PaceEstimate { batches, ..estimate });
    }
    let time = Duration::from_millis(step_ms);
    view.step = Some(StepView { plan: PlanVersion(2), steps, time, overhead: Duration::ZERO });
    dispatcher.tick(at(3), &view);
    drain(&mut dispatcher)
}

#[test]
fn a_plan_is_compared_with_its_forecast_once_there_are_enough_steps_under_it() {
    let compared = |effects: Vec<DispatchEffect>| {
        effects.into_iter().find_map(|effect| match effect {
            DispatchEffect::Measured { version, forecast, step } => Some((version, forecast, step)),
            _ => None,
        })
    };
    let (version, forecast, step) = compared(measured(90, 10, 64)).expect("ten steps are enough");
    assert_eq!((version, step), (PlanVersion(2), Duration::from_millis(90)));
    assert!((0.68..0.70).contains(&forecast.promised()), "{forecast:?}");
    assert!((0.64..0.66).contains(&forecast.cut(step)), "{forecast:?}");
    assert_eq!(compared(measured(90, 9, 64)), None, "too few steps");
    assert_eq!(compared(measured(90, 10, 4)), None, "a worker changed its pace meanwhile");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Invariant: no policy can publish an invalid plan, exceed the budget, or restart the chief or another life.
    #[test]
    fn i32_no_policy_can_break_the_job(seed in any::<u64>()) {
        let mut rng = Seed(seed).rng();
        let mut dispatcher =
            Dispatcher::new(DispatcherConfig::new(Capabilities::REPLICAS_IN_STEP, 256, 4), Box::new(Fuzz(Seed(seed).derive("policy").rng())));
        let mut membership = MembershipVersion(1);
        dispatcher.replan(at(0), membership, &seats(&[0, 1, 2, 3])).unwrap();
        drain(&mut dispatcher);
        let mut last_version = PlanVersion(1);
        let mut waiting = Some(PlanVersion(1));
        let mut running: Vec<ActionId> = Vec::new();
        let mut restarts: BTreeMap<NodeId, u32> = BTreeMap::new();

        for second in 1..200 {
            let now = at(second * 10);
            let mut view = random_view(&mut rng, second);
            view.workers = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]).workers;
            for worker in &mut view.workers {
                worker.incarnation = Incarnation(rng.below(3) as u32);
                worker.device = DeviceClass::default();
                if rng.below(16) == 0 {
                    worker.status = NodeStatus::Lost;
                }
            }
            view.mode = Capabilities::REPLICAS_IN_STEP;
            view.global_batch_size = 256;
            view.membership = membership;
            (view.membership_changed, view.plan_pending) = (false, false);
            match rng.below(6) {
                0 => {
                    if let Some(version) = waiting.take() {
                        dispatcher.plan_applied(now, version);
                    }
                }
                1 => {
                    if let Some(id) = running.pop() {
                        dispatcher.action_ended(now, &ActionOutcome::RestartFailed { id, why: String::new() });
                    }
                }
                2 => {
                    membership = membership.next();
                    view.membership = membership;
                    dispatcher.replan(now, membership, &seats(&[0, 1, 2, 3])).unwrap();
                }
                3 => dispatcher.on_deadline(now),
                _ => dispatcher.tick(now, &view),
            }
            for effect in drain(&mut dispatcher) {
                match effect {
                    DispatchEffect::Publish(plan) => {
                        prop_assert!(waiting.is_none(), "one at a time");
                        prop_assert!(plan.version > last_version, "versions grow");
                        prop_assert_eq!(plan.membership, membership);
                        prop_assert_eq!(plan.batch_sizes.values().sum::<u32>(), 256);
                        let live: Vec<NodeId> = plan.batch_sizes.keys().copied().collect();
                        if plan.batch_sizes.len() < 4 {
                            let expected: Vec<NodeId> = view.live_workers().map(|node| node.id).collect();
                            prop_assert_eq!(live, expected);
                        }
                        prop_assert!(plan.batch_sizes.values().all(|size| (1..=1024).contains(size)));
                        last_version = plan.version;
                        waiting = Some(plan.version);
                    }
                    DispatchEffect::Withdraw(version) => prop_assert_eq!(waiting.take(), Some(version)),
                    DispatchEffect::Start(action) => {
                        let mut nodes = view.live_workers().chain(&view.servers);
                        let target = nodes.find(|node| node.id == action.target.node);
                        let target = target.expect("a live worker or a server");
                        prop_assert_eq!(target.incarnation, action.target.incarnation);
                        prop_assert!(!target.chief, "the chief");
                        running.push(action.id);
                        prop_assert_eq!(running.len(), 1, "one at once in a small job");
                        let restarts = restarts.entry(action.target.node).or_default();
                        *restarts += 1;
                        prop_assert!(*restarts <= 3, "three per node");
                    }
                    DispatchEffect::Record(_) | DispatchEffect::Measured { .. } => {}
                }
            }
        }
    }
}

#[test]
fn steps_between_averages_come_with_the_sizes_in_force_and_outlive_a_change_of_the_membership() {
    let policy = Scripted(|_| Decision { local_steps: Some(8), ..Decision::default() });
    let mut dispatcher =
        Dispatcher::new(DispatcherConfig::new(Capabilities::AVERAGED, 256, 4), Box::new(policy));
    let view = quiet_view(Capabilities::AVERAGED, &[1000; 4]);
    let seats: Vec<Seat> = view.workers.iter().map(Seat::from).collect();
    dispatcher.replan(at(0), MembershipVersion(1), &seats).unwrap();
    assert_eq!(dispatcher.newest().unwrap().local_steps, None, "the mode's own");
    dispatcher.plan_applied(at(1), PlanVersion(1));
    dispatcher.tick(at(2), &view);
    let asked = dispatcher.pending().unwrap().clone();
    assert_eq!((asked.local_steps, asked.batch_sizes.len()), (Some(8), 4));
    dispatcher.plan_applied(at(3), asked.version);
    dispatcher.tick(at(4), &view);
    assert_eq!(dispatcher.pending(), None, "they are in force");
    dispatcher.replan(at(5), MembershipVersion(2), &seats[..3]).unwrap();
    assert_eq!(dispatcher.newest().unwrap().local_steps, Some(8));
}

#[test]
fn a_plan_has_the_micro_batches_of_its_decision_and_a_dry_run_says_them() {
    let decide = |view: &ClusterView| Decision {
        batch_sizes: Some(view.live_workers().map(|node| (node.id, 64)).collect()),
        accumulation: [(NodeId::worker(1), 4)].into_iter().collect(),
        reasons: vec![Reason::Balanced],
        ..Decision::default()
    };
    let view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]);
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(Scripted(decide)));
    dispatcher.tick(at(2), &view);
    let plan = dispatcher.pending().unwrap();
    assert_eq!([0, 1].map(|index| plan.micro_batches(NodeId::worker(index))), [1, 4]);
    let config =
        DispatcherConfig { dry_run: true, ..DispatcherConfig::new(Capabilities::REPLICAS_IN_STEP, 256, 4) };
    let mut dispatcher = Dispatcher::new(config, Box::new(Scripted(decide)));
    dispatcher.replan(at(0), MembershipVersion(1), &seats(&[0, 1, 2, 3])).unwrap();
    dispatcher.plan_applied(at(1), PlanVersion(1));
    dispatcher.tick(at(2), &view);
    let said = dispatcher.newest_decision().unwrap().reason();
    assert!(said.contains("64 of worker-0, 64 of worker-1 in 4 micro-batches, 64 of worker-2"), "{said}");
}

/// What a dry run of `nd` does and writes down when it is asked about each of these views, a second apart.
fn dry_run(views: &[ClusterView]) -> (Dispatcher, Vec<Vec<DispatchEffect>>) {
    let config =
        DispatcherConfig { dry_run: true, ..DispatcherConfig::new(Capabilities::REPLICAS_IN_STEP, 256, 4) };
    let mut dispatcher = Dispatcher::new(config, Box::new(NonDedicated::default()));
    dispatcher.replan(at(0), MembershipVersion(1), &seats(&[0, 1, 2, 3])).unwrap();
    dispatcher.plan_applied(at(0), PlanVersion(1));
    drain(&mut dispatcher);
    let mut effects = Vec::new();
    for (second, view) in (1..).zip(views) {
        dispatcher.tick(at(second), view);
        effects.push(drain(&mut dispatcher));
    }
    (dispatcher, effects)
}

#[test]
fn a_dry_run_names_its_actions_once_and_does_nothing() {
    let (dispatcher, effects) = dry_run(&[slow_view(), slow_view(), slow_view()]);
    let text = "worker-3 takes 4.00x its peers' time per sample; new batch sizes are expected to cut the step time by 68 %; \
                batch sizes would be 79 of worker-0, 79 of worker-1, 79 of worker-2, 19 of worker-3; \
                not carried out (--dry-run)";
    assert_eq!(effects.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0, 0]);
    assert_eq!(records(&effects[0]), [("WOULD_ADJUST_BS", text.to_owned())]);
    assert_eq!((dispatcher.pending(), dispatcher.in_force().unwrap().version), (None, PlanVersion(1)));
    assert_eq!(dispatcher.newest_decision().unwrap().at, at(3), "and still would");
}

#[test]
fn a_dry_run_says_the_same_again_only_after_the_policy_wanted_something_else_for_a_while() {
    let other = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 4000, 1000, 1000]);
    let mut views = vec![slow_view(), other.clone(), slow_view()];
    views.extend(vec![other; 40]);
    views.push(slow_view());
    let (_, effects) = dry_run(&views);
    let said: Vec<usize> = (0..views.len()).filter(|tick| !effects[*tick].is_empty()).collect();
    assert_eq!(said, [0, 1, 43], "the wavering at ticks 2 and 3 is not written down");
}

#[test]
fn a_dry_run_restarts_nothing_and_spends_no_budget() {
    let mut view = slow_view();
    view.workers[3].pace = antdt_core::Pace::Straggler(antdt_core::StragglerKind::Persistent);
    view.workers[3].slowness_ratio = Some(4.0);
    view.progress = antdt_core::Progress { committed: 0, expected: 1 << 40, samples_per_second: 100.0 };
    let (dispatcher, effects) = dry_run(&[view.clone(), view]);
    let kinds: Vec<_> = effects.iter().map(|effects| records(effects)).collect();
    assert_eq!((kinds[0].len(), kinds[0][0].0, kinds[1].len()), (1, "WOULD_KILL_RESTART", 0));
    assert!(!effects.iter().flatten().any(|effect| matches!(effect, DispatchEffect::Start(_))));
    assert_eq!(dispatcher.budget.room(at(3), 4), RestartBudget::new(BudgetConfig::default()).room(at(3), 4));
}

#[test]
fn a_dry_run_shares_out_evenly_even_if_the_policy_knows_better() {
    let (mut dispatcher, _) = dry_run(&[slow_view()]);
    let slow = |index| Seat {
        estimate: Some(PaceEstimate {
            sample_time: Duration::from_micros(if index == 3 { 4000 } else { 1000 }),
            spread: 0.02,
            batches: 60,
        }),
        ..seats(&[index])[0]
    };
    dispatcher.replan(at(9), MembershipVersion(2), &[slow(1), slow(2), slow(3)]).unwrap();
    assert_eq!(published(&drain(&mut dispatcher)), [(2, vec![86, 85, 85])]);
}

#[test]
fn a_value_of_an_action_holds_until_a_plan_says_another() {
    const ACTION: &str = "ADJUST_LR";
    #[derive(Debug, Clone)]
    struct Says(Vec<&'static str>);
    impl Policy for Says {
        fn name(&self) -> &str {
            "says"
        }
        fn decide(&mut self, _: JobTime, _: &ClusterView, _: &RestartBudget) -> Decision {
            let value = self.0.pop().map(|value| (ACTION.to_owned(), value.to_owned()));
            Decision { actions: value.into_iter().collect(), ..Decision::nothing(Reason::Balanced) }
        }
        fn clone_box(&self) -> Box<dyn Policy> {
            Box::new(self.clone())
        }
    }
    let said = vec!["fixed=3", "fast", "fixed=2", "fixed=2"];
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(Says(said)));
    let view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]);
    let value =
        |dispatcher: &Dispatcher| dispatcher.newest().and_then(|plan| plan.actions.get(ACTION).cloned());
    dispatcher.tick(at(1), &view);
    let effects = drain(&mut dispatcher);
    assert_eq!((published(&effects), records(&effects)[0].0), (vec![(2, vec![64; 4])], ACTION));
    dispatcher.plan_applied(at(1), PlanVersion(2));
    dispatcher.tick(at(2), &view);
    assert_eq!(published(&drain(&mut dispatcher)), [], "the same again is no change");
    dispatcher.tick(at(3), &view);
    let refused = records(&drain(&mut dispatcher));
    assert!(refused[0].0 == "REFUSED" && refused[0].1.contains("one of linear, sqrt"), "{refused:?}");
    dispatcher.tick(at(4), &view);
    dispatcher.plan_applied(at(4), PlanVersion(3));
    assert_eq!(value(&dispatcher).as_deref(), Some("fixed=3"));
    // A plan for other workers, which were not told before.
    let view = MembershipVersion(2);
    dispatcher.replan(at(5), view, &seats(&[0, 1])).unwrap();
    assert_eq!(value(&dispatcher).as_deref(), Some("fixed=3"));
}

/// Excludes host `b` and restarts worker 1, at once.
fn leaves_b() -> Scripted {
    Scripted(|_| Decision {
        actions: [("EXCLUDE_HOST".to_owned(), "b".to_owned())].into_iter().collect(),
        node_actions: vec![ProposedAction {
            target: Holder::new(NodeId::worker(1), Incarnation(0)),
            kind: NodeActionKind::KillRestart { drain: Duration::ZERO },
            reason: Reason::Balanced,
        }],
        ..Decision::nothing(Reason::Balanced)
    })
}

#[test]
fn a_restart_waits_until_the_host_that_it_shall_not_come_back_to_is_excluded() {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(leaves_b()));
    let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]);
    view.hosts = Arc::new(["a", "b"].map(str::to_owned).into());
    dispatcher.tick(at(1), &view);
    let effects = drain(&mut dispatcher);
    assert_eq!((published(&effects), records(&effects)[0].0), (vec![(2, vec![64; 4])], "EXCLUDE_HOST"));
    assert!(!effects.iter().any(|effect| matches!(effect, DispatchEffect::Start(_))), "{effects:?}");
    dispatcher.plan_applied(at(1), PlanVersion(2));
    dispatcher.tick(at(2), &view);
    let effects = drain(&mut dispatcher);
    assert!(effects.iter().any(|effect| matches!(effect, DispatchEffect::Start(_))), "{effects:?}");
    assert_eq!(published(&effects), []);
    assert_eq!(dispatcher.newest().unwrap().actions["EXCLUDE_HOST"], "b");
}

#[test]
fn where_there_is_one_host_nothing_of_such_a_decision_is_done() {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(leaves_b()));
    dispatcher.tick(at(1), &quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]));
    let expected = "refused: EXCLUDE_HOST = b: must be none: the launcher of this job does not know several hosts to choose among";
    assert_eq!(records(&drain(&mut dispatcher)), [("REFUSED", expected.to_owned())]);
}

#[test]
fn a_global_batch_that_the_survivors_cannot_hold_in_parts_either_is_an_error() {
    let mut dispatcher = settled(Capabilities::REPLICAS_IN_STEP, Box::new(Unmanaged));
    let mut only = seats(&[0]);
    // Three parts are of 85 samples.
    (only[0].batch_size_min, only[0].batch_size_max) = (90, 100);
    let e = dispatcher.replan(at(1), MembershipVersion(2), &only).unwrap_err();
    assert_eq!(e, ApportionError::TooMany { total: 256, most: 100 });
    assert_eq!(dispatcher.pending(), None);
}
