use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use antdt_collective::runtime::transport::REGISTRY;
use antdt_collective::{AbortHandle, JobToken};
use antdt_core::testing::Mask;
use antdt_core::{
    CheckpointId, Connections, DoorwayLimits, Holder, Incarnation, Iteration, NodeId, ParamGroup,
    ParamLayout, PushMark, Seed, ServerWeights, TableSpec,
};

use super::server::PsServerError;
use super::*;
use crate::UpdateRule;
use crate::wire::{MessageHeader, PsHello, PsRefusal, PsRequest};
use crate::{
    CommitToken, InitOutcome, PartitionConfig, PartitionMap, PushOutcome, Replica, SparseGradient, Staleness,
    Trained,
};

fn adagrad() -> UpdateRule {
    UpdateRule { decay: 0.01, ..UpdateRule::named("adagrad", 0.1).unwrap() }
}

const DENSE: usize = 11;
const DIM: usize = 3;
const ROWS: u64 = 60;

fn layout() -> ParamLayout {
    let groups = vec![
        ParamGroup::trainable("weight", 6),
        ParamGroup::state("running mean", 3),
        ParamGroup::trainable("bias", 2).without_decay(),
    ];
    let tables = vec![TableSpec::new("users", 35, DIM, 0.1), TableSpec::new("items", ROWS - 35, 2, 0.1)];
    ParamLayout::new(groups, tables).unwrap()
}

fn config(server: u32, servers: u32, staleness: Staleness) -> PsServerConfig {
    weighted(server, servers, &ServerWeights::default(), staleness)
}

fn weighted(server: u32, servers: u32, weights: &ServerWeights, staleness: Staleness) -> PsServerConfig {
    let (layout, weights) = (layout(), weights.clone());
    let partition =
        PartitionConfig { layout, rule: adagrad(), seed: Seed(3), server, servers, weights, staleness };
    PsServerConfig::new(partition, JobToken::new("job"))
}

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn bind(transport: &str, address: SocketAddr, config: PsServerConfig) -> Result<PsServer, PsServerError> {
    PsServer::bind(address, config, REGISTRY.by_name(transport).unwrap())
}

fn connect(
    transport: &str,
    addresses: &[SocketAddr],
    config: PsClientConfig,
    abort: &AbortHandle,
) -> Result<PsClient, PsError> {
    PsClient::connect(addresses, config, &*REGISTRY.by_name(transport).unwrap(), abort)
}

fn start(transport: &str, servers: u32, staleness: Staleness) -> (Vec<PsServer>, Vec<SocketAddr>) {
    start_weighted(transport, servers, &ServerWeights::default(), staleness)
}

fn start_weighted(
    transport: &str,
    servers: u32,
    weights: &ServerWeights,
    staleness: Staleness,
) -> (Vec<PsServer>, Vec<SocketAddr>) {
    let running: Vec<PsServer> = (0..servers)
        .map(|server| bind(transport, any_port(), weighted(server, servers, weights, staleness)).unwrap())
        .collect();
    let addresses = running.iter().map(PsServer::local_address).collect();
    (running, addresses)
}

fn holder(worker: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(worker), Incarnation(incarnation))
}

fn client(transport: &str, addresses: &[SocketAddr], holder: Holder) -> PsClient {
    let config = PsClientConfig::new(holder, JobToken::new("job"), layout());
    connect(transport, addresses, config, &AbortHandle::new().unwrap()).unwrap()
}

fn initial() -> Vec<f32> {
    (0..DENSE).map(|i| i as f32 * 0.1).collect()
}

// A gradient that depends on the parameters, so that a wrong pull shows.
fn gradient(
    worker: u32,
    step: u64,
    dense: &[f32],
    rows: &[u64],
    values: &[f32],
) -> (u64, Vec<f32>, Vec<f32>) {
    let mut rng = Seed(u64::from(worker)).derive_number(step).rng();
    let samples = 1 + rng.below(20);
    let noise = rng.normal() as f32;
    let dense = dense.iter().map(|w| w + noise).collect();
    let layout = layout();
    let of_row = |(row, values): (u64, &[f32])| -> Vec<f32> {
        values.iter().map(|w| w * noise - row as f32 * 0.01).collect()
    };
    (samples, dense, layout.by_row(rows, values).flat_map(of_row).collect())
}

fn touched(worker: u32, step: u64) -> Vec<u64> {
    let mut rng = Seed(100 + u64::from(worker)).derive_number(step).rng();
    (0..ROWS).filter(|_| rng.below(3) == 0).collect()
}

// One test for each over every transport: what servers promise does not depend on it.
macro_rules! over_every_transport {
    ($($name:ident)*) => {
        over_every_transport!(tcp: $($name)*);
        over_every_transport!(shm: $($name)*);
    };
    ($transport:ident: $($name:ident)*) => {
        mod $transport {
            $(
                #[test]
                fn $name() {
                    super::$name(stringify!($transport));
                }
            )*
        }
    };
}

over_every_transport! {
    workers_in_step_get_the_model_that_one_worker_with_the_whole_batch_would_bit_for_bit
    pushes_at_their_own_pace_change_the_model_when_they_count_and_once
    a_refusal_leaves_the_connections_good
    strangers_are_turned_away_with_the_reason
    a_server_takes_no_more_workers_than_it_was_told_and_another_one_once_a_place_is_free
    strangers_that_say_nothing_take_no_place_of_a_worker_and_few_threads
    a_server_with_a_wrapper_refuses_workers_without_one_and_serves_those_with_it
    a_server_that_stops_ends_its_clients_calls_and_leaves_no_thread
    servers_copy_the_step_that_is_committed_and_others_go_on_from_the_copies
    a_server_that_is_silent_is_given_up_at_the_deadline_and_at_the_abort
}

fn servers_copy_the_step_that_is_committed_and_others_go_on_from_the_copies(transport: &str) {
    let (servers, addresses) = start(transport, 2, Staleness::Synchronous);
    let mut one = client(transport, &addresses, holder(0, 0));
    one.init_dense(&initial()).unwrap();
    let rows: Vec<u64> = (0..ROWS).step_by(3).collect();
    let (mut dense, mut values) = (vec![0.0; DENSE], Vec::new());
    one.pull(None, &rows, &mut dense, &mut values).unwrap();
    for step in 0..2 {
        one.push(Iteration(step), 4, &dense, &rows, &values).unwrap();
        if step == 0 {
            let commit = CommitToken {
                step: Iteration(0),
                contributors: vec![holder(0, 0)],
                samples: 4,
                everyone: true,
            };
            let trained = one.copy(Some(&commit), CheckpointId(7)).unwrap();
            assert_eq!(
                trained,
                [Trained { steps: 1, samples: 4 }; 2],
                "the push of the open step is not in it"
            );
            one.pull(None, &rows, &mut dense, &mut values).unwrap();
        }
    }
    one.copy(None, CheckpointId(9)).unwrap();
    one.copy(None, CheckpointId(8)).unwrap();
    one.copy(None, CheckpointId(8)).unwrap();
    let copies: Vec<ServerCopy> = servers.iter().map(|server| server.take_copy().unwrap()).collect();
    for server in &servers {
        let later: Vec<CheckpointId> =
            std::iter::from_fn(|| server.take_copy()).map(|copy| copy.checkpoint).collect();
        assert_eq!(later, [CheckpointId(9), CheckpointId(8)], "none takes the place of another");
    }
    assert!(copies.iter().all(|copy| copy.checkpoint == CheckpointId(7)) && servers[0].take_copy().is_none());

    let weights = ServerWeights::new(&[2, 1, 5]).unwrap();
    let (others, addresses) = start_weighted(transport, 3, &weights, Staleness::Synchronous);
    for (server, index) in others.iter().zip(0..) {
        let set: usize = copies.iter().map(|copy| server.restore(&copy.portion, true).unwrap()).sum();
        assert_eq!(set, PartitionMap::weighted(3, DENSE, &weights).unwrap().dense(index).len());
        server.set_trained(Trained { steps: 1, samples: 4 });
    }
    let mut other = client(transport, &addresses, holder(0, 0));
    assert_eq!(other.init_dense(&initial()), Ok(InitOutcome::AlreadyInitialised));
    let (mut same_dense, mut same_values) = (vec![0.0; DENSE], Vec::new());
    other.pull(None, &rows, &mut same_dense, &mut same_values).unwrap();
    assert_eq!((same_dense, same_values), (dense, values));
    assert_eq!(other.copy(None, CheckpointId(8)), Ok(vec![Trained { steps: 1, samples: 4 }; 3]));
}

const WORKERS: u32 = 3;
const STEPS: u64 = 6;

fn workers_in_step_get_the_model_that_one_worker_with_the_whole_batch_would_bit_for_bit(transport: &str) {
    // However the model is divided among the servers.
    for weights in ["equal", "64,21,64"] {
        workers_in_step_get_the_model_of_one_worker(transport, &weights.parse().unwrap());
    }
}

fn workers_in_step_get_the_model_of_one_worker(transport: &str, weights: &ServerWeights) {
    let (servers, addresses) = start_weighted(transport, 3, weights, Staleness::Synchronous);
    let (meet, samples) = (Barrier::new(WORKERS as usize), std::sync::Mutex::new(vec![0; STEPS as usize]));
    let models: Vec<(Vec<f32>, Vec<f32>)> = thread::scope(|scope| {
        let work = |worker: u32| {
            let mut client = client(transport, &addresses, holder(worker, 0));
            client.init_dense(&initial()).unwrap();
            let (mut dense, mut values) = (vec![0.0; DENSE], Vec::new());
            let commit = |step: u64| CommitToken {
                step: Iteration(step),
                contributors: (0..WORKERS).map(|worker| holder(worker, 0)).collect(),
                samples: samples.lock().unwrap()[step as usize],
                everyone: true,
            };
            for step in 0..STEPS {
                let rows = touched(worker, step);
                let before = step.checked_sub(1).map(commit);
                client.pull(before.as_ref(), &rows, &mut dense, &mut values).unwrap();
                let (n, dense, values) = gradient(worker, step, &dense, &rows, &values);
                assert_eq!(
                    client.push(Iteration(step), n, &dense, &rows, &values),
                    Ok(PushOutcome::Buffered)
                );
                samples.lock().unwrap()[step as usize] += n;
                // The step coordinator's part: all are ready.
                meet.wait();
            }
            let rows: Vec<u64> = (0..ROWS).collect();
            client.pull(Some(&commit(STEPS - 1)), &rows, &mut dense, &mut values).unwrap();
            (dense, values)
        };
        let threads: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });

    let mut replica = Replica::new(&layout(), &adagrad(), Seed(3), initial()).unwrap();
    for step in 0..STEPS {
        let mut parts = Vec::new();
        let (mut total, mut dense_sum) = (0, None::<Vec<f32>>);
        for worker in 0..WORKERS {
            let rows = touched(worker, step);
            let mut values = Vec::new();
            replica.gather(&rows, &mut values).unwrap();
            let (n, dense, values) = gradient(worker, step, replica.dense(), &rows, &values);
            total += n;
            match &mut dense_sum {
                Some(sum) => sum.iter_mut().zip(&dense).for_each(|(sum, value)| *sum += value),
                None => dense_sum = Some(dense),
            }
            parts.push(SparseGradient { rows, values }.into_tables(&layout()));
        }
        let layout = layout();
        let merged = layout.tables().iter().enumerate().map(|(table, spec)| {
            let parts = parts.iter().map(|part| (part[table].rows.as_slice(), part[table].values.as_slice()));
            SparseGradient::merge(parts, spec.dim)
        });
        let merged = SparseGradient::from_tables(merged.collect(), &layout);
        replica.apply(&dense_sum.unwrap(), &merged, total).unwrap();
    }
    let mut expected = Vec::new();
    replica.gather(&(0..ROWS).collect::<Vec<_>>(), &mut expected).unwrap();
    for (dense, rows) in models {
        assert_eq!(dense, replica.dense());
        assert_eq!(rows, expected);
    }
    for server in &servers {
        let stats = server.stats();
        assert_eq!(
            (stats.pushes, stats.pulls),
            (u64::from(WORKERS) * STEPS, u64::from(WORKERS) * (STEPS + 1))
        );
        assert!(stats.bytes > 0 && stats.refused == 0);
    }
}

fn pushes_at_their_own_pace_change_the_model_when_they_count_and_once(transport: &str) {
    let (_servers, addresses) = start(transport, 2, Staleness::Unbounded { scale: 0.1 });
    let mut client = client(transport, &addresses, holder(0, 0));
    assert_eq!(client.init_dense(&initial()), Ok(InitOutcome::Stored));
    assert_eq!(client.init_dense(&[9.0; DENSE]), Ok(InitOutcome::AlreadyInitialised));
    let (mut dense, mut values) = (vec![0.0; DENSE], Vec::new());
    let push = |client: &mut PsClient| client.push(Iteration(4), 2, &[1.0; DENSE], &[5, 6], &[1.0; 2 * DIM]);
    assert_eq!(push(&mut client), Ok(PushOutcome::Buffered));
    client.pull(None, &[5, 6, 7], &mut dense, &mut values).unwrap();
    assert_eq!(dense, initial());
    let mark = PushMark { holder: holder(0, 0), step: Some(4) };
    client.count(&[mark]).unwrap();
    client.pull(None, &[5, 6, 7], &mut dense, &mut values).unwrap();
    assert!(dense.iter().zip(initial()).all(|(now, before)| *now < before));
    let after = (dense.clone(), values.clone());
    assert_eq!(push(&mut client), Ok(PushOutcome::Duplicate));
    client.count(&[mark]).unwrap();
    client.pull(None, &[5, 6, 7], &mut dense, &mut values).unwrap();
    assert_eq!((dense, values), after);
}

fn a_refusal_leaves_the_connections_good(transport: &str) {
    let (servers, addresses) = start(transport, 2, Staleness::Synchronous);
    let mut client = client(transport, &addresses, holder(0, 0));
    let (mut dense, mut values) = (vec![0.0; DENSE], Vec::new());
    let refused = |error: PsError| match error {
        PsError::Refused { refusal, .. } => refusal,
        other => panic!("{other}"),
    };
    let too_soon = client.pull(None, &[], &mut dense, &mut values).unwrap_err();
    assert_eq!(refused(too_soon), PsRefusal::NotInitialised);
    client.init_dense(&initial()).unwrap();
    let outside = client.pull(None, &[ROWS], &mut dense, &mut values).unwrap_err();
    assert_eq!(refused(outside), PsRefusal::Invalid);
    let commit =
        CommitToken { step: Iteration(0), contributors: vec![holder(1, 0)], samples: 1, everyone: true };
    let missing = client.pull(Some(&commit), &[], &mut dense, &mut values).unwrap_err();
    assert_eq!(refused(missing), PsRefusal::Commit);
    assert!(client.push(Iteration(0), 1, &[0.0; DENSE], &[1], &[0.0; 2]).is_err());
    for server in &servers {
        server.lost(PushMark { holder: holder(0, 0), step: None });
    }
    let fenced = client.push(Iteration(0), 1, &[0.0; DENSE], &[], &[]).unwrap_err();
    assert!(fenced.is_fenced(), "{fenced}");
    client.pull(None, &[1, 2], &mut dense, &mut values).unwrap();
    assert_eq!(dense, initial());
    assert!(servers[0].stats().refused >= 3);
}

fn strangers_are_turned_away_with_the_reason(transport: &str) {
    let (_servers, addresses) = start(transport, 2, Staleness::Synchronous);
    let call = |addresses: &[SocketAddr], job: &str, layout: ParamLayout| {
        let config = PsClientConfig::new(holder(0, 0), JobToken::new(job), layout);
        connect(transport, addresses, config, &AbortHandle::new().unwrap()).map(drop)
    };
    let swapped: Vec<SocketAddr> = addresses.iter().rev().copied().collect();
    let other_layout =
        ParamLayout::new(ParamLayout::dense(DENSE + 1).groups().to_vec(), layout().tables().to_vec())
            .unwrap();
    for result in [
        call(&addresses, "another", layout()),
        call(&swapped, "job", layout()),
        call(&addresses[..1], "job", layout()),
        call(&addresses, "job", other_layout),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, PsError::Refused { refusal: PsRefusal::Stranger, .. }), "{error}");
    }
    assert!(matches!(call(&[], "job", layout()), Err(PsError::Invalid(_))));
    assert_eq!(call(&addresses, "job", layout()), Ok(()));
}

#[test]
fn bytes_that_make_no_sense_end_their_connection_and_no_other() {
    let transport = "tcp";
    let (_servers, addresses) = start(transport, 1, Staleness::Synchronous);
    let mut good = client(transport, &addresses, holder(0, 0));
    good.init_dense(&initial()).unwrap();
    let mut hello = Vec::new();
    PsRequest::Hello(PsHello::new(JobToken::new("job"), holder(1, 0), 0, 1, &layout())).encode(&mut hello);
    let mut huge = hello.clone();
    huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    let checksum = crc32c::crc32c(&huge[..20]);
    huge[20..24].copy_from_slice(&checksum.to_le_bytes());
    let mut damaged = hello.clone();
    damaged[MessageHeader::LEN] ^= 1;
    for bytes in [vec![0xff; 300], huge, damaged, [hello.clone(), vec![7; 400]].concat()] {
        let mut stream = TcpStream::connect(addresses[0]).unwrap();
        stream.write_all(&bytes).unwrap();
        // The server hangs up; what it said before is of no interest.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    }
    let (mut dense, mut values) = (vec![0.0; DENSE], Vec::new());
    good.pull(None, &[1], &mut dense, &mut values).unwrap();
    assert_eq!(dense, initial());
}

#[test]
fn servers_that_divide_the_model_differently_serve_no_worker_together() {
    let weights = |text: &str| text.parse::<ServerWeights>().unwrap();
    let each = [weights("1,2"), weights("2,1")];
    let servers: Vec<PsServer> = (0..)
        .zip(&each)
        .map(|(server, each)| {
            bind("tcp", any_port(), weighted(server, 2, each, Staleness::Synchronous)).unwrap()
        })
        .collect();
    let addresses: Vec<SocketAddr> = servers.iter().map(PsServer::local_address).collect();
    let config = PsClientConfig::new(holder(0, 0), JobToken::new("job"), layout());
    let error = connect("tcp", &addresses, config, &AbortHandle::new().unwrap()).unwrap_err();
    assert!(matches!(error, PsError::Protocol { server: 1, .. }), "{error}");
}

fn a_server_takes_no_more_workers_than_it_was_told_and_another_one_once_a_place_is_free(transport: &str) {
    let mut config = config(0, 1, Staleness::Synchronous);
    config.connections_max = 1;
    let server = bind(transport, any_port(), config).unwrap();
    let addresses = [server.local_address()];
    let first = client(transport, &addresses, holder(0, 0));
    let second = PsClientConfig::new(holder(1, 0), JobToken::new("job"), layout());
    let abort = AbortHandle::new().unwrap();
    let error = connect(transport, &addresses, second.clone(), &abort).unwrap_err();
    assert!(matches!(error, PsError::Refused { refusal: PsRefusal::Full, .. }), "{error}");
    drop(first);
    // The server learns in a moment that the first has gone.
    while let Err(error) = connect(transport, &addresses, second.clone(), &abort) {
        assert!(matches!(error, PsError::Refused { refusal: PsRefusal::Full, .. }), "{error}");
        thread::yield_now();
    }
}

fn strangers_that_say_nothing_take_no_place_of_a_worker_and_few_threads(transport: &str) {
    let mut config = config(0, 1, Staleness::Synchronous);
    config.connections_max = 1;
    config.doorway = DoorwayLimits { most: 4, patience: Duration::from_secs(3600), stay: Duration::ZERO };
    let server = bind(transport, any_port(), config).unwrap();
    let address = server.local_address();
    let strangers: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    for mut stranger in &strangers[..16] {
        // Ends once the server has closed it, and its thread with it.
        stranger.read_to_end(&mut Vec::new()).unwrap();
    }
    let mut worker = client(transport, &[address], holder(0, 0));
    worker.init_dense(&initial()).unwrap();
    // A caller that has said hello is none of those that must go.
    let more: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    for mut stranger in &more[..16] {
        stranger.read_to_end(&mut Vec::new()).unwrap();
    }
    assert_eq!(worker.init_dense(&initial()), Ok(InitOutcome::AlreadyInitialised));
}

fn a_server_with_a_wrapper_refuses_workers_without_one_and_serves_those_with_it(transport: &str) {
    let mask = Connections::wrapped(Mask::default());
    let both = [mask, Connections::default()];
    for (server, worker) in both.iter().flat_map(|server| both.iter().map(move |worker| (server, worker))) {
        let config = PsServerConfig { connections: server.clone(), ..config(0, 1, Staleness::Synchronous) };
        let running = bind(transport, any_port(), config).unwrap();
        let config = PsClientConfig {
            connections: worker.clone(),
            ..PsClientConfig::new(holder(0, 0), JobToken::new("job"), layout())
        };
        let connected = connect(transport, &[running.local_address()], config, &AbortHandle::new().unwrap());
        if server != worker {
            let error = connected.unwrap_err();
            assert!(matches!(error, PsError::Closed { server: 0 } | PsError::Protocol { .. }), "{error}");
            continue;
        }
        let mut client = connected.unwrap();
        client.init_dense(&initial()).unwrap();
        let (mut dense, mut values) = (vec![0.0; DENSE], Vec::new());
        client.pull(None, &[1, 40], &mut dense, &mut values).unwrap();
        assert_eq!(dense, initial());
        client.push(Iteration(0), 3, &dense, &[1, 40], &values).unwrap();
    }
}

fn a_server_that_stops_ends_its_clients_calls_and_leaves_no_thread(transport: &str) {
    let (servers, addresses) = start(transport, 2, Staleness::Synchronous);
    let mut client = client(transport, &addresses, holder(0, 0));
    for server in servers {
        // Joins its threads.
        server.shutdown();
    }
    let closed = client.init_dense(&initial()).unwrap_err();
    assert!(matches!(closed, PsError::Closed { .. }), "{closed}");
    assert_eq!(client.init_dense(&initial()), Err(PsError::Broken));
    let config = PsClientConfig::new(holder(0, 0), JobToken::new("job"), layout());
    let gone = connect(transport, &addresses, config, &AbortHandle::new().unwrap()).unwrap_err();
    assert!(matches!(gone, PsError::Closed { server: 0 }), "{gone}");
}

fn a_server_that_is_silent_is_given_up_at_the_deadline_and_at_the_abort(transport: &str) {
    let silent = TcpListener::bind(any_port()).unwrap();
    let addresses = [silent.local_addr().unwrap()];
    let mut config = PsClientConfig::new(holder(0, 0), JobToken::new("job"), layout());
    config.timeout = Duration::from_millis(50);
    let late = connect(transport, &addresses, config.clone(), &AbortHandle::new().unwrap()).unwrap_err();
    assert!(matches!(late, PsError::Timeout { server: 0, .. }), "{late}");
    config.timeout = Duration::from_secs(30);
    let abort = AbortHandle::new().unwrap();
    let error = thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(transport, &addresses, config, &abort).map(drop));
        abort.abort("fenced");
        waiting.join().unwrap().unwrap_err()
    });
    assert_eq!(error, PsError::Aborted { reason: "fenced".to_owned() });
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let taken = TcpListener::bind(any_port()).unwrap();
    let address = taken.local_addr().unwrap();
    let error = bind("tcp", address, config(0, 1, Staleness::Synchronous)).unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    let error = bind("tcp", any_port(), config(3, 2, Staleness::Synchronous)).unwrap_err();
    assert!(matches!(&error, PsServerError::Config(value) if value.field == "server"), "{error}");
}
