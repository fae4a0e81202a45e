use std::collections::BTreeMap;

use antdt_core::{Ack, Epoch, Generation, Seed, ShardKey};
use proptest::prelude::*;

use super::*;

fn samples(batch: &Batch) -> Vec<u64> {
    batch.samples().collect()
}

fn lease(sequence: u64) -> LeaseId {
    LeaseId { generation: Generation(1), sequence }
}

fn grant(sequence: u64, start: u64, len: u64, resume_at: u64, seed: Option<u64>) -> Grant {
    let key = ShardKey { epoch: Epoch(0), index: sequence };
    Grant { lease: lease(sequence), key, start, len, resume_at, seed: seed.map(Seed) }
}

#[test]
fn a_batch_straddles_shards_and_each_lease_is_acknowledged_at_its_own_offset() {
    let mut batcher = Batcher::new();
    batcher.granted(grant(1, 0, 5, 0, None));
    batcher.granted(grant(2, 10, 5, 2, None));
    let batch = batcher.take(6);
    assert_eq!((samples(&batch), batch.len()), (vec![0, 1, 2, 3, 4, 12], 6));
    assert_eq!(batch.acks()[..], [Ack { lease: lease(1), offset: 5 }, Ack { lease: lease(2), offset: 3 }]);
    batcher.commit(&batch);
    assert_eq!(batcher.leases(), 1, "the finished lease is dropped");
    assert_eq!(batcher.release(), [Held { lease: lease(2), key: grant(2, 10, 5, 2, None).key, offset: 3 }]);
    assert_eq!((batcher.leases(), batcher.unread()), (0, 0));
}

#[test]
fn an_aborted_batch_is_read_again_in_the_same_order() {
    let mut batcher = Batcher::new();
    batcher.granted(grant(1, 0, 4, 0, Some(7)));
    batcher.granted(grant(2, 4, 4, 0, Some(8)));
    let batch = batcher.take(6);
    batcher.abort(&batch);
    assert_eq!(batcher.unread(), 8);
    assert_eq!(batcher.take(6), batch);
}

#[test]
fn a_second_holder_gets_exactly_the_samples_that_the_first_did_not_commit() {
    let mut first = Batcher::new();
    first.granted(grant(1, 100, 10, 0, Some(3)));
    let done = first.take(4);
    first.commit(&done);
    let lost = first.take(3); // never committed

    let mut second = Batcher::new();
    second.granted(grant(2, 100, 10, 4, Some(3)));
    let rest = second.take(99);
    assert_eq!(samples(&rest)[..3], samples(&lost)[..]);
    let mut all: Vec<u64> = done.samples().chain(rest.samples()).collect();
    all.sort_unstable();
    assert_eq!(all, (100..110).collect::<Vec<_>>());
}

#[test]
fn a_repeated_grant_is_held_once_and_a_revoked_lease_is_gone() {
    let mut batcher = Batcher::new();
    batcher.granted(grant(1, 0, 4, 0, None));
    batcher.granted(grant(1, 0, 4, 0, None));
    assert_eq!(batcher.unread(), 4);
    let batch = batcher.take(2);
    batcher.revoke(lease(1));
    batcher.commit(&batch);
    assert_eq!((batcher.leases(), batcher.take(9).len()), (0, 0));
}

#[test]
fn without_leases_a_batch_is_empty() {
    assert!(Batcher::new().take(5).is_empty());
}

proptest! {
    /// Any batch sizes, any aborts: every sample is committed exactly once, and acks never go back.
    #[test]
    fn every_sample_is_committed_once(
        lens in prop::collection::vec(1_u64..20, 1..8),
        steps in prop::collection::vec((1_u64..12, any::<bool>()), 1..60),
    ) {
        let mut batcher = Batcher::new();
        let mut start = 0;
        for (i, len) in lens.iter().enumerate() {
            batcher.granted(grant(i as u64, start, *len, 0, Some(i as u64)));
            start += len;
        }
        let mut seen = vec![0_u32; usize::try_from(start).unwrap()];
        let mut acked = BTreeMap::new();
        let drain = std::iter::repeat_n((7, true), 200);
        for (want, commit) in steps.into_iter().chain(drain) {
            let batch = batcher.take(want);
            prop_assert!(batch.len() <= want);
            prop_assert!(!batch.fragments.iter().any(Fragment::is_empty));
            prop_assert_eq!(batch.samples().count() as u64, batch.len());
            if !commit {
                batcher.abort(&batch);
                continue;
            }
            for sample in batch.samples() {
                seen[usize::try_from(sample).unwrap()] += 1;
            }
            for ack in batch.acks() {
                let before = acked.insert(ack.lease, ack.offset).unwrap_or(0);
                prop_assert!(ack.offset > before);
            }
            batcher.commit(&batch);
        }
        prop_assert!(seen.iter().all(|n| *n == 1));
        prop_assert_eq!(batcher.leases(), 0);
    }
}

proptest! {
    /// Whatever becomes of the leases: what is counted as unread is what a batch of all could have.
    #[test]
    fn unread_counts_the_samples_that_a_batch_can_have(moves in prop::collection::vec((0_u32..8, 0_u64..12), 1..80)) {
        let mut batcher = Batcher::new();
        let mut out: Option<Batch> = None;
        for (number, (what, size)) in (0..).zip(moves) {
            match (what, out.take()) {
                (0 | 1, batch) => {
                    batcher.granted(grant(number, 100 * number, 4 + size, size / 2, None));
                    out = batch;
                }
                (2 | 3, None) => out = Some(batcher.take(size)),
                (2 | 3, Some(batch)) => drop(batcher.commit(&batch)),
                (4, Some(batch)) => batcher.abort(&batch),
                (5, batch) => {
                    batcher.revoke(lease(size));
                    out = batch;
                }
                (6, batch) => {
                    batcher.recall(&[lease(number - size.min(number)), lease(size)]);
                    out = batch;
                }
                (_, batch) => {
                    // Every third lease is not adopted.
                    let adopted = batcher.held().into_iter().map(|held| {
                        let new = 1000 * number + held.lease.sequence;
                        (held.lease.sequence % 3 != size % 3).then(|| grant(new, 0, 1, 0, None))
                    });
                    batcher.adopted(&adopted.collect::<Vec<_>>());
                    out = batch;
                }
            }
            prop_assert_eq!(batcher.unread(), batcher.clone().take(u64::MAX).len());
        }
    }
}

#[test]
fn a_recalled_lease_is_given_up_only_before_its_first_sample() {
    let mut batcher = Batcher::new();
    batcher.granted(grant(1, 0, 5, 2, None));
    batcher.granted(grant(2, 10, 5, 0, None));
    batcher.granted(grant(3, 20, 5, 4, None));
    let batch = batcher.take(4); // All of the first, one sample of the second.
    assert_eq!(
        batcher.recall(&[lease(1), lease(2), lease(3), lease(9)]),
        [Held { lease: lease(3), key: grant(3, 20, 5, 4, None).key, offset: 4 }]
    );
    assert_eq!((batcher.leases(), batcher.unread()), (2, 4));
    batcher.commit(&batch);
    assert_eq!(batcher.recall(&[lease(2)]), []);
}

#[test]
fn an_adopted_lease_goes_on_under_its_new_name_also_in_the_batch_that_is_out() {
    let mut batcher = Batcher::new();
    batcher.granted(grant(1, 0, 5, 0, None));
    batcher.granted(grant(2, 10, 5, 0, None));
    batcher.granted(grant(3, 20, 5, 0, None));
    let first = batcher.take(2);
    batcher.commit(&first);
    let out = batcher.take(9); // Three of the first, five of the second, one of the third.
    let held = batcher.held();
    assert_eq!(held.iter().map(|held| held.offset).collect::<Vec<_>>(), [2, 0, 0], "only what is committed");
    // The service restarts twice while the batch is out. The second time it has given the second shard away.
    batcher.adopted(&[
        Some(grant(11, 0, 5, 2, None)),
        Some(grant(12, 10, 5, 0, None)),
        Some(grant(13, 20, 5, 0, None)),
    ]);
    batcher.adopted(&[Some(grant(21, 0, 5, 2, None)), None, Some(grant(23, 20, 5, 0, None))]);
    assert_eq!([1, 2, 3].map(|l| batcher.name_of(lease(l))), [lease(21), lease(12), lease(23)]);
    let done = batcher.commit(&out);
    assert_eq!(done[..], [Held { lease: lease(21), key: grant(1, 0, 5, 0, None).key, offset: 5 }]);
    assert_eq!(batcher.release(), [Held { lease: lease(23), key: grant(3, 20, 5, 0, None).key, offset: 1 }]);
}

#[test]
fn an_aborted_batch_is_read_again_under_the_new_name() {
    let mut batcher = Batcher::new();
    batcher.granted(grant(1, 0, 4, 0, Some(7)));
    let out = batcher.take(3);
    batcher.adopted(&[Some(grant(11, 0, 4, 0, Some(7)))]);
    batcher.abort(&out);
    let again = batcher.take(3);
    assert_eq!((samples(&again), again.fragments[0].grant.lease), (samples(&out), lease(11)));
}

#[test]
fn micro_batches_cover_their_batch_in_order_and_are_alike_in_size() {
    for (lens, count) in [(vec![7, 1, 3], 3), (vec![4], 4), (vec![2, 2], 1), (vec![3], 5), (vec![], 2)] {
        let mut batcher = Batcher::new();
        let mut start = 0;
        for (name, len) in (1..).zip(&lens) {
            batcher.granted(grant(name, start, *len, 0, Some(name)));
            start += len;
        }
        let batch = batcher.take(start);
        let mut pieces: Vec<Batch> = Vec::new();
        let mut next = Some(MicroBatch { index: 0, count });
        while let Some(micro) = next {
            pieces.push(batch.piece(micro));
            next = micro.next();
        }
        assert_eq!(pieces.len(), count as usize);
        assert_eq!(
            pieces.iter().flat_map(samples).collect::<Vec<_>>(),
            samples(&batch),
            "{lens:?} by {count}"
        );
        let sizes: Vec<u64> = pieces.iter().map(Batch::len).collect();
        assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
    }
}
