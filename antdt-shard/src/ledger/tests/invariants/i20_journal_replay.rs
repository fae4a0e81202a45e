//! The log is the ledger without its leases: read again it gives the same state, and every beginning of it gives a
//! state that satisfies the accounts, with no more done than was.

use std::collections::BTreeSet;

use antdt_core::{Ack, AckOutcome, Counts, Epoch, Generation, RequestId};

use super::Moment;
use crate::error::{FetchError, RecoverError};
use crate::ledger::tests::cases::{all, grant, ledger, records};
use crate::ledger::tests::pair::{small, worker};
use crate::ledger::tests::real::Real;
use crate::ledger::{Record, Recovery, ShardLedger};
use crate::spec::{DatasetSpec, Epochs};

pub(super) fn check(moment: &Moment<'_>) {
    let Moment { real, model, .. } = moment;
    assert_eq!(real.replay.snapshot(), real.ledger.snapshot(), "the log differs from what happened");
    assert_eq!(model.book.written, model.book.account, "what is done was not written down, or too much was");
    // Nothing is answered that is not written down.
    assert_eq!(real.ledger.records.len(), 0);
}

/// At the end of a history, for it looks at every moment of it once more.
pub(in super::super) fn check_every_prefix(real: &Real) {
    let spec = real.ledger.spec();
    let mut recovery = Recovery::new(spec.clone()).unwrap();
    let mut acked = 0;
    for record in &real.log {
        recovery.apply(record).unwrap();
        let snapshot = recovery.snapshot();
        let (counts, book) = (snapshot.counts(), &snapshot.book);
        assert!(counts.balance() && counts.doing == 0, "after {record:?}: {counts:?}");
        if !matches!(record, Record::Restored(_)) {
            assert!(counts.acked >= acked, "{record:?} takes an ack back");
        }
        acked = counts.acked;
        let keys: Vec<_> = book.todo().map(|(key, _)| key).collect();
        let given_up: Vec<_> = book.quarantined().map(|given_up| given_up.key).collect();
        let once: BTreeSet<_> = keys.iter().chain(&given_up).collect();
        assert_eq!(once.len(), keys.len() + given_up.len(), "a shard is in two states after {record:?}");
        let sums = (0..spec.epoch_limit()).map(|epoch| book.account().epoch(Epoch(epoch)).unwrap());
        assert_eq!(sums.map(|counts| counts.acked).sum::<u64>(), acked);
    }
}

#[test]
fn a_new_generation_voids_leases_and_keeps_what_is_done() {
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
