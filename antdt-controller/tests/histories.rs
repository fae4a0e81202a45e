//! The histories and invariants as a user has them: over sound policies, and over policies and dispatchers with planted
//! defects, each of which must be found, shrunk, named, and found again by the line that replays it.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use antdt_controller::policy::{
    BackupWorkers, Composed, Dedicated, LbBsp, NonDedicated, Predictive, Split, Unmanaged,
};
use antdt_controller::testing::{Broken, History, Invariant, Invariants, find_break, history};
use antdt_controller::{
    ApportionError, Decision, DispatchEffect, DispatchEvent, Dispatcher, DispatcherConfig, Policy,
    RestartBudget, Seat,
};
use antdt_core::{ClusterView, JobTime, Machine, MembershipVersion, NodeId, Plan, PlanVersion, Reason};

/// Plays random histories; what is broken in the smallest history that breaks a promise.
fn broken(check: impl Fn(&History) -> Result<(), Broken>) -> Option<Broken> {
    let broken = find_break(300, history::any(), check).err()?;
    assert!(broken.history().steps().len() <= 12, "not small: {:?}", broken.history());
    Some(broken)
}

#[test]
fn the_policies_of_this_crate_break_nothing() {
    assert_eq!(broken(|history| Invariants::all().check(history, Unmanaged)), None);
    assert_eq!(broken(|history| Invariants::all().check(history, NonDedicated::default())), None);
    assert_eq!(broken(|history| Invariants::all().check(history, LbBsp::default())), None);
    assert_eq!(broken(|history| Invariants::all().check(history, Predictive::default())), None);
    assert_eq!(broken(|history| Invariants::all().check(history, Dedicated::default())), None);
    assert_eq!(broken(|history| Invariants::all().check(history, BackupWorkers::default())), None);
    let parts: Vec<Box<dyn Policy>> = vec![
        Box::new(NonDedicated::default()),
        Box::new(Dedicated::default()),
        Box::new(BackupWorkers::default()),
    ];
    let composed = Composed::new(parts).unwrap();
    assert_eq!(broken(|history| Invariants::all().check(history, composed.clone())), None);
}

/// A policy with a defect.
#[derive(Debug, Clone)]
struct Bad {
    breaks: Invariant,
    shared: Arc<AtomicU32>,
}

impl Policy for Bad {
    fn name(&self) -> &'static str {
        "bad"
    }

    fn decide(&mut self, _now: JobTime, view: &ClusterView, _budget: &RestartBudget) -> Decision {
        match self.breaks {
            Invariant::Total => Decision::default(),
            Invariant::Valid => {
                let sizes = view.live_workers().map(|worker| (worker.id, worker.batch_size + 1)).collect();
                let reasons = vec![Reason::Balanced];
                Decision { batch_sizes: Some(sizes), reasons, ..Decision::default() }
            }
            Invariant::Deterministic => {
                let percent = self.shared.fetch_add(1, Ordering::Relaxed);
                Decision::nothing(Reason::GainTooSmall { percent })
            }
            Invariant::OrderIndifferent => {
                let first = view.workers.first().map(|first| first.id);
                Decision::nothing(Reason::Other(format!("{first:?}")))
            }
            _ => Decision::nothing(Reason::Balanced),
        }
    }

    fn split(&self, total: u32, seats: &[Seat]) -> Result<Split, ApportionError> {
        let even = total / u32::try_from(seats.len()).unwrap();
        match self.breaks {
            // What is left over is forgotten; or all of it is the first one's.
            Invariant::Sum => Ok(seats.iter().map(|seat| (seat.id, even)).collect::<BTreeMap<_, _>>().into()),
            Invariant::Bounds => {
                let all = seats.iter().map(|seat| (seat.id, total)).min();
                Ok(all.into_iter().collect::<BTreeMap<_, _>>().into())
            }
            _ => Unmanaged.split(total, seats),
        }
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[test]
fn a_defect_of_a_policy_is_found_and_named() {
    for breaks in [
        Invariant::Total,
        Invariant::Valid,
        Invariant::Deterministic,
        Invariant::OrderIndifferent,
        Invariant::Sum,
        Invariant::Bounds,
    ] {
        let found = broken(|history| {
            let shared = Arc::default();
            Invariants::all().check(history, Bad { breaks, shared })
        });
        let found = found.unwrap_or_else(|| panic!("{breaks} was broken and not found"));
        assert_eq!(found.invariant(), breaks, "{found}");
    }
}

/// A dispatcher with a defect.
struct Spoilt {
    inner: Dispatcher,
    breaks: Invariant,
}

impl Machine for Spoilt {
    type Event = DispatchEvent;
    type Answer = Result<(), ApportionError>;
    type Effect = DispatchEffect;

    fn handle(&mut self, now: JobTime, event: DispatchEvent) -> Self::Answer {
        self.inner.handle(now, event)
    }

    fn poll_effect(&mut self) -> Option<DispatchEffect> {
        let mut effect = self.inner.poll_effect()?;
        match &mut effect {
            DispatchEffect::Publish(plan) => match self.breaks {
                Invariant::OneInFlight => plan.version = PlanVersion(1),
                Invariant::Membership => plan.membership = MembershipVersion(plan.membership.0 - 1),
                Invariant::Sum | Invariant::Bounds => {
                    let mut sizes = (*plan.batch_sizes).clone();
                    sizes.pop_last();
                    *plan = Plan::new(plan.version, plan.membership, sizes);
                }
                _ => {}
            },
            DispatchEffect::Start(action) => match self.breaks {
                Invariant::OtherLife => action.target.incarnation = action.target.incarnation.next(),
                Invariant::Chief => action.target.node = NodeId::worker(0),
                Invariant::Budget => action.id = antdt_core::ActionId(1),
                _ => {}
            },
            _ => {}
        }
        Some(effect)
    }

    fn deadline(&self) -> Option<JobTime> {
        self.inner.deadline()
    }

    fn on_deadline(&mut self, now: JobTime) {
        self.inner.on_deadline(now);
    }
}

#[test]
fn a_defect_of_a_dispatcher_is_found_by_its_own_check() {
    for breaks in [
        Invariant::Sum,
        Invariant::Bounds,
        Invariant::OneInFlight,
        Invariant::Membership,
        Invariant::OtherLife,
        Invariant::Budget,
        Invariant::Chief,
    ] {
        let only = Invariants::only([breaks]);
        let found = broken(|history| {
            let make = |config: DispatcherConfig| {
                let policy = Box::new(NonDedicated::default());
                Spoilt { inner: Dispatcher::new(config, policy), breaks }
            };
            only.check_dispatcher(history, make)
        });
        let found = found.unwrap_or_else(|| panic!("{breaks} was broken and not found"));
        assert_eq!(found.invariant(), breaks, "{found}");
    }
}

#[test]
fn a_line_that_is_none_is_refused_by_name() {
    for line in ["", "{}", r#"{"job":{},"steps":[]}"#] {
        let error = line.parse::<History>().unwrap_err().to_string();
        assert!(error.starts_with("history = ") && error.lines().count() == 1, "{error}");
    }
}
