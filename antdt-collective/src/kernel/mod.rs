//! The only hot loops: one slice folded into another.

pub mod scalar;

use crate::element::Element;
use crate::op::ReduceOp;

/// `into[i] = into[i] op incoming[i]`.
///
/// # Panics
/// If the slices differ in length.
pub fn reduce<E: Element>(op: ReduceOp, into: &mut [E], incoming: &[E]) {
    assert_eq!(into.len(), incoming.len(), "operands of a reduction differ in length");
    match op {
        ReduceOp::Sum => scalar::fold(into, incoming, E::sum),
        ReduceOp::Min => scalar::fold(into, incoming, E::least),
        ReduceOp::Max => scalar::fold(into, incoming, E::most),
        ReduceOp::Prod => scalar::fold(into, incoming, E::product),
    }
}

/// Elements copied at a time when received bytes are not aligned for their type. 4 KiB of `f64` stay in the first
/// level of the cache.
const UNALIGNED_BLOCK: usize = 512;

/// As [`reduce`], from bytes as they were received; any alignment.
///
/// # Panics
/// If `incoming` has not exactly the bytes of `into`'s elements.
pub fn reduce_bytes<E: Element>(op: ReduceOp, into: &mut [E], incoming: &[u8]) {
    assert_eq!(size_of_val(into), incoming.len(), "operands of a reduction differ in length");
    if let Ok(incoming) = bytemuck::try_cast_slice(incoming) {
        return reduce(op, into, incoming);
    }
    let mut block = [E::default(); UNALIGNED_BLOCK];
    let pieces = incoming.chunks(UNALIGNED_BLOCK * size_of::<E>());
    for (into, bytes) in into.chunks_mut(UNALIGNED_BLOCK).zip(pieces) {
        let aligned = &mut block[..into.len()];
        bytemuck::cast_slice_mut(aligned).copy_from_slice(bytes);
        reduce(op, into, aligned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_folds_element_by_element() {
        let expected = [
            (ReduceOp::Sum, [5, 7]),
            (ReduceOp::Min, [2, 3]),
            (ReduceOp::Max, [3, 4]),
            (ReduceOp::Prod, [6, 12]),
        ];
        for (op, expected) in expected {
            let mut into = [2_i32, 4];
            reduce(op, &mut into, &[3, 3]);
            assert_eq!(into, expected, "{op}");
        }
    }

    #[test]
    fn unaligned_bytes_reduce_like_aligned_ones() {
        let incoming: Vec<f64> = (0..1300).map(f64::from).collect();
        let mut shifted = vec![0_u8];
        shifted.extend_from_slice(bytemuck::cast_slice(&incoming));
        for start in 0..2 {
            // One of the two starts is not a multiple of 8 whatever the allocator did.
            let bytes = if start == 0 { bytemuck::cast_slice(&incoming) } else { &shifted[1..] };
            let mut into = vec![0.5; incoming.len()];
            reduce_bytes(ReduceOp::Sum, &mut into, bytes);
            assert!(into.iter().zip(&incoming).all(|(a, b)| *a == b + 0.5));
        }
    }

    #[test]
    fn half_types_add_in_single_precision() {
        use half::{bf16, f16};
        // 2048 + 1 is not an f16, but 2048 + 1.5 rounds up to 2050 when the sum is exact before rounding.
        let mut into = [f16::from_f32(2048.0)];
        reduce(ReduceOp::Sum, &mut into, &[f16::from_f32(1.5)]);
        assert_eq!(into[0].to_f32(), 2050.0);
        let mut into = [bf16::from_f32(256.0)];
        reduce(ReduceOp::Sum, &mut into, &[bf16::from_f32(1.5)]);
        assert_eq!(into[0].to_f32(), 258.0);
    }
}
