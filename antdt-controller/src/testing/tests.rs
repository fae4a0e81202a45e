use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use antdt_core::Reason;

use super::*;
use crate::policy::{Dedicated, LbBsp, NonDedicated, Predictive, Split, Unmanaged};

const CASES: u32 = 3000;

#[test]
fn the_policies_of_this_crate_conform() {
    check_policy(&Unmanaged, CASES, Seed(1)).unwrap();
    check_policy(&NonDedicated::default(), CASES, Seed(1)).unwrap();
    check_policy(&LbBsp::default(), CASES, Seed(1)).unwrap();
    check_policy(&Predictive::default(), CASES, Seed(1)).unwrap();
    check_policy(&Dedicated::default(), CASES, Seed(1)).unwrap();
}

#[test]
fn the_suite_gets_past_the_quiet_cases() {
    // Otherwise a policy that always does nothing in noisy jobs would be all that is checked.
    let mut policy = NonDedicated::default();
    let (mut plans, mut restarts) = (0, 0);
    let mut rng = Seed(2).rng();
    for tick in 0..u64::from(CASES) {
        let decision = policy.decide(JobTime(tick), &random_view(&mut rng, tick), &RestartBudget::default());
        plans += u32::from(decision.batch_sizes.is_some());
        restarts += u32::from(!decision.node_actions.is_empty());
    }
    assert!(
        plans > CASES / 20 && restarts > CASES / 20,
        "{plans} plans, {restarts} restarts in {CASES} cases"
    );
}

/// Decides by a function.
#[derive(Clone)]
struct Bad(fn(&ClusterView) -> Decision);

impl std::fmt::Debug for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bad")
    }
}

impl Policy for Bad {
    fn name(&self) -> &'static str {
        "bad"
    }
    fn decide(&mut self, _now: JobTime, view: &ClusterView, _budget: &RestartBudget) -> Decision {
        (self.0)(view)
    }
    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

fn property(policy: &dyn Policy) -> &'static str {
    check_policy(policy, CASES, Seed(1)).unwrap_err().property
}

#[test]
fn a_policy_that_rounds_is_caught() {
    let rounding = Bad(|view| {
        let speed = |node: &NodeView| {
            node.estimate
                .map(|estimate| estimate.sample_time)
                .map_or(1.0, |time| 1.0 / time.as_secs_f64().max(1e-9))
        };
        let all: f64 = view.live_workers().map(speed).sum();
        let share = |node: &NodeView| (f64::from(view.global_batch_size) * speed(node) / all).round() as u32;
        let batch_sizes = Some(view.live_workers().map(|node| (node.id, share(node))).collect());
        Decision { batch_sizes, reasons: vec![Reason::Balanced], ..Decision::default() }
    });
    assert_eq!(property(&rounding), "valid");
}

#[test]
fn a_policy_that_looks_at_the_order_of_nodes_is_caught() {
    let first = Bad(|view| {
        Decision::nothing(Reason::Other(
            view.workers.first().map_or_else(String::new, |node| node.id.to_string()),
        ))
    });
    assert_eq!(property(&first), "indifferent to order");
}

#[test]
fn a_policy_without_a_reason_is_caught() {
    assert_eq!(property(&Bad(|_| Decision::default())), "total");
}

/// Keeps a state that its clones share.
#[derive(Debug, Clone, Default)]
struct Shared(Arc<AtomicU32>);

impl Policy for Shared {
    fn name(&self) -> &'static str {
        "shared"
    }
    fn decide(&mut self, _now: JobTime, _view: &ClusterView, _budget: &RestartBudget) -> Decision {
        Decision::nothing(Reason::GainTooSmall { percent: self.0.fetch_add(1, Ordering::Relaxed) })
    }
    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[test]
fn a_policy_whose_clone_decides_differently_is_caught() {
    assert_eq!(property(&Shared::default()), "deterministic");
}

/// Splits among the first worker only.
#[derive(Debug, Clone, Copy)]
struct Greedy;

impl Policy for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }
    fn decide(&mut self, _now: JobTime, _view: &ClusterView, _budget: &RestartBudget) -> Decision {
        Decision::nothing(Reason::Balanced)
    }
    fn split(&self, total: u32, seats: &[Seat]) -> Result<Split, crate::ApportionError> {
        Ok(seats.iter().take(1).map(|seat| (seat.id, total)).collect::<BTreeMap<_, _>>().into())
    }
    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }
}

#[test]
fn a_policy_that_splits_unfairly_is_caught() {
    assert_eq!(property(&Greedy), "sum-preserving");
}
