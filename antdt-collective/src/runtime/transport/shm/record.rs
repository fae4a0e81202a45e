//! The header of every message in a ring.

use super::arena::Place;
use super::memory::GRAIN;
use crate::frame::{FrameError, FrameKind, Header, Tag};

/// First 64 bytes of a record: the header of a frame without payload, which is the same on all members of a round.
pub(super) type TagBytes = [u8; Header::LEN];

/// A tag as it stands in records and slots.
pub(super) fn tag_bytes(tag: &Tag) -> TagBytes {
    Header::of(FrameKind::Data, *tag, 0, &[]).encode()
}

/// The tag of bytes that are not the expected ones.
pub(super) fn tag_of(bytes: &TagBytes) -> Result<Tag, FrameError> {
    Header::decode(bytes).map(|header| header.tag)
}

/// Where a message's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// The bytes follow the record in the ring.
    Ring,
    /// The bytes are in the sender's memory, as offer `number`. The answer, if one is wanted, goes to
    /// `answer`: to a region of its own, or to the place of the bytes.
    Offer { number: u64, place: Place, answer: Option<Place> },
}

/// What follows the tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) len: u64,
    pub(super) body: Body,
}

impl Record {
    /// Bytes of a record.
    pub(super) const LEN: usize = GRAIN;

    // By hand: one stands before every message, at fixed places.
    pub(super) fn encode(&self, tag: &TagBytes) -> [u8; Self::LEN] {
        // No region is of length 0.
        let none = Place { region: 0, region_len: 0, offset: 0 };
        let (number, place, answer) = match self.body {
            Body::Ring => (0, none, none),
            Body::Offer { number, place, answer } => (number, place, answer.unwrap_or(none)),
        };
        let of = |place: Place| [place.region, place.region_len, place.offset];
        let words = [self.len, number].into_iter().chain(of(place)).chain(of(answer));
        let mut bytes = [0; Self::LEN];
        bytes[..Header::LEN].copy_from_slice(tag);
        for (to, word) in bytes[Header::LEN..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The tag, and what follows it. Offers are numbered from 1.
    pub(super) fn decode(bytes: &[u8; Self::LEN]) -> (TagBytes, Self) {
        let mut tag = [0; Header::LEN];
        tag.copy_from_slice(&bytes[..Header::LEN]);
        let word = |index: usize| {
            let at = Header::LEN + 8 * index;
            bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
        };
        let place = |from| Place { region: word(from), region_len: word(from + 1), offset: word(from + 2) };
        let answer = Some(place(5)).filter(|answer| answer.region_len > 0);
        let body = match word(1) {
            0 => Body::Ring,
            number => Body::Offer { number, place: place(2), answer },
        };
        (tag, Self { len: word(0), body })
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::MembershipVersion;
    use proptest::prelude::*;

    use super::*;
    use crate::frame::Operation;

    #[test]
    fn a_record_reads_back() {
        let tag =
            Tag { membership: MembershipVersion(3), sequence: 7, round: 2, operation: Operation::CONNECT };
        let place = Place { region: 1 << 40, region_len: 99, offset: 17 };
        let offer = |answer| Body::Offer { number: 5, place, answer };
        for body in
            [Body::Ring, offer(None), offer(Some(place)), offer(Some(Place { region: 8192, ..place }))]
        {
            let record = Record { len: 1 << 33, body };
            let (bytes, read) = Record::decode(&record.encode(&tag_bytes(&tag)));
            assert_eq!((tag_of(&bytes), read), (Ok(tag), record));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_that_reads_back(
            bytes in prop::collection::vec(any::<u8>(), Record::LEN),
        ) {
            let bytes: &[u8; Record::LEN] = bytes.first_chunk().expect("it has that many");
            let (tag, record) = Record::decode(bytes);
            let _ = tag_of(&tag);
            prop_assert_eq!(Record::decode(&record.encode(&tag)), (tag, record));
        }
    }
}
