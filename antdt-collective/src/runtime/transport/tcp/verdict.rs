//! How a call ends that cannot go on: a rank tells the others, and all find out which member caused it.
//!
//! Some failures are certain: a connection that ended without a word, a disagreement, an abort. They are told, and that
//! is all. Silence is not: a rank waits for one that waits for another, and all deadlines pass at about the same time.
//! So every rank whose wait times out tells all others which rank it was waiting for, and listens for a moment. Starting from
//! the one it was waiting for itself, each then goes from the named ranks to those that they name; the one at the end, which
//! has said nothing, is the culprit.
//!
//! Where all have spoken, that forms a cycle: one rank waits for a message that was sent and did not arrive. A rank that waits
//! for another over a connection that works is in a later round than that one, which would have sent its message
//! otherwise. So the rank in the cycle that waits in the earliest round is the one whose message was lost, by way of
//! the one it names; all find the same two ends. Our design.

use std::time::{Duration, Instant};

use antdt_core::Rank;
use rustix::event::{PollFd, PollFlags};

use super::{Flow, TcpTransport, bytes_of};
use crate::error::CollectiveError;
use crate::frame::{FrameKind, Header, Tag, notice};
use crate::runtime::transport::Exchange;
use crate::runtime::wait::wait;

/// How long a failing rank waits until its peers' systems have taken why it failed. A peer that reads takes it in far
/// less; what one leaves is sent when the transport is dropped or meets its next group.
const FAREWELL: Duration = Duration::from_millis(30);

/// How long a rank that waited in vain listens for what others were waiting for: half of what it waited for itself,
/// within these. They need a wake-up and a short message each, which takes long only where processors are scarce; it is
/// added to a deadline that has passed.
const HEARING: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(2)];

/// Why a round cannot go on.
#[derive(Debug)]
pub enum Ended {
    /// This rank found a failure that is certain.
    Failed(CollectiveError),
    /// The connection to a peer that is needed has ended.
    Gone(Rank),
    /// A peer has aborted. `waited`: this rank had been waiting in this round before.
    Told {
        /// The rank.
        from: Rank,
        /// Whether this rank had slept in this round.
        waited: bool,
    },
    /// This rank's wait timed out; the error names the rank that it waited for.
    Silent(CollectiveError),
}

impl From<CollectiveError> for Ended {
    fn from(error: CollectiveError) -> Self {
        Self::Failed(error)
    }
}

impl TcpTransport {
    // The error of a call that ended; the others learn why.
    pub(in crate::runtime::transport) fn conclude(
        &mut self,
        call: &Exchange,
        ended: Ended,
        flows: &[Flow<'_, '_>],
    ) -> CollectiveError {
        if let Some(first) = &self.failed {
            return first.clone();
        }
        let error = self.judge(call, ended, flows);
        tracing::debug!(rank = %self.group.me(), %error, "collective failed");
        self.failed.insert(error).clone()
    }

    fn judge(&mut self, call: &Exchange, ended: Ended, flows: &[Flow<'_, '_>]) -> CollectiveError {
        let here = self.last.tag;
        let hearing =
            (call.deadline.saturating_duration_since(call.started) / 2).clamp(HEARING[0], HEARING[1]);
        let (accusation, at, waited) = match ended {
            Ended::Failed(error) => return self.tell(error, flows),
            Ended::Silent(error) => (error, here, true),
            Ended::Told { from, waited } => match self.said(from) {
                Some(notice) if !notice.suspects => {
                    let error = notice.error.clone();
                    return self.tell(error, flows);
                }
                Some(notice) if !waited => {
                    // Passed on as it was meant.
                    let (sequence, round) = self.waited_at(from);
                    (notice.error.clone(), Tag { sequence, round, ..here }, false)
                }
                _ => (self.late(call, flows, None), here, true),
            },
            Ended::Gone(rank) => {
                // It may have said why it went, or another rank did.
                self.listen();
                if let Some(error) = self.certain(rank) {
                    return self.tell(error, flows);
                }
                if self.said(rank).is_none() {
                    let peer = self.group.holder(rank);
                    return self.tell(CollectiveError::PeerClosed { peer, at: call.tag }, flows);
                }
                if flows.is_empty() {
                    // Nothing is awaited here.
                    return self.judge(call, Ended::Told { from: rank, waited: false }, flows);
                }
                (self.late(call, flows, None), here, true)
            }
        };
        self.suspect(accusation, at, waited, flows, hearing)
    }

    pub(super) fn said(&self, rank: Rank) -> Option<&notice::AbortNotice> {
        self.links[rank.0 as usize].as_ref()?.told.as_ref()
    }

    // What a peer said that is certain; that of `first` before others.
    pub(super) fn certain(&self, first: Rank) -> Option<CollectiveError> {
        let ranks = std::iter::once(first).chain((0..self.group.world()).map(Rank));
        let mut said = ranks.filter_map(|rank| self.said(rank));
        said.find(|notice| !notice.suspects).map(|notice| notice.error.clone())
    }

    // Tells all peers what is certain.
    fn tell(&mut self, error: CollectiveError, flows: &[Flow<'_, '_>]) -> CollectiveError {
        self.post(&error, self.last.tag, flows, false);
        self.hear(FAREWELL, Self::has_told);
        error
    }

    // Whether all that need it have been told. A rank that gave up before knows.
    fn has_told(&self) -> bool {
        !self.links.iter().flatten().any(|link| link.has_mail() && link.told.is_none() && !link.socket.closed)
    }

    // Tells all peers the rank that this one was waiting for, hears the same from them, and finds the one at the end.
    fn suspect(
        &mut self,
        accusation: CollectiveError,
        at: Tag,
        waited: bool,
        flows: &[Flow<'_, '_>],
        hearing: Duration,
    ) -> CollectiveError {
        let me = self.group.me();
        if !waited && let Some(error) = self.accuses_me() {
            // This rank has only just come: it is the one that all were waiting for.
            self.post(&error, at, flows, true);
            self.hear(FAREWELL, Self::has_told);
            return error;
        }
        self.post(&accusation, at, flows, true);
        let all_spoke = |transport: &Self| {
            transport.links.iter().flatten().all(|link| link.socket.closed || link.told.is_some())
        };
        self.hear(hearing, |transport| {
            transport.has_told() && (transport.certain(me).is_some() || all_spoke(transport))
        });
        if let Some(error) = self.certain(me) {
            return error;
        }
        self.trace(me, (at.sequence, at.round), accusation)
    }

    // The rank that the accusations lead to, beginning with that of this rank.
    fn trace(&self, me: Rank, at: (u64, u32), accusation: CollectiveError) -> CollectiveError {
        // The rank that waited, its round, and the error that names the rank it waited for.
        let mut path = vec![(me, at, accusation)];
        loop {
            let (.., error) = path.last().expect("it begins with this rank");
            let named = error.culprit().and_then(|holder| self.group.rank_of(holder));
            let circle = path.iter().position(|(rank, ..)| Some(*rank) == named);
            if let Some(first) = circle {
                // Of two in one round, each knows its own side.
                let earliest = path.drain(first..).min_by_key(|(_, at, _)| *at);
                return earliest.expect("a circle has members").2;
            }
            match named.and_then(|rank| Some((rank, self.waited_at(rank), self.said(rank)?.error.clone()))) {
                Some(next) => path.push(next),
                None => return path.pop().expect("as above").2,
            }
        }
    }

    // The call and round in which a rank waited in vain, by the word of this rank.
    fn waited_at(&self, rank: Rank) -> (u64, u32) {
        self.links[rank.0 as usize].as_ref().map_or((0, 0), |link| link.told_at)
    }

    // What a peer said that was waiting for this rank.
    fn accuses_me(&self) -> Option<CollectiveError> {
        let me = self.group.holder(self.group.me());
        let said = self.links.iter().flatten().filter_map(|link| link.told.as_ref());
        said.map(|notice| &notice.error).find(|error| error.culprit() == Some(me)).cloned()
    }

    // A notice to every peer, behind the rest of any segment that was begun.
    fn post(&mut self, error: &CollectiveError, at: Tag, flows: &[Flow<'_, '_>], suspects: bool) {
        let payload = notice::encode(self.group.holder(self.group.me()), error, suspects);
        let header = Header::of(FrameKind::Abort, at, 0, &payload);
        for (rank, link) in (0..).map(Rank).zip(&mut self.links) {
            let Some(link) = link else { continue };
            let send = flows.iter().find(|flow| flow.rank == rank).and_then(|flow| flow.send.as_ref());
            link.post(&send.map_or_else(Vec::new, |send| send.begun()), &header, &payload);
            link.socket.writable = true;
        }
    }

    // Takes all that has come, without waiting.
    pub(super) fn listen(&mut self) {
        for link in self.links.iter_mut().flatten() {
            link.socket.readable = true;
            link.drain(&self.last.tag, bytes_of(&mut self.scratch));
        }
    }

    // Sends what was posted and takes what comes, until `enough` or the time is over. Taking makes room: peers that try
    // to send get on, and read in their turn.
    fn hear(&mut self, patience: Duration, enough: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + patience;
        loop {
            for link in self.links.iter_mut().flatten() {
                // No rank needs to be told which one is gone.
                let _ = link.flush();
            }
            self.listen();
            if enough(self) || Instant::now() >= deadline {
                return;
            }
            let mut fds = Vec::new();
            for link in self.links.iter_mut().flatten() {
                link.socket.writable = true;
                let mut events = PollFlags::empty();
                events.set(PollFlags::IN, link.listens());
                events.set(PollFlags::OUT, link.has_mail());
                if !events.is_empty() {
                    fds.push(PollFd::new(&link.socket.stream, events));
                }
            }
            if wait(&mut fds, deadline).is_err() {
                return;
            }
        }
    }
}
