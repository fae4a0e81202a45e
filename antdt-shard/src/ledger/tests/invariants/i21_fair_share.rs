//! With constant speeds the makespan keeps its bound, and near the end no worker takes more than half of its equal part.

use std::collections::BTreeMap;

use antdt_core::{FetchOutcome, Generation, Grant, RequestId};

use crate::ledger::tests::cases::{all, ledger};
use crate::ledger::tests::pair::worker;
use crate::spec::DatasetSpec;

#[test]
fn the_makespan_of_unequal_workers_keeps_its_bound() {
    // N / sum(v) + P * S / v_min, with one worker four times slower than three others.
    let (samples, len) = (100_000_u64, 100);
    let speeds = [400_u64, 400, 400, 100];
    let mut ledger = ledger(DatasetSpec::new("d", samples, len));
    let mut free_at: BTreeMap<(u64, u32), ()> = BTreeMap::new();
    for worker_index in 0..4 {
        ledger.register(worker(worker_index, 0)).unwrap();
        free_at.insert((0, worker_index), ());
    }
    let (mut end, mut request) = (0, 0);
    let mut holding: BTreeMap<u32, Grant> = BTreeMap::new();
    while let Some(((now, index), ())) = free_at.pop_first() {
        if let Some(done) = holding.remove(&index) {
            ledger.ack(worker(index, 0), all(&done)).unwrap();
            end = now;
        }
        request += 1;
        let fetched = ledger.fetch(worker(index, 0), Generation(1), RequestId(request)).unwrap();
        if let FetchOutcome::Granted(grant) = fetched {
            holding.insert(index, grant);
            free_at.insert((now + grant.len * 1_000_000 / speeds[index as usize], index), ());
        }
    }
    assert!(ledger.is_finished());
    let bound = samples * 1_000_000 / speeds.iter().sum::<u64>() + len * 1_000_000 / 100;
    assert!(end <= bound, "{end} us is more than {bound} us");
    assert!(end * 100 <= samples * 1_000_000 / 1_300 * 102, "within 2 % of the ideal");
}
