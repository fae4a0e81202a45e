//! Conformance suite for implementations of [`ShardSource`].

use std::collections::BTreeSet;
use std::time::Duration;

use antdt_core::port::{SeamError, ShardSource};
use antdt_core::{Ack, AckOutcome, FetchOutcome, Grant, Holder, Incarnation, NodeId, RequestId, Retry};

/// Runs the conformance suite on sources of one new data set: one epoch of 10 samples in shards of 4, dynamic
/// assignment, two leases for each worker, at least two data faults tolerated.
///
/// `source` is called once for each worker. The suite uses the data set up.
///
/// # Panics
/// If the source breaks its contract, with what it should have done.
pub async fn check_source<S: ShardSource>(source: impl Fn() -> S) {
    let zero = Holder::new(NodeId::worker(0), Incarnation(0));
    let one = Holder::new(NodeId::worker(1), Incarnation(0));
    let (a, b) = (source(), source());
    let now = Duration::ZERO;

    let refused = a.fetch(zero, RequestId(1), now).await;
    assert!(
        refused.is_err_and(|e| e.retry() == Retry::Register),
        "a holder that is not registered is told to register"
    );
    a.register(zero, &[]).await.expect("a worker registers");
    a.register(zero, &[]).await.expect("registering again changes nothing");
    b.register(one, &[]).await.expect("another worker registers");

    let first = granted(&a, zero, 1).await;
    assert_eq!(granted(&a, zero, 1).await, first, "the same request gets the same grant");
    let second = granted(&a, zero, 2).await;
    assert_ne!(first.key, second.key, "a shard has one holder at a time");
    assert_eq!(a.fetch(zero, RequestId(3), now).await.expect("no error"), FetchOutcome::AtLimit);
    let old = a.fetch(zero, RequestId(1), now).await;
    assert!(old.is_err_and(|e| e.retry() == Retry::Never), "an older request is refused for good");

    let third = granted(&b, one, 1).await;
    let waits = b.fetch(one, RequestId(2), now).await.expect("no error");
    assert!(
        matches!(waits, FetchOutcome::Wait { .. }),
        "a peer's shard may come back, so this is not the end"
    );

    // Acks: prefix by prefix, never backwards, never for a foreign lease.
    let part = Ack { lease: first.lease, offset: 1 };
    assert_eq!(a.ack(zero, &[part]).await.expect("no error"), [AckOutcome::Accepted]);
    assert_eq!(
        b.ack(one, &[part]).await.expect("no error"),
        [AckOutcome::StaleLease],
        "it is another's lease"
    );
    let mixed = [Ack { lease: first.lease, offset: 2 }, Ack { lease: second.lease, offset: second.len + 1 }];
    assert!(a.ack(zero, &mixed).await.is_err(), "an offset beyond the shard is an error");
    assert!(a.ack(zero, &[Ack { offset: 0, ..part }]).await.is_err(), "an offset that goes back is an error");
    assert!(a.ack(zero, &[]).await.is_err(), "an ack of nothing is an error");

    // A released shard and a failed one come back at the offset that was acknowledged: `mixed` left no trace.
    assert_eq!(a.release(zero, &[part]).await.expect("no error"), [AckOutcome::Accepted]);
    let resumed = granted(&b, one, 3).await;
    assert_eq!((resumed.key, resumed.resume_at, resumed.seed), (first.key, 1, first.seed));
    let unread = Ack { lease: resumed.lease, offset: 1 };
    assert_eq!(b.fail(one, unread, "cannot be read").await.expect("no error"), AckOutcome::Accepted);
    assert_eq!(b.fail(one, unread, "cannot be read").await.expect("no error"), AckOutcome::StaleLease);
    let again = granted(&b, one, 4).await;
    assert_eq!((again.key, again.resume_at), (first.key, 1));

    // A new life of the node ends the old one.
    let reborn = Holder::new(NodeId::worker(0), Incarnation(1));
    let c = source();
    c.register(reborn, &[]).await.expect("a later life registers");
    let zombie = Ack { lease: second.lease, offset: second.len };
    assert!(a.ack(zero, &[zombie]).await.is_err(), "a fenced life counts nothing");
    assert!(a.fetch(zero, RequestId(9), now).await.is_err(), "a fenced life is refused");
    assert!(a.register(zero, &[]).await.is_err(), "a fenced life cannot come back");
    let inherited = granted(&c, reborn, 1).await;
    assert_eq!(inherited.key, second.key);

    // To the end: every worker hears it, and it stays the end. Waiting ends when there is something to hear.
    let all = |grant: &Grant| Ack { lease: grant.lease, offset: grant.len };
    let keys: BTreeSet<_> = [third, again, inherited].iter().map(|grant| grant.key).collect();
    assert_eq!(keys.len(), 3, "ten samples in shards of four are three shards");
    assert_eq!(b.ack(one, &[all(&third), all(&again)]).await.expect("no error"), [AckOutcome::Accepted; 2]);
    assert_eq!(
        b.ack(one, &[all(&third), all(&again)]).await.expect("no error"),
        [AckOutcome::Accepted; 2],
        "the repetition of an ack whose answer was lost is recognised"
    );
    let last = [all(&inherited)];
    let (waited, acked) =
        both(b.fetch(one, RequestId(5), Duration::from_secs(20)), c.ack(reborn, &last)).await;
    assert_eq!(acked.expect("no error"), [AckOutcome::Accepted]);
    assert_eq!(waited.expect("no error"), FetchOutcome::EndOfData);
    assert_eq!(c.fetch(reborn, RequestId(2), now).await.expect("no error"), FetchOutcome::EndOfData);
}

async fn granted<S: ShardSource>(source: &S, holder: Holder, request: u64) -> Grant {
    match source.fetch(holder, RequestId(request), Duration::ZERO).await.expect("no error") {
        FetchOutcome::Granted(grant) => grant,
        other => panic!("{holder} should be granted a shard for request {request}, not {other:?}"),
    }
}

/// Both futures to their ends, without naming a runtime.
async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    use std::pin::pin;
    use std::task::Poll;
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut left, mut right) = (None, None);
    std::future::poll_fn(move |context| {
        if left.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(context)
        {
            left = Some(value);
        }
        if right.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(context)
        {
            right = Some(value);
        }
        match (left.take(), right.take()) {
            (Some(l), Some(r)) => Poll::Ready((l, r)),
            (l, r) => {
                (left, right) = (l, r);
                Poll::Pending
            }
        }
    })
    .await
}
