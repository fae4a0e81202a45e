//! The transport over RDMA: the invariants I1 to I14, processes that are killed, and networks that lose packets.
//!
//! Needs an adapter; the kernel's Soft-RoCE will do. Without one the tests say that they are
//! skipped, unless `RDMA_REQUIRED` is set. Losses need a network of two adapters: `RDMA_PAIR` names them and the network
//! interface of the first one, as `rxe1,rxe2,v0`.
#![allow(clippy::disallowed_methods, reason = "these tests are about I/O, and bounded by the clock")]

use std::io::{BufRead, BufReader, Write, stdin};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use antdt_collective::bucket::Buckets;
use antdt_collective::runtime::testing::{
    CountTransport, Members, Watchdog, abort_handles, at_once, holder, loopback_listener, on_all,
};
use antdt_collective::runtime::{Reducer, Transport};
use antdt_collective::{
    AbortHandle, CollectiveError, Communicator, CommunicatorConfig, Group, JobToken, Listener, Member,
    ReduceOp, ScheduledCommunicator,
};
use antdt_core::{MembershipVersion, Rank};
use antdt_rdma::runtime::testing::rdma_members;
use antdt_rdma::verbs::Shape;
use antdt_rdma::{RdmaConfig, RdmaSetup, RdmaTransport};

const PATIENT: Duration = Duration::from_secs(60);

/// Whether there is an adapter. If not, says so.
fn has_adapter() -> bool {
    match RdmaTransport::adapter(&RdmaConfig::default()) {
        Ok(_) => true,
        Err(error) => {
            assert!(std::env::var_os("RDMA_REQUIRED").is_none(), "{error}");
            println!("skipped, not here: {error}");
            false
        }
    }
}

// Few and short slots: senders wait for credits and messages go in many pieces; and what a group registers is made in
// little time, where every page of it costs some.
mod conformance {
    use super::*;

    fn members(world: u32) -> Members<RdmaTransport> {
        let shape = Shape { slots: 4, slot_bytes: Shape::SLOT_BYTES_MIN };
        rdma_members(world, &RdmaConfig { shape: Some(shape), ..RdmaConfig::default() })
    }

    antdt_collective::transport_conforms!(members, if has_adapter());
}

// As jobs have them.
mod usual_slots {
    use super::*;

    fn members(world: u32) -> Members<RdmaTransport> {
        rdma_members(world, &RdmaConfig::default())
    }

    antdt_collective::transport_conforms!(members, if has_adapter(); i02_value);
}

// Queue pairs that the connection manager has connected carry what others do.
mod managed {
    use super::*;

    fn members(world: u32) -> Members<RdmaTransport> {
        rdma_members(world, &RdmaConfig { setup: RdmaSetup::Manager, ..RdmaConfig::default() })
    }

    antdt_collective::transport_conforms!(members, if has_adapter(); i02_value i14_few);
}

// Reduces `len` ones; all members must get their number.
fn reduce_ones<T: Transport>(
    communicator: &mut ScheduledCommunicator<T>,
    len: usize,
) -> Result<(), CollectiveError> {
    let mut data = vec![1.0_f32; len];
    communicator.all_reduce(&mut data, ReduceOp::Sum)?;
    let world = communicator.group().world() as f32;
    assert!(data.iter().all(|value| *value == world), "a wrong sum");
    Ok(())
}

// Members that meet over TCP, each with settings of its own.
fn meet(
    membership: u64,
    listeners: &[Arc<Listener>],
    configs: &[RdmaConfig],
) -> (Vec<Result<RdmaTransport, CollectiveError>>, Vec<AbortHandle>) {
    meet_within(PATIENT, membership, listeners, configs)
}

// The same, with so much patience.
fn meet_within(
    patience: Duration,
    membership: u64,
    listeners: &[Arc<Listener>],
    configs: &[RdmaConfig],
) -> (Vec<Result<RdmaTransport, CollectiveError>>, Vec<AbortHandle>) {
    let world = u32::try_from(listeners.len()).expect("a small group");
    let aborts = abort_handles(world);
    let transports = at_once(0..world, |rank| {
        let index = rank as usize;
        let group = group_of(membership, listeners, rank);
        RdmaTransport::connect_with(
            &listeners[index],
            &group,
            patience,
            &aborts[index],
            configs[index].clone(),
        )
    });
    (transports, aborts)
}

fn group_of(membership: u64, listeners: &[Arc<Listener>], rank: u32) -> Group {
    let members = (0..).zip(listeners);
    let members =
        members.map(|(rank, listener)| Member { holder: holder(rank), address: listener.local_address() });
    Group::new(MembershipVersion(membership), members.collect(), Rank(rank)).expect("a good group")
}

fn listeners(count: u32) -> Vec<Arc<Listener>> {
    (0..count).map(|_| Arc::new(loopback_listener())).collect()
}

fn without_adapter() -> RdmaConfig {
    RdmaConfig { device: Some("not_here_0".to_owned()), ..RdmaConfig::default() }
}

#[test]
fn a_group_with_a_member_without_an_adapter_goes_on_over_tcp() {
    let configs = [RdmaConfig::default(), without_adapter(), RdmaConfig::default()];
    let (transports, _aborts) = meet(1, &listeners(3), &configs);
    let transports: Vec<RdmaTransport> = transports.into_iter().map(Result::unwrap).collect();
    assert!(transports.iter().all(|transport| !transport.is_rdma()));
    for result in on_all(transports, PATIENT, |_, communicator| reduce_ones(communicator, 100_000)) {
        result.unwrap();
    }
}

#[test]
fn a_group_that_insists_on_adapters_is_told_which_member_has_none() {
    let configs = [0, 1].map(|_| RdmaConfig { fallback: false, ..without_adapter() });
    let (transports, _aborts) = meet(1, &listeners(2), &configs);
    for transport in transports {
        let error = transport.err().unwrap();
        assert!(error.is_permanent(), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("{}: device = not_here_0: this host has ", holder(0))), "{text}");
    }
}

#[test]
fn a_group_regroups_without_a_member_and_reduces_in_the_same_memory() {
    if !has_adapter() {
        return;
    }
    for setup in [RdmaSetup::Cards, RdmaSetup::Manager] {
        let listeners = listeners(3);
        let config = RdmaConfig { setup, ..RdmaConfig::default() };
        let (transports, _aborts) = meet(1, &listeners, &vec![config; 3]);
        let transports: Vec<RdmaTransport> = transports.into_iter().map(Result::unwrap).collect();
        let aborts = abort_handles(3);
        at_once((0..3_u32).zip(transports), |(rank, mut transport)| {
            let region = transport.region(100_000).unwrap();
            assert!(transport.is_rdma() && transport.owns(&region));
            let mut communicator = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
            reduce_ones(&mut communicator, 50_000).unwrap();
            if rank == 2 {
                return;
            }
            let (transport, _) = communicator.leave();
            let (group, abort) = (group_of(2, &listeners[..2], rank), &aborts[rank as usize]);
            let transport = transport.regroup(&listeners[rank as usize], &group, PATIENT, abort).unwrap();
            assert!(transport.is_rdma() && transport.owns(&region));
            let mut communicator = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
            reduce_ones(&mut communicator, 50_000).unwrap();
        });
    }
}

/// Says which member a process is; without it, it is the test itself.
const MEMBER: &str = "ANTDT_TEST_MEMBER";

/// Elements of a call that is under way when a member is killed: 16 MiB.
const LONG: usize = 4 << 20;

struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    fn start(name: &str, rank: u32) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a test knows its own file"))
            .args(["--exact", name, "--nocapture"])
            .env(MEMBER, rank.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test runs once more");
        let lines = BufReader::new(child.stdout.take().expect("it was piped"));
        Self { child, lines }
    }

    // The next line that it wrote, among those of its test harness; `None` at its end.
    fn said(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.lines.read_line(&mut line).expect("a pipe can be read") > 0 {
            if let Some((_, said)) = line.split_once('@') {
                return Some(said.trim().to_owned());
            }
            line.clear();
        }
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if it has ended, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// What a process of the next test does; nothing in a usual run.
#[test]
fn a_member() {
    let Ok(rank) = std::env::var(MEMBER) else { return };
    let rank: u32 = rank.parse().unwrap();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), JobToken::new("rdma")).unwrap();
    println!("@{}", listener.local_address());
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
    let addresses = line.split_whitespace().map(|address| address.parse::<SocketAddr>().unwrap());
    let members = (0..).zip(addresses).map(|(rank, address)| Member { holder: holder(rank), address });
    let group = Group::new(MembershipVersion(1), members.collect(), Rank(rank)).unwrap();
    let abort = AbortHandle::new().unwrap();
    let transport = RdmaTransport::connect(&listener, &group, PATIENT, &abort).unwrap();
    assert!(transport.is_rdma());
    let config = CommunicatorConfig { timeout: PATIENT, ..CommunicatorConfig::default() };
    let mut communicator = ScheduledCommunicator::new(transport, config);
    let error = loop {
        let began = Instant::now();
        match reduce_ones(&mut communicator, LONG) {
            Ok(()) => println!("@done"),
            Err(error) => {
                assert!(began.elapsed() < PATIENT, "later than its deadline");
                break error;
            }
        }
    };
    let closed = matches!(error, CollectiveError::PeerClosed { .. });
    let culprit = error.culprit().map_or_else(|| "nobody".to_owned(), |culprit| culprit.to_string());
    println!("@{} {culprit}", if closed { "closed by" } else { "told of" });
}

#[test]
fn a_killed_member_is_named_by_all_others_before_the_deadline() {
    if !has_adapter() || std::env::var_os(MEMBER).is_some() {
        return;
    }
    let _watchdog = Watchdog::over("the kill");
    let world = 3;
    let mut processes: Vec<Process> = (0..world).map(|rank| Process::start("a_member", rank)).collect();
    let addresses: Vec<String> = processes.iter_mut().map(|process| process.said().unwrap()).collect();
    for process in &mut processes {
        writeln!(process.child.stdin.as_mut().unwrap(), "{}", addresses.join(" ")).unwrap();
    }
    for process in &mut processes {
        assert_eq!(process.said().as_deref(), Some("done"));
    }
    let mut killed = processes.remove(1);
    killed.child.kill().unwrap();
    let mut ends = Vec::new();
    for process in &mut processes {
        let end = loop {
            match process.said() {
                Some(line) if line == "done" => {}
                other => break other.expect("it says how it ended"),
            }
        };
        assert!(end.ends_with(&format!(" {}", holder(1))), "{end}");
        ends.push(end);
    }
    // The first that finds out names what it saw; another one may have heard of it before it saw it.
    assert!(ends.iter().any(|end| end.starts_with("closed by")), "{ends:?}");
}

// The adapters of a network of two, and the interface of the first, whose packets may be lost.
fn pair() -> Option<[String; 3]> {
    let Ok(names) = std::env::var("RDMA_PAIR") else {
        println!("skipped, not here: RDMA_PAIR names no two adapters");
        return None;
    };
    let names: Vec<String> = names.split(',').map(str::to_owned).collect();
    Some(names.try_into().expect("RDMA_PAIR: two adapters and an interface"))
}

// A queueing discipline of an interface, as long as it lives.
struct Loss(String);

impl Loss {
    fn new(interface: &str, percent: u32) -> Self {
        let loss = Self(interface.to_owned());
        loss.tc(&["qdisc", "replace", "dev", interface, "root", "netem", "loss", &format!("{percent}%")]);
        loss
    }

    fn tc(&self, arguments: &[&str]) {
        let status = Command::new("tc").args(arguments).status().expect("there is a tc");
        assert!(status.success(), "tc {arguments:?} on {}", self.0);
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        self.tc(&["qdisc", "del", "dev", &self.0, "root"]);
    }
}

// Two members on two adapters, with so much patience.
fn two_adapters([first, second, _]: &[String; 3], patience: Duration) -> Members<RdmaTransport> {
    let configs = [first, second].map(|device| RdmaConfig {
        device: Some(device.clone()),
        fallback: false,
        patience: Some(patience),
        ..RdmaConfig::default()
    });
    let (transports, aborts) = meet(1, &listeners(2), &configs);
    (transports.into_iter().map(Result::unwrap).collect(), aborts)
}

// One after the other: they disturb the same network.
#[test]
fn losses_are_mended_and_a_network_that_swallows_everything_names_the_peer() {
    let Some(pair) = pair() else { return };
    let _watchdog = Watchdog::over("losses");
    let (transports, _aborts) = two_adapters(&pair, PATIENT);
    let loss = Loss::new(&pair[2], 2);
    let results = on_all(transports, PATIENT, |_, communicator| {
        for len in [1, 1000, 100_000, 1 << 19] {
            reduce_ones(communicator, len)?;
        }
        Ok::<(), CollectiveError>(())
    });
    results.into_iter().for_each(Result::unwrap);
    drop(loss);

    let timeout = Duration::from_secs(8);
    let (transports, _aborts) = two_adapters(&pair, timeout);
    let loss = Loss::new(&pair[2], 100);
    let results = on_all(transports, timeout, |me, communicator| {
        let began = Instant::now();
        let error = reduce_ones(communicator, 100_000).unwrap_err();
        println!("rank {me} after {:.1?}: {error}", began.elapsed());
        error
    });
    drop(loss);
    // Both see the same silence and agree on one end of it.
    let timeouts = results.iter().filter(|error| matches!(error, CollectiveError::Timeout { .. }));
    assert!(timeouts.count() > 0, "{results:?}");
    for error in &results {
        assert!(error.culprit() == Some(holder(0)) || error.culprit() == Some(holder(1)), "{error}");
    }

    let (transports, _aborts) = two_adapters(&pair, PATIENT);
    for result in on_all(transports, PATIENT, |_, communicator| reduce_ones(communicator, 100_000)) {
        result.unwrap();
    }
}

// The connection manager repeats what is lost of a set-up. Where all is lost, the group gives up at its own deadline.
#[test]
fn a_set_up_by_the_manager_outlives_losses_and_names_the_peer_where_all_is_lost() {
    let Some(pair) = pair() else { return };
    let _watchdog = Watchdog::over("a set-up by the manager");
    let configs = [&pair[0], &pair[1]].map(|device| RdmaConfig {
        device: Some(device.clone()),
        fallback: false,
        setup: RdmaSetup::Manager,
        ..RdmaConfig::default()
    });
    let loss = Loss::new(&pair[2], 50);
    let (transports, _aborts) = meet(1, &listeners(2), &configs);
    drop(loss);
    let transports = transports.into_iter().map(Result::unwrap).collect();
    for result in on_all(transports, PATIENT, |_, communicator| reduce_ones(communicator, 100_000)) {
        result.unwrap();
    }

    let loss = Loss::new(&pair[2], 100);
    let (transports, _aborts) = meet_within(Duration::from_secs(8), 2, &listeners(2), &configs);
    drop(loss);
    for transport in transports {
        let error = transport.map(drop).unwrap_err();
        println!("{error}");
        assert!(error.culprit() == Some(holder(0)) || error.culprit() == Some(holder(1)), "{error}");
    }
}

// Objects of one kind, as the kernel counts them. It does not say whose they are: it knows the thread that made an object,
// which may have ended.
fn resources(kind: &str) -> usize {
    let output =
        Command::new("rdma").args(["resource", "show", kind]).output().expect("there is an rdma tool");
    assert!(output.status.success(), "rdma resource show {kind}: {output:?}");
    String::from_utf8(output.stdout).expect("text").lines().count()
}

// A training loop registers each bucket in its first step, and nothing in the steps after it; all is sent from there.
#[allow(clippy::unwrap_used, reason = "a failure here is the test's")]
fn registrations_of_a_training_loop() {
    const LAYERS: [usize; 3] = [30_000, 20_000, 40_000];
    let plan = Buckets::plan(&LAYERS, 100_000, 1);
    assert_eq!(plan.buckets().len(), 2);
    let (transports, aborts) = rdma_members(2, &RdmaConfig::default());
    let (of_group, together) = (resources("mr"), Barrier::new(2));
    at_once(transports.into_iter().zip(aborts), |(transport, abort)| {
        let (transport, traffic) = CountTransport::new(transport);
        let communicator = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
        let mut reducer = Reducer::new(communicator, plan.clone(), abort).unwrap();
        for step in 1_u8..=3 {
            for (layer, len) in LAYERS.into_iter().enumerate().rev() {
                reducer.submit(layer, &vec![f32::from(step); len]).unwrap();
            }
            reducer.finish(Instant::now() + PATIENT).unwrap();
            let sums = reducer.wait(2, Instant::now() + PATIENT).unwrap();
            assert!(sums.iter().all(|sum| *sum == f32::from(2 * step)));
            together.wait();
            // The operand and the result of each bucket of each member.
            assert_eq!(resources("mr") - of_group, 2 * 2 * 2, "step {step}");
            together.wait();
        }
        assert_eq!(traffic.copied_bytes(), 0);
    });
}

#[test]
fn nothing_is_left_of_a_group_that_is_dropped() {
    if !has_adapter() {
        return;
    }
    if std::env::var_os("RDMA_ALONE").is_none() {
        println!(
            "skipped: objects of other tests would be counted as well; run this one alone, with RDMA_ALONE=1"
        );
        return;
    }
    const KINDS: [&str; 4] = ["pd", "cq", "qp", "mr"];
    let before = KINDS.map(resources);
    let more = |than: [usize; 4]| {
        let now = KINDS.map(resources);
        [0, 1, 2, 3].map(|kind| now[kind] - than[kind])
    };
    let config = RdmaConfig::default();
    let (transports, _aborts) = rdma_members(3, &config);
    // Two queue pairs and three registrations for each member.
    assert_eq!(more(before), [3, 3, 6, 9]);
    on_all(transports, PATIENT, |_, communicator| {
        let mut buffer = communicator.buffer::<f32>(100_000).unwrap();
        buffer.fill(1.0);
        communicator.all_reduce_buffer(&mut buffer, ReduceOp::Sum).unwrap();
        assert_eq!(buffer[99_999], 3.0);
    });
    assert_eq!(more(before), [0; 4], "leaked");
    registrations_of_a_training_loop();
    assert_eq!(more(before), [0; 4], "leaked by a reducer");
    // As little of what the connection manager made.
    let connections = resources("cm_id");
    let managed = RdmaConfig { setup: RdmaSetup::Manager, ..RdmaConfig::default() };
    let (transports, _aborts) = rdma_members(3, &managed);
    // Of each of the three pairs both ends.
    assert_eq!(resources("cm_id") - connections, 6);
    on_all(transports, PATIENT, |_, communicator| reduce_ones(communicator, 1000).unwrap());
    assert_eq!(resources("cm_id") - connections, 0, "leaked by the connection manager");
    assert_eq!(more(before), [0; 4], "leaked beside the connection manager");
    // As little after a failure.
    let (mut transports, _aborts) = rdma_members(3, &config);
    transports.pop();
    on_all(transports, PATIENT, |_, communicator| reduce_ones(communicator, 1000).unwrap_err());
    assert_eq!(more(before), [0; 4], "leaked by a failure");
}
