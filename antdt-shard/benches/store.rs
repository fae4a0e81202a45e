//! Calls per second of a whole service, with the journal off and on, in process and over gRPC. `cargo xtask bench shard`
//! holds them against their targets.
//!
//! One element is one call that acknowledges a shard and takes the next. 16 holders ask at the same time, so that the
//! service can take several in one round; each waits for its answers. Over gRPC they share the cores with the service,
//! as on a machine of its own they would not. The folder of the journal is made below the target folder: put that on a
//! disk that counts.

#![allow(clippy::disallowed_methods, reason = "a benchmark needs the clock")]

use std::path::Path;
use std::time::{Duration, Instant};

use antdt_core::port::ShardSource;
use antdt_core::{Ack, Holder, Incarnation, NodeId, RequestId};
use antdt_rt::{CancellationToken, JobClock};
use antdt_shard::runtime::{
    ClientOptions, FileStore, FileStoreOptions, LocalSource, ShardClient, ShardServer, ShardService,
    SyncPolicy,
};
use antdt_shard::{DatasetSpec, Epochs, LedgerStore, NullStore};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

const HOLDERS: u32 = 16;

fn spec() -> DatasetSpec {
    DatasetSpec { epochs: Epochs::Infinite, epoch_overlap: 1, ..DatasetSpec::new("bench", 1_000_000, 100) }
}

/// A holder and what it has.
struct Worker<S> {
    source: S,
    holder: Holder,
    request: RequestId,
    held: Vec<Ack>,
}

impl<S: ShardSource> Worker<S> {
    /// Acknowledges the shard that it has, if it has one, and takes the next.
    async fn exchange(&mut self) {
        self.request = self.request.next();
        let wait = Duration::from_secs(1);
        let exchanged = self.source.exchange(self.holder, self.request, &self.held, 1, wait);
        let exchanged = exchanged.await.expect("a live service");
        self.held.clear();
        self.held.extend(exchanged.grants().map(|grant| Ack { lease: grant.lease, offset: grant.len }));
        assert_eq!(self.held.len(), 1, "there is no end");
    }
}

async fn register<S: ShardSource>(sources: Vec<S>) -> Vec<Worker<S>> {
    let mut workers = Vec::new();
    for (source, index) in sources.into_iter().zip(0..) {
        let holder = Holder::new(NodeId::worker(index), Incarnation(0));
        source.register(holder, &[]).await.expect("a live service");
        workers.push(Worker { source, holder, request: RequestId(0), held: Vec::new() });
    }
    workers
}

/// Every holder makes so many calls.
async fn train<S: ShardSource + 'static>(workers: &mut Vec<Worker<S>>, calls: u64) {
    let tasks: Vec<_> = workers
        .drain(..)
        .map(|mut worker| {
            tokio::spawn(async move {
                for _ in 0..calls {
                    worker.exchange().await;
                }
                worker
            })
        })
        .collect();
    for task in tasks {
        workers.push(task.await.expect("a worker that does not panic"));
    }
}

fn measure<S: ShardSource + 'static>(
    criterion: &mut Criterion,
    runtime: &Runtime,
    id: BenchmarkId,
    sources: Vec<S>,
) {
    let mut workers = runtime.block_on(register(sources));
    let mut group = criterion.benchmark_group("service/exchange");
    group.throughput(Throughput::Elements(u64::from(HOLDERS)));
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|rounds| {
            let began = Instant::now();
            runtime.block_on(train(&mut workers, rounds));
            began.elapsed()
        });
    });
    group.finish();
}

/// Makes a fresh service for each way to reach it.
fn both_ways<S: LedgerStore>(
    criterion: &mut Criterion,
    runtime: &Runtime,
    journal: &str,
    store: impl Fn() -> S,
) {
    let start = || {
        let shutdown = CancellationToken::new();
        let started = ShardService::start(spec(), store(), JobClock::start(), shutdown.clone());
        (runtime.block_on(started).expect("an empty store"), shutdown)
    };

    let (service, shutdown) = start();
    let sources: Vec<_> = (0..HOLDERS).map(|_| LocalSource::new(service.handle())).collect();
    measure(criterion, runtime, BenchmarkId::new("in process", journal), sources);
    shutdown.cancel();
    runtime.block_on(service.join()).expect("the store did not fail");

    let (service, shutdown) = start();
    let server = ShardServer::new().with(service.handle()).expect("one data set").into_service();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("a bound address").to_string();
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let serving = runtime.spawn(Server::builder().add_service(server).serve_with_incoming(incoming));
    let connect = |_| {
        // A channel is a task of the runtime from the start.
        let _guard = runtime.enter();
        ShardClient::connect(&address, "bench", ClientOptions::default()).expect("a valid address")
    };
    let sources: Vec<_> = (0..HOLDERS).map(connect).collect();
    measure(criterion, runtime, BenchmarkId::new("gRPC", journal), sources);
    serving.abort();
    shutdown.cancel();
    runtime.block_on(service.join()).expect("the store did not fail");
}

fn journal(criterion: &mut Criterion) {
    let runtime = Builder::new_multi_thread().enable_all().build().expect("a runtime");
    both_ways(criterion, &runtime, "off", || NullStore);
    let policies = [("100 ms", FileStoreOptions::default().sync), ("each", SyncPolicy::Each)];
    for (name, sync) in policies {
        let parent = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a folder");
        let options = FileStoreOptions { sync, ..FileStoreOptions::default() };
        both_ways(criterion, &runtime, name, || {
            let folder = tempfile::tempdir_in(parent.path()).expect("a folder").keep();
            FileStore::open(folder, spec(), options).expect("an empty folder")
        });
    }
}

criterion_group!(benches, journal);
criterion_main!(benches);
