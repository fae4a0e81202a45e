//! Real processes, one of which is killed or stopped in the middle of a call over shared memory, or a TCP connection of
//! which is closed half or lies.
#![allow(clippy::disallowed_methods, reason = "these tests are about I/O, and bounded by the clock")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write, stdin};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use antdt_collective::frame::Header;
use antdt_collective::runtime::testing::{Damage, Strike, Watchdog, Wires, holder};
use antdt_collective::runtime::transport::Transport;
use antdt_collective::runtime::transport::tcp::{Checksum, TcpConfig};
use antdt_collective::{
    AbortHandle, CollectiveError, Communicator, CommunicatorConfig, Group, JobToken, Listener, Member,
    MixedTransport, ReduceOp, ScheduledCommunicator, TcpTransport,
};
use antdt_core::{MembershipVersion, Rank};

/// Says which member a process is; without it, it is the test itself.
const MEMBER: &str = "ANTDT_TEST_MEMBER";

/// 64 MiB.
const LONG: usize = 16 << 20;

/// 4 MiB.
const MEDIUM: usize = 1 << 20;

/// 64 KiB: a connection carries some calls of it before the byte that is struck.
const SHORT: usize = 16 << 10;

const PATIENT: Duration = Duration::from_secs(60);

/// Timeouts of calls, to try one after the other where a member must be found out by being late: on a busy machine others
/// may be late in truth. A call that takes milliseconds is given up after a sixth of it.
const LONGER: [Duration; 3] = [Duration::from_secs(6), Duration::from_secs(24), Duration::from_secs(96)];

/// Bytes of a connection before the first frame of a call.
const HELLO: usize = Header::LEN + 24;

struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    fn start(rank: u32) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a test knows its own file"))
            .args(["--exact", "a_member", "--nocapture"])
            .env(MEMBER, rank.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test runs once more");
        let lines = BufReader::new(child.stdout.take().expect("it was piped"));
        Self { child, lines }
    }

    // So many of them, with their addresses.
    fn start_all(world: u32) -> (Vec<Self>, Vec<SocketAddr>) {
        let mut processes: Vec<Self> = (0..world).map(Self::start).collect();
        let addresses = processes.iter_mut().map(|process| process.said().and_then(|said| said.parse().ok()));
        let addresses = addresses.collect::<Option<_>>().expect("each says where it listens");
        (processes, addresses)
    }

    fn order(&mut self, order: &Order) {
        self.tell(&order.line());
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("it was piped"), "{line}").expect("it listens");
    }

    // Lets them begin once all have met: what befalls a connection befalls calls then.
    fn begin_all(processes: &mut [Self]) {
        for process in &mut *processes {
            assert_eq!(process.said().as_deref(), Some("met"));
        }
        processes.iter_mut().for_each(|process| process.tell("begin"));
    }

    // The next line that the member wrote, among those of its test harness; `None` at its end.
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

    // Returns when so many calls more have ended well: it is in the next one then, or about to fill its buffer for it.
    fn expect_done(&mut self, calls: u32) {
        for _ in 0..calls {
            assert_eq!(self.said().as_deref(), Some("done"));
        }
    }

    // What it says when a call has failed, and that it ends well.
    fn expect_end(&mut self) -> Option<String> {
        let last = loop {
            match self.said() {
                Some(line) if line == "done" => {}
                other => break other,
            }
        };
        assert!(self.child.wait().expect("it was started").success(), "it says {last:?}");
        last
    }

    // `STOP` or `CONT`.
    fn signal(&self, name: &str) {
        let command = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh").args(["-c", &command]).status().expect("there is a shell");
        assert!(status.success(), "{command}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if it has ended, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// What a process is to do.
struct Order {
    shared: bool,
    len: usize,
    timeout: Duration,
    addresses: Vec<SocketAddr>,
}

impl Order {
    fn line(&self) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(SocketAddr::to_string).collect();
        let Self { shared, len, timeout, .. } = self;
        format!("{shared} {len} {} {}", timeout.as_secs(), addresses.join(" "))
    }

    fn parse(line: &str) -> Self {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [shared, len, timeout, addresses @ ..] = &words[..] else { panic!("too few words: {line}") };
        let number = |text: &str| text.parse().expect("a whole number");
        Self {
            shared: *shared == "true",
            len: number(len) as usize,
            timeout: Duration::from_secs(number(timeout)),
            addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
        }
    }
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("it is always there").count()
}

// What a process of the tests below does; nothing in a usual run.
#[test]
fn a_member() {
    let Ok(rank) = std::env::var(MEMBER) else { return };
    let rank: u32 = rank.parse().unwrap();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), JobToken::new("killed")).unwrap();
    println!("@{}", listener.local_address());
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
    let order = Order::parse(&line);
    let addresses = (0..).zip(&order.addresses);
    let members = addresses.map(|(rank, address)| Member { holder: holder(rank), address: *address });
    let group = Group::new(MembershipVersion(1), members.collect(), Rank(rank)).unwrap();
    let before = open_descriptors();
    let abort = AbortHandle::new().unwrap();
    let error = if order.shared {
        add_up(MixedTransport::connect(&listener, &group, PATIENT, &abort).unwrap(), &order)
    } else {
        // Damage must be noticed although these are connections within one host.
        let config = TcpConfig { checksum: Checksum::Always, ..TcpConfig::default() };
        add_up(TcpTransport::connect_with(&listener, &group, PATIENT, &abort, config).unwrap(), &order)
    };
    drop(abort);
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let culprit = error.culprit().map_or_else(|| "nobody".to_owned(), |culprit| culprit.to_string());
    println!(
        "@culprit {culprit}, descriptors {}, mapped {}",
        open_descriptors() - before,
        maps.contains("antdt")
    );
}

// Until a call fails.
fn add_up<T: Transport>(transport: T, order: &Order) -> CollectiveError {
    let config = CommunicatorConfig { timeout: order.timeout, ..CommunicatorConfig::default() };
    println!("@met");
    stdin().read_line(&mut String::new()).expect("a pipe can be read");
    let mut communicator = ScheduledCommunicator::new(transport, config);
    let world = communicator.group().world() as f32;
    let mut buffer = communicator.buffer::<f32>(order.len).expect("memory is left");
    let error = loop {
        buffer.fill(1.0);
        match communicator.all_reduce_buffer(&mut buffer, ReduceOp::Sum) {
            Ok(()) => {
                assert!(buffer.iter().all(|value| *value == world));
                println!("@done");
            }
            Err(error) => break error,
        }
    };
    assert!(buffer.iter().all(|value| *value == 1.0), "the buffer was changed by a call that failed");
    error
}

// What a member says that names this one, and leaves nothing behind.
fn names(culprit: u32) -> Option<String> {
    Some(format!("culprit {}, descriptors 0, mapped false", holder(culprit)))
}

fn shared_segments() -> BTreeSet<OsString> {
    let entries = fs::read_dir("/dev/shm").expect("every Linux has it");
    entries.map(|entry| entry.expect("it can be read").file_name()).collect()
}

// What was not there before goes away again: others on this machine may have some of their own for a while.
fn expect_no_more_than(before: &BTreeSet<OsString>) {
    let until = Instant::now() + PATIENT;
    let mut left = &shared_segments() - before;
    while !left.is_empty() {
        assert!(Instant::now() < until, "in /dev/shm since these processes ran: {left:?}");
        std::thread::yield_now();
        left = &left & &shared_segments();
    }
}

#[test]
fn a_killed_member_is_named_by_all_others_and_leaves_nothing_behind() {
    let _watchdog = Watchdog::over("killed members");
    let before = shared_segments();
    for (world, odd) in [(2, 0), (2, 1), (3, 1), (4, 3)] {
        let (mut processes, addresses) = Process::start_all(world);
        let order = Order { shared: true, len: LONG, timeout: PATIENT, addresses };
        processes.iter_mut().for_each(|process| process.order(&order));
        Process::begin_all(&mut processes);
        processes[odd as usize].expect_done(3);
        processes[odd as usize].child.kill().unwrap();
        for (rank, process) in (0..).zip(&mut processes).filter(|(rank, _)| *rank != odd) {
            assert_eq!(process.expect_end(), names(odd), "rank {rank} of {world}, rank {odd} was killed");
        }
    }
    expect_no_more_than(&before);
}

// Whether all others name it. In the end it goes on, finds that they have given it up, and leaves nothing behind either.
fn stop(world: u32, odd: u32, timeout: Duration) -> Result<(), String> {
    let (mut processes, addresses) = Process::start_all(world);
    let order = Order { shared: true, len: MEDIUM, timeout, addresses };
    processes.iter_mut().for_each(|process| process.order(&order));
    Process::begin_all(&mut processes);
    // The time that a call may take is learned from the first ones.
    processes[odd as usize].expect_done(16);
    processes[odd as usize].signal("STOP");
    let mut wrong = Ok(());
    for (rank, process) in (0..).zip(&mut processes).filter(|(rank, _)| *rank != odd) {
        let said = process.expect_end();
        if said != names(odd) {
            wrong = Err(format!("rank {odd} of {world} was stopped, and rank {rank} says {said:?}"));
        }
    }
    processes[odd as usize].signal("CONT");
    let said = processes[odd as usize].expect_end();
    // One of the others, which has left, or itself, as they have told it.
    assert!((0..world).map(names).any(|names| names == said), "rank {odd} of {world} says {said:?}");
    wrong
}

#[test]
fn a_stopped_member_is_named_by_all_that_share_its_memory() {
    let _watchdog = Watchdog::over("stopped members");
    let before = shared_segments();
    for (world, odd) in [(2, 1), (3, 0), (4, 2)] {
        let mut told = Ok(());
        for timeout in LONGER {
            told = stop(world, odd, timeout);
            if told.is_ok() {
                break;
            }
        }
        assert_eq!(told, Ok(()));
    }
    expect_no_more_than(&before);
}

#[test]
fn a_connection_between_processes_that_is_half_closed_or_lies_is_noticed_by_all() {
    let _watchdog = Watchdog::over("damaged connections");
    // Within the first header, in the first payload, and in later calls.
    let bytes = [HELLO + 3, HELLO + Header::LEN + 1, 300_001, 1_000_003];
    for (world, from, to) in [(2, 0, 1), (3, 2, 1)] {
        for (at, damage) in bytes.iter().flat_map(|at| [(*at, Damage::HalfClose), (*at, Damage::Flip)]) {
            let strike = Strike { from, to, at, damage };
            let (mut processes, own) = Process::start_all(world);
            let wires = Wires::before_addresses(&own, Some(strike.clone()));
            for (rank, process) in (0..).zip(&mut processes) {
                let addresses = wires.members(rank).iter().map(|member| member.address).collect();
                process.order(&Order { shared: false, len: SHORT, timeout: PATIENT, addresses });
            }
            Process::begin_all(&mut processes);
            for (rank, process) in (0..).zip(&mut processes) {
                let said = process.expect_end();
                let right = [from, to].map(names).contains(&said);
                assert!(right, "rank {rank} of {world} says {said:?}: {strike:?}");
            }
            assert!(wires.struck(), "{strike:?}");
        }
    }
}
