//! Reducing one slice into another: bytes per second of the folded operand.

use antdt_collective::kernel::reduce;
use antdt_collective::{Element, ReduceOp};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;

fn sums<E: Element>(c: &mut Criterion, one: E) {
    let mut group = c.benchmark_group(format!("sum/{}", E::TYPE));
    // In the first cache, in the last, in memory.
    for bytes in [16 << 10, 4 << 20, 64 << 20] {
        let (mut into, incoming) =
            (vec![E::default(); bytes / size_of::<E>()], vec![one; bytes / size_of::<E>()]);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(bytes), |b| {
            b.iter(|| reduce(ReduceOp::Sum, &mut into, &incoming));
        });
    }
    group.finish();
}

fn kernels(c: &mut Criterion) {
    sums(c, 1.0_f32);
    sums(c, 1.0_f64);
    sums(c, 1_i32);
    sums(c, bf16::ONE);
}

criterion_group!(benches, kernels);
criterion_main!(benches);
