use std::thread;

use antdt_core::Connections;

use super::*;
use crate::runtime::testing::{abort_handles, at_once};

const PATIENT: Duration = Duration::from_secs(60);

fn terms(job: &str, part: &'static str, one_host: bool) -> Terms<'static> {
    Terms { job: JobToken::new(job), one_host, part }
}

type End = Result<Box<dyn Channel>, ChannelError>;

// Both ends of a channel: the one that dialled first; with each one's abort handle.
fn ends(first: Terms<'static>, second: Terms<'static>) -> ([End; 2], [AbortHandle; 2]) {
    let streams = BulkStream::pair(&Connections::default()).unwrap();
    let aborts: [AbortHandle; 2] = abort_handles(2).try_into().unwrap();
    let soon = || Instant::now() + PATIENT;
    let both = at_once((0..).zip(streams), |(end, stream)| {
        let tcp = TcpChannel::new(stream, &aborts[end]);
        if end == 0 { offer(tcp, first, soon()) } else { answer(tcp, second, soon()) }
    });
    (both.try_into().unwrap_or_else(|_| panic!("two ends")), aborts)
}

fn pair() -> ([Box<dyn Channel>; 2], [AbortHandle; 2]) {
    let (ends, aborts) = ends(terms("job", "", true), terms("job", "", true));
    (ends.map(Result::unwrap), aborts)
}

fn is_shared(channel: &dyn Channel) -> bool {
    format!("{channel:?}").starts_with("ShmChannel")
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + seed) as u8).collect()
}

#[test]
fn bytes_of_any_length_come_in_order_in_pieces_of_any_size() {
    let ([first, second], _aborts) = pair();
    assert!(is_shared(&*first) && is_shared(&*second));
    let ring = SHAPE.ring_bytes;
    let lens = [1, 2, 127, 128, 129, 4096, PIECE - 1, PIECE + 1, ring - 1, ring, ring + 1, 2 * ring + 77];
    let soon = Instant::now() + PATIENT;
    let sent: Vec<u8> = lens.iter().enumerate().flat_map(|(seed, len)| pattern(*len, seed)).collect();
    thread::scope(|scope| {
        for mut end in [first, second] {
            let sent = &sent;
            // Each sends a piece and then takes one, so that neither is a ring ahead of the other.
            scope.spawn(move || {
                let mut at = 0;
                for (seed, len) in lens.iter().enumerate() {
                    let (mut came, bytes) = (vec![0; *len], pattern(*len, seed));
                    for (piece, into) in bytes.chunks(ring / 2 + 3).zip(came.chunks_mut(ring / 2 + 3)) {
                        end.send(piece, soon).unwrap();
                        // Byte by byte at first, then the rest.
                        let (head, tail) = into.split_at_mut(into.len().min(3));
                        end.wait(soon).unwrap();
                        head.chunks_mut(1).for_each(|byte| end.receive(byte, soon).unwrap());
                        end.receive(tail, soon).unwrap();
                    }
                    assert_eq!(came, sent[at..at + len], "{len}");
                    at += len;
                }
            });
        }
    });
}

#[test]
fn a_message_longer_than_the_ring_waits_for_room_and_arrives() {
    let ([mut first, mut second], _aborts) = pair();
    let bytes = pattern(3 * SHAPE.ring_bytes, 5);
    let soon = Instant::now() + PATIENT;
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            first.send(&bytes, soon).unwrap();
            let mut thanks = [0];
            first.receive(&mut thanks, soon).unwrap();
            thanks[0]
        });
        let mut came = vec![0; bytes.len()];
        for piece in came.chunks_mut(1_000_003) {
            // The other end is asleep by now and then.
            thread::sleep(Duration::from_millis(1));
            second.receive(piece, soon).unwrap();
        }
        assert!(came == bytes);
        second.send(&[7], soon).unwrap();
        assert_eq!(sender.join().unwrap(), 7);
    });
}

#[test]
fn bytes_sent_before_an_end_closed_are_received_and_then_its_end() {
    let ([mut first, mut second], _aborts) = pair();
    let soon = Instant::now() + PATIENT;
    first.send(&[1, 2, 3], soon).unwrap();
    drop(first);
    let mut came = [0; 3];
    second.receive(&mut came, soon).unwrap();
    assert_eq!(came, [1, 2, 3]);
    assert!(matches!(second.wait(soon), Err(ChannelError::Closed)));
    assert!(matches!(second.receive(&mut came, soon), Err(ChannelError::Closed)));
    // A ring without a reader is full one day.
    let full = (0..2).try_for_each(|_| second.send(&vec![0; SHAPE.ring_bytes], soon));
    assert!(matches!(full, Err(ChannelError::Closed)), "{full:?}");
}

#[test]
fn an_end_that_sleeps_is_woken_by_a_close_an_abort_and_its_deadline() {
    type Strike = fn(Box<dyn Channel>, &AbortHandle) -> Option<Box<dyn Channel>>;
    let strikes: [(Strike, &str); 3] = [
        (|other, _| (drop(other), None).1, "Closed"),
        (|other, abort| (abort.abort("fenced"), Some(other)).1, "fenced"),
        (|other, _| Some(other), "Late"),
    ];
    for (strike, expected) in strikes {
        let ([mut first, second], [abort, _]) = pair();
        let patience = if expected == "Late" { Duration::from_millis(100) } else { PATIENT };
        thread::scope(|scope| {
            let sleeper = scope.spawn(move || first.wait(Instant::now() + patience));
            thread::sleep(Duration::from_millis(20));
            let _kept = strike(second, &abort);
            let error = format!("{:?}", sleeper.join().unwrap().unwrap_err());
            assert!(error.contains(expected), "{error}");
        });
    }
}

#[test]
fn ends_on_two_hosts_stay_with_the_connection_or_refuse_as_they_were_told() {
    let soon = Instant::now() + PATIENT;
    let ([first, second], _aborts) = ends(terms("job", "a", false), terms("job", "b", false));
    let (mut first, mut second) = (first.unwrap(), second.unwrap());
    assert!(!is_shared(&*first) && !is_shared(&*second));
    first.send(b"over the wire", soon).unwrap();
    let mut came = [0; 13];
    second.receive(&mut came, soon).unwrap();
    assert_eq!(&came, b"over the wire");

    let (refused, _aborts) = ends(terms("job", "a", true), terms("job", "b", true));
    for refused in refused {
        let error = refused.unwrap_err();
        assert!(matches!(error, ChannelError::OtherHost), "{error}");
        assert!(error.to_string().contains("choose the transport `auto` or `tcp`"), "{error}");
    }
}

#[test]
fn a_stranger_gets_no_memory_and_can_be_told_why() {
    let soon = Instant::now() + PATIENT;
    let ([first, second], _aborts) = ends(terms("another", "", true), terms("job", "", true));
    let (mut first, mut second) = (first.unwrap(), second.unwrap());
    assert!(!is_shared(&*first) && !is_shared(&*second));
    second.send(b"no", soon).unwrap();
    first.receive(&mut [0; 2], soon).unwrap();
}

#[test]
fn first_bytes_that_are_none_of_this_transport_are_refused() {
    let [mut stranger, stream] = BulkStream::pair(&Connections::default()).unwrap();
    stranger.write_all(&[0xff; 300]).unwrap();
    let tcp = TcpChannel::new(stream, &abort_handles(1)[0]);
    let error = answer(tcp, terms("job", "", false), Instant::now() + PATIENT).unwrap_err();
    assert!(matches!(error, ChannelError::Corrupt { .. }), "{error}");
}
