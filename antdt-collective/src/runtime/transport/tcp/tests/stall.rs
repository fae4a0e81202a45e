//! Peers that fall silent within a message, and peers that have not come yet.

use super::*;

const MIB: usize = 1 << 20;
const STALL: Duration = Duration::from_millis(40);

fn call(deadline: Duration) -> Exchange {
    let started = Instant::now();
    Exchange { tag: reduce_tag(5, 1, 0), started, deadline: started + deadline, stall: STALL }
}

// The rank that is given up, after how long, and how much is missing.
fn given_up(error: &CollectiveError) -> (Duration, u64) {
    let CollectiveError::Timeout { peer, waited, missing, .. } = error else { panic!("{error}") };
    assert_eq!(*peer, holder(0));
    (*waited, *missing)
}

fn receives(transport: &mut TcpTransport, call: &Exchange, place: &mut [u8]) -> CollectiveError {
    let incoming = Incoming { from: Rank(0), sink: crate::runtime::transport::Sink::Place(place) };
    transport.exchange(call, &[], &mut [incoming]).unwrap_err()
}

fn sends(transport: &mut TcpTransport, call: &Exchange, bytes: &[u8]) -> CollectiveError {
    transport.exchange(call, &[Outgoing { to: Rank(0), bytes }], &mut []).unwrap_err()
}

#[test]
fn a_message_that_falls_silent_within_is_given_up_before_the_deadline() {
    // Within the first segment, and between two.
    for (segments, more) in [(0, 1000), (1, 0)] {
        let (mut puppet, mut transport) = Puppet::meet(5);
        let payload = vec![1; message::SEGMENT_BYTES];
        for segment in 0..segments {
            puppet.send(reduce_tag(5, 1, 0), segment, &payload);
        }
        let header = Header::of(FrameKind::Data, reduce_tag(5, 1, 0), segments, &payload);
        if more > 0 {
            puppet.stream.write_all(&header.encode()).unwrap();
            puppet.stream.write_all(&payload[..more]).unwrap();
        }
        let (waited, missing) = given_up(&receives(&mut transport, &call(PATIENT), &mut vec![0; MIB]));
        assert!(waited < PATIENT, "{waited:?}");
        assert_eq!(missing as usize, MIB - segments as usize * message::SEGMENT_BYTES);
    }
}

#[test]
fn a_message_that_has_not_begun_is_waited_for_until_the_deadline() {
    let (_puppet, mut transport) = Puppet::meet(5);
    let deadline = 5 * STALL;
    let (waited, missing) = given_up(&receives(&mut transport, &call(deadline), &mut [0; 100]));
    assert!(waited >= deadline, "{waited:?}");
    assert_eq!(missing, 100);
}

#[test]
fn a_peer_that_takes_a_message_and_then_stops_is_given_up_before_the_deadline() {
    let (mut puppet, mut transport) = Puppet::meet(5);
    let taking = Header::plain(FrameKind::Taking, reduce_tag(5, 1, 0), 0, 0);
    puppet.stream.write_all(&taking.encode()).unwrap();
    let (waited, missing) = given_up(&sends(&mut transport, &call(PATIENT), &vec![1; 100 * MIB]));
    assert!(waited < PATIENT, "{waited:?}");
    assert!(missing > 0);
}

#[test]
fn a_peer_that_has_not_begun_to_take_a_message_has_time_until_the_deadline() {
    let (_puppet, mut transport) = Puppet::meet(5);
    let deadline = 5 * STALL;
    let (waited, _) = given_up(&sends(&mut transport, &call(deadline), &vec![1; 100 * MIB]));
    assert!(waited >= deadline, "{waited:?}");
}

#[test]
fn a_receiver_of_a_long_message_that_sends_nothing_says_that_it_takes_it() {
    // One that does not spin sleeps whenever it is stuck, and hears then what there is to hear.
    let listeners = [loopback_listener(), loopback_listener()];
    let addresses = listeners.each_ref().map(Listener::local_address);
    let connect = |me: u32| {
        let (listener, group) = (&listeners[me as usize], group(1, &addresses, me));
        TcpTransport::connect_with(listener, &group, PATIENT, &abort(), CHECKED).unwrap()
    };
    let (mut first, mut second) = thread::scope(|scope| {
        let second = scope.spawn(|| connect(1));
        (connect(0), second.join().unwrap())
    });
    // On a busy machine either side may stand still for longer than the others of these tests are forgiven.
    let mut exchange = Exchange { stall: PATIENT, ..call(PATIENT) };
    exchange.tag.membership = MembershipVersion(1);
    let mut answer = exchange;
    answer.tag.round += 1;
    thread::scope(|scope| {
        scope.spawn(|| {
            let bytes = vec![1; 100 * MIB];
            first.exchange(&exchange, &[Outgoing { to: Rank(1), bytes: &bytes }], &mut []).unwrap();
            // A rank that never has to wait does not listen; what was said comes before an answer.
            let sink = crate::runtime::transport::Sink::Place(&mut [0]);
            first.exchange(&answer, &[], &mut [Incoming { from: Rank(1), sink }]).unwrap();
            assert!(first.links[1].as_ref().unwrap().takes(&exchange.tag));
        });
        let mut place = vec![0; 100 * MIB];
        let sink = crate::runtime::transport::Sink::Place(&mut place);
        second.exchange(&exchange, &[], &mut [Incoming { from: Rank(0), sink }]).unwrap();
        second.exchange(&answer, &[Outgoing { to: Rank(0), bytes: &[1] }], &mut []).unwrap();
    });
}

#[test]
fn a_message_of_one_segment_is_announced_before_it_is_complete() {
    let (mut puppet, mut transport) = Puppet::meet(5);
    let payload = vec![1; message::SEGMENT_BYTES];
    let header = Header::of(FrameKind::Data, reduce_tag(5, 1, 0), 0, &payload);
    thread::scope(|scope| {
        let mut stream = &puppet.stream;
        scope.spawn(move || {
            stream.write_all(&header.encode()).unwrap();
            stream.write_all(&payload[..payload.len() - 1]).unwrap();
        });
        given_up(&receives(&mut transport, &call(PATIENT), &mut vec![0; message::SEGMENT_BYTES]));
    });
    let mut said = [0; Header::LEN];
    puppet.stream.read_exact(&mut said).unwrap();
    let said = Header::decode(&said).unwrap();
    assert_eq!((said.kind, said.tag), (FrameKind::Taking, reduce_tag(5, 1, 0)));
}
