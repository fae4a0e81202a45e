//! How an adapter repeats packets that are not acknowledged.
//!
//! An adapter waits `4.096 µs · 2^exponent` for an acknowledgement, repeats, and after `count` repetitions gives the
//! connection up: `(count + 1)` waits in all. With a count of 7 the Soft-RoCE driver of Linux 6.1 never gives up, so
//! that a peer which is cut off would never be found: 6 is the most that is asked for here.
//!
//! The exponent is a compromise. A lost packet without a successor is found missing only after a whole wait, so a
//! short one mends losses sooner; the whole span is how long a path may be interrupted before calls fail.

use std::time::Duration;

/// Time and number of an adapter's retries for packets that are not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// Exponent of the wait for an acknowledgement, which is `4.096 µs · 2^exponent`.
    pub exponent: u8,
    /// Number of retries after the first attempt.
    pub count: u8,
}

/// Nanoseconds of a wait with the exponent 0.
const UNIT_NS: u64 = 4096;

/// As often as an adapter repeats at most; see the module.
const COUNT: u8 = 6;

/// Shortest wait: 16.8 ms. An acknowledgement may take milliseconds where the peer's processor answers, as it does for
/// Soft-RoCE; what is repeated too early costs bandwidth and nothing else.
const EXPONENT_MIN: u8 = 12;

/// Longest wait: 0.27 s, and 1.9 s in all. An interruption of that length is mended; a longer wait would delay each
/// message whose last packet is lost.
const EXPONENT_MAX: u8 = 16;

impl Retries {
    /// Returns the longest retries whose total time is at most half of `patience`, the timeout of a call. The
    /// adapter then gives up while the call still has time to name the peer.
    pub fn within(patience: Duration) -> Self {
        let fits = |exponent: &u8| Self { exponent: *exponent, count: COUNT }.span() <= patience / 2;
        let exponent = (EXPONENT_MIN..=EXPONENT_MAX).rev().find(fits).unwrap_or(EXPONENT_MIN);
        Self { exponent, count: COUNT }
    }

    /// Returns the time without an acknowledgement after which the adapter closes the connection: `count + 1`
    /// waits.
    pub const fn span(&self) -> Duration {
        Duration::from_nanos((UNIT_NS << self.exponent) * (self.count as u64 + 1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_connection_is_given_up_within_half_of_the_patience() {
        let exponents =
            [1, 400, 900, 1_500, 3_000, 60_000].map(|ms| Retries::within(Duration::from_millis(ms)).exponent);
        assert_eq!(exponents, [12, 12, 13, 14, 15, 16]);
        let longest = Retries { exponent: 16, count: 6 }.span();
        assert_eq!(longest.as_millis(), 1879);
    }

    proptest! {
        #[test]
        fn no_patience_makes_an_adapter_repeat_for_ever(ms in 0..10_000_000_u64) {
            let retry = Retries::within(Duration::from_millis(ms));
            prop_assert!(retry.count <= 6);
            prop_assert!((EXPONENT_MIN..=EXPONENT_MAX).contains(&retry.exponent));
            let patience = Duration::from_millis(ms);
            prop_assert!(retry.exponent == EXPONENT_MIN || retry.span() <= patience / 2);
        }
    }
}
