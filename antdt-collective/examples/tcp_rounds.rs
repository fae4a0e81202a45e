//! How fast the rounds of a ring all-reduce go over loopback, beside what loopback itself gives.
//!
//! `cargo run --release -p antdt-collective --example tcp_rounds -- WORLD BYTES ROUNDS [BYTES ROUNDS ...]` starts one
//! process per rank. The rounds run out of place, from one buffer into another, straight over the transport. The
//! ceiling is the same number of bytes each way at once between neighbours over plain sockets, without anything being
//! computed. Both are measured in turn, each time that of the slowest rank. `--raw` leaves the ceiling alone.
#![allow(clippy::disallowed_methods, reason = "this program measures time")]

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use antdt_collective::frame::{Operation, OperationKind, Tag};
use antdt_collective::runtime::transport::{Exchange, Fold, Incoming, Outgoing, Sink, Transport};
use antdt_collective::schedule::{Algorithm, Ring, Span, Step};
use antdt_collective::{AbortHandle, ElementType, Group, JobToken, Listener, Member, TcpTransport};
use antdt_core::{Holder, Incarnation, MembershipVersion, NodeId, Rank};
use rustix::event::{PollFd, PollFlags, poll};

type Fallible<T> = Result<T, Box<dyn Error>>;

fn main() -> Fallible<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((word, rest)) if word == "rank" => rank(rest),
        Some(_) => start(&arguments),
        None => Err("usage: tcp_rounds WORLD BYTES ROUNDS [BYTES ROUNDS ...]".into()),
    }
}

// Starts the ranks and tells each where all listen.
fn start(arguments: &[String]) -> Fallible<()> {
    let world: u32 = arguments[0].parse()?;
    let program = std::env::current_exe()?;
    let mut ranks = Vec::new();
    for rank in 0..world {
        let mut command = Command::new(&program);
        command.arg("rank").arg(rank.to_string()).args(arguments);
        ranks.push(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    }
    let mut outputs = Vec::new();
    let mut addresses = String::new();
    for rank in &mut ranks {
        let mut output = BufReader::new(rank.stdout.take().ok_or("a rank has no output")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        addresses.push_str(line.trim());
        addresses.push(' ');
        outputs.push(output);
    }
    for rank in &mut ranks {
        writeln!(rank.stdin.take().ok_or("a rank has no input")?, "{addresses}")?;
    }
    for output in &mut outputs {
        io::copy(output, &mut io::stdout())?;
    }
    for mut rank in ranks {
        rank.wait()?;
    }
    Ok(())
}

fn rank(arguments: &[String]) -> Fallible<()> {
    let (me, world): (u32, u32) = (arguments[0].parse()?, arguments[1].parse()?);
    let listener = Listener::bind("127.0.0.1:0".parse()?, JobToken::new("rounds"))?;
    let plain = TcpListener::bind("127.0.0.1:0")?;
    println!("{} {}", listener.local_address(), plain.local_addr()?);
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let addresses = line.split_whitespace().map(str::parse).collect::<Result<Vec<SocketAddr>, _>>()?;
    let members = (0..world).map(|rank| Member {
        holder: Holder::new(NodeId::worker(rank), Incarnation(0)),
        address: addresses[2 * rank as usize],
    });
    let group = Group::new(MembershipVersion(1), members.collect(), Rank(me))?;
    let abort = AbortHandle::new()?;
    let mut transport = TcpTransport::connect(&listener, &group, Duration::from_secs(20), &abort)?;
    let next = TcpStream::connect(addresses[2 * ((me + 1) % world) as usize + 1])?;
    let (before, _) = plain.accept()?;
    let mut pipe = [next, before];
    for stream in &pipe {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
    }
    let mut sequence = 0;
    for pair in arguments[2..].chunks_exact(2) {
        let (bytes, rounds): (usize, usize) = (pair[0].parse()?, pair[1].parse()?);
        let source = vec![1.0_f32; bytes / 4];
        let mut target = vec![0.0_f32; bytes / 4];
        let (mut ours, mut ceiling) = (Vec::new(), Vec::new());
        let (mut ours_cpu, mut ceiling_cpu) = (0.0, 0.0);
        for round in 0..=rounds {
            slowest(&mut transport, &mut sequence, 0.0)?;
            let cpu = cpu_seconds()?;
            let begun = Instant::now();
            all_reduce(&mut transport, &mut sequence, &source, &mut target)?;
            let took = slowest(&mut transport, &mut sequence, begun.elapsed().as_secs_f64())?;
            assert!(target.iter().all(|value| *value == world as f32), "a wrong sum");
            if round > 0 {
                ours.push(took);
                ours_cpu += cpu_seconds()? - cpu;
            }
            slowest(&mut transport, &mut sequence, 0.0)?;
            let cpu = cpu_seconds()?;
            let begun = Instant::now();
            let each_way = 2 * (world as usize - 1) * bytes / world as usize;
            duplex(
                &mut pipe,
                each_way,
                bytemuck::cast_slice(&source),
                bytemuck::cast_slice_mut(&mut target),
            )?;
            let took = slowest(&mut transport, &mut sequence, begun.elapsed().as_secs_f64())?;
            if round > 0 {
                ceiling.push(took);
                ceiling_cpu += cpu_seconds()? - cpu;
            }
        }
        if me == 0 {
            let gib = rounds as f64 * bytes as f64 / f64::from(1 << 30);
            let (ours, ceiling) = (middle(&mut ours), middle(&mut ceiling));
            println!(
                "world {world} bytes {bytes}: all-reduce {:.3} ms, duplex {:.3} ms, {:.2} of the ceiling; rank 0's CPU per GiB {:.2} s, duplex {:.2} s",
                ours * 1e3,
                ceiling * 1e3,
                ceiling / ours,
                ours_cpu / gib,
                ceiling_cpu / gib
            );
        }
    }
    Ok(())
}

fn middle(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

fn cpu_seconds() -> Fallible<f64> {
    let stat = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds: f64 = stat.split_whitespace().next().ok_or("no schedstat")?.parse()?;
    Ok(nanoseconds / 1e9)
}

fn exchange(sequence: u64, len: usize) -> Exchange {
    let operation = Operation {
        element: ElementType::F32,
        len: len as u64,
        ..Operation::plain(OperationKind::AllReduce)
    };
    let started = Instant::now();
    Exchange {
        tag: Tag { membership: MembershipVersion(1), sequence, round: 0, operation },
        started,
        deadline: started + Duration::from_secs(20),
        stall: Duration::from_secs(5),
    }
}

// The longest of all ranks' times; a barrier as well.
fn slowest(transport: &mut TcpTransport, sequence: &mut u64, mine: f64) -> Fallible<f64> {
    *sequence += 1;
    let (me, world) = (transport.group().me().0 as usize, transport.group().world() as usize);
    let mut times = vec![0.0; world];
    times[me] = mine;
    transport.all_gather(&exchange(*sequence, 0), bytemuck::cast_slice_mut(&mut times))?;
    Ok(times.into_iter().fold(0.0, f64::max))
}

struct Sum<'a> {
    source: &'a [f32],
    target: &'a mut [f32],
}

impl Fold for Sum<'_> {
    fn len_bytes(&self) -> usize {
        size_of_val(self.target)
    }

    fn fold(&mut self, at: usize, bytes: &[u8]) {
        let range = at / 4..(at + bytes.len()) / 4;
        let operands = self.source[range.clone()].iter().zip(bytemuck::cast_slice::<u8, f32>(bytes));
        for (into, (a, b)) in self.target[range].iter_mut().zip(operands) {
            *into = a + b;
        }
    }
}

fn all_reduce(
    transport: &mut TcpTransport,
    sequence: &mut u64,
    source: &[f32],
    target: &mut [f32],
) -> Fallible<()> {
    *sequence += 1;
    let (me, world) = (transport.group().me(), transport.group().world());
    let mut call = exchange(*sequence, source.len());
    let mut reduced = vec![false; world as usize + 1];
    for round in Ring.schedule(me, world, source.len()).rounds {
        let (mut out, mut into) = (None, None);
        for step in round {
            match step {
                Step::Send { to, span } => out = Some((to, span)),
                Step::RecvReduce { from, span } => into = Some((from, span, true)),
                Step::RecvReduceLeft { from, span } | Step::RecvCopy { from, span } => {
                    into = Some((from, span, false));
                }
            }
        }
        // A part of no elements is sent on neither side.
        let none = (Rank(0), Span { start: 0, len: 0 });
        let ((to, sent), (from, span, folds)) =
            (out.unwrap_or(none), into.unwrap_or((none.0, none.1, false)));
        // Sent is what was reduced last, or in the first round what this rank brought.
        let (low, high) = target.split_at_mut(sent.start.max(span.start));
        let ((send_part, send_at), (into_part, into_at)) = if sent.start < span.start {
            ((&low[..], 0), (high, span.start))
        } else {
            ((&high[..], sent.start), (low, 0))
        };
        let first = !std::mem::replace(&mut reduced[0], true);
        let bytes =
            if first { &source[sent.range()] } else { &send_part[sent.start - send_at..][..sent.len] };
        let place = &mut into_part[span.start - into_at..][..span.len];
        let sends = [Outgoing { to, bytes: bytemuck::cast_slice(bytes) }];
        let mut sum;
        let sink = if folds {
            sum = Sum { source: &source[span.range()], target: place };
            Sink::Fold(&mut sum)
        } else {
            Sink::Place(bytemuck::cast_slice_mut(place))
        };
        let sends = &sends[..usize::from(sent.len > 0)];
        let receives = &mut [Incoming { from, sink }];
        transport.exchange(&call, sends, &mut receives[..usize::from(span.len > 0)])?;
        call.tag.round += 1;
    }
    Ok(())
}

fn duplex(
    [next, before]: &mut [TcpStream; 2],
    bytes: usize,
    source: &[u8],
    target: &mut [u8],
) -> Fallible<()> {
    let (mut sent, mut received) = (0, 0);
    let would_block = |e: io::Error| if e.kind() == io::ErrorKind::WouldBlock { Ok(0) } else { Err(e) };
    while sent < bytes || received < bytes {
        let at = sent % source.len();
        let most = (bytes - sent).min(source.len() - at).min(256 << 10);
        let written = if most > 0 { next.write(&source[at..at + most]).or_else(would_block)? } else { 0 };
        let at = received % target.len();
        let most = (bytes - received).min(target.len() - at).min(256 << 10);
        let read = if most > 0 { before.read(&mut target[at..at + most]).or_else(would_block)? } else { 0 };
        sent += written;
        received += read;
        if written + read == 0 {
            let mut waits = Vec::new();
            if sent < bytes {
                waits.push(PollFd::new(next, PollFlags::OUT));
            }
            if received < bytes {
                waits.push(PollFd::new(before, PollFlags::IN));
            }
            poll(&mut waits, None)?;
        }
    }
    Ok(())
}
