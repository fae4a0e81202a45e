use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use antdt_core::{CheckpointId, Generation, ParamGroup, ParamLayout, Seed, TableSpec};
use antdt_model::{Portion, TablePortion, Trained, initial_rows};
use antdt_shard::{DatasetSpec, LedgerCut, ShardLedger};
use proptest::prelude::*;
use safetensors::SafeTensors;
use tempfile::TempDir;

use super::export::export_on;
use super::*;
use crate::manifest::FileEntry;
use crate::manifest::tests::sample;
use crate::{Dtype, Manifest, ManifestError, ModelState, Retention, StateTensor, TensorSpec};

const FIRST: CheckpointId = CheckpointId(1);
const SECOND: CheckpointId = CheckpointId(2);

fn layout() -> ParamLayout {
    let groups = vec![ParamGroup::trainable("deep.0.weight", 5), ParamGroup::state("mean", 2)];
    let tables = vec![TableSpec::new("clicks", 40, 3, 0.5), TableSpec::new("wide", 7, 1, 0.0)];
    ParamLayout::new(groups, tables).unwrap()
}

/// A whole model whose numbers all differ, and differ from those of another `mark`.
fn whole(mark: f32) -> Portion {
    let mut next = mark * 1000.0;
    let mut numbers = |len: usize| -> Vec<f32> {
        (0..len)
            .map(|_| {
                next += 1.0;
                next
            })
            .collect()
    };
    let mut table = |rows: &[u64], dim: usize| TablePortion {
        rows: rows.to_vec(),
        values: numbers(rows.len() * dim),
        state: vec![numbers(rows.len() * dim)],
    };
    let tables = vec![table(&[0, 1, 7, 39], 3), table(&[2, 6], 1)];
    Portion { dense_from: 0, dense: numbers(7), dense_state: vec![numbers(7)], tables }
}

/// The model in parts: cut at these places of the flat vector, rows dealt by their number.
fn split(model: &Portion, cuts: &[usize]) -> Vec<Portion> {
    let ends = cuts.iter().copied().chain([model.dense.len()]);
    let starts = [0].into_iter().chain(cuts.iter().copied());
    let parts = cuts.len() as u64 + 1;
    starts
        .zip(ends)
        .zip(0..)
        .map(|((start, end), part)| {
            let pick = |from: &[f32]| from[start..end].to_vec();
            let deal = |table: &TablePortion| {
                let own: Vec<usize> =
                    (0..table.rows.len()).filter(|at| table.rows[*at] % parts == part).collect();
                let dim = table.values.len().checked_div(table.rows.len()).unwrap_or(0);
                let pick =
                    |from: &Vec<f32>| own.iter().flat_map(|at| from[at * dim..][..dim].to_vec()).collect();
                TablePortion {
                    rows: own.iter().map(|at| table.rows[*at]).collect(),
                    values: pick(&table.values),
                    state: table.state.iter().map(pick).collect(),
                }
            };
            Portion {
                dense_from: start,
                dense: pick(&model.dense),
                dense_state: model.dense_state.iter().map(|state| pick(state)).collect(),
                tables: model.tables.iter().map(deal).collect(),
            }
        })
        .collect()
}

fn spec() -> DatasetSpec {
    DatasetSpec::new("clicks", 1_000, 100)
}

fn cut(checkpoint: CheckpointId) -> LedgerCut {
    ShardLedger::new(spec(), Generation(1)).unwrap().cut(checkpoint, 0).unwrap()
}

fn manifest(checkpoint: CheckpointId, files: Vec<FileEntry>) -> Manifest {
    let mut manifest = sample();
    manifest.checkpoint = checkpoint;
    manifest.job.layout = layout();
    manifest.ledger = cut(checkpoint).binding();
    manifest.trained = Trained { steps: checkpoint.0 * 10, samples: 0 };
    manifest.created_unix_s = checkpoint.0 * 100;
    manifest.files = files;
    manifest
}

/// Takes a checkpoint of these parts.
fn take(folder: &Folder, id: CheckpointId, parts: &[Portion]) -> Result<Manifest, CheckpointWriteError> {
    let write = |(number, part)| folder.write_part(id, &format!("server-{number}"), &layout(), part);
    let files = parts.iter().enumerate().map(write).collect::<Result<_, _>>()?;
    folder.commit(manifest(id, files), &cut(id))
}

fn temporary() -> (TempDir, Folder) {
    let dir = TempDir::new().unwrap();
    let folder = Folder::create(dir.path().join("checkpoints")).unwrap();
    (dir, folder)
}

fn portions(checkpoint: &Checkpoint) -> Vec<Portion> {
    checkpoint.portions().collect::<Result<_, _>>().unwrap()
}

/// A model that is a program's own, of `layout()`.
fn program_state() -> ModelState {
    let spec =
        |name: &str, dtype, shape: &[u64]| TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() };
    let weight = StateTensor { spec: spec("model.weight", Dtype::Bf16, &[2, 3]), bytes: (0..12).collect() };
    let step = StateTensor { spec: spec("optimizer.step", Dtype::I64, &[]), bytes: vec![7; 8] };
    ModelState { outline: "{\"tensors\": 2}".to_owned(), tensors: vec![weight, step] }
}

#[test]
fn a_model_of_a_programs_own_is_the_whole_model_of_its_checkpoint() {
    let (dir, folder) = temporary();
    let part = folder.write_state(FIRST, &program_state()).unwrap();
    folder.commit(manifest(FIRST, vec![part]), &cut(FIRST)).unwrap();
    let found = folder.newest().unwrap().checkpoint.unwrap();
    assert_eq!(found.state().unwrap(), Some(program_state()));
    assert_eq!(found.portions().count(), 0);
    let error = export(&found, &dir.path().join("out"), false).unwrap_err().to_string();
    assert!(error.contains("a program's own") && error.contains("program.safetensors"), "{error}");

    take(&folder, SECOND, &split(&whole(2.0), &[3])).unwrap();
    assert_eq!(folder.open_checkpoint(SECOND).unwrap().state().unwrap(), None);

    let file = place(&folder, FIRST).join("program.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let damaged = folder.open_checkpoint(FIRST).unwrap();
    assert!(matches!(damaged.verify(), Err(CheckpointReadError::Checksum { .. })));
    assert!(matches!(damaged.state(), Err(CheckpointReadError::Checksum { .. })));
    let portion = &split(&whole(2.0), &[3])[0];
    let taken = folder.write_part(CheckpointId(3), "program", &layout(), portion);
    assert!(matches!(taken, Err(CheckpointWriteError::Name { .. })), "the name says what is in a file");
}

/// The number of the newest valid checkpoint; its parts are those that were written.
fn newest(folder: &Folder) -> Option<u64> {
    let found = folder.newest().unwrap().checkpoint?;
    let id = found.manifest().checkpoint.0;
    assert_eq!(portions(&found), split(&whole(id as f32), &[3]), "checkpoint {id}");
    found.ledger_cut(&spec()).unwrap();
    Some(id)
}

fn place(folder: &Folder, id: CheckpointId) -> PathBuf {
    folder.path().join(format!("{:020}", id.0))
}

fn files(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_folder_of_a_checkpoint_is_known_by_its_name() {
    let of = |path: &str| Folder::of_checkpoint(Path::new(path));
    let name = "00000000000000000003";
    let third = |folder: &str| Some((PathBuf::from(folder), CheckpointId(3)));
    assert_eq!(of(&format!("a/b/{name}")), third("a/b"));
    assert_eq!(of(&format!("a/b/{name}/")), third("a/b"));
    assert_eq!(of(&format!("s3://bucket/jobs/{name}")), third("s3://bucket/jobs"));
    assert_eq!(of(name), third("."));
    for path in ["a/b", "a/b/3", "a/0000000000000000000x", "/", ""] {
        assert_eq!(of(path), None, "{path}");
    }
}

#[test]
fn a_checkpoint_reads_back_with_everything_that_was_written() {
    let (_dir, folder) = temporary();
    assert_eq!(folder.next_id().unwrap(), FIRST);
    let written = take(&folder, FIRST, &split(&whole(1.0), &[3])).unwrap();
    assert_eq!(
        files(&place(&folder, FIRST)),
        ["ledger.cut", "manifest.json", "server-0.safetensors", "server-1.safetensors"]
    );
    assert_eq!(files(folder.path()).len(), 1, "nothing is left of the probe");
    let found = folder.open_checkpoint(FIRST).unwrap();
    assert_eq!(found.manifest(), &written);
    assert_eq!(written.files.len(), 3);
    found.verify().unwrap();
    assert_eq!(newest(&folder), Some(1));
    assert_eq!(found.ledger_cut(&spec()).unwrap(), cut(FIRST));
    assert_eq!(folder.next_id().unwrap(), SECOND);
    let other = Folder::open(folder.path()).unwrap();
    assert_eq!(other.list().unwrap()[0].manifest.as_ref().unwrap(), &written);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_model_split_in_any_way_comes_back_bit_for_bit(
        cuts in prop::collection::btree_set(0_usize..=7, 0..4),
        bits in prop::collection::vec(any::<u32>(), 7 * 3),
        touched in [prop::collection::btree_set(0_u64..40, 0..12), prop::collection::btree_set(0_u64..7, 0..7)],
        states in 0_usize..3,
    ) {
        // Any bits: infinities and what is no number too.
        let float = |at: usize| f32::from_bits(bits[at % bits.len()]);
        let array = |start: usize, len: usize| (start..start + len).map(float).collect::<Vec<_>>();
        let table = |(rows, dim): (&std::collections::BTreeSet<u64>, usize)| {
            let len = rows.len() * dim;
            let state = (0..states).map(|number| array(number + 5, len)).collect();
            TablePortion { rows: rows.iter().copied().collect(), values: array(2, len), state }
        };
        let model = Portion {
            dense_from: 0,
            dense: array(0, 7),
            dense_state: (0..states).map(|number| array(7 * number, 7)).collect(),
            tables: touched.iter().zip([3, 1]).map(table).collect(),
        };
        let parts = split(&model, &cuts.into_iter().collect::<Vec<_>>());
        let (_dir, folder) = temporary();
        take(&folder, FIRST, &parts).unwrap();
        let found = folder.newest().unwrap();
        prop_assert!(found.passed_over.is_empty());
        let back = portions(&found.checkpoint.unwrap());
        prop_assert_eq!(back.len(), parts.len());
        for (back, part) in back.iter().zip(&parts) {
            prop_assert_eq!(back.dense_from, part.dense_from);
            let (back, part) = (crate::part::arrays(back), crate::part::arrays(part));
            prop_assert_eq!(back.collect::<Vec<_>>(), part.collect::<Vec<_>>());
        }
    }
}

/// Takes a second checkpoint and drops the first in a process that dies after each possible number of changes. `place` makes an
/// empty folder, and says how another process opens it.
fn dies_anywhere<P>(place: impl Fn() -> (P, Folder), open: impl Fn(&P) -> Folder) {
    let retention = Retention { newest: 1, max_age: None, pinned: None };
    for changes in 0.. {
        let (kept, folder) = place();
        take(&folder, FIRST, &split(&whole(1.0), &[3])).unwrap();
        folder.storage.fault().changes.store(changes, Relaxed);
        let taken = take(&folder, SECOND, &split(&whole(2.0), &[3]));
        let done = taken.is_ok() && folder.retain(&retention, 300).is_ok();
        let other = open(&kept);
        let found = newest(&other).unwrap_or_else(|| panic!("none after {changes} changes"));
        assert!(found == 2 || taken.is_err(), "what was committed is there, after {changes} changes");
        let next = other.next_id().unwrap();
        assert!(next.0 > found);
        take(&other, next, &split(&whole(next.0 as f32), &[3])).unwrap();
        assert_eq!(newest(&other), Some(next.0));
        other.retain(&retention, 300).unwrap();
        let left = other.storage.names(other.path()).unwrap();
        assert_eq!(left, [format!("{:020}", next.0)], "nothing is left over");
        if done {
            assert!(changes > 10, "{changes}");
            return;
        }
    }
}

#[test]
fn a_process_that_dies_between_any_two_changes_leaves_a_whole_checkpoint() {
    dies_anywhere(temporary, |dir| Folder::open(dir.path().join("checkpoints")).unwrap());
}

#[test]
fn no_file_has_its_name_before_it_is_durable_and_the_manifest_is_last() {
    let (_dir, folder) = temporary();
    folder.storage.fault().log.lock().unwrap().clear();
    take(&folder, FIRST, &[whole(1.0)]).unwrap();
    let log = folder.storage.fault().log.lock().unwrap().clone();
    let id = format!("{:020}", 1);
    let at = |what: &str| {
        log.iter().position(|change| change == what).unwrap_or_else(|| panic!("{what} in {log:?}"))
    };
    let part = format!("{id}/server-0.safetensors");
    for name in [&part, &format!("{id}/ledger.cut"), &format!("{id}/manifest.json")] {
        assert!(at(&format!("write {name}.part")) < at(&format!("sync {name}.part")));
        assert!(at(&format!("sync {name}.part")) < at(&format!("rename {name}")));
    }
    let folder_synced: Vec<usize> =
        (0..log.len()).filter(|at| log[*at] == format!("sync checkpoints/{id}")).collect();
    let manifest = at(&format!("rename {id}/manifest.json"));
    for name in [&part, &format!("{id}/ledger.cut")] {
        let renamed = at(&format!("rename {name}"));
        assert!(folder_synced.iter().any(|synced| (renamed..manifest).contains(synced)), "{log:?}");
    }
    let made = at(&format!("make checkpoints/{id}"));
    assert!(
        (made..manifest).any(|at| log[at].starts_with("sync ") && log[at].ends_with("/checkpoints")),
        "{log:?}"
    );
    assert_eq!(folder_synced.last(), Some(&(log.len() - 1)), "its name is durable when it is committed");
}

#[test]
fn a_full_disk_ends_an_attempt_in_one_line_and_leaves_the_checkpoint_before() {
    let (_dir, folder) = temporary();
    let all = take(&folder, FIRST, &split(&whole(1.0), &[3])).unwrap();
    let due = all.bytes() + all.to_json().len() as u64;
    // Within the first part, between the parts, in the second, in the ledger's half, in the manifest.
    let places =
        [0, 100, all.files[0].bytes, all.files[0].bytes + 900, all.bytes() - 1, all.bytes(), due - 1];
    for room in places {
        let (_dir, folder) = temporary();
        take(&folder, FIRST, &split(&whole(1.0), &[3])).unwrap();
        folder.storage.fault().room.store(room, Relaxed);
        let error = take(&folder, SECOND, &split(&whole(2.0), &[3])).unwrap_err();
        assert!(error.is_full(), "{error}");
        let text = error.to_string();
        assert!(text.contains("free room on that disk") && !text.contains('\n'), "{text}");
        folder.abandon(SECOND).unwrap();
        assert_eq!(files(folder.path()), [format!("{:020}", 1)], "with room for {room} bytes");
        assert_eq!(newest(&folder), Some(1));
        folder.storage.fault().room.store(u64::MAX, Relaxed);
        take(&folder, SECOND, &split(&whole(2.0), &[3])).unwrap();
        assert_eq!(newest(&folder), Some(2));
    }
    // The commit itself clears away.
    folder.storage.fault().room.store(due - 1, Relaxed);
    assert!(take(&folder, SECOND, &split(&whole(2.0), &[3])).unwrap_err().is_full());
    assert_eq!(files(folder.path()), [format!("{:020}", 1)]);
    folder.storage.fault().room.store(due, Relaxed);
    take(&folder, SECOND, &split(&whole(2.0), &[3])).unwrap();
}

#[test]
fn a_folder_that_cannot_be_written_is_refused_before_the_job_begins() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = Folder::create(file.join("checkpoints")).unwrap_err().to_string();
    assert!(
        error.contains("file/checkpoints") && error.contains("name a folder that this user can write to"),
        "{error}"
    );
    // The kernel's own files: not even root makes one there.
    let error = Folder::create("/proc/self").unwrap_err().to_string();
    assert!(error.contains("cannot create /proc/self/probe-") && !error.contains('\n'), "{error}");
    for missing in [dir.path().join("none"), file] {
        let error = Folder::open(&missing).unwrap_err();
        assert!(matches!(error, CheckpointReadError::NoFolder(_)), "{error}");
    }
}

/// Damages a checkpoint that is newer than a good one; says what `newest` says of it.
fn damaged(damage: impl FnOnce(&Path)) -> String {
    let (_dir, folder) = temporary();
    take(&folder, FIRST, &split(&whole(1.0), &[3])).unwrap();
    take(&folder, SECOND, &split(&whole(2.0), &[3])).unwrap();
    damage(&place(&folder, SECOND));
    let found = folder.newest().unwrap();
    assert_eq!(found.checkpoint.unwrap().manifest().checkpoint, FIRST);
    assert_eq!(found.passed_over.len(), 1);
    let (id, why) = &found.passed_over[0];
    assert_eq!(*id, SECOND);
    assert!(!matches!(why, CheckpointReadError::Io { .. }), "{why}");
    let text = why.to_string();
    assert!(text.contains("00000000000000000002") && text.contains(';') && !text.contains('\n'), "{text}");
    // A caller that reads it all the same gets no wrong number.
    if let Ok(found) = folder.open_checkpoint(SECOND) {
        let read: Result<Vec<_>, _> = found.portions().collect();
        assert!(read.is_err() || found.ledger_cut(&spec()).is_err(), "{text}");
    }
    assert_eq!(newest(&folder), Some(1));
    text
}

#[test]
fn each_damage_is_named_with_file_and_remedy_and_the_older_checkpoint_is_taken() {
    const PART: &str = "server-1.safetensors";
    let change = |name: &'static str, change: fn(&mut Vec<u8>)| {
        damaged(move |place| {
            let path = place.join(name);
            let mut bytes = fs::read(&path).unwrap();
            change(&mut bytes);
            fs::write(path, bytes).unwrap();
        })
    };
    let torn = change(PART, |bytes| bytes.truncate(bytes.len() - 1));
    assert!(torn.contains(PART) && torn.contains("it is torn"), "{torn}");
    for flip in [
        (|bytes| bytes[0] ^= 1) as fn(&mut Vec<u8>),
        |bytes| bytes[7] ^= 0x80,
        |bytes| bytes[40] ^= 1,
        |bytes| *bytes.last_mut().unwrap() ^= 0x40,
    ] {
        let text = change(PART, flip);
        assert!(text.contains(PART) && text.contains("crc32c"), "{text}");
    }
    let text = change("ledger.cut", |bytes| bytes[20] ^= 1);
    assert!(text.contains("ledger.cut") && text.contains("crc32c"), "{text}");
    let text = change(Manifest::NAME, |bytes| bytes.truncate(100));
    assert!(text.contains(Manifest::NAME) && text.contains("EOF"), "{text}");
    let text = change(Manifest::NAME, |bytes| *bytes = b"manifest".to_vec());
    assert!(text.contains("not a manifest"), "{text}");
    let text = damaged(|place| {
        let manifest = fs::File::options().write(true).open(place.join(Manifest::NAME)).unwrap();
        manifest.set_len(1 << 40).unwrap();
    });
    assert!(text.contains("more than 67108864 bytes"), "{text}");
    let text = change(Manifest::NAME, |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        *bytes = text.replacen("\"format\": 1", "\"format\": 7", 1).into_bytes();
    });
    assert!(text.contains("format = 7") && text.contains("up to 1"), "{text}");
    let text = damaged(|place| fs::remove_file(place.join(PART)).unwrap());
    assert!(text.contains(PART) && text.contains("missing"), "{text}");
    let text = damaged(|place| fs::remove_file(place.join(Manifest::NAME)).unwrap());
    assert!(text.contains("no manifest.json"), "{text}");
    let text = damaged(|place| {
        let one = place.parent().unwrap().join(format!("{:020}", 1));
        fs::copy(one.join(Manifest::NAME), place.join(Manifest::NAME)).unwrap();
    });
    assert!(text.contains("it is of checkpoint 1"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_damage_of_any_file_goes_unseen_or_panics(
        file in 0_usize..4,
        place_in_file in any::<prop::sample::Index>(),
        damage in prop_oneof![(1_u8..=255).prop_map(Some), Just(None)],
    ) {
        let text = damaged(|place| {
            let path = place.join(&files(place)[file]);
            let mut bytes = fs::read(&path).unwrap();
            let at = place_in_file.index(bytes.len());
            match damage {
                Some(bits) => bytes[at] ^= bits,
                None => bytes.truncate(at),
            }
            fs::write(path, bytes).unwrap();
        });
        prop_assert!(!text.is_empty());
    }
}

#[test]
fn parts_of_another_model_or_not_all_of_them_are_refused_by_name() {
    let (_dir, folder) = temporary();
    let parts = split(&whole(1.0), &[3]);
    // The same parts, under a manifest of a model with another table.
    let files: Vec<FileEntry> = parts
        .iter()
        .enumerate()
        .map(|(number, part)| folder.write_part(FIRST, &format!("server-{number}"), &layout(), part).unwrap())
        .collect();
    let mut other = manifest(FIRST, files);
    other.job.layout =
        ParamLayout::new(layout().groups().to_vec(), vec![TableSpec::new("lines", 40, 3, 0.5)]).unwrap();
    folder.commit(other, &cut(FIRST)).unwrap();
    let found = folder.newest().unwrap();
    assert!(found.checkpoint.is_none());
    let why = found.passed_over[0].1.to_string();
    assert!(
        why.contains("server-0.safetensors: the rows of table `lines` are missing; take another"),
        "{why}"
    );
    // One part is not listed.
    let write = |number: usize| {
        folder.write_part(SECOND, &format!("server-{number}"), &layout(), &parts[number]).unwrap()
    };
    let files = vec![write(1)];
    folder.commit(manifest(SECOND, files), &cut(SECOND)).unwrap();
    let why = folder.open_checkpoint(SECOND).unwrap().verify().unwrap_err().to_string();
    assert!(why.contains("the dense values 0..3 are in no part"), "{why}");
}

#[test]
fn a_commit_that_does_not_fit_its_files_removes_the_attempt() {
    type Change = fn(&mut Manifest, &Path);
    let changes: [(Change, &str); 5] = [
        (|_, place| fs::remove_file(place.join("server-0.safetensors")).unwrap(), "the file is missing"),
        (|_, place| fs::write(place.join("server-0.safetensors"), "x").unwrap(), "it has 1 bytes"),
        (|manifest, _| manifest.files.clear(), "no part of the model"),
        (|manifest, _| manifest.files.push(manifest.files[0].clone()), "listed twice"),
        (|manifest, _| manifest.ledger.acked = 5, "the ledger was cut as 2:0:"),
    ];
    for (change, says) in changes {
        let (_dir, folder) = temporary();
        take(&folder, FIRST, &split(&whole(1.0), &[3])).unwrap();
        let file = folder.write_part(SECOND, "server-0", &layout(), &whole(2.0)).unwrap();
        let mut manifest = manifest(SECOND, vec![file]);
        change(&mut manifest, &place(&folder, SECOND));
        let error = folder.commit(manifest, &cut(SECOND)).unwrap_err();
        assert!(matches!(error, CheckpointWriteError::Unfit { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(files(folder.path()).len(), 1);
        assert_eq!(newest(&folder), Some(1));
    }
}

#[test]
fn a_whole_checkpoint_is_neither_written_to_nor_abandoned() {
    let (_dir, folder) = temporary();
    let parts = split(&whole(1.0), &[3]);
    let written = take(&folder, FIRST, &parts).unwrap();
    let refused = [
        folder.write_part(FIRST, "server-0", &layout(), &parts[0]).unwrap_err(),
        folder.commit(written, &cut(FIRST)).unwrap_err(),
        folder.abandon(FIRST).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, CheckpointWriteError::Whole { checkpoint: FIRST, .. }), "{error}");
    }
    assert_eq!(newest(&folder), Some(1));
    folder.abandon(CheckpointId(9)).unwrap();
    for name in ["", "a/b", "..", ".hidden", "ä"] {
        let error = folder.write_part(SECOND, name, &layout(), &parts[0]).unwrap_err();
        assert!(matches!(error, CheckpointWriteError::Name { .. }), "{error}");
    }
    let other = ParamLayout::dense(2);
    let error = folder.write_part(SECOND, "replica", &other, &parts[0]).unwrap_err();
    assert!(
        matches!(error, CheckpointWriteError::Part { .. })
            && error.to_string().contains("replica.safetensors"),
        "{error}"
    );
    assert_eq!(files(folder.path()).len(), 1, "nothing was begun");
}

#[test]
fn a_cut_of_other_settings_is_refused_with_the_flag() {
    let (_dir, folder) = temporary();
    take(&folder, FIRST, &[whole(1.0)]).unwrap();
    let found = folder.open_checkpoint(FIRST).unwrap();
    let error = found.ledger_cut(&DatasetSpec::new("clicks", 1_001, 100)).unwrap_err();
    assert!(matches!(error, CheckpointReadError::Ledger { .. }), "{error}");
    assert!(error.to_string().contains("ledger.cut") && error.to_string().contains("--shard-len"), "{error}");
}

#[test]
fn old_checkpoints_and_attempts_go_and_unreadable_ones_stay() {
    let (_dir, folder) = temporary();
    let ids: Vec<CheckpointId> = (1..=6).map(CheckpointId).collect();
    for id in &ids {
        take(&folder, *id, &split(&whole(id.0 as f32), &[3])).unwrap();
    }
    // 3 is an attempt, 2 of a newer format, 7 an attempt that may still be going on.
    fs::remove_file(place(&folder, ids[2]).join(Manifest::NAME)).unwrap();
    fs::write(place(&folder, ids[1]).join(Manifest::NAME), "{\"format\": 2}").unwrap();
    folder.write_part(CheckpointId(7), "replica", &layout(), &whole(7.0)).unwrap();
    fs::create_dir(folder.path().join("notes")).unwrap();
    let listed = folder.list().unwrap();
    assert_eq!(listed.iter().map(|found| found.checkpoint.0).collect::<Vec<_>>(), [7, 6, 5, 4, 3, 2, 1]);
    assert!(matches!(
        listed[5].manifest,
        Err(CheckpointReadError::Manifest { error: ManifestError::Newer { .. }, .. })
    ));
    // Number n is of second n * 100.
    let retention = Retention { newest: 3, max_age: Some(Duration::from_secs(100)), pinned: None };
    let removed: Vec<u64> = folder.retain(&retention, 610).unwrap().iter().map(|id| id.0).collect();
    assert_eq!(removed, [1, 3, 4, 5]);
    assert_eq!(newest(&folder), Some(6));
    assert_eq!(files(folder.path()).len(), 4);
    assert!(folder.retain(&retention, 1_000_000).unwrap().is_empty(), "the newest stays, however old");
    let missing = folder.open_checkpoint(ids[0]).unwrap_err();
    assert!(matches!(missing, CheckpointReadError::NoCheckpoint { .. }), "{missing}");
}

#[test]
fn a_checkpoint_disappears_manifest_first() {
    let (_dir, folder) = temporary();
    for id in [FIRST, SECOND] {
        take(&folder, id, &split(&whole(id.0 as f32), &[3])).unwrap();
    }
    folder.storage.fault().log.lock().unwrap().clear();
    folder.retain(&Retention { newest: 1, max_age: None, pinned: None }, 0).unwrap();
    let id = format!("{:020}", 1);
    let expected = [
        format!("remove {id}/manifest.json"),
        format!("sync checkpoints/{id}"),
        format!("remove checkpoints/{id}"),
    ];
    assert_eq!(*folder.storage.fault().log.lock().unwrap(), expected);
}

#[test]
fn halves_of_two_moments_are_not_put_together() {
    let (_dir, folder) = temporary();
    let written = take(&folder, FIRST, &[whole(1.0)]).unwrap();
    let path = place(&folder, FIRST).join(Manifest::NAME);
    let mut other = written.clone();
    other.ledger.digest ^= 1;
    fs::write(&path, other.to_json()).unwrap();
    let found = folder.open_checkpoint(FIRST).unwrap();
    let error = found.ledger_cut(&spec()).unwrap_err();
    assert!(matches!(error, CheckpointReadError::Pair { .. }), "{error}");
    assert!(error.to_string().contains(&written.ledger.to_string()), "{error}");
}

#[test]
fn the_exported_model_has_every_row_and_nothing_of_the_optimizer() {
    for cuts in [&[][..], &[3], &[0, 5, 7]] {
        let (dir, folder) = temporary();
        take(&folder, FIRST, &split(&whole(1.0), cuts)).unwrap();
        let found = folder.open_checkpoint(FIRST).unwrap();
        let out = dir.path().join("model.safetensors");
        let exported = export(&found, &out, false).unwrap();
        let bytes = fs::read(&out).unwrap();
        assert_eq!(exported, Exported { tensors: 4, values: 7 + 120 + 7, bytes: bytes.len() as u64 });
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = metadata.metadata().clone().unwrap();
        assert_eq!(
            (metadata["antdt.steps"].as_str(), metadata["antdt.job.global-batch-size"].as_str()),
            ("10", "128")
        );
        let values = |name: &str| {
            let tensor = tensors.tensor(name).unwrap();
            (tensor.shape().to_vec(), bytemuck::pod_collect_to_vec::<u8, f32>(tensor.data()))
        };
        let model = whole(1.0);
        assert_eq!(values("deep.0.weight"), (vec![5], model.dense[..5].to_vec()));
        assert_eq!(values("mean"), (vec![2], model.dense[5..].to_vec()));
        for (number, spec) in layout().tables().iter().enumerate() {
            let mut expected = Vec::new();
            initial_rows(&layout(), Seed(sample().job.rows_seed), number, 0..spec.rows, &mut expected);
            let table = &model.tables[number];
            for (row, values) in table.rows.iter().zip(table.values.chunks_exact(spec.dim)) {
                expected[*row as usize * spec.dim..][..spec.dim].copy_from_slice(values);
            }
            assert_eq!(values(&spec.name), (vec![spec.rows as usize, spec.dim], expected));
        }
        let error = export(&found, &out, false).unwrap_err();
        assert!(
            error.to_string().contains("it exists; name another file, or replace it with --force"),
            "{error}"
        );
        fs::write(&out, "old").unwrap();
        export(&found, &out, true).unwrap();
        assert_eq!(fs::read(&out).unwrap(), bytes);
        assert_eq!(files(dir.path()), ["checkpoints", "model.safetensors"]);
    }
}

#[test]
fn tables_of_many_chunks_are_exported_row_by_row() {
    let layout = ParamLayout::new(vec![], vec![TableSpec::new("t", 70_001, 8, 0.25)]).unwrap();
    let rows: Vec<u64> = (0..70_001).step_by(613).chain([32_768, 65_535, 65_536, 70_000]).collect();
    let rows: Vec<u64> = rows.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let values: Vec<f32> = (0..rows.len() * 8).map(|at| at as f32 + 10.0).collect();
    let table = TablePortion { rows: rows.clone(), values: values.clone(), state: vec![] };
    let portion = Portion { dense_from: 0, dense: vec![], dense_state: vec![], tables: vec![table] };
    let (dir, folder) = temporary();
    let file = folder.write_part(FIRST, "replica", &layout, &portion).unwrap();
    let mut manifest = manifest(FIRST, vec![file]);
    manifest.job.layout = layout.clone();
    folder.commit(manifest, &cut(FIRST)).unwrap();
    let out = dir.path().join("m.safetensors");
    export(&folder.open_checkpoint(FIRST).unwrap(), &out, false).unwrap();
    let bytes = fs::read(&out).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let found: Vec<f32> = bytemuck::pod_collect_to_vec(tensors.tensor("t").unwrap().data());
    let mut expected = Vec::new();
    initial_rows(&layout, Seed(sample().job.rows_seed), 0, 0..70_001, &mut expected);
    for (row, values) in rows.iter().zip(values.chunks_exact(8)) {
        expected[*row as usize * 8..][..8].copy_from_slice(values);
    }
    assert!(found == expected);
}

#[test]
fn an_export_that_fails_leaves_the_file_that_was_there() {
    let (dir, folder) = temporary();
    take(&folder, FIRST, &split(&whole(1.0), &[3])).unwrap();
    let found = folder.open_checkpoint(FIRST).unwrap();
    let out = dir.path().join("model.safetensors");
    fs::write(&out, "old").unwrap();
    let full = disk::Disk::default();
    full.fault.room.store(200, Relaxed);
    let error = export_on(&full, &found, &out, true).unwrap_err();
    assert!(matches!(&error, ExportError::Write(error) if error.is_full()), "{error}");
    let part = place(&folder, FIRST).join("server-0.safetensors");
    let mut bytes = fs::read(&part).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&part, bytes).unwrap();
    let error = export(&found, &out, true).unwrap_err().to_string();
    assert!(error.contains("server-0.safetensors") && error.contains("crc32c"), "{error}");
    assert_eq!(fs::read(&out).unwrap(), b"old");
    assert_eq!(files(dir.path()), ["checkpoints", "model.safetensors"]);
    let folder_out = dir.path().join("checkpoints");
    assert!(matches!(export(&found, &folder_out, true), Err(ExportError::NotAFile(_))));
    // A table that is called as a group cannot stand beside it.
    let layout = ParamLayout::dense(2).with_table(TableSpec::new("dense", 2, 1, 0.0)).unwrap();
    let table = TablePortion::default();
    let portion = Portion { dense_from: 0, dense: vec![1.0, 2.0], dense_state: vec![], tables: vec![table] };
    let file = folder.write_part(SECOND, "replica", &layout, &portion).unwrap();
    let mut manifest = manifest(SECOND, vec![file]);
    manifest.job.layout = layout;
    folder.commit(manifest, &cut(SECOND)).unwrap();
    let error = export(&folder.open_checkpoint(SECOND).unwrap(), &dir.path().join("x"), false).unwrap_err();
    assert!(error.to_string().contains("`dense` is taken"), "{error}");
}

#[test]
fn a_url_of_no_store_is_refused_with_an_example_of_one() {
    for (url, says) in [
        (
            "ftp://host/x",
            if cfg!(feature = "object-store") { "must be s3, gs or az" } else { "--features remote" },
        ),
        (
            "s3://bucket/x",
            if cfg!(feature = "object-store") { "object-store-aws" } else { "--features remote" },
        ),
    ] {
        if cfg!(feature = "object-store-aws") {
            continue;
        }
        let errors =
            [Folder::create(url).unwrap_err().to_string(), Folder::open(url).unwrap_err().to_string()];
        for error in errors {
            assert!(error.starts_with(url) && error.contains(says) && !error.contains('\n'), "{error}");
        }
    }
    assert!(!Path::new("ftp:").exists(), "it is no folder either");
}

#[cfg(feature = "object-store")]
mod objects {
    //! The same in an object store.

    use std::sync::Arc;

    use object_store::local::LocalFileSystem;
    use object_store::memory::InMemory;

    use super::*;

    const PREFIX: &str = "jobs/7/checkpoints";

    fn in_memory() -> (Arc<InMemory>, Folder) {
        let store = Arc::new(InMemory::new());
        let folder = Folder::create_in(Arc::clone(&store) as _, PREFIX).unwrap();
        (store, folder)
    }

    #[test]
    fn a_process_that_dies_between_any_two_requests_leaves_a_whole_checkpoint() {
        dies_anywhere(in_memory, |store| Folder::create_in(Arc::clone(store) as _, PREFIX).unwrap());
    }

    #[test]
    fn the_objects_are_the_files() {
        let dir = TempDir::new().unwrap();
        let store = Arc::new(LocalFileSystem::new_with_prefix(dir.path()).unwrap());
        let folder = Folder::create_in(store, PREFIX).unwrap();
        take(&folder, FIRST, &split(&whole(1.0), &[3])).unwrap();
        let (_kept, on_disk) = temporary();
        take(&on_disk, FIRST, &split(&whole(1.0), &[3])).unwrap();
        let there = dir.path().join(PREFIX);
        assert_eq!(newest(&Folder::open(&there).unwrap()), Some(1));
        for name in files(&place(&on_disk, FIRST)) {
            let read = |folder: &Path| fs::read(folder.join(format!("{:020}", 1)).join(&name)).unwrap();
            assert_eq!(read(&there), read(on_disk.path()), "{name}");
        }
        assert_eq!(files(&there).len(), 1, "nothing is left of the probe");
    }

    #[test]
    fn a_part_of_many_pieces_comes_back_and_one_that_breaks_off_leaves_nothing() {
        let (store, folder) = in_memory();
        let len = 13_000_001;
        let layout = ParamLayout::dense(len);
        let dense: Vec<f32> = (0..len).map(|at| at as f32).collect();
        let portion = Portion { dense_from: 0, dense, ..Default::default() };
        let file = folder.write_part(FIRST, "replica", &layout, &portion).unwrap();
        assert!(file.bytes > 3 * (16 << 20));
        let mut manifest = manifest(FIRST, vec![file]);
        manifest.job.layout = layout.clone();
        folder.commit(manifest, &cut(FIRST)).unwrap();
        let other = Folder::create_in(Arc::clone(&store) as _, PREFIX).unwrap();
        let found = other.newest().unwrap().checkpoint.unwrap();
        assert!(portions(&found) == [portion.clone()]);
        drop(other);
        // The checkpoint still reads when the folder is gone.
        found.verify().unwrap();

        folder.storage.fault().changes.store(40, Relaxed);
        let error = folder.write_part(SECOND, "replica", &layout, &portion).unwrap_err().to_string();
        assert!(error.contains("jobs/7/checkpoints/00000000000000000002/replica.safetensors"), "{error}");
        folder.storage.fault().changes.store(u64::MAX, Relaxed);
        assert_eq!(folder.storage.names(folder.path()).unwrap(), [format!("{:020}", 1)]);
    }

    #[test]
    fn old_objects_go_with_their_checkpoint() {
        let (_store, folder) = in_memory();
        assert_eq!(folder.next_id().unwrap(), FIRST);
        for id in 1..=3 {
            take(&folder, CheckpointId(id), &split(&whole(id as f32), &[3])).unwrap();
        }
        let removed = folder.retain(&Retention { newest: 1, max_age: None, pinned: None }, 0).unwrap();
        assert_eq!(removed, [FIRST, SECOND]);
        assert_eq!(folder.storage.names(folder.path()).unwrap().len(), 1);
        assert_eq!(newest(&folder), Some(3));
        let error = folder.write_part(CheckpointId(3), "x", &layout(), &whole(1.0)).unwrap_err();
        assert!(matches!(error, CheckpointWriteError::Whole { .. }), "{error}");
        let missing = folder.open_checkpoint(FIRST).unwrap_err();
        assert!(matches!(missing, CheckpointReadError::NoCheckpoint { .. }), "{missing}");
        folder.abandon(CheckpointId(9)).unwrap();
        assert!(Folder::create_in(Arc::new(InMemory::new()), "a//b").is_err());
    }
}
