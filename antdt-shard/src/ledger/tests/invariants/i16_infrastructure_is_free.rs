//! However often nodes are lost, services end and leases are given back: none of it is a fault of the data, and no shard
//! is given up for it.

use antdt_core::{Ack, Counts};

use crate::ledger::tests::pair::{Pair, small, worker};
use crate::spec::DatasetSpec;

#[test]
fn infrastructure_failures_are_free_and_data_faults_are_counted() {
    let mut pair = Pair::new(DatasetSpec { max_data_faults: 3, ..small(4, 4) });
    for life in 0..50 {
        pair.register(worker(0, life));
        pair.fetch(worker(0, life), 1);
        match life % 3 {
            0 => pair.lose(worker(0, life)),
            1 => pair.restart(0),
            _ => drop(pair.release(worker(0, life), &[Ack { lease: pair.newest().lease, offset: 0 }])),
        }
    }
    assert_eq!(pair.ledger().quarantined().count(), 0);
    pair.register(worker(0, 50));
    for request in 1..=3 {
        assert_eq!(pair.ledger().quarantined().count(), 0);
        pair.fetch(worker(0, 50), request);
        pair.fail(worker(0, 50), Ack { lease: pair.newest().lease, offset: 1 });
    }
    let shard = pair.ledger().quarantined().next().unwrap();
    assert_eq!((shard.key.index, shard.samples.len(), shard.offset), (0, 4, 1));
    assert_eq!(pair.ledger().counts(), Counts { total: 4, acked: 1, quarantined: 3, ..Counts::default() });
}
