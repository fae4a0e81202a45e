//! A group whose long messages a library between GPUs moves.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use antdt_collective::element::{Element, ElementType};
use antdt_collective::elements::{Elements, ElementsMut, with_type};
use antdt_collective::frame::{Operation, OperationKind};
use antdt_collective::kernel;
use antdt_collective::op::ReduceOp;
use antdt_collective::runtime::communicator::{CopyRole, copy_by_broadcast};
use antdt_collective::runtime::process_group::ProcessGroup;
use antdt_collective::runtime::{AbortHandle, Communicator, CommunicatorConfig, Halves, Transfer};
use antdt_collective::schedule::split_even;
use antdt_collective::weighted::WeightedMean;
use antdt_collective::{CollectiveError, Group};
use antdt_core::Rank;

use super::backend::{Home, Kept};
use super::bulk::{Bulk, BulkError, Job, Patience, size_of_element};
use crate::device::{Last, Terms};

/// Shorter calls on memory of the host go over the group below: two copies to a GPU and back, and its own start, take longer than they
/// do. Not measured, for want of a GPU: some 30 µs at 20 GB/s. What lies on the GPUs of all members is reduced there, however short.
pub(in crate::runtime) const BULK_MIN_BYTES: usize = 256 << 10;

/// Where a member has the memory that is to be reduced: on the host, on a GPU where the library reaches it, or on a GPU where
/// it does not.
const ON_HOST: u64 = 0;
const ON_DEVICE: u64 = 1;
const UNREACHABLE: u64 = 2;

/// A [`ProcessGroup`] that has another one below, for what is short, for agreement before a call, and for the verdict after
/// one that failed.
pub(in crate::runtime) struct DeviceGroup<C: Bulk + 'static> {
    below: Box<dyn ProcessGroup>,
    comm: Option<C>,
    home: Home,
    terms: Terms,
    config: CommunicatorConfig,
    abort: AbortHandle,
    failed: Option<CollectiveError>,
    // The result of an all-reduce in place of this group whose outcome is open, and of the last one once it counts.
    open: Option<Vec<u8>>,
    adoptable: Option<Vec<u8>>,
    kept: Arc<Mutex<Kept<C>>>,
}

impl<C: Bulk + 'static> DeviceGroup<C> {
    pub(in crate::runtime) fn new(
        below: Box<dyn ProcessGroup>,
        (comm, home): (Option<C>, Home),
        terms: Terms,
        config: CommunicatorConfig,
        abort: AbortHandle,
        adoptable: Option<Vec<u8>>,
        kept: Arc<Mutex<Kept<C>>>,
    ) -> Self {
        Self { below, comm, home, terms, config, abort, failed: None, open: None, adoptable, kept }
    }

    fn check(&self) -> Result<(), CollectiveError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    // Whether a call of this many bytes, the same on all members, goes over the library.
    const fn is_bulk(&self, len_bytes: usize) -> bool {
        self.comm.is_some() && len_bytes >= BULK_MIN_BYTES
    }

    // Whether messages of so many bytes in all, the same number on all members, go over the library.
    const fn moves(&self, len_bytes: usize) -> bool {
        C::MOVES && self.is_bulk(len_bytes)
    }

    const fn is_bulk_reduce(&self, len_bytes: usize, element: ElementType, op: ReduceOp) -> bool {
        self.is_bulk(len_bytes) && self.is_reducible(element, op)
    }

    // Whether there is a library for this reduction. Minimum and maximum of floats differ: NCCL's pass over a NaN, ours keep it.
    const fn is_reducible(&self, element: ElementType, op: ReduceOp) -> bool {
        let orders = matches!(op, ReduceOp::Min | ReduceOp::Max);
        let whole = matches!(element, ElementType::I32 | ElementType::I64 | ElementType::U8);
        self.comm.is_some() && (whole || !orders)
    }

    // Every member's words about this call, by rank. All make the same call, or all fail.
    fn agree(&mut self, call: Operation, words: &[u64]) -> Result<Vec<Vec<u64>>, CollectiveError> {
        let head = [
            u64::from(call.kind as u8) << 16
                | u64::from(call.element.code()) << 8
                | u64::from(call.op.code()),
            u64::from(call.root.0),
            call.len,
        ];
        // By hand: words, of which the first are only compared.
        let mine: Vec<u8> = head.iter().chain(words).flat_map(|word| word.to_le_bytes()).collect();
        let said = self.below.all_gather_v(&mine)?;
        let read = |bytes: &Vec<u8>| {
            let (words, _) = bytes.as_chunks::<8>();
            words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<u64>>()
        };
        let said: Vec<Vec<u64>> = said.iter().map(read).collect();
        for (rank, theirs) in (0..).map(Rank).zip(&said) {
            if theirs.get(..3) != Some(&head[..]) || theirs.len() != 3 + words.len() {
                let peer = self.below.group().holder(rank);
                let error = CollectiveError::Mismatch {
                    peer,
                    theirs: format!(
                        "a call over {} that begins {:?}",
                        self.terms.library,
                        theirs.get(..3).unwrap_or_default()
                    ),
                    ours: call.to_string(),
                };
                self.failed = Some(error.clone());
                return Err(error);
            }
        }
        Ok(said.into_iter().map(|mut words| words.split_off(3)).collect())
    }

    // Carries out a call whose result `take` reads.
    //
    // All members begin it together, after they have agreed, and wait equally long. What is left of the timeout is for
    // the verdict: a member that fails early waits there for those that are still at it.
    fn run<R>(&mut self, job: &Job<'_>, take: impl FnOnce(&[u8]) -> R) -> Result<R, CollectiveError> {
        let limit = self.config.timeout / 4 * 3;
        let patience = Patience { deadline: Instant::now() + limit, abort: self.abort.clone() };
        let comm = self.comm.as_mut().expect("asked for where there is one");
        match comm.run(job, &mut *self.below, &patience) {
            Ok(result) => Ok(take(result)),
            Err(error) => Err(self.verdict(&error)),
        }
    }

    // What a call of the library failed of. The library does not know; the members of the group below do: who is dead or
    // late does not come to its barrier.
    fn verdict(&mut self, error: &BulkError) -> CollectiveError {
        let judged = match error {
            BulkError::Below(error) => Err(error.clone()),
            _ => self.below.barrier(),
        };
        let error = match judged {
            Err(error) => error,
            Ok(()) => {
                let library = self.terms.library;
                let what = format!("a call over {library} ({error}), of which all members are there");
                CollectiveError::Io { what, kind: std::io::ErrorKind::Other }
            }
        };
        self.failed = Some(error.clone());
        error
    }

    // All members have the result, or are told so. `open` is what an in-place call has to keep until its outcome is known.
    fn conclude(&mut self, open: impl FnOnce() -> Option<Vec<u8>>) -> Result<(), CollectiveError> {
        if self.config.unanimous {
            // The group below takes it for a call of its own, and says in the next group whether it counts.
            let voted = self.below.all_reduce_elements(ElementsMut::of(&mut [1_u8]), ReduceOp::Min);
            if let Err(error) = voted {
                self.open = open();
                self.failed = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    fn invalid(&mut self, what: String) -> CollectiveError {
        let error = CollectiveError::Invalid { what };
        self.failed = Some(error.clone());
        error
    }

    // The reduction of all members' `data`: `take` reads it, if all went well.
    fn reduce(
        &mut self,
        element: ElementType,
        op: ReduceOp,
        data: &[u8],
        take: impl FnOnce(&[u8]),
    ) -> Result<(), CollectiveError> {
        let len = data.len() as u64;
        self.agree(Operation { element, op, len, ..Operation::plain(OperationKind::AllReduce) }, &[])?;
        // A mean is a sum that each member divides, as over any other transport.
        let combined = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
        self.run(&Job::AllReduce { element, op: combined, data }, take)
    }

    // Where this member has what is to be reduced.
    fn side_of(&mut self, halves: &mut Halves, element: ElementType, op: ReduceOp) -> u64 {
        let Some((live, spare)) = halves.device_parts() else {
            // A half that was lent in vain is gone; the group below makes another.
            return if halves.parts().1.len() == halves.len_bytes() { ON_HOST } else { UNREACHABLE };
        };
        let (from, into) = (live.place(), spare.place());
        let divides = op != ReduceOp::Mean || divides(element);
        let reached = self.comm.as_mut().is_some_and(|comm| comm.reaches(&from) && comm.reaches(&into));
        if divides && reached { ON_DEVICE } else { UNREACHABLE }
    }

    // The members have agreed on the call.
    fn reduce_on_device(
        &mut self,
        halves: &mut Halves,
        element: ElementType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let len_bytes = halves.len_bytes();
        if let Some((live, spare)) = halves.device_parts() {
            let (from, into) = (live.place(), spare.place());
            self.run(&Job::OnDevice { element, op, from, into, len_bytes }, |_| ())?;
        }
        self.conclude(|| None)?;
        halves.adopt();
        Ok(())
    }

    fn lens_of(&mut self, said: &[Vec<u64>]) -> Result<Vec<usize>, CollectiveError> {
        let lens: Vec<u64> = said.iter().map(|words| words[0]).collect();
        let total = lens.iter().try_fold(0_u64, |sum, len| sum.checked_add(*len));
        let most = self.config.bytes_max;
        if total.is_none_or(|total| total > most) {
            return Err(
                self.invalid(format!("messages of {lens:?} bytes, at most {most} in all are accepted"))
            );
        }
        Ok(lens.iter().map(|len| usize::try_from(*len).unwrap_or(usize::MAX)).collect())
    }

    fn check_root(&mut self, root: Rank) -> Result<(), CollectiveError> {
        let world = self.below.group().world();
        if root.0 >= world {
            return Err(self.invalid(format!("root {root} does not exist, the group has {world}")));
        }
        Ok(())
    }

    fn me(&self) -> u32 {
        self.below.group().me().0
    }

    fn world(&self) -> u32 {
        self.below.group().world()
    }
}

/// Whether there are means of such elements.
fn divides(element: ElementType) -> bool {
    with_type!(element, E => E::DIVIDES)
}

/// Divides the elements of a sum, where a mean was asked for.
fn divide(op: ReduceOp, element: ElementType, bytes: &mut [u8], world: u32) {
    if op == ReduceOp::Mean {
        with_type!(element, E => kernel::divide::<E>(bytemuck::cast_slice_mut(bytes), world));
    }
}

/// Cuts bytes into blocks of these lengths.
fn blocks(mut bytes: &[u8], lens: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    let mut cut = |len| {
        let (block, rest) = bytes.split_at(len);
        bytes = rest;
        block.to_vec()
    };
    lens.into_iter().map(&mut cut).collect()
}

impl<C: Bulk + 'static> ProcessGroup for DeviceGroup<C> {
    fn fit(&mut self) -> Result<(), CollectiveError> {
        self.check()?;
        self.below.fit()
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.config.timeout = timeout;
        self.below.set_timeout(timeout);
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        self.below.transfers()
    }

    fn adopt(&mut self, mut data: ElementsMut<'_>) -> Result<(), CollectiveError> {
        match self.adoptable.take() {
            Some(result) if result.len() >= data.bytes().len() => {
                let len = data.bytes().len();
                data.bytes().copy_from_slice(&result[..len]);
                // What the group below has for it is the vote.
                self.below.adopt(ElementsMut::of(&mut [0_u8]))
            }
            result => {
                self.adoptable = result;
                self.below.adopt(data)
            }
        }
    }

    fn leave(self: Box<Self>) {
        let group = self.below.group();
        let failed = self.failed.is_some() || self.abort.reason().is_some();
        let last = Last { group: group.fingerprint(), world: group.world(), rank: group.me(), failed };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.open = self.open;
        let given_up = match (self.home, self.comm) {
            (Home::Last, comm) => {
                kept.comm = comm.map(|comm| (comm, last));
                Vec::new()
            }
            (Home::Pool(name), Some(comm)) if !failed => kept.few.keep(group, name, comm),
            (Home::Pool(_), comm) => comm.into_iter().collect(),
        };
        drop(kept);
        drop(given_up);
        self.below.leave();
    }
}

impl<C: Bulk + 'static> Communicator for DeviceGroup<C> {
    fn group(&self) -> &Group {
        self.below.group()
    }

    fn all_reduce_elements(
        &mut self,
        mut data: ElementsMut<'_>,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        self.check()?;
        let element = data.element();
        if !self.is_bulk_reduce(data.bytes().len(), element, op) {
            return self.below.all_reduce_elements(data, op);
        }
        let (bytes, world, unanimous) = (data.bytes(), self.world(), self.config.unanimous);
        if !unanimous {
            let mut made = Vec::new();
            self.reduce(element, op, bytes, |result| made.extend_from_slice(result))?;
            kernel::copy(bytes, &made);
            divide(op, element, bytes, world);
            return Ok(());
        }
        let mut made = vec![0_u64; bytes.len().div_ceil(8)];
        let made = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut made)[..bytes.len()];
        self.reduce(element, op, bytes, |result| made.copy_from_slice(result))?;
        divide(op, element, made, world);
        self.conclude(|| Some(made.to_vec()))?;
        kernel::copy(bytes, made);
        Ok(())
    }

    fn all_reduce_elements_into(
        &mut self,
        data: Elements<'_>,
        mut into: ElementsMut<'_>,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        self.check()?;
        let element = data.element();
        if data.bytes().len() != into.bytes().len() || !self.is_bulk_reduce(data.bytes().len(), element, op) {
            return self.below.all_reduce_elements_into(data, into, op);
        }
        let (bytes, world) = (into.bytes(), self.world());
        self.reduce(element, op, data.bytes(), |result| kernel::copy(bytes, result))?;
        divide(op, element, into.bytes(), world);
        self.conclude(|| None)
    }

    fn halves(&mut self, len_bytes: usize) -> Result<Halves, CollectiveError> {
        self.below.halves(len_bytes)
    }

    fn all_reduce_halves(
        &mut self,
        halves: &mut Halves,
        element: ElementType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        self.check()?;
        let len_bytes = halves.len_bytes();
        // What is short on the host stays there; on a GPU it costs two copies to get it away. Only all members know which it is.
        if len_bytes == 0 || !self.is_reducible(element, op) {
            return self.below.all_reduce_halves(halves, element, op);
        }
        let call =
            Operation { element, op, len: len_bytes as u64, ..Operation::plain(OperationKind::AllReduce) };
        // Where each member's memory lies: they may differ.
        let mine = self.side_of(halves, element, op);
        let said = self.agree(call, &[mine])?;
        if said.iter().any(|words| words[0] != mine) || mine == UNREACHABLE {
            return self.below.all_reduce_halves(halves, element, op);
        }
        if mine == ON_DEVICE {
            return self.reduce_on_device(halves, element, op);
        }
        if !self.is_bulk(len_bytes) {
            return self.below.all_reduce_halves(halves, element, op);
        }
        let world = self.world();
        let (data, into) = halves.parts();
        let combined = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
        self.run(&Job::AllReduce { element, op: combined, data }, |result| kernel::copy(into, result))?;
        divide(op, element, halves.parts().1, world);
        self.conclude(|| None)?;
        halves.adopt();
        Ok(())
    }

    fn reduce_scatter_elements(
        &mut self,
        data: Elements<'_>,
        mut mine: ElementsMut<'_>,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        self.check()?;
        let (element, bytes) = (data.element(), data.bytes());
        if !self.is_bulk_reduce(bytes.len(), element, op) {
            return self.below.reduce_scatter_elements(data, mine, op);
        }
        let (me, world) = (self.me() as usize, self.world());
        let spans = split_even(bytes.len() / size_of_element(element), world as usize);
        let expected = spans[me].len * size_of_element(element);
        if mine.bytes().len() != expected {
            let what = format!("{} bytes for a part of {expected}", mine.bytes().len());
            return Err(self.invalid(what));
        }
        let len = bytes.len() as u64;
        self.agree(Operation { element, op, len, ..Operation::plain(OperationKind::ReduceScatter) }, &[])?;
        let combined = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
        let job = Job::ReduceScatter { element, op: combined, data: bytes, spans: &spans, me };
        let into = mine.bytes();
        self.run(&job, |result| into.copy_from_slice(result))?;
        divide(op, element, mine.bytes(), world);
        Ok(())
    }

    fn all_gather_v(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.check()?;
        if !C::MOVES || self.comm.is_none() {
            return self.below.all_gather_v(mine);
        }
        let said = self.agree(Operation::plain(OperationKind::AllGather), &[mine.len() as u64])?;
        let lens = self.lens_of(&said)?;
        let total = lens.iter().sum();
        if !self.moves(total) {
            return self.below.all_gather_v(mine);
        }
        let me = self.me();
        let others: Vec<u32> = (0..self.world()).filter(|rank| *rank != me).collect();
        let sends: Vec<(u32, &[u8])> = others.iter().map(|rank| (*rank, mine)).collect();
        let receives: Vec<(u32, usize)> = others.iter().map(|rank| (*rank, lens[*rank as usize])).collect();
        let job = Job::Exchange { sends: &sends, receives: &receives };
        let received = receives.iter().map(|(_, len)| *len);
        let mut gathered = self.run(&job, |result| blocks(result, received))?;
        gathered.insert(me as usize, mine.to_vec());
        Ok(gathered)
    }

    fn gather_v(&mut self, root: Rank, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.check()?;
        if !C::MOVES || self.comm.is_none() {
            return self.below.gather_v(root, mine);
        }
        self.check_root(root)?;
        let call = Operation { root, ..Operation::plain(OperationKind::Gather) };
        let said = self.agree(call, &[mine.len() as u64])?;
        let lens = self.lens_of(&said)?;
        let total = lens.iter().sum();
        if !self.moves(total) {
            return self.below.gather_v(root, mine);
        }
        let (me, is_root) = (self.me(), self.me() == root.0);
        let others = (0..self.world()).filter(|rank| *rank != me);
        let receives: Vec<(u32, usize)> =
            if is_root { others.map(|rank| (rank, lens[rank as usize])).collect() } else { Vec::new() };
        let sends: Vec<(u32, &[u8])> = if is_root { Vec::new() } else { vec![(root.0, mine)] };
        let job = Job::Exchange { sends: &sends, receives: &receives };
        let received = receives.iter().map(|(_, len)| *len);
        let mut gathered = self.run(&job, |result| blocks(result, received))?;
        if is_root {
            gathered.insert(me as usize, mine.to_vec());
        }
        Ok(gathered)
    }

    fn scatter_v(&mut self, root: Rank, blocks: &[Vec<u8>]) -> Result<Vec<u8>, CollectiveError> {
        self.check()?;
        if !C::MOVES || self.comm.is_none() {
            return self.below.scatter_v(root, blocks);
        }
        self.check_root(root)?;
        let (me, world) = (self.me(), self.world() as usize);
        if me == root.0 && blocks.len() != world {
            let what = format!("{} blocks; one for each of {world} members is needed", blocks.len());
            return Err(self.invalid(what));
        }
        let call = Operation { root, ..Operation::plain(OperationKind::Scatter) };
        let words: Vec<u64> = match me == root.0 {
            true => blocks.iter().map(|block| block.len() as u64).collect(),
            false => vec![0; world],
        };
        let said = self.agree(call, &words)?;
        let each: Vec<Vec<u64>> = said[root.0 as usize].iter().map(|len| vec![*len]).collect();
        let lens = self.lens_of(&each)?;
        let total = lens.iter().sum();
        if lens.len() != world || !self.moves(total) {
            return self.below.scatter_v(root, blocks);
        }
        if me == root.0 {
            let others = (0..).zip(blocks).filter(|(rank, _)| *rank != me);
            let sends: Vec<(u32, &[u8])> = others.map(|(rank, block)| (rank, &block[..])).collect();
            self.run(&Job::Exchange { sends: &sends, receives: &[] }, |_| ())?;
            return Ok(blocks[me as usize].clone());
        }
        let receives = [(root.0, lens[me as usize])];
        self.run(&Job::Exchange { sends: &[], receives: &receives }, <[u8]>::to_vec)
    }

    fn all_to_all_v(&mut self, blocks: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.check()?;
        let (me, world) = (self.me() as usize, self.world() as usize);
        if !C::MOVES || self.comm.is_none() || blocks.len() != world {
            return self.below.all_to_all_v(blocks);
        }
        let words: Vec<u64> = blocks.iter().map(|block| block.len() as u64).collect();
        let said = self.agree(Operation::plain(OperationKind::AllToAll), &words)?;
        // What each member gets; all check all of them, so that all refuse or none does.
        let mut lens = Vec::new();
        for rank in 0..world {
            let into: Vec<Vec<u64>> = said.iter().map(|words| vec![words[rank]]).collect();
            let checked = self.lens_of(&into)?;
            if rank == me {
                lens = checked;
            }
        }
        // Decided by what all members know alike.
        let most = said.iter().map(|words| words.iter().copied().fold(0, u64::saturating_add)).max();
        if !self.moves(usize::try_from(most.unwrap_or(0)).unwrap_or(usize::MAX)) {
            return self.below.all_to_all_v(blocks);
        }
        let others: Vec<usize> = (0..world).filter(|rank| *rank != me).collect();
        #[allow(clippy::cast_possible_truncation, reason = "a rank")]
        let sends: Vec<(u32, &[u8])> = others.iter().map(|rank| (*rank as u32, &blocks[*rank][..])).collect();
        #[allow(clippy::cast_possible_truncation, reason = "a rank")]
        let receives: Vec<(u32, usize)> = others.iter().map(|rank| (*rank as u32, lens[*rank])).collect();
        let job = Job::Exchange { sends: &sends, receives: &receives };
        let received = receives.iter().map(|(_, len)| *len);
        let mut received = self.run(&job, |result| self::blocks(result, received))?;
        received.insert(me, blocks[me].clone());
        Ok(received)
    }

    fn broadcast(&mut self, root: Rank, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.check()?;
        if !C::MOVES || self.comm.is_none() {
            return self.below.broadcast(root, bytes);
        }
        self.check_root(root)?;
        let call = Operation { root, ..Operation::plain(OperationKind::Broadcast) };
        let said = self.agree(call, &[bytes.len() as u64])?;
        let len = self.lens_of(&said[root.0 as usize..=root.0 as usize])?[0];
        if !self.moves(len) {
            return self.below.broadcast(root, bytes);
        }
        let data: &[u8] = if self.me() == root.0 { bytes } else { &[] };
        let received = self.run(&Job::Broadcast { root: root.0, data, len }, <[u8]>::to_vec)?;
        *bytes = received;
        Ok(())
    }

    fn copy(&mut self, role: CopyRole<'_>) -> Result<(), CollectiveError> {
        self.check()?;
        if !C::MOVES || self.comm.is_none() {
            return self.below.copy(role);
        }
        // The device has the bytes in memory of its own anyway.
        copy_by_broadcast(self, role)
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.check()?;
        self.below.barrier()
    }

    fn weighted_mean_elements(
        &mut self,
        mut data: ElementsMut<'_>,
        weight: f64,
    ) -> Result<WeightedMean, CollectiveError> {
        self.check()?;
        let (element, len_bytes) = (data.element(), data.bytes().len());
        let refused = !weight.is_finite() || weight < 0.0 || !divides(element);
        if refused || !self.is_bulk(len_bytes) {
            return self.below.weighted_mean_elements(data, weight);
        }
        let len = len_bytes as u64;
        let call =
            Operation { element, op: ReduceOp::Mean, len, ..Operation::plain(OperationKind::AllReduce) };
        let said = self.agree(call, &[weight.to_bits()])?;
        let weights: Vec<f64> = said.iter().map(|words| f64::from_bits(words[0])).collect();
        let total: f64 = weights.iter().sum();
        if total == 0.0 {
            self.conclude(|| None)?;
            return Ok(WeightedMean::NoWeight);
        }
        let mut made = vec![0; len_bytes];
        let (me, bytes) = (self.me() as usize, data.bytes());
        let job = Job::Weighted { element, data: bytes, weights: &weights, me, total };
        self.run(&job, |result| made.copy_from_slice(result))?;
        self.conclude(|| Some(made.clone()))?;
        bytes.copy_from_slice(&made);
        Ok(WeightedMean::Averaged { total })
    }
}

impl<C: Bulk + 'static> fmt::Debug for DeviceGroup<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceGroup")
            .field("group", self.below.group())
            .field("library", &self.comm.is_some())
            .finish_non_exhaustive()
    }
}
