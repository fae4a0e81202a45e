//! What reductions in the memory of a GPU take, beside the copies of the GPU: `gpu kernels`, or `gpu all-reduce`, which starts
//! four processes on the first GPU. Each line ends with its target, and `reached` or `MISSED`; where this host lacks something,
//! the only line says so.
#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use antdt_collective::runtime::TransportBackend;
use antdt_collective::runtime::transport::REGISTRY;
use antdt_collective::{
    AbortHandle, Communicator, CommunicatorConfig, ElementType, Group, JobToken, Listener, Member, ReduceOp,
};
use antdt_core::{Holder, Incarnation, MembershipVersion, NodeId, Rank};
use antdt_gpu::cuda;
use antdt_gpu::ipc::{self, measure};

/// Processes that share the GPU.
const WORLD: u32 = 4;

/// Bytes that each of them brings.
const LEN: usize = 256 << 20;

/// Repetitions; the fastest counts.
const TIMES: usize = 20;

/// Share of the speed of a copy that a kernel has at least.
const KERNEL_SHARE: f64 = 0.85;

/// How many times longer an all-reduce may take than a copy takes to read and write as much.
const ALL_REDUCE_FACTOR: f64 = 1.3;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let Err(error) = ipc::check(0) {
        println!("skipped, not here: {error}");
        return Ok(ExitCode::SUCCESS);
    }
    let reached = match words[..] {
        ["kernels"] => kernels()?,
        ["all-reduce"] => all_reduce()?,
        ["rank", rank] => {
            be(rank.parse()?)?;
            true
        }
        _ => return Err("kernels, or all-reduce".into()),
    };
    Ok(if reached { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "MISSED" }
}

fn kernels() -> Result<bool, Box<dyn Error>> {
    let mut all = true;
    for len in [64 << 20, 256 << 20] {
        let speeds = measure(0, len)?;
        let copy = speeds[0].bytes_per_s;
        for speed in &speeds[1..] {
            let share = speed.bytes_per_s / copy;
            all &= share >= KERNEL_SHARE;
            println!(
                "{} at {} MiB: {:.0} GB/s, {:.0} % of a copy's {:.0} GB/s; target {:.0} %: {}",
                speed.name,
                len >> 20,
                speed.bytes_per_s / 1e9,
                share * 100.0,
                copy / 1e9,
                KERNEL_SHARE * 100.0,
                verdict(share >= KERNEL_SHARE)
            );
        }
    }
    Ok(all)
}

fn all_reduce() -> Result<bool, Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let start = |rank: u32| {
        let mut command = Command::new(&program);
        command.args(["rank", &rank.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    };
    let mut ranks: Vec<Child> = (0..WORLD).map(start).collect::<Result<_, _>>()?;
    let mut said: Vec<_> =
        ranks.iter_mut().filter_map(|rank| Some(BufReader::new(rank.stdout.take()?).lines())).collect();
    let mut addresses = Vec::new();
    for lines in &mut said {
        addresses.push(lines.next().ok_or("a rank that says no address")??);
    }
    for rank in &mut ranks {
        writeln!(rank.stdin.take().ok_or("no input")?, "{}", addresses.join(" "))?;
    }
    let mut slowest = 0.0_f64;
    for (rank, lines) in ranks.iter_mut().zip(said) {
        let last = lines.last().ok_or("a rank that says no time")??;
        if !rank.wait()?.success() {
            return Err(last.into());
        }
        slowest = slowest.max(last.parse()?);
    }
    let copy = measure(0, LEN)?[0].bytes_per_s;
    // Every operand is read, and every result written.
    let least = 2.0 * f64::from(WORLD) * LEN as f64 / copy;
    let factor = slowest / least;
    println!(
        "all-reduce of {WORLD} processes, {} MiB each, on one GPU: {:.2} ms, {factor:.2} times the {:.2} ms of its bytes at \
         a copy's {:.0} GB/s; target {ALL_REDUCE_FACTOR}: {}",
        LEN >> 20,
        slowest * 1e3,
        least * 1e3,
        copy / 1e9,
        verdict(factor <= ALL_REDUCE_FACTOR)
    );
    Ok(factor <= ALL_REDUCE_FACTOR)
}

/// One of the processes: says its address, reads those of all, and says the seconds of its fastest call.
fn be(me: u32) -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0".parse()?, JobToken::new("gpu"))?;
    println!("{}", listener.local_address());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let addresses: Vec<SocketAddr> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let member =
        |(index, address)| Member { holder: Holder::new(NodeId::worker(index), Incarnation(0)), address };
    let group = Group::new(MembershipVersion(1), (0..).zip(addresses).map(member).collect(), Rank(me))?;
    let mut backend = ipc::backend(Some(0), Box::new(TransportBackend::new(REGISTRY.by_name("auto")?)));
    let config = CommunicatorConfig { timeout: Duration::from_secs(60), ..CommunicatorConfig::default() };
    let (mut group, _) = backend.join(&listener, &group, config, &AbortHandle::new()?)?;
    let mut halves = antdt_collective::runtime::Halves::new(cuda::memory(0, LEN)?, cuda::memory(0, LEN)?);
    let mut fastest = f64::INFINITY;
    for _ in 0..TIMES {
        group.barrier()?;
        let began = Instant::now();
        group.all_reduce_halves(&mut halves, ElementType::F32, ReduceOp::Sum)?;
        fastest = fastest.min(began.elapsed().as_secs_f64());
    }
    println!("{fastest}");
    group.leave();
    Ok(())
}
