//! Promises of the protocols between crates, for every schedule of deaths.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod gradient;
mod sampler;
mod unbiased;

use antdt_agent::PlanSwitch;
use antdt_collective::Lanes;
use antdt_core::{MembershipVersion, NodeId, Plan, PlanVersion};
use antdt_tests::{RingWorld, ServerWorld};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// A worker dies at any point of a step: every replica holds every sample once, and so says the ledger.
    #[test]
    fn i30_a_ring_trains_every_sample_once_whichever_worker_dies(
        seed in any::<u64>(), workers in 1_u32..6, samples in 1_u64..120, shard_len in 1_u64..20,
        epochs in 1_u32..4, deaths in 0_u32..8,
    ) {
        RingWorld::new(seed, workers, samples, shard_len, epochs, deaths).run();
    }

    /// The same with synchronous servers, which moreover all apply the same pushes.
    #[test]
    fn i30_servers_in_step_apply_every_sample_once_whichever_worker_dies(
        seed in any::<u64>(), workers in 1_u32..6, samples in 1_u64..120, shard_len in 1_u64..20,
        epochs in 1_u32..4, deaths in 0_u32..8,
    ) {
        ServerWorld::new(seed, workers, samples, shard_len, epochs, deaths).run();
    }

    /// Plans reach the ranks at any time; each takes effect at one iteration on all of them, or on none, and the
    /// batch sizes of one step always add up.
    #[test]
    fn i26_a_plan_takes_effect_at_one_iteration_everywhere(
        ranks in 1_u32..6,
        arrivals in prop::collection::vec((0_u64..60, 0_u32..6), 0..80),
    ) {
        let total = 64;
        let plan = |version: u64| {
            // Any split will do, as long as it adds up.
            let mut sizes: Vec<u32> = (0..ranks).map(|rank| 1 + (u32::try_from(version).unwrap() * 7 + rank) % 5).collect();
            let rest = total - sizes.iter().sum::<u32>();
            sizes[0] += rest;
            let sizes = sizes.into_iter().zip(0..).map(|(size, index)| (NodeId::worker(index), size)).collect();
            Plan::new(PlanVersion(version), MembershipVersion(1), sizes)
        };
        let mut switches: Vec<PlanSwitch> = (0..ranks).map(|index| PlanSwitch::new(NodeId::worker(index))).collect();
        for switch in &mut switches {
            switch.regroup(MembershipVersion(1), &plan(1));
        }
        for iteration in 0..60 {
            // Version 2 + iteration / 10 is on its way; it reaches some ranks now.
            for (at, rank) in &arrivals {
                if *at == iteration && *rank < ranks {
                    switches[*rank as usize].offer(plan(2 + iteration / 10));
                }
            }
            let sizes: u32 = switches.iter().map(PlanSwitch::batch_size).sum();
            prop_assert_eq!(sizes, total);
            let versions: Vec<PlanVersion> = switches.iter().map(PlanSwitch::applied).collect();
            prop_assert!(versions.iter().all(|version| *version == versions[0]), "{:?}", versions);
            let mut totals = [0.0; Lanes::LEN];
            for switch in &switches {
                let lanes = Lanes { plan_ready: switch.ready(), ..Lanes::default() };
                totals.iter_mut().zip(lanes.encode()).for_each(|(total, lane)| *total += lane);
            }
            if let Some(version) = Lanes::decide(&totals, ranks).plan_agreed {
                for switch in &mut switches {
                    switch.agreed(version);
                }
            }
        }
    }
}
