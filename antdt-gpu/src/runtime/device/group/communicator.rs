//! The operations of a [`DeviceGroup`]: what goes over the library, and what over the group below.

use antdt_collective::element::ElementType;
use antdt_collective::elements::{Elements, ElementsMut, with_type};
use antdt_collective::frame::{Operation, OperationKind};
use antdt_collective::kernel;
use antdt_collective::op::ReduceOp;
use antdt_collective::runtime::communicator::{CopyRole, copy_by_broadcast};
use antdt_collective::runtime::{Communicator, Halves};
use antdt_collective::schedule::split_even;
use antdt_collective::weighted::WeightedMean;
use antdt_collective::{CollectiveError, Group};
use antdt_core::Rank;

use super::{DeviceGroup, ON_DEVICE, UNREACHABLE, divides};
use crate::runtime::device::bulk::{Bulk, Job, size_of_element};

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

    fn attend(&mut self) {
        self.below.attend();
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
