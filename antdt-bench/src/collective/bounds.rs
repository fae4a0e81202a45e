//! What the machine itself can do: bytes through loopback, and bytes through memory.

use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use antdt_collective::{ReduceOp, kernel};
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, Timespec};

use super::terms;
use crate::meter::{clock_time, least};

/// Bytes of one write, as tried. Both ends of the range are worse than its middle.
const WRITES: [usize; 5] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// Sizes of socket buffers, as tried; the first leaves it to the system, and the last is the most that it gives without
/// being configured.
const SOCKET_BUFFERS: [Option<usize>; 2] = [None, Some(208 << 10)];
/// The way of writing is chosen at this size for all larger ones.
const CHOSEN_AT_MOST: usize = 64 << 20;
/// Bytes sent each way between two readings of the clock. Shorter buffers are sent several times over: threads that have
/// just been woken are not what is measured.
const SENT_AT_LEAST: usize = 8 << 20;
/// Times that each way is tried; the least counts. Sockets whose buffers are the system's take some to grow them.
const TRIES: usize = 4;
/// A socket that carries nothing for so long is broken.
const STUCK: Duration = Duration::from_secs(20);

/// Bytes of a half that are exchanged, and come back as sums, before the next ones are, as tried: all of them, or as many as
/// stay in the caches meanwhile.
const PIECES: [usize; 2] = [usize::MAX, 512 << 10];

/// How bytes go through a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    /// Bytes a call.
    write: usize,
    socket_buffer: Option<usize>,
    /// Bytes of a piece, at most.
    piece: usize,
    /// Whether a side with nothing to do sleeps, or asks again.
    sleeps: bool,
}

/// What counts when a way is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Least {
    /// The time it takes.
    Time,
    /// The time that both sides take on the cores.
    Cpu,
}

/// What an exchange does with the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// It moves them: what the socket can do.
    Move,
    /// It sums the operands.
    Sum,
    /// It sums them where they lie, and keeps a copy of what lay there, made past the caches: the way back of a call that
    /// breaks off.
    SumAndKeep,
}

/// What an exchange took.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Took {
    /// Seconds until the slower side had everything.
    pub(super) seconds: f64,
    /// Seconds on the cores, both sides together.
    pub(super) cpu: f64,
}

/// Two sides that exchange over loopback what two ranks must for an all-reduce, a thread and a core each: half of the
/// elements as operands, and as many bytes again as sums, piece by piece or at once. Nothing is touched that need not be:
/// operands are received into a room the size of a piece. There are no frames and no deadlines.
#[derive(Debug)]
pub(super) struct Duplex {
    way: Way,
    sides: [Side; 2],
    work: Work,
}

#[derive(Debug)]
struct Side {
    stream: TcpStream,
    /// The half that the other side sums; the sums go there, too.
    theirs: Vec<f32>,
    mine: Vec<f32>,
    room: Vec<f32>,
    /// What lay in `theirs` and `mine`, piece by piece; empty if it is not kept.
    kept: Vec<f32>,
}

impl Duplex {
    /// The best way to exchange what ranks with `bytes` have: all at once if it only moves, and piece by piece as well if it
    /// sums, whatever is better.
    pub(super) fn best(bytes: usize, work: Work, least_of: Least) -> Result<Self> {
        let mut best: Option<(f64, Self)> = None;
        for write in WRITES.into_iter().filter(|write| *write <= bytes.max(WRITES[0])) {
            for socket_buffer in SOCKET_BUFFERS {
                for piece in PIECES
                    .into_iter()
                    .filter(|piece| *piece == PIECES[0] || work != Work::Move && *piece < bytes / 2)
                {
                    for sleeps in [false, true] {
                        let way = Way { write, socket_buffer, piece, sleeps };
                        let mut duplex = Self::connect(way, bytes.min(CHOSEN_AT_MOST), work)?;
                        let tries = (0..TRIES).map(|_| duplex.time()).collect::<Result<Vec<Took>>>()?;
                        let least = least(tries.iter().map(|took| match least_of {
                            Least::Time => took.seconds,
                            Least::Cpu => took.cpu,
                        }));
                        if best.as_ref().is_none_or(|(best, _)| least < *best) {
                            best = Some((least, duplex));
                        }
                    }
                }
            }
        }
        let (_, best) = best.context("no way to write was tried")?;
        if bytes <= CHOSEN_AT_MOST {
            // The very connections: what buffers have grown to differs from one to the next.
            return Ok(best);
        }
        let mut duplex = Self::connect(best.way, bytes, work)?;
        for _ in 0..TRIES {
            duplex.time()?;
        }
        Ok(duplex)
    }

    fn connect(way: Way, bytes: usize, work: Work) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        let half = (bytes / 2).div_ceil(size_of::<f32>()).max(1);
        let side = |stream: TcpStream, value: f32| -> Result<Side> {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            // As ours do: a control that paces would make this a bound that comes and goes.
            let _ = sockopt::set_tcp_congestion(&stream, terms::OURS);
            if let Some(size) = way.socket_buffer {
                sockopt::set_socket_send_buffer_size(&stream, size)?;
                sockopt::set_socket_recv_buffer_size(&stream, size)?;
            }
            // Not zeroed: pages of zeros that were never written are all the same one.
            let all = || vec![value; half];
            Ok(Side {
                stream,
                theirs: all(),
                mine: all(),
                room: vec![value; half.min(way.piece / size_of::<f32>())],
                // Not zeroed either, and no operand: a reader sees whether they were copied.
                kept: if work == Work::SumAndKeep { vec![f32::NAN; 2 * half] } else { Vec::new() },
            })
        };
        Ok(Self { way, sides: [side(near, 1.0)?, side(far, 2.0)?], work })
    }

    /// One exchange on average, of several for short ones.
    pub(super) fn time(&mut self) -> Result<Took> {
        let (way, work) = (self.way, self.work);
        let times = SENT_AT_LEAST.div_ceil(2 * size_of_val(&self.sides[0].mine[..]));
        let start = Barrier::new(2);
        let took: Vec<Result<Took>> = thread::scope(|scope| {
            let working: Vec<_> = self
                .sides
                .iter_mut()
                .enumerate()
                .map(|(core, side)| {
                    let start = &start;
                    scope.spawn(move || {
                        stay_on(core);
                        start.wait();
                        let (cpu, began) = (clock_time(ClockId::ThreadCPUTime), Instant::now());
                        (0..times).try_for_each(|_| side.exchange(way, work))?;
                        let (seconds, cpu) = (began.elapsed(), clock_time(ClockId::ThreadCPUTime) - cpu);
                        Ok(Took { seconds: seconds.as_secs_f64(), cpu: cpu.as_secs_f64() })
                    })
                })
                .collect();
            working
                .into_iter()
                .map(|thread| thread.join().expect("it reports instead of panicking"))
                .collect()
        });
        took.into_iter().try_fold(Took::default(), |all, took| {
            let (took, times) = (took?, times as f64);
            Ok(Took { seconds: all.seconds.max(took.seconds / times), cpu: all.cpu + took.cpu / times })
        })
    }
}

impl Side {
    fn exchange(&mut self, way: Way, work: Work) -> Result<()> {
        let Self { stream, theirs, mine, room, kept } = self;
        let piece = room.len();
        let mut kept = kept.chunks_mut(2 * piece);
        for (theirs, mine) in theirs.chunks_mut(piece).zip(mine.chunks_mut(piece)) {
            if let Some(kept) = kept.next() {
                let (of_theirs, of_mine) = kept.split_at_mut(theirs.len());
                kernel::stream(bytemuck::cast_slice_mut(of_theirs), bytemuck::cast_slice(theirs));
                kernel::stream(bytemuck::cast_slice_mut(of_mine), bytemuck::cast_slice(mine));
            }
            let room = &mut room[..mine.len()];
            both(stream, way, bytemuck::cast_slice(theirs), bytemuck::cast_slice_mut(room))?;
            let sums = if work == Work::Move {
                room
            } else {
                kernel::reduce(ReduceOp::Sum, mine, room);
                mine
            };
            both(stream, way, bytemuck::cast_slice(sums), bytemuck::cast_slice_mut(theirs))?;
        }
        Ok(())
    }
}

// A core that does not exist is no loss: the system then chooses.
fn stay_on(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    let _ = sched_setaffinity(None, &cores);
}

// Sends while the socket takes and receives while it gives.
fn both(mut stream: &TcpStream, way: Way, source: &[u8], place: &mut [u8]) -> Result<()> {
    let Way { write, sleeps, .. } = way;
    let began = Instant::now();
    let (mut sent, mut received) = (0, 0);
    while sent < source.len() || received < place.len() {
        let mut moved = false;
        if sent < source.len() {
            let end = source.len().min(sent + write);
            match stream.write(&source[sent..end]) {
                Ok(n) => (sent, moved) = (sent + n, true),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
        }
        if received < place.len() {
            let end = place.len().min(received + write);
            match stream.read(&mut place[received..end]) {
                Ok(0) => bail!("a loopback connection ended"),
                Ok(n) => (received, moved) = (received + n, true),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
        }
        if moved {
            continue;
        }
        let stuck = if sleeps {
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, sent < source.len());
            let limit = Timespec { tv_sec: STUCK.as_secs().cast_signed(), tv_nsec: 0 };
            poll(&mut [PollFd::new(&stream, events)], Some(&limit))? == 0
        } else {
            // The other side may need this core.
            thread::yield_now();
            began.elapsed() > STUCK
        };
        if stuck {
            bail!("loopback carried nothing for {} s", STUCK.as_secs());
        }
    }
    Ok(())
}

/// Cores that work at once, at most one for each rank.
pub(super) fn cores(world: u32) -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(world as usize)
}

/// Does `work` on each of `all` at once, a thread each; the seconds of the slowest.
pub(super) fn at_once<T: Send>(all: &mut [T], work: impl Fn(&mut T) + Sync) -> f64 {
    let start = Barrier::new(all.len());
    let (start, work) = (&start, &work);
    thread::scope(|scope| {
        let mut working = Vec::new();
        for one in all {
            working.push(scope.spawn(move || {
                start.wait();
                let began = Instant::now();
                work(one);
                began.elapsed().as_secs_f64()
            }));
        }
        working.into_iter().map(|thread| thread.join().expect("work does not panic")).fold(0.0, f64::max)
    })
}

/// The passes over memory that the all-reduce of ranks that share memory makes (`antdt-collective`, `lending`), and nothing
/// else: no hand-over, no waiting. A rank reads its chunk of every rank's elements and writes the total to all of them, `S`
/// bytes in and `S` out. With a caller's own buffers it first copies the others' chunks out, `(n-1)/n·S` in and out, and
/// copies the result back, `S` in and out. A core does that for every rank it has.
#[derive(Debug)]
pub(super) struct Floor {
    world: usize,
    pairs: Vec<(Vec<f32>, Vec<f32>)>,
    turns: f64,
}

impl Floor {
    pub(super) fn new(world: u32, bytes: usize) -> Self {
        let cores = cores(world);
        let len = bytes / size_of::<f32>();
        let pairs = (0..cores).map(|_| (vec![1.0; len], vec![2.0; len])).collect();
        Self { world: world as usize, pairs, turns: f64::from(world) / cores as f64 }
    }

    /// Seconds of the reduction, at the bandwidth of this moment: by our kernel or by plain loops, whichever is faster, for a
    /// bound that only the code it judges can reach moves with its defects.
    pub(super) fn time(&mut self) -> f64 {
        self.turns * self.by_kernel().min(self.by_loops())
    }

    fn by_kernel(&mut self) -> f64 {
        let world = self.world;
        at_once(&mut self.pairs, |(from, to)| {
            let share = from.len() / world;
            let operands: Vec<&[f32]> = black_box(from).chunks_exact(share).take(world).collect();
            let mut places: Vec<&mut [f32]> = black_box(to).chunks_exact_mut(share).take(world).collect();
            kernel::stream_all_into(ReduceOp::Sum, &mut places, &operands);
        })
    }

    // Each block is summed in the first level of the cache, and copied to its places.
    fn by_loops(&mut self) -> f64 {
        const BLOCK: usize = 1024;
        let world = self.world;
        at_once(&mut self.pairs, |(from, to)| {
            let (from, to) = (black_box(&from[..]), black_box(&mut to[..]));
            let share = from.len() / world;
            let mut block = [0.0_f32; BLOCK];
            for start in (0..share).step_by(BLOCK) {
                let len = BLOCK.min(share - start);
                block[..len].copy_from_slice(&from[start..start + len]);
                for rank in 1..world {
                    let operand = &from[rank * share + start..][..len];
                    for (sum, x) in block[..len].iter_mut().zip(operand) {
                        *sum += x;
                    }
                }
                for rank in 0..world {
                    to[rank * share + start..][..len].copy_from_slice(&block[..len]);
                }
            }
        })
    }

    /// Seconds of the copies that a caller's own buffers need besides, through the caches or past them, whichever is faster.
    pub(super) fn copies(&mut self) -> f64 {
        let world = self.world;
        self.turns * (self.copied(|len| len - len / world) + self.copied(|len| len))
    }

    // The part of the buffers, of so many elements, that `part` says.
    fn copied(&mut self, part: impl Fn(usize) -> usize + Sync) -> f64 {
        let through = at_once(&mut self.pairs, |(from, to)| {
            let part = part(to.len());
            black_box(&mut to[..part]).copy_from_slice(black_box(&from[..part]));
        });
        let past = at_once(&mut self.pairs, |(from, to)| {
            let part = part(to.len());
            let (to, from) = (black_box(&mut to[..part]), black_box(&from[..part]));
            kernel::stream(bytemuck::cast_slice_mut(to), bytemuck::cast_slice(from));
        });
        through.min(past)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_end_with_the_sums_in_pieces_or_at_once_asleep_or_not() {
        for (piece, sleeps) in [(usize::MAX, false), (usize::MAX, true), (4000, false), (4000, true)] {
            let way = Way { write: 1000, socket_buffer: Some(64 << 10), piece, sleeps };
            for work in [Work::Sum, Work::SumAndKeep] {
                let mut duplex = Duplex::connect(way, SENT_AT_LEAST, work).unwrap();
                let took = duplex.time().unwrap();
                assert!(took.seconds > 0.0 && took.cpu > 0.0);
                // Each side sums its half, and has the other's sums for the other half.
                for (side, own) in duplex.sides.into_iter().zip([1.0, 2.0]) {
                    assert!(side.mine.iter().chain(&side.theirs).all(|sum| *sum == 3.0));
                    assert!(side.kept.iter().all(|x| *x == own), "as it was before");
                    assert_eq!(side.kept.is_empty(), work == Work::Sum);
                }
            }
        }
    }

    #[test]
    fn without_sums_each_half_comes_back_as_it_was_sent() {
        let way = Way { write: 1000, socket_buffer: None, piece: 4000, sleeps: true };
        let mut duplex = Duplex::connect(way, SENT_AT_LEAST, Work::Move).unwrap();
        duplex.time().unwrap();
        for (side, own) in duplex.sides.iter().zip([1.0, 2.0]) {
            assert!(side.mine.iter().chain(&side.theirs).all(|x| *x == own));
        }
    }

    #[test]
    fn the_floor_writes_every_total_where_it_is_wanted_and_copies_nothing_then() {
        let mut floor = Floor::new(4, 4096);
        assert!((floor.turns * floor.pairs.len() as f64 - 4.0).abs() < 1e-12);
        for way in [Floor::by_kernel, Floor::by_loops] {
            assert!(way(&mut floor) > 0.0);
            // Every element is a total of four ones: a copied one would be a one.
            assert!(floor.pairs.iter().all(|(_, to)| to.iter().all(|x| *x == 4.0)));
            floor.pairs.iter_mut().for_each(|(_, to)| to.fill(2.0));
        }
        assert!(floor.time() > 0.0);
        assert!(floor.copies() > 0.0);
        assert!(floor.pairs.iter().all(|(from, to)| from == to));
    }
}
