//! Control messages: what members send each other beside payloads.

/// A control message between two members connected by RDMA, sent besides payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// The receiver has taken this many message pieces since the connection began, so that their slots are
    /// free.
    Taken(u64),
    /// The receiver tells where the sender may write the rest of a message directly, without slots.
    Place {
        /// Number of the message's first piece.
        first: u64,
        /// Address of the message's first byte, in the receiver's memory.
        address: u64,
        /// Length of the whole message, in bytes.
        len: u64,
        /// Remote key of the receiver's memory.
        key: u32,
    },
}

const TAKEN: u32 = 1;
const PLACE: u32 = 2;

impl Control {
    /// Length of an encoded control message, in bytes: short enough for every adapter to send it inline.
    pub const LEN: usize = 32;

    /// Encodes the control message for the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let (kind, key, words) = match *self {
            Self::Taken(taken) => (TAKEN, 0, [taken, 0, 0]),
            Self::Place { first, address, len, key } => (PLACE, key, [first, address, len]),
        };
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&key.to_le_bytes());
        for (word, into) in words.iter().zip(bytes[8..].chunks_exact_mut(8)) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a control message; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let u32_at = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let u64_at = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        match u32_at(0)? {
            TAKEN => Some(Self::Taken(u64_at(8)?)),
            PLACE => Some(Self::Place {
                first: u64_at(8)?,
                address: u64_at(16)?,
                len: u64_at(24)?,
                key: u32_at(4)?,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_read_back_and_nothing_else_is_one() {
        let place = Control::Place { first: 3, address: u64::MAX - 1, len: 1 << 40, key: 0xdead_beef };
        for sent in [Control::Taken(u64::MAX), place] {
            assert_eq!(Control::decode(&sent.encode()), Some(sent));
        }
        assert_eq!(Control::decode(&[0; Control::LEN]), None);
        assert_eq!(Control::decode(&place.encode()[1..]), None);
    }
}
