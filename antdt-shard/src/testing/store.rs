//! What every [`LedgerStore`] must do, whoever wrote it.

use antdt_core::{Epoch, Generation, Incarnation, NodeId};

use crate::ledger::{Record, ShardLedger};
use crate::spec::DatasetSpec;
use crate::store::LedgerStore;

/// Runs the suite. `open` opens the same, at first empty, store again and again, as a restarted service does.
///
/// # Panics
/// If the store breaks its contract, with what it should have done.
pub async fn check_store<S: LedgerStore>(open: impl Fn() -> S) {
    assert_eq!(open().load().await.expect("no error"), [], "the suite starts from an empty store");

    let first = every_kind_of_record();
    let mut store = open();
    store.append(&first).await.expect("no error");
    assert_eq!(store.load().await.expect("no error"), first, "what was appended is there, in order");
    store.append(&[]).await.expect("appending nothing is fine");
    drop(store);

    let mut reopened = open();
    assert_eq!(reopened.load().await.expect("no error"), first, "records outlive the store");
    let more = [Record::Fenced { node: NodeId::worker(7), through: Incarnation(u32::MAX) }];
    reopened.append(&more).await.expect("no error");
    drop(reopened);

    let all: Vec<Record> = first.into_iter().chain(more).collect();
    assert_eq!(open().load().await.expect("no error"), all, "a reopened store goes on where it was");
}

fn every_kind_of_record() -> Vec<Record> {
    let ledger = ShardLedger::new(DatasetSpec::new("suite", 10, 4), Generation(1)).expect("a valid spec");
    vec![
        Record::GenerationStarted { generation: Generation(u64::MAX) },
        Record::EpochOpened { share: 3, epoch: Epoch(u32::MAX) },
        Record::Acked { epoch: Epoch(0), position: u64::MAX, offset: 1 },
        Record::Failed { epoch: Epoch(1), position: 2 },
        Record::Fenced { node: NodeId::worker(0), through: Incarnation(0) },
        Record::Restored(Box::new(ledger.snapshot())),
        Record::Acked { epoch: Epoch(0), position: 0, offset: u64::MAX },
    ]
}
