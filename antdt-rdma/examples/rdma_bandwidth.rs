//! Bandwidth of the transport over RDMA beside that of perftest's `ib_write_bw`, which is the most that an adapter gives:
//! `rdma_bandwidth` within this host, or on two hosts at about the same time, rank 1 first,
//! `rdma_bandwidth RANK ADDRESS0 ADDRESS1`, where the addresses are those of the hosts, with ports.
//!
//! Where there is no adapter, or only an emulated one, whose speed says nothing, the only line says so.
#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::error::Error;
use std::io::Read;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use antdt_collective::{
    AbortHandle, Communicator, CommunicatorConfig, Group, JobToken, Listener, Member, ReduceOp,
    ScheduledCommunicator,
};
use antdt_core::{Holder, Incarnation, MembershipVersion, NodeId, Rank};
use antdt_rdma::{RdmaConfig, RdmaTransport};

const PATIENCE: Duration = Duration::from_secs(60);

const LENS: [usize; 2] = [1 << 20, 64 << 20];

/// Repetitions; the fastest counts.
const TIMES: usize = 20;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let adapter = match RdmaTransport::adapter(&RdmaConfig::default()) {
        Ok(adapter) => adapter,
        Err(error) => {
            println!("skipped, not here: {error}");
            return Ok(());
        }
    };
    if adapter.starts_with("rxe") || adapter.starts_with("siw") {
        println!("skipped, not here: {adapter} is emulated");
        return Ok(());
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [rank, first, second] = &arguments[..] {
        let (me, addresses) = (rank.parse()?, [first.parse()?, second.parse()?]);
        return rank_of(me, addresses, &Listener::bind(addresses[me as usize % 2], token())?);
    }
    let listeners = [listen()?, listen()?];
    let addresses = [listeners[0].local_address(), listeners[1].local_address()];
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..)
            .zip(listeners)
            .map(|(me, listener)| scope.spawn(move || rank_of(me, addresses, &listener)))
            .collect();
        ranks.into_iter().try_for_each(|rank| rank.join().map_err(|_| "a rank has panicked")?)
    })
}

fn token() -> JobToken {
    JobToken::new("bandwidth")
}

fn listen() -> Result<Listener> {
    Ok(Listener::bind("127.0.0.1:0".parse()?, token())?)
}

/// Rank 0 sends, and says what it took.
fn rank_of(me: u32, addresses: [SocketAddr; 2], listener: &Listener) -> Result<()> {
    let member =
        |(index, address)| Member { holder: Holder::new(NodeId::worker(index), Incarnation(0)), address };
    let group = Group::new(MembershipVersion(1), (0..).zip(addresses).map(member).collect(), Rank(me))?;
    let abort = AbortHandle::new()?;
    let transport = RdmaTransport::connect(listener, &group, PATIENCE, &abort)?;
    let config = CommunicatorConfig { timeout: PATIENCE, ..CommunicatorConfig::default() };
    let mut communicator = ScheduledCommunicator::new(transport, config);
    let mut rows = Vec::new();
    for len in LENS {
        let mut bytes = vec![1_u8; len];
        let sent =
            fastest(&mut communicator, |communicator| Ok(communicator.broadcast(Rank(0), &mut bytes)?))?;
        let mut buffer = communicator.buffer::<f32>(len / 4)?;
        let reduced = fastest(&mut communicator, |communicator| {
            Ok(communicator.all_reduce_buffer(&mut buffer, ReduceOp::Sum)?)
        })?;
        rows.push((len, len as f64 / sent, reduced));
    }
    communicator.barrier()?;
    drop(communicator);
    // One after the other: both would share the adapter.
    for (len, bytes_per_s, reduced) in rows {
        let most = perftest(me, addresses[0], len);
        if me == 0 {
            let beside = match most {
                Ok(most) => {
                    let share = bytes_per_s / most * 100.0;
                    format!("{share:.0} % of ib_write_bw's {:.2} GB/s", most / 1e9)
                }
                Err(why) => format!("ib_write_bw SKIPPED: {why}"),
            };
            println!(
                "rdma, 2 ranks, {} MiB: {:.2} GB/s one way, {beside}; all-reduce {:.2} ms",
                len >> 20,
                bytes_per_s / 1e9,
                reduced * 1e3
            );
        }
    }
    Ok(())
}

/// Seconds of the fastest repetition, which all members begin together.
fn fastest(
    communicator: &mut ScheduledCommunicator<RdmaTransport>,
    mut call: impl FnMut(&mut ScheduledCommunicator<RdmaTransport>) -> Result<()>,
) -> Result<f64> {
    let mut fastest = f64::INFINITY;
    for _ in 0..TIMES {
        communicator.barrier()?;
        let began = Instant::now();
        call(communicator)?;
        // Until the other one has it, too.
        communicator.barrier()?;
        fastest = fastest.min(began.elapsed().as_secs_f64());
    }
    Ok(fastest)
}

/// Bytes per second that perftest sends from rank 1 to rank 0, as it says on both.
fn perftest(me: u32, server: SocketAddr, len: usize) -> Result<f64> {
    // Its own port for each length, so that no run meets the end of the last one.
    let port = 18515 + u32::try_from(len >> 20)?;
    let mut command = Command::new("ib_write_bw");
    command.args(["--size", &len.to_string(), "--iters", "50", "--port", &port.to_string()]);
    if me == 1 {
        command.arg(server.ip().to_string());
        // Rank 0 listens by then; where it does not, perftest says so.
        std::thread::sleep(Duration::from_secs(1));
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Err("it has not ended within a minute".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut said = String::new();
    child.stdout.take().ok_or("it has no output")?.read_to_string(&mut said)?;
    average(&said, len).ok_or_else(|| "it says no average".into())
}

/// The average of the row of a size: size, iterations, peak, average, in MiB a second.
fn average(said: &str, len: usize) -> Option<f64> {
    let row = said.lines().find(|line| line.split_whitespace().next() == Some(&len.to_string()))?;
    let average: f64 = row.split_whitespace().nth(3)?.parse().ok()?;
    Some(average * 1024.0 * 1024.0)
}
