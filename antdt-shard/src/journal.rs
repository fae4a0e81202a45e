//! A segment of the log as bytes: what is appended, and what can be read back after a crash. No I/O.
//!
//! A segment is a head and any number of frames; a frame is what one call appended, so it is there as a whole or not
//! at all. The first frame of a segment that replaces others is a [`Record::Restored`] that stands for them.
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
//! A machine that stops may lose what it had not made durable, and any part of it. The end of a segment may thus be
//! torn, and is cut off. But a damaged frame below the highest mark of durability was whole once: that is a broken disk
//! or a hand at work, what follows may rest on it, and it is an error.
//!
//! Source: our design. The mark of durability is there because a checksum alone cannot tell the two apart.

use crate::error::DecodeError;
use crate::ledger::Record;
use crate::ledger::codec::{Reader, fingerprint};
use crate::spec::DatasetSpec;

const HEAD_MAGIC: [u8; 4] = *b"ADSJ";
const FRAME_MAGIC: [u8; 4] = *b"ADSF";
const VERSION: u16 = 1;
/// Bytes of the head of a segment.
pub(crate) const HEAD_LEN: usize = 4 + 2 + 8 + 8 + 4;
/// Bytes of a frame before its payload.
const FRAME_LEN: usize = 4 + 4 + 8 + 4;

/// Why a segment cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// It does not begin as a segment does.
    #[error("it does not begin with the whole head of a journal segment; it is damaged or no journal")]
    Head,
    /// Written by a later release.
    #[error(
        "its format version {version} is unknown, the newest known one is {newest}; read it with the release that wrote it"
    )]
    UnknownVersion {
        /// What it says.
        version: u16,
        /// What can be read.
        newest: u16,
    },
    /// It is of other settings.
    #[error(
        "it is not of data set {name:?} as it is set now; use the settings it was written with, or another folder"
    )]
    SpecMismatch {
        /// The data set that was asked for.
        name: String,
    },
    /// What was durable is damaged.
    #[error(
        "the frame at byte {at} is damaged although {durable} bytes were durable; use a copy of the segment"
    )]
    Damaged {
        /// Where.
        at: u64,
        /// Bytes of the segment that were whole once.
        durable: u64,
    },
    /// A frame is whole, but not its content.
    #[error("the frame at byte {at} holds something else than records")]
    Content {
        /// Where.
        at: u64,
        /// Why.
        #[source]
        source: DecodeError,
    },
}

/// What stands in a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The records, oldest first.
    pub records: Vec<Record>,
    /// Bytes of the head and the snapshot that it begins with, if it does.
    pub base: u64,
    /// Bytes that are whole. What follows was torn by a crash, and nobody was promised that it is durable.
    pub len: u64,
    /// Bytes that follow.
    pub torn: u64,
}

impl Segment {
    /// Reads a segment of a data set.
    ///
    /// # Errors
    /// If it is of another data set or a later format, or if something is damaged that was durable.
    pub fn read(bytes: &[u8], spec: &DatasetSpec) -> Result<Self, JournalError> {
        let base = read_head(bytes, spec)?;
        let mut durable = base;
        let mut records = Vec::new();
        let mut at = HEAD_LEN;
        while let Some(frame) = Frame::at(bytes, at) {
            let content = |source| JournalError::Content { at: at as u64, source };
            let mut reader = Reader::new(frame.payload);
            while !reader.rest().is_empty() {
                records.push(Record::read(&mut reader, spec).map_err(content)?);
            }
            durable = durable.max(frame.durable);
            at += FRAME_LEN + frame.payload.len();
        }
        let torn = bytes.len().saturating_sub(at) as u64;
        // A whole frame behind the damage tells how much was durable by then.
        let marks = (at..bytes.len()).filter(|later| bytes[*later..].starts_with(&FRAME_MAGIC));
        let later = marks.filter_map(|later| Frame::at(bytes, later)).map(|frame| frame.durable).max();
        durable = durable.max(later.unwrap_or(0));
        if (at as u64) < durable {
            return Err(JournalError::Damaged { at: at as u64, durable });
        }
        Ok(Self { records, base, len: at as u64, torn })
    }
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

impl<'a> Frame<'a> {
    /// The whole frame that begins there, if there is one.
    fn at(bytes: &'a [u8], at: usize) -> Option<Self> {
        let head = bytes.get(at..)?.get(..FRAME_LEN)?;
        let len = u32_at(head, 4) as usize;
        let payload = bytes[at + FRAME_LEN..].get(..len)?;
        let whole = head.starts_with(&FRAME_MAGIC) && u32_at(head, 16) == checksum(at as u64, head, payload);
        whole.then(|| Self { durable: u64_at(head, 8), payload })
    }
}

/// The position is part of it, so that a frame that was copied to another place is none.
fn checksum(at: u64, head: &[u8], payload: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&at.to_le_bytes()), &head[..16]);
    crc32c::crc32c_append(sum, payload)
}

/// Writes the head of a segment whose first `durable` bytes are made durable before it is used.
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
