//! The byte format of a log segment: how records are appended, and what can be read back after a crash. No
//! I/O.
//!
//! A segment is a head and any number of frames; a frame is what one call appended, so it is there as a whole or not
//! at all. The first frame of a segment that replaces others is a [`Record::Base`] that stands for them.
//!
//! | bytes of the head | what |
//! |---|---|
//! | 4 | `ADSJ` |
//! | 2 | format version |
//! | 8 | fingerprint of the data set's settings |
//! | 8 | bytes that were durable before the segment was first used: the head and the snapshot, if it begins with one |
//! | 4 | CRC-32C of all before |
//!
//! | bytes of a frame | what |
//! |---|---|
//! | 4 | `ADSF` |
//! | 4 | length of the payload |
//! | 8 | bytes of the segment that were known to be durable when the frame was written |
//! | 4 | CRC-32C of the frame's position, of all before, and of the payload |
//! | … | payload: records, one after the other |
//!
//! A machine that stops may lose all or any part of the bytes that it had not made durable. So the end of a
//! segment may be torn, and is cut off. But a damaged frame below the highest mark of durability was once
//! complete: the disk is broken or the file was changed, later records may depend on the frame, and it is an
//! error.
//!
//! Source: our design. The mark of durability is there because a checksum alone cannot tell the two apart.

use crate::error::{DecodeError, RecoverError};
use crate::ledger::codec::fingerprint;
use crate::ledger::reader::Reader;
use crate::ledger::{Record, Recovery};
use crate::spec::DatasetSpec;

#[cfg(feature = "object-store")]
pub mod piece;

const HEAD_MAGIC: [u8; 4] = *b"ADSJ";
const FRAME_MAGIC: [u8; 4] = *b"ADSF";
const VERSION: u16 = 1;
/// Bytes of the head of a segment.
pub(crate) const HEAD_LEN: usize = 4 + 2 + 8 + 8 + 4;
/// Bytes of a frame before its payload.
const FRAME_LEN: usize = 4 + 4 + 8 + 4;

/// Reason why a segment of the log cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file does not begin with the head of a segment.
    #[error("it does not begin with the whole head of a journal segment; it is damaged or no journal")]
    Head,
    /// A later release of this crate wrote the segment: read it with that release.
    #[error(
        "its format version {version} is unknown, the newest known one is {newest}; read it with the release that wrote it"
    )]
    UnknownVersion {
        /// Format version of the file.
        version: u16,
        /// Newest format version that this release reads.
        newest: u16,
    },
    /// The segment belongs to a data set with other settings.
    #[error(
        "it is not of data set {name:?} as it is set now; use the settings it was written with, or another folder"
    )]
    SpecMismatch {
        /// Name of the data set that the caller passed.
        name: String,
    },
    /// Bytes that were durable once are damaged: a broken disk, or an edited file.
    #[error(
        "the frame at byte {at} is damaged although {durable} bytes were durable; use a copy of the segment"
    )]
    Damaged {
        /// Byte offset of the damage in the segment.
        at: u64,
        /// Length of the part of the segment, in bytes, that was durable before the crash.
        durable: u64,
    },
    /// The checksum of a frame is right, but its payload cannot be decoded.
    #[error("the frame at byte {at} holds something else than records")]
    Content {
        /// Byte offset of the frame in the segment.
        at: u64,
        /// Reason why the payload cannot be decoded.
        #[source]
        source: DecodeError,
    },
    /// A record can be decoded, but does not follow from the records before it.
    #[error("a record in the frame at byte {at} does not follow from those before it")]
    Unfit {
        /// Byte offset of the frame in the segment.
        at: u64,
        /// How the record contradicts the earlier ones.
        #[source]
        source: RecoverError,
    },
}

/// Sizes of a segment that was read: how much of it is snapshot, valid, and torn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Length in bytes of the segment's head and of the snapshot that may follow it.
    pub base: u64,
    /// Length in bytes of the valid part. The bytes after it were torn by a crash; they were never
    /// acknowledged as durable.
    pub len: u64,
    /// Number of bytes after the valid part; the store cuts them off.
    pub torn: u64,
}

impl Segment {
    /// Applies all records of a segment that is wholly in memory to `recovery`.
    ///
    /// # Errors
    /// As [`SegmentReader::take`] and [`SegmentReader::finish`].
    pub fn fold(bytes: &[u8], recovery: Recovery) -> Result<(Self, Recovery), JournalError> {
        let mut reader = SegmentReader::new(recovery, bytes.len() as u64);
        let mut rest = bytes;
        while !rest.is_empty() {
            let used = reader.take(rest)?;
            rest = &rest[used..];
        }
        reader.finish()
    }
}

/// Reads a segment from front to back, piece by piece, and applies its records. The segment may be larger
/// than memory; a frame may not.
#[derive(Debug)]
pub struct SegmentReader {
    recovery: Recovery,
    spec: DatasetSpec,
    total: u64,
    at: u64,
    wanted: usize,
    base: u64,
    durable: u64,
    /// Where the whole frames end, once that is known. From there on only marks of durability are looked for.
    end: Option<u64>,
}

impl SegmentReader {
    /// Returns a reader at the start of a segment of `total` bytes, which applies the records to `recovery`.
    pub fn new(recovery: Recovery, total: u64) -> Self {
        let spec = recovery.spec().clone();
        Self { recovery, spec, total, at: 0, wanted: HEAD_LEN, base: 0, durable: 0, end: None }
    }

    /// Returns the least number of bytes that [`take`](Self::take) needs to make progress. Fewer are enough
    /// only at the end of the segment. The number never exceeds what is left of the current frame or of the
    /// segment.
    pub const fn wanted(&self) -> usize {
        self.wanted
    }

    /// Consumes bytes from the front of `bytes` and returns how many. `bytes` continue where the previous
    /// call stopped. The count is 0 only if there are fewer bytes than [`wanted`](Self::wanted), or the
    /// segment is read to its end.
    ///
    /// # Errors
    /// If the segment is of another data set or a later format, or a valid frame holds something else than
    /// records that follow from those before. The reader must not be used after an error.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, JournalError> {
        let mut used = 0;
        while self.at < self.total && used < bytes.len() {
            let rest = &bytes[used..];
            let step = if self.at == 0 { self.take_head(rest)? } else { self.take_frame(rest)? };
            if step == 0 {
                break;
            }
            used += step;
            self.at += step as u64;
        }
        Ok(used)
    }

    fn take_head(&mut self, bytes: &[u8]) -> Result<usize, JournalError> {
        if bytes.len() < HEAD_LEN && (bytes.len() as u64) < self.total {
            return Ok(0);
        }
        self.base = read_head(bytes, &self.spec)?;
        self.durable = self.base;
        Ok(HEAD_LEN)
    }

    /// A whole frame, or, once there was a place without one, the bytes before the next place where one may be.
    fn take_frame(&mut self, bytes: &[u8]) -> Result<usize, JournalError> {
        let skipped = if self.end.is_some() { before_magic(bytes, self.total - self.at) } else { 0 };
        if skipped > 0 {
            return Ok(skipped);
        }
        match Frame::at(bytes, self.at, self.total) {
            Found::Whole(frame) => {
                if self.end.is_none() {
                    self.apply(frame.payload)?;
                }
                // A whole frame behind the damage tells how much was durable by then.
                self.durable = self.durable.max(frame.durable);
                Ok(FRAME_LEN + frame.payload.len())
            }
            Found::Part(wanted) => {
                self.wanted = wanted;
                Ok(0)
            }
            Found::Nothing => {
                self.end.get_or_insert(self.at);
                Ok(1)
            }
        }
    }

    fn apply(&mut self, payload: &[u8]) -> Result<(), JournalError> {
        let at = self.at;
        let mut reader = Reader::new(payload);
        while !reader.rest().is_empty() {
            let record = Record::read(&mut reader, &self.spec)
                .map_err(|source| JournalError::Content { at, source })?;
            self.recovery.apply(&record).map_err(|source| JournalError::Unfit { at, source })?;
        }
        Ok(())
    }

    /// Returns the segment's sizes and the recovered state, once all bytes were taken.
    ///
    /// # Errors
    /// If bytes that were durable are damaged.
    pub fn finish(self) -> Result<(Segment, Recovery), JournalError> {
        if self.at < HEAD_LEN as u64 {
            return Err(JournalError::Head);
        }
        let len = self.end.unwrap_or(self.at);
        if len < self.durable {
            return Err(JournalError::Damaged { at: len, durable: self.durable });
        }
        Ok((Segment { base: self.base, len, torn: self.total - len }, self.recovery))
    }
}

/// How many bytes can be passed over to find a frame. `left`: how many there are in all.
fn before_magic(bytes: &[u8], left: u64) -> usize {
    let found = bytes.windows(FRAME_MAGIC.len()).position(|window| window == FRAME_MAGIC);
    found.unwrap_or_else(|| {
        // One may begin with the last bytes, unless no more follow.
        let kept = if bytes.len() as u64 == left { 0 } else { FRAME_MAGIC.len() - 1 };
        bytes.len().saturating_sub(kept)
    })
}

/// Gives the bytes that were durable from the start.
fn read_head(bytes: &[u8], spec: &DatasetSpec) -> Result<u64, JournalError> {
    let head = bytes.get(..HEAD_LEN).ok_or(JournalError::Head)?;
    if !head.starts_with(&HEAD_MAGIC) || u32_at(head, HEAD_LEN - 4) != crc32c::crc32c(&head[..HEAD_LEN - 4]) {
        return Err(JournalError::Head);
    }
    let version = u16::from_le_bytes([head[4], head[5]]);
    if version != VERSION {
        return Err(JournalError::UnknownVersion { version, newest: VERSION });
    }
    if u64_at(head, 6) != fingerprint(spec) {
        return Err(JournalError::SpecMismatch { name: spec.name.clone() });
    }
    Ok(u64_at(head, 14))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

struct Frame<'a> {
    durable: u64,
    payload: &'a [u8],
}

/// What stands at a place of a segment.
enum Found<'a> {
    Whole(Frame<'a>),
    /// A frame may begin here that needs this many bytes.
    Part(usize),
    Nothing,
}

impl<'a> Frame<'a> {
    /// What `bytes` begin with, which stand at `at` in a segment of `total` bytes.
    fn at(bytes: &'a [u8], at: u64, total: u64) -> Found<'a> {
        let left = total - at;
        let known = bytes.len().min(FRAME_MAGIC.len());
        if left < FRAME_LEN as u64 || bytes[..known] != FRAME_MAGIC[..known] {
            return Found::Nothing;
        }
        let Some(head) = bytes.get(..FRAME_LEN) else { return Found::Part(FRAME_LEN) };
        let len = FRAME_LEN as u64 + u64::from(u32_at(head, 4));
        // More than there is: not whole, whatever follows.
        let Some(len) = usize::try_from(len).ok().filter(|_| len <= left) else { return Found::Nothing };
        let Some(payload) = bytes.get(FRAME_LEN..len) else { return Found::Part(len) };
        let whole = u32_at(head, 16) == checksum(at, head, payload);
        if whole { Found::Whole(Self { durable: u64_at(head, 8), payload }) } else { Found::Nothing }
    }
}

/// The position is part of it, so that a frame that was copied to another place is none.
fn checksum(at: u64, head: &[u8], payload: &[u8]) -> u32 {
    // In one piece with the head: a frame may be so short that each further call counts.
    let mut place = [0; 8 + 16];
    place[..8].copy_from_slice(&at.to_le_bytes());
    place[8..].copy_from_slice(&head[..16]);
    crc32c::crc32c_append(crc32c::crc32c(&place), payload)
}

/// Whether a record must be durable before its answer is given. What else may be lost with the machine are acks, and
/// what follows from them.
pub(crate) const fn urgent(record: &Record) -> bool {
    !matches!(record, Record::Acked { .. } | Record::EpochOpened { .. } | Record::Failed { .. })
}

/// Writes the head of a segment whose first `durable` bytes are made durable before it is used.
#[cfg(any(test, feature = "file-store"))]
pub(crate) fn put_head(out: &mut Vec<u8>, spec: &DatasetSpec, durable: u64) {
    let start = out.len();
    out.extend(HEAD_MAGIC);
    out.extend(VERSION.to_le_bytes());
    for value in [fingerprint(spec), durable] {
        out.extend(value.to_le_bytes());
    }
    let sum = crc32c::crc32c(&out[start..]);
    out.extend(sum.to_le_bytes());
}

/// Writes a frame that will stand at byte `at` of its segment, of which `durable` bytes are durable by now. `None`, and
/// nothing is written, if the records take 4 GiB or more.
#[cfg(any(test, feature = "file-store"))]
pub(crate) fn put_frame(out: &mut Vec<u8>, at: u64, durable: u64, records: &[Record]) -> Option<()> {
    let start = out.len();
    out.extend(FRAME_MAGIC);
    out.extend([0; 4]);
    out.extend(durable.to_le_bytes());
    out.extend([0; 4]);
    for record in records {
        record.encode(out);
    }
    let Ok(len) = u32::try_from(out.len() - start - FRAME_LEN) else {
        out.truncate(start);
        return None;
    };
    let (head, payload) = out[start..].split_at_mut(FRAME_LEN);
    head[4..8].copy_from_slice(&len.to_le_bytes());
    let sum = checksum(at, head, payload);
    head[16..].copy_from_slice(&sum.to_le_bytes());
    Some(())
}

#[cfg(test)]
mod tests;
