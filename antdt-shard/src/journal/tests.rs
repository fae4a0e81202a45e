use antdt_core::Seed;

use super::*;
use crate::ledger::{LedgerSnapshot, Recovery};
use crate::testing::records::{History, specs};

/// A segment of a random life; the states of the ledger after each frame, with the length of the segment then.
struct Written {
    spec: DatasetSpec,
    bytes: Vec<u8>,
    states: Vec<(usize, LedgerSnapshot)>,
}

/// `durable_each`: how many frames lie between two marks of durability.
fn written(seed: u64, steps: u32, durable_each: usize) -> Written {
    let specs = specs();
    let spec = specs[seed as usize % specs.len()].clone();
    let history = History::play(spec.clone(), seed, steps);
    let mut bytes = Vec::new();
    put_head(&mut bytes, &spec, HEAD_LEN as u64);
    let mut recovery = Recovery::new(spec.clone()).unwrap();
    let mut states = vec![(bytes.len(), recovery.snapshot())];
    let mut durable = bytes.len();
    for (number, group) in history.groups.iter().enumerate() {
        let at = bytes.len();
        put_frame(&mut bytes, at as u64, durable as u64, group).unwrap();
        if (number + 1).is_multiple_of(durable_each) {
            durable = bytes.len();
        }
        for record in group {
            recovery.apply(record).unwrap();
        }
        states.push((bytes.len(), recovery.snapshot()));
    }
    assert_eq!(recovery.snapshot(), history.ledger.snapshot());
    Written { spec, bytes, states }
}

/// The segment, and the state of the ledger that it gives.
fn fold(bytes: &[u8], spec: &DatasetSpec) -> Result<(Segment, LedgerSnapshot), JournalError> {
    let (segment, recovery) = Segment::fold(bytes, Recovery::new(spec.clone()).unwrap())?;
    Ok((segment, recovery.snapshot()))
}

/// The same, of bytes that come in pieces.
fn fold_pieces(
    bytes: &[u8],
    spec: &DatasetSpec,
    rng: &mut antdt_core::DetRng,
) -> Result<(Segment, LedgerSnapshot), JournalError> {
    let mut reader = SegmentReader::new(Recovery::new(spec.clone()).unwrap(), bytes.len() as u64);
    let (mut start, mut end) = (0, 0);
    while start < bytes.len() {
        end = (end + rng.below(40) as usize).min(bytes.len());
        let used = reader.take(&bytes[start..end])?;
        assert!(used > 0 || end - start < reader.wanted().min(bytes.len() - start), "it goes on");
        start += used;
    }
    let (segment, recovery) = reader.finish()?;
    Ok((segment, recovery.snapshot()))
}

#[test]
fn every_prefix_of_a_journal_recovers_to_a_state_that_was_true_once() {
    for seed in 0..12 {
        let Written { spec, bytes, states } = written(seed, 120, usize::MAX);
        let mut next = 0;
        for len in HEAD_LEN..=bytes.len() {
            if states.get(next + 1).is_some_and(|(end, _)| *end <= len) {
                next += 1;
            }
            let (end, state) = &states[next];
            let (segment, recovered) = fold(&bytes[..len], &spec).unwrap();
            assert_eq!((segment.len, segment.torn), (*end as u64, (len - end) as u64));
            // The state of that moment as a whole: nothing is acknowledged in it that was not then.
            assert_eq!(&recovered, state);
            assert!(recovered.counts().balance());
        }
        assert_eq!(next, states.len() - 1);
        for len in 0..HEAD_LEN {
            assert_eq!(fold(&bytes[..len], &spec), Err(JournalError::Head));
        }
    }
}

#[test]
fn damage_of_durable_records_is_an_error_that_names_the_place() {
    let Written { spec, bytes, states } = written(1, 60, 1);
    let (last, _) = states[states.len() - 2];
    for at in HEAD_LEN..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x20;
        let frame = states.iter().rev().map(|(start, _)| *start).find(|start| *start <= at).unwrap();
        match fold(&damaged, &spec) {
            // No caller was promised the last frame.
            Ok((segment, _)) => assert_eq!((frame, segment.len), (last, last as u64)),
            Err(error) => {
                let expected = JournalError::Damaged { at: frame as u64, durable: last as u64 };
                assert!(frame < last);
                assert_eq!(error, expected);
            }
        }
    }
    // The middle is gone altogether.
    let (start, end) = (states[3].0, states[6].0);
    let cut = [&bytes[..start], &bytes[end..]].concat();
    assert!(matches!(fold(&cut, &spec), Ok((s, _)) if s.len == start as u64));
    let mut blank = bytes;
    blank[start..end].fill(0);
    assert!(matches!(fold(&blank, &spec), Err(JournalError::Damaged { at, .. }) if at == start as u64));
}

#[test]
fn damage_of_records_that_were_not_durable_is_a_torn_tail_even_before_whole_frames() {
    let Written { spec, bytes, states } = written(2, 60, usize::MAX);
    let (start, state) = &states[4];
    let mut torn = bytes.clone();
    torn[*start + 8] ^= 1;
    let (segment, recovered) = fold(&torn, &spec).unwrap();
    assert_eq!((segment.len, segment.torn), (*start as u64, (bytes.len() - start) as u64));
    assert_eq!(&recovered, state);
}

#[test]
fn a_damaged_journal_is_refused_or_gives_a_state_that_was_true_once() {
    let (mut refused, mut cut) = (0, 0);
    for seed in 0..3_000_u64 {
        let mut rng = Seed(seed).rng();
        let Written { spec, mut bytes, states } = written(seed % 40, 40, 1 + rng.below(6) as usize);
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(6) {
                0 => drop(bytes.remove(at)),
                1 => bytes.insert(at, rng.next_u64() as u8),
                2 => bytes.truncate(at.max(1)),
                3 => {
                    let end = (at + rng.below(600) as usize).min(bytes.len());
                    bytes[at..end].fill(0);
                }
                _ => bytes[at] ^= 1 << rng.below(8),
            }
        }
        let folded = fold(&bytes, &spec);
        assert_eq!(fold_pieces(&bytes, &spec, &mut rng), folded, "however the bytes come");
        match folded {
            Err(_) => refused += 1,
            Ok((segment, recovered)) => {
                cut += 1;
                let state = states.iter().find(|(end, _)| *end as u64 == segment.len);
                assert_eq!(recovered, state.expect("a frame ends there").1);
            }
        }
    }
    assert!(refused > 500 && cut > 500, "{refused} refused, {cut} cut");
}

#[test]
fn a_journal_says_why_it_is_refused() {
    let Written { spec, bytes, .. } = written(0, 10, 1);
    let other = DatasetSpec { cut: crate::spec::Cut::Every(11), ..spec.clone() };
    assert_eq!(fold(&bytes, &other), Err(JournalError::SpecMismatch { name: spec.name.clone() }));
    let mut later = bytes.clone();
    later[4] = 2;
    let sum = crc32c::crc32c(&later[..HEAD_LEN - 4]).to_le_bytes();
    later[HEAD_LEN - 4..HEAD_LEN].copy_from_slice(&sum);
    assert_eq!(fold(&later, &spec), Err(JournalError::UnknownVersion { version: 2, newest: 1 }));
    // A frame that is whole and holds no records: not damage, but something that we did not write.
    let mut strange = bytes[..HEAD_LEN].to_vec();
    put_frame(&mut strange, HEAD_LEN as u64, 0, &[]).unwrap();
    strange[HEAD_LEN + 4] = 1;
    strange.push(99);
    let (head, payload) = strange[HEAD_LEN..].split_at(FRAME_LEN);
    let sum = checksum(HEAD_LEN as u64, head, payload).to_le_bytes();
    strange[HEAD_LEN + 16..HEAD_LEN + 20].copy_from_slice(&sum);
    assert!(matches!(fold(&strange, &spec), Err(JournalError::Content { at: 26, .. })));
    // A record that is whole and of another story.
    let mut unfit = bytes[..HEAD_LEN].to_vec();
    let acked = Record::Acked { epoch: antdt_core::Epoch(0), position: 0, offset: 1 };
    put_frame(&mut unfit, HEAD_LEN as u64, 0, &[acked]).unwrap();
    assert!(matches!(fold(&unfit, &spec), Err(JournalError::Unfit { at: 26, .. })));
}
