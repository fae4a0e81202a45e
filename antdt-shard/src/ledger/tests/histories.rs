use antdt_core::{Ack, Seed};
use proptest::prelude::*;

use super::pair::{Pair, worker};
use crate::spec::{Assignment, DatasetSpec, Epochs, OnQuarantine, Shuffle};

/// What can happen, chosen by numbers that mean something in every state.
#[derive(Debug, Clone)]
enum Happening {
    /// A worker, or its last life, or its next, registers.
    Register {
        node: u32,
        life: i8,
    },
    /// A life asks with a request that is fresh, a repetition, or late; in this generation or an earlier one.
    Fetch {
        node: u32,
        life: i8,
        back: u8,
        generations_back: u8,
    },
    /// Somebody says something about leases, most often about his own: any of them, of any age, any offset.
    Say {
        what: What,
        of: Vec<(Pick, u64)>,
        by: By,
    },
    Lose {
        node: u32,
        life: i8,
    },
    Snapshot,
    Restore {
        which: u8,
    },
}

#[derive(Debug, Clone, Copy)]
enum What {
    Ack,
    Release,
    Fail,
}

#[derive(Debug, Clone, Copy)]
enum Pick {
    /// One of the last few grants.
    Recent(u8),
    /// Any grant, of any generation.
    Any(u16),
}

#[derive(Debug, Clone, Copy)]
enum By {
    Owner,
    Another(u32),
    /// The owner's node in another life.
    Life(i8),
}

fn happenings() -> impl Strategy<Value = Happening> {
    let node = 0..4_u32;
    let life = prop_oneof![8 => Just(0_i8), 1 => Just(-1), 2 => Just(1)];
    let back = prop_oneof![8 => Just(0_u8), 2 => Just(1), 1 => Just(2)];
    let generations_back = prop_oneof![12 => Just(0_u8), 1 => Just(1)];
    let what = prop_oneof![6 => Just(What::Ack), 2 => Just(What::Release), 2 => Just(What::Fail)];
    let pick = prop_oneof![4 => (0..4_u8).prop_map(Pick::Recent), 1 => any::<u16>().prop_map(Pick::Any)];
    // Offsets are taken modulo the length plus two, so that one too many is among them.
    let of = prop::collection::vec((pick, any::<u64>()), 0..4);
    let by = prop_oneof![
        10 => Just(By::Owner),
        1 => (0..4_u32).prop_map(By::Another),
        1 => prop_oneof![Just(-1_i8), Just(1)].prop_map(By::Life),
    ];
    prop_oneof![
        3 => (node.clone(), life.clone()).prop_map(|(node, life)| Happening::Register { node, life }),
        12 => (node.clone(), life.clone(), back, generations_back).prop_map(
            |(node, life, back, generations_back)| Happening::Fetch { node, life, back, generations_back }
        ),
        14 => (what, of, by).prop_map(|(what, of, by)| Happening::Say { what, of, by }),
        2 => (node, life).prop_map(|(node, life)| Happening::Lose { node, life }),
        1 => Just(Happening::Snapshot),
        1 => any::<u8>().prop_map(|which| Happening::Restore { which }),
    ]
}

fn specs() -> impl Strategy<Value = DatasetSpec> {
    let shuffle = prop_oneof![Just(Shuffle::None), Just(Shuffle::Shards), Just(Shuffle::ShardsAndSamples)];
    let on_quarantine = prop_oneof![
        1 => Just(OnQuarantine::FailJob),
        2 => (0..40_u64).prop_map(|max_samples| OnQuarantine::Continue { max_samples }),
    ];
    let assignment = prop_oneof![
        3 => Just(Assignment::Dynamic),
        1 => (1..5_u32).prop_map(|workers| Assignment::Static { workers }),
    ];
    (
        1..40_u64,
        1..12_u64,
        1..4_u32,
        shuffle,
        any::<u64>(),
        0..3_u32,
        (1..4_u32, on_quarantine),
        1..4_u32,
        assignment,
    )
        .prop_map(
            |(num_samples, shard_len, epochs, shuffle, seed, epoch_overlap, faults, leases, assignment)| {
                DatasetSpec {
                    epochs: Epochs::Finite(epochs),
                    shuffle,
                    seed: Seed(seed),
                    epoch_overlap,
                    max_data_faults: faults.0,
                    on_quarantine: faults.1,
                    max_leases_per_holder: leases,
                    assignment,
                    ..DatasetSpec::new("history", num_samples, shard_len)
                }
            },
        )
}

/// Carries out a history. Lives and requests are relative to what the workers of the history last were.
fn run(spec: DatasetSpec, history: &[Happening]) {
    let mut pair = Pair::new(spec);
    let mut lives = [0_i64; 4];
    let mut requests = [0_u64; 4];
    let life_of = |lives: &[i64; 4], node: u32, life: i8| {
        u32::try_from((lives[node as usize] + i64::from(life)).max(0)).unwrap()
    };
    for node in 0..3 {
        pair.register(worker(node, 0)); // The fourth is not known at first.
    }
    for happening in history {
        match happening {
            Happening::Register { node, life } => {
                let incarnation = life_of(&lives, *node, *life);
                if pair.register(worker(*node, incarnation)) {
                    lives[*node as usize] = i64::from(incarnation);
                }
            }
            Happening::Fetch { node, life, back, generations_back } => {
                let holder = worker(*node, life_of(&lives, *node, *life));
                let last = &mut requests[*node as usize];
                *last += u64::from(*back == 0);
                let request = last.saturating_sub(u64::from(back.saturating_sub(1)));
                let generation = pair.generation.0.saturating_sub(u64::from(*generations_back));
                pair.fetch(holder, antdt_core::Generation(generation), request);
            }
            Happening::Say { what, of, by } => {
                let picked: Vec<_> = of
                    .iter()
                    .filter_map(|(pick, offset)| {
                        let count = pair.grants.len();
                        let at = match pick {
                            Pick::Recent(back) => count.checked_sub(1 + usize::from(*back))?,
                            Pick::Any(any) => usize::from(*any).checked_rem(count)?,
                        };
                        let (grant, owner) = pair.grants[at];
                        Some((Ack { lease: grant.lease, offset: offset % (grant.len + 2) }, owner))
                    })
                    .collect();
                let owner = picked.first().map_or(worker(0, 0), |(_, owner)| *owner);
                let holder = match by {
                    By::Owner => owner,
                    By::Another(node) => worker(*node, life_of(&lives, *node, 0)),
                    By::Life(life) => {
                        let other = (i64::from(owner.incarnation.0) + i64::from(*life)).max(0);
                        worker(owner.node.index, u32::try_from(other).unwrap())
                    }
                };
                let acks: Vec<Ack> = picked.iter().map(|(ack, _)| *ack).collect();
                match what {
                    What::Ack => drop(pair.ack(holder, &acks)),
                    What::Release => drop(pair.release(holder, &acks)),
                    What::Fail => drop(acks.first().map(|ack| pair.fail(holder, *ack))),
                }
            }
            Happening::Lose { node, life } => pair.lose(worker(*node, life_of(&lives, *node, *life))),
            Happening::Snapshot => pair.keep_snapshot(),
            Happening::Restore { which } => pair.restore(usize::from(*which)),
        }
    }
    pair.drain();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_every_sample_and_counts_none_twice(
        spec in specs(),
        history in prop::collection::vec(happenings(), 0..140),
    ) {
        run(spec, &history);
    }
}
