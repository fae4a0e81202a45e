//! I13: the assignment of ranks to members does not change the value.

use proptest::prelude::*;

use super::case::{cases, for_each, numbers};
use super::members::{Make, PATIENT, on_all};
use crate::schedule::Choice;

/// Checks invariant I13: integer operands that are permuted among the members reduce to the same result.
///
/// # Panics
/// If the invariant is broken.
pub fn i13_relabelling(make: &Make<'_>) {
    let shuffled = cases().prop_flat_map(|case| {
        let ranks: Vec<u32> = (0..case.world).collect();
        (Just(case.of_integers()), Just(ranks).prop_shuffle())
    });
    for_each(32, &shuffled, |(case, ranks)| {
        on_all(make(case.world).0, PATIENT, |me, communicator| {
            for choice in Choice::ALL {
                let mut data = numbers::<i32>(&case, me.0);
                communicator.all_reduce_by(choice, &mut data, case.op).expect("all members reduce");
                let mut moved = numbers::<i32>(&case, ranks[me.0 as usize]);
                communicator.all_reduce_by(choice, &mut moved, case.op).expect("all members reduce");
                assert_eq!(data, moved, "{choice}, {ranks:?}, {case:?}");
            }
        });
    });
}
