//! Compression of gradients, with error feedback: the error of a step is added to the next one. Off by default.
//!
//! Each rank adds to its gradient what earlier steps did not send, sends that in a shorter form, and keeps what the
//! form could not hold ([`ErrorFeedback`]). Nothing is lost for good: what was sent over all steps, and what all ranks
//! still keep, add up to the sum of all gradients, to rounding. Without that memory the dropped parts may be the same
//! ones in every step, and training stops short of the optimum.
//!
//! - [`bf16`]: half the bytes. Each rank sums its part of the gradient in `f32` from what the others sent, and rounds
//!   the total once; the rounding of the total is kept as well, by the rank that did it. A step's result is within
//!   `2⁻⁸·(Σ|xᵢ| + |Σxᵢ|)` of the exact sum, to second order, whatever the number of ranks. Rejected: reducing `bf16`
//!   as the kernels do, hop by hop, whose error grows with the number of ranks and which no rank sees, so that none
//!   can keep it.
//! - [`top_k`]: the share of the values that is largest in magnitude, with their places. Costs
//!   `8·k·(n-1)` bytes per rank, against `8·len·(n-1)/n` for all values: it pays while `k < len/n`. Rejected: choosing
//!   by a threshold that is found by sampling, which sends an unpredictable number of values.
//!
//! Source: Seide et al., "1-bit stochastic gradient descent", 2014, and Karimireddy et al., "Error feedback fixes
//! SignSGD", 2019, for the memory; Lin et al., "Deep gradient compression", 2017, for the share. All recalled, none read
//! again. That the rank which sums keeps its rounding too: our design.

use std::fmt;
use std::str::FromStr;

use antdt_core::InvalidValue;

pub mod bf16;
pub mod feedback;
pub mod top_k;

pub use feedback::ErrorFeedback;
pub use top_k::TopK;

/// A compressed form of a gradient. All members must use the same form. As text it is `bf16`, or `topk=0.01`
/// with the share of the values that is sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Compression {
    /// Each value rounded to its upper 16 bits.
    Bf16,
    /// The values that are largest in magnitude, with their positions.
    TopK(TopK),
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bf16 => f.write_str("bf16"),
            Self::TopK(top_k) => write!(f, "topk={}", top_k.share()),
        }
    }
}

impl FromStr for Compression {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if text == "bf16" {
            return Ok(Self::Bf16);
        }
        let share = text.strip_prefix("topk=").and_then(|share| share.parse().ok());
        share.and_then(|share| TopK::new(share).ok()).map(Self::TopK).ok_or_else(|| {
            let expected =
                "bf16, or topk= and a share of the values above 0 and at most 1, such as topk=0.01";
            InvalidValue::new("compress", text, expected)
        })
    }
}

/// Reason why bytes cannot be decoded as a compressed gradient of the expected length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// The number of bytes differs from the expected one.
    #[error("{got} bytes came, {expected} were due")]
    Length {
        /// Number of bytes received.
        got: usize,
        /// Number of bytes expected.
        expected: usize,
    },
    /// The bytes are not a whole number of entries, each a position and a value.
    #[error("{got} bytes came, which are no whole number of entries of {entry} bytes")]
    Entries {
        /// Number of bytes received.
        got: usize,
        /// Length of one entry in bytes.
        entry: usize,
    },
    /// The positions of the values are not ascending, or one lies beyond the end.
    #[error("place {place} of {len} comes after place {before:?}; places must ascend, each listed once")]
    Order {
        /// Position of the value.
        place: u64,
        /// Position of the value before it.
        before: Option<u64>,
        /// Length of the gradient in values.
        len: u64,
    },
}

#[cfg(test)]
mod tests;
