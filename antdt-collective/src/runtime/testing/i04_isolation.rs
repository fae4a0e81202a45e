//! I4: a reduction touches the elements it was given and no others.

use super::case::{bits, bytes, cases, for_each, numbers, with_element};
use super::members::{Make, PATIENT, on_all_with};
use crate::element::Element;
use crate::runtime::{Communicator, CommunicatorConfig};
use crate::schedule::Choice;

/// Elements on both sides of the slice, at any alignment.
const GUARD: usize = 37;

/// Checks invariant I4: with every algorithm, the memory before and behind a reduced slice stays as it was.
/// So do the operands of a reduction whose result goes elsewhere, and that result equals those in place and
/// in a communicator's buffer.
///
/// # Panics
/// If the invariant is broken.
pub fn i04_isolation(make: &Make<'_>) {
    for_each(64, &cases(), |case| {
        let algorithm = Choice::ALL[case.seed as usize % Choice::ALL.len()];
        let config = CommunicatorConfig { timeout: PATIENT, algorithm, ..CommunicatorConfig::default() };
        with_element!(case.element, E => {
            on_all_with(make(case.world).0, config, |me, communicator| {
                for choice in Choice::ALL {
                    let mut buffer = guarded(&bits::<E>(&case, me.0));
                    let slice = &mut buffer[GUARD..GUARD + case.len];
                    communicator.all_reduce_by(choice, slice, case.op).expect("all members reduce");
                    assert!(is_guarded(&buffer, case.len), "{choice}, rank {me}: wrote beyond the slice in {case:?}");
                }
                let operand = numbers::<E>(&case, me.0);
                let (from, mut into) = (guarded(&operand), guarded(&vec![E::default(); case.len]));
                let slice = &mut into[GUARD..GUARD + case.len];
                let kept = &from[GUARD..GUARD + case.len];
                communicator.all_reduce_into(kept, slice, case.op).expect("all members reduce");
                assert!(bytes(kept) == bytes(&operand), "{algorithm}, rank {me}: the operand was changed in {case:?}");
                for buffer in [&from, &into] {
                    assert!(is_guarded(buffer, case.len), "{algorithm}, rank {me}: wrote beyond in {case:?}");
                }
                let result = &into[GUARD..GUARD + case.len];
                let mut in_place = operand.clone();
                communicator.all_reduce(&mut in_place, case.op).expect("all members reduce");
                assert!(bytes(&in_place) == bytes(result), "{algorithm}, rank {me}: other bits in {case:?}");
                let mut buffer = communicator.buffer::<E>(case.len).expect("there is memory");
                buffer.copy_from_slice(&operand);
                communicator.all_reduce_buffer(&mut buffer, case.op).expect("all members reduce");
                assert!(bytes(&buffer) == bytes(result), "{algorithm}, rank {me}: other bits in {case:?}");
            });
        });
    });
}

fn guarded<E: Element>(data: &[E]) -> Vec<E> {
    let mut buffer = vec![E::default(); data.len() + 2 * GUARD];
    bytemuck::cast_slice_mut::<E, u8>(&mut buffer).fill(0xa5);
    buffer[GUARD..GUARD + data.len()].copy_from_slice(data);
    buffer
}

fn is_guarded<E: Element>(buffer: &[E], len: usize) -> bool {
    let untouched = |side: &[E]| bytes(side).iter().all(|byte| *byte == 0xa5);
    untouched(&buffer[..GUARD]) && untouched(&buffer[GUARD + len..])
}
