use antdt_core::{Incarnation, NodeId, Reason};
use proptest::prelude::*;

use super::*;

const OLD: Holder = Holder::new(NodeId::worker(2), Incarnation(4));
const NEW: Holder = Holder::new(NodeId::worker(2), Incarnation(5));

fn at(seconds: u64) -> JobTime {
    JobTime::from_duration(Duration::from_secs(seconds))
}

fn saga() -> RestartSaga {
    let kind = NodeActionKind::KillRestart { drain: Duration::from_secs(30) };
    let action = NodeAction { id: ActionId(7), target: OLD, kind, reason: Reason::Balanced };
    RestartSaga::begin(at(0), &action, RestartConfig::default())
}

fn drain(saga: &mut RestartSaga) -> Vec<RestartEffect> {
    std::iter::from_fn(|| saga.poll_effect()).collect()
}

fn failed(why: &str) -> RestartEffect {
    RestartEffect::Outcome(ActionOutcome::RestartFailed { id: ActionId(7), why: why.to_owned() })
}

#[test]
fn a_restart_goes_from_drain_to_rejoin() {
    let mut saga = saga();
    assert_eq!(drain(&mut saga), [RestartEffect::Drain(OLD)]);
    saga.event(at(1), RestartEvent::Drained(OLD));
    assert_eq!(drain(&mut saga), [RestartEffect::Fence(OLD), RestartEffect::Kill(OLD)]);
    saga.event(at(2), RestartEvent::Exited(OLD));
    assert_eq!(drain(&mut saga), [RestartEffect::Launch(NEW)]);
    saga.event(at(3), RestartEvent::Started(NEW));
    assert_eq!(saga.state(), RestartState::Starting);
    saga.event(at(5), RestartEvent::Registered(NEW));
    let outcome = ActionOutcome::Restarted { id: ActionId(7), holder: NEW, took: Duration::from_secs(5) };
    assert_eq!(drain(&mut saga), [RestartEffect::Outcome(outcome)]);
    assert!(saga.is_over() && saga.deadline().is_none());
}

#[test]
fn a_node_that_does_not_drain_is_fenced_and_killed_at_the_deadline() {
    let mut saga = saga();
    drain(&mut saga);
    assert_eq!(saga.deadline(), Some(at(30)));
    saga.on_deadline(at(29));
    assert_eq!(drain(&mut saga), []);
    saga.on_deadline(at(30));
    assert_eq!(drain(&mut saga), [RestartEffect::Fence(OLD), RestartEffect::Kill(OLD)]);
}

#[test]
fn a_node_that_is_needed_is_not_killed_as_long_as_it_is() {
    let mut saga = saga();
    drain(&mut saga);
    for second in 30..60 {
        saga.event(at(second), RestartEvent::Needed(OLD));
        saga.on_deadline(at(second));
        assert_eq!((drain(&mut saga), saga.deadline()), (vec![], Some(at(second + 1))));
    }
    saga.on_deadline(at(60));
    assert_eq!(drain(&mut saga), [RestartEffect::Fence(OLD), RestartEffect::Kill(OLD)]);
    // Too late.
    saga.event(at(61), RestartEvent::Needed(OLD));
    assert_eq!(saga.deadline(), Some(at(70)));
}

#[test]
fn a_node_that_ends_while_it_drains_is_fenced_and_replaced() {
    let mut saga = saga();
    drain(&mut saga);
    saga.event(at(1), RestartEvent::Exited(OLD));
    assert_eq!(drain(&mut saga), [RestartEffect::Fence(OLD), RestartEffect::Launch(NEW)]);
}

/// A saga in the given state, its effects drained.
fn in_state(state: RestartState) -> RestartSaga {
    let mut saga = saga();
    for event in [
        RestartEvent::Drained(OLD),
        RestartEvent::Exited(OLD),
        RestartEvent::Started(NEW),
        RestartEvent::Registered(NEW),
    ] {
        if saga.state() == state {
            break;
        }
        saga.event(at(0), event);
    }
    drain(&mut saga);
    assert_eq!(saga.state(), state);
    saga
}

#[test]
fn every_wait_has_a_deadline_and_a_failure_that_names_the_missing_event() {
    let cases = [
        (RestartState::Killing, 10, vec![failed("worker-2#4 did not end after it was killed")]),
        (RestartState::Pending, 300, vec![failed("worker-2#5 was not started in 300s")]),
        (
            RestartState::Starting,
            120,
            vec![
                RestartEffect::Fence(NEW),
                RestartEffect::Kill(NEW),
                failed("worker-2#5 did not register within 120s of its start"),
            ],
        ),
    ];
    for (state, seconds, expected) in cases {
        let mut saga = in_state(state);
        assert_eq!(saga.deadline(), Some(at(seconds)), "{state:?}");
        saga.on_deadline(at(seconds));
        assert_eq!(drain(&mut saga), expected, "{state:?}");
        assert_eq!(saga.state(), RestartState::Failed);
    }
}

#[test]
fn a_replacement_that_ends_or_cannot_start_is_a_failure() {
    let mut saga = in_state(RestartState::Starting);
    saga.event(at(1), RestartEvent::Exited(NEW));
    assert_eq!(drain(&mut saga), [failed("worker-2#5 ended before it registered")]);
    let mut saga = in_state(RestartState::Pending);
    saga.event(at(1), RestartEvent::LaunchFailed(NEW));
    assert_eq!(drain(&mut saga), [failed("worker-2#5 could not be started")]);
}

#[test]
fn news_of_other_lives_change_nothing_in_any_state() {
    use RestartState as S;
    let other =
        [(2, 3), (2, 6), (1, 4)].map(|(node, life)| Holder::new(NodeId::worker(node), Incarnation(life)));
    for state in [S::Draining, S::Killing, S::Pending, S::Starting, S::Rejoined] {
        // In each state the lives that it does not wait for are others, too.
        let not_awaited = if matches!(state, S::Draining | S::Killing) { NEW } else { OLD };
        for holder in other.into_iter().chain([not_awaited]) {
            for event in [
                RestartEvent::Drained(holder),
                RestartEvent::Exited(holder),
                RestartEvent::Started(holder),
                RestartEvent::LaunchFailed(holder),
                RestartEvent::Registered(holder),
            ] {
                let mut saga = in_state(state);
                saga.event(at(1), event);
                assert_eq!((saga.state(), drain(&mut saga)), (state, vec![]), "{event:?}");
            }
        }
    }
}

#[test]
fn a_registration_may_overtake_the_news_of_the_start() {
    let mut saga = in_state(RestartState::Pending);
    saga.event(at(1), RestartEvent::Registered(NEW));
    assert_eq!(saga.state(), RestartState::Rejoined);
    saga.event(at(2), RestartEvent::Started(NEW));
    assert_eq!(saga.state(), RestartState::Rejoined);
}

fn events() -> impl Strategy<Value = RestartEvent> {
    let lives = vec![(2, 3), (2, 4), (2, 5), (2, 6), (1, 4)];
    let life = prop::sample::select(lives)
        .prop_map(|(node, life)| Holder::new(NodeId::worker(node), Incarnation(life)));
    (0..5, life).prop_map(|(kind, holder)| match kind {
        0 => RestartEvent::Drained(holder),
        1 => RestartEvent::Exited(holder),
        2 => RestartEvent::Started(holder),
        3 => RestartEvent::LaunchFailed(holder),
        _ => RestartEvent::Registered(holder),
    })
}

proptest! {
    /// Invariant: however messages are repeated, reordered and delayed, there is at most one kill of the old life and
    /// one launch per action, no other life but a replacement that did not register is ever touched, a fence comes
    /// before every kill, and there is one outcome at most.
    #[test]
    fn i33_one_kill_and_one_launch_under_any_repetition_or_order(
        history in prop::collection::vec(prop_oneof![3 => events().prop_map(Some), 1 => Just(None)], 0..60)
    ) {
        let mut saga = saga();
        let mut effects = Vec::new();
        let mut now = at(0);
        for event in history {
            match event {
                Some(event) => saga.event(now, event),
                None => {
                    now = saga.deadline().unwrap_or(now).max(now);
                    saga.on_deadline(now);
                }
            }
            effects.extend(drain(&mut saga));
        }
        let count = |wanted: &RestartEffect| effects.iter().filter(|effect| *effect == wanted).count();
        prop_assert!(count(&RestartEffect::Kill(OLD)) <= 1);
        prop_assert!(count(&RestartEffect::Kill(NEW)) <= 1);
        prop_assert!(count(&RestartEffect::Launch(NEW)) <= 1);
        prop_assert!(effects.iter().filter(|effect| matches!(effect, RestartEffect::Outcome(_))).count() <= 1);
        for (position, effect) in effects.iter().enumerate() {
            match effect {
                RestartEffect::Drain(holder) => prop_assert_eq!(*holder, OLD),
                RestartEffect::Launch(holder) => prop_assert_eq!(*holder, NEW),
                RestartEffect::Fence(holder) => prop_assert!([OLD, NEW].contains(holder)),
                RestartEffect::Kill(holder) => {
                    prop_assert!([OLD, NEW].contains(holder));
                    prop_assert!(effects[..position].contains(&RestartEffect::Fence(*holder)));
                }
                RestartEffect::Outcome(_) => prop_assert_eq!(position, effects.len() - 1, "nothing after the outcome"),
            }
        }
        if let Some(position) = effects.iter().position(|effect| *effect == RestartEffect::Launch(NEW)) {
            prop_assert!(effects[..position].contains(&RestartEffect::Fence(OLD)), "fenced before it is replaced");
        }
        prop_assert_eq!(saga.is_over(), saga.deadline().is_none());
    }
}
