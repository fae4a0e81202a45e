//! Groups over a library of threads that stands in for one between GPUs: what the group makes of it, whatever it does. What a library
//! itself does is not tested here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::Duration;

use antdt_collective::elements::{ElementsMut, with_float, with_type};
use antdt_collective::error::CollectiveError;
use antdt_collective::group::{Group, Member};
use antdt_collective::kernel;
use antdt_collective::op::ReduceOp;
use antdt_collective::outcome::Resolution;
use antdt_collective::runtime::process_group::{Backend, ProcessGroup, TransportBackend};
use antdt_collective::runtime::region::DevicePlace;
use antdt_collective::runtime::testing::{PATIENT, abort_handles, at_once, holder, loopback_listener};
use antdt_collective::runtime::transport::{Listener, REGISTRY};
use antdt_collective::runtime::{AbortHandle, Communicator, CommunicatorConfig, CopyRole};
use antdt_collective::schedule::split_even;
use antdt_collective::weighted::{self, Weighed, WeightedMean};
use antdt_core::{MembershipVersion, Rank};

use super::backend::DeviceBackend;
use super::bulk::{Bulk, BulkError, Job, Library, Patience};
use super::group::BULK_MIN_BYTES;
use crate::device::{Abilities, HeldComms, Statement, Stop, Terms};

/// Elements of a call that goes over the library.
pub(in crate::runtime) const LONG: usize = BULK_MIN_BYTES / 4;

/// What the members of one communicator have put there: by call and rank, its messages by receiver.
type Table = BTreeMap<(u64, u32), BTreeMap<u32, Vec<u8>>>;

/// Where the threads that stand in for GPUs meet.
#[derive(Default)]
struct Meeting {
    tables: Mutex<BTreeMap<u64, Table>>,
    put: Condvar,
    identities: AtomicU64,
    // Ways of regrouping that were taken, as every member took them.
    taken: Mutex<Vec<String>>,
}

impl Meeting {
    /// How many members have made a new communicator, over all of them.
    fn inits(&self) -> usize {
        self.taken.lock().unwrap().iter().filter(|way| *way == "init").count()
    }
}

/// What goes wrong at a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// The first call fails at once.
    Fails,
    /// Its process dies within the first call.
    Dies,
    /// It cannot join a new communicator.
    CannotInit,
}

struct Threads {
    meeting: Arc<Meeting>,
    gpu: u128,
    abilities: Abilities,
    fault: Fault,
}

struct ThreadComm {
    meeting: Arc<Meeting>,
    identity: u64,
    world: u32,
    rank: u32,
    call: u64,
    fault: Fault,
    result: Vec<u64>,
    len: usize,
}

impl Threads {
    fn comm(&self, identity: u64, world: u32, rank: u32) -> ThreadComm {
        let (meeting, fault) = (Arc::clone(&self.meeting), self.fault);
        ThreadComm { meeting, identity, world, rank, call: 0, fault, result: Vec::new(), len: 0 }
    }

    fn took(&self, what: String) {
        self.meeting.taken.lock().unwrap().push(what);
    }
}

impl Library for Threads {
    type Comm = ThreadComm;

    const TERMS: Terms = Terms::NCCL;

    fn statement(&self) -> Statement {
        Statement { gpu: Some(self.gpu), host: 0, version: 23_003, abilities: self.abilities, last: None }
    }

    fn offer(&mut self, me: u32) -> Result<Vec<u8>, BulkError> {
        if me > 0 {
            return Ok(Vec::new());
        }
        Ok(self.meeting.identities.fetch_add(1, Ordering::Relaxed).to_le_bytes().to_vec())
    }

    fn init(&mut self, offers: &[Vec<u8>], me: u32, _: &Patience) -> Result<ThreadComm, BulkError> {
        if self.fault == Fault::CannotInit {
            return Err(BulkError::Failed("no more channels".to_owned()));
        }
        self.took("init".to_owned());
        Ok(self.comm(u64::from_le_bytes(offers[0][..].try_into().unwrap()), offers.len() as u32, me))
    }

    fn shrink(
        &mut self,
        comm: ThreadComm,
        excluded: &[u32],
        stop: Stop,
        _: &Patience,
    ) -> Result<ThreadComm, BulkError> {
        self.took(format!("shrink without {excluded:?}, {stop:?}"));
        let gone = excluded.iter().filter(|rank| **rank < comm.rank).count() as u32;
        // The same for all that stay, and new.
        let identity = 1000 + comm.identity;
        Ok(self.comm(identity, comm.world - excluded.len() as u32, comm.rank - gone))
    }

    // As the library does it: all members learn of each other's part and place.
    fn split(
        &mut self,
        comm: &mut ThreadComm,
        part: Option<u32>,
        me: u32,
        patience: &Patience,
    ) -> Result<Option<ThreadComm>, BulkError> {
        self.took(format!("split as {me}"));
        comm.call += 1;
        let mine: Vec<u8> = [part.unwrap_or(u32::MAX), me].iter().flat_map(|n| n.to_le_bytes()).collect();
        let everyone: Vec<u32> = (0..comm.world).collect();
        let said = comm.exchange(comm.all(&mine), &everyone, patience)?;
        let in_part = said.iter().filter(|words| words[..4] == mine[..4]).count() as u32;
        let Some(part) = part else { return Ok(None) };
        assert!(
            said.iter().filter(|words| **words == mine).count() == 1,
            "two members in one place: {said:?}"
        );
        Ok(Some(self.comm(3000 + 100 * u64::from(part) + comm.identity, in_part, me)))
    }

    fn offer_to_grow(&mut self, comm: Option<&mut ThreadComm>, me: u32) -> Result<Vec<u8>, BulkError> {
        let first = comm.filter(|_| me == 0);
        Ok(first.map_or_else(Vec::new, |comm| (2000 + comm.identity).to_le_bytes().to_vec()))
    }

    fn grow(
        &mut self,
        comm: Option<ThreadComm>,
        offers: &[Vec<u8>],
        me: u32,
        _: &Patience,
    ) -> Result<ThreadComm, BulkError> {
        self.took(format!("grow, {}", if comm.is_some() { "there before" } else { "new" }));
        Ok(self.comm(u64::from_le_bytes(offers[0][..].try_into().unwrap()), offers.len() as u32, me))
    }
}

impl ThreadComm {
    // Puts this member's messages on the table, and takes what `from` put there for it.
    fn exchange(
        &mut self,
        messages: BTreeMap<u32, Vec<u8>>,
        from: &[u32],
        patience: &Patience,
    ) -> Result<Vec<Vec<u8>>, BulkError> {
        let key = (self.call, self.rank);
        let mut tables = self.meeting.tables.lock().unwrap();
        tables.entry(self.identity).or_default().insert(key, messages);
        self.meeting.put.notify_all();
        loop {
            let table = tables.entry(self.identity).or_default();
            let mine = |rank: &u32| table.get(&(self.call, *rank))?.get(&self.rank).cloned();
            if let Some(received) = from.iter().map(mine).collect() {
                return Ok(received);
            }
            if patience.abort.reason().is_some() {
                return Err(BulkError::Aborted);
            }
            if std::time::Instant::now() >= patience.deadline {
                return Err(BulkError::Late);
            }
            tables = self.meeting.put.wait_timeout(tables, Duration::from_millis(5)).unwrap().0;
        }
    }

    fn all(&self, data: &[u8]) -> BTreeMap<u32, Vec<u8>> {
        (0..self.world).map(|rank| (rank, data.to_vec())).collect()
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.result = vec![0; bytes.len().div_ceil(8)];
        self.len = bytes.len();
        bytemuck::cast_slice_mut::<u64, u8>(&mut self.result)[..bytes.len()].copy_from_slice(bytes);
    }
}

impl Bulk for ThreadComm {
    const MOVES: bool = true;

    fn reaches(&mut self, _: &DevicePlace) -> bool {
        false
    }

    fn run(
        &mut self,
        job: &Job<'_>,
        _: &mut dyn ProcessGroup,
        patience: &Patience,
    ) -> Result<&[u8], BulkError> {
        if self.fault == Fault::Fails {
            return Err(BulkError::Failed("an illegal memory access".to_owned()));
        }
        assert!(self.fault != Fault::Dies, "the process dies here");
        self.call += 1;
        let everyone: Vec<u32> = (0..self.world).collect();
        match job {
            Job::AllReduce { element, op, data } | Job::ReduceScatter { element, op, data, .. } => {
                assert_ne!(*op, ReduceOp::Mean, "a mean is a sum for the library");
                let blocks = self.exchange(self.all(data), &everyone, patience)?;
                self.keep(&blocks[0]);
                let result = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut self.result)[..data.len()];
                with_type!(*element, E => {
                    for block in &blocks[1..] {
                        let mut aligned = vec![E::default(); block.len() / size_of::<E>()];
                        bytemuck::cast_slice_mut(&mut aligned).copy_from_slice(block);
                        kernel::reduce::<E>(*op, bytemuck::cast_slice_mut(result), &aligned);
                    }
                    if let Job::ReduceScatter { spans, me, .. } = job {
                        let whole: Vec<u8> = result.to_vec();
                        let (size, span) = (size_of::<E>(), spans[*me]);
                        self.keep(&whole[span.start * size..][..span.len * size]);
                    }
                });
            }
            Job::OnDevice { .. } => unreachable!("it reaches no memory of a GPU"),
            Job::Weighted { element, data, weights, me, total } => with_float!(*element, E => {
                type Sum = <E as Weighed>::Sum;
                let mut weighed = vec![Sum::default(); data.len() / size_of::<E>()];
                weighted::weigh::<E>(bytemuck::cast_slice(data), weights[*me], &mut weighed);
                let blocks = self.exchange(self.all(bytemuck::cast_slice(&weighed)), &everyone, patience)?;
                let (mut sum, mut mean) = (vec![Sum::default(); weighed.len()], vec![E::default(); weighed.len()]);
                for block in &blocks {
                    kernel::reduce_bytes::<Sum>(ReduceOp::Sum, &mut sum, block);
                }
                weighted::unweigh(&sum, *total, &mut mean);
                self.keep(bytemuck::cast_slice(&mean));
            }, else => unreachable!("integers have no mean")),
            Job::Exchange { sends, receives } => {
                let messages = sends.iter().map(|(rank, bytes)| (*rank, bytes.to_vec())).collect();
                let from: Vec<u32> = receives.iter().map(|(rank, _)| *rank).collect();
                let received = self.exchange(messages, &from, patience)?;
                assert!(received.iter().zip(*receives).all(|(bytes, (_, len))| bytes.len() == *len));
                self.keep(&received.concat());
            }
            Job::Broadcast { root, data, len } => {
                let messages = if self.rank == *root { self.all(data) } else { BTreeMap::new() };
                let received = self.exchange(messages, &[*root], patience)?;
                assert_eq!(received[0].len(), *len);
                self.keep(&received[0]);
            }
        }
        Ok(&bytemuck::cast_slice::<u64, u8>(&self.result)[..self.len])
    }
}

/// A process, as a thread.
pub(in crate::runtime) struct Process<L: Library> {
    pub(in crate::runtime) me: u32,
    pub(in crate::runtime) listener: Listener,
    pub(in crate::runtime) backend: DeviceBackend<L>,
}

impl<L: Library> Process<L> {
    pub(in crate::runtime) fn new(me: u32, library: Result<L, String>) -> Self {
        let below = TransportBackend::new(REGISTRY.by_name("auto").unwrap());
        Self { me, listener: loopback_listener(), backend: DeviceBackend::new(library, Box::new(below)) }
    }
}

/// A backend of a process that lacks the library.
pub(in crate::runtime) fn without(below: Box<dyn Backend>) -> Box<dyn Backend> {
    Box::new(DeviceBackend::<Threads>::new(Err("no library".to_owned()), below))
}

const ABLE: Abilities = Abilities { shrink: true, grow: true, revoke: true, split: true };

fn process_library(meeting: &Arc<Meeting>, me: u32, abilities: Abilities, fault: Fault) -> Threads {
    Threads { meeting: Arc::clone(meeting), gpu: u128::from(me), abilities, fault }
}

fn process(meeting: &Arc<Meeting>, me: u32, abilities: Abilities, fault: Fault) -> Process<Threads> {
    Process::new(me, Ok(process_library(meeting, me, abilities, fault)))
}

fn processes(count: u32) -> (Arc<Meeting>, Vec<Process<Threads>>) {
    let meeting = Arc::<Meeting>::default();
    let all = (0..count).map(|me| process(&meeting, me, ABLE, Fault::Nothing)).collect();
    (meeting, all)
}

pub(in crate::runtime) fn addresses<L: Library>(processes: &[Process<L>]) -> Vec<SocketAddr> {
    processes.iter().map(|process| process.listener.local_address()).collect()
}

pub(in crate::runtime) fn config() -> CommunicatorConfig {
    CommunicatorConfig { timeout: PATIENT, ..CommunicatorConfig::default() }
}

impl<L: Library> Process<L> {
    pub(in crate::runtime) fn join(
        &mut self,
        membership: u64,
        members: &[u32],
        addresses: &[SocketAddr],
        config: CommunicatorConfig,
    ) -> (Box<dyn ProcessGroup>, Resolution, AbortHandle) {
        let group = self.group(membership, members, addresses);
        let abort = abort_handles(1).remove(0);
        let (group, resolution) = self.backend.join(&self.listener, &group, config, &abort).unwrap();
        (group, resolution, abort)
    }

    fn join_few(
        &mut self,
        membership: u64,
        members: &[u32],
        addresses: &[SocketAddr],
        config: CommunicatorConfig,
    ) -> (Box<dyn ProcessGroup>, Resolution, AbortHandle) {
        let group = self.group(membership, members, addresses);
        let abort = abort_handles(1).remove(0);
        let (group, resolution) = self.backend.join_few(&self.listener, &group, config, &abort).unwrap();
        (group, resolution, abort)
    }

    fn group(&self, membership: u64, members: &[u32], addresses: &[SocketAddr]) -> Group {
        let rank = members.iter().position(|index| *index == self.me).unwrap() as u32;
        let member = |index: &u32| Member { holder: holder(*index), address: addresses[*index as usize] };
        let members = members.iter().map(member).collect();
        Group::new(MembershipVersion(membership), members, Rank(rank)).unwrap()
    }
}

// A long all-reduce over the members that are there.
pub(in crate::runtime) fn assert_sums(group: &mut Box<dyn ProcessGroup>, members: &[u32], me: u32) {
    let mut values = vec![me as f32 + 1.0; LONG];
    group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
    let sum: u32 = members.iter().map(|member| member + 1).sum();
    assert_eq!(values, vec![sum as f32; LONG]);
}

// Every collective, long and short, in a group of so many.
pub(in crate::runtime) fn every_collective(group: &mut Box<dyn ProcessGroup>) {
    let (me, world) = (group.group().me().0 as usize, group.group().world() as usize);
    // A length that few numbers of parts divide.
    let len = 2 * LONG + 5;
    let mine: Vec<f32> = (0..len).map(|at| (at % 7) as f32 + me as f32).collect();
    let ranks: usize = (0..world).sum();
    let sum: Vec<f32> = (0..len).map(|at| (at % 7 * world + ranks) as f32).collect();
    let mean: Vec<f32> = sum.iter().map(|value| value / world as f32).collect();
    let mut values = mine.clone();
    group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
    assert_eq!(values, sum);
    let mut into = vec![0.0; len];
    group.all_reduce_into(&mine, &mut into, ReduceOp::Mean).unwrap();
    assert_eq!(into, mean);
    let mut buffer = group.buffer::<f32>(len).unwrap();
    buffer.copy_from_slice(&mine);
    group.all_reduce_buffer(&mut buffer, ReduceOp::Sum).unwrap();
    assert_eq!(*buffer, sum[..]);
    let part = group.reduce_scatter(&mine, ReduceOp::Mean).unwrap();
    assert_eq!(part, mean[split_even(len, world)[me].range()]);
    // All weight is with two of them.
    let mut weighed = mine.clone();
    let weight = if me == 0 {
        1.0
    } else if me == world - 1 {
        3.0
    } else {
        0.0
    };
    let averaged = group.weighted_mean(&mut weighed, weight).unwrap();
    assert_eq!(averaged, WeightedMean::Averaged { total: 4.0 });
    let share = 0.75 * (world - 1) as f32;
    assert!(weighed.iter().enumerate().all(|(at, value)| *value == (at % 7) as f32 + share));
    assert_eq!(group.weighted_mean(&mut weighed, 0.0).unwrap(), WeightedMean::NoWeight);
    // Halves are averaged as their wide values are: here exactly.
    let halves = |of: fn(f32) -> f32| -> Vec<half::bf16> {
        (0..2 * len).map(|at| half::bf16::from_f32(of((at % 7) as f32))).collect()
    };
    let mut averaged = halves(|value| value);
    let factor = half::bf16::from_f32(if me == world - 1 { 4.0 } else { 1.0 });
    averaged.iter_mut().for_each(|value| *value *= factor);
    assert_eq!(group.weighted_mean(&mut averaged, weight).unwrap(), WeightedMean::Averaged { total: 4.0 });
    assert_eq!(averaged, halves(|value| value * 3.25));
    let mut most = vec![me as i64; len];
    group.all_reduce(&mut most, ReduceOp::Max).unwrap();
    assert_eq!(most, vec![world as i64 - 1; len]);
    // Floats that are compared keep a NaN, which the library's would not.
    let mut nan = vec![if me == 1 { f32::NAN } else { 1.0 }; len];
    group.all_reduce(&mut nan, ReduceOp::Max).unwrap();
    assert!(nan.iter().all(|value| value.is_nan()));

    let block = |of: usize, to: usize| vec![(10 * of + to) as u8; BULK_MIN_BYTES + 100 * of + to];
    let root = Rank(world as u32 - 1);
    let gathered = group.all_gather_v(&block(me, 0)).unwrap();
    assert!(gathered.iter().enumerate().all(|(of, bytes)| *bytes == block(of, 0)));
    let gathered = group.gather_v(Rank(1), &block(me, 1)).unwrap();
    assert_eq!(gathered.len(), if me == 1 { world } else { 0 });
    assert!(gathered.iter().enumerate().all(|(of, bytes)| *bytes == block(of, 1)));
    let blocks: Vec<Vec<u8>> = (0..world).map(|to| block(me, to)).collect();
    let scattered = group.scatter_v(root, if me == world - 1 { &blocks } else { &[] }).unwrap();
    assert_eq!(scattered, block(world - 1, me));
    let turned = group.all_to_all_v(&blocks).unwrap();
    assert!(turned.iter().enumerate().all(|(of, bytes)| *bytes == block(of, me)));
    let mut told = if me == 0 { block(0, 9) } else { Vec::new() };
    group.broadcast(Rank(0), &mut told).unwrap();
    assert_eq!(told, block(0, 9));
    // Of several that give, the library asks the first.
    let mut taken = vec![0; block(0, 9).len()];
    let role = if me == world - 1 { CopyRole::Takes(&mut taken) } else { CopyRole::Gives(&told) };
    group.copy(role).unwrap();
    assert!(me != world - 1 || taken == block(0, 9));
    // What is short, and what has no bytes.
    let ranks: Vec<Vec<u8>> = (0..world).map(|rank| vec![rank as u8]).collect();
    assert_eq!(group.all_gather_v(&[me as u8]).unwrap(), ranks);
    assert_eq!(group.all_to_all_v(&vec![Vec::new(); world]).unwrap(), vec![Vec::<u8>::new(); world]);
    group.barrier().unwrap();
}

#[test]
fn every_collective_gives_the_same_over_the_library_and_messages() {
    let (meeting, all) = processes(3);
    let addresses = addresses(&all);
    at_once(all, |mut process| {
        let (mut group, _, _) = process.join(1, &[0, 1, 2], &addresses, config());
        every_collective(&mut group);
        group.leave();
    });
    // Thirteen calls over the library, in each of which every member put something.
    let tables = meeting.tables.lock().unwrap();
    assert_eq!(tables[&0].len(), 3 * 13, "{:?}", tables[&0].keys());
}

// Goes through these groups of a few, of which each reduces and leaves; all processes wait for each other in between.
fn meet_as_few(
    process: &mut Process<Threads>,
    groups: &[&[u32]],
    addresses: &[SocketAddr],
    first: u64,
    round_over: &Barrier,
) {
    for (version, members) in (first..).zip(groups) {
        if members.contains(&process.me) {
            let (mut group, _, _) = process.join_few(version, members, addresses, config());
            assert_sums(&mut group, members, process.me);
            group.leave();
        }
        round_over.wait();
    }
}

#[test]
fn a_group_of_a_few_makes_a_communicator_when_it_meets_again_and_then_uses_it() {
    let (meeting, all) = processes(3);
    let (addresses, over) = (addresses(&all), Barrier::new(3));
    let few: [&[u32]; 7] = [&[0, 1], &[1, 2], &[0, 1], &[0, 1, 2], &[1, 2], &[0, 1], &[1, 2]];
    at_once(all, |mut process| {
        let (mut group, _, _) = process.join(1, &[0, 1, 2], &addresses, config());
        assert_sums(&mut group, &[0, 1, 2], process.me);
        group.leave();
        meet_as_few(&mut process, &few, &addresses, 2, &over);
        // The group of all has its own all the while.
        let (mut group, _, _) = process.join(9, &[0, 1, 2], &addresses, config());
        assert_sums(&mut group, &[0, 1, 2], process.me);
        assert_eq!(process.backend.told.as_deref(), Some("the communicator is kept"));
        group.leave();
    });
    // That of all, and one for each pair; in the group of three that met once there is none.
    assert_eq!(meeting.inits(), 3 + 2 + 2);
    let tables = meeting.tables.lock().unwrap();
    let calls: Vec<usize> = tables.values().map(BTreeMap::len).collect();
    assert_eq!(calls, [3 * 2, 2 * 2, 2 * 2], "each pair reduces over its communicator twice: {calls:?}");
}

#[test]
fn a_communicator_that_one_member_had_no_room_for_is_used_by_none() {
    let (meeting, all) = processes(3);
    let (addresses, over) = (addresses(&all), Barrier::new(3));
    let few: [&[u32]; 5] = [&[0, 1], &[0, 2], &[0, 1], &[0, 1], &[0, 2]];
    // Only the first process has no room for two.
    let pool = |me: u32| HeldComms::new(if me == 0 { 1 } else { 4 }, 2);
    let with_pool = |process: Process<Threads>| {
        let Process { me, listener, backend } = process;
        Process { me, listener, backend: backend.with_pool(pool(me)) }
    };
    at_once(all.into_iter().map(with_pool), |mut process| {
        for (first, groups) in [(1, &few[..]), (11, &few[..])] {
            meet_as_few(&mut process, groups, &addresses, first, &over);
        }
        // The first two have that of theirs; the third gave its own up when it heard that the first one had.
        assert_eq!(process.backend.kept_of_few(), usize::from(process.me < 2), "{}", process.me);
    });
    // The two of the first round, and the first one's again.
    assert_eq!(meeting.inits(), 2 * 3);
}

#[test]
fn a_group_of_a_few_with_a_member_without_a_gpu_does_without_and_keeps_nothing() {
    let meeting = Arc::<Meeting>::default();
    let all: Vec<Process<Threads>> = (0..2)
        .map(|me| {
            let library = process_library(&meeting, me, ABLE, Fault::Nothing);
            Process::new(me, if me == 1 { Err("no driver".to_owned()) } else { Ok(library) })
        })
        .collect();
    let (addresses, over) = (addresses(&all), Barrier::new(2));
    at_once(all, |mut process| {
        meet_as_few(&mut process, &[&[0, 1][..]; 4], &addresses, 1, &over);
        assert_eq!(process.backend.kept_of_few(), 0);
    });
    assert_eq!(meeting.inits(), 0);
}

#[test]
fn a_few_members_with_one_that_cannot_join_do_without_and_seldom_try_again() {
    let meeting = Arc::<Meeting>::default();
    let fault = |me: u32| if me == 1 { Fault::CannotInit } else { Fault::Nothing };
    let all: Vec<Process<Threads>> = (0..2).map(|me| process(&meeting, me, ABLE, fault(me))).collect();
    let (addresses, over) = (addresses(&all), Barrier::new(2));
    at_once(all, |mut process| {
        meet_as_few(&mut process, &[&[0, 1][..]; 8], &addresses, 1, &over);
        assert_eq!(process.backend.kept_of_few(), 0);
    });
    // In the second and in the sixth meeting, by the member that can.
    assert_eq!(meeting.inits(), 2);
}

#[test]
fn a_communicator_of_a_few_whose_call_failed_is_given_up_and_made_anew() {
    let (meeting, all) = processes(2);
    let addresses = addresses(&all);
    at_once(all, |mut process| {
        for version in 1..=5 {
            let (mut group, _, abort) = process.join_few(version, &[0, 1], &addresses, config());
            if version == 3 && process.me == 0 {
                abort.abort("a worker died elsewhere");
            }
            let reduced = group.all_reduce(&mut vec![1.0_f32; LONG], ReduceOp::Sum);
            assert_eq!(reduced.is_err(), version == 3, "{version}: {reduced:?}");
            group.leave();
        }
    });
    // In the second, and again in the fourth: both members gave theirs up.
    assert_eq!(meeting.inits(), 2 + 2);
}

#[test]
fn a_communicator_follows_its_group_by_keeping_shrinking_growing_and_splitting() {
    let (meeting, all) = processes(4);
    let addresses = addresses(&all);
    let steps: [&[u32]; 6] = [&[0, 1, 2], &[0, 2], &[0, 2], &[0, 2, 3], &[3, 0], &[0, 3]];
    at_once(all, |mut process| {
        for (membership, members) in (1..).zip(steps) {
            if !members.contains(&process.me) {
                continue;
            }
            let (mut group, _, _) = process.join(membership, members, &addresses, config());
            assert_sums(&mut group, members, process.me);
            group.leave();
        }
    });
    let mut taken = meeting.taken.lock().unwrap().clone();
    taken.sort();
    let shrunk = "shrink without [1], Not";
    let grown = ["grow, new", "grow, there before", "grow, there before"];
    let split = ["split as 0", "split as 1"];
    // Three at first, and two that changed their order when a third one left; then these change it again.
    assert_eq!(taken, [&grown[..], &["init"; 5], &[shrunk; 2], &split].concat());
}

#[test]
fn a_communicator_is_cut_in_parts_with_members_in_the_order_they_say() {
    let meeting = Arc::<Meeting>::default();
    let patience =
        || Patience { deadline: std::time::Instant::now() + PATIENT, abort: abort_handles(1).remove(0) };
    // Of five: two turned around, two as they were, one in neither part.
    let parts = [(Some(0), 1), (Some(1), 0), (None, 0), (Some(0), 0), (Some(1), 1)];
    at_once((0_u32..).zip(parts), |(me, (part, place))| {
        let mut library = process_library(&meeting, me, ABLE, Fault::Nothing);
        let mut all = library.comm(7, 5, me);
        let made = library.split(&mut all, part, place, &patience()).unwrap();
        assert_eq!(made.is_some(), part.is_some());
        let Some(mut made) = made else { return };
        assert_eq!((made.world, made.rank), (2, place));
        // Each hears of the other one of its part alone.
        let said = made.exchange(made.all(&[me as u8]), &[0, 1], &patience()).unwrap();
        let expected = if part == Some(0) { [[3], [0]] } else { [[1], [4]] };
        assert_eq!(said, expected);
    });
}

#[test]
fn a_library_that_cannot_regroup_is_initialised_anew() {
    let meeting = Arc::<Meeting>::default();
    let all: Vec<Process<Threads>> =
        (0..3).map(|me| process(&meeting, me, Abilities::default(), Fault::Nothing)).collect();
    let addresses = addresses(&all);
    at_once(all, |mut process| {
        for (membership, members) in [(1, &[0, 1, 2][..]), (2, &[0, 2]), (3, &[2, 0])] {
            if members.contains(&process.me) {
                let (mut group, _, _) = process.join(membership, members, &addresses, config());
                assert_sums(&mut group, members, process.me);
                group.leave();
            }
        }
    });
    assert_eq!(*meeting.taken.lock().unwrap(), ["init"; 7]);
}

#[test]
fn where_one_member_has_no_library_or_cannot_join_the_group_goes_over_messages() {
    for lacking in [true, false] {
        let meeting = Arc::<Meeting>::default();
        let mut all: Vec<Process<Threads>> =
            (0..2).map(|me| process(&meeting, me, ABLE, Fault::Nothing)).collect();
        all.push(match lacking {
            true => Process::new(2, Err("no GPU".to_owned())),
            false => process(&meeting, 2, ABLE, Fault::CannotInit),
        });
        let addresses = addresses(&all);
        at_once(all, |mut process| {
            let (mut group, _, _) = process.join(1, &[0, 1, 2], &addresses, config());
            assert_sums(&mut group, &[0, 1, 2], process.me);
            assert_eq!(group.all_gather_v(&[process.me as u8]).unwrap(), [[0], [1], [2]]);
            group.leave();
        });
        assert!(meeting.tables.lock().unwrap().is_empty());
    }
}

#[test]
fn a_call_that_fails_changes_no_operand_and_the_next_group_goes_on() {
    let meeting = Arc::<Meeting>::default();
    let mut all: Vec<Process<Threads>> =
        (0..2).map(|me| process(&meeting, me, ABLE, Fault::Nothing)).collect();
    all.push(process(&meeting, 2, ABLE, Fault::Fails));
    let addresses = addresses(&all);
    // Long enough for a member to come to the verdict on a busy machine; the deadline passes for two of the three.
    let short = CommunicatorConfig { timeout: Duration::from_secs(4), ..config() };
    at_once(all, |mut process| {
        let (mut group, _, _) = process.join(1, &[0, 1, 2], &addresses, short);
        let mut values = vec![1.0_f32; LONG];
        let error = group.all_reduce(&mut values, ReduceOp::Sum).unwrap_err();
        assert_eq!(values, vec![1.0; LONG]);
        // All are alive, and none is named.
        assert_eq!(error.culprit(), None, "{error}");
        let what = if process.me == 2 { "an illegal memory access" } else { "not done at the deadline" };
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(group.barrier().unwrap_err(), error);
        group.leave();
        if process.me < 2 {
            let (mut group, _, _) = process.join(2, &[0, 1], &addresses, config());
            assert_sums(&mut group, &[0, 1], process.me);
            group.leave();
        }
    });
    let taken = meeting.taken.lock().unwrap();
    assert_eq!(taken[3..], ["shrink without [2], Revoke"; 2]);
}

#[test]
fn a_member_that_dies_within_a_call_is_named_by_the_others() {
    let meeting = Arc::<Meeting>::default();
    let mut all: Vec<Process<Threads>> =
        (0..2).map(|me| process(&meeting, me, ABLE, Fault::Nothing)).collect();
    all.push(process(&meeting, 2, ABLE, Fault::Dies));
    let addresses = addresses(&all);
    let short = CommunicatorConfig { timeout: Duration::from_secs(4), ..config() };
    at_once(all, |mut process| {
        let (mut group, _, _) = process.join(1, &[0, 1, 2], &addresses, short);
        let mut values = vec![1.0_f32; LONG];
        if process.me == 2 {
            let died = catch_unwind(AssertUnwindSafe(|| group.all_reduce(&mut values, ReduceOp::Sum)));
            assert!(died.is_err());
            return;
        }
        let error = group.all_reduce(&mut values, ReduceOp::Sum).unwrap_err();
        assert_eq!(error.culprit(), Some(holder(2)), "{error}");
        assert_eq!(values, vec![1.0; LONG]);
    });
}

#[test]
fn members_that_make_different_calls_all_find_out() {
    let (_, all) = processes(2);
    let addresses = addresses(&all);
    at_once(all, |mut process| {
        let (mut group, _, _) = process.join(1, &[0, 1], &addresses, config());
        let mut values = vec![1.0_f32; LONG + process.me as usize];
        let error = group.all_reduce(&mut values, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, CollectiveError::Mismatch { .. }), "{error}");
        assert_eq!(error.culprit(), Some(holder(1 - process.me)));
    });
}

#[test]
fn an_abort_ends_a_call_at_once_and_a_unanimous_call_counts_for_all_or_none() {
    let (_, all) = processes(2);
    let addresses = addresses(&all);
    let unanimous = CommunicatorConfig { unanimous: true, ..config() };
    at_once(all, |mut process| {
        let (mut group, _, abort) = process.join(1, &[0, 1], &addresses, unanimous);
        assert_sums(&mut group, &[0, 1], process.me);
        abort.abort("the group ends here");
        let mut values = vec![1.0_f32; LONG];
        let error = group.all_reduce(&mut values, ReduceOp::Sum).unwrap_err();
        assert!(error.to_string().contains("the group ends here"), "{error}");
        assert_eq!(values, vec![1.0; LONG]);
        group.leave();
        let (mut group, resolution, _) = process.join(2, &[0, 1], &addresses, unanimous);
        assert_eq!(resolution, Resolution::Level);
        assert!(
            group.adopt(ElementsMut::of(&mut values)).unwrap_err().to_string().contains("call adopt once")
        );
        assert_sums(&mut group, &[0, 1], process.me);
        group.leave();
    });
}
