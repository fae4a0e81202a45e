//! The log is the ledger without its leases: read again it gives the same state, and every beginning of it gives a
//! state that satisfies the accounts, with no more done than was.

use antdt_core::{Ack, AckOutcome, Counts, Epoch, Generation, RequestId};

use crate::error::{FetchError, RecoverError};
use crate::ledger::tests::cases::{all, grant, ledger, records};
use crate::ledger::tests::pair::{small, worker};
use crate::ledger::{Record, Recovery, ShardLedger};
use crate::spec::{DatasetSpec, Epochs};

#[test]
fn a_new_generation_voids_leases_and_keeps_acknowledged_samples() {
    let spec = small(8, 4);
    let mut first = ledger(spec.clone());
    first.register(worker(0, 0)).unwrap();
    let (done, part) = (grant(&mut first, worker(0, 0), 1), grant(&mut first, worker(0, 0), 2));
    first.ack(worker(0, 0), all(&done)).unwrap();
    first.ack(worker(0, 0), Ack { lease: part.lease, offset: 1 }).unwrap();
    let log = records(&mut first);

    let g1 = Generation(1);
    let used = ShardLedger::recover(spec.clone(), log.clone(), g1).unwrap_err();
    assert_eq!(used, RecoverError::GenerationNotNewer { given: g1, last: g1 });
    let mut second = ShardLedger::recover(spec, log, Generation(2)).unwrap();
    assert_eq!(second.counts(), Counts { total: 8, acked: 5, todo: 3, ..Counts::default() });
    assert_eq!(second.ack(worker(0, 0), all(&part)), Ok(AckOutcome::StaleLease));
    assert!(matches!(
        second.fetch(worker(0, 0), g1, RequestId(3)),
        Err(FetchError::WrongGeneration { current: Generation(2), .. })
    ));
    second.register(worker(0, 0)).unwrap();
    let again = grant(&mut second, worker(0, 0), 1);
    assert_eq!((again.key, again.resume_at), (part.key, 1));
    assert_ne!(again.lease, part.lease);
}

#[test]
fn a_record_that_does_not_follow_is_refused_and_changes_nothing() {
    let g1 = Generation(1);
    let spec = DatasetSpec { epochs: Epochs::Finite(2), ..small(9, 2) };
    let mut recovery = Recovery::new(spec).unwrap();
    let epoch = Epoch(0);
    for record in [
        Record::GenerationStarted { generation: g1 },
        Record::EpochOpened { share: 0, epoch },
        Record::Acked { epoch, position: 0, offset: 1 },
    ] {
        recovery.apply(&record).unwrap();
    }
    let before = recovery.snapshot();
    let other = ledger(DatasetSpec::new("other", 9, 2)).snapshot();
    for record in [
        Record::GenerationStarted { generation: g1 },
        Record::EpochOpened { share: 0, epoch },
        Record::EpochOpened { share: 0, epoch: Epoch(1) },
        Record::EpochOpened { share: 1, epoch },
        Record::Acked { epoch, position: 0, offset: 1 },
        Record::Acked { epoch, position: 0, offset: 3 },
        Record::Acked { epoch, position: 5, offset: 1 },
        Record::Acked { epoch, position: u64::MAX, offset: 1 },
        Record::Acked { epoch: Epoch(1), position: 0, offset: 1 },
        Record::Failed { epoch: Epoch(1), position: 0 },
        Record::Failed { epoch, position: 5 },
        Record::Restored(Box::new(other)),
        Record::Base(Box::new(before.clone())),
    ] {
        assert!(recovery.apply(&record).is_err(), "{record:?}");
        assert_eq!(recovery.snapshot(), before, "{record:?}");
    }
}
