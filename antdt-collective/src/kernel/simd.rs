//! The reference loops for processors with AVX2 or AVX-512, which are detected at run time.
//!
//! All types but the half ones are the loops of [`scalar`], built once more for wider registers: no operation is
//! reordered, so the results have the same bits. `f16` is converted by the processor, eight or sixteen at a time, and of
//! `bf16` the even and the odd elements of a register are widened where they lie; the compiler does not find either by
//! itself. AVX-512 serves the half types, and stores past the caches, of which each is a whole line then; for the other
//! types AVX2 waits for memory already.
#![allow(
    unsafe_code,
    reason = "calls of functions for processors that have them; unaligned loads and stores, stores past the caches"
)]

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{
    __m256i, __m512, __m512i, __mmask16, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T0,
    _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_storeu_si128, _mm256_add_ps, _mm256_blendv_ps,
    _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_si256, _mm256_max_ps, _mm256_min_ps,
    _mm256_mul_ps, _mm256_set1_ps, _mm256_storeu_si256, _mm256_stream_si256, _mm512_add_epi32, _mm512_add_ps,
    _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtph_ps,
    _mm512_cvtps_ph, _mm512_loadu_si512, _mm512_mask_blend_epi16, _mm512_mask_mov_epi32, _mm512_mask_mov_ps,
    _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_storeu_si512, _mm512_stream_si512,
};

use half::{bf16, f16};

use super::scalar::{self, MAX, MIN, PROD, SUM};
use crate::element::{Element, ElementType};
use crate::op::ReduceOp;

/// `into[i] = into[i] op incoming[i]` over the shorter of the two; `false`, and nothing done, without AVX2.
pub(super) fn reduce<E: Element>(op: ReduceOp, into: &mut [E], incoming: &[E]) -> bool {
    if !is_x86_feature_detected!("avx2") {
        return false;
    }
    macro_rules! by_op {
        ($fold:ident) => {{
            let (into, incoming) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(incoming));
            match op {
                ReduceOp::Sum | ReduceOp::Mean => $fold::<SUM>(into, incoming),
                ReduceOp::Min => $fold::<MIN>(into, incoming),
                ReduceOp::Max => $fold::<MAX>(into, incoming),
                ReduceOp::Prod => $fold::<PROD>(into, incoming),
            }
        }};
    }
    if E::TYPE == ElementType::F16 && has_avx512() {
        // SAFETY: the processor has these parts of AVX-512, as was just found out.
        unsafe { by_op!(reduce_f16_widest) }
    } else if E::TYPE == ElementType::F16 && is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has AVX2 and F16C, as was just found out.
        unsafe { by_op!(reduce_f16) }
    } else if E::TYPE == ElementType::Bf16 && has_avx512() {
        // SAFETY: the processor has these parts of AVX-512, as was just found out.
        unsafe { by_op!(reduce_bf16_widest) }
    } else {
        // SAFETY: the processor has AVX2, as was just found out.
        unsafe { reduce_wide(op, into, incoming) }
    }
    true
}

/// `into[i] = left[i] op right[i]` over the shortest of the three; `false`, and nothing done, without AVX2 or for `f16`.
pub(super) fn reduce_into<E: Element>(op: ReduceOp, into: &mut [E], left: &[E], right: &[E]) -> bool {
    if E::TYPE == ElementType::F16 || !is_x86_feature_detected!("avx2") {
        return false;
    }
    if E::TYPE == ElementType::Bf16 && has_avx512() {
        // SAFETY: the processor has these parts of AVX-512, as was just found out.
        unsafe { reduce_into_widest(op, into, left, right) }
    } else {
        // SAFETY: the processor has AVX2, as was just found out.
        unsafe { reduce_into_wide(op, into, left, right) }
    }
    true
}

/// As [`reduce_into`] into each of `K` places, and what comes out goes past the caches: it is there after a
/// [`fence`]. `false`, and nothing done, for the half types too, or if the places begin at different bytes of a line.
pub(super) fn stream_into<E: Element, const K: usize>(
    op: ReduceOp,
    into: [&mut [E]; K],
    left: &[E],
    right: &[E],
) -> bool {
    // Constants, so that loops are built only for the types that they are for.
    if const { matches!(E::TYPE, ElementType::F16 | ElementType::Bf16) } {
        return false;
    }
    let first = into[0].as_ptr() as usize;
    let apart = into.iter().any(|place| !(place.as_ptr() as usize).abs_diff(first).is_multiple_of(LINE));
    if apart || !is_x86_feature_detected!("avx2") {
        return false;
    }
    macro_rules! lines {
        ($lines:ident) => {
            if const { size_of::<E>() == 8 } {
                $lines::<E, { LINE / 8 }, K>(op, into, left, right)
            } else if const { size_of::<E>() == 4 } {
                $lines::<E, { LINE / 4 }, K>(op, into, left, right)
            } else {
                $lines::<E, { LINE / size_of::<u8>() }, K>(op, into, left, right)
            }
        };
    }
    if has_avx512() {
        // SAFETY: the processor has these parts of AVX-512, as was just found out.
        unsafe { lines!(stream_lines_widest) }
    } else {
        // SAFETY: the processor has AVX2, as was just found out.
        unsafe { lines!(stream_lines_wide) }
    }
    true
}

/// Stores past the caches are ordered with no other: a later release covers those before this.
pub(super) fn fence() {
    // SAFETY: every x86-64 processor has SSE.
    unsafe { _mm_sfence() }
}

/// Copies past the caches; `false`, and nothing done, without AVX2.
pub(super) fn stream(into: &mut [u8], from: &[u8]) -> bool {
    if !is_x86_feature_detected!("avx2") {
        return false;
    }
    // SAFETY: the processor has AVX2, as was just found out.
    unsafe { stream_wide(into, from) }
    true
}

fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[target_feature(enable = "avx2")]
fn reduce_wide<E: Element>(op: ReduceOp, into: &mut [E], incoming: &[E]) {
    scalar::reduce(op, into, incoming);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn reduce_into_widest<E: Element>(op: ReduceOp, into: &mut [E], left: &[E], right: &[E]) {
    scalar::reduce_into(op, into, left, right);
}

#[target_feature(enable = "avx2")]
fn reduce_into_wide<E: Element>(op: ReduceOp, into: &mut [E], left: &[E], right: &[E]) {
    scalar::reduce_into(op, into, left, right);
}

/// Bytes of a line of the cache.
const LINE: usize = 64;

// A line past the caches, by the widest stores that there are. `N` elements are a line.
macro_rules! stream_lines {
    ($lines:ident, $combined:ident, $feature:literal, |$from:ident, $to:ident| $store:expr) => {
        #[target_feature(enable = $feature)]
        fn $lines<E: Element, const N: usize, const K: usize>(
            op: ReduceOp,
            into: [&mut [E]; K],
            left: &[E],
            right: &[E],
        ) {
            match op {
                ReduceOp::Sum | ReduceOp::Mean => $combined::<E, SUM, N, K>(op, into, left, right),
                ReduceOp::Min => $combined::<E, MIN, N, K>(op, into, left, right),
                ReduceOp::Max => $combined::<E, MAX, N, K>(op, into, left, right),
                ReduceOp::Prod => $combined::<E, PROD, N, K>(op, into, left, right),
            }
        }

        #[target_feature(enable = $feature)]
        #[inline]
        fn $combined<E: Element, const OP: u8, const N: usize, const K: usize>(
            op: ReduceOp,
            into: [&mut [E]; K],
            left: &[E],
            right: &[E],
        ) {
            assert_eq!(N * size_of::<E>(), LINE, "the caller picks N by the size of an element");
            let len = into.iter().map(|place| place.len()).fold(left.len().min(right.len()), usize::min);
            // Such a store needs an aligned place.
            let head = into[0].as_ptr().align_offset(LINE).min(len);
            let (left_head, left) = left[..len].split_at(head);
            let (right_head, right) = right[..len].split_at(head);
            let (left, left_rest) = left.as_chunks::<N>();
            let (right, right_rest) = right.as_chunks::<N>();
            let into = into.map(|place| {
                let (place_head, place) = place[..len].split_at_mut(head);
                let (place, place_rest) = place.as_chunks_mut::<N>();
                scalar::reduce_into(op, place_head, left_head, right_head);
                scalar::reduce_into(op, place_rest, left_rest, right_rest);
                let aligned = place.as_ptr().cast::<E>().align_offset(LINE) == 0;
                assert!(aligned || place.is_empty(), "all places begin alike");
                &mut place[..left.len()]
            });
            let lines = left.len();
            let mut index = 0;
            while index < lines {
                let line = scalar::line::<E, OP, N>(&left[index], &right[index]);
                let mut which = 0;
                while which < K {
                    let ($from, $to) = (line.as_ptr(), into[which][index].as_mut_ptr());
                    // SAFETY: both are N elements, which are the 64 bytes of a line; loads need no alignment, and the
                    // place is at a multiple of 64, since the head before it was cut to end there.
                    unsafe { $store };
                    which += 1;
                }
                index += 1;
            }
        }
    };
}

stream_lines!(stream_lines_wide, stream_combined_wide, "avx2", |from, to| {
    let (from, to) = (from.cast::<__m256i>(), to.cast::<__m256i>());
    _mm256_stream_si256(to, _mm256_loadu_si256(from));
    _mm256_stream_si256(to.add(1), _mm256_loadu_si256(from.add(1)));
});
stream_lines!(
    stream_lines_widest,
    stream_combined_widest,
    "avx512f,avx512bw,avx512dq,avx512vl",
    |from, to| _mm512_stream_si512(to.cast::<__m512i>(), _mm512_loadu_si512(from.cast::<__m512i>()))
);

#[target_feature(enable = "avx2")]
fn stream_wide(into: &mut [u8], from: &[u8]) {
    let len = into.len().min(from.len());
    // Such a store needs an aligned place.
    let head = into.as_ptr().align_offset(size_of::<__m256i>()).min(len);
    let (into_head, into) = into[..len].split_at_mut(head);
    let (from_head, from) = from[..len].split_at(head);
    into_head.copy_from_slice(from_head);
    let (into, into_rest) = into.as_chunks_mut::<{ size_of::<__m256i>() }>();
    let (from, from_rest) = from.as_chunks::<{ size_of::<__m256i>() }>();
    for (into, from) in into.iter_mut().zip(from) {
        // SAFETY: `from` is 32 readable bytes of any alignment; `into` is 32 writable bytes at a multiple of 32, since
        // the head before it was cut to end there.
        unsafe { _mm256_stream_si256(into.as_mut_ptr().cast(), _mm256_loadu_si256(from.as_ptr().cast())) };
    }
    into_rest.copy_from_slice(from_rest);
    // These stores are ordered with no other; a later release would not cover them.
    _mm_sfence();
}

#[target_feature(enable = "avx2,f16c")]
fn reduce_f16<const OP: u8>(into: &mut [f16], incoming: &[f16]) {
    let len = into.len().min(incoming.len());
    let (into, into_rest) = into[..len].as_chunks_mut::<8>();
    let (incoming, incoming_rest) = incoming[..len].as_chunks::<8>();
    let nan = _mm256_set1_ps(f32::NAN);
    for (into, incoming) in into.iter_mut().zip(incoming) {
        // SAFETY: both arrays are 16 readable bytes; these loads need no alignment.
        let (a, b) =
            unsafe { (_mm_loadu_si128(into.as_ptr().cast()), _mm_loadu_si128(incoming.as_ptr().cast())) };
        let (a, b) = (_mm256_cvtph_ps(a), _mm256_cvtph_ps(b));
        // A NaN in an operand makes a sum or a product NaN, and so may infinities; minimum and maximum would lose it. For
        // two zeros these take the second operand, as the scalar ones do.
        let (combined, unordered) = match OP {
            SUM | PROD => {
                let combined = if OP == SUM { _mm256_add_ps(a, b) } else { _mm256_mul_ps(a, b) };
                (combined, _mm256_cmp_ps::<_CMP_UNORD_Q>(combined, combined))
            }
            MIN => (_mm256_min_ps(a, b), _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b)),
            _ => (_mm256_max_ps(a, b), _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b)),
        };
        let clean = _mm256_blendv_ps(combined, nan, unordered);
        let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(clean);
        // SAFETY: the array is 16 writable bytes; this store needs no alignment.
        unsafe { _mm_storeu_si128(into.as_mut_ptr().cast(), narrow) };
    }
    let op = ReduceOp::from_code(OP).expect("one of the four constants above");
    scalar::reduce(op, into_rest, incoming_rest);
}

/// How many bytes ahead of itself a loop over half types asks for its operands: it does more with a line than a loop over
/// single precision, and so has fewer lines on their way by itself. 64 MiB are then folded in two thirds (`bf16`) to four
/// fifths of the time; half as far ahead gains half to two thirds of that, twice and four times as far no more than this.
const AHEAD: usize = 2 << 10;

#[inline(always)]
fn ask_ahead<T>(of: *const T) {
    // SAFETY: a hint, whatever is there; every x86-64 processor has SSE.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(of.cast::<i8>().wrapping_add(AHEAD)) };
}

// One operation on sixteen elements, and which of the results are NaN. A NaN in an operand makes a sum or a product NaN, and
// so may infinities; minimum and maximum would lose it. For two zeros these take the second operand, as the scalar ones do.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn combine_widest<const OP: u8>(a: __m512, b: __m512) -> (__m512, __mmask16) {
    match OP {
        SUM | PROD => {
            let combined = if OP == SUM { _mm512_add_ps(a, b) } else { _mm512_mul_ps(a, b) };
            (combined, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(combined, combined))
        }
        MIN => (_mm512_min_ps(a, b), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, b)),
        _ => (_mm512_max_ps(a, b), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, b)),
    }
}

// As `reduce_f16`, sixteen at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn reduce_f16_widest<const OP: u8>(into: &mut [f16], incoming: &[f16]) {
    let len = into.len().min(incoming.len());
    let (into, into_rest) = into[..len].as_chunks_mut::<16>();
    let (incoming, incoming_rest) = incoming[..len].as_chunks::<16>();
    let nan = _mm512_set1_ps(f32::NAN);
    for (into, incoming) in into.iter_mut().zip(incoming) {
        let (place, other) = (into.as_mut_ptr().cast::<__m256i>(), incoming.as_ptr().cast::<__m256i>());
        ask_ahead(place);
        ask_ahead(other);
        // SAFETY: both arrays are 32 readable bytes; these loads need no alignment.
        let (a, b) = unsafe { (_mm256_loadu_si256(place), _mm256_loadu_si256(other)) };
        let (combined, unordered) = combine_widest::<OP>(_mm512_cvtph_ps(a), _mm512_cvtph_ps(b));
        let clean = _mm512_mask_mov_ps(combined, unordered, nan);
        let narrow = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(clean);
        // SAFETY: the array is 32 writable bytes; this store needs no alignment.
        unsafe { _mm256_storeu_si256(place, narrow) };
    }
    let op = ReduceOp::from_code(OP).expect("one of the four constants above");
    scalar::reduce(op, into_rest, incoming_rest);
}

// Thirty-two at a time. A `bf16` is the upper half of an `f32`: the odd elements are widened by dropping the lower half of
// 32 bits, the even ones by moving them up.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn reduce_bf16_widest<const OP: u8>(into: &mut [bf16], incoming: &[bf16]) {
    const ODD: u32 = 0xaaaa_aaaa;
    let len = into.len().min(incoming.len());
    let (into, into_rest) = into[..len].as_chunks_mut::<32>();
    let (incoming, incoming_rest) = incoming[..len].as_chunks::<32>();
    let upper = _mm512_set1_epi32(!0xffff);
    let even = |x| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x));
    let odd = |x| _mm512_castsi512_ps(_mm512_and_si512(x, upper));
    for (into, incoming) in into.iter_mut().zip(incoming) {
        let (place, other) = (into.as_mut_ptr().cast::<__m512i>(), incoming.as_ptr().cast::<__m512i>());
        ask_ahead(place);
        ask_ahead(other);
        // SAFETY: both arrays are 64 readable bytes; these loads need no alignment.
        let (a, b) = unsafe { (_mm512_loadu_si512(place), _mm512_loadu_si512(other)) };
        let evens = round_bf16(combine_widest::<OP>(even(a), even(b)));
        let odds = round_bf16(combine_widest::<OP>(odd(a), odd(b)));
        let narrow = _mm512_mask_blend_epi16(ODD, _mm512_srli_epi32::<16>(evens), odds);
        // SAFETY: the array is 64 writable bytes; this store needs no alignment.
        unsafe { _mm512_storeu_si512(place, narrow) };
    }
    let op = ReduceOp::from_code(OP).expect("one of the four constants above");
    scalar::reduce(op, into_rest, incoming_rest);
}

// The upper halves of sixteen results, rounded; what is in the lower ones is of no use.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
fn round_bf16((combined, unordered): (__m512, __mmask16)) -> __m512i {
    let bits = _mm512_castps_si512(combined);
    // Half a unit of what stays, less one where what stays is even: ties round to even.
    let stays_odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(stays_odd, _mm512_set1_epi32(0x7fff)));
    _mm512_mask_mov_epi32(rounded, unordered, _mm512_set1_epi32(i32::from(bf16::NAN.to_bits()) << 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    // On a processor with AVX-512 nothing else would run the AVX2 loops of the half types.
    #[test]
    fn eight_and_sixteen_at_a_time_give_the_same_bits() {
        if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") && has_avx512()) {
            println!("skipped, not here: this processor has no AVX-512");
            return;
        }
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for special in
            [0x0000, 0x8000, 0x0001, 0x03ff, 0x1400, 0x3c01, 0xbc00, 0x7bff, 0x7c00, 0xfc00, 0x7c01]
        {
            let other = vec![f16::from_bits(special); all.len()];
            let (mut eight, mut sixteen) = ([(); 4].map(|()| all.clone()), [(); 4].map(|()| all.clone()));
            // SAFETY: the processor has AVX2, F16C and these parts of AVX-512, as was just found out.
            unsafe {
                reduce_f16::<SUM>(&mut eight[0], &other);
                reduce_f16::<MIN>(&mut eight[1], &other);
                reduce_f16::<MAX>(&mut eight[2], &other);
                reduce_f16::<PROD>(&mut eight[3], &other);
                reduce_f16_widest::<SUM>(&mut sixteen[0], &other);
                reduce_f16_widest::<MIN>(&mut sixteen[1], &other);
                reduce_f16_widest::<MAX>(&mut sixteen[2], &other);
                reduce_f16_widest::<PROD>(&mut sixteen[3], &other);
            }
            let bits =
                |lists: &[Vec<f16>; 4]| -> Vec<u16> { lists.iter().flatten().map(|x| x.to_bits()).collect() };
            assert!(bits(&eight) == bits(&sixteen), "{special:#x}");
        }
    }

    // As above, of the stores past the caches.
    #[test]
    fn half_lines_and_whole_ones_past_the_caches_give_the_same_bits() {
        if !(is_x86_feature_detected!("avx2") && has_avx512()) {
            println!("skipped, not here: this processor has no AVX-512");
            return;
        }
        let (left, right): (Vec<i32>, Vec<i32>) = (0..1000).map(|i| (7 * i - 900, i ^ 0x155)).unzip();
        for op in ReduceOp::ALL {
            let mut places = [(); 2].map(|()| vec![0; left.len()]);
            let [a, b] = &mut places;
            // SAFETY: the processor has AVX2 and these parts of AVX-512, as was just found out.
            unsafe {
                stream_lines_wide::<i32, { LINE / 4 }, 1>(op, [a], &left, &right);
                stream_lines_widest::<i32, { LINE / 4 }, 1>(op, [b], &left, &right);
            }
            fence();
            let mut plain = vec![0; left.len()];
            scalar::reduce_into(op, &mut plain, &left, &right);
            assert!(places.iter().all(|place| *place == plain), "{op}");
        }
    }
}
