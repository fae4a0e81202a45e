//! Equal events give equal answers, equal records and byte-identical snapshots.

use antdt_core::{Ack, Seed};

use super::Moment;
use crate::ledger::tests::call::Call;
use crate::ledger::tests::cases::{drained, grant, ledger};
use crate::ledger::tests::pair::{small, worker};
use crate::spec::DatasetSpec;

pub(super) fn check(moment: &Moment<'_>) {
    if matches!(moment.call, Call::Keep | Call::Cut { .. } | Call::Restart { .. } | Call::Restore { .. }) {
        return; // These take what only the store has.
    }
    let Moment { call, reply, real, .. } = moment;
    let again = real.again(call);
    assert_eq!(&&again.0, reply);
    assert_eq!(again.1.snapshot().to_bytes(), real.ledger.snapshot().to_bytes(), "{call:?}");
    assert_eq!(again.1.standing, real.ledger.standing, "{call:?}");
}

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
