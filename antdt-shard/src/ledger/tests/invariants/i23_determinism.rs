//! Equal events give equal answers, equal records and byte-identical snapshots.

use antdt_core::{Ack, Seed};

use crate::ledger::tests::cases::{drained, grant, ledger};
use crate::ledger::tests::pair::{small, worker};
use crate::spec::DatasetSpec;

#[test]
fn equal_events_give_equal_ledgers_and_records() {
    let play = || {
        let spec = DatasetSpec { seed: Seed(3), ..small(40, 3) };
        let mut ledger = ledger(spec);
        for (node, life) in [(2, 0), (0, 0), (1, 0), (0, 1)] {
            ledger.register(worker(node, life)).unwrap();
        }
        let a = grant(&mut ledger, worker(2, 0), 1);
        let b = grant(&mut ledger, worker(0, 1), 1);
        ledger.ack(worker(2, 0), Ack { lease: a.lease, offset: 1 }).unwrap();
        ledger.fail(worker(0, 1), Ack { lease: b.lease, offset: 2 }).unwrap();
        ledger.worker_lost(worker(2, 0));
        (ledger.snapshot().to_bytes(), drained(&mut ledger))
    };
    assert_eq!(play(), play());
}
