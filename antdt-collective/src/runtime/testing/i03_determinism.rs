//! I3: the same members, algorithm and operands give the same bits, in every run and over every transport.

use super::case::{Case, Network, Number, by_schedule, bytes, cases, for_each, numbers, with_element};
use super::members::{Make, PATIENT, on_all};
use crate::element::ElementType;
use crate::op::ReduceOp;
use crate::schedule::Choice;

/// Checks invariant I3: every algorithm gives the very bits that its schedules give in memory, twice in a
/// row. Since those depend on no transport, all transports agree.
///
/// # Panics
/// If the invariant is broken.
pub fn i03_determinism(make: &Make<'_>) {
    for_each(64, &cases(), |case| with_element!(case.element, E => determined::<E>(make, &case)));
    // Messages of many pieces, the last of which is shorter.
    for world in [2, 3, 5] {
        let (element, op) = (ElementType::F32, ReduceOp::Sum);
        determined::<f32>(make, &Case { world, len: 300_001, element, op, seed: 3 });
    }
}

fn determined<E: Number>(make: &Make<'_>, case: &Case) {
    let transports = make(case.world).0;
    let network = Network::of(&transports[0]);
    let expected = Choice::ALL.map(|choice| by_schedule::<E>(choice, &network, case, numbers));
    on_all(transports, PATIENT, |me, communicator| {
        for (choice, expected) in Choice::ALL.into_iter().zip(&expected) {
            for _ in 0..2 {
                let mut data = numbers::<E>(case, me.0);
                communicator.all_reduce_by(choice, &mut data, case.op).expect("all members reduce");
                assert!(bytes(&data) == bytes(expected), "{choice}, rank {me}, {case:?}");
            }
        }
    });
}
