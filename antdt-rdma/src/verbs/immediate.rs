//! The 32 bits that arrive with a one-sided write, and tell the receiver that it has landed.

/// Place at which a one-sided write has put its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landing {
    /// The bytes are in the slot that belongs to the piece's number, after a header.
    Slot,
    /// The bytes are in the memory that the receiver named for this message, after the bytes of the piece before.
    Placed,
}

/// The 32 bits that arrive with a one-sided RDMA write: they say which piece of the connection it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Immediate {
    /// Low bits of the running number of the piece.
    number: u32,
    /// Place at which the write has put its bytes.
    pub landing: Landing,
}

/// Bits of a number that travel. Far more than pieces can be under way, so that one that is missing shows.
const NUMBER_BITS: u32 = 31;

const PLACED: u32 = 1 << NUMBER_BITS;

impl Immediate {
    /// Returns the immediate value of piece `number`, counted from the start of the connection.
    pub const fn new(number: u64, landing: Landing) -> Self {
        Self { number: Self::low(number), landing }
    }

    /// Encodes the immediate value as the 32 bits on the wire.
    pub const fn bits(self) -> u32 {
        match self.landing {
            Landing::Slot => self.number,
            Landing::Placed => self.number | PLACED,
        }
    }

    /// Decodes the 32 bits of an immediate value.
    pub const fn from_bits(bits: u32) -> Self {
        let landing = if bits & PLACED == 0 { Landing::Slot } else { Landing::Placed };
        Self { number: bits & !PLACED, landing }
    }

    /// Returns whether the write was piece `number`; only the low 31 bits are compared.
    pub const fn is(self, number: u64) -> bool {
        self.number == Self::low(number)
    }

    #[allow(clippy::cast_possible_truncation, reason = "the low bits are what is wanted")]
    const fn low(number: u64) -> u32 {
        number as u32 & !PLACED
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_wraps_and_still_tells_its_piece_from_the_next() {
        let last = u64::from(PLACED) - 1;
        for number in [0, 1, last, last + 1, u64::from(u32::MAX), u64::from(u32::MAX) + 1] {
            let read = Immediate::from_bits(Immediate::new(number, Landing::Placed).bits());
            assert_eq!(read.landing, Landing::Placed);
            assert!(read.is(number), "{number}");
            assert!(!read.is(number + 1), "{number}");
        }
    }

    proptest! {
        #[test]
        fn any_immediate_reads_back(number: u64, placed: bool) {
            let landing = if placed { Landing::Placed } else { Landing::Slot };
            let sent = Immediate::new(number, landing);
            let read = Immediate::from_bits(sent.bits());
            prop_assert_eq!(read, sent);
            prop_assert!(read.is(number));
        }
    }
}
