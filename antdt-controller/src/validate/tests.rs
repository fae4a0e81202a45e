use std::time::Duration;

use antdt_core::{
    Capabilities, ClusterView, Incarnation, JobTime, NodeActionKind, NodeStatus, NodeView, Reason,
};

use super::*;
use crate::budget::{BudgetConfig, RestartBudget};
use crate::policy::{Decision, ProposedAction};
use crate::testing::quiet_view;

const NOW: JobTime = JobTime::ZERO;

fn check(view: &ClusterView, sizes: Option<Vec<(u32, u32)>>, targets: &[Holder]) -> Result<(), Refusal> {
    let decision = Decision {
        batch_sizes: sizes
            .map(|sizes| sizes.into_iter().map(|(index, size)| (NodeId::worker(index), size)).collect()),
        node_actions: targets
            .iter()
            .map(|target| ProposedAction {
                target: *target,
                kind: NodeActionKind::KillRestart { drain: Duration::ZERO },
                reason: Reason::Balanced,
            })
            .collect(),
        ..Decision::default()
    };
    validate(NOW, &decision, view, &RestartBudget::default())
}

fn life(node: NodeId, incarnation: u32) -> Holder {
    Holder::new(node, Incarnation(incarnation))
}

#[test]
fn every_broken_plan_is_refused() {
    let view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 1000]);
    let node = NodeId::worker;
    let cases = [
        (vec![(0, 64), (1, 64)], Ok(())),
        (vec![(0, 128), (1, 0)], Err(Refusal::OutOfBounds { node: node(1), samples: 0, min: 1, max: 1024 })),
        (vec![(0, 64), (1, 65)], Err(Refusal::WrongSum { sum: 129, global: 128 })),
        (vec![(0, 128)], Err(Refusal::WorkerLeftOut { node: node(1) })),
        (vec![(0, 64), (1, 63), (2, 1)], Err(Refusal::NotAWorker { node: node(2) })),
    ];
    for (sizes, expected) in cases {
        assert_eq!(check(&view, Some(sizes), &[]), expected);
    }
    let asynchronous = quiet_view(Capabilities::SERVERS_AT_OWN_PACE, &[1000, 1000]);
    assert_eq!(check(&asynchronous, Some(vec![(0, 10), (1, 10)]), &[]), Ok(()), "no sum to keep");
}

#[test]
fn every_broken_action_is_refused() {
    let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]);
    view.workers[2].status = NodeStatus::Draining;
    view.workers[3].incarnation = Incarnation(2);
    let node = NodeId::worker;
    let cases = [
        (vec![life(node(1), 0)], Ok(())),
        (vec![life(node(0), 0)], Err(Refusal::Chief { node: node(0) })),
        (vec![life(node(2), 0)], Err(Refusal::NotRunning { target: life(node(2), 0) })),
        (vec![life(node(9), 0)], Err(Refusal::NotRunning { target: life(node(9), 0) })),
        (
            vec![life(node(3), 1)],
            Err(Refusal::OtherLife { target: life(node(3), 1), running: life(node(3), 2) }),
        ),
        (
            vec![life(node(3), 3)],
            Err(Refusal::OtherLife { target: life(node(3), 3), running: life(node(3), 2) }),
        ),
        (vec![life(NodeId::server(0), 0)], Err(Refusal::Server { node: NodeId::server(0) })),
        (vec![life(node(1), 0); 2], Err(Refusal::Twice { node: node(1) })),
        (vec![life(node(1), 0), life(node(3), 2)], Err(Refusal::TooManyAtOnce { asked: 2, free: 1 })),
    ];
    for (targets, expected) in cases {
        assert_eq!(check(&view, None, &targets), expected);
    }
}

#[test]
fn a_server_is_restarted_where_it_can_hand_over() {
    let mut view = quiet_view(Capabilities::SERVERS_IN_STEP, &[1000; 4]);
    let server = NodeView { id: NodeId::server(0), chief: false, ..view.workers[3].clone() };
    view.servers.push(NodeView { incarnation: Incarnation(2), ..server });
    let of = |incarnation| [life(NodeId::server(0), incarnation)];
    assert_eq!(check(&view, None, &of(2)), Ok(()));
    let (target, running) = (of(1)[0], of(2)[0]);
    assert_eq!(check(&view, None, &of(1)), Err(Refusal::OtherLife { target, running }));
    let both = [of(2)[0], life(NodeId::worker(1), 0)];
    assert_eq!(check(&view, None, &both), Err(Refusal::TooManyAtOnce { asked: 2, free: 1 }));
    view.servers[0].status = NodeStatus::Lost;
    assert_eq!(check(&view, None, &of(2)), Err(Refusal::NotRunning { target: of(2)[0] }));
    view.hands_over = false;
    assert_eq!(check(&view, None, &of(2)), Err(Refusal::Server { node: NodeId::server(0) }));
}

#[test]
fn the_only_replica_of_the_model_is_not_restarted() {
    let target = life(NodeId::worker(1), 0);
    for mode in [Capabilities::REPLICAS_IN_STEP, Capabilities::SERVERS_IN_STEP] {
        let mut view = quiet_view(mode, &[1000; 2]);
        assert_eq!(check(&view, None, &[target]), Ok(()));
        let only = Err(Refusal::OnlyWorker { node: target.node });
        let expected = if mode == Capabilities::REPLICAS_IN_STEP { only } else { Ok(()) };
        // Registered, but without a batch: it is still to take the model from the other.
        view.workers[0].last_report_age = None;
        assert_eq!(check(&view, None, &[target]), expected, "{mode:?}");
        view.workers[0].status = NodeStatus::Lost;
        assert_eq!(check(&view, None, &[target]), expected, "{mode:?}");
    }
}

#[test]
fn a_node_over_its_budget_is_refused() {
    let view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]);
    let none = RestartBudget::new(BudgetConfig { per_node: 0, ..BudgetConfig::default() });
    let target = life(NodeId::worker(1), 0);
    let kind = NodeActionKind::KillRestart { drain: Duration::ZERO };
    let action = ProposedAction { target, kind, reason: Reason::Balanced };
    let decision = Decision { node_actions: vec![action], ..Decision::default() };
    let expected = BudgetRefusal::Node { node: target.node, times: 0 };
    assert_eq!(validate(NOW, &decision, &view, &none), Err(Refusal::Budget(expected)));
}

#[test]
fn steps_between_averages_are_for_modes_that_average_models() {
    let with = |mode: Capabilities, steps| {
        let view = quiet_view(mode, &[1000; 2]);
        let decision = Decision { local_steps: Some(steps), ..Decision::default() };
        validate(JobTime::ZERO, &decision, &view, &RestartBudget::default())
    };
    assert_eq!(with(Capabilities::AVERAGED, 1), Ok(()));
    assert!(matches!(with(Capabilities::AVERAGED, 0), Err(Refusal::LocalSteps { steps: 0, .. })));
    for mode in Capabilities::COMMON.into_iter().filter(|mode| *mode != Capabilities::AVERAGED) {
        assert!(matches!(with(mode, 4), Err(Refusal::LocalSteps { steps: 4, .. })), "{mode:?}");
    }
}

#[test]
fn micro_batches_keep_to_the_bounds_that_batches_keep_to_elsewhere() {
    let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 2]);
    (view.workers[0].batch_size_min, view.workers[0].batch_size_max) = (10, 30);
    view.workers[1].batch_size_max = 128;
    let with = |mode, first: u32, count| {
        let view = ClusterView { mode, ..view.clone() };
        let sizes = [(NodeId::worker(0), first), (NodeId::worker(1), 128 - first)];
        let decision = Decision {
            batch_sizes: Some(sizes.into_iter().collect()),
            accumulation: [(NodeId::worker(0), count)].into_iter().collect(),
            ..Decision::default()
        };
        validate(NOW, &decision, &view, &RestartBudget::default())
    };
    let mode = Capabilities::REPLICAS_IN_STEP;
    for (first, count) in [(30, 1), (31, 2), (60, 2), (90, 3), (20, 2), (29, 2)] {
        assert_eq!(with(mode, first, count), Ok(()), "{first} in {count}");
    }
    assert!(matches!(with(mode, 31, 1), Err(Refusal::OutOfBounds { samples: 31, max: 30, .. })));
    for (first, count) in [(61, 2), (91, 3), (19, 2), (29, 3), (30, 0)] {
        let (min, max, samples, node) = (10, 30, first, NodeId::worker(0));
        assert_eq!(
            with(mode, first, count),
            Err(Refusal::MicroBatches { node, samples, count, min, max }),
            "{first} in {count}"
        );
    }
    for mode in Capabilities::COMMON {
        let accepted = with(mode, 60, 2).is_ok();
        assert_eq!(accepted, mode.sums_to_global_batch(), "{mode:?}");
    }
}

#[test]
fn micro_batches_come_with_batch_sizes_of_live_workers() {
    let view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 2]);
    let check = |sizes: bool, index| {
        let all = [0, 1].map(|index| (NodeId::worker(index), 64));
        let decision = Decision {
            batch_sizes: sizes.then(|| all.into_iter().collect()),
            accumulation: [(NodeId::worker(index), 2)].into_iter().collect(),
            ..Decision::default()
        };
        validate(NOW, &decision, &view, &RestartBudget::default())
    };
    assert_eq!(check(true, 1), Ok(()));
    let node = NodeId::worker(1);
    assert_eq!(check(false, 1), Err(Refusal::Accumulation { node, count: 2 }));
    assert_eq!(check(true, 7), Err(Refusal::NotAWorker { node: NodeId::worker(7) }));
}
