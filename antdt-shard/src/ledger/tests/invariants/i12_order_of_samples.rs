//! The order of the samples within a shard follows from seed, epoch and index: not from its holder, and not from
//! when.

use antdt_core::{Ack, Generation, Seed};

use crate::ledger::tests::cases::{grant, ledger};
use crate::ledger::tests::pair::worker;
use crate::spec::DatasetSpec;

#[test]
fn the_order_of_samples_belongs_to_the_shard() {
    let spec = DatasetSpec { seed: Seed(5), ..DatasetSpec::new("d", 100, 50) };
    let mut first = ledger(spec.clone());
    for holder in [worker(0, 0), worker(1, 0)] {
        first.register(holder).unwrap();
    }
    let one = grant(&mut first, worker(0, 0), 1);
    first.release(worker(0, 0), &[Ack { lease: one.lease, offset: 20 }]).unwrap();
    let two = grant(&mut first, worker(1, 0), 1);
    let snapshot = first.snapshot();
    first.restore(&snapshot, Generation(2)).unwrap();
    first.register(worker(2, 0)).unwrap();
    let three = grant(&mut first, worker(2, 0), 1);
    assert_eq!((one.key, one.seed), (two.key, two.seed));
    assert_eq!((one.key, one.seed), (three.key, three.seed));
    let mut other = ledger(DatasetSpec { seed: Seed(6), ..spec });
    other.register(worker(0, 0)).unwrap();
    assert_ne!(grant(&mut other, worker(0, 0), 1).seed, one.seed);
}
