use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use antdt_core::port::ShardSource;
use antdt_core::{AckOutcome, Delivery, FetchOutcome, Incarnation, NodeId, SampleRange, Seed};
use antdt_rt::{CancellationToken, JobClock};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

use super::*;
use crate::ledger::{Missing, MissingWhy};
use crate::runtime::{ClientOptions, ShardClient, ShardService};
use crate::spec::{Assignment, Cut, DatasetSpec, Epochs, OnQuarantine, Shuffle};
use crate::store::{MemStore, NullStore};

type Stub = v1::shard_client::ShardClient<Channel>;

fn worker(index: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(incarnation))
}

fn spec(name: &str) -> DatasetSpec {
    DatasetSpec { shuffle: Shuffle::None, ..DatasetSpec::new(name, 100, 10) }
}

fn forgetful() -> Catalog {
    Catalog::new(JobClock::start(), |_| Ok(NullStore))
}

/// The connections that calls came over.
type Connections = Arc<Mutex<BTreeSet<Option<SocketAddr>>>>;

struct Serving {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// A service on the given address, or a free port of the loopback.
async fn serve(server: ShardServer, address: Option<SocketAddr>) -> (SocketAddr, Connections, Serving) {
    let listener = TcpListener::bind(address.unwrap_or(([127, 0, 0, 1], 0).into())).await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Connections::default();
    let seen = connections.clone();
    let server = v1::shard_server::ShardServer::with_interceptor(server, move |request: Request<()>| {
        seen.lock().unwrap().insert(request.remote_addr());
        Ok(request)
    });
    let (incoming, stop) = (TcpIncoming::from(listener).with_nodelay(Some(true)), CancellationToken::new());
    let router = Server::builder().add_service(server);
    let serving = router.serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
    (address, connections, Serving { stop, task: tokio::spawn(async move { serving.await.unwrap() }) })
}

fn client(address: SocketAddr, dataset: &str) -> ShardClient {
    ShardClient::connect(&address.to_string(), dataset, ClientOptions::default()).unwrap()
}

#[tokio::test]
async fn a_data_set_goes_over_the_wire_as_it_is() {
    let catalog = forgetful();
    let (address, _, _serving) = serve(ShardServer::new().with_catalog(catalog.clone()), None).await;
    let specs = [
        DatasetSpec::new("shuffled", 1_000, 7),
        DatasetSpec {
            cut: Cut::At([1, 30, 100].into()),
            epochs: Epochs::Infinite,
            shuffle: Shuffle::Shards,
            seed: Seed(u64::MAX),
            epoch_overlap: 8,
            delivery: Delivery::AtMostOnce,
            max_data_faults: 1,
            on_quarantine: OnQuarantine::Continue { max_samples: 0 },
            max_leases_per_holder: 9,
            assignment: Assignment::Static { workers: 3 },
            ..spec("of all kinds")
        },
        DatasetSpec { epochs: Epochs::Finite(u32::MAX), ..spec("plain") },
    ];
    for spec in &specs {
        let status = client(address, &spec.name).open(spec).await.unwrap();
        assert_eq!(status, catalog.get(&spec.name).unwrap().status().await.unwrap());
        // Equal settings would be refused were anything else on the other side.
        catalog.open(spec.clone()).await.unwrap();
        client(address, &spec.name).open(spec).await.unwrap();
    }
    let all = client(address, "any").status().await.unwrap();
    assert_eq!(all.keys().map(String::as_str).collect::<Vec<_>>(), ["of all kinds", "plain", "shuffled"]);
    let other = DatasetSpec { seed: Seed(1), ..specs[0].clone() };
    let error = client(address, "shuffled").open(&other).await.unwrap_err();
    assert!(matches!(&error, SourceError::Rejected(why) if why.contains("seed = 0")), "{error}");
    let error = client(address, "other name").open(&other).await.unwrap_err();
    assert!(error.to_string().contains(r#"name = "shuffled": must be "other name""#), "{error}");
}

fn stub(address: SocketAddr) -> Stub {
    Stub::new(Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy())
}

/// Every data set that cannot be registered, as a message; and the field that the answer must name.
fn refused_specs() -> Vec<(v1::DatasetSpec, &'static str)> {
    use v1::dataset_spec as of;
    let valid = || wire::spec_out(&spec("d"));
    let with = |change: fn(&mut v1::DatasetSpec)| {
        let mut spec = valid();
        change(&mut spec);
        spec
    };
    vec![
        (v1::DatasetSpec::default(), "shuffle"),
        (with(|s| s.name.clear()), "name"),
        (with(|s| s.name = "x".repeat(256)), "name"),
        (with(|s| s.num_samples = 0), "num_samples"),
        (with(|s| s.cut = None), "cut"),
        (with(|s| s.cut = Some(of::Cut::Every(0))), "shard_len"),
        (with(|s| s.cut = Some(of::Cut::Every(u64::MAX))), "shard_len"),
        (with(|s| s.cut = Some(of::Cut::At(v1::CutAt { ends: vec![] }))), "last end of cut"),
        (with(|s| s.cut = Some(of::Cut::At(v1::CutAt { ends: vec![50, 50, 100] }))), "cut[1]"),
        (with(|s| s.cut = Some(of::Cut::At(v1::CutAt { ends: vec![1; wire::CUT_ENDS_MAX + 1] }))), "cut"),
        (with(|s| s.epochs = None), "epochs"),
        (with(|s| s.epochs = Some(of::Epochs::Finite(0))), "epochs"),
        (with(|s| (s.num_samples, s.epochs) = (u64::MAX, Some(of::Epochs::Finite(2)))), "epochs"),
        (with(|s| s.shuffle = 0), "shuffle"),
        (with(|s| s.shuffle = 9), "shuffle"),
        (with(|s| (s.shuffle, s.seed) = (v1::Shuffle::Shards.into(), None)), "seed"),
        (with(|s| (s.shuffle, s.seed) = (v1::Shuffle::ShardsAndSamples.into(), None)), "seed"),
        (with(|s| s.epoch_overlap = 9), "epoch_overlap"),
        (with(|s| s.delivery = 0), "delivery"),
        (with(|s| s.delivery = -1), "delivery"),
        (with(|s| s.max_data_faults = 0), "max_data_faults"),
        (with(|s| s.on_quarantine = None), "on_quarantine"),
        (with(|s| s.max_leases_per_holder = 0), "max_leases_per_holder"),
        (with(|s| s.assignment = None), "assignment"),
        (with(|s| s.assignment = Some(of::Assignment::Workers(0))), "workers"),
        (with(|s| s.assignment = Some(of::Assignment::Workers(u32::MAX))), "workers"),
    ]
}

#[tokio::test]
async fn an_impossible_registration_is_refused_by_field_and_the_connection_is_kept() {
    let catalog = forgetful();
    let (address, connections, _serving) =
        serve(ShardServer::new().with_catalog(catalog.clone()), None).await;
    let mut stub = stub(address);
    for (spec, field) in refused_specs() {
        let status = stub.open(v1::OpenRequest { spec: Some(spec) }).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().starts_with(&format!("{field} = ")), "{field}: {status}");
    }
    let status = stub.open(v1::OpenRequest { spec: None }).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "field `spec` is missing"));
    assert_eq!(catalog.names(), [""; 0]);
    assert_eq!(connections.lock().unwrap().len(), 1);

    // Nothing is shuffled: there is nothing that a seed would be for.
    let unseeded = v1::DatasetSpec { seed: None, ..wire::spec_out(&spec("d")) };
    stub.open(v1::OpenRequest { spec: Some(unseeded) }).await.unwrap();
    // As much as may be said fits a message.
    let samples = wire::CUT_ENDS_MAX as u64;
    let ends: Vec<u64> = (1..=samples).map(|end| end << 32).collect();
    let large = DatasetSpec { num_samples: samples << 32, cut: Cut::At(ends.into()), ..spec("large") };
    stub.open(v1::OpenRequest { spec: Some(wire::spec_out(&large)) }).await.unwrap();
    assert_eq!(connections.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn more_than_a_call_may_have_is_refused_by_field_and_the_connection_is_kept() {
    let catalog = forgetful();
    let handle = catalog.open(DatasetSpec { max_leases_per_holder: u32::MAX, ..spec("d") }).await.unwrap();
    let (address, connections, _serving) = serve(ShardServer::new().with_catalog(catalog), None).await;
    let mut stub = stub(address);
    let generation = handle.register(worker(0, 0), vec![]).await.unwrap().generation;
    let (holder, dataset) = (Some(v1::Holder::from(worker(0, 0))), "d".to_owned());
    let exchange = v1::ExchangeRequest {
        dataset: dataset.clone(),
        holder,
        generation: generation.0,
        request: 1,
        want: 1,
        ..v1::ExchangeRequest::default()
    };
    let lease = Some(v1::LeaseId { generation: 0, sequence: u64::MAX });
    let ack = v1::Ack { lease, offset: u64::MAX };
    let held = v1::Held { lease, epoch: u32::MAX, index: u64::MAX, offset: u64::MAX };
    let (most, more) = (ACKS_MAX, ACKS_MAX + 1);

    let too_much = [
        (v1::ExchangeRequest { acks: vec![ack; more], ..exchange.clone() }, "acks"),
        (v1::ExchangeRequest { want: WANT_MAX + 1, ..exchange.clone() }, "want"),
        (v1::ExchangeRequest { wait_ns: 30_000_000_001, ..exchange.clone() }, "wait_ns"),
        (v1::ExchangeRequest { wait_ns: u64::MAX, ..exchange.clone() }, "wait_ns"),
    ];
    for (request, field) in too_much {
        let status = stub.exchange(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().starts_with(&format!("{field} = ")), "{field}: {status}");
    }
    let register = v1::RegisterShardsRequest { dataset: dataset.clone(), holder, held: vec![held; more] };
    let status = stub.register(register).await.unwrap_err();
    assert!(status.message().starts_with("held = 16385: must be at most 16384"), "{status}");
    let release =
        v1::ReleaseRequest { dataset: dataset.clone(), holder, generation: 1, acks: vec![ack; more] };
    let status = stub.release(release).await.unwrap_err();
    assert!(status.message().starts_with("acks = 16385"), "{status}");
    let missing = v1::MissingRequest { dataset: dataset.clone(), epoch: 0, shards: MISSING_SHARDS_MAX + 1 };
    let status = stub.missing(missing).await.unwrap_err();
    assert!(status.message().starts_with("shards = 4097"), "{status}");
    let missing = v1::MissingRequest { dataset: dataset.clone(), epoch: 1, shards: 1 };
    let status = stub.missing(missing).await.unwrap_err();
    assert!(status.message().starts_with("epoch = 1"), "{status}");
    // Larger than any message may be.
    let huge = v1::ExchangeRequest { acks: vec![ack; 1 << 18], ..exchange.clone() };
    let status = stub.exchange(huge).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    assert_eq!(handle.status().await.unwrap().counts.doing, 0, "nothing was granted over all this");

    // The most that is served, with the largest numbers there are, fits in messages both ways.
    let request = v1::RegisterShardsRequest { dataset, holder, held: vec![held; most] };
    assert_eq!(stub.register(request).await.unwrap().into_inner().adopted.len(), most);
    let request = v1::ExchangeRequest { acks: vec![ack; most], want: WANT_MAX, ..exchange };
    let reply =
        stub.exchange(v1::ExchangeRequest { wait_ns: 30_000_000_000, ..request }).await.unwrap().into_inner();
    assert_eq!(reply.outcomes, vec![i32::from(v1::AckOutcome::StaleLease); most]);
    assert!(reply.fetched.is_some());
    assert_eq!(connections.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn missing_samples_are_told_with_their_number_and_the_reason() {
    let poison = DatasetSpec {
        max_data_faults: 1,
        on_quarantine: OnQuarantine::Continue { max_samples: 100 },
        ..spec("d")
    };
    let catalog = forgetful();
    let (address, _, _serving) = serve(ShardServer::new().with_catalog(catalog), None).await;
    let client = client(address, "d");
    client.open(&poison).await.unwrap();
    client.register(worker(0, 0), &[]).await.unwrap();
    let mut grants = Vec::new();
    for request in 1..=2 {
        match client.fetch(worker(0, 0), RequestId(request), Duration::ZERO).await.unwrap() {
            FetchOutcome::Granted(grant) => grants.push(grant),
            other => panic!("{other:?}"),
        }
    }
    let at = |grant: usize, offset| Ack { lease: grants[grant].lease, offset };
    assert_eq!(client.fail(worker(0, 0), at(0, 4), "row 4").await, Ok(AckOutcome::Accepted));
    client.ack(worker(0, 0), &[at(1, 3)]).await.unwrap();

    let found = client.missing(Epoch(0), 100).await.unwrap();
    let missing = |start, end, why| Missing { epoch: Epoch(0), samples: SampleRange { start, end }, why };
    let all = [
        missing(4, 10, MissingWhy::Quarantined),
        missing(13, 20, MissingWhy::Leased),
        missing(20, 100, MissingWhy::Waiting),
    ];
    assert_eq!((found.samples, &found.ranges[..]), (93, &all[..]));
    let bounded = client.missing(Epoch(0), 1).await.unwrap();
    assert_eq!((bounded.samples, bounded.ranges.len()), (93, 1), "how much is said, also where which is not");
    let error = client.missing(Epoch(1), 1).await.unwrap_err();
    assert!(matches!(&error, SourceError::Rejected(why) if why.contains("epoch = 1")), "{error}");
}

#[tokio::test]
async fn a_service_without_a_catalog_opens_nothing_and_names_its_data_set() {
    let (shutdown, clock) = (CancellationToken::new(), JobClock::start());
    let own = ShardService::start(spec("own"), NullStore, clock, shutdown.clone()).await.unwrap();
    let (address, _, _serving) = serve(ShardServer::new().with(own.handle()).unwrap(), None).await;
    let error = client(address, "d").open(&spec("d")).await.unwrap_err();
    assert!(matches!(&error, SourceError::Rejected(why) if why.contains("opens no data sets")), "{error}");
    assert_eq!(client(address, "d").status().await.unwrap().len(), 1);
    assert_eq!(client(address, "own").missing(Epoch(0), 1).await.unwrap().samples, 100);

    // Beside a catalog both are served.
    let catalog = forgetful();
    catalog.open(spec("other")).await.unwrap();
    let both = ShardServer::new().with(own.handle()).unwrap().with_catalog(catalog);
    let (address, _, _serving) = serve(both, None).await;
    let error = client(address, "d").register(worker(0, 0), &[]).await.unwrap_err();
    assert!(error.to_string().contains(r#"there is no data set "d"; there is ["other", "own"]"#), "{error}");
    shutdown.cancel();
    own.join().await.unwrap();
    let status = client(address, "d").status().await.unwrap();
    assert!(matches!(status["own"], Err(SourceError::Unavailable { .. })), "{status:?}");
    assert!(status["other"].is_ok());
}

#[tokio::test]
async fn a_client_that_opened_a_data_set_opens_it_again_after_a_restart() {
    let store = MemStore::default();
    let catalog = |store: MemStore| Catalog::new(JobClock::start(), move |_| Ok(store.clone()));
    let first = catalog(store.clone());
    let (address, _, serving) = serve(ShardServer::new().with_catalog(first.clone()), None).await;
    let client = client(address, "d");
    client.open(&spec("d")).await.unwrap();
    client.register(worker(0, 0), &[]).await.unwrap();
    let fetched = client.fetch(worker(0, 0), RequestId(1), Duration::ZERO).await.unwrap();
    let FetchOutcome::Granted(grant) = fetched else { panic!("{fetched:?}") };
    first.shutdown().await.unwrap();
    let options = ClientOptions { retry_for: Duration::ZERO, ..ClientOptions::default() };
    let hasty = ShardClient::connect(&address.to_string(), "d", options).unwrap();
    let error = hasty.register(worker(1, 0), &[]).await.unwrap_err();
    assert!(matches!(error, SourceError::Unavailable { .. }), "it comes back, so it is not unknown: {error}");
    serving.stop.cancel();
    serving.task.await.unwrap();

    // It comes back without a data set.
    let second = catalog(store);
    let (_, _, _serving) = serve(ShardServer::new().with_catalog(second.clone()), Some(address)).await;
    let ack = [Ack { lease: grant.lease, offset: 7 }];
    let error = client.ack(worker(0, 0), &ack).await.unwrap_err();
    assert!(matches!(error, SourceError::Reregister(_)), "{error}");
    let held = Held { lease: grant.lease, key: grant.key, offset: 7 };
    let registered = client.register(worker(0, 0), &[held]).await.unwrap();
    assert_eq!(registered.adopted[0].map(|grant| grant.resume_at), Some(7));
    assert_eq!(second.get("d").unwrap().status().await.unwrap().counts.acked, 7);

    // A client that never opened it is told that it is not there.
    let stranger = ShardClient::connect(&address.to_string(), "e", ClientOptions::default()).unwrap();
    assert!(matches!(stranger.register(worker(1, 0), &[]).await, Err(SourceError::Rejected(_))));
}

#[test]
fn the_readme_shows_the_core_of_the_example() {
    let (readme, example) = (include_str!("../../../README.md"), include_str!("../../../examples/serve.rs"));
    let shown = readme.split("```").find(|block| block.contains("Catalog::in_folder")).unwrap();
    // However it is broken into lines.
    let dense = |text: &str| text.split_whitespace().collect::<String>();
    let (mut rest, mut shown_lines) = (dense(example), 0);
    // What may fail says more in the example, so that its error is a clear line.
    for line in shown.lines().filter(|line| !line.starts_with("# ") && *line != "rust") {
        let line = dense(line.trim_end_matches("?;"));
        let at = rest.find(&line).unwrap_or_else(|| panic!("not in the example, or not there: {line}"));
        rest.drain(..at + line.len());
        shown_lines += 1;
    }
    assert_eq!(shown_lines, 12, "the whole core");
}
