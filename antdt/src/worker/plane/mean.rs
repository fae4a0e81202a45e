//! The uniform mean of the models of several workers, which they make together.

use antdt_collective::runtime::Communicator;
use antdt_core::{ParamLayout, Rank};
use antdt_job::Peers;
use antdt_model::{Given, LocalReplica};

use crate::worker::WorkerError;

/// The uniform mean of the models of `peers`, beside this worker's model `own`. Peers that name the same members get the same bits.
pub(super) fn uniform(
    comm: &mut (impl Communicator + ?Sized),
    own: &LocalReplica,
    layout: &ParamLayout,
    peers: &Peers,
) -> Result<Given, WorkerError> {
    if peers.average_in_parts(comm.group().world()) {
        in_parts(comm, own, layout)
    } else {
        of_whole_models(comm, own, layout, peers)
    }
}

/// Each member is given one part of all models, makes the mean of it, and gives that to all: `2(n-1)/n` of a model from and to each.
fn in_parts(
    comm: &mut (impl Communicator + ?Sized),
    own: &LocalReplica,
    layout: &ParamLayout,
) -> Result<Given, WorkerError> {
    let (me, parts) = (comm.group().me().0 as usize, comm.group().world() as usize);
    let blocks: Vec<Vec<u8>> = own.give().cut(layout, parts).iter().map(Given::encode).collect();
    let received = comm.all_to_all_v(&blocks)?;
    let read = |(rank, bytes): (u32, &Vec<u8>), part: usize| {
        Given::decode_part(bytes, layout, part, parts).ok_or_else(|| damaged(Rank(rank), bytes))
    };
    let mine: Vec<Given> = (0..).zip(&received).map(|block| read(block, me)).collect::<Result<_, _>>()?;
    let means = comm.all_gather_v(&own.mean(&mine).encode())?;
    let of_part = |(part, block)| read(block, part);
    let means: Vec<Given> = (0..).zip(&means).enumerate().map(of_part).collect::<Result<_, _>>()?;
    Ok(Given::join(&means, layout))
}

/// Each member is given the models of its peers, whichever members average with those.
fn of_whole_models(
    comm: &mut (impl Communicator + ?Sized),
    own: &LocalReplica,
    layout: &ParamLayout,
    peers: &Peers,
) -> Result<Given, WorkerError> {
    let (me, world) = (comm.group().me(), comm.group().world());
    let given = own.give();
    let bytes = given.encode();
    let for_rank = |rank| if rank != me && peers.contains(rank) { bytes.clone() } else { Vec::new() };
    let blocks: Vec<Vec<u8>> = (0..world).map(|rank| for_rank(Rank(rank))).collect();
    let received = comm.all_to_all_v(&blocks)?;
    let mut models = Vec::new();
    for (rank, bytes) in (0..world).map(Rank).zip(&received).filter(|(rank, _)| peers.contains(*rank)) {
        let model = if rank == me { Some(given.clone()) } else { Given::decode(bytes, layout) };
        models.push(model.ok_or_else(|| damaged(rank, bytes))?);
    }
    Ok(own.mean(&models))
}

fn damaged(rank: Rank, bytes: &[u8]) -> WorkerError {
    WorkerError::Parameters(format!("the model of {} bytes of {rank} is damaged", bytes.len()))
}

#[cfg(test)]
mod tests {
    use antdt_collective::runtime::testing::{PATIENT, mem_members, on_all};
    use antdt_core::{Seed, TableSpec};
    use antdt_model::{Replica, SparseGradient, UpdateRule};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Each worker has trained other rows, and some none.
        #[test]
        fn all_get_the_mean_of_all_models_to_the_bit(world in 1_u32..7, len in 1_usize..12, seed in any::<u32>()) {
            let layout = ParamLayout::dense(len).with_table(TableSpec::new("table", 9, 2, 0.5)).unwrap();
            let rule = UpdateRule::named("sgd", 0.5).unwrap();
            let worker = |rank: u32| {
                let mut rng = Seed(u64::from(seed)).derive_number(u64::from(rank)).rng();
                let mut worker =
                    LocalReplica::new(Replica::new(&layout, &rule, Seed(3), vec![0.25; len]).unwrap());
                let rows: Vec<u64> = (0..9).filter(|_| rng.below(3) == 0).collect();
                let mut numbers = |count| (0..count).map(|_| rng.normal() as f32).collect::<Vec<f32>>();
                let (dense, values) = (numbers(len), numbers(2 * rows.len()));
                worker.advance(&dense, &SparseGradient { rows, values }, 4).unwrap();
                worker
            };
            let workers: Vec<LocalReplica> = (0..world).map(worker).collect();
            let given: Vec<Given> = workers.iter().map(LocalReplica::give).collect();
            let expected = workers[0].mean(&given);
            let means = on_all(mem_members(world).0, PATIENT, |me, comm| {
                uniform(comm, &workers[me.0 as usize], &layout, &Peers::All).unwrap()
            });
            for mean in means {
                prop_assert_eq!(&mean, &expected);
            }
        }
    }
}
