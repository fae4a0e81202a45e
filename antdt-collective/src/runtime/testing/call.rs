//! A collective call in a fault test: the operand of each member, and its result.

use antdt_core::{Rank, Seed};

use crate::error::CollectiveError;
use crate::op::ReduceOp;
use crate::runtime::transport::Transport;
use crate::runtime::{Communicator, ScheduledCommunicator};
use crate::schedule::{Choice, split_even};

/// Which collective, and by what where that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    AllReduce(Choice),
    ReduceScatter,
    Broadcast,
    Gather,
    Scatter,
    AllToAll,
}

/// The first member, so that stories about the first and the last one are about the root and about another.
const ROOT: Rank = Rank(0);

impl Call {
    /// Those without a choice.
    pub(super) const OTHERS: [Self; 5] =
        [Self::ReduceScatter, Self::Broadcast, Self::Gather, Self::Scatter, Self::AllToAll];

    /// Makes it with `data`, in whose place is then what the member gets. A call that fails has been made with the very
    /// memory that `data` are, or they are made anew from what it was made with.
    pub(super) fn make<T: Transport>(
        self,
        communicator: &mut ScheduledCommunicator<T>,
        data: &mut Vec<i64>,
    ) -> Result<(), CollectiveError> {
        let world = communicator.group().world();
        match self {
            Self::AllReduce(choice) => communicator.all_reduce_by(choice, data, ReduceOp::Sum)?,
            Self::ReduceScatter => *data = communicator.reduce_scatter(data, ReduceOp::Sum)?,
            Self::Broadcast => {
                let mut bytes = bytemuck::cast_slice(data).to_vec();
                let result = communicator.broadcast(ROOT, &mut bytes);
                *data = bytemuck::pod_collect_to_vec(&bytes);
                result?;
            }
            Self::Gather => {
                let gathered = communicator.gather_v(ROOT, bytemuck::cast_slice(data))?;
                *data = bytemuck::pod_collect_to_vec(&gathered.concat());
            }
            Self::Scatter => {
                let blocks = blocks(data, world);
                let result = communicator.scatter_v(ROOT, &blocks);
                *data = bytemuck::pod_collect_to_vec(result.as_ref().unwrap_or(&blocks.concat()));
                result?;
            }
            Self::AllToAll => {
                let blocks = blocks(data, world);
                let result = communicator.all_to_all_v(&blocks);
                *data = bytemuck::pod_collect_to_vec(&result.as_ref().unwrap_or(&blocks).concat());
                result?;
            }
        }
        Ok(())
    }

    /// What the member at `place` gets when those of `ranks` make it, each with its [`operand`].
    pub(super) fn outcome(self, place: usize, ranks: &[u32], len: usize) -> Vec<i64> {
        let parts = split_even(len, ranks.len());
        let mine = parts[place].range();
        let root = ranks[ROOT.0 as usize];
        let brought = |rank: u32| operand(Rank(rank), len);
        match self {
            Self::AllReduce(_) => total(ranks.iter().copied(), len),
            Self::ReduceScatter => total(ranks.iter().copied(), len)[mine].to_vec(),
            Self::Broadcast => brought(root),
            Self::Gather if place == ROOT.0 as usize => {
                ranks.iter().flat_map(|rank| brought(*rank)).collect()
            }
            Self::Gather => Vec::new(),
            Self::Scatter => brought(root)[mine].to_vec(),
            Self::AllToAll => ranks.iter().flat_map(|rank| brought(*rank)[mine.clone()].to_vec()).collect(),
        }
    }
}

// One block for each member.
fn blocks(data: &[i64], world: u32) -> Vec<Vec<u8>> {
    let parts = split_even(data.len(), world as usize);
    parts.iter().map(|part| bytemuck::cast_slice(&data[part.range()]).to_vec()).collect()
}

/// What rank `rank` brings: integers, so that every algorithm comes to the same.
pub(super) fn operand(rank: Rank, len: usize) -> Vec<i64> {
    let mut rng = Seed(8).derive_number(u64::from(rank.0)).rng();
    (0..len).map(|_| rng.below(1 << 40) as i64 - (1 << 39)).collect()
}

/// The sum over `ranks`.
pub(super) fn total(ranks: impl Iterator<Item = u32>, len: usize) -> Vec<i64> {
    ranks.fold(vec![0; len], |mut total, rank| {
        total.iter_mut().zip(operand(Rank(rank), len)).for_each(|(into, value)| *into += value);
        total
    })
}
