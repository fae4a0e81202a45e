use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use antdt_core::{Delivery, FetchOutcome, Generation, RequestId};

use super::*;
use crate::ledger::{Record, Recovery};
use crate::spec::{Assignment, Epochs, OnQuarantine, Shuffle};
use crate::store::{MemStore, NullStore};

fn worker(index: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(incarnation))
}

fn spec(name: &str) -> DatasetSpec {
    DatasetSpec::new(name, 100, 10)
}

fn forgetful() -> Catalog {
    Catalog::new(JobClock::start(), |_| Ok(NullStore))
}

async fn fetch(handle: &ShardHandle, holder: Holder) -> Result<FetchOutcome, SourceError> {
    let generation = handle.register(holder, vec![]).await?.generation;
    let exchanged =
        handle.exchange(holder, generation, RequestId(1), vec![].into(), 1, Duration::ZERO).await?;
    Ok(exchanged.fetched.expect("something was wanted"))
}

#[tokio::test]
async fn each_data_set_has_an_account_of_its_own() {
    let catalog = forgetful();
    for (name, num_samples) in [("train", 100), ("evaluate", 20), ("predict", 7)] {
        catalog.open(DatasetSpec { num_samples, ..spec(name) }).await.unwrap();
    }
    assert_eq!(catalog.names(), ["evaluate", "predict", "train"]);
    fetch(&catalog.get("train").unwrap(), worker(0, 0)).await.unwrap();
    let doing = |status: &Result<LedgerStatus, SourceError>| status.as_ref().unwrap().counts.doing;
    let status = catalog.status().await;
    assert_eq!(status.values().map(doing).collect::<Vec<_>>(), [0, 0, 10]);
    let ledgers = catalog.shutdown().await.unwrap();
    assert_eq!(ledgers["predict"].counts().todo, 7);
}

#[tokio::test]
async fn opening_a_data_set_again_finds_the_one_that_runs() {
    // The store keeps generations: a second start would show.
    let store = MemStore::default();
    let catalog = Catalog::new(JobClock::start(), move |_| Ok(store.clone()));
    let handle = catalog.open(spec("d")).await.unwrap();
    fetch(&handle, worker(0, 0)).await.unwrap();
    let again = catalog.open(spec("d")).await.unwrap();
    assert_eq!(again.status().await.unwrap(), handle.status().await.unwrap());

    let store = MemStore::default();
    let catalog = Catalog::new(JobClock::start(), move |_| Ok(store.clone()));
    let mut opening = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let catalog = catalog.clone();
        opening.spawn(async move { catalog.open(spec("e")).await.unwrap().status().await.unwrap() });
    }
    let all = opening.join_all().await;
    assert!(all.iter().all(|status| status.generation == Generation(1)), "{all:?}");
}

#[tokio::test]
async fn other_settings_are_refused_by_the_first_that_differs() {
    let catalog = forgetful();
    catalog.open(spec("d")).await.unwrap();
    let ends = |ends: &[u64]| Cut::At(ends.into());
    let others = [
        (DatasetSpec { num_samples: 101, epoch_overlap: 1, ..spec("d") }, "num_samples = 100", "101"),
        (DatasetSpec { cut: Cut::Every(5), ..spec("d") }, "cut = every 10 samples", "every 5 samples"),
        (DatasetSpec { cut: ends(&[1, 100]), ..spec("d") }, "cut = every 10 samples", "at 2 places"),
        (DatasetSpec { epochs: Epochs::Infinite, ..spec("d") }, "epochs = Finite(1)", "Infinite"),
        (DatasetSpec { shuffle: Shuffle::None, ..spec("d") }, "shuffle = ShardsAndSamples", "None"),
        (DatasetSpec { seed: Seed(7), ..spec("d") }, "seed = 0", "7"),
        (DatasetSpec { epoch_overlap: 1, ..spec("d") }, "epoch_overlap = 0", "1"),
        (DatasetSpec { delivery: Delivery::AtMostOnce, ..spec("d") }, "delivery = AtLeastOnce", "AtMostOnce"),
        (DatasetSpec { max_data_faults: 9, ..spec("d") }, "max_data_faults = 3", "9"),
        (
            DatasetSpec { on_quarantine: OnQuarantine::Continue { max_samples: 2 }, ..spec("d") },
            "on_quarantine = FailJob",
            "Continue { max_samples: 2 }",
        ),
        (DatasetSpec { max_leases_per_holder: 1, ..spec("d") }, "max_leases_per_holder = 2", "1"),
        (
            DatasetSpec { assignment: Assignment::Static { workers: 2 }, ..spec("d") },
            "assignment = Dynamic",
            "Static { workers: 2 }",
        ),
    ];
    for (other, open, asked) in others {
        let error = catalog.open(other).await.unwrap_err().to_string();
        assert!(error.contains(&format!("is open with {open} and was asked for with {asked};")), "{error}");
    }
    catalog.open(DatasetSpec { cut: ends(&[30, 60, 100]), ..spec("e") }).await.unwrap();
    let error = catalog.open(DatasetSpec { cut: ends(&[30, 70, 100]), ..spec("e") }).await.unwrap_err();
    assert!(error.to_string().contains("open with cut[1] = 60 and was asked for with 70"), "{error}");
    let error = catalog.open(DatasetSpec { num_samples: 0, ..spec("f") }).await.unwrap_err();
    assert_eq!(error.to_string(), "num_samples = 0: must be at least 1");
}

#[tokio::test]
async fn an_unknown_name_is_answered_with_those_there_are() {
    let catalog = forgetful();
    catalog.open(spec("train")).await.unwrap();
    let error = catalog.get("trian").unwrap_err();
    assert_eq!(error.to_string(), r#"there is no data set "trian"; there is ["train"]"#);
}

#[tokio::test]
async fn a_lost_worker_is_lost_for_every_data_set_also_for_later_ones() {
    let catalog = forgetful();
    for name in ["train", "evaluate"] {
        let handle = catalog.open(spec(name)).await.unwrap();
        fetch(&handle, worker(0, 3)).await.unwrap();
    }
    catalog.worker_lost(worker(0, 3)).await.unwrap();
    catalog.worker_lost(worker(0, 1)).await.unwrap();
    catalog.open(spec("predict")).await.unwrap();
    for name in catalog.names() {
        let handle = catalog.get(&name).unwrap();
        assert_eq!(handle.status().await.unwrap().counts.doing, 0);
        assert!(matches!(fetch(&handle, worker(0, 3)).await, Err(SourceError::Fenced(_))), "{name}");
        assert!(matches!(fetch(&handle, worker(0, 4)).await, Ok(FetchOutcome::Granted(_))), "{name}");
    }
}

/// Fails when told to, while it is opened or later.
#[derive(Clone, Default)]
struct FailingStore {
    kept: MemStore,
    broken: Arc<AtomicBool>,
}

impl FailingStore {
    fn works(&self) -> io::Result<()> {
        if self.broken.load(Ordering::Relaxed) {
            Err(io::Error::other("the disk is on fire"))
        } else {
            Ok(())
        }
    }
}

impl LedgerStore for FailingStore {
    type Error = io::Error;

    async fn load(&mut self, recovery: Recovery) -> io::Result<Recovery> {
        self.kept.load(recovery).await.map_err(io::Error::other)
    }

    async fn append(&mut self, records: &[Record]) -> io::Result<()> {
        self.works()?;
        self.kept.append(records).await.map_err(io::Error::other)
    }
}

#[tokio::test]
async fn a_data_set_whose_store_failed_is_told_apart_and_can_be_opened_again() {
    let store = FailingStore::default();
    let stores = store.clone();
    let catalog = Catalog::new(JobClock::start(), move |spec: &DatasetSpec| {
        let store = if spec.name == "d" { stores.clone() } else { FailingStore::default() };
        store.works()?;
        Ok(store)
    });
    let handle = catalog.open(spec("d")).await.unwrap();
    catalog.open(spec("e")).await.unwrap();
    store.broken.store(true, Ordering::Relaxed);
    assert!(handle.worker_lost(worker(9, 0)).await.is_err());
    let status = catalog.status().await;
    assert!(matches!(status["d"], Err(SourceError::Unavailable { .. })), "{status:?}");
    assert!(status["e"].is_ok());
    // The others are told all the same.
    assert!(catalog.worker_lost(worker(8, 0)).await.is_err());
    assert!(matches!(fetch(&catalog.get("e").unwrap(), worker(8, 0)).await, Err(SourceError::Fenced(_))));

    // The task ends a moment after its last answer.
    let error = loop {
        match catalog.open(spec("d")).await {
            Err(error) => break error,
            Ok(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(error.to_string(), r#"the store of data set "d" cannot be opened"#);
    assert_eq!(error.source().unwrap().to_string(), "the disk is on fire");
    store.broken.store(false, Ordering::Relaxed);
    let again = catalog.open(spec("d")).await.unwrap();
    assert_eq!(again.status().await.unwrap().generation, Generation(2));
    assert!(matches!(fetch(&again, worker(8, 0)).await, Err(SourceError::Fenced(_))), "lost meanwhile");
}

#[tokio::test]
async fn an_opening_goes_on_when_its_caller_has_gone() {
    let (entered, inside) = std::sync::mpsc::channel();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let (entered, gate) = (Mutex::new(entered), Mutex::new(gate));
    let catalog = Catalog::new(JobClock::start(), move |_| {
        entered.lock().unwrap().send(()).unwrap();
        gate.lock().unwrap().recv().unwrap();
        Ok(NullStore)
    });
    let asking = catalog.clone();
    let caller = tokio::spawn(async move { asking.open(spec("d")).await.map(drop) });
    tokio::task::spawn_blocking(move || inside.recv().unwrap()).await.unwrap();
    caller.abort();
    assert!(caller.await.is_err());
    go.send(()).unwrap();
    // Would wait for a second turn of the gate if it began anew.
    catalog.open(spec("d")).await.unwrap();
}

#[tokio::test]
async fn there_is_a_bound_and_an_end() {
    let catalog = forgetful();
    for index in 0..DATASETS_MAX {
        catalog.open(spec(&format!("d{index}"))).await.unwrap();
    }
    assert!(matches!(catalog.open(spec("one more")).await, Err(CatalogError::TooMany { .. })));
    catalog.open(spec("d7")).await.unwrap();
    let handle = catalog.get("d7").unwrap();
    assert_eq!(catalog.shutdown().await.unwrap().len(), DATASETS_MAX);
    assert!(matches!(handle.status().await, Err(SourceError::Unavailable { .. })));
    assert!(matches!(catalog.open(spec("d7")).await, Err(CatalogError::ShutDown { .. })));
    assert!(catalog.shutdown().await.unwrap().is_empty());
}

/// Names that a client may give a data set.
const NAMES: [&str; 14] = [
    "train",
    "TRAIN",
    "a/b",
    "a%2Fb",
    "..",
    ".",
    "/etc/passwd",
    "../../x",
    "a b",
    "a\0b",
    "ä",
    "con.txt",
    "lock",
    "a~b",
];

#[test]
fn every_name_has_a_folder_of_its_own_below_the_root() {
    let root = Path::new("/folder/of/all");
    let long: Vec<String> = ["x", "é", "X", "xy"].iter().map(|s| s.repeat(255 / s.len())).collect();
    let cut = ["x".repeat(128), "x".repeat(129), "x".repeat(130), format!("{}~", "x".repeat(111))];
    let names = NAMES.iter().map(|name| (*name).to_owned()).chain(long).chain(cut);
    let mut seen = BTreeMap::new();
    for name in names {
        let folder = dataset_folder(root, &name);
        assert_eq!(folder.parent(), Some(root), "{name}");
        let last = folder.file_name().and_then(|name| name.to_str()).unwrap().to_owned();
        assert!(last.len() <= 128 && last.is_ascii() && !last.starts_with('.'), "{last}");
        // Also where the system does not tell small letters from large ones.
        assert_eq!(seen.insert(last.to_lowercase(), name.clone()), None, "{name}");
    }
    let pinned = dataset_folder(root, &"x".repeat(129));
    let expected = format!("{}~{}", "x".repeat(111), "8ad468401694c07a");
    assert_eq!(pinned, root.join(expected), "where a log is found must not change");
}

#[cfg(feature = "file-store")]
#[tokio::test]
async fn logs_are_found_again_by_the_name() {
    use antdt_core::Ack;

    let root = tempfile::tempdir().unwrap();
    let open =
        || Catalog::in_folder(root.path(), crate::runtime::FileStoreOptions::default(), JobClock::start());
    let catalog = open();
    for name in NAMES {
        let handle = catalog.open(spec(name)).await.unwrap();
        let FetchOutcome::Granted(grant) = fetch(&handle, worker(0, 0)).await.unwrap() else { panic!() };
        handle.settle(worker(0, 0), vec![Ack { lease: grant.lease, offset: 7 }]).await.unwrap();
    }
    let second = open();
    let error = second.open(spec("train")).await.unwrap_err();
    assert!(error.source().unwrap().to_string().contains("is in use by another shard service"), "{error:?}");
    catalog.shutdown().await.unwrap();

    let catalog = open();
    for name in NAMES {
        let status = catalog.open(spec(name)).await.unwrap().status().await.unwrap();
        assert_eq!((status.generation, status.counts.acked), (Generation(2), 7), "{name}");
    }
    catalog.shutdown().await.unwrap();

    // Without being told what they are.
    let catalog = open();
    let mut names = catalog.reopen(root.path()).await.unwrap();
    names.sort_unstable();
    assert_eq!(names, catalog.names());
    for name in NAMES {
        let status = catalog.get(name).unwrap().status().await.unwrap();
        assert_eq!((status.generation, status.counts.acked), (Generation(3), 7), "{name}");
    }
    catalog.shutdown().await.unwrap();
    std::fs::create_dir(root.path().join("a-folder-of-somebody-else")).unwrap();
    std::fs::write(dataset_folder(root.path(), NAMES[0]).join("dataset.json"), "{").unwrap();
    let error = open().reopen(root.path()).await.unwrap_err().to_string();
    assert!(error.contains("dataset.json does not describe a data set"), "{error}");
    assert!(open().reopen(root.path().join("nothing")).await.unwrap().is_empty());
    // The log counts, also when no process has it open.
    let error = open().open(DatasetSpec { seed: Seed(1), ..spec("train") }).await.unwrap_err();
    assert!(matches!(error, CatalogError::Service(_)), "{error:?}");
}
