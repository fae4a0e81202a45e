//! A batch's worth of rows read from and written to a table of a million rows of 16.

use antdt_core::{Seed, TableSpec};
use antdt_model::optimizer::{REGISTRY, UpdateStep};
use antdt_model::{SparseGradient, SparseTable};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const LOOKUPS: usize = 13_000;

fn tables(c: &mut Criterion) {
    let spec = TableSpec::new("table", 1 << 20, 16, 0.01);
    let optimizers = ["adagrad", "adam"].map(|name| REGISTRY.by_name(name).expect("ships"));
    let step = UpdateStep { number: 9, rate: 0.01, scale: 0.01, decay: 0.0 };
    let everything: Vec<u64> = (0..spec.rows).collect();
    let mut tables = optimizers.each_ref().map(|optimizer| {
        let mut table = SparseTable::new(spec.clone(), &**optimizer, Seed(1), 0, 1).expect("fits");
        let none = vec![0.0; everything.len() * spec.dim];
        table.apply(&everything, &none, &optimizer.begin(step)).expect("fits");
        table
    });
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
            tables[0].gather(next(), &mut values).expect("rows exist");
        });
    });
    for (optimizer, table) in optimizers.iter().zip(&mut tables) {
        group.bench_function(format!("apply {}", optimizer.name()), |b| {
            b.iter(|| {
                let (rows, update) = (next(), optimizer.begin(step));
                table.apply(rows, &gradients[..rows.len() * spec.dim], &update).expect("rows exist");
            });
        });
    }
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
