#![allow(unsafe_code, reason = "posts work as the transport does")]

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use antdt_collective::runtime::abort::Interest;

use super::link::Request;
use super::safe::{Arrival, Completion, Connection, Event, Events, Gather, Remote};
use super::testing::rdma_members;
use super::*;
use crate::verbs::HandshakeReport;

/// Longest wait for a completion that must come.
const PATIENT: Duration = Duration::from_secs(30);

/// An adapter; without one the test is skipped, unless `RDMA_REQUIRED` says that there is one.
fn adapter() -> Option<Adapter> {
    match Adapter::choose(None) {
        Ok(adapter) => Some(adapter),
        Err(error) => {
            assert!(std::env::var_os("RDMA_REQUIRED").is_none(), "{error}");
            println!("skipped, not here: {error}");
            None
        }
    }
}

// Waits until a descriptor can be read.
fn sleep(events: &impl AsFd, deadline: Instant) {
    AbortHandle::new().unwrap().wait_for(events, Interest::Read, deadline).unwrap();
}

// One end of a connection of its own.
struct End {
    pair: QueuePair,
    completions: Arc<CompletionQueue>,
    memory: Arc<MemoryRegion>,
    adapter: Adapter,
}

impl End {
    const LEN: usize = 64 << 10;

    fn new(adapter: &Adapter) -> Self {
        let domain = ProtectionDomain::new(&adapter.device).unwrap();
        let completions = CompletionQueue::new(&adapter.device, 32).unwrap();
        let limits = Limits { sends: 8, receives: 8, inline: adapter.inline_bytes };
        let pair = QueuePair::new(&domain, &completions, limits, adapter.port.number).unwrap();
        let memory = MemoryRegion::new(&domain, Self::LEN, Access::Remote).unwrap();
        Self { pair, completions, memory, adapter: adapter.clone() }
    }

    fn pair_of(adapter: &Adapter) -> (Self, Self) {
        let (first, second) = (Self::new(adapter), Self::new(adapter));
        first.connect(&second);
        second.connect(&first);
        (first, second)
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint {
            queue_pair: self.pair.number(),
            packet: 7,
            gid: self.adapter.address.gid,
            lid: self.adapter.address.lid,
            service: 0,
            slots: self.memory.address(0),
            key: self.memory.remote_key(),
        }
    }

    fn connect(&self, other: &Self) {
        let path =
            Path { from: self.adapter.address, to: other.endpoint(), mtu: self.adapter.port.mtu, packet: 7 };
        self.pair.connect(&path.way(), Retries::within(Duration::from_millis(400))).unwrap();
    }

    fn post_receive(&self) {
        let into = Gather::of(&self.memory, 0, 64);
        // SAFETY: the tests below read that memory after the receive has completed.
        unsafe { self.pair.receive(Request::Receive(0).id(Rank(0)), into) }.unwrap();
    }

    fn fill(&self, with: u8) {
        // SAFETY: no adapter has anything to do with this memory yet.
        unsafe { self.memory.bytes_mut(0, Self::LEN) }.fill(with);
    }

    fn byte(&self, at: usize) -> u8 {
        // SAFETY: the tests look at bytes whose write has completed.
        let bytes = unsafe { self.memory.bytes(at, 1) };
        bytes[0]
    }

    // The next completion, slept for.
    fn completion(&self) -> Completion {
        let deadline = Instant::now() + PATIENT;
        loop {
            let mut first = None;
            self.completions.poll(|completion| assert!(first.replace(completion).is_none())).unwrap();
            if let Some(completion) = first {
                return completion;
            }
            assert!(Instant::now() < deadline, "no completion");
            self.completions.arm().unwrap();
            let mut again = None;
            self.completions.poll(|completion| assert!(again.replace(completion).is_none())).unwrap();
            if let Some(completion) = again {
                return completion;
            }
            sleep(&self.completions.descriptor(), deadline);
            self.completions.hear();
        }
    }

    fn write(&self, to: Remote, len: u32) {
        let from = [Gather::of(&self.memory, 0, len)];
        // SAFETY: nothing writes that memory in the tests below.
        unsafe { self.pair.write(Request::Piece.id(Rank(0)), &from, to, 42) }.unwrap();
    }
}

#[test]
fn a_one_sided_write_lands_and_its_immediate_says_so() {
    let Some(adapter) = adapter() else { return };
    let (first, second) = End::pair_of(&adapter);
    first.fill(0x5a);
    second.post_receive();
    let to = second.endpoint();
    first.write(Remote { address: to.slots + 4096, key: to.key }, 1000);
    assert!(first.completion().status.is_success());
    let arrived = second.completion();
    assert_eq!(arrived.arrival, Some(Arrival::Write(1000, 42)));
    assert_eq!([4095, 4096, 5095, 5096].map(|at| second.byte(at)), [0, 0x5a, 0x5a, 0]);
}

#[test]
fn a_short_message_goes_inline_into_the_receive_that_was_posted() {
    let Some(adapter) = adapter() else { return };
    let (first, second) = End::pair_of(&adapter);
    second.post_receive();
    first.pair.send(Request::Control.id(Rank(0)), &[9; 32]).unwrap();
    assert_eq!(second.completion().arrival, Some(Arrival::Message(32)));
    assert_eq!((second.byte(31), second.byte(32)), (9, 0));
}

#[test]
fn a_wrong_key_is_refused_and_ends_both_sides() {
    let Some(adapter) = adapter() else { return };
    let (first, second) = End::pair_of(&adapter);
    second.post_receive();
    let to = second.endpoint();
    first.write(Remote { address: to.slots, key: to.key ^ 0x5500 }, 64);
    let refused = first.completion().status;
    assert!(refused.is_refused(), "{refused}");
    let dropped = second.completion().status;
    assert!(!dropped.is_success(), "{dropped}");
    assert_eq!(second.byte(0), 0);
    // Whatever is posted now is dropped.
    first.write(Remote { address: to.slots, key: to.key }, 64);
    let flushed = first.completion().status;
    assert!(flushed.is_flushed(), "{flushed}");
}

#[test]
fn a_peer_without_a_receive_is_given_up_after_some_pauses() {
    let Some(adapter) = adapter() else { return };
    let (first, second) = End::pair_of(&adapter);
    first.pair.send(Request::Control.id(Rank(0)), &[1; 32]).unwrap();
    let status = first.completion().status;
    assert!(status.is_not_ready(), "{status}");
    drop(second);
}

#[test]
fn a_peer_that_is_gone_is_silent_and_not_waited_for_longer_than_its_retries() {
    let Some(adapter) = adapter() else { return };
    let (first, second) = End::pair_of(&adapter);
    let to = second.endpoint();
    drop(second);
    first.write(Remote { address: to.slots, key: to.key }, 64);
    let status = first.completion().status;
    assert!(status.is_silence(), "{status}");
}

#[test]
fn an_adapter_that_is_not_there_is_named_with_those_that_are() {
    let error = Adapter::choose(Some("mlx5_99")).unwrap_err().to_string();
    assert!(error.starts_with("device = mlx5_99: this host has "), "{error}");
}

#[test]
fn requests_are_told_apart_by_their_numbers() {
    for rank in [0, 1, 1023].map(Rank) {
        for request in [Request::Piece, Request::Control, Request::Receive(0), Request::Receive(4096)] {
            assert_eq!(Request::of(request.id(rank)), (rank, request));
        }
    }
}

#[test]
fn a_group_uses_the_least_that_a_member_offers_or_names_the_one_that_offers_nothing() {
    let (members, _aborts) = antdt_collective::runtime::testing::mem_members(2);
    let group = members[0].group();
    let shape = Shape::of_group(2);
    let offer = |ethernet, mtu, slots| AdapterOffer::Adapter {
        ethernet,
        mtu: Mtu::from_code(mtu).unwrap(),
        shape: Shape { slots, ..shape },
        managed: false,
    };
    let (least, mtus) = agree(group, &[offer(true, 5, 8), offer(true, 3, 4)]).unwrap();
    assert_eq!(least.slots, 4);
    assert_eq!(mtus.iter().map(|mtu| mtu.len_bytes()).collect::<Vec<_>>(), [4096, 1024]);
    let why = agree(group, &[offer(true, 5, 8), AdapterOffer::Nothing("no driver".to_owned())]).unwrap_err();
    assert_eq!(why, format!("{}: no driver", group.holder(Rank(1))));
    let why = agree(group, &[offer(true, 5, 8), offer(false, 5, 8)]).unwrap_err();
    assert!(why.contains("different networks"), "{why}");
    let AdapterOffer::Adapter { ethernet, mtu, shape, .. } = offer(true, 5, 8) else { panic!() };
    let managed = AdapterOffer::Adapter { ethernet, mtu, shape, managed: true };
    let why = agree(group, &[offer(true, 5, 8), managed]).unwrap_err();
    let (first, second) = (group.holder(Rank(0)), group.holder(Rank(1)));
    assert!(why.starts_with(&format!("{second} connects by librdmacm and {first} does not")), "{why}");
}

// The next event of a member or a caller, slept for.
fn event(events: &Arc<Events>) -> Event {
    let deadline = Instant::now() + PATIENT;
    loop {
        if let Some(event) = events.next().unwrap() {
            return event;
        }
        assert!(Instant::now() < deadline, "no event");
        sleep(&events.descriptor(), deadline);
    }
}

// A caller that has asked its way and called.
fn caller(manager: &Manager, queue_pair: u32, said: &[u8]) -> (Arc<Events>, Connection) {
    let events = Events::open().unwrap();
    let caller = Connection::new(&events).unwrap();
    caller.ask_address(manager.address().ip(), manager.address(), PATIENT).unwrap();
    assert!(matches!(event(&events), Event::Of(_, HandshakeReport::Address)));
    caller.ask_way(PATIENT).unwrap();
    assert!(matches!(event(&events), Event::Of(_, HandshakeReport::Way)));
    caller.call(queue_pair, said).unwrap();
    (events, caller)
}

#[test]
fn the_manager_connects_queue_pairs_and_a_caller_that_is_refused_hears_it() {
    let Some(adapter) = adapter() else { return };
    let manager = Manager::listen(&adapter, 2).unwrap();
    let retry = Retries::within(Duration::from_millis(400));
    let (first, second) = (End::new(&adapter), End::new(&adapter));
    let (heard, calling) = caller(&manager, first.pair.number(), b"greetings");
    let Event::Request(called, said, from) = event(manager.events()) else { panic!("nobody calls") };
    assert_eq!((&said[..9], from), (&b"greetings"[..], first.pair.number()));
    assert_eq!(called.adapter(), Some((adapter.device.name().to_owned(), adapter.port.number)));
    second.pair.connect(&called.way().unwrap(), retry).unwrap();
    called.answer(second.pair.number()).unwrap();
    assert!(matches!(event(&heard), Event::Of(_, HandshakeReport::Answered)));
    first.pair.connect(&calling.way().unwrap(), retry).unwrap();
    calling.confirm().unwrap();
    assert!(
        matches!(event(manager.events()), Event::Of(key, HandshakeReport::Confirmed) if key == called.key())
    );
    first.fill(0x5a);
    second.post_receive();
    let to = second.endpoint();
    first.write(Remote { address: to.slots + 4096, key: to.key }, 1000);
    assert!(first.completion().status.is_success());
    assert_eq!(second.completion().arrival, Some(Arrival::Write(1000, 42)));
    assert_eq!([4095, 4096, 5095, 5096].map(|at| second.byte(at)), [0, 0x5a, 0x5a, 0]);

    let third = End::new(&adapter);
    let (heard, calling) = caller(&manager, third.pair.number(), b"somebody else");
    let Event::Request(called, ..) = event(manager.events()) else { panic!("nobody calls") };
    called.refuse();
    assert!(matches!(event(&heard), Event::Failed(key, why) if key == calling.key() && !why.is_empty()));
}

// A message of so many bytes from the first member to the second; the number of its pieces.
fn send_one(len: usize, from_region: bool, into_region: bool) -> u64 {
    let (mut members, _aborts) = rdma_members(2, &RdmaConfig::default());
    let (second, first) = (members.pop().unwrap(), members.pop().unwrap());
    let call = |group: &Group| {
        let mut call = Exchange::meeting(group, Instant::now() + PATIENT);
        call.tag.sequence = 1;
        call
    };
    let memory = |transport: &mut RdmaTransport, registered: bool| {
        if registered { transport.region(len).unwrap() } else { Region::heap(len) }
    };
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut first = first;
            let mut bytes = memory(&mut first, from_region);
            for (index, byte) in bytes.iter_mut().enumerate() {
                *byte = (index % 251) as u8;
            }
            let outgoing = Outgoing { to: Rank(1), bytes: &bytes };
            first.exchange(&call(first.group()), &[outgoing], &mut []).unwrap();
            // Its memory may be used again.
            bytes.fill(0xff);
            first.plane.as_ref().unwrap().links[1].as_ref().unwrap().pieces_sent()
        });
        let mut second = second;
        let mut place = memory(&mut second, into_region);
        let call = call(second.group());
        let incoming = Incoming { from: Rank(0), sink: Sink::Place(&mut place) };
        second.exchange(&call, &[], &mut [incoming]).unwrap();
        for (index, byte) in place.iter().enumerate() {
            assert_eq!(*byte, (index % 251) as u8, "byte {index}");
        }
        sender.join().unwrap()
    })
}

#[test]
fn a_long_message_is_written_where_it_belongs_once_its_place_is_known() {
    if adapter().is_none() {
        return;
    }
    let len = (4 << 20) + 100;
    let by_slots = send_one(len, false, false);
    assert_eq!(by_slots, len.div_ceil((64 << 10) - 64) as u64);
    // At most a window of slots goes out before the place is known.
    for from_region in [false, true] {
        let placed = send_one(len, from_region, true);
        let rest = if from_region { 5 } else { 65 };
        assert!(
            placed <= 8 + rest && placed < by_slots.max(9 + rest),
            "{placed} pieces, from a region: {from_region}"
        );
    }
}

#[test]
fn short_and_borrowed_messages_arrive_whole() {
    if adapter().is_none() {
        return;
    }
    for len in [1, 63, 64, 65, 4095, 4096, (64 << 10) - 64, (64 << 10) - 63, 300_001] {
        for (from_region, into_region) in [(false, false), (true, false), (true, true)] {
            send_one(len, from_region, into_region);
        }
    }
}
