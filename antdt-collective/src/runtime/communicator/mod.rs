//! The communicator of this crate: it executes schedules over a transport.

mod buffer;
mod collectives;
mod config;
mod copying;
mod execution;
mod fit;
mod history;
mod lending;
mod pair;
mod slices;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt_core::Rank;

pub use buffer::{CommunicatorBuffer, Halves};
pub use collectives::Communicator;
pub(in crate::runtime) use collectives::forward;
pub use config::CommunicatorConfig;
use copying::Copies;
pub use copying::CopyRole;
pub use copying::copy_by_broadcast;
use execution::Execution;
pub use history::{History, JoinError};
use lending::Operand;
#[cfg(any(test, feature = "testing"))]
pub(in crate::runtime) use slices::slice_len;

use super::region::Region;
use super::transport::{Exchange, Transfer, Transport};
use crate::element::{Element, ElementType};
use crate::elements::{Elements, ElementsMut, with_float, with_type};
use crate::error::CollectiveError;
use crate::frame::{Operation, OperationKind, Tag};
use crate::group::Group;
use crate::kernel;
use crate::op::ReduceOp;
use crate::patience::Patience;
use crate::schedule::{
    Algorithm, AllToAll, BinomialBroadcast, ChainBroadcast, Choice, CostModel, DirectScatter, Dissemination,
    Gather, Hierarchical, Relay, RingScatter, Scatter, Schedule, select_all_gather, spans_of, split_even,
};
use crate::weighted::{Weighed, WeightedMean};

/// Bytes passed on at a time in a broadcast. Shorter ones fill the chain sooner; each costs a round.
const BROADCAST_SEGMENT: usize = 1 << 20;

/// Shorter buffers are a matter of latency, and hosts do not matter then.
pub(in crate::runtime) const HOSTS_MIN_BYTES: usize = 64 << 10;

/// Members up to which a barrier is one round of all ranks with all ranks.
const BARRIER_DIRECT_MAX: u32 = 8;

/// The round of the votes of a unanimous call: after all others.
const VOTE_ROUND: u32 = u32::MAX;

/// A [`Communicator`] that executes schedules over a transport.
#[derive(Debug)]
pub struct ScheduledCommunicator<T> {
    transport: T,
    // Those of the transport's group, which a call asks for many times.
    me: Rank,
    world: u32,
    config: CommunicatorConfig,
    cost: CostModel,
    // Bytes of the last call without a choice of its own, and what was resolved for it.
    last_choice: Option<(usize, Choice)>,
    // Where some members share a host, and not all.
    hosts: Option<Arc<Hierarchical>>,
    sequence: u64,
    patience: Patience,
    // Where calls in place keep what was there, or make what will be.
    target: Option<Region>,
    // Where what lies on a GPU is reduced.
    staged: Option<Halves>,
    // Every member's block of the shortest calls; 8-byte aligned.
    blocks: Vec<u64>,
    // Messages that wait to be folded; 8-byte aligned.
    apart: Vec<u64>,
    // Unanimous calls whose result was taken over.
    committed: u64,
    // The call after these has its result here, and may count or not.
    open: bool,
    // The result of such a call of an earlier group, in place, once it counts.
    kept: Option<Region>,
}

/// How an all-reduce is done.
#[derive(Clone, Copy)]
enum Way<'a> {
    Gather,
    Hosts,
    By(&'a dyn Algorithm),
}

impl<T: Transport> ScheduledCommunicator<T> {
    /// Returns a communicator that owns its transport.
    pub fn new(transport: T, config: CommunicatorConfig) -> Self {
        let cost = transport.cost();
        let hosts = transport.hosts().filter(|hosts| {
            let distinct = hosts.iter().collect::<BTreeSet<_>>().len();
            distinct > 1 && distinct < hosts.len()
        });
        let hosts = hosts.map(|hosts| Arc::new(Hierarchical { hosts: hosts.to_vec() }));
        let (me, world) = (transport.group().me(), transport.group().world());
        Self {
            transport,
            me,
            world,
            config,
            cost,
            last_choice: None,
            hosts,
            sequence: 0,
            patience: Patience::new(config.patience),
            target: None,
            staged: None,
            blocks: Vec::new(),
            apart: Vec::new(),
            committed: 0,
            open: false,
            kept: None,
        }
    }

    /// Sets the timeout of calls that begin from now on, in place of [`CommunicatorConfig::timeout`].
    pub const fn set_timeout(&mut self, timeout: Duration) {
        self.config.timeout = timeout;
    }

    /// Returns the bytes that this rank sent to each other member since the last call, and the time that the
    /// network took for them; see [`Transport::transfers`].
    pub fn transfers(&mut self) -> Vec<Transfer> {
        self.transport.transfers()
    }

    /// Returns the cost model by which the communicator chooses algorithms: the transport's default until it
    /// was [measured](Self::fit).
    pub const fn cost(&self) -> &CostModel {
        &self.cost
    }

    /// All-reduces `data` by another choice of algorithm than the configured one. All members must pass the
    /// same choice.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce_by<E: Element>(
        &mut self,
        choice: Choice,
        data: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        self.reduce_in_place(self.way_of(choice, size_of_val(data)), data, op)
    }

    /// All-reduces `data` by an algorithm that the caller provides. All members must pass the same algorithm,
    /// whose code no other algorithm may have.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce_with<E: Element>(
        &mut self,
        algorithm: &dyn Algorithm,
        data: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        self.reduce_in_place(Way::By(algorithm), data, op)
    }

    const fn me(&self) -> Rank {
        self.me
    }

    const fn world(&self) -> u32 {
        self.world
    }

    // `bytes` tells calls of different length apart where their usual time is concerned.
    fn begin(&mut self, operation: Operation, bytes: usize) -> Exchange {
        self.sequence += 1;
        self.transport.check();
        let started = Instant::now();
        let membership = self.transport.group().membership();
        let limit = self.patience.limit(bytes, self.config.timeout / 6, self.config.timeout);
        Exchange {
            tag: Tag { membership, sequence: self.sequence, round: 0, operation },
            started,
            deadline: started + limit,
            stall: limit / 4,
        }
    }

    fn begin_reduce<E: Element>(
        &mut self,
        kind: OperationKind,
        algorithm: u8,
        len: usize,
        op: ReduceOp,
    ) -> Result<Exchange, CollectiveError> {
        if self.open {
            // Its result is kept where this call would have its own.
            let what = "a call whose outcome is open comes first; leave this group, and join the next one";
            return Err(self.refuse(what.to_owned()));
        }
        if op == ReduceOp::Mean && !E::DIVIDES {
            return Err(self.refuse(no_mean_of(E::TYPE)));
        }
        let operation = Operation { kind, element: E::TYPE, op, algorithm, root: Rank(0), len: len as u64 };
        Ok(self.begin(operation, len * size_of::<E>()))
    }

    fn way(&mut self, len_bytes: usize) -> Way<'static> {
        let choice = self.config.algorithm;
        if self.hosts_first(choice, len_bytes) {
            return Way::Hosts;
        }
        let resolved = match self.last_choice {
            // Most calls are of the length of the call before.
            Some((last, resolved)) if last == len_bytes => resolved,
            _ => choice.resolve(self.world(), len_bytes, &self.cost),
        };
        self.last_choice = Some((len_bytes, resolved));
        Way::of(resolved)
    }

    fn way_of(&self, choice: Choice, len_bytes: usize) -> Way<'static> {
        if self.hosts_first(choice, len_bytes) {
            return Way::Hosts;
        }
        Way::of(choice.resolve(self.world(), len_bytes, &self.cost))
    }

    fn hosts_first(&self, choice: Choice, len_bytes: usize) -> bool {
        choice == Choice::Auto && self.hosts.is_some() && len_bytes > HOSTS_MIN_BYTES
    }

    fn reduce_in_place<E: Element>(
        &mut self,
        way: Way<'_>,
        data: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let call = self.begin_reduce::<E>(OperationKind::AllReduce, way.code(), data.len(), op)?;
        if matches!(way, Way::Gather) && !self.config.unanimous && self.world() > 1 && !data.is_empty() {
            // Nothing is written before all is there.
            self.gather_blocks(&call, bytemuck::cast_slice(data))?;
            self.fold_blocks(data, op);
            self.observe(&call, size_of_val(data));
            return Ok(());
        }
        if self.world() == 1 {
            return self.conclude(&call, size_of_val(data));
        }
        if data.is_empty() {
            // As in `make`.
            self.meet(&call)?;
        }
        let slice = self.slice_len::<E>(way, data.len());
        self.in_place(call, slice, data, |this, call, piece| this.reduce_piece(call, way, piece, op))
    }

    // The result where the operand was.
    fn reduce_piece<E: Element>(
        &mut self,
        call: &mut Exchange,
        way: Way<'_>,
        piece: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        if matches!(way, Way::Gather) {
            self.gather_blocks(call, bytemuck::cast_slice(piece))?;
            self.fold_blocks(piece, op);
            return Ok(());
        }
        let schedule = self.schedule(way, piece.len());
        Execution::within(piece, op, &mut self.apart).run(&mut self.transport, call, &schedule)?;
        if op == ReduceOp::Mean {
            kernel::divide(piece, self.world());
        }
        Ok(())
    }

    fn reduce_into<E: Element>(
        &mut self,
        data: &[E],
        into: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let way = self.way(size_of_val(data));
        let call = self.begin_reduce::<E>(OperationKind::AllReduce, way.code(), data.len(), op)?;
        self.make(&call, way, data, into, op)?;
        self.conclude(&call, size_of_val(data))
    }

    // Two ranks in one memory reduce long buffers by themselves. A unanimous call needs its result apart.
    fn is_pair(&self, len_bytes: usize) -> bool {
        self.config.algorithm == Choice::Auto
            && len_bytes >= pair::MIN_BYTES
            && self.world() == 2
            && self.transport.lends()
            && !self.config.unanimous
    }

    // Ranks in one memory reduce what is long enough by themselves.
    fn is_lending(&self, len_bytes: usize) -> bool {
        self.config.algorithm == Choice::Auto
            && self.world() > 1
            && len_bytes / self.world() as usize >= lending::CHUNK_MIN_BYTES
            && self.transport.lends()
    }

    fn reduce_lending<E: Element>(&mut self, data: &mut [E], op: ReduceOp) -> Result<(), CollectiveError> {
        let call = self.begin_reduce::<E>(OperationKind::AllReduce, lending::CODE, data.len(), op)?;
        self.with_target(data.len(), |this, target| {
            lending::run(&mut this.transport, &call, Operand::Elsewhere(data), target, op)?;
            this.conclude(&call, size_of_val(data))?;
            kernel::copy(bytemuck::cast_slice_mut(data), bytemuck::cast_slice(target));
            Ok(())
        })
    }

    fn reduce_as_pair<E: Element>(&mut self, data: &mut [E], op: ReduceOp) -> Result<(), CollectiveError> {
        let call = self.begin_reduce::<E>(OperationKind::AllReduce, pair::CODE, data.len(), op)?;
        self.with_target(data.len(), |this, log| {
            pair::run(&mut this.transport, call, data, log, op)?;
            if op == ReduceOp::Mean {
                kernel::divide(data, 2);
            }
            this.conclude(&call, size_of_val(data))
        })
    }

    // Lends the memory beside calls in place.
    fn with_target<E: Element, R>(
        &mut self,
        len: usize,
        work: impl FnOnce(&mut Self, &mut [E]) -> Result<R, CollectiveError>,
    ) -> Result<R, CollectiveError> {
        let len_bytes = len * size_of::<E>();
        let mut target = match self.target.take().filter(|target| target.len() >= len_bytes) {
            Some(target) => target,
            None => {
                let target = self.transport.region(len_bytes);
                target.map_err(|error| self.transport.fail(error))?
            }
        };
        let result = work(self, bytemuck::cast_slice_mut(&mut target[..len_bytes]));
        // What was lent in vain may still be written. What is kept of an open call was all there.
        self.target = (result.is_ok() || self.open).then_some(target);
        result
    }

    // One half into the other one.
    fn reduce_halves<E: Element>(
        &mut self,
        halves: &mut Halves,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        if halves.device_parts().is_some() {
            return self.reduce_staged::<E>(halves, op);
        }
        if !halves.is_of(&self.transport) {
            let len_bytes = halves.parts().0.len();
            let mut moved = self.halves(len_bytes).map_err(|error| self.transport.fail(error))?;
            moved.live_mut().copy_from_slice(halves.live());
            *halves = moved;
        }
        let (data, into) = halves.parts();
        let (data, into): (&[E], &mut [E]) = (bytemuck::cast_slice(data), bytemuck::cast_slice_mut(into));
        if self.is_lending(size_of_val(data)) {
            let call = self.begin_reduce::<E>(OperationKind::AllReduce, lending::CODE, data.len(), op)?;
            let made = lending::run(&mut self.transport, &call, Operand::Owned(data), into, op);
            if let Err(error) = made {
                halves.forsake();
                return Err(error);
            }
            self.conclude(&call, size_of_val(data))?;
        } else {
            self.reduce_into(data, into, op)?;
        }
        halves.adopt();
        Ok(())
    }

    // What lies on a GPU, through memory of the transport.
    fn reduce_staged<E: Element>(
        &mut self,
        halves: &mut Halves,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let len_bytes = halves.len_bytes();
        if self.world() == 1 {
            // The sum of one is where it was.
            let way = self.way(len_bytes);
            let call =
                self.begin_reduce::<E>(OperationKind::AllReduce, way.code(), len_bytes / size_of::<E>(), op)?;
            return self.conclude(&call, len_bytes);
        }
        let kept = self.staged.take().filter(|staged| staged.len_bytes() == len_bytes);
        let staged = match kept {
            Some(staged) if staged.is_of(&self.transport) => Ok(staged),
            _ => self.halves(len_bytes),
        };
        let mut staged = staged.map_err(|error| self.transport.fail(error))?;
        let copied = match halves.device_parts() {
            Some((live, _)) => live.read(staged.live_mut()),
            None => Ok(()),
        };
        copied.map_err(|error| self.transport.fail(error))?;
        let reduced = self.reduce_halves::<E>(&mut staged, op);
        // The result of a call whose outcome is open is kept where it would be taken over from.
        let result = match &reduced {
            Ok(()) => Some(staged.live()),
            Err(_) if self.open => Some(&*staged.parts().1),
            Err(_) => None,
        };
        if let (Some(result), Some((_, spare))) = (result, halves.device_parts()) {
            spare.write(result).map_err(|error| self.transport.fail(error))?;
        }
        reduced?;
        halves.adopt();
        self.staged = Some(staged);
        Ok(())
    }

    // The result, in `into`.
    fn make<E: Element>(
        &mut self,
        call: &Exchange,
        way: Way<'_>,
        from: &[E],
        into: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let world = self.world();
        if world == 1 {
            into.copy_from_slice(from);
            return Ok(());
        }
        if from.is_empty() {
            // Nothing to send, but a member with another length must find out.
            return self.meet(call);
        }
        match way {
            Way::Gather => {
                self.gather_blocks(call, bytemuck::cast_slice(from))?;
                self.fold_blocks(into, op);
            }
            Way::By(_) | Way::Hosts => {
                let (mut call, slice) = (*call, self.slice_len::<E>(way, from.len()));
                for (from, into) in from.chunks(slice).zip(into.chunks_mut(slice)) {
                    let schedule = self.schedule(way, from.len());
                    let execution = Execution::into(from, into, op, &mut self.apart);
                    execution.run(&mut self.transport, &mut call, &schedule)?;
                    if op == ReduceOp::Mean {
                        kernel::divide(into, world);
                    }
                }
            }
        }
        Ok(())
    }

    fn schedule(&self, way: Way<'_>, len: usize) -> Schedule {
        let algorithm: &dyn Algorithm = match way {
            Way::By(algorithm) => algorithm,
            Way::Hosts => &**self.hosts.as_ref().expect("chosen only where hosts are known"),
            // All is gathered and nothing left to be sent.
            Way::Gather => return Schedule::default(),
        };
        algorithm.schedule(self.me(), self.world(), len)
    }

    // All have the result, or are told so.
    fn conclude(&mut self, call: &Exchange, bytes: usize) -> Result<(), CollectiveError> {
        if self.config.unanimous {
            self.open = true;
            let vote = Exchange { tag: Tag { round: VOTE_ROUND, ..call.tag }, ..*call };
            let mut votes = vec![1; self.world() as usize];
            self.transport.all_gather(&vote, &mut votes)?;
            self.open = false;
            self.committed += 1;
        }
        self.observe(call, bytes);
        Ok(())
    }

    fn observe(&mut self, call: &Exchange, bytes: usize) {
        self.patience.observe(bytes, call.started.elapsed());
        self.transport.check();
    }

    // Every member's `mine`, in `self.blocks` by rank.
    fn gather_blocks(&mut self, call: &Exchange, mine: &[u8]) -> Result<(), CollectiveError> {
        let (me, world) = (self.me().0 as usize, self.world() as usize);
        let bytes = mine.len() * world;
        self.blocks.resize(self.blocks.len().max(bytes.div_ceil(8)), 0);
        let blocks = &mut bytemuck::cast_slice_mut(&mut self.blocks)[..bytes];
        blocks[me * mine.len()..][..mine.len()].copy_from_slice(mine);
        self.transport.all_gather(call, blocks)
    }

    // Combines what was gathered, in order of rank.
    fn fold_blocks<E: Element>(&self, into: &mut [E], op: ReduceOp) {
        let (len, world) = (into.len(), self.world());
        let blocks = &bytemuck::cast_slice::<u64, u8>(&self.blocks)[..size_of_val(into) * world as usize];
        let mut blocks = bytemuck::cast_slice::<u8, E>(blocks).chunks_exact(len);
        into.copy_from_slice(blocks.next().expect("a group has members"));
        for block in blocks {
            kernel::reduce(op, into, block);
        }
        if op == ReduceOp::Mean {
            kernel::divide(into, world);
        }
    }

    // No rank returns before all have come, with the same operation.
    fn meet(&mut self, call: &Exchange) -> Result<(), CollectiveError> {
        let world = self.world();
        if world <= BARRIER_DIRECT_MAX {
            return self.transport.all_gather(call, &mut vec![0; world as usize]);
        }
        let schedule = Dissemination.schedule(self.me(), world, 1);
        self.execute(*call, &schedule, &mut [0_u8])
    }

    // Every member's number, by rank.
    fn numbers(&mut self, call: &Exchange, mine: u64) -> Result<Vec<u64>, CollectiveError> {
        self.gather_blocks(call, &mine.to_ne_bytes())?;
        Ok(self.blocks[..self.world() as usize].to_vec())
    }

    // Fails here and tells the others why.
    fn refuse(&mut self, what: String) -> CollectiveError {
        self.transport.fail(CollectiveError::Invalid { what })
    }

    fn check_root(&mut self, root: Rank) -> Result<(), CollectiveError> {
        if root.0 >= self.world() {
            return Err(self.refuse(format!("root {root} does not exist, the group has {}", self.world())));
        }
        Ok(())
    }

    fn check_blocks(&mut self, blocks: &[Vec<u8>]) -> Result<(), CollectiveError> {
        if blocks.len() != self.world() as usize {
            let what = format!("{} blocks; one for each of {} members is needed", blocks.len(), self.world());
            return Err(self.refuse(what));
        }
        Ok(())
    }

    fn checked_len(&mut self, lens: &[u64]) -> Result<usize, CollectiveError> {
        let total = lens.iter().try_fold(0_u64, |sum, len| sum.checked_add(*len));
        let most = self.config.bytes_max;
        match total.filter(|total| *total <= most).and_then(|total| usize::try_from(total).ok()) {
            Some(total) => Ok(total),
            None => {
                Err(self.refuse(format!("messages of {lens:?} bytes, at most {most} in all are accepted")))
            }
        }
    }

    // As `checked_len`, with all lengths as what they are in memory.
    fn checked_blocks(&mut self, lens: &[u64]) -> Result<Vec<usize>, CollectiveError> {
        self.checked_len(lens)?;
        #[allow(clippy::cast_possible_truncation, reason = "their sum fits")]
        Ok(lens.iter().map(|len| *len as usize).collect())
    }

    // How so many bytes of a root get to all others.
    fn broadcasting(&self, root: Rank, len: usize) -> Schedule {
        let algorithm: &dyn Algorithm = if len <= self.cost.burst.min(BROADCAST_SEGMENT) {
            &BinomialBroadcast { root }
        } else {
            &ChainBroadcast { root, segment: BROADCAST_SEGMENT }
        };
        algorithm.schedule(self.me(), self.world(), len)
    }

    fn execute(
        &mut self,
        mut call: Exchange,
        schedule: &Schedule,
        bytes: &mut [u8],
    ) -> Result<(), CollectiveError> {
        Execution::within(bytes, ReduceOp::Max, &mut self.apart).run(&mut self.transport, &mut call, schedule)
    }
}

impl Way<'static> {
    // That of a resolved choice.
    fn of(resolved: Choice) -> Self {
        resolved.algorithm().map_or(Self::Gather, Self::By)
    }
}

impl Way<'_> {
    fn code(self) -> u8 {
        match self {
            Self::Gather => Choice::Gather.code(),
            Self::Hosts => Hierarchical::CODE,
            Self::By(algorithm) => algorithm.code(),
        }
    }
}

// The exchange of what follows the first round of a call.
const fn then(call: Exchange) -> Exchange {
    Exchange { tag: Tag { round: 1, ..call.tag }, ..call }
}

impl<T: Transport> Communicator for ScheduledCommunicator<T> {
    fn group(&self) -> &Group {
        self.transport.group()
    }

    fn all_reduce_elements(&mut self, data: ElementsMut<'_>, op: ReduceOp) -> Result<(), CollectiveError> {
        with_type!(data.element(), E => self.all_reduce(data.slice::<E>(), op))
    }

    fn all_reduce_elements_into(
        &mut self,
        data: Elements<'_>,
        into: ElementsMut<'_>,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        with_type!(data.element(), E => self.all_reduce_into(data.slice::<E>(), into.slice::<E>(), op))
    }

    fn all_reduce_halves(
        &mut self,
        halves: &mut Halves,
        element: ElementType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        with_type!(element, E => self.reduce_halves::<E>(halves, op))
    }

    fn reduce_scatter_elements(
        &mut self,
        data: Elements<'_>,
        mine: ElementsMut<'_>,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        with_type!(data.element(), E => {
            mine.slice::<E>().copy_from_slice(&self.reduce_scatter(data.slice::<E>(), op)?);
            Ok(())
        })
    }

    fn all_reduce<E: Element>(&mut self, data: &mut [E], op: ReduceOp) -> Result<(), CollectiveError> {
        let len_bytes = size_of_val(data);
        if self.is_pair(len_bytes) {
            return self.reduce_as_pair(data, op);
        }
        if self.is_lending(len_bytes) {
            return self.reduce_lending(data, op);
        }
        let way = self.way(len_bytes);
        self.reduce_in_place(way, data, op)
    }

    fn all_reduce_into<E: Element>(
        &mut self,
        data: &[E],
        into: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        if data.len() != into.len() {
            let what = format!("an all-reduce of {} elements into {}", data.len(), into.len());
            return Err(self.refuse(what));
        }
        if self.is_lending(size_of_val(data)) {
            let call = self.begin_reduce::<E>(OperationKind::AllReduce, lending::CODE, data.len(), op)?;
            return self.with_target(data.len(), |this, target| {
                lending::run(&mut this.transport, &call, Operand::Elsewhere(data), target, op)?;
                kernel::copy(bytemuck::cast_slice_mut(into), bytemuck::cast_slice(target));
                this.conclude(&call, size_of_val(data))
            });
        }
        self.reduce_into(data, into, op)
    }

    fn halves(&mut self, len_bytes: usize) -> Result<Halves, CollectiveError> {
        Ok(Halves::new(self.transport.region(len_bytes)?, self.transport.region(len_bytes)?))
    }

    fn all_reduce_buffer<E: Element>(
        &mut self,
        buffer: &mut CommunicatorBuffer<E>,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        self.reduce_halves::<E>(buffer.as_halves(), op)
    }

    fn reduce_scatter<E: Element>(&mut self, data: &[E], op: ReduceOp) -> Result<Vec<E>, CollectiveError> {
        let (me, world) = (self.me(), self.world());
        let spans = split_even(data.len(), world as usize);
        let blocks = spans.iter().map(|span| span.len).collect();
        let algorithm: &dyn Algorithm = if size_of_val(data) <= self.cost.burst {
            &DirectScatter { blocks }
        } else {
            &RingScatter { blocks }
        };
        let mut call =
            self.begin_reduce::<E>(OperationKind::ReduceScatter, algorithm.code(), data.len(), op)?;
        if data.is_empty() {
            self.meet(&call)?;
            return Ok(Vec::new());
        }
        let schedule = algorithm.schedule(me, world, data.len());
        self.with_target(data.len(), |this, target| {
            let execution = Execution::into(data, target, op, &mut this.apart);
            execution.run(&mut this.transport, &mut call, &schedule)?;
            this.observe(&call, size_of_val(data));
            let mut mine = target[spans[me.0 as usize].range()].to_vec();
            if op == ReduceOp::Mean {
                kernel::divide(&mut mine, world);
            }
            Ok(mine)
        })
    }

    fn all_gather_v(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let call = self.begin(Operation::plain(OperationKind::AllGather), mine.len());
        let lens = self.numbers(&call, mine.len() as u64)?;
        let blocks = self.checked_blocks(&lens)?;
        let spans = spans_of(&blocks);
        let mut gathered = vec![0_u8; blocks.iter().sum()];
        gathered[spans[self.me().0 as usize].range()].copy_from_slice(mine);
        let schedule =
            select_all_gather(&blocks, &self.cost).schedule(self.me(), self.world(), gathered.len());
        self.execute(then(call), &schedule, &mut gathered)?;
        self.observe(&call, mine.len());
        Ok(spans.iter().map(|span| gathered[span.range()].to_vec()).collect())
    }

    fn gather_v(&mut self, root: Rank, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.check_root(root)?;
        let me = self.me();
        let call = self.begin(Operation { root, ..Operation::plain(OperationKind::Gather) }, mine.len());
        let lens = self.numbers(&call, mine.len() as u64)?;
        let blocks = self.checked_blocks(&lens)?;
        let schedule = Gather { root, blocks: blocks.clone() }.schedule(me, self.world(), 0);
        if me != root {
            // A copy, since what is executed may write.
            self.execute(then(call), &schedule, &mut mine.to_vec())?;
            return Ok(Vec::new());
        }
        let spans = spans_of(&blocks);
        let mut gathered = vec![0_u8; blocks.iter().sum()];
        gathered[spans[me.0 as usize].range()].copy_from_slice(mine);
        self.execute(then(call), &schedule, &mut gathered)?;
        Ok(spans.iter().map(|span| gathered[span.range()].to_vec()).collect())
    }

    fn scatter_v(&mut self, root: Rank, blocks: &[Vec<u8>]) -> Result<Vec<u8>, CollectiveError> {
        self.check_root(root)?;
        let (me, world) = (self.me(), self.world() as usize);
        if me == root {
            self.check_blocks(blocks)?;
        }
        let call = self.begin(Operation { root, ..Operation::plain(OperationKind::Scatter) }, 0);
        // Each rank learns the lengths of all blocks from the root: of what the others say, nothing is used.
        let mut lens = vec![0_u8; 8 * world];
        if me == root {
            for (place, block) in lens.chunks_exact_mut(8).zip(blocks) {
                place.copy_from_slice(&(block.len() as u64).to_le_bytes());
            }
        }
        self.gather_blocks(&call, &lens)?;
        let lens = self.blocks[root.0 as usize * world..][..world].to_vec();
        let lens = self.checked_blocks(&lens)?;
        let schedule = Scatter { root, blocks: lens.clone() }.schedule(me, self.world(), 0);
        let mut bytes = if me == root { blocks.concat() } else { vec![0; lens[me.0 as usize]] };
        self.execute(then(call), &schedule, &mut bytes)?;
        Ok(if me == root { blocks[me.0 as usize].clone() } else { bytes })
    }

    fn all_to_all_v(&mut self, blocks: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.check_blocks(blocks)?;
        let (me, world) = (self.me(), self.world());
        let n = world as usize;
        let out: Vec<usize> = blocks.iter().map(Vec::len).collect();
        let call = self.begin(Operation::plain(OperationKind::AllToAll), out.iter().sum());
        // The lengths first, as blocks of 8 bytes each.
        let mut lens: Vec<u64> = out.iter().map(|len| *len as u64).chain((0..world).map(|_| 0)).collect();
        lens[n + me.0 as usize] = lens[me.0 as usize];
        let lengths = AllToAll { out: vec![8; n], into: vec![8; n] }.schedule(me, world, 0);
        self.execute(call, &lengths, bytemuck::cast_slice_mut(&mut lens))?;
        let into = self.checked_blocks(&lens[n..])?;
        let sent: usize = out.iter().sum();
        let mut bytes = blocks.concat();
        bytes.resize(sent + into.iter().sum::<usize>(), 0);
        let schedule = AllToAll { out, into: into.clone() }.schedule(me, world, 0);
        let call = Exchange { tag: Tag { round: world, ..call.tag }, ..call };
        self.execute(call, &schedule, &mut bytes)?;
        let mut received: Vec<Vec<u8>> =
            spans_of(&into).iter().map(|span| bytes[sent..][span.range()].to_vec()).collect();
        received[me.0 as usize].copy_from_slice(&blocks[me.0 as usize]);
        Ok(received)
    }

    fn broadcast(&mut self, root: Rank, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.check_root(root)?;
        let call = self.begin(Operation { root, ..Operation::plain(OperationKind::Broadcast) }, 0);
        // All exchange lengths first: members that disagree about the root find out.
        let lens = self.numbers(&call, bytes.len() as u64)?;
        let len = self.checked_len(&[lens[root.0 as usize]])?;
        let schedule = self.broadcasting(root, len);
        if self.me() == root {
            return self.execute(then(call), &schedule, bytes);
        }
        let mut received = vec![0; len];
        self.execute(then(call), &schedule, &mut received)?;
        *bytes = received;
        Ok(())
    }

    fn copy(&mut self, role: CopyRole<'_>) -> Result<(), CollectiveError> {
        let call = self.begin(Operation::plain(OperationKind::Copy), 0);
        // All meet first, in one round: members of which one lacks bytes that none has, or other lengths, find out.
        let numbers = self.numbers(&call, role.number())?;
        let copies = Copies::agreed(&numbers, self.transport.group());
        let Copies { givers, takers, len } = copies.map_err(|error| self.transport.fail(error))?;
        let len = self.checked_len(&[len])?;
        let relay = Relay { givers, takers, segment: BROADCAST_SEGMENT };
        let schedule = relay.schedule(self.me(), self.world(), len);
        match role {
            CopyRole::Gives(mine) => Execution::into(mine, &mut [], ReduceOp::Max, &mut self.apart).run(
                &mut self.transport,
                &mut then(call),
                &schedule,
            ),
            CopyRole::Takes(into) => self.execute(then(call), &schedule, into),
            CopyRole::Neither => Ok(()),
        }
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        let call = self.begin(Operation::plain(OperationKind::Barrier), 0);
        self.meet(&call)
    }

    fn attend(&mut self) {
        self.transport.attend();
    }

    fn weighted_mean_elements(
        &mut self,
        data: ElementsMut<'_>,
        weight: f64,
    ) -> Result<WeightedMean, CollectiveError> {
        let element = data.element();
        with_float!(element, E => self.average::<E>(data.slice(), weight), else => {
            Err(self.refuse(no_mean_of(element)))
        })
    }
}

impl<T: Transport> ScheduledCommunicator<T> {
    fn average<E: Weighed>(&mut self, data: &mut [E], weight: f64) -> Result<WeightedMean, CollectiveError> {
        if !weight.is_finite() || weight < 0.0 {
            return Err(self.refuse(format!("a weight of {weight}; it must be finite and not negative")));
        }
        // What goes over the network are the sums.
        let way = self.way(data.len() * size_of::<E::Sum>());
        let call =
            self.begin_reduce::<E>(OperationKind::AllReduce, way.code(), data.len(), ReduceOp::Mean)?;
        // Weights of all members are known before any of their values: they are those of every chunk.
        let weights = self.numbers(&call, weight.to_bits())?;
        let total: f64 = weights.iter().map(|bits| f64::from_bits(*bits)).sum();
        if total == 0.0 {
            self.conclude(&call, size_of_val(data))?;
            return Ok(WeightedMean::NoWeight);
        }
        let alone = self.world() == 1;
        let slice = self.slice_len::<E::Sum>(way, data.len());
        self.in_place(then(call), slice, data, |this, call, piece| {
            E::average(piece, weight, total, |sums| {
                if alone { Ok(()) } else { this.reduce_piece(call, way, sums, ReduceOp::Sum) }
            })
        })?;
        Ok(WeightedMean::Averaged { total })
    }
}

fn no_mean_of(element: ElementType) -> String {
    format!("a mean of {element}; add them up and divide as you need it")
}

#[cfg(test)]
mod tests;
