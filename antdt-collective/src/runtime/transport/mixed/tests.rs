use std::time::Duration;

use antdt_core::{MembershipVersion, Rank};

use super::*;
use crate::frame::{Operation, Tag};
use crate::group::Member;
use crate::op::ReduceOp;
use crate::runtime::Piece;
use crate::runtime::communicator::{Communicator, CommunicatorConfig, ScheduledCommunicator};
use crate::runtime::testing::{
    abort_handles, at_once, holder, loopback_listener, mixed_members, on_all, shm_members,
};

const PATIENT: Duration = Duration::from_secs(60);

#[test]
fn members_know_the_peers_of_their_host() {
    let of = |transports: &[MixedTransport]| -> Vec<Option<Vec<u32>>> {
        transports.iter().map(|transport| transport.hosts().map(<[u32]>::to_vec)).collect()
    };
    assert_eq!(of(&mixed_members(4).0), vec![Some(vec![0, 0, 1, 1]); 4]);
    assert_eq!(of(&shm_members(3).0), vec![None; 3], "one host: nothing to choose");
    assert_eq!(of(&mixed_members(2).0), vec![None; 2], "each on its own: nothing to choose either");
}

#[test]
fn a_group_on_two_hosts_is_refused_on_all_members_where_it_must_be_on_one() {
    let listeners: Vec<Listener> = (0..3).map(|_| loopback_listener()).collect();
    let addresses = (0..).zip(&listeners);
    let members: Vec<Member> =
        addresses.map(|(rank, l)| Member { holder: holder(rank), address: l.local_address() }).collect();
    let connect = |membership: u64, parts: [&'static str; 3]| {
        at_once((0_u32..).zip(&listeners), |(rank, listener)| {
            let group = Group::new(MembershipVersion(membership), members.clone(), Rank(rank)).unwrap();
            let config = MixedConfig { part: parts[rank as usize].to_owned(), one_host: true };
            MixedTransport::connect_with(listener, &group, PATIENT, &abort_handles(1)[0], config)
        })
    };
    let refused = connect(1, ["a", "b", "a"]);
    let peers = refused.into_iter().map(|refused| refused.unwrap_err());
    let other = |rank| CollectiveError::OtherHost { peer: holder(rank) };
    assert_eq!(peers.collect::<Vec<_>>(), [other(1), other(0), other(1)]);
    assert!(other(1).is_permanent());
    assert!(connect(2, ["a"; 3]).iter().all(Result::is_ok), "one host is taken");
}

fn period(byte: impl Fn(u8) -> u8) -> [u8; 256] {
    std::array::from_fn(|at| byte(at as u8))
}

fn fill(bytes: &mut [u8], period: &[u8; 256]) {
    bytes.chunks_mut(256).for_each(|chunk| chunk.copy_from_slice(&period[..chunk.len()]));
}

fn repeats(bytes: &[u8], period: &[u8; 256]) -> bool {
    bytes.chunks(256).all(|chunk| chunk == &period[..chunk.len()])
}

// One exchange in which both members send `len` bytes and place what comes: of a region or of the heap.
fn swapped(len: usize, from_region: bool, into_region: bool) {
    let (transports, _aborts) = shm_members(2);
    at_once((0_u8..).zip(transports), |(me, mut transport)| {
        for call in 1..=3 {
            let (mut from, mut into) = (transport.region(len).unwrap(), transport.region(len).unwrap());
            let mut heap = (vec![0; len], vec![0; len]);
            let pattern = |who: u8| period(|at| at.wrapping_mul(7).wrapping_add(who + 10 * call as u8));
            fill(&mut from, &pattern(me));
            fill(&mut heap.0, &pattern(me));
            let exchange = exchange(call, PATIENT);
            let peer = Rank(u32::from(1 - me));
            let bytes: &[u8] = if from_region { &from } else { &heap.0 };
            let place: &mut [u8] = if into_region { &mut into } else { &mut heap.1 };
            let sends = [Outgoing { to: peer, bytes }];
            let sink = crate::runtime::transport::Sink::Place(place);
            transport.exchange(&exchange, &sends, &mut [Incoming { from: peer, sink }]).unwrap();
            let came: &[u8] = if into_region { &into } else { &heap.1 };
            assert!(repeats(came, &pattern(1 - me)));
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

// Adds up what came, byte by byte, and its own number.
struct Sum {
    len: usize,
    done: usize,
    me: u8,
    // Called before the first answer.
    before: Box<dyn FnMut() + Send>,
}

impl Sum {
    fn new(len: usize, me: u32) -> Self {
        Self { len, done: 0, me: me as u8, before: Box::new(|| {}) }
    }
}

impl Merge for Sum {
    fn len_bytes(&self) -> usize {
        self.len
    }

    fn merge(&mut self, at: usize, pieces: &mut [Piece<'_>]) {
        assert_eq!(at, self.done);
        self.done += pieces[0].bytes().len();
        (self.before)();
        let mut sums = vec![self.me; pieces[0].bytes().len()];
        for piece in pieces.iter() {
            sums.iter_mut().zip(piece.bytes()).for_each(|(sum, byte)| *sum = sum.wrapping_add(*byte));
        }
        pieces.iter_mut().filter_map(Piece::answer).for_each(|answer| answer.copy_from_slice(&sums));
    }
}

fn exchange(sequence: u64, stall: Duration) -> Exchange {
    let tag = Tag { membership: MembershipVersion(1), sequence, round: 0, operation: Operation::CONNECT };
    let started = Instant::now();
    Exchange { tag, started, deadline: started + PATIENT, stall }
}

// Three members lend each other messages of `len` bytes, each from a place apart from that of its answer or not, as `apart`
// says of it.
fn traded<T: Transport>(transports: Vec<T>, len: usize, apart: u32) {
    let message = |from: u32, to: u32| period(|at| at.wrapping_mul(7).wrapping_add((3 * from + to) as u8));
    at_once((0..3_u32).zip(transports), |(me, mut transport)| {
        let others: Vec<u32> = (0..3).filter(|rank| *rank != me).collect();
        let regions = [(); 2].map(|()| transport.region(2 * len).unwrap());
        let [mut from, mut into] = regions;
        for call in 0..3 {
            for (to, chunk) in others.iter().zip(from.chunks_exact_mut(len)) {
                fill(chunk, &message(me, *to));
            }
            let is_apart = apart >> me & 1 == 1;
            if !is_apart {
                into.copy_from_slice(&from);
            }
            let chunks = from.chunks_exact(len).zip(into.chunks_exact_mut(len));
            let mut loans: Vec<Loan<'_>> = others
                .iter()
                .zip(chunks)
                .map(|(to, (from, into))| Loan { to: Rank(*to), from: is_apart.then_some(from), into })
                .collect();
            let mut sum = Sum::new(len, me);
            transport.trade(&exchange(1 + call, PATIENT), &mut loans, &mut sum).unwrap();
            assert_eq!(sum.done, len);
            for (by, answer) in others.iter().zip(into.chunks_exact(len)) {
                let mut expected = [*by as u8; 256];
                for from in (0..3).filter(|from| from != by) {
                    expected
                        .iter_mut()
                        .zip(message(from, *by))
                        .for_each(|(sum, byte)| *sum = sum.wrapping_add(byte));
                }
                assert!(repeats(answer, &expected), "{len} {apart}");
            }
        }
    });
}

#[test]
fn messages_are_taken_together_and_answered_over_any_carrier() {
    for len in [1, 16_384, 300_001, (17 << 20) + 64] {
        for apart in [0b000, 0b010, 0b101, 0b111] {
            traded(shm_members(3).0, len, apart);
        }
        traded(mixed_members(3).0, len, 0b101);
        traded(crate::runtime::testing::mem_members(3).0, len, 0b010);
    }
}

#[test]
fn memory_that_is_not_shared_is_not_lent() {
    let (transports, _aborts) = shm_members(2);
    at_once((0..2_u32).zip(transports), |(me, mut transport)| {
        let mut heap = vec![0; 20_000];
        let mut loans = [Loan { to: Rank(1 - me), from: None, into: &mut heap }];
        let error =
            transport.trade(&exchange(1, PATIENT), &mut loans, &mut Sum::new(20_000, me)).unwrap_err();
        // The other one may be told before it looks.
        let told = matches!(error, CollectiveError::Invalid { .. } | CollectiveError::Aborted { .. });
        assert!(told, "{error}");
    });
}

#[test]
fn an_answer_that_comes_too_late_changes_nothing_that_is_used_again() {
    const LEN: usize = 100_000;
    let (transports, _aborts) = shm_members(2);
    let (gave_up, has_given_up) = std::sync::mpsc::channel::<()>();
    let (answered, has_answered) = std::sync::mpsc::channel::<()>();
    let mut transports = transports.into_iter();
    let (mut early, mut late) = (transports.next().unwrap(), transports.next().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut region = early.region(LEN).unwrap();
            let mut loans = [Loan { to: Rank(1), from: None, into: &mut region }];
            let impatient =
                Exchange { deadline: Instant::now() + Duration::from_millis(200), ..exchange(1, PATIENT) };
            early.trade(&impatient, &mut loans, &mut Sum::new(LEN, 0)).unwrap_err();
            let place = region.as_ptr() as usize;
            drop(region);
            // Takes its place in memory, as likely as not, and not in the file.
            let next = early.region(LEN).unwrap();
            gave_up.send(()).unwrap();
            has_answered.recv().unwrap();
            assert!(next.iter().all(|byte| *byte == 0), "{place:x} {:x}", next.as_ptr() as usize);
        });
        scope.spawn(move || {
            let mut region = late.region(LEN).unwrap();
            region.fill(7);
            let mut loans = [Loan { to: Rank(0), from: None, into: &mut region }];
            let mut sum = Sum::new(LEN, 1);
            sum.before = Box::new(move || has_given_up.recv().unwrap());
            // Its answer is written by then, and in vain.
            late.trade(&exchange(1, PATIENT), &mut loans, &mut sum).unwrap_err();
            assert_eq!(sum.done, LEN);
            answered.send(()).unwrap();
        });
    });
}

#[test]
fn a_rank_that_waits_for_the_last_message_is_not_taken_for_silent() {
    // The third one comes later than a rank may be silent; the others wait for it, each for the same.
    let trade = |stall: Duration| -> Result<(), CollectiveError> {
        let (transports, _aborts) = shm_members(3);
        let traded = at_once((0..3_u32).zip(transports), |(me, mut transport)| {
            let mut region = transport.region(2 << 20).unwrap();
            let others = (0..3).map(Rank).filter(|rank| rank.0 != me);
            let mut loans: Vec<Loan<'_>> = others
                .zip(region.chunks_exact_mut(1 << 20))
                .map(|(to, into)| Loan { to, from: None, into })
                .collect();
            if me == 2 {
                std::thread::sleep(3 * stall);
            }
            transport.trade(&exchange(1, stall), &mut loans, &mut Sum::new(1 << 20, me))
        });
        traded.into_iter().collect()
    };
    // On a busy machine a member may be off its processor for longer than the shorter one, and is silent then.
    let stalls = [500, 2000].map(Duration::from_millis);
    let wrong: Vec<CollectiveError> = stalls.into_iter().map_while(|stall| trade(stall).err()).collect();
    assert!(wrong.len() < stalls.len(), "{wrong:?}");
}
