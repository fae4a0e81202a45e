//! The repetition of the last question that was answered with grants is answered with the same, and allocates nothing.

use antdt_core::{Ack, RequestId};

use super::Moment;
use crate::ledger::tests::call::{Call, Reply};
use crate::ledger::tests::pair::{Pair, small, worker};
use crate::spec::DatasetSpec;

pub(super) fn check(moment: &Moment<'_>) {
    let Some(first) = &moment.model.book.facts.repeated else { return };
    if moment.reply.is_refusal() {
        return; // For its acks, or for its generation.
    }
    // The question for one hears of the first.
    let heard = if let Call::Fetch { .. } = moment.call { &first[..1] } else { first };
    assert_eq!(moment.reply.grants(), heard);
    let (before, after) = (&moment.real.before, &moment.real.ledger);
    assert_eq!(before.standing.sequence, after.standing.sequence, "a repetition allocates nothing");
    assert!(moment.model.book.facts.granted.is_empty());
}

#[test]
fn a_repeated_call_counts_its_acks_once_and_gets_the_same_shards() {
    let mut pair = Pair::new(DatasetSpec { max_leases_per_holder: 4, ..small(40, 2) });
    let (holder, generation) = (worker(0, 0), pair.generation());
    pair.register(holder);
    pair.fetch(holder, 1);
    let acks = vec![Ack { lease: pair.newest().lease, offset: 2 }];
    let exchange = Call::Exchange { holder, generation, request: RequestId(2), acks, want: 4 };
    let Reply::Exchanged(Ok(first)) = pair.say(&exchange) else { panic!() };
    assert_eq!(first.grants().count(), 4);
    for _ in 0..3 {
        assert_eq!(pair.say(&exchange), Reply::Exchanged(Ok(first.clone())));
    }
    assert_eq!((pair.ledger().counts().acked, pair.ledger().counts().doing), (2, 8));
}
