//! Failures that a rank hears although it awaits nothing from the peer that has them to tell.

use super::*;
use crate::runtime::testing::Watchdog;
use crate::runtime::transport::Sink;

/// Far longer than a test may take: what ends before was not waited for.
const NEVER: Duration = Duration::from_secs(3600);

fn call(sequence: u64, round: u32) -> Exchange {
    let started = Instant::now();
    Exchange { tag: reduce_tag(1, sequence, round), started, deadline: started + NEVER, stall: NEVER }
}

fn send(transport: &mut TcpTransport, call: Exchange, to: u32, bytes: &[u8]) {
    transport.exchange(&call, &[Outgoing { to: Rank(to), bytes }], &mut []).unwrap();
}

fn receive(
    transport: &mut TcpTransport,
    call: Exchange,
    from: u32,
    len: usize,
) -> Result<(), CollectiveError> {
    let mut place = vec![0; len];
    transport.exchange(&call, &[], &mut [Incoming { from: Rank(from), sink: Sink::Place(&mut place) }])
}

#[test]
fn a_reason_behind_messages_that_came_early_is_heard_in_the_wait_for_another() {
    // Longer than a socket's buffer, than what is read of headers at once, and hardly longer than a header.
    for len in [2 << 20, 100_000, 8] {
        let _watchdog = Watchdog::over("a wait for another peer");
        let (mut transports, _aborts) = tcp_members(3);
        let [waiting, early, _silent] = &mut transports[..] else { panic!("not three members") };
        let bytes = vec![7; len];
        thread::scope(|scope| {
            let waits = scope.spawn(|| receive(waiting, call(1, 0), 2, 8).unwrap_err());
            for round in 1..4 {
                send(early, call(1, round), 0, &bytes);
            }
            early.fail(CollectiveError::Invalid { what: "no disk is left".to_owned() });
            let error = waits.join().unwrap();
            let CollectiveError::Aborted { by, reason, .. } = &error else { panic!("{error}") };
            assert_eq!((*by, reason.as_str()), (Some(holder(1)), "no disk is left"));
        });
    }
}

#[test]
fn rank_hears_a_reason_that_came_together_with_an_awaited_message() {
    let _watchdog = Watchdog::over("a reason that was read with a message");
    for attends in [false, true] {
        let (mut transports, _aborts) = tcp_members(3);
        let [waiting, failing, _silent] = &mut transports[..] else { panic!("not three members") };
        send(failing, call(1, 0), 0, &[7; 8]);
        failing.fail(CollectiveError::Invalid { what: "no disk is left".to_owned() });
        receive(waiting, call(1, 0), 1, 8).unwrap();
        while attends && waiting.failure().is_none() {
            waiting.attend();
        }
        let error = receive(waiting, call(1, 1), 2, 8).unwrap_err();
        assert!(matches!(error, CollectiveError::Aborted { by: Some(by), .. } if by == holder(1)), "{error}");
    }
}

#[test]
fn messages_that_were_read_early_arrive_whole_although_their_sender_has_left() {
    let _watchdog = Watchdog::over("reading early");
    let (mut transports, _aborts) = tcp_members(3);
    let (mut late, mut early) = (transports.pop().unwrap(), transports.pop().unwrap());
    let mut waiting = transports.pop().unwrap();
    let len = 300_000;
    let sent = |round: u32| -> Vec<u8> { (0..len).map(|at| (at % 251) as u8 ^ round as u8).collect() };
    thread::scope(|scope| {
        let waits = scope.spawn(move || {
            receive(&mut waiting, call(1, 0), 2, 8).unwrap();
            for round in 1..4 {
                let mut place = vec![0; len];
                let incoming = Incoming { from: Rank(1), sink: Sink::Place(&mut place) };
                waiting.exchange(&call(1, round), &[], &mut [incoming]).unwrap();
                assert!(place == sent(round), "round {round}");
            }
        });
        for round in 1..4 {
            send(&mut early, call(1, round), 0, &sent(round));
        }
        // It leaves once all is with its peer's system, which has taken it from there while it waited.
        drop(early);
        send(&mut late, call(1, 0), 0, &[1; 8]);
        waits.join().unwrap();
    });
}

#[test]
fn a_peer_that_leaves_in_order_is_no_failure_and_one_that_leaves_a_message_behind_is() {
    let _watchdog = Watchdog::over("leaving");
    let (mut transports, _aborts) = tcp_members(3);
    let (last, mut second) = (transports.pop().unwrap(), transports.pop().unwrap());
    let mut first = transports.pop().unwrap();
    // Longer than what is announced, so that the sender is told.
    let bytes = vec![1; 1 << 20];
    thread::scope(|scope| {
        scope.spawn(|| send(&mut first, call(1, 0), 1, &bytes));
        receive(&mut second, call(1, 0), 0, bytes.len()).unwrap();
    });
    drop(second);
    let ended = |transport: &mut TcpTransport, rank| {
        transport.listen();
        transport.is_closed(Rank(rank))
    };
    while !ended(&mut first, 1) {
        thread::yield_now();
    }
    first.check();
    first.attend();
    assert_eq!(first.failure(), None, "it has received everything");
    drop(last);
    while !ended(&mut first, 2) {
        thread::yield_now();
    }
    first.check();
    assert_eq!(first.failure(), None);
    send(&mut first, call(2, 0), 1, &[1; 8]);
    while first.failure().is_none() {
        first.check();
    }
    assert_eq!(first.failure().and_then(CollectiveError::culprit), Some(holder(1)));
}
