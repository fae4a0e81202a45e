//! Members that give up and close at once.

use super::*;
use crate::runtime::testing::{SHORT, Watchdog};
use crate::runtime::transport::tcp::close;
use crate::runtime::transport::{Fold, Sink};

/// Aborts the sender as soon as something of its message is there.
struct Aborts<'a> {
    handle: &'a AbortHandle,
    len: usize,
}

impl Fold for Aborts<'_> {
    fn len_bytes(&self) -> usize {
        self.len
    }

    fn fold(&mut self, _at: usize, _bytes: &[u8]) {
        self.handle.abort("enough");
    }
}

#[test]
fn a_reason_reaches_the_peer_although_its_sender_closes_with_bytes_unread() {
    const LEN: usize = 64 << 20;
    for _ in 0..20 {
        let (mut transports, aborts) = tcp_members(2);
        let (mut second, mut first) = (transports.pop().unwrap(), transports.pop().unwrap());
        let bytes = vec![1; LEN];
        let started = Instant::now();
        let call =
            Exchange { tag: reduce_tag(1, 1, 0), started, deadline: started + PATIENT, stall: PATIENT };
        thread::scope(|scope| {
            let bytes = &bytes;
            scope.spawn(move || {
                let sends = [Outgoing { to: Rank(1), bytes }];
                let mut place = vec![0; LEN];
                let receives = &mut [Incoming { from: Rank(1), sink: Sink::Place(&mut place) }];
                first.exchange(&call, &sends, receives).unwrap_err();
                drop(first);
            });
            let sends = [Outgoing { to: Rank(0), bytes }];
            let mut fold = Aborts { handle: &aborts[0], len: LEN };
            let receives = &mut [Incoming { from: Rank(0), sink: Sink::Fold(&mut fold) }];
            let error = second.exchange(&call, &sends, receives).unwrap_err();
            assert!(
                matches!(&error, CollectiveError::Aborted { by, reason, .. }
                    if *by == Some(holder(0)) && reason == "enough"),
                "{error}"
            );
        });
    }
}

#[test]
fn messages_sent_before_a_peer_closed_are_received_although_it_cannot_be_answered() {
    const ROUNDS: u32 = 4;
    let (mut puppet, mut transport) = Puppet::meet(5);
    for round in 0..ROUNDS {
        // After the first segment the peer is told that its message is being taken: no process is there to hear it.
        puppet.send(reduce_tag(5, 1, round), 0, &[1; 64]);
        puppet.send(reduce_tag(5, 1, round), 1, &[2; 36]);
    }
    drop(puppet);
    let receive = |transport: &mut TcpTransport, round| {
        let started = Instant::now();
        let call =
            Exchange { tag: reduce_tag(5, 1, round), started, deadline: started + PATIENT, stall: PATIENT };
        let mut place = [0; 100];
        let receives = &mut [Incoming { from: Rank(0), sink: Sink::Place(&mut place) }];
        transport.exchange(&call, &[], receives).map(|()| place)
    };
    for round in 0..ROUNDS {
        let place = receive(&mut transport, round).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert_eq!((&place[..64], &place[64..]), (&[1; 64][..], &[2; 36][..]));
    }
    let error = receive(&mut transport, ROUNDS).unwrap_err();
    assert!(matches!(error, CollectiveError::PeerClosed { .. }), "{error}");
}

/// A peer with more bytes on their way to it than its system takes unasked, and the transport that has sent them in order.
fn sent(bytes: &[u8], stall: Duration) -> (TcpTransport, TcpTransport, Exchange) {
    let (mut transports, _aborts) = tcp_members(2);
    let (second, mut first) = (transports.pop().unwrap(), transports.pop().unwrap());
    let started = Instant::now();
    let call = Exchange { tag: reduce_tag(1, 1, 0), started, deadline: started + PATIENT, stall };
    first.exchange(&call, &[Outgoing { to: Rank(1), bytes }], &mut []).unwrap();
    assert!(
        close::unacknowledged(first.link(Rank(1)).socket.stream.socket()) > 0,
        "its system has taken it all"
    );
    (first, second, call)
}

#[test]
fn a_message_reaches_a_peer_that_takes_it_late_although_its_sender_leaves_at_once() {
    const LEN: usize = 1 << 20;
    let (first, mut second, call) = sent(&[1; LEN], PATIENT);
    thread::scope(|scope| {
        scope.spawn(move || drop(first));
        // Longer than a transport waits whose last call is long over.
        thread::sleep(Duration::from_millis(1500));
        let mut place = vec![0; LEN];
        let receives = &mut [Incoming { from: Rank(0), sink: Sink::Place(&mut place) }];
        second.exchange(&call, &[], receives).unwrap();
        assert_eq!(place, [1; LEN]);
    });
}

#[test]
fn a_peer_may_take_a_message_as_slowly_as_within_the_last_call() {
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    let (deadline, stall) = (now + 10 * second, 3 * second);
    let call = Exchange { tag: reduce_tag(1, 1, 0), started: now, deadline, stall };
    let mut linger = Linger::after(&call, now);
    assert_eq!(linger.until(now, 100), now + stall);
    assert_eq!(linger.until(now + 2 * second, 100), now + stall);
    assert_eq!(linger.until(now + 2 * second, 60), now + 2 * second + stall);
    // What comes back on the way counts for nothing.
    assert_eq!(linger.until(now + 4 * second, 80), now + 2 * second + stall);
    assert_eq!(linger.until(now + 8 * second, 59), deadline);
    // A moment at least, however long the last call is over and however short its patience was.
    let late = deadline + 100 * second;
    assert_eq!(Linger::after(&call, late).until(late, 1), late + second);
    let call = Exchange { stall: Duration::ZERO, ..call };
    assert_eq!(Linger::after(&call, now).until(now, 1), now + second);
    // A limit without meaning is none.
    let call = Exchange { stall: Duration::MAX, ..call };
    assert_eq!(Linger::after(&call, now).until(now, 1), deadline);
    let failed = Linger::failed(now).until(now, 1);
    assert!(failed > now && failed < now + second);
}

#[test]
fn a_leaving_rank_does_not_wait_for_a_peer_that_takes_nothing() {
    let (mut first, _second, _) = sent(&[1; 1 << 20], SHORT);
    let _watchdog = Watchdog::over("who leaves");
    first.last.deadline += Duration::from_secs(3600);
    drop(first);
}
