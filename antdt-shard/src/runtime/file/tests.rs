use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use antdt_core::{Epoch, Generation};
use tempfile::TempDir;

use super::*;
use crate::ledger::{LedgerSnapshot, Recovery};
use crate::testing::records::{History, specs};
use crate::testing::store::{check_store, suite_spec};

/// Small enough that each history fills many segments.
const SMALL: u64 = 2_000;

fn options(sync: SyncPolicy, segment_bytes: u64) -> FileStoreOptions {
    FileStoreOptions { sync, segment_bytes }
}

const NEVER: FileStoreOptions =
    FileStoreOptions { sync: SyncPolicy::Every(Duration::from_secs(3_600)), segment_bytes: SMALL };

fn fold(records: &[Record], spec: &DatasetSpec) -> LedgerSnapshot {
    let mut recovery = Recovery::new(spec.clone()).unwrap();
    for record in records {
        recovery.apply(record).unwrap();
    }
    recovery.snapshot()
}

async fn read(store: &mut FileStore, spec: &DatasetSpec) -> Result<LedgerSnapshot, FileStoreError> {
    let recovery = Recovery::new(spec.clone()).unwrap();
    store.load(recovery).await.map(|recovery| recovery.snapshot())
}

/// Names of the files in a folder but for the lock, in order.
fn files(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name != "lock").collect();
    names.sort();
    names
}

fn segment(folder: &Path) -> PathBuf {
    let names = files(folder);
    assert_eq!(names.len(), 1, "{names:?}");
    folder.join(&names[0])
}

#[tokio::test]
async fn the_store_in_a_folder_keeps_the_contract() {
    let often = SyncPolicy::Every(Duration::from_millis(1));
    let usual = FileStoreOptions::default();
    for options in [options(SyncPolicy::Each, SMALL), options(often, SMALL), options(usual.sync, 0), usual] {
        let folder = TempDir::new().unwrap();
        check_store(|| FileStore::open(folder.path(), suite_spec(), options).unwrap()).await;
        let compacted = segment(folder.path()) != folder.path().join("00000000000000000001.journal");
        assert_eq!(compacted, options.segment_bytes <= SMALL);
    }
}

#[tokio::test]
async fn the_log_stays_short_however_long_it_is_written() {
    for (seed, spec) in specs().into_iter().enumerate() {
        let folder = TempDir::new().unwrap();
        let mut store = FileStore::open(folder.path(), spec.clone(), NEVER).unwrap();
        let history = History::play(spec.clone(), seed as u64, 4_000);
        let mut longest = 0;
        for group in &history.groups {
            store.append(group).await.unwrap();
            read(&mut store, &spec).await.unwrap();
            longest = longest.max(fs::metadata(segment(folder.path())).unwrap().len());
        }
        // Twice a snapshot, or a snapshot and a segment; and the frame that reached it.
        let snapshot = history.ledger.snapshot().to_bytes().len() as u64;
        assert!(longest < 3 * (SMALL + 4 * snapshot), "{longest} bytes");
        assert_eq!(read(&mut store, &spec).await.unwrap(), history.ledger.snapshot());
    }
}

#[tokio::test]
async fn a_torn_end_is_cut_off_and_the_log_goes_on_from_there() {
    let spec = suite_spec();
    let groups = History::play(spec.clone(), 5, 300).groups;
    for torn in [1, 7, 19, 20, 30] {
        let folder = TempDir::new().unwrap();
        let open = || FileStore::open(folder.path(), spec.clone(), FileStoreOptions::default()).unwrap();
        let mut store = open();
        let mut lengths = Vec::new();
        for group in &groups {
            store.append(group).await.unwrap();
            lengths.push(fs::metadata(segment(folder.path())).unwrap().len());
        }
        drop(store);
        // The machine stopped while the last frames were on their way.
        let path = segment(folder.path());
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(lengths.last().unwrap() - torn).unwrap();
        let whole = lengths.iter().filter(|len| **len <= lengths.last().unwrap() - torn).count();

        let mut store = open();
        assert_eq!(read(&mut store, &spec).await.unwrap(), fold(&groups[..whole].concat(), &spec));
        assert_eq!(fs::metadata(&path).unwrap().len(), lengths[whole - 1]);
        for group in &groups[whole..] {
            store.append(group).await.unwrap();
        }
        drop(store);
        assert_eq!(read(&mut open(), &spec).await.unwrap(), fold(&groups.concat(), &spec));
    }
}

#[tokio::test]
async fn damage_in_the_middle_is_an_error_that_names_file_and_place() {
    let spec = suite_spec();
    let folder = TempDir::new().unwrap();
    let mut store =
        FileStore::open(folder.path(), spec.clone(), options(SyncPolicy::Each, 64 << 20)).unwrap();
    let groups = History::play(spec.clone(), 5, 300).groups;
    let mut lengths = Vec::new();
    for group in &groups {
        store.append(group).await.unwrap();
        lengths.push(fs::metadata(segment(folder.path())).unwrap().len());
    }
    drop(store);
    let path = segment(folder.path());
    let mut bytes = fs::read(&path).unwrap();
    bytes[lengths[10] as usize + 25] ^= 1;
    fs::write(&path, &bytes).unwrap();

    let mut store = FileStore::open(folder.path(), spec.clone(), FileStoreOptions::default()).unwrap();
    let durable = lengths[lengths.len() - 2];
    match read(&mut store, &spec).await.unwrap_err() {
        FileStoreError::Segment { path: at, source } => {
            assert_eq!((at, source), (path.clone(), JournalError::Damaged { at: lengths[10], durable }));
        }
        other => panic!("{other}"),
    }
    assert!(store.append(&groups[0]).await.is_err(), "nothing is built on a damaged log");
    assert_eq!(fs::read(&path).unwrap(), bytes, "and it is left as it is");
}

#[tokio::test]
async fn a_crash_between_two_segments_leaves_one_that_counts() {
    let spec = suite_spec();
    let folder = TempDir::new().unwrap();
    let open = || FileStore::open(folder.path(), spec.clone(), NEVER).unwrap();
    let groups = History::play(spec.clone(), 2, 1_000).groups;
    let mut store = open();
    for group in &groups {
        store.append(group).await.unwrap();
    }
    drop(store);
    let expected = fold(&groups.concat(), &spec);
    let path = segment(folder.path());
    // Before the rename: half of the next one under its unfinished name. After it: the old one is still there.
    let bytes = fs::read(&path).unwrap();
    fs::write(folder.path().join("00000000000000009999.tmp"), &bytes[..bytes.len() / 2]).unwrap();
    fs::write(folder.path().join("00000000000000000001.journal"), b"left over").unwrap();
    fs::write(folder.path().join("notes.txt"), b"not ours").unwrap();
    assert_eq!(read(&mut open(), &spec).await.unwrap(), expected);
    assert_eq!(files(folder.path()), [path.file_name().unwrap().to_str().unwrap(), "notes.txt"]);
}

#[tokio::test]
async fn a_folder_has_one_store_at_a_time() {
    let folder = TempDir::new().unwrap();
    let open = || FileStore::open(folder.path(), suite_spec(), FileStoreOptions::default());
    let first = open().unwrap();
    assert_eq!(first.folder(), folder.path());
    let error = open().unwrap_err();
    assert!(matches!(&error, FileStoreError::Locked { folder: f } if f == folder.path()), "{error}");
    drop(first);
    open().unwrap();
    let deep = folder.path().join("a/b/c");
    FileStore::open(&deep, suite_spec(), FileStoreOptions::default()).unwrap();
    assert!(deep.is_dir(), "it makes the folder");
}

#[tokio::test]
async fn a_folder_belongs_to_one_data_set() {
    let folder = TempDir::new().unwrap();
    let mut store = FileStore::open(folder.path(), suite_spec(), FileStoreOptions::default()).unwrap();
    store.append(&[Record::GenerationStarted { generation: Generation(1) }]).await.unwrap();
    drop(store);
    let other = DatasetSpec { num_samples: 7, ..suite_spec() };
    let mut store = FileStore::open(folder.path(), other.clone(), FileStoreOptions::default()).unwrap();
    let error = read(&mut store, &suite_spec()).await.unwrap_err();
    assert!(matches!(error, FileStoreError::Unfit { source: RecoverError::SpecMismatch { .. }, .. }));
    let error = read(&mut store, &other).await.unwrap_err();
    assert!(matches!(
        error,
        FileStoreError::Segment { source: JournalError::SpecMismatch { name }, .. } if name == "suite"
    ));
    let nonsense = DatasetSpec { num_samples: 0, ..suite_spec() };
    let error = FileStore::open(TempDir::new().unwrap().path(), nonsense, FileStoreOptions::default());
    assert!(matches!(error.unwrap_err(), FileStoreError::Unfit { .. }));
}

#[tokio::test]
async fn a_record_that_does_not_follow_leaves_no_trace() {
    let folder = TempDir::new().unwrap();
    let open = || FileStore::open(folder.path(), suite_spec(), FileStoreOptions::default()).unwrap();
    let mut store = open();
    let first = Record::GenerationStarted { generation: Generation(1) };
    store.append(std::slice::from_ref(&first)).await.unwrap();
    let second = Record::GenerationStarted { generation: Generation(2) };
    let unfit = Record::Acked { epoch: Epoch(0), position: 0, offset: 1 };
    let error = store.append(&[second.clone(), unfit]).await.unwrap_err();
    assert!(matches!(error, FileStoreError::Unfit { .. }), "{error}");
    store.append(std::slice::from_ref(&second)).await.unwrap();
    drop(store);
    assert_eq!(read(&mut open(), &suite_spec()).await.unwrap(), fold(&[first, second], &suite_spec()));
}

/// A store on a disk with so much room, which the caller may change.
fn with_room(folder: &Path, options: FileStoreOptions, room: u64) -> (FileStore, Arc<AtomicU64>) {
    let disk = Folder::open(folder, suite_spec(), options).unwrap();
    let left = disk.room.clone();
    left.store(room, Ordering::Relaxed);
    (FileStore::start(disk, folder.into()), left)
}

#[tokio::test]
async fn a_full_disk_takes_nothing_in_part_and_all_of_it_later() {
    let spec = suite_spec();
    let groups = History::play(spec.clone(), 9, 600).groups;
    for seed in 0..20 {
        let mut rng = antdt_core::Seed(seed).rng();
        let folder = TempDir::new().unwrap();
        let (mut store, room) = with_room(folder.path(), NEVER, 0);
        assert_eq!(read(&mut store, &spec).await.unwrap(), fold(&[], &spec));
        let mut full = 0;
        for (number, group) in groups.iter().enumerate() {
            room.store(rng.below(100), Ordering::Relaxed);
            while let Err(error) = store.append(group).await {
                full += 1;
                assert!(FileStore::is_full(&error), "{error}");
                if rng.below(4) == 0 {
                    // A reader finds the state of before.
                    let loaded = read(&mut store, &spec).await.unwrap();
                    assert_eq!(loaded, fold(&groups[..number].concat(), &spec));
                }
                room.store(rng.below(1_500), Ordering::Relaxed);
            }
        }
        assert!(full > 20, "full {full} times");
        drop(store);
        let mut store = FileStore::open(folder.path(), spec.clone(), NEVER).unwrap();
        assert_eq!(read(&mut store, &spec).await.unwrap(), fold(&groups.concat(), &spec));
    }
}

#[tokio::test]
async fn acks_wait_for_durability_and_records_that_must_not_be_lost_do_not() {
    let folder = TempDir::new().unwrap();
    let spec = suite_spec();
    let mut disk = Folder::open(folder.path(), spec.clone(), NEVER).unwrap();
    disk.append(&[Record::GenerationStarted { generation: Generation(1) }]).unwrap();
    assert_eq!(disk.sync_due(), None, "durable before it is answered");
    disk.append(&[Record::EpochOpened { share: 0, epoch: Epoch(0) }]).unwrap();
    assert!(disk.sync_due().is_some_and(|due| due > Duration::ZERO));
    let fence = Record::Fenced { node: antdt_core::NodeId::worker(0), through: antdt_core::Incarnation(0) };
    disk.append(&[Record::Acked { epoch: Epoch(0), position: 0, offset: 1 }, fence]).unwrap();
    assert_eq!(disk.sync_due(), None);
    disk.append(&[Record::Acked { epoch: Epoch(0), position: 0, offset: 2 }]).unwrap();
    assert!(disk.sync_due().is_some());
    disk.sync_late();
    assert_eq!(disk.sync_due(), None);
    drop(disk);

    let mut each = Folder::open(folder.path(), spec, options(SyncPolicy::Each, SMALL)).unwrap();
    each.append(&[Record::Acked { epoch: Epoch(0), position: 0, offset: 3 }]).unwrap();
    assert_eq!(each.sync_due(), None);
}

#[tokio::test]
async fn records_written_at_once_are_made_durable_in_time() {
    let (folder, spec) = (TempDir::new().unwrap(), suite_spec());
    let usual = FileStoreOptions { sync: SyncPolicy::Every(Duration::from_millis(1)), ..Default::default() };
    let mut store = FileStore::open(folder.path(), spec.clone(), usual).unwrap();
    let begin = Record::GenerationStarted { generation: Generation(1) };
    store.append(&[begin, Record::EpochOpened { share: 0, epoch: Epoch(0) }]).await.unwrap();
    let append_now = |store: &FileStore, position| {
        let ack = [Record::Acked { epoch: Epoch(0), position, offset: 1 }];
        // The thread may still be at work for the one before.
        let appended = (0..10_000_000).find_map(|_| {
            std::thread::yield_now();
            store.append_now(&ack)
        });
        appended.expect("the thread comes to rest").unwrap();
    };
    append_now(&store, 0);
    assert_eq!(read(&mut store, &spec).await.unwrap().counts().acked, 1);

    append_now(&store, 1);
    // No caller asks the thread for anything any more.
    let durable = || store.disk.lock().unwrap().sync_due().is_none();
    let soon = (0..10_000_000).any(|_| {
        std::thread::yield_now();
        durable()
    });
    assert!(soon, "it waits for somebody to ask");
}
