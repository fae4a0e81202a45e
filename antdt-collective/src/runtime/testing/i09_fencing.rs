//! I9: messages of earlier calls and rounds change no result, however often they come.

use super::Either;
use super::barrier::Barrier;
use super::case::{Case, Network, by_schedule, bytes, cases, for_each, numbers, with_element};
use super::members::{Make, PATIENT, at_once};
use super::stale::StaleTransport;
use crate::runtime::{CommunicatorConfig, ScheduledCommunicator};
use crate::schedule::Choice;

/// Checks invariant I9: a member that sends, in every round, its last messages once more, be they of this
/// call or of the call before, changes no result. (Messages of an earlier membership cannot be sent through a
/// [`Transport`](crate::runtime::transport::Transport); its frames are tested for them.)
///
/// # Panics
/// If the invariant is broken.
pub fn i09_fencing(make: &Make<'_>) {
    for_each(32, &cases(), |case| {
        let case = Case { world: case.world.max(2), ..case };
        let odd = case.seed as usize % case.world as usize;
        with_element!(case.element, E => {
            let transports = make(case.world).0;
            let network = Network::of(&transports[0]);
            let expected = Choice::ALL.map(|choice| by_schedule::<E>(choice, &network, &case, numbers));
            let done = Barrier::of(case.world as usize);
            at_once((0_u32..).zip(transports), |(rank, transport)| {
                let done = done.place();
                let transport = if rank as usize == odd {
                    Either::Odd(StaleTransport::new(transport))
                } else {
                    Either::Usual(transport)
                };
                let config = CommunicatorConfig { timeout: PATIENT, ..CommunicatorConfig::default() };
                let mut communicator = ScheduledCommunicator::new(transport, config);
                for (choice, expected) in Choice::ALL.into_iter().zip(&expected) {
                    let mut data = numbers::<E>(&case, rank);
                    communicator.all_reduce_by(choice, &mut data, case.op).expect("all members reduce");
                    assert!(bytes(&data) == bytes(expected), "{choice}, rank {rank}, odd {odd}, {case:?}");
                }
                // A member that leaves early cannot be sent anything any more.
                done.wait();
            });
        });
    });
}
