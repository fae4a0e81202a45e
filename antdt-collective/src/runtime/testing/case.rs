//! Random all-reduces from a fixed seed, with their expected results.

use std::cell::Cell;
use std::num::NonZeroUsize;

use antdt_core::{Rank, Seed};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use crate::element::{Element, ElementType};
use crate::kernel;
use crate::op::ReduceOp;
use crate::runtime::communicator::{CommunicatorConfig, HOSTS_MIN_BYTES, slice_len};
use crate::runtime::transport::Transport;
use crate::schedule::{Algorithm, Choice, CostModel, Hierarchical, interpret};

/// An all-reduce.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    /// Members.
    pub(super) world: u32,
    /// Elements.
    pub(super) len: usize,
    /// Of which type.
    pub(super) element: ElementType,
    /// How they are reduced.
    pub(super) op: ReduceOp,
    /// Of the operands.
    pub(super) seed: u64,
}

impl Case {
    /// The same with a reduction that integers have as well.
    pub(super) fn of_integers(self) -> Self {
        Self { op: if self.op == ReduceOp::Mean { ReduceOp::Sum } else { self.op }, ..self }
    }
}

/// Runs a block with `E` as the element type of a case.
macro_rules! with_element {
    ($element:expr, $E:ident => $body:expr) => {
        match $element {
            $crate::element::ElementType::F32 => {
                type $E = f32;
                $body
            }
            $crate::element::ElementType::F64 => {
                type $E = f64;
                $body
            }
            $crate::element::ElementType::I32 => {
                type $E = i32;
                $body
            }
            $crate::element::ElementType::I64 => {
                type $E = i64;
                $body
            }
            $crate::element::ElementType::U8 => {
                type $E = u8;
                $body
            }
            $crate::element::ElementType::F16 => {
                type $E = half::f16;
                $body
            }
            $crate::element::ElementType::Bf16 => {
                type $E = half::bf16;
                $body
            }
        }
    };
}
pub(super) use with_element;

const TYPES: [ElementType; 7] = [
    ElementType::F32,
    ElementType::F64,
    ElementType::I32,
    ElementType::I64,
    ElementType::U8,
    ElementType::F16,
    ElementType::Bf16,
];

/// Lengths of a message, in bytes, at which transports are apt to change their ways.
const BORDERS: [usize; 3] = [4 << 10, 64 << 10, 256 << 10];

/// Any all-reduce of 1 to 8 members.
pub(super) fn cases() -> impl Strategy<Value = Case> {
    let shape = (1_u32..=8).prop_flat_map(|world| (Just(world), prop::sample::select(&TYPES[..])));
    let shape = shape.prop_flat_map(|(world, element)| (Just(world), Just(element), lengths(world, element)));
    (shape, prop::sample::select(&ReduceOp::ALL[..]), any::<u64>())
        .prop_map(|((world, element, len), op, seed)| Case { world, len, element, op, seed })
        .prop_map(|case| if with_element!(case.element, E => E::DIVIDES) { case } else { case.of_integers() })
}

// Around 0, 1 and the number of members, anything short, and where a member's share is as long as a segment.
fn lengths(world: u32, element: ElementType) -> impl Strategy<Value = usize> {
    let n = world as usize;
    let size = with_element!(element, E => size_of::<E>());
    let few = prop::sample::select(vec![0, 1, n - 1, n, n + 1, 2 * n - 1, 2 * n + 1]);
    let border = (prop::sample::select(&BORDERS[..]), 0..3_usize);
    prop_oneof![
        4 => few,
        3 => 0..300_usize,
        1 => border.prop_map(move |(bytes, more)| bytes / size * n + more - 1),
    ]
}

/// By what the number of cases is divided, 1 unless it says otherwise: for machines on which all would take too long, such as
/// emulated ones.
const DIVISOR: &str = "CONFORMANCE_DIVISOR";

/// The number of cases to try where all are `count`: at least one of any.
///
/// # Panics
/// If `CONFORMANCE_DIVISOR` is set and no number from 1 on.
pub(super) fn thinned(count: usize) -> usize {
    let of_machine = match std::env::var(DIVISOR) {
        Ok(text) => {
            let number = text.parse::<NonZeroUsize>();
            number.unwrap_or_else(|_| panic!("{DIVISOR} = {text}: not a number from 1 on; unset it")).get()
        }
        Err(_) => 1,
    };
    count.div_ceil(of_machine.saturating_mul(OF_TEST.get().get()))
}

thread_local! {
    /// Of the cases that the test of this thread would try, it tries one in so many.
    static OF_TEST: Cell<NonZeroUsize> = const { Cell::new(NonZeroUsize::MIN) };
}

/// Runs a test of this module that tries one in `divisor` of its cases: for a transport that is another one, tested in
/// full, behind a thin layer.
pub fn one_case_in<R>(divisor: NonZeroUsize, test: impl FnOnce() -> R) -> R {
    let before = OF_TEST.replace(divisor);
    let result = test();
    OF_TEST.set(before);
    result
}

/// Tries `test` with `count` values or what is left of them for a slow machine, the same in every run, and shows the smallest one that fails.
///
/// # Panics
/// If the test does.
pub(super) fn for_each<S: Strategy>(count: u32, values: &S, test: impl Fn(S::Value)) {
    let config = Config {
        cases: u32::try_from(thinned(count as usize)).expect("not more than all"),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(4),
        max_shrink_iters: 200,
        ..Config::default()
    };
    let tried = TestRunner::new(config).run(values, |value| {
        test(value);
        Ok(())
    });
    tried.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Numbers whose reductions can be compared with those of `f64`.
pub(super) trait Number: Element {
    /// Relative distance of neighbours; 0 for integers.
    const EPSILON: f64;
    /// Smallest positive number.
    const TINY: f64;
    /// The nearest number of this type.
    fn near(value: f64) -> Self;
    /// Returns the element as `f64`.
    fn value(self) -> f64;
}

macro_rules! number {
    ($type:ty, $epsilon:expr, $tiny:expr, $near:expr, $value:expr) => {
        impl Number for $type {
            const EPSILON: f64 = $epsilon;
            const TINY: f64 = $tiny;
            fn near(value: f64) -> Self {
                $near(value)
            }
            fn value(self) -> f64 {
                $value(self)
            }
        }
    };
}

number!(f32, f32::EPSILON as f64, 1.5e-45, |x| x as f32, f64::from);
number!(f64, f64::EPSILON, 5e-324, |x| x, |x| x);
number!(f16, 0.000_976_562_5, 6e-8, f16::from_f64, f64::from);
number!(bf16, 0.007_812_5, 1e-40, bf16::from_f64, f64::from);
number!(i32, 0.0, 0.0, |x| (x * 1e8) as i32, f64::from);
number!(i64, 0.0, 0.0, |x| (x * 1e17) as i64, |x| x as f64);
number!(u8, 0.0, 0.0, |x| (x * 300.0) as i64 as u8, f64::from);

/// What rank `rank` brings: ordinary numbers around 0.
pub(super) fn numbers<E: Number>(case: &Case, rank: u32) -> Vec<E> {
    let mut rng = Seed(case.seed).derive_number(u64::from(rank)).rng();
    (0..case.len).map(|_| E::near(rng.normal())).collect()
}

/// What rank `rank` brings: any bits, infinities, zeros of both signs and numbers that are none among them.
pub(super) fn bits<E: Element>(case: &Case, rank: u32) -> Vec<E> {
    let mut rng = Seed(case.seed).derive_number(u64::from(rank)).rng();
    let mut operand = vec![E::default(); case.len];
    for bytes in bytemuck::cast_slice_mut::<E, u8>(&mut operand).chunks_mut(8) {
        // One in four all ones or all zeros, so that the special values of every type are among them.
        let drawn = match rng.below(8) {
            0 => 0,
            1 => u64::MAX,
            _ => rng.next_u64(),
        };
        bytes.copy_from_slice(&drawn.to_le_bytes()[..bytes.len()]);
    }
    operand
}

/// What the schedules of `choice` say that all members end with, where messages cost `model`.
///
/// # Panics
/// If the schedules don't fit together.
pub(super) fn by_schedule<E: Element>(
    choice: Choice,
    network: &Network,
    case: &Case,
    operand: impl Fn(&Case, u32) -> Vec<E>,
) -> Vec<E> {
    let len_bytes = case.len * size_of::<E>();
    let hosts = network.hosts.as_ref().filter(|_| choice == Choice::Auto && len_bytes > HOSTS_MIN_BYTES);
    let chosen = choice.resolve(case.world, len_bytes, &network.cost).algorithm();
    let algorithm: &dyn Algorithm = match (hosts, chosen) {
        (Some(hosts), _) => hosts,
        (None, Some(algorithm)) => algorithm,
        (None, None) => return in_order(case, operand),
    };
    let slice = match algorithm.slices() {
        true => slice_len::<E>(CommunicatorConfig::default().slice, &network.cost, case.world, case.len),
        false => case.len.max(1),
    };
    let operands: Vec<Vec<E>> = (0..case.world).map(|rank| operand(case, rank)).collect();
    let mut total = Vec::with_capacity(case.len);
    for start in (0..case.len).step_by(slice) {
        let range = start..case.len.min(start + slice);
        let mut buffers: Vec<Vec<E>> = operands.iter().map(|all| all[range.clone()].to_vec()).collect();
        let schedules: Vec<_> =
            (0..case.world).map(|me| algorithm.schedule(Rank(me), case.world, range.len())).collect();
        interpret(&schedules, &mut buffers, case.op).expect("the schedules fit together");
        total.append(&mut buffers[0]);
    }
    if case.op == ReduceOp::Mean {
        kernel::divide(&mut total, case.world);
    }
    total
}

/// What a transport says of the network it runs over.
pub(super) struct Network {
    cost: CostModel,
    hosts: Option<Hierarchical>,
}

impl Network {
    pub(super) fn of(transport: &impl Transport) -> Self {
        let hosts = transport.hosts().map(|hosts| Hierarchical { hosts: hosts.to_vec() });
        Self { cost: transport.cost(), hosts }
    }
}

/// Element by element in order of rank: what integers must come to exactly, by whatever algorithm.
pub(super) fn in_order<E: Element>(case: &Case, operand: impl Fn(&Case, u32) -> Vec<E>) -> Vec<E> {
    let mut total = operand(case, 0);
    for rank in 1..case.world {
        kernel::scalar::reduce(case.op, &mut total, &operand(case, rank));
    }
    if case.op == ReduceOp::Mean {
        kernel::divide(&mut total, case.world);
    }
    total
}

/// As bytes, so that numbers that are none can be compared.
pub(super) fn bytes<E: Element>(elements: &[E]) -> &[u8] {
    bytemuck::cast_slice(elements)
}
