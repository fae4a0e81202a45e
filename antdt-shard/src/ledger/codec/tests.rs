use antdt_core::Seed;
use proptest::prelude::*;

use super::*;
use crate::ledger::Recovery;
use crate::testing::records::{History, specs};

fn encoded(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

/// A state in the middle of a random life, of the data set that the seed chooses.
fn state(seed: u64) -> (DatasetSpec, LedgerSnapshot) {
    let specs = specs();
    let spec = specs[seed as usize % specs.len()].clone();
    let snapshot = History::play(spec.clone(), seed, 30 + (seed % 7) as u32 * 40).ledger.snapshot();
    (spec, snapshot)
}

/// The same bytes with a checksum that fits: what only the checks behind it can refuse.
fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 4;
    let sum = crc32c::crc32c(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&sum);
    bytes
}

/// One to three bytes changed, removed or inserted, or some numbers exchanged.
fn mutate(bytes: &mut Vec<u8>, rng: &mut antdt_core::DetRng) {
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(12) {
            0 => drop(bytes.remove(at)),
            1 => bytes.insert(at, rng.next_u64() as u8),
            2 => bytes.truncate(at.max(1)),
            3 if bytes.len() >= at + 16 => bytes[at..at + 16].rotate_left(8),
            4 if bytes.len() >= at + 8 => {
                let extremes = [u64::MAX, u64::MAX / 2, 1 << 32, 0];
                let value = extremes[rng.below(4) as usize];
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            5 | 6 => bytes[at] = bytes[at].wrapping_add(1),
            7 | 8 => bytes[at] = bytes[at].wrapping_sub(1),
            _ => bytes[at] ^= 1 << rng.below(8),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn every_record_comes_back_from_its_bytes(
        kind in 0..5_u8, a in any::<u32>(), b in any::<u64>(), c in any::<u64>(), server in any::<bool>(),
    ) {
        let node = if server { NodeId::server(a) } else { NodeId::worker(a) };
        let record = match kind {
            0 => Record::GenerationStarted { generation: Generation(b) },
            1 => Record::EpochOpened { share: a, epoch: Epoch(b as u32) },
            2 => Record::Acked { epoch: Epoch(a), position: b, offset: c },
            3 => Record::Failed { epoch: Epoch(a), position: b },
            _ => Record::Fenced { node, through: Incarnation(c as u32) },
        };
        let spec = &specs()[0];
        let mut bytes = encoded(&record);
        prop_assert_eq!(Record::decode(&bytes, spec), Ok(record));
        for len in 0..bytes.len() {
            let cut = matches!(Record::decode(&bytes[..len], spec), Err(DecodeError::Truncated { .. }));
            prop_assert!(cut);
        }
        bytes.push(0);
        prop_assert_eq!(Record::decode(&bytes, spec), Err(DecodeError::Trailing { extra: 1 }));
    }

    #[test]
    fn every_state_comes_back_from_its_bytes(seed in any::<u64>()) {
        let (spec, snapshot) = state(seed);
        let bytes = snapshot.to_bytes();
        prop_assert_eq!(&LedgerSnapshot::from_bytes(&bytes, &spec), &Ok(snapshot.clone()));
        let record = Record::Restored(Box::new(snapshot));
        prop_assert_eq!(Record::decode(&encoded(&record), &spec), Ok(record));
    }
}

#[test]
fn damaged_bytes_are_refused_or_are_a_state() {
    let (mut refused, mut accepted) = (0, 0);
    for seed in 0..20_000_u64 {
        let (spec, snapshot) = state(seed % 120);
        let mut rng = Seed(seed).rng();
        let whole = snapshot.to_bytes();
        let mut bytes = whole.clone();
        mutate(&mut bytes, &mut rng);
        if bytes == whole {
            continue;
        }
        assert!(
            LedgerSnapshot::from_bytes(&bytes, &spec).is_err(),
            "the checksum misses a change, seed {seed}"
        );

        // Half of the time also within the body alone, so that more than the head is looked at.
        if seed % 2 == 0 {
            bytes = whole[..HEAD].to_vec();
            let mut body = whole[HEAD..whole.len() - 4].to_vec();
            mutate(&mut body, &mut rng);
            bytes[HEAD - 8..].copy_from_slice(&(body.len() as u64).to_le_bytes());
            bytes.extend(body);
            bytes.extend([0; 4]);
        }
        if bytes.len() < 4 {
            continue;
        }
        let bytes = with_checksum(bytes);
        match LedgerSnapshot::from_bytes(&bytes, &spec) {
            Err(_) => refused += 1,
            Ok(snapshot) => {
                accepted += 1;
                assert_eq!(snapshot.to_bytes(), bytes, "one state, two writings; seed {seed}");
                assert!(snapshot.counts().balance());
                train_to_the_end(snapshot, &spec);
            }
        }
    }
    // A change of a fence, a generation or a fault count makes another state that is as good.
    assert!(refused > 10_000 && accepted > 100, "{refused} refused, {accepted} accepted");
}

/// Hands out and acknowledges what is left. A state that is none would panic here, or end with wrong counts.
fn train_to_the_end(snapshot: LedgerSnapshot, spec: &DatasetSpec) {
    use antdt_core::{Ack, FetchOutcome, Holder, RequestId};

    if spec.epochs == Epochs::Infinite || snapshot.counts().quarantined > spec.quarantine_limit() {
        return;
    }
    let workers = spec.share_count();
    let Some(generation) = snapshot.generation().unwrap_or_default().0.checked_add(1).map(Generation) else {
        return;
    };
    let before = snapshot.counts();
    let mut recovery = Recovery::new(spec.clone()).unwrap();
    recovery.apply(&Record::Restored(Box::new(snapshot))).unwrap();
    let mut ledger = recovery.finish(generation).unwrap();
    let mut request = RequestId(0);
    let mut trained = 0;
    for index in 0..workers {
        let node = NodeId::worker(index);
        let life = ledger.book.fence(node).map_or(Some(0), |fence| fence.0.checked_add(1));
        let Some(life) = life else { return };
        let holder = Holder::new(node, Incarnation(life));
        ledger.register(holder).unwrap();
        loop {
            request = request.next();
            match ledger.fetch(holder, generation, request).unwrap() {
                FetchOutcome::Granted(grant) => {
                    trained += grant.len - grant.resume_at;
                    ledger.ack(holder, Ack { lease: grant.lease, offset: grant.len }).unwrap();
                }
                FetchOutcome::Wait { .. } | FetchOutcome::EndOfData => break,
                FetchOutcome::AtLimit => panic!("everything was acknowledged"),
            }
        }
    }
    assert!(ledger.is_finished());
    let after = ledger.counts();
    assert_eq!((after.todo, after.acked), (0, before.acked + before.todo));
    assert_eq!(trained, before.todo);
}

#[test]
fn every_cut_of_a_snapshot_is_refused() {
    let (spec, snapshot) = state(3);
    let bytes = snapshot.to_bytes();
    for len in 0..bytes.len() {
        assert!(LedgerSnapshot::from_bytes(&bytes[..len], &spec).is_err(), "{len} bytes");
    }
    let extended = [&bytes[..], &[7, 7]].concat();
    assert_eq!(LedgerSnapshot::from_bytes(&extended, &spec), Err(DecodeError::Trailing { extra: 2 }));
}

#[test]
fn a_snapshot_says_why_it_is_refused() {
    let (spec, snapshot) = state(0);
    let bytes = snapshot.to_bytes();
    let changed = |at: usize, with: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        LedgerSnapshot::from_bytes(&bytes, &spec).unwrap_err()
    };
    assert_eq!(changed(0, b"x"), DecodeError::NotASnapshot);
    assert_eq!(changed(4, &[9, 0]), DecodeError::UnknownVersion { version: 9, newest: 2 });
    assert!(matches!(changed(bytes.len() - 6, &[0xff]), DecodeError::Checksum { .. }));
    let bomb = changed(HEAD - 8, &u64::MAX.to_le_bytes());
    assert!(matches!(bomb, DecodeError::Truncated { needed: u64::MAX, .. }), "{bomb}");

    // A count that promises more than there is costs nothing.
    let mut fences = bytes.clone();
    fences[HEAD + 18..HEAD + 26].copy_from_slice(&(u64::MAX / 16).to_le_bytes());
    let bomb = LedgerSnapshot::from_bytes(&with_checksum(fences), &spec).unwrap_err();
    assert!(matches!(bomb, DecodeError::Truncated { .. }), "{bomb}");

    let mut counters = bytes.clone();
    let at = counters.len() - 4 - 3 * 8;
    counters[at] = counters[at].wrapping_add(1);
    let counters = LedgerSnapshot::from_bytes(&with_checksum(counters), &spec).unwrap_err();
    assert!(counters.to_string().starts_with("the sample accounts do not add up"), "{counters}");

    let record = Record::decode(&[9], &spec).unwrap_err();
    assert_eq!(record, DecodeError::Unknown { what: "record kind", value: 9, at: 0 });
    let role = Record::decode(&[5, 2, 0, 0, 0, 0, 0, 0, 0, 0], &spec).unwrap_err();
    assert_eq!(role, DecodeError::Unknown { what: "role", value: 2, at: 1 });
}

#[test]
fn a_snapshot_belongs_to_one_setting_of_one_data_set() {
    let (spec, snapshot) = state(0);
    let bytes = snapshot.to_bytes();
    let others = [
        DatasetSpec { name: "another".to_owned(), ..spec.clone() },
        DatasetSpec { num_samples: spec.num_samples + 1, ..spec.clone() },
        DatasetSpec { cut: Cut::Every(spec.shard_len_max() + 1), ..spec.clone() },
        DatasetSpec { epochs: Epochs::Finite(7), ..spec.clone() },
        DatasetSpec { epochs: Epochs::Infinite, ..spec.clone() },
        DatasetSpec { shuffle: Shuffle::Shards, ..spec.clone() },
        DatasetSpec { seed: Seed(99), ..spec.clone() },
        DatasetSpec { epoch_overlap: 3, ..spec.clone() },
        DatasetSpec { delivery: Delivery::AtMostOnce, ..spec.clone() },
        DatasetSpec { max_data_faults: 9, ..spec.clone() },
        DatasetSpec { on_quarantine: OnQuarantine::FailJob, ..spec.clone() },
        DatasetSpec { max_leases_per_holder: 9, ..spec.clone() },
        DatasetSpec { assignment: Assignment::Static { workers: 1 }, ..spec },
    ];
    for other in others {
        let refused = LedgerSnapshot::from_bytes(&bytes, &other);
        assert_eq!(refused, Err(DecodeError::SpecMismatch { name: other.name.clone() }), "{other:?}");
    }
}

/// Pinned: a change here makes every snapshot that was ever written unreadable, and needs a new format version.
#[test]
fn the_bytes_of_a_snapshot_stay_the_same() {
    let bytes = History::play(specs()[0].clone(), 0, 200).ledger.snapshot().to_bytes();
    assert_eq!((bytes.len(), crc32c::crc32c(&bytes[..bytes.len() - 4])), PINNED);
}

const PINNED: (usize, u32) = (223, 1_695_721_872);

/// A ledger with shards in every state: one share, ten shards and a shorter one, in the second of three epochs.
fn book() -> Book {
    let spec = DatasetSpec { shuffle: Shuffle::None, epoch_overlap: 1, ..specs()[0].clone() };
    let mut book = Book::new(spec).unwrap();
    let records = [
        Record::GenerationStarted { generation: Generation(1) },
        Record::Fenced { node: NodeId::worker(1), through: Incarnation(3) },
        Record::EpochOpened { share: 0, epoch: Epoch(0) },
        Record::Acked { epoch: Epoch(0), position: 0, offset: 10 },
        Record::Acked { epoch: Epoch(0), position: 4, offset: 7 },
        Record::Failed { epoch: Epoch(0), position: 5 },
        Record::Failed { epoch: Epoch(0), position: 7 },
        Record::Failed { epoch: Epoch(0), position: 7 },
        Record::EpochOpened { share: 0, epoch: Epoch(1) },
    ];
    for record in &records {
        book.apply(record).unwrap();
    }
    book
}

#[test]
fn every_contradiction_is_named() {
    let place = |position| Place { epoch: Epoch(0), position };
    let begun = |offset, faults| Begun { offset, faults };
    type Change = Box<dyn Fn(&mut Book)>;
    let change = |change: fn(&mut Book)| -> Change { Box::new(change) };
    let in_first = move |position: u64, of: Begun| -> Change {
        Box::new(move |book| {
            book.shares[0].open[0].begun.insert(position, of);
        })
    };
    let given_up = move |at: Place, offset: u64| -> Change {
        Box::new(move |book| {
            let key = ShardKey { epoch: at.epoch, index: at.position };
            book.quarantined.insert(at, GivenUp { key, offset, len: 10 });
        })
    };
    let cases: Vec<(&str, Change)> = vec![
        ("a shard is in two states", in_first(2, begun(1, 0))),
        ("a shard that waits is done or given up", in_first(0, begun(10, 0))),
        ("a shard that waits is done or given up", in_first(0, begun(1, 2))),
        ("a shard that nobody touched is among the begun ones", in_first(0, begun(0, 0))),
        ("begun shards are not in order, or lie outside their share", in_first(11, begun(1, 0))),
        ("a shard is in two states", given_up(place(2), 0)),
        ("a shard is in two states", given_up(place(4), 0)),
        ("a quarantined shard is done", given_up(place(0), 10)),
        ("a quarantined shard is of no opened epoch", given_up(place(11), 0)),
        ("a quarantined shard is of no opened epoch", given_up(Place { epoch: Epoch(2), position: 0 }, 0)),
        ("the sample accounts do not add up", in_first(0, begun(1, 0))),
        ("the sample accounts do not add up", given_up(place(0), 0)),
        ("the sample accounts do not add up", change(|book| book.account.job.acked += 1)),
        ("a share opened more epochs than there are", change(|book| book.shares[0].opened = 4)),
        ("the unclosed epochs are not in order, or not opened", change(|book| book.shares[0].opened = 1)),
        ("the unclosed epochs are not in order, or not opened", change(|book| book.shares[0].open.reverse())),
        (
            "an epoch without waiting shards is not closed",
            change(|book| {
                let pass = &mut book.shares[0].open[0];
                pass.untouched = RangeSet::default();
                pass.begun.clear();
            }),
        ),
        (
            "waiting shards overlap, or lie outside their share",
            change(|book| book.shares[0].open[1].untouched = RangeSet::of(0, 12)),
        ),
        (
            "more epochs are unclosed than may overlap",
            change(|book| {
                let again = book.shares[0].open[1].clone();
                book.shares[0].open.push(again);
            }),
        ),
        (
            "the number of shares is not that of the data set",
            change(|book| {
                let again = book.shares[0].clone();
                book.shares.push(again);
            }),
        ),
    ];
    let spec = book().spec;
    let whole = LedgerSnapshot { book: book() };
    assert_eq!(LedgerSnapshot::from_bytes(&whole.to_bytes(), &spec), Ok(whole));
    for (expected, change) in cases {
        let mut book = book();
        change(&mut book);
        match LedgerSnapshot::from_bytes(&LedgerSnapshot { book }.to_bytes(), &spec) {
            Err(DecodeError::Inconsistent { what, .. }) => assert_eq!(what, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
}
