//! The byte format of a log piece: one object in a store whose objects are written once and as a whole. No
//! I/O.
//!
//! Pieces are numbered from 1. A writer puts a piece only if no object with its number exists, so that the
//! pieces of a log have one order, whichever service wrote them. A piece may begin with a [`Record::Base`]
//! that stands for all records before; then it is the base of the pieces that follow, and older pieces are no
//! longer needed.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `ADSO` |
//! | 2 | format version |
//! | 8 | fingerprint of the data set's settings |
//! | 8 | number of the piece |
//! | 8 | number of its base, its own if it is one; 1 if the log was never compacted |
//! | 16 | the id of the writer, so that a writer knows its own pieces |
//! | … | records, one after the other |
//! | 4 | CRC-32C of all before |
//!
//! Source: our design.

use super::{u32_at, u64_at};
use crate::error::{DecodeError, RecoverError};
use crate::ledger::codec::fingerprint;
use crate::ledger::reader::Reader;
use crate::ledger::{Record, Recovery};
use crate::spec::DatasetSpec;

const MAGIC: [u8; 4] = *b"ADSO";
const VERSION: u16 = 1;
/// Bytes before the records.
const HEAD: usize = 4 + 2 + 8 + 8 + 8 + 16;
const SUM: usize = 4;

/// Reason why a piece of the log cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PieceError {
    /// The checksum does not match: some bits have changed since the piece was written.
    #[error("it is cut short, damaged, or no piece of a journal; use a copy of it")]
    Damaged,
    /// A later release of this crate wrote the piece: read it with that release.
    #[error(
        "its format version {version} is unknown, the newest known one is {newest}; read it with the release that wrote it"
    )]
    UnknownVersion {
        /// Format version of the piece.
        version: u16,
        /// Newest format version that this release reads.
        newest: u16,
    },
    /// The piece belongs to a data set with other settings.
    #[error(
        "it is not of data set {name:?} as it is set now; use the settings it was written with, or another prefix"
    )]
    SpecMismatch {
        /// Name of the data set that the caller passed.
        name: String,
    },
    /// The piece is intact, but its number or base does not fit its place in the log.
    #[error(
        "it says that it is piece {number} and builds on {base}, which does not belong there; put back what was copied or renamed"
    )]
    Misplaced {
        /// Number that the piece says it has.
        number: u64,
        /// Number of the base piece that the piece says it builds on.
        base: u64,
    },
    /// The checksum is right, but the records cannot be decoded.
    #[error("it holds something else than records")]
    Content(#[source] DecodeError),
    /// A record can be decoded, but does not follow from the records before it.
    #[error("a record in it does not follow from those before it")]
    Unfit(#[source] RecoverError),
}

/// One piece of the log: its head, and its records as bytes that are not decoded yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPiece<'a> {
    /// Number of the piece in the log, from 1.
    pub number: u64,
    /// Number of the newest piece whose first record is a snapshot ([`Record::Base`]) of
    /// all earlier pieces; the piece's own number if it begins with one.
    pub base: u64,
    /// Random id of the service that wrote the piece.
    pub writer: u128,
    records: &'a [u8],
}

impl<'a> LogPiece<'a> {
    /// Checks the bytes of a piece and reads its head. The records are decoded by [`fold`](Self::fold).
    ///
    /// # Errors
    /// If the piece is damaged, has a later format version, or belongs to another data set.
    pub fn read(bytes: &'a [u8], spec: &DatasetSpec) -> Result<Self, PieceError> {
        let end = bytes.len().checked_sub(SUM).filter(|end| *end >= HEAD).ok_or(PieceError::Damaged)?;
        if !bytes.starts_with(&MAGIC) || u32_at(bytes, end) != crc32c::crc32c(&bytes[..end]) {
            return Err(PieceError::Damaged);
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != VERSION {
            return Err(PieceError::UnknownVersion { version, newest: VERSION });
        }
        if u64_at(bytes, 6) != fingerprint(spec) {
            return Err(PieceError::SpecMismatch { name: spec.name.clone() });
        }
        let (number, base) = (u64_at(bytes, 14), u64_at(bytes, 22));
        if base == 0 || base > number {
            return Err(PieceError::Misplaced { number, base });
        }
        let writer = u128::from_le_bytes(bytes[30..HEAD].try_into().expect("sixteen bytes"));
        Ok(Self { number, base, writer, records: &bytes[HEAD..end] })
    }

    /// Applies the records of this piece to `recovery`.
    ///
    /// # Errors
    /// If the piece has no records, or a record does not follow from the records before it. `recovery` must
    /// not be used after an error.
    pub fn fold(&self, recovery: &mut Recovery) -> Result<(), PieceError> {
        let spec = recovery.spec().clone();
        let mut reader = Reader::new(self.records);
        while !reader.rest().is_empty() {
            let record = Record::read(&mut reader, &spec).map_err(PieceError::Content)?;
            recovery.apply(&record).map_err(PieceError::Unfit)?;
        }
        Ok(())
    }
}

/// A piece of records that are bytes already.
pub(crate) fn write_piece(
    spec: &DatasetSpec,
    (number, base): (u64, u64),
    writer: u128,
    records: &[u8],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + records.len() + SUM);
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    for value in [fingerprint(spec), number, base] {
        out.extend(value.to_le_bytes());
    }
    out.extend(writer.to_le_bytes());
    out.extend(records);
    let sum = crc32c::crc32c(&out);
    out.extend(sum.to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use antdt_core::{Generation, Seed};

    use super::*;
    use crate::testing::records::{History, specs};

    #[test]
    fn a_piece_gives_its_records_or_says_why_not() {
        for (seed, spec) in specs().into_iter().enumerate() {
            let history = History::play(spec.clone(), seed as u64, 200);
            let mut records = Vec::new();
            history.groups.concat().iter().for_each(|record| record.encode(&mut records));
            let bytes = write_piece(&spec, (7, 3), 1 << 100, &records);
            let piece = LogPiece::read(&bytes, &spec).unwrap();
            assert_eq!((piece.number, piece.base, piece.writer), (7, 3, 1 << 100));
            let mut recovery = Recovery::new(spec.clone()).unwrap();
            piece.fold(&mut recovery).unwrap();
            assert_eq!(recovery.snapshot(), history.ledger.snapshot());
            assert!(matches!(piece.fold(&mut recovery), Err(PieceError::Unfit(_))), "not twice");

            let other = DatasetSpec { name: "other".into(), ..spec.clone() };
            assert_eq!(
                LogPiece::read(&bytes, &other),
                Err(PieceError::SpecMismatch { name: "other".into() })
            );
            let misplaced = write_piece(&spec, (7, 8), 0, &[]);
            assert!(matches!(LogPiece::read(&misplaced, &spec), Err(PieceError::Misplaced { .. })));
            let strange = write_piece(&spec, (7, 7), 0, &[99]);
            let mut recovery = Recovery::new(spec.clone()).unwrap();
            let read = LogPiece::read(&strange, &spec).unwrap().fold(&mut recovery);
            assert!(matches!(read, Err(PieceError::Content(_))));
        }
    }

    #[test]
    fn no_damaged_piece_is_taken_for_a_whole_one() {
        let spec = specs().swap_remove(0);
        let mut records = Vec::new();
        Record::GenerationStarted { generation: Generation(1) }.encode(&mut records);
        let bytes = write_piece(&spec, (1, 1), 5, &records);
        for len in 0..bytes.len() {
            assert_eq!(LogPiece::read(&bytes[..len], &spec), Err(PieceError::Damaged));
        }
        let mut rng = Seed(3).rng();
        for _ in 0..20_000 {
            let mut damaged = bytes.clone();
            for _ in 0..=rng.below(3) {
                let at = rng.below(damaged.len() as u64) as usize;
                damaged[at] = rng.next_u64() as u8;
            }
            if damaged != bytes {
                assert_eq!(LogPiece::read(&damaged, &spec), Err(PieceError::Damaged));
            }
        }
        let mut later = bytes[..bytes.len() - SUM].to_vec();
        later[4] = 2;
        later.extend(crc32c::crc32c(&later).to_le_bytes());
        assert_eq!(LogPiece::read(&later, &spec), Err(PieceError::UnknownVersion { version: 2, newest: 1 }));
    }
}
