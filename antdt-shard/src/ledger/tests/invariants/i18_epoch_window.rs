//! At most `epoch_overlap + 1` epochs are unclosed; without an overlap none begins before the one before it ended.

use antdt_core::Epoch;

use crate::ledger::tests::cases::all;
use crate::ledger::tests::pair::{Pair, small, worker};
use crate::spec::{DatasetSpec, Epochs};

#[test]
fn with_an_overlap_the_next_epoch_opens_at_the_tail_and_no_further() {
    let spec = DatasetSpec { epochs: Epochs::Finite(3), epoch_overlap: 1, ..small(4, 4) };
    let mut pair = Pair::new(spec);
    for index in 0..3 {
        pair.register(worker(index, 0));
        pair.fetch(worker(index, 0), 1);
    }
    let epochs: Vec<Epoch> = pair.grants().iter().map(|(grant, _)| grant.key.epoch).collect();
    assert_eq!(epochs, [Epoch(0), Epoch(1)], "the third waits");
    // The middle epoch ends first; the one after it may open while the first is still out.
    pair.ack(worker(1, 0), &[all(&pair.grants()[1].0)]);
    pair.fetch(worker(2, 0), 2);
    assert_eq!(pair.newest().key.epoch, Epoch(2));
    pair.drain();
}
