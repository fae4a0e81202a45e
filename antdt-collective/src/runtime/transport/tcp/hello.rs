//! The handshake of two members, so that neither takes a stranger or a member of another group for the other.

use antdt_core::{MembershipVersion, Rank};

use crate::frame::{FrameKind, Header, Operation, Tag};
use crate::group::JobToken;

/// First payload of a connection, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) membership: MembershipVersion,
    pub(super) job: JobToken,
    pub(super) fingerprint: u64,
    pub(super) from: Rank,
    pub(super) to: Rank,
}

// By hand, since the peer must know the length.
pub(super) const HELLO_LEN: usize = Header::LEN + 24;

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut payload = [0; 24];
        payload[..8].copy_from_slice(&self.job.0.to_le_bytes());
        payload[8..16].copy_from_slice(&self.fingerprint.to_le_bytes());
        payload[16..20].copy_from_slice(&self.from.0.to_le_bytes());
        payload[20..].copy_from_slice(&self.to.0.to_le_bytes());
        let mut bytes = [0; HELLO_LEN];
        let header = Header::of(FrameKind::Hello, connect_tag(self.membership), 0, &payload);
        bytes[..Header::LEN].copy_from_slice(&header.encode());
        bytes[Header::LEN..].copy_from_slice(&payload);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HELLO_LEN]) -> Option<Self> {
        let (header, payload) = bytes.split_first_chunk::<{ Header::LEN }>()?;
        let header = Header::decode(header).ok()?;
        header.verify(payload).ok()?;
        if header.kind != FrameKind::Hello {
            return None;
        }
        let u64_at = |at: usize| payload[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let u32_at = |at: usize| payload[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        Some(Self {
            membership: header.tag.membership,
            job: JobToken(u64_at(0)?),
            fingerprint: u64_at(8)?,
            from: Rank(u32_at(16)?),
            to: Rank(u32_at(20)?),
        })
    }
}

pub(super) const fn connect_tag(membership: MembershipVersion) -> Tag {
    Tag { membership, sequence: 0, round: 0, operation: Operation::CONNECT }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_hello_of_any_bytes_is_none(
            bytes in prop::collection::vec(any::<u8>(), HELLO_LEN),
            (payload, kind) in (prop::collection::vec(any::<u8>(), 24), 0..4_usize),
        ) {
            let bytes: &[u8; HELLO_LEN] = bytes.first_chunk().expect("it has that many");
            prop_assert_eq!(Hello::decode(bytes), None);
            // Behind a header that fits, any payload is one, and only behind that of a hello.
            let kinds = [FrameKind::Hello, FrameKind::Data, FrameKind::Abort, FrameKind::Taking];
            let header = Header::of(kinds[kind], connect_tag(MembershipVersion(7)), 0, &payload);
            let whole = [&header.encode()[..], &payload].concat();
            let hello = Hello::decode(whole.first_chunk().expect("it has that many"));
            prop_assert_eq!(hello.is_some(), kind == 0);
            prop_assert!(hello.is_none_or(|hello| hello.encode()[..] == whole));
        }
    }

    #[test]
    fn a_hello_reads_back_and_every_damaged_one_is_refused() {
        let hello = Hello {
            membership: MembershipVersion(7),
            job: JobToken::new("job"),
            fingerprint: 99,
            from: Rank(1),
            to: Rank(2),
        };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        for bit in 0..HELLO_LEN * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Hello::decode(&damaged), None, "bit {bit}");
        }
    }
}
