//! What every [`LedgerStore`] must do, whoever wrote it.

use super::history::History;
use crate::ledger::{LedgerSnapshot, Record, Recovery};
use crate::spec::{DatasetSpec, Epochs};
use crate::store::LedgerStore;

/// The data set whose records the suite stores.
pub fn suite_spec() -> DatasetSpec {
    DatasetSpec { epochs: Epochs::Infinite, ..DatasetSpec::new("suite", 103, 10) }
}

/// Runs the suite. `open` opens the same, at first empty, store of [`suite_spec`] again and again, as a restarted
/// service does.
///
/// # Panics
/// If the store breaks its contract, with what it should have done.
pub async fn check_store<S: LedgerStore>(open: impl Fn() -> S) {
    assert_eq!(open().load().await.expect("no error"), [], "the suite starts from an empty store");

    let groups = History::play(suite_spec(), 1, 3_000).groups;
    let mut appended: Vec<Record> = Vec::new();
    let mut store = open();
    for (number, group) in groups.iter().enumerate() {
        store.append(group).await.expect("no error");
        appended.extend_from_slice(group);
        if number == groups.len() / 3 {
            let loaded = store.load().await.expect("no error");
            assert_eq!(fold(&loaded), fold(&appended), "what was appended is there");
            store.append(&[]).await.expect("appending nothing is fine");
        }
        if number % (groups.len() / 3) == 1 {
            drop(store);
            store = open();
            let loaded = store.load().await.expect("no error");
            assert_eq!(fold(&loaded), fold(&appended), "records outlive the store");
        }
    }
    drop(store);
    let loaded = open().load().await.expect("no error");
    assert_eq!(fold(&loaded), fold(&appended), "a reopened store goes on where it was");
}

fn fold(records: &[Record]) -> LedgerSnapshot {
    let mut recovery = Recovery::new(suite_spec()).expect("a valid data set");
    for record in records {
        recovery.apply(record).expect("records come back in order, each once");
    }
    recovery.snapshot()
}
