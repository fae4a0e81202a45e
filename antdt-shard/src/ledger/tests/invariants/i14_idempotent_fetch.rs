//! The repetition of the last question that was answered with grants is answered with the same, and allocates nothing.

use antdt_core::{Ack, RequestId};

use crate::ledger::tests::pair::{Pair, small, worker};
use crate::spec::DatasetSpec;
use crate::testing::call::{Call, CallReply};

#[test]
fn a_repeated_call_counts_its_acks_once_and_gets_the_same_shards() {
    let mut pair = Pair::new(DatasetSpec { max_leases_per_holder: 4, ..small(40, 2) });
    let (holder, generation) = (worker(0, 0), pair.generation());
    pair.register(holder);
    pair.fetch(holder, 1);
    let acks = vec![Ack { lease: pair.newest().lease, offset: 2 }];
    let exchange = Call::Exchange { holder, generation, request: RequestId(2), acks, want: 4 };
    let CallReply::Exchanged(Ok(first)) = pair.say(&exchange) else { panic!() };
    assert_eq!(first.grants().count(), 4);
    for _ in 0..3 {
        assert_eq!(pair.say(&exchange), CallReply::Exchanged(Ok(first.clone())));
    }
    assert_eq!((pair.ledger().counts().acked, pair.ledger().counts().doing), (2, 8));
}
