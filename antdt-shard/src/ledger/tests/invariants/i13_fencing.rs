//! A life that registers ends all earlier ones of its node; the end of a life survives restores, and restarts once it is
//! written down. After it nothing that the life says changes anything; a later life does not notice.

use antdt_core::{Generation, Holder, Incarnation, NodeId, RequestId};

use crate::error::{FetchError, RegisterError};
use crate::ledger::tests::cases::{grant, ledger};
use crate::ledger::tests::pair::{small, worker};

#[test]
fn a_worker_that_may_not_take_part_is_told_why() {
    let g1 = Generation(1);
    let mut ledger = ledger(small(4, 4));
    let server = Holder::new(NodeId::server(0), Incarnation(0));
    assert_eq!(ledger.register(server), Err(RegisterError::NotAWorker { node: server.node }));
    assert_eq!(
        ledger.fetch(worker(0, 0), g1, RequestId(1)),
        Err(FetchError::UnknownHolder { holder: worker(0, 0) })
    );
    let wrong = ledger.fetch(worker(0, 0), Generation(7), RequestId(1)).unwrap_err();
    assert_eq!(wrong, FetchError::WrongGeneration { given: Generation(7), current: g1 });
    ledger.worker_lost(worker(0, 3));
    let fenced = ledger.register(worker(0, 3)).unwrap_err();
    assert_eq!(fenced, RegisterError::Fenced { holder: worker(0, 3), through: Incarnation(3) });
    assert_eq!(
        fenced.to_string(),
        "worker-0#3 is fenced: lives through 3 have ended; exit and start as a later incarnation"
    );
    ledger.register(worker(0, 4)).unwrap();
    ledger.worker_lost(worker(0, 2));
    grant(&mut ledger, worker(0, 4), 1); // A late message about an older life does not touch the new one.
}

#[test]
fn the_last_life_of_all_can_be_fenced_too() {
    let mut ledger = ledger(small(4, 4));
    let last = worker(0, u32::MAX);
    ledger.register(last).unwrap();
    ledger.worker_lost(last);
    assert!(ledger.register(last).is_err());
}
