//! Transitions of the pure ledger per second, and that a larger data set costs no more.
//!
//! One element is one transition (a fetch or an ack), the drained records included.

use std::hint::black_box;

use antdt_core::{Ack, FetchOutcome, Generation, Holder, Incarnation, Machine, NodeId, RequestId};
use antdt_shard::{DatasetSpec, Epochs, ShardLedger};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const HOLDERS: u32 = 16;

/// A ledger in the middle of its work: 16 holders, each with a lease out, and some shards that came back.
struct Running {
    ledger: ShardLedger,
    held: Vec<(Holder, Ack)>,
    request: u64,
}

impl Running {
    fn new(shards: u64) -> Self {
        let spec = DatasetSpec {
            epochs: Epochs::Infinite,
            epoch_overlap: 1,
            ..DatasetSpec::new("d", shards * 100, 100)
        };
        let ledger = ShardLedger::new(spec, Generation(1)).expect("a valid data set");
        let mut running = Self { ledger, held: Vec::new(), request: 0 };
        for index in 0..HOLDERS {
            let holder = Holder::new(NodeId::worker(index), Incarnation(0));
            running.ledger.register(holder).expect("a new holder");
            running.fetch(holder);
        }
        running.drain();
        running
    }

    fn fetch(&mut self, holder: Holder) {
        self.request += 1;
        let outcome = self.ledger.fetch(holder, Generation(1), RequestId(self.request));
        let Ok(FetchOutcome::Granted(grant)) = outcome else { panic!("{outcome:?}") };
        self.held.push((holder, Ack { lease: grant.lease, offset: grant.len }));
    }

    fn drain(&mut self) {
        while let Some(effect) = self.ledger.poll_effect() {
            black_box(&effect);
        }
    }

    /// Every holder finishes its shard and takes the next.
    fn round(&mut self) {
        for (holder, ack) in std::mem::take(&mut self.held) {
            black_box(self.ledger.ack(holder, ack)).expect("a live lease");
            self.drain();
            self.fetch(holder);
            self.drain();
        }
    }
}

fn transitions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ledger/fetch+ack");
    group.throughput(Throughput::Elements(2 * u64::from(HOLDERS)));
    for shards in [1_000_u64, 100_000, 100_000_000] {
        let mut running = Running::new(shards);
        group.bench_function(BenchmarkId::from_parameter(shards), |bencher| bencher.iter(|| running.round()));
    }
    group.finish();
}

fn opening(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ledger/open_epoch");
    for shards in [1_000_u64, 100_000_000] {
        group.bench_function(BenchmarkId::from_parameter(shards), |bencher| {
            bencher.iter(|| Running::new(black_box(shards)).held.len());
        });
    }
    group.finish();
}

criterion_group!(benches, transitions, opening);
criterion_main!(benches);
