//! Reads bytes as a snapshot: as they are; as the body of one whose head and checksum are right; or as what to do to a
//! ledger, and then to the body of its snapshot.

#![no_main]

use antdt_core::{Epoch, Generation, Incarnation, NodeId};
use antdt_shard::{DatasetSpec, LedgerSnapshot, Record, Recovery};
use libfuzzer_sys::fuzz_target;

mod specs;

fuzz_target!(|bytes: &[u8]| {
    let [choice, body @ ..] = bytes else { return };
    let spec = specs::spec(*choice);
    let whole;
    let made;
    let body = if choice & 0x40 == 0 {
        body
    } else {
        made = edited(&spec, body);
        &made
    };
    let bytes = if choice & 0x80 == 0 {
        let mut out = b"ADSN".to_vec();
        out.extend(1_u16.to_le_bytes());
        out.extend(specs::fingerprint(&spec));
        out.extend((body.len() as u64).to_le_bytes());
        out.extend(body);
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        whole = out;
        &whole
    } else {
        body
    };
    if let Ok(snapshot) = LedgerSnapshot::from_bytes(bytes, &spec) {
        assert_eq!(snapshot.to_bytes(), bytes, "what is accepted is written back as the same bytes");
        let mut recovery = Recovery::new(spec).expect("a valid data set");
        recovery.apply(&Record::Restored(Box::new(snapshot.clone()))).expect("a snapshot of its data set");
        specs::live(&snapshot, recovery);
    }
});

/// The body of the snapshot of a ledger that had these records, as far as they follow, with these bytes changed.
fn edited(spec: &DatasetSpec, mut bytes: &[u8]) -> Vec<u8> {
    let mut recovery = Recovery::new(spec.clone()).expect("a valid data set");
    let mut edits = Vec::new();
    while let [what, one, other, rest @ ..] = bytes {
        bytes = rest;
        let (epoch, position) = (Epoch(u32::from(what >> 4)), u64::from(*one));
        let record = match what & 7 {
            0 => Record::EpochOpened { share: u32::from(*one), epoch },
            1..=3 => Record::Acked { epoch, position, offset: u64::from(*other) },
            4 => Record::Failed { epoch, position },
            5 => Record::Fenced { node: NodeId::worker(position as u32), through: Incarnation(3) },
            6 => Record::GenerationStarted { generation: Generation(position) },
            _ => {
                edits.push((usize::from(*one) + usize::from(what >> 4) * 256, *other));
                continue;
            }
        };
        // Most do not follow.
        let _ = recovery.apply(&record);
    }
    let whole = recovery.snapshot().to_bytes();
    let mut body = whole[22..whole.len() - 4].to_vec();
    for (at, change) in edits {
        if let Some(byte) = body.get_mut(at) {
            *byte ^= change;
        }
    }
    body
}
