//! While a worker holds a lease, a shard waits or an epoch is unopened, no worker hears of the end; and after it nothing is
//! granted in the same generation.

use antdt_core::FetchOutcome;

use crate::ledger::tests::cases::all;
use crate::ledger::tests::pair::{Pair, small, worker};
use crate::spec::{DatasetSpec, Epochs, Shuffle};

#[test]
fn an_epoch_waits_for_its_last_lease() {
    let spec = DatasetSpec { epochs: Epochs::Finite(2), shuffle: Shuffle::None, ..small(8, 4) };
    let mut pair = Pair::new(spec);
    pair.register(worker(0, 0));
    pair.register(worker(1, 0));
    pair.fetch(worker(0, 0), 1);
    pair.fetch(worker(1, 0), 1);
    let [(slow, _), (fast, _)] = *pair.grants() else { panic!() };
    pair.ack(worker(1, 0), &[all(&fast)]);
    assert!(!pair.real.woke(), "there is nothing new to have");
    assert!(matches!(pair.fetch(worker(1, 0), 2), Some(FetchOutcome::Wait { .. })));
    pair.ack(worker(0, 0), &[all(&slow)]);
    assert!(pair.real.woke(), "the next epoch can open");
    pair.fetch(worker(1, 0), 2);
    assert_eq!(pair.newest().key.epoch.0, 1);
}
