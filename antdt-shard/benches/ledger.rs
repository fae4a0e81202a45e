//! Transitions of the pure ledger per second, and that a larger data set costs no more; what a snapshot of a ledger
//! full of holes costs the task that owns it; how fast a log is read again.
//!
//! One element of `fetch+ack` is one transition (a fetch or an ack), the drained records included. One element of
//! `replay` is one record. One element of `exchange` is the call with which a worker ends a step, with 100 to 16,384
//! workers that come in any order.

use std::cell::{LazyCell, RefCell};
use std::collections::VecDeque;
use std::hint::black_box;

use antdt_core::{
    Ack, DetRng, Epoch, FetchOutcome, Generation, Grant, Holder, Incarnation, Machine, NodeId, RequestId,
    Seed,
};
use antdt_shard::{DatasetSpec, Epochs, LedgerSnapshot, Record, Recovery, ShardLedger};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const HOLDERS: u32 = 16;
/// Samples of a shard.
const SHARD: u64 = 100;
/// Shards of the epoch with holes, and how many of them are done, anywhere.
const SHARDS_HOLES: u64 = 100_000_000;
const HOLES: u64 = 10_000_000;
/// Records read again in one iteration.
const RECORDS: u64 = 100_000;

fn spec(shards: u64) -> DatasetSpec {
    DatasetSpec { epochs: Epochs::Infinite, epoch_overlap: 1, ..DatasetSpec::new("d", shards * SHARD, SHARD) }
}

/// A ledger in the middle of its work: 16 holders, each with a lease out.
#[derive(Clone)]
struct Running {
    ledger: ShardLedger,
    generation: Generation,
    held: Vec<(Holder, Ack)>,
    request: u64,
}

impl Running {
    fn new(shards: u64) -> Self {
        Self::with(ShardLedger::new(spec(shards), Generation(1)).expect("a valid data set"))
    }

    fn with(mut ledger: ShardLedger) -> Self {
        let generation = ledger.generation();
        while ledger.poll_effect().is_some() {}
        let mut running = Self { ledger, generation, held: Vec::new(), request: 0 };
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
        let outcome = self.ledger.fetch(holder, self.generation, RequestId(self.request));
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

/// A log that has just opened its first epoch.
fn recovery(shards: u64) -> Recovery {
    let mut recovery = Recovery::new(spec(shards)).expect("a valid data set");
    let begin = [
        Record::GenerationStarted { generation: Generation(1) },
        Record::EpochOpened { share: 0, epoch: Epoch(0) },
    ];
    for record in begin {
        recovery.apply(&record).expect("it follows");
    }
    recovery
}

/// A job in step: every worker acknowledges a batch, and asks for a shard when it has less than the next batch.
struct InStep {
    ledger: ShardLedger,
    /// Each with its request and, of each lease, what it has trained.
    workers: Vec<(u64, VecDeque<(Grant, u64)>)>,
    /// The order in which they come: anew with every step.
    order: Vec<u32>,
    rng: DetRng,
}

impl InStep {
    const BATCH: u64 = 64;

    fn new(workers: u32) -> Self {
        // Two batches and a half, as in a job of a thousand steps.
        let spec = DatasetSpec {
            epochs: Epochs::Infinite,
            epoch_overlap: 1,
            max_leases_per_holder: 2 * workers,
            ..DatasetSpec::new("d", 1_000_000 * u64::from(workers), 160)
        };
        let mut ledger = ShardLedger::new(spec, Generation(1)).expect("a valid data set");
        for index in 0..workers {
            ledger.register(Holder::new(NodeId::worker(index), Incarnation(0))).expect("a new holder");
        }
        let states = vec![(0, VecDeque::new()); workers as usize];
        Self { ledger, workers: states, order: (0..workers).collect(), rng: Seed(1).rng() }
    }

    fn step(&mut self) {
        for at in (1..self.order.len()).rev() {
            let with = self.rng.below(at as u64 + 1) as usize;
            self.order.swap(at, with);
        }
        for index in &self.order {
            let (request, leases) = &mut self.workers[*index as usize];
            let (mut acks, mut left) = (Vec::new(), Self::BATCH);
            for (grant, offset) in leases.iter_mut() {
                let taken = left.min(grant.len - *offset);
                (left, *offset) = (left - taken, *offset + taken);
                if taken > 0 {
                    acks.push(Ack { lease: grant.lease, offset: *offset });
                }
            }
            leases.retain(|(grant, offset)| *offset < grant.len);
            let waits: u64 = leases.iter().map(|(grant, offset)| grant.len - offset).sum();
            let want = u32::from(waits < Self::BATCH);
            *request += u64::from(want);
            let holder = Holder::new(NodeId::worker(*index), Incarnation(0));
            let answer = self.ledger.exchange(holder, Generation(1), RequestId(*request), &acks, want);
            if let Some(FetchOutcome::Granted(grant)) = answer.expect("a live holder").fetched {
                leases.push_back((grant, grant.resume_at));
            }
            while let Some(effect) = self.ledger.poll_effect() {
                black_box(&effect);
            }
        }
    }
}

fn exchanges(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ledger/exchange");
    for workers in [100_u32, 1_000, 16_384] {
        let mut job = InStep::new(workers);
        job.step();
        group.throughput(Throughput::Elements(u64::from(workers)));
        group.bench_function(BenchmarkId::from_parameter(workers), |bencher| bencher.iter(|| job.step()));
    }
    group.finish();
}

/// Resident memory of this process in MiB, where the system tells.
fn resident_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib >> 10)
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

fn replay(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ledger/replay");
    group.throughput(Throughput::Elements(RECORDS));
    let acked = |position| Record::Acked { epoch: Epoch(0), position, offset: SHARD };
    let records: Vec<Record> = (0..RECORDS).map(acked).collect();
    for shards in [RECORDS, 100_000_000] {
        group.bench_function(BenchmarkId::from_parameter(shards), |bencher| {
            bencher.iter_batched_ref(
                || recovery(shards),
                |recovery| records.iter().for_each(|record| recovery.apply(record).expect("it waits")),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

/// A ledger with 10⁷ of 10⁸ shards done, anywhere.
fn full_of_holes() -> Running {
    let before = resident_mib();
    let mut recovery = recovery(SHARDS_HOLES);
    let mut rng = Seed(1).rng();
    let mut done = 0;
    while done < HOLES {
        let position = rng.below(SHARDS_HOLES);
        // A position that comes up twice is refused the second time.
        done +=
            u64::from(recovery.apply(&Record::Acked { epoch: Epoch(0), position, offset: SHARD }).is_ok());
    }
    if let (Some(before), Some(after)) = (before, resident_mib()) {
        println!(
            "ledger/holes: {} MiB for {HOLES} holes in {SHARDS_HOLES} shards",
            after.saturating_sub(before)
        );
    }
    Running::with(recovery.finish(Generation(2)).expect("a newer generation"))
}

fn holes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ledger/holes");
    // Made when the first of these is run, for it takes seconds.
    let running = LazyCell::<RefCell<Running>>::new(|| full_of_holes().into());
    group.bench_function("snapshot", |bencher| {
        let running = running.borrow();
        bencher.iter_with_large_drop(|| running.ledger.snapshot());
    });
    // What is not the owner's to do.
    group.bench_function("to_bytes", |bencher| {
        let snapshot = running.borrow().ledger.snapshot();
        bencher.iter_with_large_drop(|| snapshot.to_bytes());
    });
    group.bench_function("from_bytes", |bencher| {
        let bytes = running.borrow().ledger.snapshot().to_bytes();
        let spec = spec(SHARDS_HOLES);
        bencher.iter_with_large_drop(|| LedgerSnapshot::from_bytes(&bytes, &spec).expect("its own bytes"));
    });
    group.throughput(Throughput::Elements(2 * u64::from(HOLDERS)));
    group.bench_function("fetch+ack", |bencher| {
        let mut running = running.borrow_mut();
        bencher.iter(|| running.round());
    });
    // A copy that goes on writes into what it shares with the original, which must be copied first, piece by piece.
    group.bench_function("fetch+ack after a snapshot", |bencher| {
        let running = running.borrow();
        bencher.iter_batched_ref(|| running.clone(), Running::round, BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(benches, transitions, exchanges, opening, replay, holes);
criterion_main!(benches);
