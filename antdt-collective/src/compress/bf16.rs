//! The upper 16 bits of each value, rounded to nearest, ties to even.

use half::bf16;

use super::PayloadError;
use crate::element::Half;

/// Appends the values' short form, two bytes each, and leaves in place of each value what its short form lost.
pub fn encode(values: &mut [f32], into: &mut Vec<u8>) {
    into.extend(values.iter_mut().flat_map(|value| {
        let sent = bf16::narrow(*value);
        *value -= sent.widen();
        sent.to_le_bytes()
    }));
}

/// The values of a short form.
///
/// # Errors
/// If there are not `len` values.
pub fn decode(bytes: &[u8], len: usize) -> Result<impl Iterator<Item = f32>, PayloadError> {
    if bytes.len() != 2 * len {
        return Err(PayloadError::Length { got: bytes.len(), expected: 2 * len });
    }
    Ok(bytes.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).widen()))
}
