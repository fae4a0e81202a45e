use std::time::Duration;

use antdt_core::{MembershipVersion, Rank};

use super::*;
use crate::group::Member;
use crate::op::ReduceOp;
use crate::runtime::communicator::{Communicator, CommunicatorConfig, ScheduledCommunicator};
use crate::runtime::testing::{
    abort_handles, at_once, holder, loopback_listener, mixed_members, on_all, shm_members,
};

const PATIENT: Duration = Duration::from_secs(60);

#[test]
fn members_know_who_shares_a_host() {
    let of = |transports: &[MixedTransport]| -> Vec<Option<Vec<u32>>> {
        transports.iter().map(|transport| transport.hosts().map(<[u32]>::to_vec)).collect()
    };
    assert_eq!(of(&mixed_members(4).0), vec![Some(vec![0, 0, 1, 1]); 4]);
    assert_eq!(of(&shm_members(3).0), vec![None; 3], "one host: nothing to choose");
    assert_eq!(of(&mixed_members(2).0), vec![None; 2], "each on its own: nothing to choose either");
}

// One exchange in which both members send `len` bytes and place what comes: of a region or of the heap.
fn swapped(len: usize, from_region: bool, into_region: bool) {
    let (transports, _aborts) = shm_members(2);
    at_once((0_u8..).zip(transports), |(me, mut transport)| {
        for call in 1..=3 {
            let (mut from, mut into) = (transport.region(len).unwrap(), transport.region(len).unwrap());
            let mut heap = (vec![0; len], vec![0; len]);
            let pattern = |who: u8, at: usize| (at as u8).wrapping_mul(7).wrapping_add(who + 10 * call as u8);
            for at in 0..len {
                from[at] = pattern(me, at);
                heap.0[at] = pattern(me, at);
            }
            let exchange = exchange(call, PATIENT);
            let peer = Rank(u32::from(1 - me));
            let bytes: &[u8] = if from_region { &from } else { &heap.0 };
            let place: &mut [u8] = if into_region { &mut into } else { &mut heap.1 };
            let sends = [Outgoing { to: peer, bytes }];
            let sink = crate::runtime::transport::Sink::Place(place);
            transport.exchange(&exchange, &sends, &mut [Incoming { from: peer, sink }]).unwrap();
            let came: &[u8] = if into_region { &into } else { &heap.1 };
            assert!(came.iter().enumerate().all(|(at, byte)| *byte == pattern(1 - me, at)));
            // What the peer has taken is free to be changed.
            from.fill(0);
        }
    });
}

#[test]
fn any_bytes_arrive_from_regions_and_from_the_heap() {
    // Around a record, a piece, a ring, the shortest offer, a long piece of an offer.
    for len in [1, 127, 129, 16_383, 16_384, 65_537, 262_144, 300_001, (9 << 20) + 3, (17 << 20) + 64] {
        for (from_region, into_region) in [(true, true), (false, true), (true, false), (false, false)] {
            swapped(len, from_region, into_region);
        }
    }
}

#[test]
fn more_regions_than_stay_mapped_are_mapped_again() {
    let results = on_all(shm_members(2).0, PATIENT, |me, communicator| {
        let mut buffers: Vec<_> = (0..20).map(|_| communicator.buffer::<i32>(30_000).unwrap()).collect();
        for _ in 0..2 {
            for (index, buffer) in (1..).zip(&mut buffers) {
                buffer.fill(index * (me.0 as i32 + 1));
                communicator.all_reduce_buffer(buffer, ReduceOp::Sum).unwrap();
                assert!(buffer.iter().all(|value| *value == 3 * index));
            }
        }
    });
    assert_eq!(results.len(), 2);
}

#[test]
fn survivors_of_a_membership_form_the_next_one() {
    let listeners: Vec<Listener> = (0..3).map(|_| loopback_listener()).collect();
    let members: Vec<Member> = (0..)
        .zip(&listeners)
        .map(|(rank, listener)| Member { holder: holder(rank), address: listener.local_address() })
        .collect();
    let group = |membership: u64, members: &[Member], me: u32| {
        Group::new(MembershipVersion(membership), members.to_vec(), Rank(me)).unwrap()
    };
    let aborts = abort_handles(6);
    at_once(0..3_u32, |rank| {
        let (listener, first) = (&listeners[rank as usize], &aborts[rank as usize]);
        let transport = MixedTransport::connect(listener, &group(1, &members, rank), PATIENT, first).unwrap();
        if rank == 0 {
            // Leaves.
            return;
        }
        let next = &aborts[3 + rank as usize];
        let transport =
            transport.regroup(listener, &group(2, &members[1..], rank - 1), PATIENT, next).unwrap();
        let mut communicator = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
        let mut data = vec![rank; 100_000];
        let mut data: Vec<i32> = data.drain(..).map(|value| value as i32).collect();
        communicator.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert!(data.iter().all(|value| *value == 3));
    });
}

// What came, piece by piece.
struct Kept {
    len: usize,
    messages: Vec<Vec<u8>>,
}

impl Merge for Kept {
    fn len_bytes(&self) -> usize {
        self.len
    }

    fn merge(&mut self, at: usize, pieces: &[&[u8]]) {
        self.messages.resize(pieces.len(), Vec::new());
        for (message, piece) in self.messages.iter_mut().zip(pieces) {
            assert_eq!(message.len(), at);
            message.extend_from_slice(piece);
        }
    }
}

fn exchange(sequence: u64, stall: Duration) -> Exchange {
    let tag = Tag { membership: MembershipVersion(1), sequence, round: 0, operation: Operation::CONNECT };
    let started = Instant::now();
    Exchange { tag, started, deadline: started + PATIENT, stall }
}

// Three members send each other a message of `len` bytes, each of a region or of the heap as `lent` says of it, and take
// those of the others together.
fn collected<T: Transport>(transports: Vec<T>, len: usize, lent: u32) {
    let pattern = |who: u32, at: usize| (at as u8).wrapping_mul(7).wrapping_add(who as u8);
    at_once((0..3_u32).zip(transports), |(me, mut transport)| {
        for call in 1..=3 {
            let mut region = transport.region(len).unwrap();
            let heap: Vec<u8> = (0..len).map(|at| pattern(me, at)).collect();
            region.copy_from_slice(&heap);
            let bytes: &[u8] = if lent >> me & 1 == 1 { &region } else { &heap };
            let others: Vec<u32> = (0..3).filter(|rank| *rank != me).collect();
            let sends: Vec<Outgoing<'_>> =
                others.iter().map(|to| Outgoing { to: Rank(*to), bytes }).collect();
            let mut kept = Kept { len, messages: Vec::new() };
            transport.collect(&exchange(call, PATIENT), &sends, &mut kept).unwrap();
            for (from, message) in others.iter().zip(&kept.messages) {
                assert_eq!(message.len(), len);
                assert!(message.iter().enumerate().all(|(at, byte)| *byte == pattern(*from, at)));
            }
            // What all have taken is free to be changed.
            region.fill(0);
        }
    });
}

#[test]
fn messages_are_taken_together_whatever_carries_them() {
    for len in [1, 16_384, 300_001, (17 << 20) + 64] {
        for lent in [0b000, 0b010, 0b101, 0b111] {
            collected(shm_members(3).0, len, lent);
        }
        collected(mixed_members(3).0, len, 0b111);
        collected(crate::runtime::testing::mem_members(3).0, len, 0);
    }
}

#[test]
fn who_waits_for_the_last_message_is_not_taken_for_silent() {
    let stall = Duration::from_millis(500);
    let (transports, _aborts) = shm_members(3);
    at_once((0..3_u32).zip(transports), |(me, mut transport)| {
        let region = transport.region(1 << 20).unwrap();
        let others = (0..3).map(Rank).filter(|rank| rank.0 != me);
        let sends: Vec<Outgoing<'_>> = others.map(|to| Outgoing { to, bytes: &region }).collect();
        if me == 2 {
            std::thread::sleep(3 * stall);
        }
        let mut kept = Kept { len: region.len(), messages: Vec::new() };
        transport.collect(&exchange(1, stall), &sends, &mut kept).unwrap();
    });
}
