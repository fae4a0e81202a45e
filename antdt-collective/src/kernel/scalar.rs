//! Plain loops, written so that the compiler vectorises them for the target it builds for.

use crate::element::Element;

/// `into[i] = combine(into[i], incoming[i])` over the shorter of the two.
#[inline(always)]
pub fn fold<E: Element>(into: &mut [E], incoming: &[E], combine: impl Fn(E, E) -> E) {
    for (into, incoming) in into.iter_mut().zip(incoming) {
        *into = combine(*into, *incoming);
    }
}
