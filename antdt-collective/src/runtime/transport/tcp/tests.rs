use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use antdt_core::{DetRng, MembershipVersion, Seed};

use super::*;
use crate::element::ElementType;
use crate::frame::{FrameKind, Header, Operation, OperationKind, notice};
use crate::group::{JobToken, Member};
use crate::op::ReduceOp;
use crate::runtime::communicator::{Communicator, CommunicatorConfig, ScheduledCommunicator};
use crate::runtime::testing::{holder, loopback_listener, on_all, tcp_members};
use crate::schedule::{Choice, Ring};

mod close;
mod look;
mod regroup;
mod stall;
mod verdict;
mod wrapped;

const PATIENT: Duration = Duration::from_secs(30);

/// The proxies of these tests damage what passes, as no way between two sockets of one host does.
const CHECKED: TcpConfig = TcpConfig { checksum: Checksum::Always, spin: Duration::ZERO };

// Rank `me` of a group whose members listen at `addresses`.
fn group(membership: u64, addresses: &[SocketAddr], me: u32) -> Group {
    let members =
        (0..).zip(addresses).map(|(rank, address)| Member { holder: holder(rank), address: *address });
    Group::new(MembershipVersion(membership), members.collect(), Rank(me)).unwrap()
}

fn abort() -> AbortHandle {
    AbortHandle::new().unwrap()
}

fn communicator(transport: TcpTransport, timeout: Duration) -> ScheduledCommunicator<TcpTransport> {
    // The frames of these tests are the ring's.
    let config = CommunicatorConfig { timeout, algorithm: Choice::Ring, ..CommunicatorConfig::default() };
    ScheduledCommunicator::new(transport, config)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// The connection ends.
    Cut,
    /// All connections of a rank end.
    Kill(u32),
    /// One bit arrives changed.
    Flip,
    /// Nothing more gets through.
    Stall,
}

/// One end of a forwarded connection, with the ranks it connects.
type Wire = ((u32, u32), TcpStream);

/// Forwards the connection of one pair of ranks, until a byte count is reached in one direction.
struct Proxy {
    pair: (u32, u32),
    address: SocketAddr,
    wires: Arc<Mutex<Vec<Wire>>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    fn start(
        pair: (u32, u32),
        target: SocketAddr,
        fault: Option<(bool, usize, Fault)>,
        wires: &Arc<Mutex<Vec<Wire>>>,
        struck: &Arc<AtomicBool>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (shared, struck) = (wires.clone(), struck.clone());
        let thread = thread::spawn(move || {
            let (near, _) = listener.accept().unwrap();
            let Ok(far) = TcpStream::connect(target) else { return };
            for stream in [&near, &far] {
                stream.set_nodelay(true).unwrap();
                shared.lock().unwrap().push((pair, stream.try_clone().unwrap()));
            }
            thread::scope(|scope| {
                for (from, to, forward) in [(&near, &far, true), (&far, &near, false)] {
                    let fault = fault
                        .filter(|(direction, ..)| *direction == forward)
                        .map(|(_, at, fault)| (at, fault));
                    let (shared, struck) = (&shared, &struck);
                    scope.spawn(move || pump(from, to, fault, shared, struck));
                }
            });
        });
        Self { pair, address, wires: wires.clone(), thread: Some(thread) }
    }
}

fn pump(
    mut from: &TcpStream,
    mut to: &TcpStream,
    fault: Option<(usize, Fault)>,
    wires: &Mutex<Vec<Wire>>,
    struck: &AtomicBool,
) {
    let mut buffer = [0; 4096];
    let mut passed = 0;
    while let Ok(got) = from.read(&mut buffer) {
        if got == 0 {
            break;
        }
        if let Some((at, fault)) = fault.filter(|(at, _)| (passed..passed + got).contains(at)) {
            struck.store(true, Ordering::SeqCst);
            let _ = to.write_all(&buffer[..at - passed]);
            match fault {
                Fault::Flip => {
                    buffer[at - passed] ^= 0x10;
                    let _ = to.write_all(&buffer[at - passed..got]);
                    passed += got;
                    continue;
                }
                Fault::Stall => return,
                Fault::Cut => {
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                    return;
                }
                Fault::Kill(rank) => {
                    for ((a, b), wire) in wires.lock().unwrap().iter() {
                        if rank == *a || rank == *b {
                            let _ = wire.shutdown(Shutdown::Both);
                        }
                    }
                    return;
                }
            }
        }
        passed += got;
        if to.write_all(&buffer[..got]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Wakes the acceptor if no process ever called.
        let _ = TcpStream::connect(self.address);
        for (pair, wire) in self.wires.lock().unwrap().iter() {
            if *pair == self.pair {
                let _ = wire.shutdown(Shutdown::Both);
            }
        }
        self.thread.take().unwrap().join().unwrap();
    }
}

const LEN: usize = 300;

fn operand(rank: u32) -> Vec<f32> {
    (0..LEN).map(|i| (i as f32).mul_add(0.37, rank as f32 + 0.1)).collect()
}

/// What a rank saw: the outcome of each call, or of connecting.
type Seen = Vec<Result<(), CollectiveError>>;

// Three all-reduces and a gather through proxies, one of which misbehaves.
fn run_with_fault(
    world: u32,
    pair: (u32, u32),
    fault: (bool, usize, Fault),
    timeout: Duration,
) -> (Vec<Seen>, bool) {
    let listeners: Vec<Listener> = (0..world).map(|_| loopback_listener()).collect();
    let (wires, struck) = (Arc::default(), Arc::new(AtomicBool::new(false)));
    let mut proxies = Vec::new();
    for low in 0..world {
        for high in low + 1..world {
            let fault = ((low, high) == pair).then_some(fault);
            let target = listeners[high as usize].local_address();
            proxies.push(Proxy::start((low, high), target, fault, &wires, &struck));
        }
    }
    let expected = {
        use crate::schedule::{Algorithm, interpret};
        let mut buffers: Vec<Vec<f32>> = (0..world).map(operand).collect();
        let schedules: Vec<_> = (0..world).map(|rank| Ring.schedule(Rank(rank), world, LEN)).collect();
        interpret(&schedules, &mut buffers, ReduceOp::Sum).unwrap();
        buffers.swap_remove(0)
    };
    let work = |me: u32| -> Seen {
        let addresses: Vec<SocketAddr> = (0..world)
            .map(|peer| {
                let proxy = proxies.iter().find(|proxy| proxy.pair == (me.min(peer), me.max(peer)));
                proxy.map_or(listeners[me as usize].local_address(), |proxy| proxy.address)
            })
            .collect();
        let group = group(1, &addresses, me);
        // A member that fails to connect leaves some that can only wait.
        let patience = timeout.min(Duration::from_secs(1));
        let transport =
            match TcpTransport::connect_with(&listeners[me as usize], &group, patience, &abort(), CHECKED) {
                Ok(transport) => transport,
                Err(error) => return vec![Err(error)],
            };
        let mut communicator = communicator(transport, timeout);
        let mut seen = Seen::new();
        for _ in 0..3 {
            let mut data = operand(me);
            let result = communicator.all_reduce_by(Choice::Ring, &mut data, ReduceOp::Sum);
            assert_eq!(data, if result.is_ok() { expected.clone() } else { operand(me) }, "all or nothing");
            seen.push(result);
        }
        let gathered = communicator.all_gather_v(&[me as u8; 40]);
        if let Ok(blocks) = &gathered {
            assert_eq!(*blocks, (0..world).map(|rank| vec![rank as u8; 40]).collect::<Vec<_>>());
        }
        seen.push(gathered.map(drop));
        seen
    };
    let seen = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..world).map(|me| scope.spawn(move || work(me))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // First the listeners: a proxy whose caller never came may be connected to one.
    drop(listeners);
    drop(proxies);
    (seen, struck.load(Ordering::SeqCst))
}

fn any_pair(rng: &mut DetRng, world: u32) -> (u32, u32) {
    let low = rng.below(u64::from(world) - 1) as u32;
    (low, low + 1 + rng.below(u64::from(world - low) - 1) as u32)
}

// Bytes that a run sends over one connection in one direction, roughly: hello, frames of three rings and a gather.
const TRAFFIC: u64 = 4_000;
const HELLO: u64 = 88;

#[test]
fn a_connection_or_a_rank_that_dies_at_any_byte_ends_every_call_without_a_deadline() {
    let mut strikes = 0;
    for case in 0..120 {
        let mut rng = Seed(11).derive_number(case).rng();
        let world = 2 + rng.below(3) as u32;
        let pair = any_pair(&mut rng, world);
        let at = rng.below(TRAFFIC) as usize;
        let fault =
            if rng.below(2) == 0 { Fault::Cut } else { Fault::Kill([pair.0, pair.1][rng.below(2) as usize]) };
        let (seen, struck) = run_with_fault(world, pair, (rng.below(2) == 0, at, fault), PATIENT);
        let errors: Vec<&CollectiveError> =
            seen.iter().flatten().filter_map(|result| result.as_ref().err()).collect();
        let story = format!("case {case}: {world} ranks, {pair:?}, {fault:?} at byte {at}: {seen:?}");
        strikes += usize::from(struck);
        assert!(!struck || !errors.is_empty(), "a byte that was due never came, and nobody noticed; {story}");
        let connected = seen.iter().all(|calls| calls.len() > 1);
        let late = errors.iter().any(|error| matches!(error, CollectiveError::Timeout { .. }));
        assert!(!(connected && late), "{story}");
        for calls in &seen {
            let first = calls.iter().position(Result::is_err).unwrap_or(calls.len());
            assert!(
                calls[first..].iter().all(Result::is_err),
                "no call succeeds after one that failed; {story}"
            );
        }
    }
    assert!(strikes > 60, "{strikes} faults took place");
}

#[test]
fn a_changed_bit_anywhere_is_noticed_and_never_reaches_a_result() {
    let mut strikes = 0;
    for case in 0..60 {
        let mut rng = Seed(12).derive_number(case).rng();
        let world = 2 + rng.below(3) as u32;
        let pair = any_pair(&mut rng, world);
        let at = (HELLO + rng.below(TRAFFIC)) as usize;
        let (seen, struck) = run_with_fault(world, pair, (rng.below(2) == 0, at, Fault::Flip), PATIENT);
        let corrupt =
            seen.iter().flatten().filter(|r| matches!(r, Err(CollectiveError::Corrupt { .. }))).count();
        // The results themselves were compared inside.
        assert!(!struck || corrupt > 0, "case {case}: {world} ranks, {pair:?}, byte {at}: {seen:?}");
        strikes += usize::from(struck);
    }
    assert!(strikes > 30, "{strikes} faults took place");
}

#[test]
fn a_connection_that_falls_silent_at_any_byte_ends_every_call_at_the_deadline() {
    for case in 0..12 {
        let mut rng = Seed(13).derive_number(case).rng();
        let world = 2 + rng.below(3) as u32;
        let pair = any_pair(&mut rng, world);
        let at = (HELLO + rng.below(TRAFFIC / 2)) as usize;
        let timeout = Duration::from_millis(150);
        let (seen, struck) = run_with_fault(world, pair, (rng.below(2) == 0, at, Fault::Stall), timeout);
        let failed = seen.iter().filter(|calls| calls.iter().any(Result::is_err)).count();
        assert!(
            !struck || failed == world as usize,
            "case {case}: {world} ranks, {pair:?}, byte {at}: {seen:?}"
        );
    }
}

/// A peer played by hand.
struct Puppet {
    stream: TcpStream,
}

impl Puppet {
    // Connects as rank 0 of a group of two to `listener`, which is rank 1; returns rank 1's transport.
    fn meet(membership: u64) -> (Self, TcpTransport) {
        let listeners = [loopback_listener(), loopback_listener()];
        let addresses = listeners.each_ref().map(Listener::local_address);
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                TcpTransport::connect(&listeners[1], &group(membership, &addresses, 1), PATIENT, &abort())
                    .unwrap()
            });
            let group = group(membership, &addresses, 0);
            let mut mine = TcpTransport::connect(&listeners[0], &group, PATIENT, &abort()).unwrap();
            let stream = mine.links[1].take().unwrap().socket.stream.socket().try_clone().unwrap();
            stream.set_nonblocking(false).unwrap();
            (Self { stream }, other.join().unwrap())
        })
    }

    fn send(&mut self, tag: Tag, segment: u32, payload: &[u8]) {
        let header = Header::of(FrameKind::Data, tag, segment, payload);
        self.stream.write_all(&header.encode()).unwrap();
        self.stream.write_all(payload).unwrap();
    }
}

fn reduce_tag(membership: u64, sequence: u64, round: u32) -> Tag {
    let operation = Operation {
        kind: OperationKind::AllReduce,
        element: ElementType::F32,
        op: ReduceOp::Sum,
        algorithm: 1,
        root: Rank(0),
        len: 2,
    };
    Tag { membership: MembershipVersion(membership), sequence, round, operation }
}

#[test]
fn frames_of_dead_groups_and_calls_and_repeated_ones_change_no_result() {
    let (mut puppet, transport) = Puppet::meet(5);
    let value = |x: f32| x.to_le_bytes();
    // Rank 1 of two: receives element 0 in round 0, then the total of element 1 in round 1.
    puppet.send(reduce_tag(4, 1, 0), 0, &value(1e9));
    puppet.send(reduce_tag(4, 99, 7), 3, &[9; 400]);
    puppet.send(reduce_tag(5, 0, 0), 0, &value(1e9));
    puppet.send(reduce_tag(5, 1, 0), 0, &value(10.0));
    puppet.send(reduce_tag(5, 1, 0), 0, &value(1e9));
    puppet.send(reduce_tag(5, 1, 1), 0, &value(22.0));
    let mut data = [1.0_f32, 2.0];
    communicator(transport, PATIENT).all_reduce(&mut data, ReduceOp::Sum).unwrap();
    assert_eq!(data, [11.0, 22.0]);
}

#[test]
fn a_frame_of_a_newer_group_ends_this_one() {
    let (mut puppet, transport) = Puppet::meet(5);
    puppet.send(reduce_tag(6, 0, 0), 0, &[0; 4]);
    let error = communicator(transport, PATIENT).all_reduce(&mut [1.0_f32, 2.0], ReduceOp::Sum).unwrap_err();
    let (ours, theirs) = (MembershipVersion(5), MembershipVersion(6));
    assert_eq!(error, CollectiveError::StaleMembership { ours, theirs });
}

#[test]
fn frames_that_do_not_fit_the_message_are_refused_without_a_panic() {
    let bad: [(Tag, u32, &[u8]); 4] = [
        (reduce_tag(5, 1, 0), 0, &[0; 8]),
        (reduce_tag(5, 1, 0), 0, &[0; 3]),
        (reduce_tag(5, 1, 0), 0, &[]),
        (reduce_tag(5, 1, 0), 7, &[0; 4]),
    ];
    for (tag, segment, payload) in bad {
        let (mut puppet, transport) = Puppet::meet(5);
        puppet.send(tag, segment, payload);
        let error =
            communicator(transport, PATIENT).all_reduce(&mut [1.0_f32, 2.0], ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, CollectiveError::Mismatch { .. }), "{error}");
    }
    let (mut puppet, transport) = Puppet::meet(5);
    puppet.stream.write_all(&[b'x'; 200]).unwrap();
    let error = communicator(transport, PATIENT).barrier().unwrap_err();
    assert!(matches!(error, CollectiveError::Corrupt { .. }), "{error}");
}

#[test]
fn a_rank_that_fails_in_the_middle_of_a_segment_ends_the_segment_and_then_says_why() {
    let (mut transports, _aborts) = tcp_members(2);
    let mut reading =
        transports.pop().unwrap().links[0].take().unwrap().socket.stream.socket().try_clone().unwrap();
    reading.set_nonblocking(false).unwrap();
    let mut transport = transports.remove(0);
    // More than the sockets hold, and no reader: it stops in the middle of some segment.
    let bytes = vec![1; 100 << 20];
    let (tag, started) = (reduce_tag(1, 1, 0), Instant::now());
    let send = Some(Sending::new(tag, &bytes, started));
    let mut flows = [Flow { rank: Rank(1), send, receive: None }];
    let (ended, call, begun_segment) = loop {
        let deadline = Instant::now() + Duration::from_millis(50);
        let call = Exchange { tag, started, deadline, stall: PATIENT };
        let ended = transport.run(&call, &mut flows).unwrap_err();
        assert!(matches!(ended, Ended::Silent(_)), "{ended:?}");
        let stuck = flows[0].send.as_ref().unwrap();
        if !stuck.begun().is_empty() {
            break (ended, call, (bytes.len() - stuck.missing()) / message::SEGMENT_BYTES);
        }
    };
    let begun = flows[0].send.as_ref().unwrap().begun();
    let (reached, drained) = std::sync::mpsc::channel();
    let last = thread::scope(|scope| {
        let reader = scope.spawn(move || {
            loop {
                let mut header = [0; Header::LEN];
                reading.read_exact(&mut header).unwrap();
                let frame = Header::decode(&header).unwrap();
                if frame.segment as usize == begun_segment {
                    reached.send(()).unwrap();
                }
                let mut payload = vec![0; frame.len as usize];
                reading.read_exact(&mut payload).unwrap();
                frame.verify(&payload).unwrap();
                if frame.kind == FrameKind::Abort {
                    return notice::decode(holder(0), &payload).unwrap().error;
                }
            }
        });
        // The header of that segment may itself be cut; then what is drained is all before it.
        if begun.len() < message::SEGMENT_BYTES {
            drained.recv().unwrap();
        }
        let _ = transport.conclude(&call, ended, &flows);
        drop(transport);
        reader.join().unwrap()
    });
    assert_eq!(last.culprit(), Some(holder(1)), "{last}");
}

#[test]
fn two_members_with_different_lists_both_learn_of_it() {
    let listeners = [loopback_listener(), loopback_listener()];
    let addresses = listeners.each_ref().map(Listener::local_address);
    let errors: Vec<CollectiveError> = thread::scope(|scope| {
        let other = scope.spawn(|| {
            TcpTransport::connect(&listeners[1], &group(1, &addresses, 1), PATIENT, &abort()).unwrap_err()
        });
        let mut members = group(1, &addresses, 0).members().to_vec();
        members[0].holder.incarnation = members[0].holder.incarnation.next();
        let odd = Group::new(MembershipVersion(1), members, Rank(0)).unwrap();
        let error = TcpTransport::connect(&listeners[0], &odd, PATIENT, &abort()).unwrap_err();
        vec![error, other.join().unwrap()]
    });
    assert!(errors.iter().all(|error| matches!(error, CollectiveError::Mismatch { .. })), "{errors:?}");
}

// The group works.
fn add_up(transports: Vec<TcpTransport>) {
    let total = (0..transports.len() as i64).sum::<i64>();
    on_all(transports, PATIENT, |me, communicator| {
        let mut data = vec![i64::from(me.0); 100_000];
        communicator.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert!(data.iter().all(|value| *value == total));
    });
}

#[test]
fn a_caller_of_an_older_group_is_told_and_one_of_a_newer_group_is_kept() {
    let listeners = [loopback_listener(), loopback_listener(), loopback_listener()];
    let addresses = listeners.each_ref().map(Listener::local_address);
    thread::scope(|scope| {
        // Rank 0 is in the newer group already and calls ranks 1 and 2.
        let first = scope.spawn(|| {
            TcpTransport::connect(&listeners[0], &group(2, &addresses, 0), PATIENT, &abort()).unwrap()
        });
        // Rank 1 is still in the older one and calls rank 2, which is in the newer one.
        let third = scope.spawn(|| {
            TcpTransport::connect(&listeners[2], &group(2, &addresses, 2), PATIENT, &abort()).unwrap()
        });
        let error =
            TcpTransport::connect(&listeners[1], &group(1, &addresses, 1), PATIENT, &abort()).unwrap_err();
        let (ours, theirs) = (MembershipVersion(1), MembershipVersion(2));
        assert_eq!(error, CollectiveError::StaleMembership { ours, theirs });
        // It asks for the new group; the listener is the same, and rank 0's call may have waited in it.
        let second =
            TcpTransport::connect(&listeners[1], &group(2, &addresses, 1), PATIENT, &abort()).unwrap();
        add_up(vec![first.join().unwrap(), second, third.join().unwrap()]);
    });
}

#[test]
fn strangers_do_not_keep_a_group_from_forming() {
    let listeners = [loopback_listener(), loopback_listener()];
    let addresses = listeners.each_ref().map(Listener::local_address);
    let silent: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(addresses[1]).unwrap()).collect();
    let mut loud = TcpStream::connect(addresses[1]).unwrap();
    loud.write_all(&[b'G'; 500]).unwrap();
    let other_job = Listener::bind("127.0.0.1:0".parse().unwrap(), JobToken::new("another")).unwrap();
    thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            let addresses = [other_job.local_address(), addresses[1]];
            TcpTransport::connect(&other_job, &group(1, &addresses, 0), PATIENT, &abort())
        });
        let second = scope.spawn(|| {
            TcpTransport::connect(&listeners[1], &group(1, &addresses, 1), PATIENT, &abort()).unwrap()
        });
        // The stranger is turned away while rank 1 waits for rank 0.
        assert!(matches!(stranger.join().unwrap(), Err(CollectiveError::PeerClosed { .. })));
        let first =
            TcpTransport::connect(&listeners[0], &group(1, &addresses, 0), PATIENT, &abort()).unwrap();
        add_up(vec![first, second.join().unwrap()]);
    });
    drop(silent);
}

#[test]
fn group_meets_behind_more_silent_strangers_than_a_listener_holds() {
    const STRANGERS: usize = 150;
    let most = antdt_core::DoorwayLimits::default().most;
    let listeners = [loopback_listener(), loopback_listener()];
    let addresses = listeners.each_ref().map(Listener::local_address);
    let strangers: Vec<TcpStream> = thread::scope(|scope| {
        let second = scope.spawn(|| {
            TcpTransport::connect(&listeners[1], &group(1, &addresses, 1), PATIENT, &abort()).unwrap()
        });
        let strangers = (0..STRANGERS).map(|_| TcpStream::connect(addresses[1]).unwrap()).collect();
        let first =
            TcpTransport::connect(&listeners[0], &group(1, &addresses, 0), PATIENT, &abort()).unwrap();
        add_up(vec![first, second.join().unwrap()]);
        strangers
    });
    // The oldest were closed for the newer ones; of the others nothing can be read.
    for mut stranger in strangers.into_iter().take(STRANGERS - most) {
        stranger.set_read_timeout(Some(PATIENT)).unwrap();
        assert!(matches!(stranger.read(&mut [0]), Ok(0)), "still open");
    }
}

#[test]
fn connecting_ends_for_an_absent_and_a_silent_peer_at_the_deadline_or_the_abort() {
    let listeners = [loopback_listener(), loopback_listener()];
    let addresses = listeners.each_ref().map(Listener::local_address);
    // Rank 1 waits for rank 0, which never calls.
    let short = Duration::from_millis(50);
    let error = TcpTransport::connect(&listeners[1], &group(1, &addresses, 1), short, &abort()).unwrap_err();
    assert!(matches!(error, CollectiveError::Timeout { peer, .. } if peer == holder(0)), "{error}");
    let handle = abort();
    thread::scope(|scope| {
        let waiting =
            scope.spawn(|| TcpTransport::connect(&listeners[1], &group(1, &addresses, 1), PATIENT, &handle));
        handle.abort("the master says so");
        let error = waiting.join().unwrap().unwrap_err();
        assert!(
            matches!(&error, CollectiveError::Aborted { reason, .. } if reason == "the master says so"),
            "{error}"
        );
    });
    let [first, second] = listeners;
    drop(second);
    // It may be about to start.
    let error = TcpTransport::connect(&first, &group(1, &addresses, 0), short, &abort()).unwrap_err();
    assert!(matches!(error, CollectiveError::Timeout { peer, .. } if peer == holder(1)), "{error}");
}

#[test]
fn an_address_in_use_is_refused_with_the_address() {
    let taken = loopback_listener();
    let error = Listener::bind(taken.local_address(), JobToken::new("test")).unwrap_err();
    assert!(error.to_string().contains(&taken.local_address().to_string()), "{error}");
}
