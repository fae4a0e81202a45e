use super::*;

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
