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
use rustix::time::Timespec;

use crate::meter::least;

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

/// How bytes are written to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    /// Bytes a call.
    write: usize,
    socket_buffer: Option<usize>,
    style: Style,
}

/// What does the sending and receiving of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// A thread on a core of its own, which asks again when nothing can be done.
    Spinning,
    /// A thread on a core of its own, which sleeps when nothing can be done.
    Sleeping,
    /// A thread that sends and one that receives.
    Two,
}

impl Style {
    const ALL: [Self; 3] = [Self::Spinning, Self::Sleeping, Self::Two];

    const fn threads(self) -> usize {
        match self {
            Self::Spinning | Self::Sleeping => 1,
            Self::Two => 2,
        }
    }
}

/// Two sides that send each other as many bytes at once, over loopback, and do nothing else: the least time of an
/// all-reduce of two ranks over TCP, which exchange a half of their elements to sum them, and then a half of the sums.
/// Each byte of the buffers is sent and received once, as there: halves that go twice would stay in the caches.
#[derive(Debug)]
pub(super) struct Duplex {
    way: Way,
    sides: [Side; 2],
}

#[derive(Debug)]
struct Side {
    stream: TcpStream,
    source: Vec<u8>,
    place: Vec<u8>,
}

impl Duplex {
    /// The best way to send `bytes`.
    pub(super) fn best(bytes: usize) -> Result<Self> {
        let mut best: Option<(f64, Way)> = None;
        for write in WRITES.into_iter().filter(|write| *write <= bytes.max(WRITES[0])) {
            for socket_buffer in SOCKET_BUFFERS {
                for style in Style::ALL {
                    let way = Way { write, socket_buffer, style };
                    let mut duplex = Self::connect(way, bytes.min(CHOSEN_AT_MOST))?;
                    let tries = (0..TRIES).map(|_| duplex.time()).collect::<Result<Vec<f64>>>()?;
                    let time = least(tries);
                    if best.is_none_or(|(shortest, _)| time < shortest) {
                        best = Some((time, way));
                    }
                }
            }
        }
        let (_, way) = best.context("no way to write was tried")?;
        let mut duplex = Self::connect(way, bytes)?;
        for _ in 0..TRIES {
            duplex.time()?;
        }
        Ok(duplex)
    }

    fn connect(way: Way, bytes: usize) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        let side = |stream: TcpStream| -> Result<Side> {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(STUCK))?;
            stream.set_write_timeout(Some(STUCK))?;
            stream.set_nonblocking(way.style.threads() == 1)?;
            if let Some(size) = way.socket_buffer {
                sockopt::set_socket_send_buffer_size(&stream, size)?;
                sockopt::set_socket_recv_buffer_size(&stream, size)?;
            }
            // Not zeroed: pages of zeros that were never written are all the same one.
            let both_halves = 2 * (bytes / 2).max(1);
            Ok(Side { stream, source: vec![1; both_halves], place: vec![2; both_halves] })
        };
        Ok(Self { way, sides: [side(near)?, side(far)?] })
    }

    /// Seconds until both sides have sent and received a half and then the other, over and over.
    pub(super) fn time(&mut self) -> Result<f64> {
        let Way { write, style, .. } = self.way;
        let times = SENT_AT_LEAST.div_ceil(self.sides[0].source.len());
        let start = Barrier::new(2 * style.threads());
        let over =
            |work: &mut dyn FnMut() -> Result<()>| after(&start, || (0..times).try_for_each(|_| work()));
        let took: Vec<Result<f64>> = thread::scope(|scope| {
            let mut working = Vec::new();
            for (core, Side { stream, source, place }) in self.sides.iter_mut().enumerate() {
                let (mut stream, source, over) = (&*stream, &*source, &over);
                if style.threads() == 1 {
                    working.push(scope.spawn(move || {
                        stay_on(core);
                        over(&mut || {
                            let half = source.len() / 2;
                            let halves = source.chunks(half).zip(place.chunks_mut(half));
                            halves.into_iter().try_for_each(|(source, place)| {
                                both(stream, write, style == Style::Sleeping, source, place)
                            })
                        })
                    }));
                    continue;
                }
                let mut sending = stream;
                working.push(scope.spawn(move || {
                    over(&mut || source.chunks(write).try_for_each(|piece| Ok(sending.write_all(piece)?)))
                }));
                working.push(scope.spawn(move || {
                    over(&mut || place.chunks_mut(write).try_for_each(|piece| Ok(stream.read_exact(piece)?)))
                }));
            }
            working
                .into_iter()
                .map(|thread| thread.join().expect("it reports instead of panicking"))
                .collect()
        });
        took.into_iter().try_fold(0.0, |slowest: f64, took| Ok(slowest.max(took? / times as f64)))
    }
}

fn after(start: &Barrier, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    start.wait();
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64())
}

// A core that does not exist is no loss: the system then chooses.
fn stay_on(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    let _ = sched_setaffinity(None, &cores);
}

// Sends while the socket takes and receives while it gives.
fn both(mut stream: &TcpStream, write: usize, sleeps: bool, source: &[u8], place: &mut [u8]) -> Result<()> {
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

/// The least time of an all-reduce in memory whose ranks read each other's and write their own: each reads its share of
/// every rank's elements and writes their sums, `S` bytes in and `S/n` out, then copies the sums of the others, `(n-1)/n·S`
/// in and out. A core does that for every rank it has.
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

    /// Seconds, at the bandwidth of this moment. The copies go through the caches or past them, whichever is faster; a
    /// kernel chooses for itself.
    pub(super) fn time(&mut self) -> f64 {
        let world = self.world;
        let reduced = at_once(&mut self.pairs, |(from, to)| {
            let share = from.len() / world;
            let operands: Vec<&[f32]> = black_box(from).chunks_exact(share).take(world).collect();
            kernel::reduce_all_into(ReduceOp::Sum, &mut black_box(to)[..share], &operands);
        });
        self.turns * (reduced + self.copied(|len| len - len / world))
    }

    /// Seconds to copy every rank's buffer once, whichever way is faster: the least if ranks wrote into each other's
    /// memory, and what it takes more if they cannot read the operands where they lie.
    pub(super) fn copies(&mut self) -> f64 {
        self.turns * self.copied(|len| len)
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
    fn every_byte_goes_both_ways_in_every_style() {
        for style in Style::ALL {
            let way = Way { write: 1000, socket_buffer: Some(64 << 10), style };
            let mut duplex = Duplex::connect(way, 1_000_001).unwrap();
            assert!(duplex.time().unwrap() > 0.0);
            assert!(duplex.sides.iter().all(|side| side.place == side.source));
        }
    }

    #[test]
    fn the_floor_reduces_a_share_and_copies_the_rest_for_every_rank_of_a_core() {
        let mut floor = Floor::new(4, 4096);
        assert!((floor.turns * floor.pairs.len() as f64 - 4.0).abs() < 1e-12);
        assert!(floor.time() > 0.0);
        // The copies end before the last share: what stands there was written by nobody.
        assert!(floor.pairs.iter().all(|(_, to)| to[..768].iter().all(|x| *x == 1.0)));
        assert!(floor.pairs.iter().all(|(_, to)| to[768..].iter().all(|x| *x == 2.0)));
        assert!(floor.copies() > 0.0);
        assert!(floor.pairs.iter().all(|(from, to)| from == to));
    }
}
