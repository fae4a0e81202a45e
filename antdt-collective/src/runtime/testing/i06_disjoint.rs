//! I6: groups that share no member do not notice each other.

use super::case::{Case, Network, by_schedule, bytes, cases, for_each, numbers};
use super::members::{AnyTransport, Make, PATIENT, at_once, on_all};
use crate::schedule::Choice;

/// Checks invariant I6: two groups that reduce at the same time, call after call, get the same results as
/// each group alone.
///
/// # Panics
/// If the invariant is broken.
pub fn i06_disjoint(make: &Make<'_>) {
    for_each(24, &(cases(), cases()), |(one, other)| {
        let groups = [one, other].map(|case| (case, make(case.world).0));
        at_once(groups, |(case, transports)| calls(&case, transports));
    });
}

fn calls(case: &Case, transports: Vec<AnyTransport>) {
    let network = Network::of(&transports[0]);
    let expected = Choice::ALL.map(|choice| by_schedule::<f32>(choice, &network, case, numbers));
    on_all(transports, PATIENT, |me, communicator| {
        for (choice, expected) in Choice::ALL.into_iter().zip(&expected) {
            let mut data = numbers::<f32>(case, me.0);
            communicator.all_reduce_by(choice, &mut data, case.op).expect("all members reduce");
            assert!(bytes(&data) == bytes(expected), "{choice}, rank {me}, {case:?}");
        }
    });
}
