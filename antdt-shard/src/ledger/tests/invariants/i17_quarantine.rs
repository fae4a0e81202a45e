//! A shard is given up after exactly `max_data_faults` faults of its data, with the samples that are left of it; a job
//! that must not lose so many grants nothing more.

use antdt_core::{Ack, Generation, RequestId};

use crate::error::FetchError;
use crate::ledger::Effect;
use crate::ledger::tests::cases::{drained, grant, ledger};
use crate::ledger::tests::pair::{small, worker};
use crate::spec::{DatasetSpec, OnQuarantine, Shuffle};

#[test]
fn a_job_that_must_not_lose_samples_grants_nothing_after_a_quarantine() {
    let spec = DatasetSpec { max_data_faults: 1, shuffle: Shuffle::None, ..small(8, 4) };
    let mut ledger = ledger(spec);
    ledger.register(worker(0, 0)).unwrap();
    let poison = grant(&mut ledger, worker(0, 0), 1);
    ledger.fail(worker(0, 0), Ack { lease: poison.lease, offset: 1 }).unwrap();
    assert!(drained(&mut ledger).contains(&Effect::Wake), "those who wait must hear of it");
    let error = ledger.fetch(worker(0, 0), Generation(1), RequestId(2)).unwrap_err();
    assert_eq!(error, FetchError::Quarantined { key: poison.key, samples: 3, limit: 0 });
    assert!(ledger.status().failed && !ledger.status().finished);
}

#[test]
fn a_job_that_may_lose_some_samples_goes_on_up_to_its_bound() {
    let on_quarantine = OnQuarantine::Continue { max_samples: 4 };
    let spec = DatasetSpec { max_data_faults: 1, shuffle: Shuffle::None, on_quarantine, ..small(12, 4) };
    let mut ledger = ledger(spec);
    ledger.register(worker(0, 0)).unwrap();
    let first = grant(&mut ledger, worker(0, 0), 1);
    ledger.fail(worker(0, 0), Ack { lease: first.lease, offset: 0 }).unwrap();
    let second = grant(&mut ledger, worker(0, 0), 2);
    ledger.fail(worker(0, 0), Ack { lease: second.lease, offset: 3 }).unwrap();
    let error = ledger.fetch(worker(0, 0), Generation(1), RequestId(3)).unwrap_err();
    assert!(matches!(error, FetchError::Quarantined { samples: 5, limit: 4, .. }), "{error}");
}
