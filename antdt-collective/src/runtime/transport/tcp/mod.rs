//! A transport between processes that are connected, each with each, over TCP.
//!
//! One thread drives all connections of a rank: every message of a round moves whenever its socket allows, so it
//! cannot matter which rank sends first. A message goes in segments of 512 KiB, each a frame, and is folded in piece by piece
//! while the rest is on its way. A rank without work polls for a few microseconds, letting others have the
//! processor, before it sleeps: a short message then costs no wake-up.
//!
//! A rank that fails tells every peer it is connected with, on whose account, and closes only when they have it; a peer
//! that dies is noticed by the end of its connection. Only ranks therefore wait until the deadline that wait for a
//! peer that is alive and silent. They then tell each other which rank they were waiting for: the rank that is named and
//! waits for no other is the culprit (`verdict`).
//!
//! The time of a long message is that of two copies by the kernel. Inside a host nothing is paced: with a control that
//! paces (BBR), the same exchange of 512 KiB each way takes 0.24 ms at one time and 0.46 ms at another. Tried on one host,
//! and not kept: buffers of a fixed size (for sending, a segment or two: once all-reduces went slice by slice, and what is on
//! its way therefore fits in a cache anyway, it cost four ranks an eighth of their time, on the clock and on the cores; for
//! receiving, no gain); waking up only for larger amounts (`SO_RCVLOWAT`: no gain, and the reason of a failing peer would not
//! wake a rank); and sharing pages with the socket (`vmsplice`), which saves a copy: an exchange of 512 KiB took 0.6 to
//! 0.7 ms, and the bytes could change until the peer has read them. Weighed and not built: several streams per peer, since one
//! thread drives all.
//!
//! Nor is there a way to send between hosts without the kernel's copy. `MSG_ZEROCOPY` pins the pages that are sent, and each
//! may be written to again only when the socket's queue of completions says so: a second thing to wait for in every round,
//! with deadlines of its own. It pays above a size that depends on the network card and its driver (the kernel's documentation
//! says about 10 KB; recalled), and on loopback it copies all the same, so that the size could not be measured here. What is
//! sent is copied once, by the kernel, from where it lies.

mod beside;
mod channel;
mod close;
mod config;
mod fabric;
mod hello;
mod inbox;
mod link;
mod listener;
mod look;
mod message;
mod progress;
mod verdict;

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use antdt_core::{MembershipVersion, Rank};
use rustix::event::{PollFd, PollFlags};

pub use channel::TcpChannel;
pub(in crate::runtime::transport) use channel::check;
pub use config::{Checksum, TcpConfig};
pub(in crate::runtime::transport) use fabric::ENTRY;
pub use listener::Listener;

use super::{Exchange, Incoming, Outgoing, Transfer, Transport};
use crate::error::CollectiveError;
use crate::frame::Tag;
use crate::group::Group;
use crate::runtime::abort::AbortHandle;
use crate::runtime::wait::wait;
use close::Linger;
use link::{Link, SCRATCH_BYTES, Stop};
use message::{Receiving, Sending};
pub use verdict::Ended;

/// A [`Transport`] for members that are processes, connected over TCP.
#[derive(Debug)]
pub struct TcpTransport {
    group: Group,
    // By rank; none for this one.
    links: Vec<Option<Link>>,
    config: TcpConfig,
    abort: AbortHandle,
    failed: Option<CollectiveError>,
    // The call and the round that began last.
    last: Exchange,
    // When connections are looked at next from which nothing is awaited; `None` until this round waits for long.
    aside_at: Option<Instant>,
    // What passes through on its way into a fold, or nowhere; 8-byte aligned.
    scratch: Vec<u64>,
}

/// What goes to and comes from one peer in a round.
#[derive(Debug)]
pub(in crate::runtime::transport) struct Flow<'a, 'b> {
    rank: Rank,
    send: Option<Sending<'a>>,
    receive: Option<Receiving<'a, 'b>>,
}

impl Flow<'_, '_> {
    pub(in crate::runtime::transport) fn missing_out(&self) -> usize {
        self.send.as_ref().map_or(0, Sending::missing)
    }

    pub(in crate::runtime::transport) fn missing_in(&self) -> usize {
        self.receive.as_ref().map_or(0, Receiving::missing)
    }

    pub(in crate::runtime::transport) fn is_done(&self) -> bool {
        self.missing_out() + self.missing_in() == 0
    }

    // Since when a message that has begun has not moved.
    fn stalled_since(&self, link: &Link, tag: &Tag) -> Option<Instant> {
        let incoming = self.receive.as_ref().filter(|receive| !receive.is_done());
        let begun = self.receive.as_ref().and_then(|receive| receive.moved);
        // A peer that sends this round's message, or says so, is there and takes what is for it.
        let taken = begun.is_some() || link.takes(tag);
        let outgoing = self.send.as_ref().filter(|send| taken && !send.is_done());
        let outgoing = outgoing.map(|send| begun.map_or(send.moved, |begun| begun.max(send.moved)));
        incoming.and_then(|receive| receive.moved).into_iter().chain(outgoing).min()
    }
}

impl TcpTransport {
    /// Connects with all other members of the group; every member calls this with the same list. Connections
    /// of older memberships are refused, and those of newer ones are kept for later.
    ///
    /// # Errors
    /// If a member cannot be reached, has died, passes another list of members, or has not called within
    /// `timeout`; if the abort handle was used; if a newer membership has begun. A member that does not listen
    /// may be about to start: it is called again until then.
    pub fn connect(
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Self, CollectiveError> {
        Self::connect_with(listener, group, timeout, abort, TcpConfig::default())
    }

    /// Connects as [`connect`](Self::connect) does, with other settings than the default ones.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
        config: TcpConfig,
    ) -> Result<Self, CollectiveError> {
        let mut scratch = vec![0; SCRATCH_BYTES / 8];
        let links =
            listener.meet(group, None, config, Instant::now() + timeout, abort, bytes_of(&mut scratch))?;
        Ok(Self {
            group: group.clone(),
            links,
            config,
            abort: abort.clone(),
            failed: None,
            last: connected(group.membership()),
            aside_at: None,
            scratch,
        })
    }

    /// Returns the transport of a newer membership. Members that stay keep their connections; new members
    /// connect, and the connections of members that left are closed. Every member of the new group calls
    /// this, or [`connect`](Self::connect) if it was not in the old one.
    ///
    /// It may be called after a collective that failed; the rest of that collective is dropped. A connection
    /// that ended, or that stopped within a frame, is made anew.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); also if the membership is not newer. A member that does not listen has died: all
    /// were started before. All connections are then closed.
    pub fn regroup(
        mut self,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Self, CollectiveError> {
        let (ours, theirs) = (self.group.membership(), group.membership());
        if theirs <= ours {
            let what = format!("membership {theirs} is not newer than {ours}, which this transport is in");
            return Err(CollectiveError::Invalid { what });
        }
        let mut kept: Vec<Option<Link>> = (0..group.world()).map(|_| None).collect();
        for (rank, link) in (0..).map(Rank).zip(&mut self.links) {
            let stays = group.rank_of(self.group.holder(rank)).filter(|_| rank != self.group.me());
            if let Some(stays) = stays {
                kept[stays.0 as usize] = link.take().filter(Link::is_whole);
            }
        }
        let deadline = Instant::now() + timeout;
        let mut scratch = vec![0; SCRATCH_BYTES / 8];
        let links = listener.meet(group, Some(kept), self.config, deadline, abort, bytes_of(&mut scratch));
        Ok(Self {
            group: group.clone(),
            links: links?,
            config: self.config,
            abort: abort.clone(),
            failed: None,
            last: connected(group.membership()),
            aside_at: None,
            scratch,
        })
    }

    fn run(&mut self, call: &Exchange, flows: &mut [Flow<'_, '_>]) -> Result<(), Ended> {
        self.begin(call, flows);
        let (mut idle_since, mut waited) = (None, false);
        loop {
            if let Some(error) = self.abort.error() {
                return Err(Ended::Failed(error));
            }
            let now = Instant::now();
            let moved = self.pass(call, flows, now, waited)?;
            if flows.iter().all(Flow::is_done) {
                return Ok(());
            }
            let sleep_until = self.patience(call, flows, now)?;
            if moved {
                idle_since = None;
                continue;
            }
            if now.saturating_duration_since(*idle_since.get_or_insert(now)) < self.config.spin {
                std::thread::yield_now();
                self.look_again(flows);
                continue;
            }
            waited = true;
            self.sleep(call, sleep_until, flows)?;
        }
    }

    /// A round with these messages begins.
    pub(in crate::runtime::transport) fn begin(&mut self, call: &Exchange, flows: &[Flow<'_, '_>]) {
        self.last = *call;
        self.aside_at = None;
        for flow in flows {
            self.link(flow.rank).begin_round();
        }
    }

    /// Moves what can be moved; whether anything did.
    pub(in crate::runtime::transport) fn pass(
        &mut self,
        call: &Exchange,
        flows: &mut [Flow<'_, '_>],
        now: Instant,
        waited: bool,
    ) -> Result<bool, Ended> {
        let mut moved = false;
        for flow in flows.iter_mut().filter(|flow| !flow.is_done()) {
            moved |= self.advance(flow, call, now, waited)?;
        }
        Ok(moved)
    }

    /// The next pass is to ask the system again.
    pub(in crate::runtime::transport) fn look_again(&mut self, flows: &[Flow<'_, '_>]) {
        for flow in flows {
            let link = self.link(flow.rank);
            (link.socket.readable, link.socket.writable) = (true, true);
        }
    }

    /// The messages of a round, by peer.
    pub(in crate::runtime::transport) fn flows<'a, 'b>(
        tag: Tag,
        sends: impl ExactSizeIterator<Item = &'a Outgoing<'a>>,
        receives: impl ExactSizeIterator<Item = &'a mut Incoming<'b>>,
    ) -> Vec<Flow<'a, 'b>>
    where
        'b: 'a,
    {
        let now = Instant::now();
        let sent = sends.len();
        let mut flows: Vec<Flow<'a, 'b>> = Vec::with_capacity(sent + receives.len());
        for Outgoing { to, bytes } in sends {
            let send = Some(Sending::new(tag, bytes, now));
            flows.push(Flow { rank: *to, send, receive: None });
        }
        for (index, Incoming { from, sink }) in receives.enumerate() {
            // Both lists mostly name the same peers in the same order.
            let same = |flow: &Flow<'_, '_>| flow.rank == *from;
            let at = flows.get(index).filter(|flow| same(flow)).map(|_| index);
            match at.or_else(|| flows[..sent].iter().position(same)) {
                // What this rank sends says that it is there.
                Some(at) => flows[at].receive = Some(Receiving::new(sink, false)),
                None => {
                    let receive = Some(Receiving::new(sink, true));
                    flows.push(Flow { rank: *from, send: None, receive });
                }
            }
        }
        flows
    }

    fn link(&mut self, rank: Rank) -> &mut Link {
        self.links[rank.0 as usize].as_mut().expect("a message goes to and comes from another member")
    }

    // Moves what can be moved. Whether anything did.
    fn advance(
        &mut self,
        flow: &mut Flow<'_, '_>,
        call: &Exchange,
        now: Instant,
        waited: bool,
    ) -> Result<bool, Ended> {
        let link = self.links[flow.rank.0 as usize].as_mut().expect("as in `link`");
        let mut moved = false;
        let mut reachable = true;
        match flow.send.as_mut().filter(|send| !send.is_done()) {
            Some(send) if link.socket.writable => match link.send(send) {
                Ok(false) => {}
                Ok(true) => (moved, send.moved) = (true, now),
                Err(inbox::Gone) => reachable = false,
            },
            Some(_) => {}
            // A peer that cannot be told that its message is taken may have sent all of it before it closed.
            None => {
                let _ = link.flush();
            }
        }
        let waiting = flow.receive.as_mut().filter(|receive| !receive.is_done());
        if reachable && link.listens() && waiting.is_some() {
            match link.receive(&call.tag, waiting, bytes_of(&mut self.scratch)) {
                Ok(false) => {}
                Ok(true) => {
                    moved = true;
                    if let Some(receive) = &mut flow.receive {
                        receive.moved = Some(now);
                    }
                }
                Err(Stop::Told) => return Err(Ended::Told { from: flow.rank, waited }),
                Err(Stop::Failed(error)) => return Err(Ended::Failed(error)),
            }
        }
        if !reachable || (link.socket.closed && !flow.is_done()) {
            return Err(Ended::Gone(flow.rank));
        }
        Ok(moved)
    }

    /// Until when there is nothing to complain about.
    pub(in crate::runtime::transport) fn patience(
        &self,
        call: &Exchange,
        flows: &[Flow<'_, '_>],
        now: Instant,
    ) -> Result<Instant, Ended> {
        let mut until = call.deadline;
        let stalled = flows.iter().filter(|flow| !flow.is_done()).find(|flow| {
            let link = self.links[flow.rank.0 as usize].as_ref();
            let since = link.and_then(|link| flow.stalled_since(link, &call.tag));
            let Some(end) = since.and_then(|since| since.checked_add(call.stall)) else { return false };
            until = until.min(end);
            end <= now
        });
        if stalled.is_some() || now >= call.deadline {
            return Err(Ended::Silent(self.late(call, flows, stalled)));
        }
        Ok(until)
    }

    /// The error of a wait that has lasted too long. A member that does not send is more likely the culprit than one that does not receive.
    pub(in crate::runtime::transport) fn late<'a, 'b>(
        &self,
        call: &Exchange,
        flows: &[Flow<'a, 'b>],
        stalled: Option<&Flow<'a, 'b>>,
    ) -> CollectiveError {
        let late = stalled
            .or_else(|| flows.iter().find(|flow| flow.missing_in() > 0))
            .or_else(|| flows.iter().find(|flow| !flow.is_done()));
        let (rank, missing) = late.map_or((self.group.me(), 0), |flow| {
            let (out, into) = (flow.missing_out(), flow.missing_in());
            (flow.rank, if into > 0 { into } else { out })
        });
        CollectiveError::Timeout {
            peer: self.group.holder(rank),
            at: call.tag,
            waited: call.started.elapsed(),
            missing: missing as u64,
        }
    }

    /// Until something can move, or a peer has something to say.
    pub(in crate::runtime::transport) fn sleep(
        &mut self,
        call: &Exchange,
        until: Instant,
        flows: &mut [Flow<'_, '_>],
    ) -> Result<(), Ended> {
        self.sleep_or(call, until, flows, None)
    }

    // The same, or until `other` can be read.
    fn sleep_or(
        &mut self,
        call: &Exchange,
        until: Instant,
        flows: &mut [Flow<'_, '_>],
        other: Option<BorrowedFd<'_>>,
    ) -> Result<(), Ended> {
        let until = until.min(self.look_aside(until)?);
        let mut fds = vec![PollFd::from_borrowed_fd(self.abort.descriptor(), PollFlags::IN)];
        fds.extend(other.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)));
        let first = fds.len();
        let mut polled = Vec::with_capacity(self.links.len());
        for (rank, link) in (0..).map(Rank).zip(&self.links) {
            let Some(link) = link else { continue };
            let flow = flows.iter().find(|flow| flow.rank == rank);
            let mut events = PollFlags::empty();
            events.set(PollFlags::IN, link.listens());
            events.set(PollFlags::OUT, link.has_mail() || flow.is_some_and(|flow| flow.missing_out() > 0));
            if !events.is_empty() {
                fds.push(PollFd::new(&link.socket.stream, events));
                polled.push((rank, flow.is_some_and(|flow| flow.missing_in() > 0), link.holds()));
            }
        }
        let until = if polled.iter().any(|(.., holds)| *holds) { Instant::now() } else { until };
        wait(&mut fds, until).map_err(|e| Ended::Failed(CollectiveError::io("waiting for peers", &e)))?;
        let ready: Vec<PollFlags> = fds[first..].iter().map(PollFd::revents).collect();
        for ((rank, busy, holds), mut ready) in polled.into_iter().zip(ready) {
            let Some(link) = &mut self.links[rank.0 as usize] else { continue };
            ready.set(PollFlags::IN, holds || ready.contains(PollFlags::IN));
            let gone = ready.intersects(PollFlags::HUP | PollFlags::ERR);
            link.socket.readable |= gone || ready.contains(PollFlags::IN);
            link.socket.writable |= gone || ready.contains(PollFlags::OUT);
            // Those whose message is not awaited may have something to say.
            if !busy && !ready.is_empty() {
                let _ = link.flush();
                let complete = flows.iter_mut().find(|flow| flow.rank == rank);
                let complete = complete.and_then(|flow| flow.receive.as_mut());
                match link.receive(&call.tag, complete, bytes_of(&mut self.scratch)) {
                    Ok(_) => {}
                    Err(Stop::Told) => return Err(Ended::Told { from: rank, waited: true }),
                    Err(Stop::Failed(error)) => return Err(Ended::Failed(error)),
                }
                // One that has left in order is missed where it is needed.
                if link.is_lost() {
                    return Err(Ended::Gone(rank));
                }
            }
        }
        Ok(())
    }
}

// Before the first call.
fn connected(membership: MembershipVersion) -> Exchange {
    let now = Instant::now();
    Exchange { tag: hello::connect_tag(membership), started: now, deadline: now, stall: Duration::ZERO }
}

fn bytes_of(scratch: &mut [u64]) -> &mut [u8] {
    bytemuck::cast_slice_mut(scratch)
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
        let mut flows = Self::flows(call.tag, sends.iter(), receives.iter_mut());
        self.run(call, &mut flows).map_err(|ended| self.conclude(call, ended, &flows))
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        let links = (0..).map(Rank).zip(&mut self.links);
        links.filter_map(|(to, link)| link.as_mut()?.transfer(to)).collect()
    }

    fn check(&mut self) {
        self.look_for(PollFlags::empty());
    }

    fn attend(&mut self) {
        self.look_for(PollFlags::IN);
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        self.conclude_between(Ended::Failed(error))
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        let now = Instant::now();
        let (within, abort) = match self.failed {
            None => (Linger::after(&self.last, now), Some(&self.abort)),
            Some(_) => (Linger::failed(now), None),
        };
        close::linger(&mut self.links, &self.last.tag, bytes_of(&mut self.scratch), within, abort);
    }
}

#[cfg(test)]
mod tests;
