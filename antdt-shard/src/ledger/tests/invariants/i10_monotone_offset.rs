//! The offset of a shard never goes back but by restore or restart, and what is refused changes nothing.

use antdt_core::Ack;

use crate::error::AckError;
use crate::ledger::tests::cases::{grant, ledger};
use crate::ledger::tests::pair::{small, worker};
use crate::spec::{DatasetSpec, Shuffle};

#[test]
fn a_wrong_ack_among_several_leaves_no_trace() {
    let mut ledger = ledger(DatasetSpec { shuffle: Shuffle::None, ..small(10, 4) });
    ledger.register(worker(0, 0)).unwrap();
    let (a, b) = (grant(&mut ledger, worker(0, 0), 1), grant(&mut ledger, worker(0, 0), 2));
    let at = |grant: &antdt_core::Grant, offset| Ack { lease: grant.lease, offset };
    let before = ledger.counts();
    let wrong = [
        (vec![], AckError::Empty),
        (vec![at(&a, 2), at(&b, 5)], AckError::OffsetOutOfRange { lease: b.lease, offset: 5, len: 4 }),
        (vec![at(&a, 3), at(&a, 2)], AckError::OffsetRegression { lease: a.lease, offset: 2, have: 3 }),
    ];
    for (acks, error) in wrong {
        assert_eq!(ledger.ack_all(worker(0, 0), &acks), Err(error.clone()));
        assert_eq!(ledger.release(worker(0, 0), &acks), Err(error));
        assert_eq!(ledger.counts(), before);
    }
    ledger.ack(worker(0, 0), at(&a, 2)).unwrap();
    let back = ledger.ack(worker(0, 0), at(&a, 1)).unwrap_err();
    assert_eq!(back, AckError::OffsetRegression { lease: a.lease, offset: 1, have: 2 });
    let fault = ledger.fail(worker(0, 0), at(&a, 4)).unwrap_err();
    assert_eq!(
        fault,
        AckError::OffsetOutOfRange { lease: a.lease, offset: 4, len: 4 },
        "nothing is left to fail"
    );
}
