//! Compression to the values that are largest in magnitude, with their positions.

use std::cmp::Reverse;

use antdt_core::InvalidValue;

use super::PayloadError;

/// Bytes of one chosen value on the wire: its place and itself. By hand, since these are values in bulk.
const ENTRY: usize = 8;

/// Top-k compression: sends a share of the values, those that are largest in magnitude; of equal values the
/// first. NaN counts as larger than any number, so that it reaches all members.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopK {
    share: f64,
}

impl TopK {
    /// Returns the compression that sends this share of the values; 0.01 is one value in a hundred.
    ///
    /// # Errors
    /// If the share is not above 0 and at most 1.
    pub fn new(share: f64) -> Result<Self, InvalidValue> {
        if share > 0.0 && share <= 1.0 {
            Ok(Self { share })
        } else {
            Err(InvalidValue::new("top_k.share", share, "above 0 and at most 1"))
        }
    }

    /// Returns the share of the values that is sent.
    pub const fn share(self) -> f64 {
        self.share
    }

    /// Returns how many of `len` values are sent: at least one, unless `len` is 0.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "rounded up, and held between 0 and the length"
    )]
    pub fn count(self, len: usize) -> usize {
        ((self.share * len as f64).ceil() as usize).clamp(len.min(1), len)
    }

    /// Returns the positions of the chosen values, ascending.
    ///
    /// # Panics
    /// If there are more than 2³² values.
    pub fn choose(self, values: &[f32]) -> Vec<u32> {
        let len = u32::try_from(values.len()).expect("at most 2^32 values");
        let count = self.count(values.len());
        let mut places: Vec<u32> = (0..len).collect();
        if count < values.len() {
            // Without its sign bit, a float's bits order it by magnitude, infinity and NaN last.
            let magnitude = |place: u32| values[place as usize].to_bits() & (u32::MAX >> 1);
            places.select_nth_unstable_by_key(count, |place| (Reverse(magnitude(*place)), *place));
            places.truncate(count);
            places.sort_unstable();
        }
        places
    }

    /// Appends the chosen values to `into`, all positions first, then all values. It replaces the chosen
    /// values in `values` by zeros, so that `values` then holds the values that are not sent.
    ///
    /// # Panics
    /// If there are more than 2³² values.
    pub fn encode(self, values: &mut [f32], into: &mut Vec<u8>) {
        let places = self.choose(values);
        into.reserve(ENTRY * places.len());
        into.extend(places.iter().flat_map(|place| place.to_le_bytes()));
        into.extend(
            places.iter().flat_map(|place| std::mem::take(&mut values[*place as usize]).to_le_bytes()),
        );
    }
}

/// Adds values that [`TopK::encode`] wrote to `into`, each at its position.
///
/// # Errors
/// If the bytes are not the chosen values of a gradient of this length; some of them may have been added
/// then.
pub fn add(bytes: &[u8], into: &mut [f32]) -> Result<(), PayloadError> {
    if !bytes.len().is_multiple_of(ENTRY) {
        return Err(PayloadError::Entries { got: bytes.len(), entry: ENTRY });
    }
    let len = into.len() as u64;
    let (places, values) = bytes.split_at(bytes.len() / 2);
    let words = |bytes: &[u8]| bytemuck::pod_collect_to_vec::<u8, [u8; 4]>(bytes);
    let mut before = None;
    for (place, value) in words(places).into_iter().zip(words(values)) {
        let place = u32::from_le_bytes(place);
        let after = before.is_none_or(|before| before < u64::from(place));
        let Some(sum) = into.get_mut(place as usize).filter(|_| after) else {
            return Err(PayloadError::Order { place: u64::from(place), before, len });
        };
        *sum += f32::from_le_bytes(value);
        before = Some(u64::from(place));
    }
    Ok(())
}
