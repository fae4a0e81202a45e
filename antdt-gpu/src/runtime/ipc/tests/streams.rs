//! The protocol over threads that stand in for the streams of GPUs: what is asked of them is done later, and only marks put
//! one stream behind another.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use antdt_collective::element::{Element, ElementType};
use antdt_collective::elements::{with_float, with_type};
use antdt_collective::error::CollectiveError;
use antdt_collective::kernel;
use antdt_collective::op::ReduceOp;
use antdt_collective::outcome::Resolution;
use antdt_collective::runtime::testing::{at_once, holder};
use antdt_collective::runtime::{
    Communicator, CommunicatorConfig, DeviceMemory, DevicePlace, Halves, Region,
};

use super::super::card::{Card, Gpu, Mark, Window};
use super::super::comm::Ipc;
use super::super::kernel::{Kernel, Work};
use super::{reduced, weighted_mean};
use crate::device::{Abilities, Statement};
use crate::runtime::device::bulk::BulkError;
use crate::runtime::device::tests::{LONG, Process, addresses, assert_sums, config, every_collective};

/// Bytes of half a window: calls of `LONG` elements take three pieces, the last of which is short.
const WINDOW: usize = 112 << 10;

/// Memory of all, by the address of its beginning, and the marks of all streams.
#[derive(Default)]
struct Machine {
    memory: Mutex<BTreeMap<u64, Vec<u8>>>,
    marks: Mutex<BTreeMap<u64, Arc<Marks>>>,
    windows: AtomicU64,
    reductions: AtomicUsize,
    // Copies of memory of the GPU to the host.
    staged: AtomicUsize,
    // Streams of the members' own, by number.
    writers: Mutex<BTreeMap<u64, Arc<Stream>>>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Machine")
    }
}

/// How many marks of each kind a stream was asked for, and how many it has come to.
#[derive(Default)]
struct Marks {
    asked: [AtomicU64; 2],
    come: Mutex<[u64; 2]>,
    changed: Condvar,
}

/// What goes wrong at a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// Its second piece cannot be copied.
    CannotFill,
    /// It dies when it is about to reduce.
    Dies,
    /// Its stream never comes to an end.
    Hangs,
    /// It cannot open the windows of others.
    CannotOpen,
}

struct ThreadGpu {
    machine: Arc<Machine>,
    host: u64,
    fault: Fault,
}

struct Stream {
    queue: Option<Sender<Box<dyn FnOnce() + Send>>>,
    pending: Arc<AtomicUsize>,
    gone: Arc<AtomicBool>,
}

struct ThreadCard {
    machine: Arc<Machine>,
    base: u64,
    marks: Arc<Marks>,
    stream: Stream,
    fault: Fault,
    fills: u32,
    // By window of each other member, the last mark of each kind that this stream was put behind.
    behind: BTreeMap<u64, [u64; 2]>,
    // The host's side of what is fetched.
    host: Arc<Mutex<Vec<u8>>>,
    seen: Vec<u8>,
}

struct ThreadPeer {
    base: u64,
    marks: Arc<Marks>,
}

impl Stream {
    fn new() -> Self {
        let (queue, orders) = channel::<Box<dyn FnOnce() + Send>>();
        let pending = Arc::new(AtomicUsize::new(0));
        let done = Arc::clone(&pending);
        std::thread::spawn(move || {
            for order in orders {
                order();
                done.fetch_sub(1, Ordering::Release);
            }
        });
        Self { queue: Some(queue), pending, gone: Arc::default() }
    }

    fn put(&self, order: impl FnOnce() + Send + 'static) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.queue.as_ref().unwrap().send(Box::new(order)).unwrap();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

impl ThreadCard {
    // Whether this stream was put behind the last mark of all others. Each member sets one for each piece, and none is a piece
    // ahead of another: so many as this member has set. Asked without a look at what the streams have come to, so that a
    // protocol that forgets to wait is found out however fast they are.
    fn is_behind_all(&self, mark: Mark) -> Result<(), BulkError> {
        let own = self.marks.asked[mark as usize].load(Ordering::Relaxed);
        match self.behind.iter().find(|(_, behind)| behind[mark as usize] < own) {
            Some((window, _)) => Err(BulkError::Failed(format!("nothing waits for {mark:?} of {window:#x}"))),
            None => Ok(()),
        }
    }
}

impl Gpu for ThreadGpu {
    type Card = ThreadCard;

    fn statement(&self) -> Statement {
        Statement { gpu: Some(1), host: self.host, version: 100, abilities: Abilities::default(), last: None }
    }

    fn card(&mut self) -> Result<ThreadCard, BulkError> {
        let base = (1 + self.machine.windows.fetch_add(1, Ordering::Relaxed)) << 32;
        // Not zeros: what is read too early is seen.
        self.machine.memory.lock().unwrap().insert(base, vec![0xa5; 2 * WINDOW]);
        let marks = Arc::<Marks>::default();
        self.machine.marks.lock().unwrap().insert(base, Arc::clone(&marks));
        Ok(ThreadCard {
            machine: Arc::clone(&self.machine),
            base,
            marks,
            stream: Stream::new(),
            fault: self.fault,
            fills: 0,
            behind: BTreeMap::new(),
            host: Arc::new(Mutex::new(vec![0x5a; WINDOW])),
            seen: Vec::new(),
        })
    }
}

/// The bytes at an address.
fn at(memory: &mut BTreeMap<u64, Vec<u8>>, address: u64, len: usize) -> &mut [u8] {
    let (base, bytes) = memory.range_mut(..=address).next_back().unwrap();
    &mut bytes[(address - base) as usize..][..len]
}

impl Card for ThreadCard {
    type Peer = ThreadPeer;

    const WINDOW: usize = WINDOW;

    fn offer(&mut self) -> Result<Vec<u8>, BulkError> {
        Ok(self.base.to_le_bytes().to_vec())
    }

    fn open(&mut self, offer: &[u8]) -> Result<ThreadPeer, BulkError> {
        if self.fault == Fault::CannotOpen {
            return Err(BulkError::Failed("peer access is not supported".to_owned()));
        }
        let base = u64::from_le_bytes(offer.try_into().unwrap());
        self.behind.insert(base, [0; 2]);
        Ok(ThreadPeer { base, marks: Arc::clone(&self.machine.marks.lock().unwrap()[&base]) })
    }

    fn window(&self) -> Window {
        Window { from: self.base, into: self.base + WINDOW as u64 }
    }

    fn window_of(peer: &ThreadPeer) -> Window {
        Window { from: peer.base, into: peer.base + WINDOW as u64 }
    }

    fn share(&mut self, place: &DevicePlace) -> Result<Vec<u8>, BulkError> {
        Ok(place.address.to_le_bytes().to_vec())
    }

    fn reach(&mut self, _: &mut ThreadPeer, shared: &[u8]) -> Result<u64, BulkError> {
        Ok(u64::from_le_bytes(shared.try_into().unwrap()))
    }

    fn follow(&mut self, place: &DevicePlace) -> Result<(), BulkError> {
        // An event of the other stream.
        let reached = Arc::new((Mutex::new(false), Condvar::new()));
        let reaches = Arc::clone(&reached);
        self.machine.writers.lock().unwrap()[&place.stream].put(move || {
            *reaches.0.lock().unwrap() = true;
            reaches.1.notify_all();
        });
        self.stream.put(move || drop(reached.1.wait_while(reached.0.lock().unwrap(), |is| !*is).unwrap()));
        Ok(())
    }

    fn fill(&mut self, data: &[u8]) -> Result<(), BulkError> {
        self.fills += 1;
        if self.fault == Fault::CannotFill && self.fills == 2 {
            return Err(BulkError::Failed("an illegal memory access".to_owned()));
        }
        assert_eq!(self.stream.pending.load(Ordering::Acquire), 0, "the window is filled while it is in use");
        let (machine, data, base) = (Arc::clone(&self.machine), data.to_vec(), self.base);
        self.stream
            .put(move || at(&mut machine.memory.lock().unwrap(), base, data.len()).copy_from_slice(&data));
        Ok(())
    }

    fn mark(&mut self, mark: Mark) -> Result<(), BulkError> {
        let number = 1 + self.marks.asked[mark as usize].fetch_add(1, Ordering::Relaxed);
        let marks = Arc::clone(&self.marks);
        self.stream.put(move || {
            marks.come.lock().unwrap()[mark as usize] = number;
            marks.changed.notify_all();
        });
        Ok(())
    }

    fn wait(&mut self, peer: &ThreadPeer, mark: Mark) -> Result<(), BulkError> {
        // As an event: its last mark of the kind, now.
        let number = peer.marks.asked[mark as usize].load(Ordering::Relaxed);
        self.behind.entry(peer.base).or_default()[mark as usize] = number;
        let (marks, gone) = (Arc::clone(&peer.marks), Arc::clone(&self.stream.gone));
        self.stream.put(move || {
            let mut come = marks.come.lock().unwrap();
            while come[mark as usize] < number && !gone.load(Ordering::Relaxed) {
                come = marks.changed.wait_timeout(come, Duration::from_millis(5)).unwrap().0;
            }
        });
        Ok(())
    }

    fn reduce(&mut self, work: &Work<'_>) -> Result<(), BulkError> {
        assert!(self.fault != Fault::Dies, "the process dies here");
        self.is_behind_all(Mark::Filled)?;
        self.machine.reductions.fetch_add(1, Ordering::Relaxed);
        let (machine, gone, hangs) =
            (Arc::clone(&self.machine), Arc::clone(&self.stream.gone), self.fault == Fault::Hangs);
        let (from, into, weights) = (work.from.to_vec(), work.into.to_vec(), work.weights.to_vec());
        let (kernel, total, start, len) = (work.kernel, work.total, work.start, work.len);
        self.stream.put(move || {
            while hangs && !gone.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let mut memory = machine.memory.lock().unwrap();
            with_type!(kernel.element(), E => {
                let size = size_of::<E>();
                let (start, len_bytes) = ((start * size) as u64, len * size);
                let operands: Vec<Vec<E>> = from.iter().map(|place| {
                    let mut operand = vec![E::default(); len];
                    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut operand);
                    bytes.copy_from_slice(at(&mut memory, place + start, len_bytes));
                    operand
                }).collect();
                let operands: Vec<&[E]> = operands.iter().map(Vec::as_slice).collect();
                let result: Vec<E> = match kernel {
                    Kernel::Reduce(op, _) => reduced(op, &operands),
                    Kernel::WeightedMean(element) => with_float!(element, F => {
                        let operands: Vec<&[F]> =
                            operands.iter().map(|operand| bytemuck::cast_slice(operand)).collect();
                        bytemuck::cast_slice(&weighted_mean(&operands, &weights, total)).to_vec()
                    }, else => panic!("integers have no mean")),
                };
                for place in &into {
                    at(&mut memory, place + start, len_bytes).copy_from_slice(bytemuck::cast_slice(&result));
                }
            });
        });
        Ok(())
    }

    fn fetch(&mut self, from: usize, len: usize) -> Result<(), BulkError> {
        let (machine, host, address) =
            (Arc::clone(&self.machine), Arc::clone(&self.host), self.base + (WINDOW + from) as u64);
        self.stream.put(move || {
            let mut memory = machine.memory.lock().unwrap();
            host.lock().unwrap()[from..from + len].copy_from_slice(at(&mut memory, address, len));
        });
        Ok(())
    }

    // Asked at the end of a piece: what lies in memory then is the result.
    fn is_idle(&mut self) -> Result<bool, BulkError> {
        self.is_behind_all(Mark::Reduced)?;
        Ok(self.stream.pending.load(Ordering::Acquire) == 0)
    }

    fn settle(&mut self) -> bool {
        self.stream.gone.store(true, Ordering::Relaxed);
        true
    }

    fn fetched(&mut self) -> &[u8] {
        self.seen.clone_from(&self.host.lock().unwrap());
        &self.seen
    }
}

/// Memory of a member beside its window, and the stream that writes it.
#[derive(Debug)]
struct ThreadMemory {
    machine: Arc<Machine>,
    base: u64,
    len: usize,
    // As the handle of a stream: its number.
    stream: u64,
}

impl ThreadMemory {
    fn new(machine: &Arc<Machine>, len: usize, stream: u64) -> Self {
        let base = (1 + machine.windows.fetch_add(1, Ordering::Relaxed)) << 32;
        machine.memory.lock().unwrap().insert(base, vec![0; len]);
        Self { machine: Arc::clone(machine), base, len, stream }
    }
}

impl DeviceMemory for ThreadMemory {
    fn len_bytes(&self) -> usize {
        self.len
    }

    fn place(&self) -> DevicePlace {
        DevicePlace { gpu: 1, address: self.base, stream: self.stream }
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), CollectiveError> {
        self.machine.staged.fetch_add(1, Ordering::Relaxed);
        into.copy_from_slice(at(&mut self.machine.memory.lock().unwrap(), self.base, self.len));
        Ok(())
    }

    fn write(&mut self, from: &[u8]) -> Result<(), CollectiveError> {
        at(&mut self.machine.memory.lock().unwrap(), self.base, self.len).copy_from_slice(from);
        Ok(())
    }
}

// Halves on the GPU; a stream of their own, number `stream`, fills them later.
fn halves_on_gpu(machine: &Arc<Machine>, values: &[f32], stream: u64) -> (Halves, Arc<Stream>) {
    let len = size_of_val(values);
    let memory = || ThreadMemory::new(machine, len, stream);
    let (live, spare) = (memory(), memory());
    let writer = Arc::new(Stream::new());
    machine.writers.lock().unwrap().insert(stream, Arc::clone(&writer));
    let (machine, base, bytes) =
        (Arc::clone(machine), live.base, bytemuck::cast_slice::<f32, u8>(values).to_vec());
    writer.put(move || {
        // Others come first, where nothing keeps them back.
        std::thread::sleep(Duration::from_millis(20));
        at(&mut machine.memory.lock().unwrap(), base, len).copy_from_slice(&bytes);
    });
    (Halves::new(Region::on_device(Box::new(live)), Region::on_device(Box::new(spare))), writer)
}

fn values_of(halves: &mut Halves) -> Vec<f32> {
    let mut values = vec![0.0_f32; halves.len_bytes() / 4];
    let (live, _) = halves.device_parts().unwrap();
    live.read(bytemuck::cast_slice_mut(&mut values)).unwrap();
    values
}

#[test]
fn memory_of_the_gpu_is_reduced_where_it_lies_behind_the_stream_that_wrote_it() {
    let (machine, all) = processes(3);
    let (addresses, shared) = (addresses(&all), Arc::clone(&machine));
    at_once(all, move |mut process| {
        let (mut group, _, _) = process.join(1, &[0, 1, 2], &addresses, config());
        let me = process.me;
        let values = vec![me as f32 + 1.0; LONG + 3];
        let (mut halves, _writer) = halves_on_gpu(&shared, &values, 100 + u64::from(me));
        assert!(halves.live().is_empty(), "the host does not address it");
        for (op, expected) in [(ReduceOp::Sum, 6.0), (ReduceOp::Mean, 6.0)] {
            group.all_reduce_halves(&mut halves, ElementType::F32, op).unwrap();
            shared.staged.store(0, Ordering::Relaxed);
            assert!(values_of(&mut halves).iter().all(|value| *value == expected), "{op}");
        }
        group.leave();
    });
    assert!(machine.reductions.load(Ordering::Relaxed) >= 6);
}

#[test]
fn where_one_member_has_its_values_on_the_host_the_others_copy_theirs() {
    let (machine, all) = processes(3);
    let (addresses, shared) = (addresses(&all), Arc::clone(&machine));
    at_once(all, move |mut process| {
        let (mut group, _, _) = process.join(1, &[0, 1, 2], &addresses, config());
        let values = vec![process.me as f32 + 1.0; LONG];
        if process.me == 1 {
            let mut buffer = group.buffer::<f32>(LONG).unwrap();
            buffer.copy_from_slice(&values);
            group.all_reduce_buffer(&mut buffer, ReduceOp::Sum).unwrap();
            assert!(buffer.iter().all(|value| *value == 6.0));
        } else {
            let (mut halves, writer) = halves_on_gpu(&shared, &values, 100 + u64::from(process.me));
            // As a driver's copy would wait for it.
            while writer.pending.load(Ordering::Acquire) > 0 {
                std::thread::yield_now();
            }
            group.all_reduce_halves(&mut halves, ElementType::F32, ReduceOp::Sum).unwrap();
            assert!(values_of(&mut halves).iter().all(|value| *value == 6.0));
        }
        group.leave();
    });
    assert_eq!(machine.reductions.load(Ordering::Relaxed), 0);
    assert!(machine.staged.load(Ordering::Relaxed) >= 2);
}

fn process(machine: &Arc<Machine>, me: u32, fault: Fault) -> Process<Ipc<ThreadGpu>> {
    Process::new(me, Ok(Ipc::new(ThreadGpu { machine: Arc::clone(machine), host: 1, fault })))
}

fn processes(count: u32) -> (Arc<Machine>, Vec<Process<Ipc<ThreadGpu>>>) {
    let machine = Arc::<Machine>::default();
    let all = (0..count).map(|me| process(&machine, me, Fault::Nothing)).collect();
    (machine, all)
}

// Two that do as they should and a third one that does not.
fn with_a_fault(fault: Fault) -> (Arc<Machine>, Vec<Process<Ipc<ThreadGpu>>>) {
    let (machine, mut all) = processes(2);
    all.push(process(&machine, 2, fault));
    (machine, all)
}

const SHORT: Duration = Duration::from_secs(4);

#[test]
fn every_collective_gives_the_same_over_windows_and_messages() {
    for world in [3, 5] {
        let (machine, all) = processes(world);
        let (addresses, members) = (addresses(&all), (0..world).collect::<Vec<_>>());
        at_once(all, |mut process| {
            let (mut group, _, _) = process.join(1, &members, &addresses, config());
            assert_eq!(process.backend.told.as_deref(), Some("initialised anew: there was none"));
            every_collective(&mut group);
            group.leave();
        });
        assert!(machine.reductions.load(Ordering::Relaxed) > 0);
    }
}

#[test]
fn all_operands_are_folded_in_order_of_rank_for_any_type_and_length() {
    let (machine, all) = processes(3);
    let addresses = addresses(&all);
    // Of a million, a thousandth and minus a million the order can be seen, and of the halves every rounding.
    let operand = |rank: u32, at: usize| [1e6, 1e-3 * (at % 977) as f32, -1e6][(rank as usize + at) % 3];
    at_once(all, |mut process| {
        let (mut group, _, _) = process.join(1, &[0, 1, 2], &addresses, config());
        let me = group.group().me().0;
        for len in [LONG, 2 * LONG + 3] {
            for element in [ElementType::F32, ElementType::F64, ElementType::F16, ElementType::Bf16] {
                with_type!(element, E => {
                    let of = |rank| -> Vec<E> {
                        let wide: Vec<f32> = (0..len).map(|at| operand(rank, at)).collect();
                        wide.iter().map(|wide| match E::TYPE {
                            ElementType::F32 => bytemuck::pod_read_unaligned(bytemuck::bytes_of(wide)),
                            ElementType::F64 => bytemuck::pod_read_unaligned(bytemuck::bytes_of(&f64::from(*wide))),
                            ElementType::F16 => {
                                bytemuck::pod_read_unaligned(bytemuck::bytes_of(&half::f16::from_f32(*wide / 64.0)))
                            }
                            _ => bytemuck::pod_read_unaligned(bytemuck::bytes_of(&half::bf16::from_f32(*wide))),
                        }).collect()
                    };
                    let mut expected: Vec<E> = of(0);
                    kernel::reduce(ReduceOp::Sum, &mut expected, &of(1));
                    kernel::reduce(ReduceOp::Sum, &mut expected, &of(2));
                    let mut values: Vec<E> = of(me);
                    group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                    assert!(bytemuck::cast_slice::<E, u8>(&values) == bytemuck::cast_slice::<E, u8>(&expected), "{element}");
                });
            }
        }
        group.leave();
    });
    assert!(machine.reductions.load(Ordering::Relaxed) > 3 * 8);
}

#[test]
fn a_window_is_opened_anew_for_every_group_that_differs_and_kept_for_one_that_does_not() {
    let (machine, all) = processes(3);
    let addresses = addresses(&all);
    let steps: [&[u32]; 4] = [&[0, 1, 2], &[0, 1, 2], &[0, 2], &[2, 0, 1]];
    at_once(all, |mut process| {
        for (membership, members) in (1..).zip(steps) {
            if members.contains(&process.me) {
                let (mut group, _, _) = process.join(membership, members, &addresses, config());
                assert_sums(&mut group, members, process.me);
                group.leave();
            }
        }
    });
    assert_eq!(machine.windows.load(Ordering::Relaxed), 3 + 2 + 3);
}

#[test]
fn a_member_that_fails_says_so_to_all_at_once_and_the_next_group_goes_on() {
    let (_, all) = with_a_fault(Fault::CannotFill);
    let addresses = addresses(&all);
    at_once(all, |mut process| {
        let (mut group, _, _) = process.join(1, &[0, 1, 2], &addresses, config());
        let mut values = vec![1.0_f32; LONG];
        let error = group.all_reduce(&mut values, ReduceOp::Sum).unwrap_err();
        assert_eq!(values, vec![1.0; LONG]);
        // All are alive, and none waited for its deadline.
        assert_eq!(error.culprit(), None, "{error}");
        let said = error.to_string();
        assert!(said.contains("an illegal memory access") && !said.contains("deadline"), "{said}");
        assert_eq!(said.contains("rank 2: an illegal"), process.me != 2, "{said}");
        group.leave();
        if process.me < 2 {
            let (mut group, _, _) = process.join(2, &[0, 1], &addresses, config());
            assert_sums(&mut group, &[0, 1], process.me);
            group.leave();
        }
    });
}

#[test]
fn a_member_that_dies_within_a_call_is_named_by_the_others() {
    let (_, all) = with_a_fault(Fault::Dies);
    let addresses = addresses(&all);
    at_once(all, |mut process| {
        let (mut group, _, _) = process.join(1, &[0, 1, 2], &addresses, config());
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
fn a_stream_that_hangs_ends_the_call_at_the_deadline_on_all_members() {
    let (_, all) = with_a_fault(Fault::Hangs);
    let addresses = addresses(&all);
    let short = CommunicatorConfig { timeout: SHORT, ..config() };
    at_once(all, |mut process| {
        let (mut group, _, _) = process.join(1, &[0, 1, 2], &addresses, short);
        let mut values = vec![1.0_f32; LONG];
        let error = group.all_reduce(&mut values, ReduceOp::Sum).unwrap_err();
        assert!(error.to_string().contains("over CUDA IPC (not done at the deadline)"), "{error}");
        assert_eq!(values, vec![1.0; LONG]);
        group.leave();
    });
}

#[test]
fn an_abort_ends_a_call_and_a_unanimous_call_counts_for_all_or_none() {
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
        group.leave();
        let (mut group, resolution, _) = process.join(2, &[0, 1], &addresses, unanimous);
        assert_eq!(resolution, Resolution::Level);
        assert_sums(&mut group, &[0, 1], process.me);
        group.leave();
    });
}

#[test]
fn members_on_two_hosts_and_members_that_cannot_open_a_window_go_over_messages() {
    for elsewhere in [true, false] {
        let (machine, mut all) = processes(2);
        all.push(match elsewhere {
            true => {
                let gpu = ThreadGpu { machine: Arc::clone(&machine), host: 2, fault: Fault::Nothing };
                Process::new(2, Ok(Ipc::new(gpu)))
            }
            false => process(&machine, 2, Fault::CannotOpen),
        });
        let addresses = addresses(&all);
        at_once(all, |mut process| {
            let (mut group, _, _) = process.join(1, &[0, 1, 2], &addresses, config());
            let told = process.backend.told.clone().unwrap();
            let expected =
                if elsewhere { "is on another host than rank 0" } else { "peer access is not supported" };
            assert!(told.contains(expected), "{told}");
            assert_sums(&mut group, &[0, 1, 2], process.me);
            group.leave();
        });
        assert_eq!(machine.reductions.load(Ordering::Relaxed), 0);
    }
}
