//! The reference loops, written so that the compiler vectorises them for its target. They run where there is
//! nothing better.
//!
//! They count by hand, and know the operation by a constant: an adapter of iterators, or a closure that is handed on, is
//! inlined only where its code happens to stand in the same unit of code generation. Without optimisation at link time that
//! is chance, and a call for each element takes more than twice as long.

use crate::element::Element;
use crate::op::ReduceOp;

/// [`ReduceOp::Sum`], as a constant; [`ReduceOp::Mean`] adds, too.
pub const SUM: u8 = ReduceOp::Sum as u8;
/// [`ReduceOp::Min`], as a constant.
pub const MIN: u8 = ReduceOp::Min as u8;
/// [`ReduceOp::Max`], as a constant.
pub const MAX: u8 = ReduceOp::Max as u8;
/// [`ReduceOp::Prod`], as a constant.
pub const PROD: u8 = ReduceOp::Prod as u8;

/// Computes `into[i] = into[i] op incoming[i]`, up to the length of the shorter slice.
#[inline(always)]
pub fn reduce<E: Element>(op: ReduceOp, into: &mut [E], incoming: &[E]) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => fold::<E, SUM>(into, incoming),
        ReduceOp::Min => fold::<E, MIN>(into, incoming),
        ReduceOp::Max => fold::<E, MAX>(into, incoming),
        ReduceOp::Prod => fold::<E, PROD>(into, incoming),
    }
}

/// Computes `into[i] = left[i] op right[i]`, up to the length of the shortest slice.
#[inline(always)]
pub fn reduce_into<E: Element>(op: ReduceOp, into: &mut [E], left: &[E], right: &[E]) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => combine::<E, SUM>(into, left, right),
        ReduceOp::Min => combine::<E, MIN>(into, left, right),
        ReduceOp::Max => combine::<E, MAX>(into, left, right),
        ReduceOp::Prod => combine::<E, PROD>(into, left, right),
    }
}

/// Returns `left[i] op right[i]` of `N` elements.
#[inline(always)]
pub fn line<E: Element, const OP: u8, const N: usize>(left: &[E; N], right: &[E; N]) -> [E; N] {
    let mut line = *left;
    let mut at = 0;
    while at < N {
        line[at] = apply::<E, OP>(left[at], right[at]);
        at += 1;
    }
    line
}

#[inline(always)]
fn fold<E: Element, const OP: u8>(into: &mut [E], incoming: &[E]) {
    let len = into.len().min(incoming.len());
    let (into, incoming) = (&mut into[..len], &incoming[..len]);
    let mut at = 0;
    while at < len {
        into[at] = apply::<E, OP>(into[at], incoming[at]);
        at += 1;
    }
}

#[inline(always)]
fn combine<E: Element, const OP: u8>(into: &mut [E], left: &[E], right: &[E]) {
    let len = into.len().min(left.len()).min(right.len());
    let (into, left, right) = (&mut into[..len], &left[..len], &right[..len]);
    let mut at = 0;
    while at < len {
        into[at] = apply::<E, OP>(left[at], right[at]);
        at += 1;
    }
}

#[inline(always)]
fn apply<E: Element, const OP: u8>(left: E, right: E) -> E {
    match OP {
        SUM => left.sum(right),
        MIN => left.least(right),
        MAX => left.most(right),
        _ => left.product(right),
    }
}
