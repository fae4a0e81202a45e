use std::fs::File;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use antdt_core::{Connections, NodeId};
use proptest::collection::vec;
use proptest::prelude::*;

use super::line::{Speed, Stand};
use super::{EmulatedNetwork, Lines, LinesError, PacedFabric, ServerHosts};
use crate::group::JobToken;
use crate::runtime::abort::AbortHandle;
use crate::runtime::connection::BulkStream;
use crate::runtime::transport::{ChannelError, Fabric, REGISTRY};
use crate::schedule::CostModel;

/// 20 MB/s and 1 ms, two workers to a host.
fn network() -> EmulatedNetwork {
    EmulatedNetwork { workers_per_host: 2, ..EmulatedNetwork::new(20e6, Duration::from_millis(1)) }
}

const MS: u64 = 1_000_000;

#[test]
fn a_message_takes_its_bytes_over_the_bandwidth_and_the_latency() {
    let (network, lines) = (network(), Lines::new().unwrap());
    // 1 MB at 20 MB/s.
    assert_eq!(lines.carry(&network, 0, 1, 1_000_000, 5 * MS).arrives, 56 * MS);
    // At the same time the other way: a card sends and receives at once.
    assert_eq!(lines.carry(&network, 1, 0, 1_000_000, 5 * MS).arrives, 56 * MS);
    assert_eq!(
        lines.carry(&network, 0, 0, 1_000_000, 5 * MS).arrives,
        5 * MS,
        "inside a host nothing is paced"
    );
}

#[test]
fn a_host_s_processes_share_its_card() {
    let (network, lines) = (network(), Lines::new().unwrap());
    let (a, b) = (network.host(NodeId::worker(0)), network.host(NodeId::worker(1)));
    assert_eq!(a, b);
    assert_eq!(lines.carry(&network, a, 1, 1_000_000, 0).arrives, 51 * MS);
    assert_eq!(lines.carry(&network, b, 2, 1_000_000, 0).arrives, 101 * MS, "after the other one's");
    assert_eq!(lines.carry(&network, 3, 2, 1_000_000, 0).arrives, 101 * MS, "two that send to one host");
}

#[test]
fn a_slow_card_slows_both_ends_of_its_links() {
    let network = EmulatedNetwork { slow: vec![(1, 5e6)], ..network() };
    let lines = Lines::new().unwrap();
    assert_eq!(lines.carry(&network, 0, 1, 1_000_000, 0).arrives, 201 * MS);
    assert_eq!(lines.carry(&network, 1, 2, 1_000_000, 0).arrives, 201 * MS);
    assert_eq!(lines.carry(&network, 3, 4, 1_000_000, 0).arrives, 51 * MS);
}

#[test]
fn a_server_is_apart_or_beside_the_workers() {
    let apart = network();
    assert_ne!(apart.host(NodeId::server(0)), apart.host(NodeId::worker(0)));
    assert_ne!(apart.host(NodeId::server(0)), apart.host(NodeId::server(1)));
    let beside = EmulatedNetwork { servers: ServerHosts::Beside, ..network() };
    assert_eq!(beside.host(NodeId::server(1)), beside.host(NodeId::worker(2)));
}

#[test]
fn algorithms_are_chosen_for_the_slowest_card_of_the_group() {
    let network = EmulatedNetwork { slow: vec![(1, 5e6)], ..network() };
    let below = CostModel::SHARED;
    assert_eq!(network.cost(&[2, 2, 2], below), below, "one host: nothing crosses a line");
    let fast = network.cost(&[0, 0, 2], below);
    assert_eq!((fast.bandwidth, fast.alpha), (20e6, below.alpha + 1e-3));
    assert_eq!(network.cost(&[0, 1, 2], below).bandwidth, 5e6);
}

#[test]
fn impossible_networks_are_refused_by_name() {
    let refused = |network: EmulatedNetwork| network.validate().unwrap_err().to_string();
    for bandwidth in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(refused(EmulatedNetwork { bandwidth, ..network() }).contains("bandwidth"));
        assert!(refused(EmulatedNetwork { slow: vec![(0, bandwidth)], ..network() }).contains("slow"));
    }
    assert!(refused(EmulatedNetwork { workers_per_host: 0, ..network() }).contains("per-host"));
    assert!(refused(EmulatedNetwork { latency: Duration::from_secs(11), ..network() }).contains("latency"));
    assert!(refused(EmulatedNetwork { slow: vec![(4096, 1e6)], ..network() }).contains("slow"));
}

#[test]
fn a_late_wake_up_is_not_the_network_s() {
    let mut stand = Stand::default();
    assert_eq!(stand.now(7 * MS), 7 * MS);
    stand.reaches(50 * MS);
    assert_eq!(stand.now(50 * MS + 300_000), 50 * MS, "goes on from when the message was through");
    assert_eq!(stand.now(60 * MS), 60 * MS, "the program did something else meanwhile");
    assert_eq!(stand.now(40 * MS), 40 * MS, "what another thread sends is not put off");
}

#[test]
fn lines_are_opened_by_path_while_their_maker_is_alive() {
    let lines = Lines::new().unwrap();
    let path = lines.path().unwrap();
    let opened = Lines::open(&path).unwrap();
    assert_eq!(opened.path(), None);
    let network = network();
    lines.carry(&network, 0, 1, 1_000_000, 0);
    assert_eq!(opened.out_free(&network, NodeId::worker(0)), 50 * MS, "both see the same");
    drop(lines);
    assert!(matches!(Lines::open(&path), Err(LinesError::Open { .. })));
    let other = tempfile();
    let error = Lines::open(&other).unwrap_err().to_string();
    assert!(error.contains("not an emulated network"), "{error}");
    std::fs::remove_file(other).unwrap();
}

/// A file with something else.
fn tempfile() -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("antdt-not-lines-{}", std::process::id()));
    File::create(&path).unwrap().write_all(b"something else").unwrap();
    path
}

proptest! {
    /// Whatever is sent when: a line never carries more than its bandwidth, and is never idle while something waits.
    #[test]
    fn a_line_carries_its_bandwidth_exactly(
        messages in vec((0_u64..20 * MS, 1_usize..200_000), 1..60),
    ) {
        let (network, lines) = (EmulatedNetwork::new(20e6, Duration::ZERO), Lines::new().unwrap());
        let occupies = |bytes| Speed { ns_per_byte: 50.0, latency_ns: 0 }.occupies(bytes);
        let (mut now, mut free) = (0, 0);
        for (later, bytes) in messages {
            now += later;
            // To a host without another sender.
            let arrives = lines.carry(&network, 0, 1, bytes, now).arrives;
            free = now.max(free) + occupies(bytes);
            prop_assert_eq!(arrives, free);
        }
        prop_assert_eq!(lines.out_free(&network, NodeId::worker(0)), free);
    }

    /// Senders in any order fill a receiver's line: the last one is through when all bytes are.
    #[test]
    fn senders_share_a_receiver_s_line(bytes in vec(1_usize..200_000, 1..20)) {
        let (network, lines) = (EmulatedNetwork::new(20e6, Duration::ZERO), Lines::new().unwrap());
        let last = (1..).zip(&bytes).map(|(host, bytes)| lines.carry(&network, host, 0, *bytes, 0).arrives).max();
        prop_assert_eq!(last, Some(50 * bytes.iter().sum::<usize>() as u64));
    }
}

/// Both ends of a channel between a worker and a server over the emulated network, over the named fabric.
#[test]
fn a_channel_carries_its_bytes_in_order_and_books_them() {
    for name in ["tcp", "auto"] {
        let lines = Lines::new().unwrap();
        let network = EmulatedNetwork::new(50e6, Duration::from_micros(200));
        let fabric = |node| {
            PacedFabric::new(REGISTRY.by_name(name).unwrap(), network.clone(), lines.clone(), node).unwrap()
        };
        let [opened, accepted] = BulkStream::pair(&Connections::default()).unwrap();
        let soon = || Instant::now() + Duration::from_secs(20);
        let (worker, server) = (fabric(NodeId::worker(0)), fabric(NodeId::server(0)));
        thread::scope(|scope| {
            scope.spawn(move || {
                let abort = AbortHandle::new().unwrap();
                let mut channel = server.accept(accepted, JobToken::new("test"), soon(), &abort).unwrap();
                let mut bytes = vec![0; 300_000];
                // In other pieces than it was sent in.
                channel.wait(soon()).unwrap();
                channel.receive(&mut bytes[..10], soon()).unwrap();
                channel.receive(&mut bytes[10..], soon()).unwrap();
                channel.send(&bytes, soon()).unwrap();
            });
            let abort = AbortHandle::new().unwrap();
            let mut channel = worker.dial(opened, JobToken::new("test"), soon(), &abort).unwrap();
            let sent: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
            let began = super::lines::clock();
            channel.send(&sent[..100_000], soon()).unwrap();
            channel.send(&sent[100_000..], soon()).unwrap();
            let mut back = vec![0; sent.len()];
            channel.receive(&mut back, soon()).unwrap();
            assert_eq!(back, sent, "{name}");
            // A lower bound only: a machine that is slow takes longer, never less.
            let crossed = super::lines::clock() - began;
            assert!(crossed >= 2 * 6_000_000 + 400_000, "{name}: {crossed} ns: sooner than the lines allow");
            assert!(matches!(channel.receive(&mut [0], soon()), Err(ChannelError::Closed)), "{name}");
        });
    }
}

#[test]
fn an_abort_ends_the_wait_for_a_link() {
    // A byte takes a thousand seconds.
    let network = EmulatedNetwork::new(1.0, Duration::ZERO);
    let lines = Lines::new().unwrap();
    let fabric = |node| {
        PacedFabric::new(REGISTRY.by_name("tcp").unwrap(), network.clone(), lines.clone(), node).unwrap()
    };
    let [opened, accepted] = BulkStream::pair(&Connections::default()).unwrap();
    let later = || Instant::now() + Duration::from_secs(600);
    let (worker, server) = (fabric(NodeId::worker(0)), fabric(NodeId::server(0)));
    let abort = AbortHandle::new().unwrap();
    let aborts = abort.clone();
    thread::scope(|scope| {
        let received = scope.spawn(move || {
            let mut channel = server.accept(accepted, JobToken::new("test"), later(), &abort).unwrap();
            channel.receive(&mut [0; 1000], later())
        });
        let mut channel =
            worker.dial(opened, JobToken::new("test"), later(), &AbortHandle::new().unwrap()).unwrap();
        channel.send(&[1; 1000], later()).unwrap();
        aborts.abort("enough");
        assert!(matches!(received.join().unwrap(), Err(ChannelError::Aborted { .. })));
    });
}
