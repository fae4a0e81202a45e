//! Conformance suites for implementations of [`LedgerStore`] and [`CutStore`].

use super::records::History;
use crate::ledger::{LedgerSnapshot, Recovery};
use crate::spec::{DatasetSpec, Epochs};
use crate::store::{CutStore, LedgerStore};

/// Returns the data set whose records [`check_store`] stores.
pub fn suite_spec() -> DatasetSpec {
    DatasetSpec { epochs: Epochs::Infinite, ..DatasetSpec::new("suite", 103, 10) }
}

/// Runs the conformance suite of a [`LedgerStore`]. `open` is called several times, as a restarted service
/// does, and must open the same store of [`suite_spec`] each time, empty at first.
///
/// # Panics
/// If the store breaks its contract, with what it should have done.
pub async fn check_store<S: LedgerStore>(open: impl Fn() -> S) {
    let empty = Recovery::new(suite_spec()).expect("a valid data set").snapshot();
    assert_eq!(loaded(&mut open()).await, empty, "the suite starts from an empty store");

    let groups = History::play(suite_spec(), 1, 3_000).groups;
    let mut appended = Recovery::new(suite_spec()).expect("a valid data set");
    let mut store = open();
    for (number, group) in groups.iter().enumerate() {
        store.append(group).await.expect("no error");
        for record in group {
            appended.apply(record).expect("the records of one ledger");
        }
        if number == groups.len() / 3 {
            assert_eq!(loaded(&mut store).await, appended.snapshot(), "what was appended is there");
            store.append(&[]).await.expect("appending nothing is fine");
        }
        if number % (groups.len() / 3) == 1 {
            drop(store);
            store = open();
            assert_eq!(loaded(&mut store).await, appended.snapshot(), "records outlive the store");
        }
    }
    drop(store);
    assert_eq!(loaded(&mut open()).await, appended.snapshot(), "a reopened store goes on where it was");
}

/// Returns the state that a store of [`suite_spec`] gives when it is loaded.
///
/// # Panics
/// If the store cannot be loaded.
pub async fn loaded<S: LedgerStore>(store: &mut S) -> LedgerSnapshot {
    let recovery = Recovery::new(suite_spec()).expect("a valid data set");
    store.load(recovery).await.expect("records come back in order, each once").snapshot()
}

/// Runs the conformance suite of a [`CutStore`]. `open` is called several times, and must open the same store
/// each time, empty at first.
///
/// # Panics
/// If the store breaks its contract, with what it should have done.
pub async fn check_cuts<S: CutStore>(open: impl Fn() -> S) {
    const NONE: [u64; 0] = [];
    let mut store = open();
    assert_eq!(store.list().await.expect("no error"), NONE, "the suite starts from an empty store");
    assert_eq!(store.load(7).await.expect("no error"), None, "what was not saved is not there");
    store.keep(3).await.expect("keeping of nothing is fine");
    // Not in order, more digits than one, empty, larger than a page.
    let cuts: [(u64, Vec<u8>); 5] =
        [(9, vec![9; 9]), (10, Vec::new()), (2, vec![2; 100_000]), (u64::MAX, vec![0]), (0, vec![1, 2, 3])];
    for (checkpoint, cut) in &cuts {
        store.save(*checkpoint, cut.clone()).await.expect("no error");
    }
    drop(store);
    let mut store = open();
    assert_eq!(store.list().await.expect("no error"), [0, 2, 9, 10, u64::MAX], "ascending, by number");
    for (checkpoint, cut) in &cuts {
        let loaded = store.load(*checkpoint).await.expect("no error");
        assert_eq!(loaded.as_ref(), Some(cut), "a cut comes back as it was");
    }
    store.save(9, vec![4]).await.expect("no error");
    assert_eq!(store.load(9).await.expect("no error"), Some(vec![4]), "the later cut of a checkpoint counts");
    store.keep(3).await.expect("no error");
    assert_eq!(store.list().await.expect("no error"), [9, 10, u64::MAX], "the newest are kept");
    assert_eq!(store.load(2).await.expect("no error"), None);
    drop(store);
    let mut store = open();
    store.keep(0).await.expect("no error");
    assert_eq!(store.list().await.expect("no error"), NONE, "or none");
}
