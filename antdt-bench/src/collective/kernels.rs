//! The loops that fold one buffer into another, beside what memory allows.

use std::hint::black_box;

use antdt_collective::{Element, ReduceOp, kernel};
use half::{bf16, f16};

use super::OTHERS_MAX;
use super::bounds::{at_once, cores};
use crate::meter::{Others, median};
use crate::{Entry, Rows};

/// Bytes of an operand: far beyond the last cache, on every core at once.
const BYTES: usize = 64 << 20;
/// Bytes that cross between memory and core for each byte of an operand: both are read, one is written.
const MOVED: f64 = 3.0;
/// Share of the machine's own bandwidth that a kernel must reach, in percent.
const SHARE: f64 = 90.0;

/// Two operands for each core. Bytes stay below what makes a number of any type special.
struct Operands(Vec<(Vec<u64>, Vec<u64>)>);

impl Operands {
    fn new() -> Self {
        // An f64 and f32 near 2, a half near 2 and any integer.
        let one = u64::from_ne_bytes([0x00, 0x40, 0x00, 0x40, 0x00, 0x40, 0x00, 0x40]);
        let len = BYTES / size_of::<u64>();
        // Written, for pages of zeros that never were are all the same one.
        let zeros = || {
            let mut zeros = vec![one; len];
            zeros.fill(0);
            zeros
        };
        Self((0..cores(u32::MAX)).map(|_| (vec![one; len], zeros())).collect())
    }

    // Sums with zeros stay what they are, round after round.
    fn kernel<E: Element>(&mut self) -> f64 {
        at_once(&mut self.0, |(into, incoming)| {
            let (into, incoming) = (bytemuck::cast_slice_mut::<u64, E>(into), bytemuck::cast_slice(incoming));
            kernel::reduce(ReduceOp::Sum, black_box(into), black_box(incoming));
        })
    }

    // The plain loop, of the compiler's making.
    fn plain(&mut self) -> f64 {
        at_once(&mut self.0, |(into, incoming)| {
            let (into, incoming) =
                (bytemuck::cast_slice_mut::<u64, f32>(into), bytemuck::cast_slice(incoming));
            for (a, b) in black_box(into).iter_mut().zip::<&[f32]>(black_box(incoming)) {
                *a += *b;
            }
        })
    }

    fn copy(&mut self) -> f64 {
        at_once(&mut self.0, |(into, incoming)| black_box(incoming).copy_from_slice(black_box(into)))
    }
}

/// Every type's kernel against the plain loop, in turns; all cores at work.
pub(super) fn kernels(rounds: usize, slack: f64, rows: &mut Rows) {
    type Work = fn(&mut Operands) -> f64;
    let types: [(&str, Work); 7] = [
        ("f32", Operands::kernel::<f32>),
        ("f64", Operands::kernel::<f64>),
        ("f16", Operands::kernel::<f16>),
        ("bf16", Operands::kernel::<bf16>),
        ("i32", Operands::kernel::<i32>),
        ("i64", Operands::kernel::<i64>),
        ("u8", Operands::kernel::<u8>),
    ];
    let watched = Others::watch();
    let mut operands = Operands::new();
    let mut times = vec![Vec::new(); types.len() + 1];
    for round in 0..rounds {
        for turn in 0..times.len() {
            let turn = (turn + round) % times.len();
            let time = types.get(turn).map_or(operands.plain(), |(_, kernel)| kernel(&mut operands));
            times[turn].push(time);
        }
    }
    let copies = median((0..rounds).map(|_| operands.copy()));
    let others = watched.share();
    let rate = |time: f64| BYTES as f64 / time / 1e9;
    let medians: Vec<f64> = times.into_iter().map(median).collect();
    let plain = medians[types.len()];
    let cores = operands.0.len();
    let title = |what: &str| format!("memory, {cores} cores at once: {what}");
    rows.push(Entry::shown(title("memcpy, a core"), rate(copies), "GB/s"));
    rows.push(
        Entry::shown(title("a[i] += b[i] of f32, a core"), rate(plain), "GB/s")
            .beside(format!("{:.1} GB/s moved by a core", MOVED * rate(plain))),
    );
    for ((name, _), time) in types.iter().zip(medians) {
        rows.push(
            Entry::shown(format!("kernel: sum of {name}, {} MiB", BYTES >> 20), 100.0 * plain / time, "%")
                .at_least(SHARE / slack)
                .beside(format!("{:.1} GB/s of one operand, plain loop {:.1}", rate(time), rate(plain)))
                .unless_overloaded(others, OTHERS_MAX),
        );
    }
}
