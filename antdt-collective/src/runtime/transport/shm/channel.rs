//! A channel through shared memory: a ring each way, and a connection beside them.
//!
//! The two ends first connect over TCP. The one that dialled sends its job and its [`Card`]; the other one
//! answers with its own, if the job is the same. Ends on one host then swap memory as the members of a group
//! do, and bytes go through rings. Ends on two hosts, and an end that gets no card as an answer, stay with
//! the connection.
//!
//! An end without work sleeps on the connection, not on its bell: nothing ticks while a server waits for a
//! worker that computes. An end that moves a counter while the other end sleeps sends it one byte there. When
//! the process of one end dies, the other end notices that the connection ended.
//!
//! Rejected: messages that are read in the sender's memory, as between members of a group. Requests and
//! replies are made in memory that grows and is used again for the next one; that would have to be regions,
//! and the sender could not continue before they were read.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use antdt_core::Rank;
use rustix::event::{PollFd, PollFlags};

use super::arena::{Arena, Shape};
use super::idle::{Idle, Next, Patience};
use super::memory::{RingPlace, RingReader, RingWriter};
use super::{Card, Counter, Host};
use crate::group::JobToken;
use crate::handover::Damaged;
use crate::runtime::abort::AbortHandle;
use crate::runtime::connection::BulkStream;
use crate::runtime::transport::tcp::{TcpChannel, check};
use crate::runtime::transport::{Channel, ChannelError};
use crate::runtime::wait::wait;

/// First bytes on the connection; the last one is the version.
const MAGIC: [u8; 8] = *b"antdtch\x01";

// Hello and answer are written by hand, since the peer must know their length.
const HELLO_LEN: usize = MAGIC.len() + 8 + Card::LEN;
const ANSWER_LEN: usize = MAGIC.len() + 1 + Card::LEN;

/// One way from each end. Its ring takes a long message whole, so that a worker goes on to the next server while the first
/// one reads: with 256 KiB, 4 MiB to and from two servers took a third longer than over TCP, whose buffers are as
/// long; with this, a tenth less. A step of 46 KB and 5,000 rows takes as long as over TCP: there the servers' work
/// counts (`antdt-model/examples/transports.rs`, 2 busy cores).
const SHAPE: Shape = Shape { ways: 1, ring_bytes: 4 << 20 };

/// Bytes moved at a time, so that both ends are at work at once.
const PIECE: usize = 64 << 10;

/// How often to try again while the other end's local socket is full.
const RETRY: Duration = Duration::from_millis(1);

/// What an end knows before it meets the other one.
#[derive(Debug, Clone, Copy)]
pub(in crate::runtime::transport) struct Terms<'a> {
    pub(in crate::runtime::transport) job: JobToken,
    /// Whether the other end must be on this host.
    pub(in crate::runtime::transport) one_host: bool,
    /// The part of this host that shares memory; see `MixedConfig`.
    pub(in crate::runtime::transport) part: &'a str,
}

/// The end that dialled.
pub(in crate::runtime::transport) fn offer(
    mut tcp: TcpChannel,
    terms: Terms<'_>,
    deadline: Instant,
) -> Result<Box<dyn Channel>, ChannelError> {
    let counter = open(terms)?;
    let hello = [&MAGIC[..], &terms.job.0.to_le_bytes(), &counter.card().encode()].concat();
    tcp.send(&hello, deadline)?;
    let mut answer = [0; ANSWER_LEN];
    tcp.receive(&mut answer, deadline)?;
    let Some((known, card)) = after_magic(&answer)?.split_first() else { return Err(strange()) };
    if *known == 0 {
        // A stranger to it: the next speaker over the connection learns why.
        return Ok(Box::new(tcp));
    }
    go_on(tcp, &counter, &decode(card)?, terms, deadline)
}

/// The end that was dialled.
pub(in crate::runtime::transport) fn answer(
    mut tcp: TcpChannel,
    terms: Terms<'_>,
    deadline: Instant,
) -> Result<Box<dyn Channel>, ChannelError> {
    let mut hello = [0; HELLO_LEN];
    tcp.receive(&mut hello, deadline)?;
    let (job, card) = after_magic(&hello)?.split_at(8);
    let known = *job == terms.job.0.to_le_bytes();
    let counter = open(terms)?;
    let ours = if known { counter.card().encode() } else { vec![0; Card::LEN] };
    tcp.send(&[&MAGIC[..], &[u8::from(known)], &ours].concat(), deadline)?;
    if known { go_on(tcp, &counter, &decode(card)?, terms, deadline) } else { Ok(Box::new(tcp)) }
}

fn open(terms: Terms<'_>) -> Result<Counter, ChannelError> {
    Counter::open(Host::this(terms.part)).map_err(|error| refused(io::Error::other(error)))
}

fn refused(error: io::Error) -> ChannelError {
    ChannelError::io("sharing memory", error)
}

fn strange() -> ChannelError {
    ChannelError::Corrupt { what: "the first bytes are none of this transport".to_owned() }
}

fn after_magic(bytes: &[u8]) -> Result<&[u8], ChannelError> {
    bytes.strip_prefix(&MAGIC).ok_or_else(strange)
}

fn decode(card: &[u8]) -> Result<Card, ChannelError> {
    card.first_chunk().map(Card::decode).ok_or_else(strange)
}

// Both ends see the same two cards, and so do the same.
fn go_on(
    tcp: TcpChannel,
    counter: &Counter,
    theirs: &Card,
    terms: Terms<'_>,
    deadline: Instant,
) -> Result<Box<dyn Channel>, ChannelError> {
    if theirs.host.is_shared_with(&counter.card().host) {
        return Ok(Box::new(ShmChannel::swap(tcp, counter, theirs, deadline)?));
    }
    if terms.one_host { Err(ChannelError::OtherHost) } else { Ok(Box::new(tcp)) }
}

/// One end.
#[derive(Debug)]
struct ShmChannel {
    // Closed first: an end that is woken finds it so.
    stream: BulkStream,
    abort: AbortHandle,
    ours: Arena,
    theirs: Arena,
    out: RingWriter,
    inn: RingReader,
    // The end of the connection was seen; what came before may still lie in the ring.
    closed: bool,
}

impl ShmChannel {
    // Hands this end's memory over, and takes the other one's.
    fn swap(
        tcp: TcpChannel,
        counter: &Counter,
        card: &Card,
        deadline: Instant,
    ) -> Result<Self, ChannelError> {
        let (stream, abort) = tcp.into_parts();
        let ours = Arena::create(SHAPE).map_err(refused)?;
        let (mut sent, mut file, mut gone) = (false, None, false);
        loop {
            if !sent {
                // Its socket goes with the process, which is then gone.
                sent = counter.send(ours.descriptor(), Rank(0), card).map_err(refused)?;
            }
            if file.is_none() {
                file = counter.receive().map_err(refused)?.map(|(_, file)| file);
            }
            if sent && let Some(file) = file {
                return Self::new(stream, abort, ours, file).map_err(refused);
            }
            if gone {
                return Err(ChannelError::Closed);
            }
            check(&abort, deadline)?;
            let until = if sent { deadline } else { deadline.min(Instant::now() + RETRY) };
            let mut fds = [
                PollFd::from_borrowed_fd(abort.descriptor(), PollFlags::IN),
                counter.poll_fd(),
                // Not for bytes: the other end may be further already, and ring.
                PollFd::new(&stream, PollFlags::RDHUP),
            ];
            wait(&mut fds, until).map_err(refused)?;
            gone = fds[2].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
        }
    }

    fn new(stream: BulkStream, abort: AbortHandle, ours: Arena, file: OwnedFd) -> io::Result<Self> {
        let theirs = Arena::open(file, SHAPE)?;
        // Bytes without records: of any length.
        let ring = |arena: &Arena| arena.way(0).map(|way| RingPlace { grain: 1, ..way.ring });
        let (out, inn) = (RingWriter::new(ring(&ours)?), RingReader::new(ring(&theirs)?));
        Ok(Self { stream, abort, ours, theirs, out, inn, closed: false })
    }

    // Moves nothing: looks again, or sleeps until something may have moved.
    fn pause(&mut self, idle: &mut Idle, deadline: Instant) -> Result<(), ChannelError> {
        if idle.next(self.ours.bell()) == Next::Look {
            return Ok(());
        }
        let slept = self.sleep(deadline);
        idle.awake(self.ours.bell());
        slept
    }

    fn sleep(&mut self, deadline: Instant) -> Result<(), ChannelError> {
        if self.closed {
            return Err(ChannelError::Closed);
        }
        check(&self.abort, deadline)?;
        let mut fds = [
            PollFd::from_borrowed_fd(self.abort.descriptor(), PollFlags::IN),
            PollFd::new(&self.stream, PollFlags::IN),
        ];
        wait(&mut fds, deadline).map_err(|e| ChannelError::io("waiting for a connection", e))?;
        // What is rung is of no interest; more than this is heard in the next sleep.
        match self.stream.read(&mut [0; 64]) {
            Ok(0) => self.closed = true,
            Ok(_) => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.closed = true,
        }
        Ok(())
    }

    // Wakes the other end if it sleeps, after a counter moved that it may wait for.
    fn ring(&mut self, waits: impl FnOnce(&Arena) -> bool) {
        if self.theirs.bell().ring() && waits(&self.theirs) {
            // A connection that takes no byte has one that was not heard yet, or is closed.
            let _ = self.stream.write(&[0]);
        }
    }
}

fn damaged(error: Damaged) -> ChannelError {
    ChannelError::Corrupt { what: error.to_string() }
}

impl Channel for ShmChannel {
    fn send(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<(), ChannelError> {
        let mut idle = Idle::new(Patience::TURNS);
        self.ours.waits_for_room().store(1, Ordering::Relaxed);
        let result = loop {
            if bytes.is_empty() {
                break Ok(());
            }
            match self.out.write(bytes, PIECE) {
                Ok(0) => {
                    if let Err(error) = self.pause(&mut idle, deadline) {
                        break Err(error);
                    }
                }
                Ok(written) => {
                    bytes = &bytes[written..];
                    self.ring(|_| true);
                    idle.moved(self.ours.bell());
                }
                Err(error) => break Err(damaged(error)),
            }
        };
        idle.awake(self.ours.bell());
        self.ours.waits_for_room().store(0, Ordering::Relaxed);
        result
    }

    fn receive(&mut self, into: &mut [u8], deadline: Instant) -> Result<(), ChannelError> {
        let mut filled = 0;
        let mut idle = Idle::new(Patience::TURNS);
        let result = loop {
            if filled == into.len() {
                break Ok(());
            }
            let came = match self.inn.read(PIECE.min(into.len() - filled)) {
                Ok(came) => came,
                Err(error) => break Err(damaged(error)),
            };
            let len = came.len();
            into[filled..filled + len].copy_from_slice(came);
            if len == 0 {
                if let Err(error) = self.pause(&mut idle, deadline) {
                    break Err(error);
                }
                continue;
            }
            filled += len;
            self.inn.release(len);
            // An end that waits for a reply need not know that its request was taken.
            self.ring(|theirs| theirs.waits_for_room().load(Ordering::Relaxed) == 1);
            idle.moved(self.ours.bell());
        };
        idle.awake(self.ours.bell());
        result
    }

    fn wait(&mut self, deadline: Instant) -> Result<(), ChannelError> {
        let mut idle = Idle::new(Patience::TURNS);
        let result = loop {
            match self.inn.read(1).map(<[u8]>::is_empty) {
                Ok(false) => break Ok(()),
                Ok(true) => {
                    if let Err(error) = self.pause(&mut idle, deadline) {
                        break Err(error);
                    }
                }
                Err(error) => break Err(damaged(error)),
            }
        };
        idle.awake(self.ours.bell());
        result
    }
}

#[cfg(test)]
mod tests;
