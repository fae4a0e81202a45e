//! Conformance of a transport: what every implementation must do, whatever it runs on. Feature `testing`.
//!
//! [`transport_conforms!`](crate::transport_conforms) makes one test of each invariant, I1 to I14, over every algorithm;
//! each can also be called by itself. [`FaultTransport`], [`CountTransport`] and [`StaleTransport`] are what they are
//! made of.

mod case;
mod count;
mod fault;
mod members;
mod stale;
mod watchdog;
mod wire;

mod i01_identity;
mod i02_value;
mod i03_determinism;
mod i04_isolation;
mod i05_traffic;
mod i06_disjoint;
mod i07_termination;
mod i08_atomicity;
mod i09_fencing;
mod i10_mismatch;
mod i11_weighted;
mod i12_composition;
mod i13_relabelling;
mod i14_few;

use antdt_core::{Rank, Seed};
use half::{bf16, f16};

use super::region::Region;
use super::transport::{Exchange, Incoming, Outgoing, Transport};
use super::{Communicator, ScheduledCommunicator};
use crate::element::Element;
use crate::error::CollectiveError;
use crate::group::Group;
use crate::kernel;
use crate::op::ReduceOp;
use crate::schedule::{Choice, CostModel, interpret};
use crate::weighted::WeightedMean;

pub use count::{CountTransport, Traffic};
pub use fault::{Fault, FaultTransport, REASON};
pub use i01_identity::i01_identity;
pub use i02_value::i02_value;
pub use i03_determinism::i03_determinism;
pub use i04_isolation::i04_isolation;
pub use i05_traffic::i05_traffic;
pub use i06_disjoint::i06_disjoint;
pub use i07_termination::i07_termination;
pub use i08_atomicity::i08_atomicity;
pub use i09_fencing::i09_fencing;
pub use i10_mismatch::i10_mismatch;
pub use i11_weighted::i11_weighted;
pub use i12_composition::i12_composition;
pub use i13_relabelling::i13_relabelling;
pub use i14_few::i14_few;
pub use members::{
    Make, Members, PATIENT, SHORT, abort_handles, at_once, holder, loopback_listener, mem_members,
    mixed_members, on_all, on_all_with, shm_members, tcp_members,
};
pub use stale::StaleTransport;
pub use watchdog::Watchdog;
pub use wire::{Damage, Strike, Wires};

/// One test for each invariant of a transport, I1 to I14; `$make` makes a group of as many members as it is told:
/// `Fn(u32) -> Members<T>`.
#[macro_export]
macro_rules! transport_conforms {
    ($make:expr) => {
        $crate::transport_conforms! {
            $make;
            i01_identity i02_value i03_determinism i04_isolation i05_traffic i06_disjoint i07_termination
            i08_atomicity i09_fencing i10_mismatch i11_weighted i12_composition i13_relabelling i14_few
        }
    };
    ($make:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::runtime::testing::$name(&$make);
            }
        )*
    };
}

// One member that is unlike the others.
enum Either<A, B> {
    Odd(A),
    Usual(B),
}

impl<A: Transport, B: Transport> Transport for Either<A, B> {
    fn group(&self) -> &Group {
        match self {
            Self::Odd(transport) => transport.group(),
            Self::Usual(transport) => transport.group(),
        }
    }

    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        match self {
            Self::Odd(transport) => transport.exchange(call, sends, receives),
            Self::Usual(transport) => transport.exchange(call, sends, receives),
        }
    }

    fn all_gather(&mut self, call: &Exchange, blocks: &mut [u8]) -> Result<(), CollectiveError> {
        match self {
            Self::Odd(transport) => transport.all_gather(call, blocks),
            Self::Usual(transport) => transport.all_gather(call, blocks),
        }
    }

    fn hosts(&self) -> Option<&[u32]> {
        match self {
            Self::Odd(transport) => transport.hosts(),
            Self::Usual(transport) => transport.hosts(),
        }
    }

    fn cost(&self) -> CostModel {
        match self {
            Self::Odd(transport) => transport.cost(),
            Self::Usual(transport) => transport.cost(),
        }
    }

    fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        match self {
            Self::Odd(transport) => transport.region(len_bytes),
            Self::Usual(transport) => transport.region(len_bytes),
        }
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        match self {
            Self::Odd(transport) => transport.fail(error),
            Self::Usual(transport) => transport.fail(error),
        }
    }
}

/// Checks everything below on the groups that `make` gives for a world size.
///
/// # Panics
/// If the transport breaks a rule.
pub fn check_transport<T: Transport>(make: impl Fn(u32) -> Members<T>) {
    for world in 1..=8 {
        check_values(make(world).0);
    }
    for world in 2..=4 {
        for odd in [0, world - 1] {
            check_mismatch(&make, world, odd);
            check_lost_member(make(world), odd);
        }
        check_abort(make(world));
        check_silent_member(make(world).0);
    }
}

/// Collectives compute what their schedules say, with the same bits on all members.
///
/// # Panics
/// If not.
pub fn check_values<T: Transport>(transports: Vec<T>) {
    let world = transports.len();
    on_all(transports, PATIENT, |me, communicator| {
        for choice in Choice::ALL {
            for len in [0, 1, 2, 3, world - 1, world, world + 1, 2 * world + 1, 20, 63, 64, 65, 1021] {
                reduces::<f32>(communicator, choice, me, len, ReduceOp::Sum, |x| x as f32);
            }
        }
        // One that folds what comes at once, and one that keeps it apart and folds it from the left.
        for choice in [Choice::Ring, Choice::RecursiveDoubling] {
            // Many segments, and a last one that is shorter.
            reduces::<f32>(communicator, choice, me, 300_001, ReduceOp::Sum, |x| x as f32);
            for op in ReduceOp::ALL {
                for len in [1, world, 67] {
                    reduces::<f32>(communicator, choice, me, len, op, |x| x as f32);
                    reduces::<f64>(communicator, choice, me, len, op, |x| x);
                    reduces::<i32>(communicator, choice, me, len, op, |x| (x * 1e6) as i32);
                    reduces::<i64>(communicator, choice, me, len, op, |x| (x * 1e6) as i64);
                    reduces::<u8>(communicator, choice, me, len, op, |x| (x * 1e3) as u8);
                    reduces::<f16>(communicator, choice, me, len, op, f16::from_f64);
                    reduces::<bf16>(communicator, choice, me, len, op, bf16::from_f64);
                }
            }
        }
        for unit in [0, 1, 7, 100_003] {
            let block = |rank: usize| vec![rank as u8 + 1; (rank + world - 1) % world * unit];
            let blocks = communicator.all_gather_v(&block(me.0 as usize)).expect("all members gather");
            assert_eq!(blocks, (0..world).map(block).collect::<Vec<_>>());
            for root in 0..world {
                let mut bytes = block(me.0 as usize);
                communicator.broadcast(Rank(root as u32), &mut bytes).expect("all members broadcast");
                assert_eq!(bytes, block(root));
            }
        }
        communicator.barrier().expect("all members meet");
        means(communicator, me, world);
    });
}

fn operands<E: Element>(rank: u32, len: usize, make: impl Fn(f64) -> E) -> Vec<E> {
    let mut rng = Seed(u64::from(rank)).derive_number(len as u64).rng();
    (0..len).map(|_| make(rng.normal())).collect()
}

fn reduces<E: Element>(
    communicator: &mut ScheduledCommunicator<impl Transport>,
    choice: Choice,
    me: Rank,
    len: usize,
    op: ReduceOp,
    make: impl Fn(f64) -> E,
) {
    if op == ReduceOp::Mean && !E::DIVIDES {
        return;
    }
    let world = communicator.group().world();
    let mut buffers: Vec<Vec<E>> = (0..world).map(|rank| operands(rank, len, &make)).collect();
    let mut data = operands(me.0, len, &make);
    communicator.all_reduce_by(choice, &mut data, op).expect("all members reduce");
    match choice.resolve(world, size_of_val(&*data), communicator.cost()).algorithm() {
        Some(algorithm) => {
            let schedules: Vec<_> =
                (0..world).map(|rank| algorithm.schedule(Rank(rank), world, len)).collect();
            interpret(&schedules, &mut buffers, op).expect("the schedules fit together");
        }
        None => {
            let (first, others) = buffers.split_first_mut().expect("there are members");
            others.iter().for_each(|other| kernel::reduce(op, first, other));
            let total = first.clone();
            others.iter_mut().for_each(|other| other.copy_from_slice(&total));
        }
    }
    if op == ReduceOp::Mean {
        buffers.iter_mut().for_each(|buffer| kernel::divide(buffer, world));
    }
    let bytes = bytemuck::cast_slice::<E, u8>;
    assert!(buffers.iter().all(|buffer| bytes(buffer) == bytes(&data)), "{choice} {op} of {len} {}", E::TYPE);
}

fn means(communicator: &mut ScheduledCommunicator<impl Transport>, me: Rank, world: usize) {
    // Rank 0 has no samples and nonsense in its buffer.
    let weight = f64::from(me.0);
    let mut data = [if me.0 == 0 { f32::NAN } else { me.0 as f32 }; 3];
    let mean = communicator.weighted_mean(&mut data, weight).expect("all members average");
    let ranks = || (1..world).map(|rank| rank as f64);
    let total: f64 = ranks().sum();
    if world == 1 {
        assert_eq!(mean, WeightedMean::NoWeight);
        assert!(data[0].is_nan(), "left as it was");
    } else {
        assert_eq!(mean, WeightedMean::Averaged { total });
        let expected = ranks().map(|rank| rank * rank).sum::<f64>() / total;
        assert!(data.iter().all(|value| (f64::from(*value) - expected).abs() < 1e-5), "{data:?} {expected}");
    }
    let mut data = [1.5, me.0 as f32];
    let none = communicator.weighted_mean(&mut data, 0.0).expect("all members average");
    assert_eq!((none, data), (WeightedMean::NoWeight, [1.5, me.0 as f32]));
}

/// A member that makes another call than the rest makes the call fail as a mismatch on all members; no buffer is
/// changed.
///
/// # Panics
/// If not.
pub fn check_mismatch<T: Transport>(make: impl Fn(u32) -> Members<T>, world: u32, odd: u32) {
    type Call<T> = fn(&mut ScheduledCommunicator<T>) -> Result<(), CollectiveError>;
    fn reduce<T: Transport, E: Element>(
        communicator: &mut ScheduledCommunicator<T>,
        len: usize,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let before = operands(7, len, |_| E::default());
        let mut data = before.clone();
        communicator
            .all_reduce(&mut data, op)
            .inspect_err(|_| assert_eq!(data, before, "the buffer was changed"))
    }
    let pairs: [(Call<T>, Call<T>); 8] = [
        (|c| reduce::<T, f32>(c, 10, ReduceOp::Sum), |c| reduce::<T, f32>(c, 11, ReduceOp::Sum)),
        (|c| reduce::<T, f32>(c, 10, ReduceOp::Sum), |c| reduce::<T, f32>(c, 10, ReduceOp::Max)),
        (|c| reduce::<T, f32>(c, 10, ReduceOp::Sum), |c| reduce::<T, i32>(c, 10, ReduceOp::Sum)),
        (|c| reduce::<T, f32>(c, 0, ReduceOp::Sum), |c| reduce::<T, f32>(c, 1, ReduceOp::Sum)),
        (|c| reduce::<T, f32>(c, 100_000, ReduceOp::Sum), |c| reduce::<T, f32>(c, 1, ReduceOp::Sum)),
        (|c| reduce::<T, f32>(c, 10, ReduceOp::Sum), |c| c.all_gather_v(&[1, 2]).map(drop)),
        (Communicator::barrier, |c| c.broadcast(Rank(0), &mut vec![1])),
        (|c| c.broadcast(Rank(0), &mut vec![1]), |c| c.broadcast(Rank(1), &mut vec![1])),
    ];
    for (index, (usual, other)) in pairs.into_iter().enumerate() {
        let results = on_all(make(world).0, PATIENT, |me, c| if me.0 == odd { other(c) } else { usual(c) });
        for (rank, result) in results.iter().enumerate() {
            let told = matches!(result, Err(CollectiveError::Mismatch { .. }));
            assert!(told, "pair {index}, rank {rank} of {world}, odd {odd}: {result:?}");
        }
    }
}

/// A member that vanishes makes the call fail on all others, long before the deadline, on its account; buffers stay as
/// they were, and every later call fails as well.
///
/// # Panics
/// If not.
pub fn check_lost_member<T: Transport>((transports, _aborts): Members<T>, lost: u32) {
    let results = on_all(transports, PATIENT, |me, communicator| {
        communicator.barrier().expect("all are there");
        if me.0 == lost {
            return None;
        }
        let before = operands(me.0, 200_000, |x| x as f32);
        let mut data = before.clone();
        let result = communicator.all_reduce(&mut data, ReduceOp::Sum);
        assert!(data == before, "the buffer was changed");
        assert_eq!(communicator.barrier(), result, "a later call fails alike");
        Some(result)
    });
    for result in results.into_iter().flatten() {
        let error = result.expect_err("a member is missing");
        assert_eq!(error.culprit(), Some(holder(lost)), "{error}");
    }
}

/// An abort handle ends the calls of all members, with its reason.
///
/// # Panics
/// If not.
pub fn check_abort<T: Transport>((transports, aborts): Members<T>) {
    let results = on_all(transports, PATIENT, |me, communicator| {
        if me.0 == 0 {
            // Member 0 never comes; its own next call is refused as well.
            aborts[1].abort("enough");
        }
        communicator.barrier().and_then(|()| communicator.barrier())
    });
    for result in results {
        let error = result.expect_err("it was aborted");
        assert!(matches!(&error, CollectiveError::Aborted { reason, .. } if reason == "enough"), "{error:?}");
    }
}

/// A member that is alive and silent is named once the deadline has passed.
///
/// # Panics
/// If not.
pub fn check_silent_member<T: Transport>(mut transports: Vec<T>) {
    let silent = transports.remove(0);
    let results = on_all(transports, SHORT, |_, communicator| communicator.barrier());
    let named = |error: &CollectiveError| error.culprit() == Some(holder(0));
    let errors: Vec<CollectiveError> =
        results.into_iter().map(|result| result.expect_err("one is silent")).collect();
    assert!(errors.iter().all(named), "{errors:?}");
    drop(silent);
}
