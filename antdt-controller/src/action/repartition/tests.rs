use std::time::Duration;

use antdt_core::{Capabilities, ClusterView, Incarnation, JobTime, NodeId, NodeView, Reason, ServerWeights};

use super::*;
use crate::action;
use crate::budget::{BudgetConfig, RestartBudget};
use crate::policy::Decision;
use crate::testing::quiet_view;

const NOW: JobTime = JobTime::ZERO;

/// A job with two servers in their third lives.
fn view() -> ClusterView {
    let mut view = quiet_view(Capabilities::SERVERS_IN_STEP, &[1000; 4]);
    let server = |index| NodeView {
        id: NodeId::server(index),
        incarnation: Incarnation(2),
        chief: false,
        ..view.workers[3].clone()
    };
    view.servers = vec![server(0), server(1)];
    view
}

fn to(weights: &str, incarnation: u32) -> ProposedAction {
    let target = Holder::new(NodeId::server(1), Incarnation(incarnation));
    let kind = NodeActionKind::Repartition { weights: weights.parse().unwrap() };
    ProposedAction { target, kind, reason: Reason::Balanced }
}

fn check(view: &ClusterView, actions: Vec<ProposedAction>) -> Result<(), Refusal> {
    let decision = Decision { node_actions: actions, ..Decision::default() };
    action::validate(NOW, &decision, view, &RestartBudget::default())
}

#[test]
fn weights_that_break_the_job_are_refused() {
    let view = view();
    assert_eq!(check(&view, vec![to("2,1", 2)]), Ok(()));
    let target = Holder::new(NodeId::server(1), Incarnation(1));
    let running = Holder::new(NodeId::server(1), Incarnation(2));
    assert_eq!(check(&view, vec![to("2,1", 1)]), Err(Refusal::OtherLife { target, running }));
    for (weights, in_force) in [("1,2,3", "equal"), ("equal", "equal"), ("2,1", "2,1")] {
        let view = ClusterView { server_weights: in_force.parse().unwrap(), ..view.clone() };
        let refused = check(&view, vec![to(weights, 2)]).unwrap_err().to_string();
        let expected = format!(
            "REPARTITION = {weights}: must be one weight for each of 2 servers, other than those in force, {in_force}"
        );
        assert_eq!(refused, expected);
    }
    let kept = ClusterView { hands_over: false, ..view.clone() };
    assert_eq!(check(&kept, vec![to("2,1", 2)]), Err(Refusal::Server { node: NodeId::server(1) }));
    let mut down = view;
    down.servers[1].status = NodeStatus::Pending;
    assert_eq!(check(&down, vec![to("2,1", 2)]), Err(Refusal::NotRunning { target: running }));
}

#[test]
fn it_comes_alone_and_out_of_the_budget_of_restarts() {
    let view = view();
    let target = Holder::new(NodeId::worker(1), Incarnation(0));
    let kind = NodeActionKind::KillRestart { drain: Duration::ZERO };
    let restart = ProposedAction { target, kind, reason: Reason::Balanced };
    let both = check(&view, vec![to("2,1", 2), restart]);
    assert_eq!(both, Err(Refusal::TooManyAtOnce { asked: 2, free: 1 }));
    let spent = RestartBudget::new(BudgetConfig { per_node: 0, ..BudgetConfig::default() });
    let decision = Decision { node_actions: vec![to("2,1", 2)], ..Decision::default() };
    assert!(matches!(action::validate(NOW, &decision, &view, &spent), Err(Refusal::Budget(_))));
}

#[test]
fn a_decision_is_divided_by_kind() {
    let target = Holder::new(NodeId::worker(1), Incarnation(0));
    let kind = NodeActionKind::KillRestart { drain: Duration::ZERO };
    let restart = ProposedAction { target, kind, reason: Reason::Balanced };
    let mut from = Decision { node_actions: vec![restart.clone(), to("2,1", 0)], ..Decision::default() };
    let mut taken = Decision::default();
    Repartition.hand_over(&mut from, &mut taken);
    assert_eq!((from.node_actions, taken.node_actions), (vec![restart], vec![to("2,1", 0)]));
    assert_eq!(ServerWeights::default(), view().server_weights);
}
