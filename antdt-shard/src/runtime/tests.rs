use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use antdt_core::port::SeamError;
use antdt_core::{
    Ack, AckOutcome, Counts, FetchOutcome, Generation, Grant, Holder, Incarnation, NodeId, RequestId, Retry,
};
use antdt_rt::{CancellationToken, JobClock};
use tokio::time::Instant;

use super::*;
use crate::error::{RecoverError, SourceError};
use crate::ledger::{Record, Recovery};
use crate::spec::{Cut, DatasetSpec, Epochs, Shuffle};
use crate::store::{BoxStore, LedgerStore, MemStore, NullStore};
use crate::testing::source::check_source;
use crate::testing::store::check_store;

fn worker(index: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(incarnation))
}

fn spec() -> DatasetSpec {
    DatasetSpec { shuffle: Shuffle::None, ..DatasetSpec::new("d", 10, 4) }
}

async fn service<S: LedgerStore>(spec: DatasetSpec, store: S) -> (ShardService<S::Error>, CancellationToken) {
    let shutdown = CancellationToken::new();
    let service = ShardService::start(spec, store, JobClock::start(), shutdown.clone()).await.unwrap();
    (service, shutdown)
}

/// What an exchange is made of.
trait Shorthand {
    async fn enter(&self, holder: Holder) -> Result<Generation, SourceError>;
    async fn fetch(
        &self,
        holder: Holder,
        generation: Generation,
        request: RequestId,
        wait: Duration,
    ) -> Result<FetchOutcome, SourceError>;
    async fn ack(&self, holder: Holder, acks: Vec<Ack>) -> Result<Vec<AckOutcome>, SourceError>;
}

impl Shorthand for ShardHandle {
    async fn enter(&self, holder: Holder) -> Result<Generation, SourceError> {
        Ok(self.register(holder, Vec::new()).await?.generation)
    }

    async fn fetch(
        &self,
        holder: Holder,
        generation: Generation,
        request: RequestId,
        wait: Duration,
    ) -> Result<FetchOutcome, SourceError> {
        let exchanged = self.exchange(holder, generation, request, Vec::new().into(), 1, wait).await?;
        Ok(exchanged.fetched.expect("something was wanted"))
    }

    async fn ack(&self, holder: Holder, acks: Vec<Ack>) -> Result<Vec<AckOutcome>, SourceError> {
        self.settle(holder, acks).await
    }
}

async fn granted(handle: &ShardHandle, holder: Holder, generation: Generation, request: u64) -> Grant {
    match handle.fetch(holder, generation, RequestId(request), Duration::ZERO).await.unwrap() {
        FetchOutcome::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

fn all(grant: &Grant) -> Ack {
    Ack { lease: grant.lease, offset: grant.len }
}

#[tokio::test(start_paused = true)]
async fn the_source_in_process_keeps_the_contract() {
    let (service, _shutdown) = service(spec(), NullStore).await;
    let handle = service.handle();
    check_source(|| LocalSource::new(handle.clone())).await;
}

#[tokio::test]
async fn the_store_in_memory_keeps_the_contract() {
    let store = MemStore::default();
    check_store(|| store.clone()).await;
    let boxed = MemStore::default();
    check_store(|| BoxStore::new(boxed.clone())).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_by_a_returned_shard() {
    let (service, _shutdown) = service(DatasetSpec { num_samples: 4, ..spec() }, NullStore).await;
    let handle = service.handle();
    let generation = handle.enter(worker(0, 0)).await.unwrap();
    handle.enter(worker(1, 0)).await.unwrap();
    let first = granted(&handle, worker(0, 0), generation, 1).await;

    let began = Instant::now();
    let waiter = handle.clone();
    let waiting = tokio::spawn(async move {
        waiter.fetch(worker(1, 0), generation, RequestId(1), Duration::from_secs(20)).await
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!waiting.is_finished());
    handle.worker_lost(worker(0, 0)).await.unwrap();
    let FetchOutcome::Granted(grant) = waiting.await.unwrap().unwrap() else { panic!() };
    assert_eq!(grant.key, first.key);
    assert_eq!(began.elapsed(), Duration::from_secs(3), "at once, not at the next poll");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_by_the_next_epoch_and_by_the_end() {
    let spec = DatasetSpec { num_samples: 4, epochs: Epochs::Finite(2), ..spec() };
    let (service, _shutdown) = service(spec, NullStore).await;
    let handle = service.handle();
    let generation = handle.enter(worker(0, 0)).await.unwrap();
    handle.enter(worker(1, 0)).await.unwrap();
    let mut holder = worker(0, 0);
    let mut other = worker(1, 0);
    for request in 1..=2 {
        let grant = granted(&handle, holder, generation, request).await;
        let long = Duration::from_secs(25);
        let began = Instant::now();
        let (outcome, acked) =
            tokio::join!(handle.fetch(other, generation, RequestId(request), long), async {
                tokio::time::sleep(Duration::from_secs(7)).await;
                handle.ack(holder, vec![all(&grant)]).await
            });
        assert_eq!(acked.unwrap(), [AckOutcome::Accepted]);
        assert_eq!(began.elapsed(), Duration::from_secs(7));
        match outcome.unwrap() {
            FetchOutcome::Granted(next) if request == 1 => {
                // Give it back, so that the other way round is tried too.
                handle.release(other, vec![Ack { lease: next.lease, offset: 0 }]).await.unwrap();
            }
            FetchOutcome::EndOfData if request == 2 => {}
            outcome => panic!("{outcome:?}"),
        }
        // A request that was answered with a grant must be followed by a higher one.
        (holder, other) = (holder, worker(2, 0));
        handle.enter(other).await.unwrap();
    }
    assert!(handle.status().await.unwrap().finished);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_hears_to_wait_when_its_time_is_over() {
    let (service, _shutdown) = service(DatasetSpec { num_samples: 4, ..spec() }, NullStore).await;
    let handle = service.handle();
    let generation = handle.enter(worker(0, 0)).await.unwrap();
    handle.enter(worker(1, 0)).await.unwrap();
    granted(&handle, worker(0, 0), generation, 1).await;
    let began = Instant::now();
    let outcome = handle.fetch(worker(1, 0), generation, RequestId(1), Duration::from_secs(2)).await.unwrap();
    assert!(matches!(outcome, FetchOutcome::Wait { .. }));
    assert_eq!(began.elapsed(), Duration::from_secs(2));
    let began = Instant::now();
    handle.fetch(worker(1, 0), generation, RequestId(1), Duration::MAX).await.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(30), "no call is held for ever");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_fenced_or_whose_service_ends_is_told() {
    let (service, shutdown) = service(DatasetSpec { num_samples: 4, ..spec() }, NullStore).await;
    let handle = service.handle();
    let generation = handle.enter(worker(0, 0)).await.unwrap();
    handle.enter(worker(1, 0)).await.unwrap();
    granted(&handle, worker(0, 0), generation, 1).await;
    let long = Duration::from_secs(20);
    let (outcome, _) = tokio::join!(handle.fetch(worker(1, 0), generation, RequestId(1), long), async {
        handle.worker_lost(worker(1, 0)).await
    });
    assert!(matches!(outcome, Err(SourceError::Fenced(_))), "{outcome:?}");
    handle.enter(worker(1, 1)).await.unwrap();
    let (outcome, ()) = tokio::join!(handle.fetch(worker(1, 1), generation, RequestId(1), long), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        shutdown.cancel();
    });
    let error = outcome.unwrap_err();
    assert!(matches!(error, SourceError::Unavailable { .. }), "an end of the service is no end of the data");
    assert_eq!(error.retry(), Retry::Later);
    assert_eq!(service.join().await.unwrap().outstanding().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_service_goes_on_in_a_new_generation() {
    let store = MemStore::default();
    let (first, shutdown) = service(spec(), store.clone()).await;
    let handle = first.handle();
    let generation = handle.enter(worker(0, 0)).await.unwrap();
    let (done, part) = (
        granted(&handle, worker(0, 0), generation, 1).await,
        granted(&handle, worker(0, 0), generation, 2).await,
    );
    handle.ack(worker(0, 0), vec![all(&done), Ack { lease: part.lease, offset: 1 }]).await.unwrap();
    handle.worker_lost(worker(9, 4)).await.unwrap();
    shutdown.cancel();
    let before = first.join().await.unwrap();
    assert!(matches!(handle.status().await, Err(SourceError::Unavailable { .. })));

    let (second, _shutdown) = service(spec(), store).await;
    let handle = second.handle();
    let status = handle.status().await.unwrap();
    assert_eq!(status.generation, generation.next());
    assert_eq!(status.counts, Counts { doing: 0, todo: 5, ..before.counts() });
    assert!(matches!(handle.enter(worker(9, 4)).await, Err(SourceError::Fenced(_))), "fences survive");
    let late = handle.fetch(worker(0, 0), generation, RequestId(3), Duration::ZERO).await;
    assert!(matches!(late, Err(SourceError::Reregister(_))), "{late:?}");
    assert_eq!(handle.ack(worker(0, 0), vec![all(&part)]).await.unwrap(), [AckOutcome::StaleLease]);
    let generation = handle.enter(worker(0, 0)).await.unwrap();
    let again = granted(&handle, worker(0, 0), generation, 1).await;
    assert_eq!((again.key, again.resume_at), (part.key, 1));

    // And back to a snapshot, in one more.
    let snapshot = handle.snapshot().await.unwrap();
    handle.ack(worker(0, 0), vec![all(&again)]).await.unwrap();
    assert_eq!(handle.restore(snapshot).await.unwrap(), generation.next());
    assert_eq!(handle.status().await.unwrap().counts.acked, 5);
    let other = crate::ShardLedger::new(DatasetSpec::new("d", 11, 4), Generation(1)).unwrap().snapshot();
    assert!(matches!(handle.restore(other).await, Err(SourceError::Rejected(_))));
}

/// Fails when told to, for good or for want of room, and keeps what it was given before.
#[derive(Clone, Default)]
struct FailingStore {
    kept: MemStore,
    broken: Arc<AtomicBool>,
    full: Arc<AtomicBool>,
}

impl LedgerStore for FailingStore {
    type Error = io::Error;

    async fn load(&mut self, recovery: Recovery) -> Result<Recovery, io::Error> {
        self.kept.load(recovery).await.map_err(io::Error::other)
    }

    async fn append(&mut self, records: &[Record]) -> Result<(), io::Error> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(io::Error::from(io::ErrorKind::Other));
        }
        if self.full.load(Ordering::Relaxed) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.kept.append(records).await.map_err(io::Error::other)
    }

    fn is_full(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::StorageFull
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_could_not_be_stored_is_never_given() {
    let store = FailingStore::default();
    let (service, _shutdown) = service(spec(), store.clone()).await;
    let handle = service.handle();
    let generation = handle.enter(worker(0, 0)).await.unwrap();
    let grant = granted(&handle, worker(0, 0), generation, 1).await;
    store.broken.store(true, Ordering::Relaxed);
    let error = handle.ack(worker(0, 0), vec![all(&grant)]).await.unwrap_err();
    assert_eq!(error.retry(), Retry::Later);
    let error = service.join().await.unwrap_err();
    assert!(matches!(&error, ServiceError::Store { source, .. } if source.kind() == io::ErrorKind::Other));

    store.broken.store(false, Ordering::Relaxed);
    let (service, _shutdown) = self::service(spec(), store).await;
    assert_eq!(
        service.handle().status().await.unwrap().counts.acked,
        0,
        "so nothing is done that nobody was told"
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_store_stops_the_grants_and_keeps_the_acks() {
    let store = FailingStore::default();
    let (service, shutdown) = service(spec(), store.clone()).await;
    let handle = service.handle();
    let generation = handle.enter(worker(0, 0)).await.unwrap();
    handle.enter(worker(1, 0)).await.unwrap();
    let first = granted(&handle, worker(0, 0), generation, 1).await;
    let second = granted(&handle, worker(0, 0), generation, 2).await;
    store.full.store(true, Ordering::Relaxed);

    // Acks count, here and for every client, but the store has none of them.
    let before = store.kept.records();
    assert_eq!(handle.ack(worker(0, 0), vec![all(&first)]).await.unwrap(), [AckOutcome::Accepted]);
    assert_eq!(handle.ack(worker(0, 0), vec![all(&second)]).await.unwrap(), [AckOutcome::Accepted]);
    assert_eq!(handle.status().await.unwrap().counts.acked, first.len + second.len);
    assert_eq!(store.kept.records(), before);
    let outcome = handle.fetch(worker(1, 0), generation, RequestId(1), Duration::ZERO).await.unwrap();
    assert!(matches!(outcome, FetchOutcome::Wait { .. }), "{outcome:?}");

    // A waiting worker gets its shard when there is room again, without another call of any worker.
    let waiter = handle.clone();
    let waiting = tokio::spawn(async move {
        waiter.fetch(worker(1, 0), generation, RequestId(1), Duration::from_secs(20)).await
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!waiting.is_finished());
    let began = Instant::now();
    store.full.store(false, Ordering::Relaxed);
    let FetchOutcome::Granted(third) = waiting.await.unwrap().unwrap() else { panic!() };
    assert!(began.elapsed() <= Duration::from_secs(1), "at the next try");
    assert_eq!(store.kept.records().len(), before.len() + 2, "each ack once");

    // The end is announced when it is stored.
    store.full.store(true, Ordering::Relaxed);
    handle.ack(worker(1, 0), vec![all(&third)]).await.unwrap();
    let outcome = handle.fetch(worker(1, 0), generation, RequestId(2), Duration::from_secs(3)).await.unwrap();
    assert!(matches!(outcome, FetchOutcome::Wait { .. }), "{outcome:?}");
    store.full.store(false, Ordering::Relaxed);
    let outcome = handle.fetch(worker(1, 0), generation, RequestId(2), Duration::from_secs(3)).await.unwrap();
    assert_eq!(outcome, FetchOutcome::EndOfData);

    shutdown.cancel();
    let ledger = service.join().await.unwrap();
    let stored = crate::ShardLedger::recover(spec(), store.kept.records(), generation.next()).unwrap();
    assert_eq!(stored.counts(), ledger.counts());
}

#[tokio::test(start_paused = true)]
async fn acks_that_a_full_store_never_took_are_trained_again() {
    let store = FailingStore::default();
    let (first, shutdown) = service(spec(), store.clone()).await;
    let handle = first.handle();
    let generation = handle.enter(worker(0, 0)).await.unwrap();
    let grant = granted(&handle, worker(0, 0), generation, 1).await;
    handle.ack(worker(0, 0), vec![Ack { lease: grant.lease, offset: 1 }]).await.unwrap();
    store.full.store(true, Ordering::Relaxed);
    handle.ack(worker(0, 0), vec![all(&grant)]).await.unwrap();
    shutdown.cancel();
    first.join().await.unwrap();

    store.full.store(false, Ordering::Relaxed);
    let (second, _shutdown) = service(spec(), store).await;
    let handle = second.handle();
    let generation = handle.enter(worker(0, 0)).await.unwrap();
    let again = granted(&handle, worker(0, 0), generation, 1).await;
    assert_eq!((again.key, again.resume_at), (grant.key, 1), "from the last ack that was stored");
}

#[tokio::test(start_paused = true)]
async fn a_log_of_another_data_set_is_refused() {
    let mut store = MemStore::default();
    store.append(&[Record::Acked { epoch: antdt_core::Epoch(0), position: 0, offset: 1 }]).await.unwrap();
    let error =
        ShardService::start(spec(), store, JobClock::start(), CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, ServiceError::Store { source: RecoverError::Unfit { .. }, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_with_its_last_handle() {
    let (service, _shutdown) = service(spec(), NullStore).await;
    assert_eq!(service.join().await.unwrap().counts().todo, 10);
}

#[cfg(feature = "grpc")]
mod grpc {
    use antdt_core::port::ShardSource;
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;
    use tonic::transport::Server;
    use tonic::transport::server::TcpIncoming;

    use super::*;

    /// Serves on a free port of the loopback, for as long as the token is not cancelled.
    async fn serve(server: ShardServer) -> (String, CancellationToken, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = (CancellationToken::new(), CancellationToken::new());
        let signal = stop.clone();
        let task = tokio::spawn(async move {
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            let router = Server::builder().add_service(server.into_service());
            router.serve_with_incoming_shutdown(incoming, signal.cancelled_owned()).await.unwrap();
            drop(stopped);
        });
        (address, stop, task)
    }

    fn client(address: &str) -> ShardClient {
        ShardClient::connect(address, "d", ClientOptions::default()).unwrap()
    }

    #[tokio::test]
    async fn the_source_over_grpc_keeps_the_contract() {
        let (service, _shutdown) = service(spec(), NullStore).await;
        let (address, _stop, _task) = serve(ShardServer::new().with(service.handle()).unwrap()).await;
        check_source(|| client(&address)).await;
    }

    #[tokio::test]
    async fn four_clients_train_every_sample_once() {
        let spec = DatasetSpec { epochs: Epochs::Finite(3), ..DatasetSpec::new("d", 1_000, 7) };
        let (service, _shutdown) = service(spec, NullStore).await;
        let (address, _stop, _task) = serve(ShardServer::new().with(service.handle()).unwrap()).await;
        let mut clients = tokio::task::JoinSet::new();
        for index in 0..4 {
            let client = client(&address);
            clients.spawn(async move {
                let holder = worker(index, 0);
                client.register(holder, &[]).await.unwrap();
                let mut trained = 0;
                for request in 1.. {
                    let wait = Duration::from_secs(5);
                    match client.fetch(holder, RequestId(request), wait).await.unwrap() {
                        FetchOutcome::Granted(grant) => {
                            trained += grant.len - grant.resume_at;
                            assert_eq!(
                                client.ack(holder, &[all(&grant)]).await.unwrap(),
                                [AckOutcome::Accepted]
                            );
                        }
                        FetchOutcome::EndOfData => return trained,
                        FetchOutcome::Wait { .. } => {}
                        FetchOutcome::AtLimit => panic!("everything was acknowledged"),
                    }
                }
                unreachable!("the loop ends with the data")
            });
        }
        assert_eq!(clients.join_all().await.iter().sum::<u64>(), 3_000);
        let status = service.handle().status().await.unwrap();
        assert!(status.finished);
        assert_eq!(status.counts, Counts { total: 3_000, acked: 3_000, ..Counts::default() });
    }

    #[tokio::test]
    async fn each_refusal_arrives_as_its_own_error() {
        let poison = DatasetSpec { max_data_faults: 1, ..spec() };
        let (service, _shutdown) = service(poison, NullStore).await;
        let handle = service.handle();
        let (address, _stop, _task) = serve(ShardServer::new().with(handle.clone()).unwrap()).await;
        let client = client(&address);
        let fetch = |request| client.fetch(worker(0, 1), RequestId(request), Duration::ZERO);

        assert!(matches!(fetch(1).await, Err(SourceError::Reregister(_))));
        client.register(worker(0, 1), &[]).await.unwrap();
        assert!(matches!(client.register(worker(0, 0), &[]).await, Err(SourceError::Fenced(_))));
        let server = Holder::new(NodeId::server(0), Incarnation(0));
        assert!(matches!(client.register(server, &[]).await, Err(SourceError::Rejected(_))));
        let elsewhere = ShardClient::connect(&address, "e", ClientOptions::default()).unwrap();
        let unknown = elsewhere.register(worker(0, 1), &[]).await.unwrap_err();
        assert!(unknown.to_string().contains(r#"there is no data set "e"; there is ["d"]"#), "{unknown}");
        let FetchOutcome::Granted(grant) = fetch(2).await.unwrap() else { panic!() };
        assert!(matches!(fetch(1).await, Err(SourceError::Rejected(_))));
        let beyond = Ack { lease: grant.lease, offset: 5 };
        assert!(matches!(client.ack(worker(0, 1), &[beyond]).await, Err(SourceError::Rejected(_))));
        let unread = Ack { lease: grant.lease, offset: 1 };
        assert_eq!(client.fail(worker(0, 1), unread, "row 1").await, Ok(AckOutcome::Accepted));
        assert!(matches!(fetch(3).await, Err(SourceError::DataLost(_))));
        handle.worker_lost(worker(0, 1)).await.unwrap();
        assert!(matches!(fetch(4).await, Err(SourceError::Fenced(_))));
    }

    #[tokio::test]
    async fn an_unreachable_service_is_an_error_and_not_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let options = ClientOptions { retry_for: Duration::from_millis(50), ..ClientOptions::default() };
        let client = ShardClient::connect(&address, "d", options).unwrap();
        let error = client.fetch(worker(0, 0), RequestId(1), Duration::ZERO).await.unwrap_err();
        assert!(matches!(error, SourceError::Unavailable { .. }), "{error}");
        assert!(ShardClient::connect("not an address", "d", options).is_err());
    }

    #[tokio::test]
    async fn a_silent_service_runs_into_the_deadline() {
        // Accepts connections and never says a word.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let silent = tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.push(stream);
            }
        });
        let short = Duration::from_millis(50);
        let options = ClientOptions { call_deadline: short, retry_for: short, ..ClientOptions::default() };
        let client = ShardClient::connect(&address, "d", options).unwrap();
        let error = client.register(worker(0, 0), &[]).await.unwrap_err();
        assert!(matches!(error, SourceError::Unavailable { .. }), "{error}");
        silent.abort();
    }

    #[tokio::test]
    async fn a_client_outlives_a_restart_of_the_service() {
        let store = MemStore::default();
        let (first, shutdown) = service(spec(), store.clone()).await;
        let (address, stop, task) = serve(ShardServer::new().with(first.handle()).unwrap()).await;
        let client = client(&address);
        client.register(worker(0, 0), &[]).await.unwrap();
        let FetchOutcome::Granted(grant) =
            client.fetch(worker(0, 0), RequestId(1), Duration::ZERO).await.unwrap()
        else {
            panic!()
        };
        client.ack(worker(0, 0), &[Ack { lease: grant.lease, offset: 3 }]).await.unwrap();
        shutdown.cancel();
        first.join().await.unwrap();

        // The call is under way while no service runs; the listener of the second one takes it up.
        let late = tokio::spawn({
            let client = client.clone();
            async move { client.fetch(worker(0, 0), RequestId(2), Duration::ZERO).await }
        });
        stop.cancel();
        task.await.unwrap();
        let (second, _shutdown) = service(spec(), store).await;
        let listener = TcpListener::bind(&address).await.unwrap();
        let server = ShardServer::new().with(second.handle()).unwrap().into_service();
        let serving = tokio::spawn(
            Server::builder().add_service(server).serve_with_incoming(TcpIncoming::from(listener)),
        );
        assert!(matches!(late.await.unwrap(), Err(SourceError::Reregister(_))), "a new generation");
        client.register(worker(0, 0), &[]).await.unwrap();
        let FetchOutcome::Granted(again) =
            client.fetch(worker(0, 0), RequestId(1), Duration::ZERO).await.unwrap()
        else {
            panic!()
        };
        assert_eq!((again.key, again.resume_at), (grant.key, 3));
        serving.abort();
    }

    #[tokio::test]
    async fn two_data_sets_of_one_name_are_refused() {
        let (one, _shutdown) = service(spec(), NullStore).await;
        let (two, _shutdown) = service(DatasetSpec { cut: Cut::Every(5), ..spec() }, NullStore).await;
        let (eval, _shutdown) = service(DatasetSpec { name: "eval".to_owned(), ..spec() }, NullStore).await;
        let server = ShardServer::new().with(one.handle()).unwrap().with(eval.handle()).unwrap();
        let error = server.with(two.handle()).unwrap_err();
        assert!(error.to_string().starts_with("dataset = d"), "{error}");
    }
}
