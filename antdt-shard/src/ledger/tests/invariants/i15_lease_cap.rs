//! No worker holds more leases than it may, and one that is lost holds none.

use antdt_core::FetchOutcome;

use crate::ledger::tests::cases::all;
use crate::ledger::tests::pair::{Pair, small, worker};
use crate::spec::DatasetSpec;

#[test]
fn a_holder_has_no_more_leases_than_it_may() {
    let mut pair = Pair::new(DatasetSpec { max_leases_per_holder: 2, ..small(10, 1) });
    pair.register(worker(0, 0));
    pair.fetch(worker(0, 0), 1);
    let first = pair.newest();
    pair.fetch(worker(0, 0), 2);
    assert_eq!(pair.fetch(worker(0, 0), 3), Some(FetchOutcome::AtLimit));
    pair.ack(worker(0, 0), &[all(&first)]);
    assert!(matches!(pair.fetch(worker(0, 0), 4), Some(FetchOutcome::Granted(_))));
}
