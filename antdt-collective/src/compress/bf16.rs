//! Compression of `f32` values to `bf16`: the upper 16 bits, rounded to nearest, ties to even.

use half::bf16;

use super::PayloadError;
use crate::element::Half;

/// Appends the values as `bf16`, two bytes each, to `into`, and replaces each value by its rounding error.
pub fn encode(values: &mut [f32], into: &mut Vec<u8>) {
    into.extend(values.iter_mut().flat_map(|value| {
        let sent = bf16::narrow(*value);
        *value -= sent.widen();
        sent.to_le_bytes()
    }));
}

/// Returns the `len` values that [`encode`] wrote.
///
/// # Errors
/// If `bytes` do not hold exactly `len` values.
pub fn decode(bytes: &[u8], len: usize) -> Result<impl Iterator<Item = f32>, PayloadError> {
    if bytes.len() != 2 * len {
        return Err(PayloadError::Length { got: bytes.len(), expected: 2 * len });
    }
    Ok(bytes.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).widen()))
}
