//! The inner loops over elements: a slice reduced into another, two into a third, and copies.
//!
//! [`scalar`] defines the results; on x86-64 the processor is asked at run time whether it can do the same in
//! wider registers. Elsewhere the compiler's own vectors are used (on 64-bit Arm they are always there).

pub mod scalar;

#[cfg(target_arch = "x86_64")]
mod simd;

use crate::element::Element;
use crate::op::ReduceOp;

/// Computes `into[i] = into[i] op incoming[i]`. A mean only adds here; [`divide`] divides the total at the
/// end.
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

/// Computes `values[i] = values[i] / count`, rounded once. Integers are left unchanged.
pub fn divide<E: Element>(values: &mut [E], count: u32) {
    for value in values {
        *value = value.divided(count);
    }
}

/// Elements copied at a time when received bytes are not aligned for their type. 4 KiB of `f64` stay in the first
/// level of the cache.
const UNALIGNED_BLOCK: usize = 512;

/// Reduces as [`reduce`] does, from bytes as they were received, of any alignment.
///
/// # Panics
/// If `incoming` has not exactly the bytes of `into`'s elements.
pub fn reduce_bytes<E: Element>(op: ReduceOp, into: &mut [E], incoming: &[u8]) {
    assert_eq!(size_of_val(into), incoming.len(), "operands of a reduction differ in length");
    if let Ok(incoming) = bytemuck::try_cast_slice(incoming) {
        return reduce(op, into, incoming);
    }
    align_blocks(into, incoming, |into, incoming| reduce(op, into, incoming));
}

/// Computes `into[i] = incoming[i] op into[i]`: [`reduce`] with the operands in the other order. The order
/// shows only in which of two NaNs, or of two zeros, is the result.
///
/// # Panics
/// If the slices differ in length.
pub fn reduce_left<E: Element>(op: ReduceOp, into: &mut [E], incoming: &[E]) {
    assert_eq!(into.len(), incoming.len(), "operands of a reduction differ in length");
    let mut block = [0_u64; STREAM_BLOCK / 8];
    let block: &mut [E] = bytemuck::cast_slice_mut(&mut block);
    let len = block.len();
    for (into, incoming) in into.chunks_mut(len).zip(incoming.chunks(len)) {
        let own = &mut block[..into.len()];
        own.copy_from_slice(into);
        combine(op, into, incoming, own);
    }
}

/// Reduces as [`reduce_left`] does, from bytes as they were received, of any alignment.
///
/// # Panics
/// If `incoming` has not exactly the bytes of `into`'s elements.
pub fn reduce_bytes_left<E: Element>(op: ReduceOp, into: &mut [E], incoming: &[u8]) {
    assert_eq!(size_of_val(into), incoming.len(), "operands of a reduction differ in length");
    if let Ok(incoming) = bytemuck::try_cast_slice(incoming) {
        return reduce_left(op, into, incoming);
    }
    align_blocks(into, incoming, |into, incoming| reduce_left(op, into, incoming));
}

fn align_blocks<E: Element>(into: &mut [E], incoming: &[u8], fold: impl Fn(&mut [E], &[E])) {
    let mut block = [E::default(); UNALIGNED_BLOCK];
    let pieces = incoming.chunks(UNALIGNED_BLOCK * size_of::<E>());
    for (into, bytes) in into.chunks_mut(UNALIGNED_BLOCK).zip(pieces) {
        let aligned = &mut block[..into.len()];
        bytemuck::cast_slice_mut(aligned).copy_from_slice(bytes);
        fold(into, aligned);
    }
}

/// From this length on, what is written goes past the caches: it would push out more than it leaves behind, and lines
/// that are written whole need not be read first. Measured with two ranks on one 32 MiB cache.
const STREAM_MIN_BYTES: usize = 4 << 20;

/// Bytes combined in the first level of the cache before they are streamed.
const STREAM_BLOCK: usize = 4 << 10;

/// Computes `into[i] = left[i] op right[i]`.
///
/// # Panics
/// If the slices differ in length.
pub fn reduce_into<E: Element>(op: ReduceOp, into: &mut [E], left: &[E], right: &[E]) {
    assert!(
        into.len() == left.len() && into.len() == right.len(),
        "operands of a reduction differ in length"
    );
    if size_of_val(into) >= STREAM_MIN_BYTES {
        stream_combined(op, into, left, right);
    } else {
        combine(op, into, left, right);
    }
}

/// Computes `into[i] = a[i] op b[i] op …` over all operands, from the first on, in one pass. The result has
/// the same bits as [`reduce_into`] followed by [`reduce`].
///
/// # Panics
/// If there are no operands, or an operand and `into` differ in length.
pub fn reduce_all_into<E: Element>(op: ReduceOp, into: &mut [E], operands: &[&[E]]) {
    assert!(
        operands.iter().all(|operand| operand.len() == into.len()),
        "operands of a reduction differ in length"
    );
    match operands {
        [] => panic!("a reduction has operands"),
        [only] => into.copy_from_slice(only),
        _ if size_of_val(into) >= STREAM_MIN_BYTES => stream_all_into(op, &mut [into], operands),
        _ => to_the_last(op, operands, |start, left, right| {
            combine(op, &mut into[start..start + left.len()], left, right);
        }),
    }
}

/// Computes as [`reduce_all_into`] and stores the result in each of `places` by stores that bypass the
/// caches.
///
/// # Panics
/// If there are no places or fewer than two operands, or if any two of them differ in length.
pub fn stream_all_into<E: Element>(op: ReduceOp, places: &mut [&mut [E]], operands: &[&[E]]) {
    let len = places.first().map_or(0, |place| place.len());
    assert!(
        places.iter().all(|place| place.len() == len) && operands.iter().all(|operand| operand.len() == len),
        "operands of a reduction differ in length"
    );
    assert!(operands.len() > 1, "a reduction has operands");
    to_the_last(op, operands, |start, left, right| stream_to_each(op, places, start, left, right));
}

// Folds two operands or more, but for the last one: `last` gets what came of the others, block by block in the first level of
// the cache, with where the block begins, and the last operand.
fn to_the_last<E: Element>(op: ReduceOp, operands: &[&[E]], mut last: impl FnMut(usize, &[E], &[E])) {
    let (left, middle, right) = match operands {
        [] | [_] => return,
        [left, right] => return last(0, left, right),
        [left, second, middle @ .., right] => ((left, second), middle, right),
    };
    let mut block = [0_u64; STREAM_BLOCK / 8];
    let block: &mut [E] = bytemuck::cast_slice_mut(&mut block);
    let most = block.len();
    for start in (0..right.len()).step_by(most) {
        let range = start..right.len().min(start + most);
        let block = &mut block[..range.len()];
        combine(op, block, &left.0[range.clone()], &left.1[range.clone()]);
        for operand in middle {
            reduce(op, block, &operand[range.clone()]);
        }
        last(start, block, &right[range]);
    }
}

// `place[start + i] = left[i] op right[i]` for each place, past the caches; two places at a time, for a processor puts together
// only so many lines at once.
fn stream_to_each<E: Element>(op: ReduceOp, places: &mut [&mut [E]], start: usize, left: &[E], right: &[E]) {
    let range = start..start + left.len();
    for pair in places.chunks_mut(2) {
        #[cfg(target_arch = "x86_64")]
        if let [first, second] = pair
            && simd::stream_into(op, [&mut first[range.clone()], &mut second[range.clone()]], left, right)
        {
            continue;
        }
        for place in pair {
            stream_combined(op, &mut place[range.clone()], left, right);
        }
    }
    #[cfg(target_arch = "x86_64")]
    simd::fence();
}

// `into[i] = left[i] op right[i]`, past the caches.
fn stream_combined<E: Element>(op: ReduceOp, into: &mut [E], left: &[E], right: &[E]) {
    #[cfg(target_arch = "x86_64")]
    if simd::stream_into(op, [&mut *into], left, right) {
        simd::fence();
        return;
    }
    let mut block = [0_u64; STREAM_BLOCK / 8];
    let block: &mut [E] = bytemuck::cast_slice_mut(&mut block);
    let len = block.len();
    for ((into, left), right) in into.chunks_mut(len).zip(left.chunks(len)).zip(right.chunks(len)) {
        let block = &mut block[..into.len()];
        combine(op, block, left, right);
        stream(bytemuck::cast_slice_mut(into), bytemuck::cast_slice(block));
    }
}

/// Reduces as [`reduce_into`] does, with the right operand as bytes as they were received, of any alignment.
///
/// # Panics
/// If the operands have not exactly the bytes of `into`'s elements.
pub fn reduce_bytes_into<E: Element>(op: ReduceOp, into: &mut [E], left: &[E], right: &[u8]) {
    assert_eq!(size_of_val(into), right.len(), "operands of a reduction differ in length");
    if let Ok(right) = bytemuck::try_cast_slice(right) {
        return reduce_into(op, into, left, right);
    }
    into.copy_from_slice(left);
    reduce_bytes(op, into, right);
}

/// From this length on a copy goes past the caches. Twice as long as with a fold: half as much passes through them, and
/// a copy of 4 MiB that stays in them saved a tenth of the time of an all-reduce over TCP.
const STREAM_COPY_MIN_BYTES: usize = 8 << 20;

/// Copies `from` into `into`; for long slices by stores that bypass the caches.
///
/// # Panics
/// If the slices differ in length.
pub fn copy(into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len(), "both ends of a copy differ in length");
    if into.len() >= STREAM_COPY_MIN_BYTES {
        stream(into, from);
    } else {
        into.copy_from_slice(from);
    }
}

fn combine<E: Element>(op: ReduceOp, into: &mut [E], left: &[E], right: &[E]) {
    #[cfg(target_arch = "x86_64")]
    if simd::reduce_into(op, into, left, right) {
        return;
    }
    into.copy_from_slice(left);
    reduce(op, into, right);
}

/// Copies `from` into `into`, by stores that bypass the caches: for data that another core reads next.
///
/// # Panics
/// If the slices differ in length.
pub fn stream(into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len(), "both ends of a copy differ in length");
    #[cfg(target_arch = "x86_64")]
    if simd::stream(into, from) {
        return;
    }
    into.copy_from_slice(from);
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
                let mut from_left = incoming[skip..].to_vec();
                reduce_left(op, &mut from_left, &into[skip..]);
                assert_eq!(
                    bytes(&from_left),
                    bytes(&plain),
                    "{op} {} of {} from the left",
                    E::TYPE,
                    into.len()
                );
                let mut apart = vec![E::default(); plain.len()];
                reduce_into(op, &mut apart, &into[skip..], &incoming[skip..]);
                assert_eq!(bytes(&apart), bytes(&plain), "{op} {} of {} apart", E::TYPE, into.len());
                // Three places, of which two begin alike, and the third one does not.
                let mut all = [(); 3].map(|()| vec![E::default(); plain.len() + 1]);
                let [a, b, c] = all.each_mut();
                let len = plain.len();
                stream_all_into(
                    op,
                    &mut [&mut a[..len], &mut b[..len], &mut c[1..]],
                    &[&into[skip..], &incoming[skip..]],
                );
                for (place, at) in all.iter().zip([0, 0, 1]) {
                    let place = bytes(&place[at..][..len]);
                    assert_eq!(place, bytes(&plain), "{op} {} of {} to each", E::TYPE, into.len());
                }
                scalar::reduce_into(op, &mut apart, &into[skip..], &incoming[skip..]);
                assert_eq!(bytes(&apart), bytes(&plain), "{op} {} of {} apart, plain", E::TYPE, into.len());
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
            (ReduceOp::Mean, [5, 7]),
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
            reduce_bytes_left(ReduceOp::Sum, &mut into, bytes);
            assert!(into.iter().zip(&incoming).all(|(a, b)| *a == b + b + 0.5));
        }
    }

    #[test]
    fn long_operands_of_every_type_agree_with_the_plain_loop() {
        let bits = |seed: u64| -> Vec<u64> {
            let next = |state: &mut u64| {
                *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                // Exponents of all floats in the middle: no NaN, whose choice is not defined.
                Some((*state >> 1) & 0xbfff_bfff_bfff_bfff)
            };
            std::iter::repeat_n((), STREAM_MIN_BYTES / 8 + 9).scan(seed, |state, ()| next(state)).collect()
        };
        let (a, b) = (bits(1), bits(2));
        agrees::<f16>(bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
        agrees::<bf16>(bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
        agrees::<i32>(bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
        agrees::<i64>(bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
        agrees::<u8>(bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
        agrees::<f64>(bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
        agrees::<f32>(bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
    }

    #[test]
    fn long_operands_come_out_as_short_ones_at_any_alignment() {
        let len = STREAM_COPY_MIN_BYTES / 4 + 1003;
        let left: Vec<f32> = (0..len).map(|i| i as f32).collect();
        let right: Vec<f32> = (0..len).map(|i| (i % 1000) as f32).collect();
        let mut shifted = vec![0_u8];
        shifted.extend_from_slice(bytemuck::cast_slice(&right));
        for skip in [0, 1, 7] {
            let mut plain = vec![0.0; len];
            scalar::reduce_into(ReduceOp::Sum, &mut plain[skip..], &left[skip..], &right[skip..]);
            for shifted_by in [0, 1] {
                let bytes: &[u8] = if shifted_by == 0 { bytemuck::cast_slice(&right) } else { &shifted[1..] };
                let mut into = vec![0.0; len];
                reduce_bytes_into(ReduceOp::Sum, &mut into[skip..], &left[skip..], &bytes[4 * skip..]);
                assert!(into == plain, "skip {skip}, shifted by {shifted_by}");
            }
            let from: &[u8] = bytemuck::cast_slice(&left);
            let mut copied = vec![0_u8; from.len()];
            copy(&mut copied[skip..], &from[skip..]);
            assert!(copied[skip..] == from[skip..] && copied[..skip].iter().all(|byte| *byte == 0));
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
