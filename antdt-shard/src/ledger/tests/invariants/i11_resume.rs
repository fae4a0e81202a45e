//! A shard that is granted again resumes where it was acknowledged, so that its holders together deliver each sample
//! once as acknowledged.

use std::collections::BTreeSet;

use antdt_core::{Ack, Counts};

use crate::ledger::tests::cases::{grant, ledger};
use crate::ledger::tests::pair::{Pair, small, worker};
use crate::spec::DatasetSpec;

#[test]
fn a_lost_node_returns_its_shards() {
    let mut pair = Pair::new(small(10, 4));
    pair.register(worker(0, 0));
    pair.register(worker(1, 0));
    pair.fetch(worker(0, 0), 1);
    let first = pair.newest();
    pair.ack(worker(0, 0), &[Ack { lease: first.lease, offset: 2 }]);
    pair.lose(worker(0, 0));
    assert!(pair.real.woke(), "somebody may be waiting for it");
    assert_eq!(pair.ledger().counts(), Counts { total: 10, acked: 2, todo: 8, ..Counts::default() });
    pair.fetch(worker(1, 0), 1);
    let again = pair.newest();
    assert_eq!((again.key, again.resume_at), (first.key, 2), "it comes before all that nobody has had");
}

#[test]
fn two_holders_together_deliver_the_shard() {
    let mut ledger = ledger(DatasetSpec::new("d", 100, 50));
    for holder in [worker(0, 0), worker(1, 0)] {
        ledger.register(holder).unwrap();
    }
    let first = grant(&mut ledger, worker(0, 0), 1);
    ledger.release(worker(0, 0), &[Ack { lease: first.lease, offset: 20 }]).unwrap();
    let second = grant(&mut ledger, worker(1, 0), 1);
    assert_eq!((second.key, second.resume_at), (first.key, 20));
    let order = first.order();
    let done: BTreeSet<u64> = (0..20).map(|offset| first.sample(order.as_ref(), offset)).collect();
    let left: BTreeSet<u64> = (20..50).map(|offset| second.sample(second.order().as_ref(), offset)).collect();
    assert!(done.is_disjoint(&left));
    assert_eq!(&done | &left, (first.start..first.start + 50).collect());
}
