//! Every sample is counted at most once, whatever is repeated, late or sent by dead workers, and only if its
//! holder says so. A restore takes back what was counted after the snapshot; a restart what was not written down.

use antdt_core::{Ack, AckOutcome};

use crate::ledger::tests::cases::{all, grant, ledger};
use crate::ledger::tests::pair::{small, worker};

#[test]
fn a_repeated_last_ack_is_recognised_while_the_life_lasts() {
    let mut ledger = ledger(small(12, 4));
    ledger.register(worker(0, 0)).unwrap();
    let grant = grant(&mut ledger, worker(0, 0), 1);
    for _ in 0..3 {
        assert_eq!(ledger.ack(worker(0, 0), all(&grant)), Ok(AckOutcome::Accepted));
        assert_eq!(ledger.counts().acked, 4);
    }
    let part = Ack { lease: grant.lease, offset: 3 };
    assert_eq!(
        ledger.ack(worker(0, 0), part),
        Ok(AckOutcome::StaleLease),
        "only the same ack is its repetition"
    );
    ledger.register(worker(0, 1)).unwrap();
    assert_eq!(ledger.ack(worker(0, 0), all(&grant)), Ok(AckOutcome::StaleLease));
    assert_eq!(ledger.ack(worker(0, 1), all(&grant)), Ok(AckOutcome::StaleLease));
}
