use antdt_core::{Incarnation, NodeId};

use super::*;

fn at(seconds: u64) -> JobTime {
    JobTime::from_duration(Duration::from_secs(seconds))
}

fn node(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(0))
}

fn tracker() -> LivenessTracker {
    let mut tracker = LivenessTracker::new(LivenessConfig::default());
    tracker.watch(at(0), node(0));
    tracker.watch(at(0), node(1));
    tracker
}

#[test]
fn a_silent_node_is_late_then_lost_each_said_once() {
    let mut tracker = tracker();
    for t in 0..40 {
        tracker.heard(at(t), node(1));
        let expected = match t {
            15 => vec![(node(0), Liveness::Late)],
            30 => vec![(node(0), Liveness::Lost)],
            _ => vec![],
        };
        assert_eq!(tracker.check(at(t)), expected, "at {t} s");
    }
}

#[test]
fn a_late_node_that_is_heard_of_is_on_time_again() {
    let mut tracker = tracker();
    tracker.heard(at(16), node(1));
    assert_eq!(tracker.check(at(16)), [(node(0), Liveness::Late)]);
    assert_eq!(tracker.heard(at(17), node(0)), Some(Liveness::OnTime));
    assert_eq!(tracker.check(at(30)), []);
}

#[test]
fn a_lost_life_stays_lost() {
    let mut tracker = tracker();
    tracker.check(at(31));
    assert_eq!(tracker.heard(at(32), node(0)), Some(Liveness::Lost));
    assert_eq!(tracker.state(node(0)), Some(Liveness::Lost));
    assert_eq!(tracker.deadline(), None);
}

#[test]
fn a_late_check_changes_when_not_whether() {
    let mut tracker = tracker();
    assert_eq!(tracker.deadline(), Some(at(15)));
    assert_eq!(tracker.check(at(1000)), [(node(0), Liveness::Lost), (node(1), Liveness::Lost)]);
}

#[test]
fn limits_out_of_order_are_refused() {
    let second = Duration::from_secs(1);
    let config = LivenessConfig { interval: second * 5, late_after: second * 5, lost_after: second * 30 };
    assert!(
        config.validate().unwrap_err().to_string().contains("late_after = 5 s: must be above the interval")
    );
    let config = LivenessConfig { interval: second, late_after: second * 40, lost_after: second * 30 };
    assert!(config.validate().unwrap_err().field.contains("lost_after"));
    let config = LivenessConfig { interval: Duration::ZERO, ..LivenessConfig::default() };
    assert!(config.validate().is_err());
}
