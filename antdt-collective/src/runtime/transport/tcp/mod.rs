//! Members that are processes, connected each with each over TCP.
//!
//! One thread drives all connections of a rank: every message of a round moves whenever its socket allows, so it
//! cannot matter who sends first. A message goes in segments of 256 KiB, each a frame with its own checksum, and is
//! folded in segment by segment while the rest is on its way.
//!
//! A rank that fails tells every peer it is connected with, on whose account, and shuts its side; a peer that dies is
//! noticed by the end of its connection. Nobody therefore waits for the deadline but those who wait for a peer that is
//! alive and silent.

mod link;
mod listener;

use std::io::{self, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use antdt_core::Rank;
use rustix::event::{PollFd, PollFlags};

pub use listener::Listener;

use super::{Exchange, Incoming, Outgoing, Transport};
use crate::error::CollectiveError;
use crate::frame::{FrameKind, Header, Tag, notice};
use crate::group::Group;
use crate::runtime::abort::AbortHandle;
use crate::runtime::wait::{io_error, wait};
use link::{Link, Receiving, Sending};

/// How long a failing rank tries to finish a segment that it had begun, so that the peer can read what comes after
/// it: why it failed. A peer that reads takes it in far less; one that does not will learn from the closed connection.
const FAREWELL: Duration = Duration::from_millis(100);

/// A member of a group over TCP.
#[derive(Debug)]
pub struct TcpTransport {
    group: Group,
    links: Vec<Option<Link>>,
    abort: AbortHandle,
    failed: Option<CollectiveError>,
    last: Tag,
}

impl TcpTransport {
    /// Connects with all other members; every member calls this with the same list. Connections of older memberships
    /// are turned away, those of newer ones are kept for their time.
    ///
    /// # Errors
    /// If a member cannot be reached, is gone, means another list of members, or has not called within `timeout`; if
    /// the abort handle was used; if a newer membership has begun.
    pub fn connect(
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Self, CollectiveError> {
        let streams = listener.meet(group, Instant::now() + timeout, abort)?;
        let ranks = (0_u32..).map(Rank);
        let links = ranks.zip(streams).map(|(rank, stream)| stream.map(|s| Link::new(s, group.holder(rank))));
        Ok(Self {
            group: group.clone(),
            links: links.collect(),
            abort: abort.clone(),
            failed: None,
            last: listener::connect_tag(group.membership()),
        })
    }

    fn run(
        &mut self,
        call: &Exchange,
        sends: &mut [Option<Sending<'_>>],
        receives: &mut [Option<Receiving<'_, '_>>],
    ) -> Result<(), CollectiveError> {
        for link in self.links.iter_mut().flatten() {
            link.begin_round();
        }
        loop {
            if let Some(error) = self.abort.error() {
                return Err(error);
            }
            let (mut missing, mut waiting_for) = (0, None);
            let mut progress = false;
            for (rank, link) in self.links.iter_mut().enumerate() {
                let Some(link) = link else { continue };
                let (send, receive) = (&mut sends[rank], &mut receives[rank]);
                let left = |send: &Option<Sending<'_>>, receive: &Option<Receiving<'_, '_>>| {
                    (
                        receive.as_ref().map_or(0, Receiving::missing),
                        send.as_ref().map_or(0, Sending::missing),
                    )
                };
                let before = left(send, receive);
                let mut reachable = true;
                if let Some(send) = send {
                    reachable = link.send(send)?;
                }
                if !reachable {
                    // It may have said why before it went.
                    link.readable = true;
                }
                if link.listens() {
                    link.receive(&call.tag, receive.as_mut())?;
                }
                let after = left(send, receive);
                let unfinished = after.0 + after.1;
                if !reachable || (link.closed && unfinished > 0) {
                    return Err(CollectiveError::PeerClosed { peer: link.peer, at: call.tag });
                }
                progress |= before != after;
                // Who does not send is more likely the culprit than who does not take.
                if after.0 > 0 || (unfinished > 0 && waiting_for.is_none()) {
                    waiting_for = Some(link.peer);
                    missing = unfinished;
                }
            }
            let Some(peer) = waiting_for else { return Ok(()) };
            if Instant::now() >= call.deadline {
                let waited = call.started.elapsed();
                return Err(CollectiveError::Timeout { peer, at: call.tag, waited, missing: missing as u64 });
            }
            if !progress {
                self.sleep(call.deadline, sends)?;
            }
        }
    }

    // Until something can move, or a peer has something to say.
    fn sleep(&mut self, deadline: Instant, sends: &[Option<Sending<'_>>]) -> Result<(), CollectiveError> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.abort.descriptor(), PollFlags::IN)];
        let mut polled = Vec::with_capacity(self.links.len());
        for (rank, link) in self.links.iter().enumerate() {
            let Some(link) = link else { continue };
            let mut events = PollFlags::empty();
            events.set(PollFlags::IN, link.listens());
            events.set(PollFlags::OUT, sends[rank].as_ref().is_some_and(|send| !send.is_done()));
            if !events.is_empty() {
                fds.push(PollFd::new(&link.stream, events));
                polled.push(rank);
            }
        }
        wait(&mut fds, deadline).map_err(|e| io_error("waiting for peers", &e))?;
        let ready: Vec<PollFlags> = fds[1..].iter().map(PollFd::revents).collect();
        for (rank, ready) in polled.into_iter().zip(ready) {
            if let Some(link) = &mut self.links[rank] {
                let gone = ready.intersects(PollFlags::HUP | PollFlags::ERR);
                link.readable |= gone || ready.contains(PollFlags::IN);
                link.writable |= gone || ready.contains(PollFlags::OUT);
            }
        }
        Ok(())
    }

    // Tells all peers, behind the rest of any segment that was begun, and shuts this side.
    fn farewell(&mut self, error: CollectiveError, begun: impl Fn(usize) -> Vec<u8>) -> CollectiveError {
        if let Some(first) = &self.failed {
            return first.clone();
        }
        let payload = notice::encode(self.group.holder(self.group.me()), &error);
        let header = Header::of(FrameKind::Abort, self.last, 0, &payload).encode();
        let mut letters: Vec<(usize, Vec<u8>, usize)> = Vec::new();
        for (rank, link) in self.links.iter().enumerate() {
            if link.as_ref().is_some_and(|link| !link.closed) {
                letters.push((rank, [&begun(rank)[..], &header, &payload].concat(), 0));
            }
        }
        let deadline = Instant::now() + FAREWELL;
        loop {
            letters.retain_mut(|(rank, letter, sent)| {
                let Some(link) = &mut self.links[*rank] else { return false };
                while *sent < letter.len() {
                    match link.stream.write(&letter[*sent..]) {
                        Ok(0) => return false,
                        Ok(written) => *sent += written,
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(_) => return false,
                    }
                }
                false
            });
            if letters.is_empty() || Instant::now() >= deadline {
                break;
            }
            let streams = letters.iter().filter_map(|(rank, ..)| self.links[*rank].as_ref());
            let mut fds: Vec<_> = streams.map(|link| PollFd::new(&link.stream, PollFlags::OUT)).collect();
            if wait(&mut fds, deadline).is_err() {
                break;
            }
        }
        for link in self.links.iter_mut().flatten() {
            // Fails if the peer is gone, and then there is nothing to shut.
            let _ = link.stream.shutdown(Shutdown::Write);
        }
        tracing::debug!(rank = %self.group.me(), %error, "collective failed");
        self.failed.insert(error).clone()
    }
}

impl Transport for TcpTransport {
    fn group(&self) -> &Group {
        &self.group
    }

    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.last = call.tag;
        let world = self.links.len();
        let mut sending: Vec<Option<Sending<'_>>> = (0..world).map(|_| None).collect();
        for Outgoing { to, bytes } in sends {
            sending[to.0 as usize] = Some(Sending::new(call.tag, bytes));
        }
        let mut receiving: Vec<Option<Receiving<'_, '_>>> = (0..world).map(|_| None).collect();
        for Incoming { from, sink } in receives {
            receiving[from.0 as usize] = Some(Receiving::new(sink));
        }
        let result = self.run(call, &mut sending, &mut receiving);
        result.map_err(|error| {
            self.farewell(error, |rank| sending[rank].as_ref().map_or_else(Vec::new, Sending::begun))
        })
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        self.farewell(error, |_| Vec::new())
    }
}

#[cfg(test)]
mod tests;
