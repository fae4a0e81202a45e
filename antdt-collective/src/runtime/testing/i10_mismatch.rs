//! I10: members that make different calls all find out, and none waits.

use antdt_core::Rank;

use super::members::{AnyTransport, Make, PATIENT, at_once, on_all_with};
use super::watchdog::Watchdog;
use crate::element::Element;
use crate::error::CollectiveError;
use crate::op::ReduceOp;
use crate::runtime::{Communicator, CommunicatorConfig, CopyRole, ScheduledCommunicator};
use crate::schedule::Choice;

type Call = fn(&mut ScheduledCommunicator<AnyTransport>) -> Result<(), CollectiveError>;

// The operand is all zeros, and must be afterwards.
fn reduce<E: Element>(
    communicator: &mut ScheduledCommunicator<AnyTransport>,
    len: usize,
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    let mut data = vec![E::default(); len];
    communicator.all_reduce(&mut data, op).inspect_err(|_| {
        assert!(data.iter().all(|value| *value == E::default()), "the buffer was changed");
    })
}

// As many zeros of the first member to all others.
fn copy(communicator: &mut ScheduledCommunicator<AnyTransport>, len: usize) -> Result<(), CollectiveError> {
    let (mine, mut into) = (vec![0; len], vec![0; len]);
    let first = communicator.group().me() == Rank(0);
    communicator.copy(if first { CopyRole::Gives(&mine) } else { CopyRole::Takes(&mut into) })
}

/// What most members call, and what one of them calls.
fn pairs() -> [(&'static str, Call, Call); 12] {
    [
        ("length", |c| reduce::<f32>(c, 10, ReduceOp::Sum), |c| reduce::<f32>(c, 11, ReduceOp::Sum)),
        ("op", |c| reduce::<f32>(c, 10, ReduceOp::Sum), |c| reduce::<f32>(c, 10, ReduceOp::Max)),
        ("type", |c| reduce::<f32>(c, 10, ReduceOp::Sum), |c| reduce::<i32>(c, 10, ReduceOp::Sum)),
        ("nothing", |c| reduce::<f32>(c, 0, ReduceOp::Sum), |c| reduce::<f32>(c, 1, ReduceOp::Sum)),
        ("little", |c| reduce::<f32>(c, 100_000, ReduceOp::Sum), |c| reduce::<f32>(c, 1, ReduceOp::Sum)),
        ("much", |c| reduce::<f32>(c, 1, ReduceOp::Sum), |c| reduce::<f32>(c, 100_000, ReduceOp::Sum)),
        ("gather", |c| reduce::<f32>(c, 10, ReduceOp::Sum), |c| c.all_gather_v(&[1, 2]).map(drop)),
        ("broadcast", Communicator::barrier, |c| c.broadcast(Rank(0), &mut vec![1])),
        ("root", |c| c.broadcast(Rank(0), &mut vec![1]), |c| c.broadcast(Rank(1), &mut vec![1])),
        ("length of a copy", |c| copy(c, 9), |c| copy(c, 8)),
        ("copy", |c| copy(c, 9), |c| c.broadcast(Rank(0), &mut vec![1; 9])),
        (
            "behind",
            |c| reduce::<f32>(c, 10, ReduceOp::Sum),
            |c| {
                reduce::<f32>(c, 10, ReduceOp::Sum)?;
                c.barrier()
            },
        ),
    ]
}

/// Checks invariant I10: if one member's call differs from the others' in any respect, under any algorithm,
/// all members report a mismatch, and no buffer is changed.
///
/// # Panics
/// If the invariant is broken.
pub fn i10_mismatch(make: &Make<'_>) {
    let _watchdog = Watchdog::over("I10");
    for choice in Choice::ALL {
        for world in 2..=5_u32 {
            for odd in [0, world - 1] {
                at_once(pairs(), |(what, usual, other)| {
                    let config = CommunicatorConfig {
                        timeout: PATIENT,
                        algorithm: choice,
                        ..CommunicatorConfig::default()
                    };
                    let results = on_all_with(make(world).0, config, |me, communicator| {
                        let result = if me.0 == odd { other(communicator) } else { usual(communicator) };
                        // The one that is a call behind finds out with the next one.
                        result.and_then(|()| communicator.all_reduce(&mut [0_u8; 3], ReduceOp::Max))
                    });
                    all_told(&results, &format!("{what}, {choice}, {world} members, odd {odd}"));
                });
            }
        }
    }
    algorithms(make);
}

// Members that chose different algorithms.
fn algorithms(make: &Make<'_>) {
    for usual in
        [Choice::Ring, Choice::Direct, Choice::HalvingDoubling, Choice::RecursiveDoubling, Choice::DoubleTree]
    {
        for other in [Choice::Ring, Choice::DoubleTree] {
            if usual == other {
                continue;
            }
            for world in 2..=5_u32 {
                let transports = (0..world).zip(make(world).0);
                let results = at_once(transports, |(rank, transport)| {
                    let algorithm = if rank == world / 2 { other } else { usual };
                    let config =
                        CommunicatorConfig { timeout: PATIENT, algorithm, ..CommunicatorConfig::default() };
                    reduce::<f32>(&mut ScheduledCommunicator::new(transport, config), 10, ReduceOp::Sum)
                });
                all_told(&results, &format!("{usual} and {other}, {world} members"));
            }
        }
    }
}

fn all_told(results: &[Result<(), CollectiveError>], what: &str) {
    for (rank, result) in results.iter().enumerate() {
        let told = matches!(result, Err(CollectiveError::Mismatch { .. }));
        assert!(told, "{what}: rank {rank} is told {result:?}");
    }
}
