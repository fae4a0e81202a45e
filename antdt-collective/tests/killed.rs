//! Real processes over shared memory, one of which is killed in the middle of a call.

use std::fs;
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use antdt_collective::runtime::testing::Watchdog;
use antdt_collective::{
    AbortHandle, Communicator, CommunicatorConfig, Group, JobToken, Listener, Member, MixedTransport,
    ReduceOp, ScheduledCommunicator,
};
use antdt_core::{Holder, Incarnation, MembershipVersion, NodeId, Rank};

/// Says which member a process is; without it, it is the test itself.
const MEMBER: &str = "ANTDT_TEST_MEMBER";

/// 64 MiB.
const LEN: usize = 16 << 20;

const PATIENT: Duration = Duration::from_secs(60);

fn holder(rank: u32) -> Holder {
    Holder::new(NodeId::worker(rank), Incarnation(0))
}

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
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if it has ended, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("it is always there").count()
}

// What a process of the test below does; nothing in a usual run.
#[test]
fn a_member() {
    let Ok(rank) = std::env::var(MEMBER) else { return };
    let rank: u32 = rank.parse().unwrap();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), JobToken::new("killed")).unwrap();
    println!("@{}", listener.local_address());
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
    let addresses = (0..).zip(line.split_whitespace());
    let members =
        addresses.map(|(rank, text)| Member { holder: holder(rank), address: text.parse().unwrap() });
    let group = Group::new(MembershipVersion(1), members.collect(), Rank(rank)).unwrap();
    let before = open_descriptors();
    let abort = AbortHandle::new().unwrap();
    let transport = MixedTransport::connect(&listener, &group, PATIENT, &abort).unwrap();
    let mut communicator = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
    let mut buffer = communicator.buffer::<f32>(LEN).unwrap();
    let error = loop {
        buffer.fill(1.0);
        match communicator.all_reduce_buffer(&mut buffer, ReduceOp::Sum) {
            Ok(()) => {
                assert!(buffer.iter().all(|value| *value == group.world() as f32));
                println!("@done");
            }
            Err(error) => break error,
        }
    };
    assert!(buffer.iter().all(|value| *value == 1.0), "the buffer was changed by a call that failed");
    drop((communicator, buffer, abort));
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let culprit = error.culprit().map_or_else(|| "nobody".to_owned(), |culprit| culprit.to_string());
    println!(
        "@culprit {culprit}, descriptors {}, mapped {}",
        open_descriptors() - before,
        maps.contains("antdt")
    );
}

#[test]
fn a_killed_member_is_named_by_all_others_and_leaves_nothing_behind() {
    let _watchdog = Watchdog::over("killed members");
    for (world, odd) in [(2, 0), (2, 1), (3, 1), (4, 3)] {
        let mut processes: Vec<Process> = (0..world).map(Process::start).collect();
        let addresses: Vec<String> = processes.iter_mut().map(|process| process.said().unwrap()).collect();
        for process in &mut processes {
            writeln!(process.child.stdin.as_mut().unwrap(), "{}", addresses.join(" ")).unwrap();
        }
        // It is in the next call then, or about to fill its buffer for it.
        for _ in 0..3 {
            assert_eq!(processes[odd as usize].said().as_deref(), Some("done"));
        }
        processes[odd as usize].child.kill().unwrap();
        for (rank, process) in (0..).zip(&mut processes) {
            if rank == odd {
                continue;
            }
            let last = loop {
                match process.said() {
                    Some(line) if line == "done" => {}
                    other => break other,
                }
            };
            let expected = format!("culprit {}, descriptors 0, mapped false", holder(odd));
            assert_eq!(last, Some(expected), "rank {rank} of {world}, rank {odd} was killed");
            assert!(process.child.wait().unwrap().success());
        }
        let left = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("antdt")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
