use std::collections::BTreeMap;

use antdt_core::{Incarnation, NodeId};
use proptest::prelude::*;

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
    let config = LivenessConfig {
        interval: second * 5,
        late_after: second * 5,
        lost_after: second * 30,
        lost_after_least: None,
    };
    assert!(
        config.validate().unwrap_err().to_string().contains("late_after = 5 s: must be above the interval")
    );
    let config = LivenessConfig {
        interval: second,
        late_after: second * 40,
        lost_after: second * 30,
        lost_after_least: None,
    };
    assert!(config.validate().unwrap_err().field.contains("lost_after"));
    let config = LivenessConfig { interval: Duration::ZERO, ..LivenessConfig::default() };
    assert!(config.validate().is_err());
}

/// The definition, by a search through all nodes.
#[derive(Default)]
struct Plain(BTreeMap<Holder, (JobTime, Liveness)>);

impl Plain {
    fn heard(&mut self, now: JobTime, holder: Holder) -> Option<Liveness> {
        let (last, state) = self.0.get_mut(&holder)?;
        if *state != Liveness::Lost {
            (*last, *state) = (now, Liveness::OnTime);
        }
        Some(*state)
    }

    fn deadline(&self) -> Option<JobTime> {
        let config = LivenessConfig::default();
        let due = |(last, state): &(JobTime, Liveness)| match state {
            Liveness::OnTime => Some(*last + config.late_after),
            Liveness::Late => Some(*last + config.lost_after),
            Liveness::Lost => None,
        };
        self.0.values().filter_map(due).min()
    }

    fn check(&mut self, now: JobTime) -> Vec<(Holder, Liveness)> {
        let config = LivenessConfig::default();
        let mut changes = Vec::new();
        for (holder, (last, state)) in &mut self.0 {
            let silence = now.since(*last);
            let to = match silence {
                _ if silence >= config.lost_after => Liveness::Lost,
                _ if silence >= config.late_after => Liveness::Late,
                _ => Liveness::OnTime,
            };
            if to > *state {
                *state = to;
                changes.push((*holder, to));
            }
        }
        changes
    }
}

#[test]
fn the_shorter_the_steps_the_sooner_a_silent_node_is_lost_within_limits() {
    let ms = Duration::from_millis;
    let config = LivenessConfig::following_steps(ms(500), ms(1250), ms(10_000));
    config.validate().unwrap();
    let lost_after = |step: Option<u64>| {
        let mut tracker = LivenessTracker::new(config);
        tracker.watch(JobTime::ZERO, node(0));
        if let Some(step) = step {
            tracker.follow(ms(step));
        }
        let mut now = JobTime::ZERO;
        while tracker.state(node(0)) != Some(Liveness::Lost) {
            now = tracker.deadline().unwrap();
            tracker.check(now);
        }
        now.since(JobTime::ZERO)
    };
    let expected = [
        (None, 10_500),
        (Some(1), 1750),
        (Some(100), 1750),
        (Some(200), 2900),
        (Some(1000), 10_500),
        (Some(u64::MAX), 10_500),
    ];
    for (step, limit) in expected {
        assert_eq!(lost_after(step), ms(limit), "steps of {step:?} ms");
    }
    let refused = LivenessConfig { lost_after_least: Some(ms(1000)), ..config }.validate().unwrap_err();
    assert!(refused.to_string().contains("lost_after_least"), "{refused}");
}

/// A million heartbeats of a node whose pauses have a heavy tail and end at a second.
#[test]
fn a_node_that_pauses_for_a_second_is_never_lost() {
    let ms = Duration::from_millis;
    let mut tracker = LivenessTracker::new(LivenessConfig::following_steps(ms(500), ms(1250), ms(10_000)));
    tracker.follow(ms(100));
    let (mut now, mut rng) = (JobTime::ZERO, antdt_core::Seed(3).rng());
    tracker.watch(now, node(0));
    for _ in 0..1_000_000 {
        let pause = (0.01 / (1.0 - rng.unit())).min(1.0);
        now = now + ms(500) + Duration::from_secs_f64(pause);
        assert!(!tracker.check(now).iter().any(|(_, state)| *state == Liveness::Lost));
        tracker.heard(now, node(0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn liveness_agrees_with_a_search_through_all_nodes(
        steps in prop::collection::vec((0_u32..5, 0_u32..6, 0_u64..20), 0..80)
    ) {
        let (mut tracker, mut plain) = (LivenessTracker::new(LivenessConfig::default()), Plain::default());
        let mut now = 0;
        for (step, index, pause) in steps {
            now += pause;
            let holder = node(index);
            match step {
                0 => {
                    tracker.watch(at(now), holder);
                    plain.0.insert(holder, (at(now), Liveness::OnTime));
                }
                1 => {
                    tracker.forget(holder);
                    plain.0.remove(&holder);
                }
                2 => prop_assert_eq!(tracker.check(at(now)), plain.check(at(now))),
                _ => prop_assert_eq!(tracker.heard(at(now), holder), plain.heard(at(now), holder)),
            }
            prop_assert_eq!(tracker.deadline(), plain.deadline());
            prop_assert_eq!(tracker.state(holder), plain.0.get(&holder).map(|(_, state)| *state));
        }
    }
}
