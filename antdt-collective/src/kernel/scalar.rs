//! The reference loops, written so that the compiler vectorises them for its target. They run where there is
//! nothing better.

use crate::element::Element;
use crate::op::ReduceOp;

/// Computes `into[i] = into[i] op incoming[i]`, up to the length of the shorter slice.
#[inline(always)]
pub fn reduce<E: Element>(op: ReduceOp, into: &mut [E], incoming: &[E]) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => fold(into, incoming, E::sum),
        ReduceOp::Min => fold(into, incoming, E::least),
        ReduceOp::Max => fold(into, incoming, E::most),
        ReduceOp::Prod => fold(into, incoming, E::product),
    }
}

/// Computes `into[i] = left[i] op right[i]`, up to the length of the shortest slice.
#[inline(always)]
pub fn reduce_into<E: Element>(op: ReduceOp, into: &mut [E], left: &[E], right: &[E]) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => combine(into, left, right, E::sum),
        ReduceOp::Min => combine(into, left, right, E::least),
        ReduceOp::Max => combine(into, left, right, E::most),
        ReduceOp::Prod => combine(into, left, right, E::product),
    }
}

#[inline(always)]
fn fold<E: Element>(into: &mut [E], incoming: &[E], combine: impl Fn(E, E) -> E) {
    for (into, incoming) in into.iter_mut().zip(incoming) {
        *into = combine(*into, *incoming);
    }
}

#[inline(always)]
fn combine<E: Element>(into: &mut [E], left: &[E], right: &[E], combine: impl Fn(E, E) -> E) {
    for ((into, left), right) in into.iter_mut().zip(left).zip(right) {
        *into = combine(*left, *right);
    }
}
