use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use antdt_collective::{AbortHandle, JobToken};
use antdt_core::{Holder, Incarnation, Iteration, NodeId, OptimizerSpec, ParamLayout, Seed, TableSpec};

use super::server::PsServerError;
use super::*;
use crate::wire::{MessageHeader, PsHello, Refusal, Request};
use crate::{InitOutcome, PartitionConfig, PushOutcome, Replica, SparseGradient, Staleness, StepCommit};

const ADAGRAD: OptimizerSpec = OptimizerSpec::Adagrad { learning_rate: 0.1, epsilon: 1e-8 };
const DENSE: usize = 11;
const DIM: usize = 3;
const ROWS: u64 = 60;

fn layout() -> ParamLayout {
    ParamLayout { dense_len: DENSE, table: Some(TableSpec { rows: ROWS, dim: DIM, init_scale: 0.1 }) }
}

fn config(server: u32, servers: u32, staleness: Staleness) -> PsServerConfig {
    let partition =
        PartitionConfig { layout: layout(), optimizer: ADAGRAD, seed: Seed(3), server, servers, staleness };
    PsServerConfig::new(partition, JobToken::new("job"))
}

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn start(servers: u32, staleness: Staleness) -> (Vec<PsServer>, Vec<SocketAddr>) {
    let running: Vec<PsServer> = (0..servers)
        .map(|server| PsServer::bind(any_port(), config(server, servers, staleness)).unwrap())
        .collect();
    let addresses = running.iter().map(PsServer::local_address).collect();
    (running, addresses)
}

fn holder(worker: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(worker), Incarnation(incarnation))
}

fn client(addresses: &[SocketAddr], holder: Holder) -> PsClient {
    let config = PsClientConfig::new(holder, JobToken::new("job"), layout());
    PsClient::connect(addresses, config, &AbortHandle::new().unwrap()).unwrap()
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
    let values = values
        .iter()
        .zip(rows.iter().flat_map(|row| [*row; DIM]))
        .map(|(w, row)| w * noise - row as f32 * 0.01);
    (samples, dense, values.collect())
}

fn touched(worker: u32, step: u64) -> Vec<u64> {
    let mut rng = Seed(100 + u64::from(worker)).derive_number(step).rng();
    (0..ROWS).filter(|_| rng.below(3) == 0).collect()
}

const WORKERS: u32 = 3;
const STEPS: u64 = 6;

#[test]
fn workers_in_step_get_the_model_that_one_worker_with_the_whole_batch_would_bit_for_bit() {
    let (servers, addresses) = start(3, Staleness::Synchronous);
    let (meet, samples) = (Barrier::new(WORKERS as usize), std::sync::Mutex::new(vec![0; STEPS as usize]));
    let models: Vec<(Vec<f32>, Vec<f32>)> = thread::scope(|scope| {
        let work = |worker: u32| {
            let mut client = client(&addresses, holder(worker, 0));
            client.init_dense(&initial()).unwrap();
            let (mut dense, mut values) = (vec![0.0; DENSE], Vec::new());
            let commit = |step: u64| StepCommit {
                step: Iteration(step),
                contributors: (0..WORKERS).map(|worker| holder(worker, 0)).collect(),
                samples: samples.lock().unwrap()[step as usize],
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

    let mut replica = Replica::new(&layout(), ADAGRAD, Seed(3), initial()).unwrap();
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
            parts.push((rows, values));
        }
        let merged = SparseGradient::merge(parts.iter().map(|(r, v)| (r.as_slice(), v.as_slice())), DIM);
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

#[test]
fn workers_at_their_own_pace_change_the_model_at_once_and_repeats_count_once() {
    let (_servers, addresses) = start(2, Staleness::Unbounded { scale: 0.1 });
    let mut client = client(&addresses, holder(0, 0));
    assert_eq!(client.init_dense(&initial()), Ok(InitOutcome::Stored));
    assert_eq!(client.init_dense(&[9.0; DENSE]), Ok(InitOutcome::AlreadyInitialised));
    let (mut dense, mut values) = (vec![0.0; DENSE], Vec::new());
    let push = |client: &mut PsClient| client.push(Iteration(4), 2, &[1.0; DENSE], &[5, 6], &[1.0; 2 * DIM]);
    assert_eq!(push(&mut client), Ok(PushOutcome::Applied));
    client.pull(None, &[5, 6, 7], &mut dense, &mut values).unwrap();
    assert!(dense.iter().zip(initial()).all(|(now, before)| *now < before));
    let after = (dense.clone(), values.clone());
    assert_eq!(push(&mut client), Ok(PushOutcome::Duplicate));
    client.pull(None, &[5, 6, 7], &mut dense, &mut values).unwrap();
    assert_eq!((dense, values), after);
}

#[test]
fn a_refusal_leaves_the_connections_good() {
    let (servers, addresses) = start(2, Staleness::Synchronous);
    let mut client = client(&addresses, holder(0, 0));
    let (mut dense, mut values) = (vec![0.0; DENSE], Vec::new());
    let refused = |error: PsError| match error {
        PsError::Refused { refusal, .. } => refusal,
        other => panic!("{other}"),
    };
    let too_soon = client.pull(None, &[], &mut dense, &mut values).unwrap_err();
    assert_eq!(refused(too_soon), Refusal::NotInitialised);
    client.init_dense(&initial()).unwrap();
    let outside = client.pull(None, &[ROWS], &mut dense, &mut values).unwrap_err();
    assert_eq!(refused(outside), Refusal::Invalid);
    let commit = StepCommit { step: Iteration(0), contributors: vec![holder(1, 0)], samples: 1 };
    let missing = client.pull(Some(&commit), &[], &mut dense, &mut values).unwrap_err();
    assert_eq!(refused(missing), Refusal::Commit);
    assert!(client.push(Iteration(0), 1, &[0.0; DENSE], &[1], &[0.0; 2]).is_err());
    for server in &servers {
        server.lost(holder(0, 0));
    }
    let fenced = client.push(Iteration(0), 1, &[0.0; DENSE], &[], &[]).unwrap_err();
    assert!(fenced.is_fenced(), "{fenced}");
    client.pull(None, &[1, 2], &mut dense, &mut values).unwrap();
    assert_eq!(dense, initial());
    assert!(servers[0].stats().refused >= 3);
}

#[test]
fn strangers_are_turned_away_with_the_reason() {
    let (_servers, addresses) = start(2, Staleness::Synchronous);
    let connect = |addresses: &[SocketAddr], job: &str, layout: ParamLayout| {
        let config = PsClientConfig::new(holder(0, 0), JobToken::new(job), layout);
        PsClient::connect(addresses, config, &AbortHandle::new().unwrap()).map(drop)
    };
    let swapped: Vec<SocketAddr> = addresses.iter().rev().copied().collect();
    let other_layout = ParamLayout { dense_len: DENSE + 1, ..layout() };
    for result in [
        connect(&addresses, "another", layout()),
        connect(&swapped, "job", layout()),
        connect(&addresses[..1], "job", layout()),
        connect(&addresses, "job", other_layout),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, PsError::Refused { refusal: Refusal::Stranger, .. }), "{error}");
    }
    assert!(matches!(connect(&[], "job", layout()), Err(PsError::Invalid(_))));
    assert_eq!(connect(&addresses, "job", layout()), Ok(()));
}

#[test]
fn bytes_that_make_no_sense_end_their_connection_and_no_other() {
    let (_servers, addresses) = start(1, Staleness::Synchronous);
    let mut good = client(&addresses, holder(0, 0));
    good.init_dense(&initial()).unwrap();
    let mut hello = Vec::new();
    Request::hello(&mut hello, &PsHello::new(JobToken::new("job"), holder(1, 0), 0, 1, &layout()));
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
fn a_server_takes_no_more_connections_than_it_was_told() {
    let mut config = config(0, 1, Staleness::Synchronous);
    config.connections_max = 1;
    let server = PsServer::bind(any_port(), config).unwrap();
    let addresses = [server.local_address()];
    let _first = client(&addresses, holder(0, 0));
    let second = PsClientConfig::new(holder(1, 0), JobToken::new("job"), layout());
    let error = PsClient::connect(&addresses, second, &AbortHandle::new().unwrap()).unwrap_err();
    assert!(matches!(error, PsError::Refused { refusal: Refusal::Full, .. }), "{error}");
}

#[test]
fn a_server_that_stops_ends_its_clients_calls_and_leaves_no_thread() {
    let (servers, addresses) = start(2, Staleness::Synchronous);
    let mut client = client(&addresses, holder(0, 0));
    for server in servers {
        // Joins its threads.
        server.shutdown();
    }
    let closed = client.init_dense(&initial()).unwrap_err();
    assert!(matches!(closed, PsError::Closed { .. }), "{closed}");
    assert_eq!(client.init_dense(&initial()), Err(PsError::Broken));
    let config = PsClientConfig::new(holder(0, 0), JobToken::new("job"), layout());
    let gone = PsClient::connect(&addresses, config, &AbortHandle::new().unwrap()).unwrap_err();
    assert!(matches!(gone, PsError::Closed { server: 0 }), "{gone}");
}

#[test]
fn a_server_that_is_silent_is_given_up_at_the_deadline_and_at_the_abort() {
    let silent = TcpListener::bind(any_port()).unwrap();
    let addresses = [silent.local_addr().unwrap()];
    let mut config = PsClientConfig::new(holder(0, 0), JobToken::new("job"), layout());
    config.timeout = Duration::from_millis(50);
    let late = PsClient::connect(&addresses, config.clone(), &AbortHandle::new().unwrap()).unwrap_err();
    assert!(matches!(late, PsError::Timeout { server: 0, .. }), "{late}");
    config.timeout = Duration::from_secs(30);
    let abort = AbortHandle::new().unwrap();
    let error = thread::scope(|scope| {
        let waiting = scope.spawn(|| PsClient::connect(&addresses, config, &abort).map(drop));
        abort.abort("fenced");
        waiting.join().unwrap().unwrap_err()
    });
    assert_eq!(error, PsError::Aborted { reason: "fenced".to_owned() });
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let taken = TcpListener::bind(any_port()).unwrap();
    let address = taken.local_addr().unwrap();
    let error = PsServer::bind(address, config(0, 1, Staleness::Synchronous)).unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    let error = PsServer::bind(any_port(), config(3, 2, Staleness::Synchronous)).unwrap_err();
    assert!(matches!(&error, PsServerError::Config(value) if value.field == "server"), "{error}");
}
