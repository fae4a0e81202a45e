use std::cell::RefCell;
use std::collections::BTreeMap;

use antdt_core::{Ack, Generation, Holder, Seed};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::pair::{Pair, worker};
use crate::spec::{Assignment, DatasetSpec, Epochs, OnQuarantine, Shuffle};

/// What can happen, chosen by numbers that mean something in every state. A life of 0 is the one that may take part:
/// the live one, or the next if that has ended.
#[derive(Debug, Clone)]
enum Happening {
    Register {
        node: u32,
        life: i8,
    },
    /// A life asks with a request that is fresh (`back` 0), a repetition, or late; in this generation or an earlier
    /// one. Unless it is forgetful it registers before.
    Fetch {
        node: u32,
        life: i8,
        back: u8,
        generations_back: u8,
        forgetful: bool,
    },
    /// Something is said about leases, most often by a node about its own.
    Say {
        what: What,
        node: u32,
        of: Vec<(Pick, Far)>,
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
    /// One of the node's live leases.
    Live(u8),
    /// Any lease there ever was, of anybody, in any generation.
    Any(u16),
}

#[derive(Debug, Clone, Copy)]
enum Far {
    All,
    /// Some of what is left.
    Part(u64),
    /// Anything up to one beyond the end.
    Wild(u64),
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
    let life = prop_oneof![20 => Just(0_i8), 1 => Just(-1), 1 => Just(1)];
    let back = prop_oneof![12 => Just(0_u8), 2 => Just(1), 1 => Just(2)];
    let generations_back = prop_oneof![20 => Just(0_u8), 1 => Just(1)];
    let forgetful = prop_oneof![6 => Just(false), 1 => Just(true)];
    let what = prop_oneof![8 => Just(What::Ack), 3 => Just(What::Release), 2 => Just(What::Fail)];
    let pick = prop_oneof![8 => any::<u8>().prop_map(Pick::Live), 1 => any::<u16>().prop_map(Pick::Any)];
    let far = prop_oneof![
        5 => Just(Far::All),
        3 => any::<u64>().prop_map(Far::Part),
        1 => any::<u64>().prop_map(Far::Wild),
    ];
    let of = prop::collection::vec((pick, far), 1..3);
    let by = prop_oneof![
        14 => Just(By::Owner),
        1 => (0..4_u32).prop_map(By::Another),
        1 => prop_oneof![Just(-1_i8), Just(1)].prop_map(By::Life),
    ];
    prop_oneof![
        1 => (node.clone(), life.clone()).prop_map(|(node, life)| Happening::Register { node, life }),
        16 => (node.clone(), life.clone(), back, generations_back, forgetful).prop_map(
            |(node, life, back, generations_back, forgetful)| {
                Happening::Fetch { node, life, back, generations_back, forgetful }
            }
        ),
        12 => (what, node.clone(), of, by).prop_map(|(what, node, of, by)| Happening::Say { what, node, of, by }),
        2 => (node, life).prop_map(|(node, life)| Happening::Lose { node, life }),
        1 => Just(Happening::Snapshot),
        1 => prop_oneof![2 => Just(None), 1 => any::<u8>().prop_map(Some)].prop_map(|which| match which {
            Some(which) => Happening::Restore { which },
            None => Happening::Snapshot,
        }),
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

/// Carries out a history.
fn run(pair: &mut Pair, history: &[Happening]) {
    let mut requests = [0_u64; 4];
    for happening in history {
        match happening {
            Happening::Register { node, life } => {
                pair.register(life_of(pair, *node, *life));
            }
            Happening::Fetch { node, life, back, generations_back, forgetful } => {
                let holder = life_of(pair, *node, *life);
                if !forgetful {
                    pair.register(holder);
                }
                let last = &mut requests[*node as usize];
                *last += u64::from(*back == 0);
                let request = last.saturating_sub(u64::from(back.saturating_sub(1)));
                let generation = pair.generation.0.saturating_sub(u64::from(*generations_back));
                pair.fetch(holder, Generation(generation), request);
            }
            Happening::Say { what, node, of, by } => say(pair, *what, *node, of, *by),
            Happening::Lose { node, life } => pair.lose(life_of(pair, *node, *life)),
            Happening::Snapshot => pair.keep_snapshot(),
            Happening::Restore { which } => pair.restore(usize::from(*which)),
        }
    }
    pair.drain();
}

fn life_of(pair: &Pair, node: u32, life: i8) -> Holder {
    let able = i64::from(pair.able(node).incarnation.0) + i64::from(life);
    worker(node, u32::try_from(able.max(0)).unwrap())
}

fn say(pair: &mut Pair, what: What, node: u32, of: &[(Pick, Far)], by: By) {
    let mut picked: Vec<(Ack, Holder)> = Vec::new();
    for (pick, far) in of {
        let (lease, owner, from, len) = match pick {
            Pick::Live(any) => {
                let mine: Vec<_> = pair.real.outstanding().filter(|l| l.holder.node.index == node).collect();
                let Some(at) = usize::from(*any).checked_rem(mine.len()) else { continue };
                (mine[at].lease, mine[at].holder, mine[at].offset, mine[at].len)
            }
            Pick::Any(any) => {
                let Some(at) = usize::from(*any).checked_rem(pair.grants.len()) else { continue };
                let (grant, owner) = pair.grants[at];
                (grant.lease, owner, grant.resume_at, grant.len)
            }
        };
        let offset = match far {
            Far::All => len,
            Far::Part(any) => from + any % (len - from),
            Far::Wild(any) => any % (len + 2),
        };
        picked.push((Ack { lease, offset }, owner));
    }
    if picked.is_empty() && matches!(by, By::Owner) {
        return; // An empty call is for the few who have nothing to say.
    }
    let owner = picked.first().map_or(worker(node, 0), |(_, owner)| *owner);
    let holder = match by {
        By::Owner => owner,
        By::Another(other) => pair.able(other),
        By::Life(life) => {
            let other = i64::from(owner.incarnation.0) + i64::from(life);
            worker(owner.node.index, u32::try_from(other.max(0)).unwrap())
        }
    };
    let acks: Vec<Ack> = picked.iter().map(|(ack, _)| *ack).collect();
    match what {
        What::Ack => drop(pair.ack(holder, &acks)),
        What::Release => drop(pair.release(holder, &acks)),
        What::Fail => drop(acks.first().map(|ack| pair.fail(holder, *ack))),
    }
}

#[test]
fn every_history_keeps_every_sample_and_counts_none_twice() {
    let config = ProptestConfig {
        cases: 600,
        max_shrink_iters: 4_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut runner = TestRunner::new(config);
    let seen = RefCell::new(BTreeMap::new());
    let histories = (specs(), prop::collection::vec(happenings(), 0..160));
    let result = runner.run(&histories, |(spec, history)| {
        let mut pair = Pair::new(spec);
        run(&mut pair, &history);
        for (what, times) in pair.seen {
            *seen.borrow_mut().entry(what).or_insert(0) += times;
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    // Histories in which nothing happens prove nothing.
    let seen = seen.into_inner();
    for (what, least) in [
        ("granted", 5_000),
        ("granted again", 200),
        ("resumed", 500),
        ("wait", 500),
        ("woken", 500),
        ("at limit", 500),
        ("end of data", 100),
        ("stopped by quarantine", 20),
        ("refused fetch", 500),
        ("accepted", 3_000),
        ("stale", 500),
        ("refused ack", 500),
        ("completed", 1_000),
        ("released", 250),
        ("failed", 100),
        ("fenced", 500),
        ("restored", 50),
    ] {
        assert!(
            seen.get(what).is_some_and(|times| *times >= least),
            "too little happened: {what} in {seen:?}"
        );
    }
}
