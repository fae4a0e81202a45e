use antdt_core::{Holder, Incarnation, NodeId};
use proptest::prelude::*;

use super::*;
use crate::error::CollectiveError;

fn tag(membership: u64, sequence: u64, round: u32) -> Tag {
    let operation =
        Operation { len: 7, root: Rank(2), algorithm: 1, ..Operation::plain(OperationKind::AllReduce) };
    Tag { membership: MembershipVersion(membership), sequence, round, operation }
}

#[test]
fn a_header_reads_back_as_it_was_written() {
    for kind in [FrameKind::Data, FrameKind::Abort, FrameKind::Hello, FrameKind::Taking] {
        let header = Header::of(kind, tag(u64::MAX, 1 << 40, u32::MAX), 9, b"payload");
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        assert_eq!(header.verify(b"payload"), Ok(()));
        assert_eq!(header.verify(b"Payload"), Err(FrameError::PayloadChecksum));
        let plain = Header::plain(kind, tag(3, 4, 5), 9, 7);
        assert_eq!(Header::decode(&plain.encode()), Ok(plain));
        assert_eq!(plain.verify(b"payload"), Ok(()));
    }
}

#[test]
fn every_single_bit_error_of_a_header_is_noticed() {
    let bytes = Header::of(FrameKind::Data, tag(3, 4, 5), 6, &[1; 100]).encode();
    for bit in 0..Header::LEN * 8 {
        let mut damaged = bytes;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Header::decode(&damaged).is_err(), "bit {bit}");
    }
}

#[test]
fn a_well_checksummed_header_with_senseless_fields_is_refused() {
    let good = Header::of(FrameKind::Data, tag(3, 4, 5), 6, &[1; 100]).encode();
    for (at, value) in [(5, 9), (6, 99), (7, 0), (8, 0), (10, 2), (51, 0xff)] {
        let mut bytes = good;
        bytes[at] = value;
        let checksum = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&checksum.to_le_bytes());
        assert!(
            matches!(Header::decode(&bytes), Err(FrameError::Field { .. } | FrameError::TooLong { .. })),
            "byte {at}"
        );
    }
}

#[test]
fn messages_of_dead_rounds_are_old_and_later_ones_early() {
    let expected = tag(5, 10, 3);
    assert_eq!(expected.judge(&expected), Timeliness::Expected);
    for old in [tag(4, 99, 9), tag(5, 9, 9), tag(5, 10, 2)] {
        assert_eq!(expected.judge(&old), Timeliness::Old);
    }
    for early in [tag(5, 10, 4), tag(5, 11, 0)] {
        assert_eq!(expected.judge(&early), Timeliness::Early);
    }
    assert_eq!(expected.judge(&tag(6, 0, 0)), Timeliness::NewerMembership);
    let mut different = expected;
    different.operation.len = 8;
    assert_eq!(expected.judge(&different), Timeliness::Different);
}

const KINDS: [FrameKind; 4] = [FrameKind::Data, FrameKind::Abort, FrameKind::Hello, FrameKind::Taking];

fn holder(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(2))
}

/// Changes a byte, or cuts the rest off, at a place within.
fn damaged(mut bytes: Vec<u8>, at: prop::sample::Index, change: Option<u8>) -> Vec<u8> {
    let at = at.index(bytes.len());
    match change {
        Some(change) => bytes[at] ^= change,
        None => bytes.truncate(at),
    }
    bytes
}

proptest! {
    #[test]
    fn a_header_of_any_bytes_announces_no_more_than_is_accepted(
        bytes in prop::collection::vec(any::<u8>(), Header::LEN),
        is_ours in any::<bool>(),
    ) {
        let mut bytes: [u8; Header::LEN] = *bytes.first_chunk().expect("it has that many");
        if is_ours {
            // As a sender would make it that means harm.
            bytes[..4].copy_from_slice(&Header::MAGIC.to_le_bytes());
            (bytes[4], bytes[5], bytes[6], bytes[7], bytes[8], bytes[10]) =
                (Header::VERSION, 1 + bytes[5] % 4, 1 + bytes[6] % 8, 1 + bytes[7] % 4, 1 + bytes[8] % 3, bytes[10] % 2);
            let checksum = crc32c::crc32c(&bytes[..60]);
            bytes[60..].copy_from_slice(&checksum.to_le_bytes());
        }
        if let Ok(header) = Header::decode(&bytes) {
            prop_assert!(header.len <= Header::PAYLOAD_MAX);
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn a_header_with_a_changed_byte_is_refused(
        kind in prop::sample::select(&KINDS[..]),
        len in 0..=Header::PAYLOAD_MAX,
        at in any::<prop::sample::Index>(),
        change in 1_u8..,
    ) {
        let header = Header::plain(kind, tag(3, 4, 5), 6, len as usize);
        let bytes = damaged(header.encode().to_vec(), at, Some(change));
        prop_assert!(Header::decode(bytes.first_chunk().expect("none was cut off")).is_err());
    }

    #[test]
    fn a_notice_of_any_bytes_holds_no_more_than_came(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Some(heard) = notice::decode(holder(1), &bytes) {
            prop_assert!(words_of(&heard.error) <= bytes.len());
        }
    }

    #[test]
    fn a_notice_with_a_changed_byte_or_cut_short_is_none_or_holds_no_more_than_came(
        (reason, suspects, differs) in (".{0,1500}", any::<bool>(), any::<bool>()),
        at in any::<prop::sample::Index>(),
        change in prop::option::of(1_u8..),
    ) {
        let (peer, theirs, ours) = (holder(7), reason.clone(), "ours".to_owned());
        let error = if differs {
            CollectiveError::Mismatch { peer, theirs, ours }
        } else {
            CollectiveError::Aborted { by: Some(peer), culprit: None, reason }
        };
        let sent = notice::encode(holder(1), &error, suspects);
        prop_assert!(sent.len() <= notice::NOTICE_MAX);
        let bytes = damaged(sent, at, change);
        let heard = notice::decode(holder(1), &bytes);
        prop_assert!(heard.is_none() || change.is_some(), "half a notice is none");
        if let Some(heard) = heard {
            prop_assert!(words_of(&heard.error) <= bytes.len());
        }
    }
}

fn words_of(error: &CollectiveError) -> usize {
    match error {
        CollectiveError::Aborted { reason, .. } => reason.len(),
        CollectiveError::Mismatch { theirs, ours, .. } => theirs.len() + ours.len(),
        other => panic!("no notice is {other}"),
    }
}
