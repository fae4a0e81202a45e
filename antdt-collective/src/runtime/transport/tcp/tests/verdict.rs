//! A rank that waits for one that waits for another: the one at the end is named.

use super::*;

// Waits for a message of `peer` that does not come.
fn waits(transport: &mut TcpTransport, peer: Rank, deadline: Duration) -> CollectiveError {
    let started = Instant::now();
    let tag = reduce_tag(1, 1, 0);
    let call = Exchange { tag, started, deadline: started + deadline, stall: PATIENT };
    let mut place = [0; 8];
    let sink = crate::runtime::transport::Sink::Place(&mut place);
    transport.exchange(&call, &[], &mut [Incoming { from: peer, sink }]).unwrap_err()
}

#[test]
fn who_is_silent_is_named_and_not_who_waits_for_it() {
    // Rank 2 is connected, and says nothing.
    let (mut transports, _aborts) = tcp_members(3);
    let [first, second, _silent] = &mut transports[..] else { panic!("not three members") };
    thread::scope(|scope| {
        // The first one's deadline is far off: it learns from the second one that it waits in vain.
        let first = scope.spawn(|| waits(first, Rank(1), PATIENT));
        let second = scope.spawn(|| waits(second, Rank(2), Duration::from_millis(50)));
        for waited in [first, second] {
            let error = waited.join().unwrap();
            assert_eq!(error.culprit(), Some(holder(2)), "{error}");
        }
    });
}
