//! The end is announced when every sample of every epoch is done or was given up, and not before.

use antdt_core::FetchOutcome;

use crate::ledger::tests::cases::all;
use crate::ledger::tests::pair::{Pair, small, worker};

#[test]
fn the_end_comes_after_the_last_ack_and_stays() {
    let mut pair = Pair::new(small(4, 4));
    pair.register(worker(0, 0));
    pair.register(worker(1, 0));
    pair.fetch(worker(0, 0), 1);
    assert!(matches!(pair.fetch(worker(1, 0), 1), Some(FetchOutcome::Wait { .. })));
    pair.ack(worker(0, 0), &[all(&pair.grants()[0].0)]);
    assert!(pair.real.woke() && pair.ledger().is_finished());
    for request in 2..5 {
        assert_eq!(pair.fetch(worker(1, 0), request), Some(FetchOutcome::EndOfData));
    }
}
