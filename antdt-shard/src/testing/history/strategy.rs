//! Random data sets and random histories.

use antdt_core::Seed;
use proptest::prelude::*;

use super::step::{Lease, Offset, Presented, Saying, Speaker, Step};
use crate::spec::{Assignment, Cut, DatasetSpec, Epochs, OnQuarantine, Shuffle};

fn offsets() -> impl Strategy<Value = Offset> {
    prop_oneof![
        4 => Just(Offset::All),
        4 => any::<u64>().prop_map(Offset::Part),
        1 => any::<u64>().prop_map(Offset::Wild),
    ]
}

/// Calls of workers.
fn calls() -> impl Strategy<Value = Step> {
    let node = 0..4_u32;
    let life = prop_oneof![20 => Just(0_i8), 1 => Just(-1), 1 => Just(1)];
    let back = prop_oneof![12 => Just(0_u8), 2 => Just(1), 1 => Just(2)];
    let generations_back = prop_oneof![20 => Just(0_u8), 1 => Just(1)];
    let forgetful = prop_oneof![6 => Just(false), 1 => Just(true)];
    let what = prop_oneof![8 => Just(Saying::Ack), 3 => Just(Saying::Release), 2 => Just(Saying::Fail)];
    let pick = || prop_oneof![8 => any::<u8>().prop_map(Lease::Live), 1 => any::<u16>().prop_map(Lease::Any)];
    let of = prop::collection::vec((pick(), offsets()), 1..3);
    let acks = prop::collection::vec((pick(), offsets()), 0..4);
    let by = prop_oneof![
        14 => Just(Speaker::Owner),
        1 => (0..4_u32).prop_map(Speaker::Another),
        1 => prop_oneof![Just(-1_i8), Just(1)].prop_map(Speaker::Life),
    ];
    let presented = prop_oneof![
        6 => (0..4_u8).prop_map(Presented::True),
        2 => (0..4_u8, offsets()).prop_map(|(which, far)| Presented::Off(which, far)),
        1 => (any::<u16>(), offsets()).prop_map(|(which, far)| Presented::Any(which, far)),
    ];
    let held = prop::collection::vec(presented, 0..4);
    prop_oneof![
        3 => (node.clone(), life.clone(), held)
            .prop_map(|(node, life, held)| Step::Register { node, life, held }),
        24 => (node.clone(), life.clone(), back.clone(), generations_back.clone(), forgetful, acks, 0..5_u32)
            .prop_map(|(node, life, back, generations_back, forgetful, acks, want)| {
                Step::Exchange { node, life, back, generations_back, forgetful, acks, want }
            }),
        4 => (node.clone(), life, back, generations_back).prop_map(
            |(node, life, back, generations_back)| Step::Fetch { node, life, back, generations_back }
        ),
        9 => (what, node, of, by).prop_map(|(what, node, of, by)| Step::Say { what, node, of, by }),
    ]
}

/// Everything that can happen.
pub(crate) fn steps() -> impl Strategy<Value = Step> {
    let life = prop_oneof![20 => Just(0_i8), 1 => Just(-1), 1 => Just(1)];
    let lost = prop_oneof![2 => Just(0_u8), 3 => 1..6_u8];
    let compacted = prop_oneof![2 => Just(None), 1 => any::<u16>().prop_map(Some)];
    let late = (1..6_u8, calls().prop_map(Box::new));
    prop_oneof![
        40 => calls(),
        2 => (0..8_u8).prop_map(|back| Step::Again { back }),
        1 => late.prop_map(|(by, step)| Step::Late { by, step }),
        2 => Just(Step::Obey),
        2 => (0..4_u32, life).prop_map(|(node, life)| Step::Lose { node, life }),
        1 => (1..5_u8).prop_map(|workers| Step::Resize { workers }),
        1 => (0..4_u64).prop_map(|until| Step::Freeze { until }),
        1 => (0..4_u64).prop_map(|now| Step::Tick { now }),
        1 => Just(Step::Thaw),
        1 => Just(Step::Keep),
        1 => prop_oneof![3 => Just(0_i8), 1 => Just(-1), 1 => Just(1)].prop_map(|off| Step::Cut { off }),
        1 => any::<u8>().prop_map(|which| Step::Restore { which }),
        1 => (lost, compacted).prop_map(|(lost, compacted)| Step::Restart { lost, compacted }),
    ]
}

/// Ends of shards of any lengths.
fn cuts() -> impl Strategy<Value = Cut> {
    let uneven = prop::collection::vec(1..10_u64, 1..8).prop_map(|lengths| {
        let ends = lengths.iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        Cut::At(ends.collect())
    });
    prop_oneof![2 => (1..12_u64).prop_map(Cut::Every), 2 => (1..3_u64).prop_map(Cut::Every), 1 => uneven]
}

/// Returns a proptest strategy for small data sets with every setting of a ledger.
pub fn specs() -> impl Strategy<Value = DatasetSpec> {
    let shuffle = prop_oneof![Just(Shuffle::None), Just(Shuffle::Shards), Just(Shuffle::ShardsAndSamples)];
    let on_quarantine = prop_oneof![
        1 => Just(OnQuarantine::FailJob),
        2 => (0..40_u64).prop_map(|max_samples| OnQuarantine::Continue { max_samples }),
    ];
    let assignment = prop_oneof![
        4 => Just(Assignment::Dynamic),
        1 => (1..5_u32).prop_map(|workers| Assignment::Static { workers }),
    ];
    let settings = (1..4_u32, shuffle, any::<u64>(), 0..3_u32, 1..4_u32, on_quarantine, 1..6_u32, assignment);
    (1..40_u64, cuts(), settings).prop_map(|(samples, cut, settings)| {
        let (epochs, shuffle, seed, epoch_overlap, faults, on_quarantine, leases, assignment) = settings;
        let num_samples = match &cut {
            Cut::Every(_) => samples,
            Cut::At(ends) => ends.last().copied().unwrap_or_default(),
        };
        DatasetSpec {
            cut,
            epochs: Epochs::Finite(epochs),
            shuffle,
            seed: Seed(seed),
            epoch_overlap,
            max_data_faults: faults,
            on_quarantine,
            max_leases_per_holder: leases,
            assignment,
            ..DatasetSpec::new("history", num_samples, 1)
        }
    })
}
