//! I14: a group of one keeps its data, and in a group of two every algorithm gives the bits of the ring.

use super::case::{Case, bits, bytes, cases, for_each, with_element};
use super::members::{Make, PATIENT, on_all};
use crate::runtime::Communicator;
use crate::schedule::Choice;

/// Checks invariant I14: in a group of one every call returns what it was given (I5 checks that it sends
/// nothing). In a group of two every algorithm gives the bits of the ring, because two operands have only one
/// sum.
///
/// # Panics
/// If the invariant is broken.
pub fn i14_few(make: &Make<'_>) {
    for_each(32, &cases(), |case| {
        with_element!(case.element, E => {
            let alone = Case { world: 1, ..case };
            on_all(make(1).0, PATIENT, |_, communicator| {
                for choice in Choice::ALL {
                    let mut data = bits::<E>(&alone, 0);
                    communicator.all_reduce_by(choice, &mut data, case.op).expect("there is nobody to wait for");
                    assert!(bytes(&data) == bytes(&bits::<E>(&alone, 0)), "{choice} changed {case:?}");
                }
                assert_eq!(communicator.all_gather_v(&[7; 3]), Ok(vec![vec![7; 3]]));
                communicator.barrier().expect("there is nobody to wait for");
            });
            let two = Case { world: 2, ..case };
            on_all(make(2).0, PATIENT, |me, communicator| {
                let [ring, others @ ..] = [
                    Choice::Ring,
                    Choice::Direct,
                    Choice::HalvingDoubling,
                    Choice::RecursiveDoubling,
                    Choice::DoubleTree,
                    Choice::Gather,
                ].map(|choice| {
                    let mut data = super::case::numbers::<E>(&two, me.0);
                    communicator.all_reduce_by(choice, &mut data, case.op).expect("all members reduce");
                    data
                });
                assert!(others.iter().all(|other| bytes(other) == bytes(&ring)), "{two:?}");
            });
        });
    });
}
