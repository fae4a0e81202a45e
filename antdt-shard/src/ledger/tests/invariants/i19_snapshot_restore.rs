//! A snapshot is the ledger without its leases: what was out waits at its offset. Set back to it the ledger goes on from
//! there, grants again what was acknowledged after it and nothing from before, and forgets no fence. It survives its way
//! through bytes.

use antdt_core::{Ack, Generation};

use crate::ledger::tests::cases::all;
use crate::ledger::tests::pair::{Pair, small, worker};
use crate::spec::{DatasetSpec, Shuffle};
use crate::testing::call::Call;

#[test]
fn a_restore_repeats_samples_acked_after_the_snapshot_and_none_from_before() {
    let mut pair = Pair::new(DatasetSpec { shuffle: Shuffle::None, ..small(12, 4) });
    pair.register(worker(0, 0));
    pair.fetch(worker(0, 0), 1);
    let first = pair.newest();
    pair.ack(worker(0, 0), &[Ack { lease: first.lease, offset: 3 }]);
    pair.say(&Call::Keep);
    pair.ack(worker(0, 0), &[all(&first)]);
    pair.lose(worker(0, 0));
    pair.restore(0);
    assert!(!pair.register(worker(0, 0)), "a fence survives every restore");
    assert!(pair.register(worker(0, 1)));
    pair.fetch(worker(0, 1), 1);
    let again = pair.newest();
    assert_eq!((again.key.index, again.resume_at, again.lease.generation), (0, 3, Generation(2)));
    pair.drain();
}
