//! I1: after an all-reduce all members hold the same bytes, whatever the type, the length and the operands.

use super::case::{bits, bytes, cases, for_each, with_element};
use super::members::{Make, PATIENT, on_all};
use crate::schedule::Choice;

/// Checks invariant I1: every algorithm leaves the same bytes on all members, also for infinities, zeros of
/// both signs and NaNs.
///
/// # Panics
/// If the invariant is broken.
pub fn i01_identity(make: &Make<'_>) {
    for_each(64, &cases(), |case| {
        with_element!(case.element, E => {
            let results = on_all(make(case.world).0, PATIENT, |me, communicator| {
                Choice::ALL.map(|choice| {
                    let mut data = bits::<E>(&case, me.0);
                    communicator.all_reduce_by(choice, &mut data, case.op).expect("all members reduce");
                    data
                })
            });
            for (rank, of_rank) in results.iter().enumerate() {
                for ((choice, mine), first) in Choice::ALL.into_iter().zip(of_rank).zip(&results[0]) {
                    assert!(bytes(mine) == bytes(first), "{choice}: rank {rank} differs from rank 0 in {case:?}");
                }
            }
        });
    });
}
