use antdt_core::{Capabilities, PlanVersion, StepView};
use proptest::prelude::*;

use super::*;
use crate::testing::quiet_view;

const NOW: JobTime = JobTime(1_000_000_000);

fn slow() -> ClusterView {
    quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000, 1000, 1000, 4000])
}

fn sizes(decision: &Decision) -> Option<Vec<u32>> {
    decision.batch_sizes.as_ref().map(|sizes| sizes.values().copied().collect())
}

/// Plans that follow one another, each in force when the next one is made.
fn plans(policy: &mut LbBsp, mut view: ClusterView, most: usize) -> Vec<Vec<u32>> {
    let mut made = Vec::new();
    while let Some(next) =
        sizes(&policy.decide(NOW, &view, &RestartBudget::default())).filter(|_| made.len() < most)
    {
        assert_eq!(next.iter().sum::<u32>(), 256);
        for (worker, samples) in view.workers.iter_mut().zip(&next) {
            worker.batch_size = *samples;
        }
        made.push(next);
    }
    made
}

#[test]
fn sizes_go_part_of_the_way_to_those_that_fit_and_arrive() {
    let made = plans(&mut LbBsp::default(), slow(), 20);
    assert_eq!(made[..2], [vec![72, 72, 71, 41], vec![76, 75, 75, 30]]);
    assert_eq!((made.len(), made.last().unwrap()), (6, &vec![79, 79, 79, 19]));
    let at_once = LbBspConfig { learning_rate: 1.0, ..LbBspConfig::default() };
    assert_eq!(plans(&mut LbBsp::new(at_once), slow(), 20), [vec![79, 79, 79, 19]]);
}

#[test]
fn a_speed_is_predicted_from_those_before_of_the_same_life() {
    let mut policy = LbBsp::new(LbBspConfig { learning_rate: 1.0, ..LbBspConfig::default() });
    let even = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]);
    assert_eq!(policy.decide(NOW, &even, &RestartBudget::default()), Decision::nothing(Reason::Balanced));
    // Half of the way from 1 to 4 times, as a logarithm, is 2 times.
    assert_eq!(
        sizes(&policy.clone().decide(NOW, &slow(), &RestartBudget::default())),
        Some(vec![74, 73, 73, 36])
    );
    let mut reborn = slow();
    reborn.workers[3].incarnation = Incarnation(1);
    assert_eq!(sizes(&policy.decide(NOW, &reborn, &RestartBudget::default())), Some(vec![79, 79, 79, 19]));
}

#[test]
fn it_waits_for_three_steps_and_all_workers_and_leaves_asynchronous_workers_alone() {
    let decide = |view: &ClusterView| LbBsp::default().decide(NOW, view, &RestartBudget::default());
    let mut early = slow();
    let time = Duration::from_millis(100);
    early.step = Some(StepView { plan: PlanVersion(1), steps: 2, time, overhead: Duration::ZERO });
    assert_eq!(decide(&early), Decision::nothing(Reason::TooSoon));
    let mut unknown = slow();
    unknown.workers[1].estimate = None;
    assert_eq!(decide(&unknown), Decision::nothing(Reason::NotEnoughData { known: 3, needed: 4 }));
    let asynchronous = quiet_view(Capabilities::SERVERS_AT_OWN_PACE, &[1000, 4000]);
    assert_eq!(decide(&asynchronous).batch_sizes, None);
}

#[test]
fn sizes_of_a_worker_that_joined_are_replaced_at_once() {
    let mut view = slow();
    view.workers[0].batch_size = 0;
    let decision = LbBsp::default().decide(NOW, &view, &RestartBudget::default());
    assert_eq!(sizes(&decision), Some(vec![79, 79, 79, 19]));
}

proptest! {
    #[test]
    fn a_mix_of_two_splits_is_a_split_within_their_bounds(
        moves in prop::collection::vec((0u32..500, 0u32..500), 1..12),
        part in 0.001f64..=1.0,
    ) {
        // Both splits have the same sum: the last worker takes what is missing on its side.
        let (a, b): (u32, u32) = moves.iter().fold((0, 0), |(a, b), (x, y)| (a + x, b + y));
        let ids = || (0..).map(NodeId::worker);
        let sums = [b.saturating_sub(a), a.saturating_sub(b)];
        let side = |own: fn(&(u32, u32)) -> u32, rest: u32| -> BTreeMap<NodeId, u32> {
            ids().zip(moves.iter().map(own).chain([rest])).collect()
        };
        let (now, target) = (side(|it| it.0, sums[0]), side(|it| it.1, sums[1]));
        let next = part_of_the_way(&now, &target, part);
        prop_assert_eq!(next.values().sum::<u32>(), now.values().sum::<u32>());
        for (node, samples) in &next {
            let (low, high) = (now[node].min(target[node]), now[node].max(target[node]));
            prop_assert!((low..=high).contains(samples), "{} of {:?} and {:?}", node, now, target);
        }
        if part == 1.0 {
            prop_assert_eq!(next, target);
        }
    }
}
