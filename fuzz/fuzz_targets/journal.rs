//! Reads bytes as a segment of the log: as they are, or as the frames of one whose lengths and checksums are right.

#![no_main]

use antdt_shard::journal::{JournalError, Segment, SegmentReader};
use antdt_shard::{DatasetSpec, LedgerSnapshot, Recovery};
use libfuzzer_sys::fuzz_target;

mod specs;

fuzz_target!(|bytes: &[u8]| {
    let [choice, step, rest @ ..] = bytes else { return };
    let spec = specs::spec(*choice);
    let whole;
    let segment = if choice & 0x80 == 0 {
        whole = write(&spec, rest);
        &whole
    } else {
        rest
    };
    let fresh = Recovery::new(spec.clone()).expect("a valid data set");
    let folded = Segment::fold(segment, fresh.clone());
    let pieces = fold_pieces(segment, fresh, usize::from(*step) + 1);
    let states =
        |folded: &Result<(Segment, Recovery), JournalError>| -> Result<(Segment, LedgerSnapshot), _> {
            folded.as_ref().map(|(segment, recovery)| (*segment, recovery.snapshot())).map_err(Clone::clone)
        };
    assert_eq!(states(&folded), states(&pieces), "however the bytes come");
    if let Ok((read, recovery)) = folded {
        assert_eq!(read.len + read.torn, segment.len() as u64);
        specs::live(&recovery.snapshot(), recovery);
    }
});

/// A segment of these frames: the length of each, its mark of durability, whether it is damaged, its records.
fn write(spec: &DatasetSpec, mut frames: &[u8]) -> Vec<u8> {
    let mut out = b"ADSJ".to_vec();
    out.extend(1_u16.to_le_bytes());
    out.extend(specs::fingerprint(spec));
    out.extend(26_u64.to_le_bytes());
    out.extend(crc32c::crc32c(&out).to_le_bytes());
    while let [len, durable, damage, rest @ ..] = frames {
        let (records, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        frames = rest;
        let at = out.len();
        out.extend(b"ADSF");
        out.extend((records.len() as u32).to_le_bytes());
        out.extend((at as u64).min(u64::from(*durable) * 8).to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&(at as u64).to_le_bytes()), &out[at..]);
        out.extend(crc32c::crc32c_append(sum, records).to_le_bytes());
        out.extend(records);
        if *damage > 250 {
            out[at + 3] ^= damage;
        }
    }
    out
}

fn fold_pieces(segment: &[u8], recovery: Recovery, step: usize) -> Result<(Segment, Recovery), JournalError> {
    let mut reader = SegmentReader::new(recovery, segment.len() as u64);
    let (mut start, mut end) = (0, 0);
    while start < segment.len() {
        end = (end + step).min(segment.len());
        start += reader.take(&segment[start..end])?;
    }
    reader.finish()
}
