//! The same loops for processors with AVX2, found out at run time.
//!
//! All types but `f16` are the loops of [`scalar`], built once more for wider registers: no operation is reordered, so
//! the results have the same bits. `f16` is converted by F16C, eight at a time; the compiler does not find that by
//! itself. Rejected: 512-bit registers. Beyond the cache the loop waits for memory already.
#![allow(
    unsafe_code,
    reason = "calls of functions that need AVX2, after it was found; unaligned loads and stores"
)]

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{
    _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_add_ps,
    _mm256_blendv_ps, _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_max_ps, _mm256_min_ps,
    _mm256_mul_ps, _mm256_set1_ps,
};

use half::f16;

use super::scalar;
use crate::element::{Element, ElementType};
use crate::op::ReduceOp;

/// `into[i] = into[i] op incoming[i]` over the shorter of the two; `false`, and nothing done, without AVX2.
pub(super) fn reduce<E: Element>(op: ReduceOp, into: &mut [E], incoming: &[E]) -> bool {
    if !is_x86_feature_detected!("avx2") {
        return false;
    }
    if E::TYPE == ElementType::F16 && is_x86_feature_detected!("f16c") {
        let (into, incoming) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(incoming));
        // SAFETY: the processor has AVX2 and F16C, as was just found out.
        unsafe {
            match op {
                ReduceOp::Sum => reduce_f16::<SUM>(into, incoming),
                ReduceOp::Min => reduce_f16::<MIN>(into, incoming),
                ReduceOp::Max => reduce_f16::<MAX>(into, incoming),
                ReduceOp::Prod => reduce_f16::<PROD>(into, incoming),
            }
        }
    } else {
        // SAFETY: the processor has AVX2, as was just found out.
        unsafe { reduce_wide(op, into, incoming) }
    }
    true
}

#[target_feature(enable = "avx2")]
fn reduce_wide<E: Element>(op: ReduceOp, into: &mut [E], incoming: &[E]) {
    scalar::reduce(op, into, incoming);
}

// The reductions as constants, so that each has its own loop.
const SUM: u8 = ReduceOp::Sum as u8;
const MIN: u8 = ReduceOp::Min as u8;
const MAX: u8 = ReduceOp::Max as u8;
const PROD: u8 = ReduceOp::Prod as u8;

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
        // Minimum and maximum take the second operand where nothing can be compared, as the scalar ones do for zeros.
        let combined = match OP {
            SUM => _mm256_add_ps(a, b),
            MIN => _mm256_min_ps(a, b),
            MAX => _mm256_max_ps(a, b),
            _ => _mm256_mul_ps(a, b),
        };
        // A NaN in an operand or the result (infinities may make one) becomes the one NaN.
        let with_operands = _mm256_blendv_ps(combined, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b));
        let unordered = _mm256_cmp_ps::<_CMP_UNORD_Q>(with_operands, with_operands);
        let clean = _mm256_blendv_ps(with_operands, nan, unordered);
        let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(clean);
        // SAFETY: the array is 16 writable bytes; this store needs no alignment.
        unsafe { _mm_storeu_si128(into.as_mut_ptr().cast(), narrow) };
    }
    let op = ReduceOp::from_code(OP).expect("one of the four constants above");
    scalar::reduce(op, into_rest, incoming_rest);
}
