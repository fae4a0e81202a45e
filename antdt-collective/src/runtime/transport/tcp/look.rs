//! Looking at connections from which nothing is awaited: a peer may have given up, or what was sent to it may be lost.
//!
//! A system takes bytes for a peer and may lose them all the same: a connection that is reset drops what is on its way. The
//! rank that sent them has done its part of the round, may have done its part of the call, and is the only one that can know.
//! The peer waits until the deadline unless it is told, by way of the others if need be. So every rank looks: when a call
//! begins and when a reduction ends (one system call for all connections), in a wait that lasts, and between calls if its program says
//! that it has time ([`attend`](crate::runtime::Transport::attend)). A connection is lost if it ended otherwise than by the
//! peer's shutting its side, or before the peer's system had acknowledged all messages; a peer that leaves in order after it
//! has received everything is no failure.
//!
//! A wait that lasts also reads on behind what peers that are ahead have sent early, for the reason of one that gave up. No
//! wait in order lasts so long; if it did, what came early would be copied once more.

use std::time::{Duration, Instant};

use antdt_core::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::{Link, Stop};
use super::{Ended, TcpTransport, bytes_of};
use crate::error::CollectiveError;
use crate::runtime::transport::Exchange;

/// Between two looks of a rank that waits, and before the first one.
const ASIDE: Duration = Duration::from_millis(5);

impl TcpTransport {
    /// Looks at the connections that a sleep does not, if it is time. Until when to sleep, at most.
    pub(super) fn look_aside(&mut self, until: Instant) -> Result<Instant, Ended> {
        if self.links.iter().flatten().all(Link::listens) {
            return Ok(until);
        }
        let now = Instant::now();
        let due = *self.aside_at.get_or_insert(now + ASIDE);
        if now < due {
            return Ok(due);
        }
        self.aside_at = Some(now + ASIDE);
        for rank in (0..self.group.world()).map(Rank) {
            if self.links[rank.0 as usize].as_ref().is_some_and(|link| !link.listens()) {
                self.look_at(rank, true)?;
            }
        }
        Ok(now + ASIDE)
    }

    /// Looks between calls at the connections on which there is one of these events, a break among them in any case.
    pub(super) fn look_for(&mut self, events: PollFlags) {
        if self.failed.is_some() {
            return;
        }
        let links = || self.links.iter().flatten();
        let mut fds: Vec<PollFd<'_>> = links().map(|link| PollFd::new(&link.socket.stream, events)).collect();
        // What cannot be asked now is asked again.
        let _ = poll(&mut fds, Some(&Timespec::default()));
        let hears = |link: &Link| events.contains(PollFlags::IN) && link.holds();
        let ready = links().zip(&fds).map(|(link, fd)| !fd.revents().is_empty() || hears(link));
        let others = (0..self.group.world()).map(Rank).filter(|rank| *rank != self.group.me());
        let ready: Vec<Rank> = others.zip(ready).filter(|(_, ready)| *ready).map(|(rank, _)| rank).collect();
        for rank in ready {
            if let Err(ended) = self.look_at(rank, false) {
                self.conclude_between(ended);
                return;
            }
        }
    }

    // Takes what a peer has to say.
    fn look_at(&mut self, rank: Rank, waited: bool) -> Result<(), Ended> {
        let Some(link) = &mut self.links[rank.0 as usize] else { return Ok(()) };
        link.socket.readable = true;
        let heard = link
            .receive(&self.last.tag, None, bytes_of(&mut self.scratch))
            .and_then(|_| link.look_ahead(&self.last.tag));
        match heard {
            Err(Stop::Told) => Err(Ended::Told { from: rank, waited }),
            Err(Stop::Failed(error)) => Err(Ended::Failed(error)),
            Ok(()) if link.is_lost() => Err(Ended::Gone(rank)),
            Ok(()) => Ok(()),
        }
    }

    /// Ends the group between calls.
    pub(super) fn conclude_between(&mut self, ended: Ended) -> CollectiveError {
        let now = Instant::now();
        let call = Exchange { started: now, deadline: now, stall: Duration::ZERO, ..self.last };
        self.conclude(&call, ended, &[])
    }
}
