//! A batch's worth of rows read from and written to a table of a million rows of 16.

use antdt_core::{OptimizerSpec, Seed, TableSpec};
use antdt_model::{SparseGradient, SparseTable};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const LOOKUPS: usize = 13_000;

fn tables(c: &mut Criterion) {
    let spec = TableSpec { rows: 1 << 20, dim: 16, init_scale: 0.01 };
    let optimizer = OptimizerSpec::Adagrad { learning_rate: 0.01, epsilon: 1e-8 };
    let mut table = SparseTable::new(spec, optimizer, Seed(1), 0, 1).expect("fits");
    let everything: Vec<u64> = (0..spec.rows).collect();
    table.apply(&everything, &vec![0.0; everything.len() * spec.dim], 1.0).expect("fits");
    let mut rng = Seed(2).rng();
    let mut batch = || {
        let mut rows: Vec<u64> = (0..LOOKUPS).map(|_| rng.below(spec.rows)).collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    };
    // Several batches in turn, so that rows are not in the cache from the last time.
    let batches: Vec<Vec<u64>> = (0..32).map(|_| batch()).collect();
    let gradients: Vec<f32> = vec![0.1; LOOKUPS * spec.dim];
    let mut values = Vec::new();
    let mut turn = 0;
    let mut next = || {
        turn = (turn + 1) % batches.len();
        &batches[turn]
    };
    let mut group = c.benchmark_group("table 1M x 16, 13k rows");
    group.throughput(Throughput::Elements(LOOKUPS as u64));
    group.bench_function("gather", |b| {
        b.iter(|| {
            values.clear();
            table.gather(next(), &mut values).expect("rows exist");
        });
    });
    group.bench_function("apply", |b| {
        b.iter(|| {
            let rows = next();
            table.apply(rows, &gradients[..rows.len() * spec.dim], 0.01).expect("rows exist");
        });
    });
    group.bench_function("merge of 4", |b| {
        b.iter(|| {
            let parts =
                batches[..4].iter().map(|rows| (rows.as_slice(), &gradients[..rows.len() * spec.dim]));
            SparseGradient::merge(parts, spec.dim)
        });
    });
    group.finish();
}

criterion_group!(benches, tables);
criterion_main!(benches);
