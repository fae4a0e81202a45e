//! The only hot loops: one slice folded into another.
//!
//! [`scalar`] says what is to come out; on x86-64 the processor is asked at run time whether it can do the same in wider
//! registers. Elsewhere the compiler's own vectors are used (on 64-bit Arm they are always there).

pub mod scalar;

#[cfg(target_arch = "x86_64")]
mod simd;

use crate::element::Element;
use crate::op::ReduceOp;

/// `into[i] = into[i] op incoming[i]`.
///
/// # Panics
/// If the slices differ in length.
pub fn reduce<E: Element>(op: ReduceOp, into: &mut [E], incoming: &[E]) {
    assert_eq!(into.len(), incoming.len(), "operands of a reduction differ in length");
    #[cfg(target_arch = "x86_64")]
    if simd::reduce(op, into, incoming) {
        return;
    }
    scalar::reduce(op, into, incoming);
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
    use std::fmt::Debug;

    use half::{bf16, f16};
    use proptest::prelude::*;

    use super::*;

    // What runs here, whatever it is, against the loops that define it. Aligned or not, any length.
    fn agrees<E: Element + Debug>(into: &[E], incoming: &[E]) {
        for op in ReduceOp::ALL {
            for skip in 0..into.len().min(2) {
                let (mut fast, mut plain) = (into[skip..].to_vec(), into[skip..].to_vec());
                reduce(op, &mut fast, &incoming[skip..]);
                scalar::reduce(op, &mut plain, &incoming[skip..]);
                let bytes = bytemuck::cast_slice::<E, u8>;
                assert_eq!(bytes(&fast), bytes(&plain), "{op} {} of {}", E::TYPE, into.len());
            }
        }
    }

    // Zeros, ones, subnormals and their largest, the smallest and largest normal numbers, infinities, quiet and
    // signalling NaNs, of both signs, with ties and neighbours of ties among the sums.
    const F16_SPECIAL: [u16; 18] = [
        0x0000, 0x0001, 0x0002, 0x03ff, 0x0400, 0x0401, 0x1000, 0x13ff, 0x1400, 0x3c00, 0x3c01, 0x6800,
        0x6801, 0x7bff, 0x7c00, 0x7c01, 0x7e00, 0x7fff,
    ];
    const BF16_SPECIAL: [u16; 18] = [
        0x0000, 0x0001, 0x0002, 0x007f, 0x0080, 0x0081, 0x3b00, 0x3b80, 0x3c00, 0x3f80, 0x3f81, 0x4380,
        0x4381, 0x7f7f, 0x7f80, 0x7f81, 0x7fc0, 0x7fff,
    ];

    #[test]
    fn every_half_value_meets_every_special_one_with_the_bits_of_the_plain_loop() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        for (f, b) in F16_SPECIAL.into_iter().zip(BF16_SPECIAL) {
            for sign in [0, 0x8000] {
                let (f, b) = (vec![f | sign; all.len()], vec![b | sign; all.len()]);
                for (left, right) in [(&all, &f), (&f, &all)] {
                    agrees::<f16>(bytemuck::cast_slice(left), bytemuck::cast_slice(right));
                }
                for (left, right) in [(&all, &b), (&b, &all)] {
                    agrees::<bf16>(bytemuck::cast_slice(left), bytemuck::cast_slice(right));
                }
            }
        }
    }

    #[test]
    fn half_sums_and_products_are_those_of_software_in_single_precision() {
        // By software that shares nothing with the processor's conversions.
        let soft = |wide: f32| if wide.is_nan() { f16::NAN } else { f16::from_f32_const(wide) };
        let left: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for special in F16_SPECIAL {
            let right = vec![f16::from_bits(special); left.len()];
            let wide = |i: usize| (left[i].to_f32_const(), right[i].to_f32_const());
            let (mut sums, mut products) = (left.clone(), left.clone());
            reduce(ReduceOp::Sum, &mut sums, &right);
            reduce(ReduceOp::Prod, &mut products, &right);
            for i in 0..left.len() {
                let (a, b) = wide(i);
                assert_eq!(sums[i].to_bits(), soft(a + b).to_bits(), "{a} + {b}");
                assert_eq!(products[i].to_bits(), soft(a * b).to_bits(), "{a} * {b}");
            }
        }
    }

    proptest! {
        #[test]
        fn all_types_agree_with_the_plain_loop_on_any_bits(
            pairs in prop::collection::vec((any::<u64>(), any::<u64>()), 0..70),
        ) {
            let (a, b): (Vec<u64>, Vec<u64>) = pairs.into_iter().unzip();
            agrees::<f16>(bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
            agrees::<bf16>(bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
            agrees::<i32>(bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
            agrees::<i64>(bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
            agrees::<u8>(bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
            // Which of two NaNs survives is not defined for these types; a sum of any other two is.
            let no_nan = |a: &[u64]| -> Vec<f64> {
                a.iter().map(|bits| f64::from_bits(*bits)).map(|x| if x.is_nan() { 1.0 } else { x }).collect()
            };
            agrees::<f64>(&no_nan(&a), &no_nan(&b));
            let narrow = |a: &[u64]| -> Vec<f32> { no_nan(a).into_iter().map(|x| x as f32).collect() };
            agrees::<f32>(&narrow(&a), &narrow(&b));
        }
    }

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
        // 2048 + 1 is not an f16, but 2048 + 1.5 rounds up to 2050 when the sum is exact before rounding.
        let mut into = [f16::from_f32(2048.0)];
        reduce(ReduceOp::Sum, &mut into, &[f16::from_f32(1.5)]);
        assert_eq!(into[0].to_f32(), 2050.0);
        let mut into = [bf16::from_f32(256.0)];
        reduce(ReduceOp::Sum, &mut into, &[bf16::from_f32(1.5)]);
        assert_eq!(into[0].to_f32(), 258.0);
    }
}
