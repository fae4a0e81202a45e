//! The length of a packet on the way between two adapters.

use std::fmt;

/// Maximum payload of an RDMA packet: 256 to 4096 bytes, stored as the code that the verbs library uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtu(u8);

impl Mtu {
    /// Returns the MTU of a code of the verbs library, 1 (256 bytes) to 5 (4096 bytes); `None` for another
    /// code.
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            #[allow(clippy::cast_possible_truncation, reason = "at most 5")]
            1..=5 => Some(Self(code as u8)),
            _ => None,
        }
    }

    /// Returns the code of the MTU in the verbs library.
    pub const fn code(self) -> u32 {
        self.0 as u32
    }

    /// Returns the maximum payload of a packet, in bytes.
    pub const fn len_bytes(self) -> usize {
        128 << self.0
    }

    /// Returns the largest MTU that both ends accept. A longer packet would be dropped silently.
    #[must_use]
    pub fn of_path(self, other: Self) -> Self {
        self.min(other)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_as_wide_as_its_narrower_end() {
        let lens: Vec<usize> = (1..=5).filter_map(Mtu::from_code).map(Mtu::len_bytes).collect();
        assert_eq!(lens, [256, 512, 1024, 2048, 4096]);
        assert_eq!((Mtu::from_code(0), Mtu::from_code(6)), (None, None));
        let (wide, narrow) = (Mtu(5), Mtu(3));
        assert_eq!((wide.of_path(narrow), narrow.of_path(wide)), (narrow, narrow));
    }
}
