//! A rank that waits for one that waits for another: the one at the end is named, and in a circle the one whose message
//! was lost.

use super::*;

// Waits for a message of `peer` that does not come.
fn waits(transport: &mut TcpTransport, peer: Rank, round: u32, deadline: Duration) -> CollectiveError {
    let started = Instant::now();
    let tag = reduce_tag(1, 1, round);
    let call = Exchange { tag, started, deadline: started + deadline, stall: PATIENT };
    let mut place = [0; 8];
    let sink = crate::runtime::transport::Sink::Place(&mut place);
    transport.exchange(&call, &[], &mut [Incoming { from: peer, sink }]).unwrap_err()
}

#[test]
fn a_silent_rank_is_named_and_not_one_that_waits_for_it() {
    // Rank 2 is connected, and says nothing.
    let (mut transports, _aborts) = tcp_members(3);
    let [first, second, _silent] = &mut transports[..] else { panic!("not three members") };
    thread::scope(|scope| {
        // The first one's deadline is far off: it learns from the second one that it waits in vain.
        let first = scope.spawn(|| waits(first, Rank(1), 0, PATIENT));
        let second = scope.spawn(|| waits(second, Rank(2), 0, Duration::from_millis(50)));
        for waited in [first, second] {
            let error = waited.join().unwrap();
            assert_eq!(error.culprit(), Some(holder(2)), "{error}");
        }
    });
}

// Three ranks that each wait for the next one, each in its round, until the deadline.
fn circle(rounds: [u32; 3], deadline: Duration) -> Vec<CollectiveError> {
    let (transports, _aborts) = tcp_members(3);
    thread::scope(|scope| {
        let waits = (0..).zip(transports).zip(rounds).map(|((me, mut transport), round)| {
            scope.spawn(move || waits(&mut transport, Rank((me + 1) % 3), round, deadline))
        });
        let waits: Vec<_> = waits.collect();
        waits.into_iter().map(|wait| wait.join().unwrap()).collect()
    })
}

#[test]
fn in_a_circle_all_name_the_one_whose_message_the_earliest_round_lacks() {
    // A rank that is off its processor for longer than the deadline is late, and rightly named: then the deadline was too
    // short for this machine.
    let deadlines = [50, 500, 5000].map(Duration::from_millis);
    // Each rank waits for the next one, in any order of their rounds; a rank that waits in round 0 lacks what was sent.
    for rounds in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]] {
        let lacking = rounds.iter().position(|round| *round == 0).unwrap() as u32;
        let culprit = Some(holder((lacking + 1) % 3));
        let wrong = deadlines.iter().map_while(|deadline| {
            let errors = circle(rounds, *deadline);
            let wrong = errors.iter().find(|error| error.culprit() != culprit);
            wrong.map(|error| format!("{rounds:?}, {deadline:?}: {error}"))
        });
        let wrong: Vec<String> = wrong.collect();
        assert!(wrong.len() < deadlines.len(), "{wrong:?}");
    }
}
