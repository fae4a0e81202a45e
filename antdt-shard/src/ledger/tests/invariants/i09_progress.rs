//! As long as one worker (of each share) lives, fetches and acknowledges, every history ends, in a number of events that
//! is known before. Who waits is woken as soon as there is something to have.

use antdt_core::{Ack, FetchOutcome, Holder, NodeId, RequestId};

use super::Moment;
use crate::ledger::tests::call::Call;
use crate::ledger::tests::pair::{Pair, worker};

pub(super) fn check(moment: &Moment<'_>) {
    let real = moment.real;
    for holder in &real.waiting {
        let generation = real.ledger.generation();
        let again = real.ledger.clone().fetch(*holder, generation, RequestId(u64::MAX));
        assert!(matches!(again, Ok(FetchOutcome::Wait { .. })), "{holder} should have been woken: {again:?}");
    }
}

/// Lets everybody die and one worker for each share finish. Every history must end this way.
pub(in super::super) fn drain(pair: &mut Pair) {
    pair.say(&Call::Thaw);
    if pair.model.has_failed() {
        return; // Nothing more is granted, and that is checked with every question.
    }
    let lost =
        |pair: &Pair, index| pair.model.book.lost.get(&NodeId::worker(index)).map_or(0, |lost| lost.0 + 1);
    for index in 0..8 {
        pair.lose(worker(index, lost(pair, index)));
    }
    let workers = pair.model.workers();
    let heirs: Vec<Holder> = (0..workers).map(|index| worker(index, lost(pair, index))).collect();
    for heir in &heirs {
        assert!(pair.register(*heir));
    }
    let spec = &pair.model.book.spec;
    let shards = spec.shard_count() * u64::from(spec.epoch_limit());
    let mut done = false;
    for request in 1..=(shards + 1) * u64::from(workers) + 1 {
        done = true;
        for heir in &heirs {
            match pair.fetch(*heir, request) {
                Some(FetchOutcome::Granted(grant)) => {
                    pair.ack(*heir, &[Ack { lease: grant.lease, offset: grant.len }]);
                    done = false;
                }
                Some(FetchOutcome::EndOfData) => {}
                other => {
                    assert!(
                        matches!(other, Some(FetchOutcome::Wait { .. })),
                        "{heir} was answered {other:?}"
                    );
                    done = false;
                }
            }
        }
        if done {
            break;
        }
    }
    assert!(done && pair.model.book.ended, "the history does not end");
    let counts = pair.ledger().counts();
    assert_eq!(counts.acked + counts.quarantined, counts.total);
}
