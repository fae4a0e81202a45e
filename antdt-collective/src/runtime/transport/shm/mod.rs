//! The transport between members of one host, over memory that they share.
//!
//! Every member has one file in memory, without a name, which all others have mapped. A message in a
//! [region](super::Transport::region) of the sender is not sent at all: the receiver folds it in place, in
//! one pass, and then tells the sender. Any other message goes through a ring that stays in the caches: one
//! pass to write it, one to fold it in. Short blocks from every member to every member are written once, into
//! a slot that all read.
//!
//! All-reduce of `S` bytes with `n` members and buffers that the communicator allocated: each member folds
//! its own and `n-1` foreign pieces of `S/n` bytes, in one pass, and writes the total to each of the `n`
//! places where it is wanted: `S` bytes read and `S` written, which is the least. Regions that were not lent
//! for an answer are mapped read-only.
//!
//! A waiting member polls for some microseconds, then sleeps on its bell; a member that moves a counter while
//! it sleeps rings the bell. Beside the memory each pair keeps its TCP connection, whose end shows that the
//! peer's process has ended; an aborting member sends its reason there. A sleeping member checks the
//! connection every few milliseconds.
//!
//! Rejected: files in `/dev/shm`, which stay when a process is killed; copying out of the other process by
//! `process_vm_readv`, which needs the right to trace it and pins pages in every call; a polling thread.

mod arena;
mod channel;
mod idle;
mod link;
mod memory;
mod record;
mod swap;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt_core::Rank;

pub(super) use channel::{Terms, answer, offer};
pub(super) use idle::{Idle, Next};
pub(in crate::runtime) use memory::SharedRegion;
pub(super) use memory::{Segment, Shared};
pub(super) use swap::{Card, Counter, Host};

use super::tcp::Ended;
use super::{Exchange, Incoming, Loan, Merge, Outgoing, Piece};
use crate::error::CollectiveError;
use crate::frame::{FrameError, Timeliness};
use crate::group::Group;
use crate::runtime::abort::{AbortHandle, Wake};
use crate::runtime::region::Region;
use arena::{Arena, Regions, Shape};
use idle::Patience;
use link::{LENT_PIECE, Link, Receiving, Sending};
use memory::Slots;
use record::{TagBytes, tag_bytes, tag_of};

/// Longest block that members show each other, in bytes.
pub(super) const SHOWN_MAX: usize = Slots::CONTENT_MAX;

/// Longest sleep without a look at the connections and the clock: how late the death of a peer is noticed at most.
const TICK: Duration = Duration::from_millis(5);

/// The messages of one round, by rank of the peer.
pub(super) struct Round<'a, 'b> {
    tag: TagBytes,
    sends: Vec<Option<Sending<'a>>>,
    receives: Vec<Option<Receiving<'a, 'b>>>,
    merging: Option<Merging<'a>>,
    watch: Watch,
}

/// What becomes of messages that are taken together.
struct Merging<'a> {
    merge: &'a mut dyn Merge,
    done: usize,
}

impl Merging<'_> {
    fn is_done(&self) -> bool {
        self.done == self.merge.len_bytes()
    }
}

impl<'a, 'b> Round<'a, 'b> {
    pub(super) fn new(
        world: usize,
        call: &Exchange,
        sends: impl Iterator<Item = &'a Outgoing<'a>>,
        receives: impl Iterator<Item = &'a mut Incoming<'b>>,
    ) -> Self {
        let mut round = Self {
            tag: tag_bytes(&call.tag),
            sends: (0..world).map(|_| None).collect(),
            receives: (0..world).map(|_| None).collect(),
            merging: None,
            watch: Watch::default(),
        };
        for Outgoing { to, bytes } in sends {
            round.sends[to.0 as usize] = Some(Sending::new(bytes));
        }
        for Incoming { from, sink } in receives {
            round.receives[from.0 as usize] = Some(Receiving::new(sink));
        }
        round
    }

    /// A round in which the messages of all others are taken together and answered. `None` if a loan lies in memory that
    /// is not shared.
    pub(super) fn trading(
        (world, me): (usize, Rank),
        call: &Exchange,
        loans: &[Loan<'_>],
        local: &Local,
        merge: &'a mut dyn Merge,
    ) -> Option<Self> {
        let mut round = Self::new(world, call, std::iter::empty(), std::iter::empty());
        for loan in loans {
            let answer = local.regions.find(loan.into)?;
            let place = loan.from.map_or(Some(answer), |from| local.regions.find(from))?;
            round.sends[loan.to.0 as usize] = Some(Sending::lent(loan.into.len(), place, answer));
        }
        for (rank, receive) in round.receives.iter_mut().enumerate() {
            *receive = (rank != me.0 as usize).then(|| Receiving::together(merge.len_bytes()));
        }
        round.merging = Some(Merging { merge, done: 0 });
        Some(round)
    }

    pub(super) fn is_done(&self) -> bool {
        self.sends.iter().flatten().all(Sending::is_done)
            && self.receives.iter().flatten().all(Receiving::is_done)
            && self.merging.as_ref().is_none_or(Merging::is_done)
    }
}

/// Blocks of all members, from their slots.
pub(super) struct Gathering {
    number: u64,
    tag: TagBytes,
    block: usize,
    there: Vec<bool>,
    missing: usize,
    watch: Watch,
}

impl Gathering {
    /// Shows this member's own block.
    pub(super) fn new(local: &mut Local, call: &Exchange, me: usize, block: usize, blocks: &[u8]) -> Self {
        local.gathers += 1;
        let tag = tag_bytes(&call.tag);
        local.slots.show(local.gathers, &tag, &blocks[me * block..][..block]);
        local.ring_all();
        let there: Vec<bool> = local.links.iter().map(Option::is_none).collect();
        let missing = local.links.iter().flatten().count();
        Self { number: local.gathers, tag, block, there, missing, watch: Watch::default() }
    }

    pub(super) const fn is_done(&self) -> bool {
        self.missing == 0
    }
}

/// Since when which peer has not moved, as was seen in the looks about.
#[derive(Debug, Default)]
pub(super) struct Watch {
    marks: Vec<Mark>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    missing: (usize, usize),
    since: Option<Instant>,
    // The end of its connection was seen before the last look for what it had done.
    closed: bool,
}

/// What a member waits for.
pub(super) trait Waiting {
    /// Bytes to come from and to go to a peer.
    fn missing(&self, rank: usize, link: &Link) -> (usize, usize);

    /// Whether a message with that peer has begun.
    fn begun(&self, rank: usize, link: &Link) -> bool;

    /// Whether the peer is at another call.
    fn check(
        &self,
        rank: usize,
        link: &mut Link,
        call: &Exchange,
        gathers: u64,
    ) -> Result<(), CollectiveError>;

    fn watch(&mut self) -> &mut Watch;

    /// Returns a late member and the bytes to be exchanged with it; prefers a member that does not send to one that does not receive.
    fn late(&self, local: &Local) -> Option<(Rank, usize)> {
        let missing = |link: &Link| self.missing(link.rank.0 as usize, link);
        let pick = |wanted: fn((usize, usize)) -> bool| {
            local.links.iter().flatten().find(|link| wanted(missing(link))).map(|link| {
                let (coming, going) = missing(link);
                (link.rank, if coming > 0 { coming } else { going })
            })
        };
        pick(|(coming, _)| coming > 0).or_else(|| pick(|(_, going)| going > 0))
    }
}

impl Waiting for Round<'_, '_> {
    fn missing(&self, rank: usize, link: &Link) -> (usize, usize) {
        (
            self.receives[rank].as_ref().map_or(0, Receiving::missing),
            self.sends[rank].as_ref().map_or(0, |sending| link.unsent(sending)),
        )
    }

    fn begun(&self, rank: usize, link: &Link) -> bool {
        self.receives[rank].as_ref().is_some_and(Receiving::has_begun)
            || self.sends[rank].as_ref().is_some_and(|sending| link.is_being_taken(sending))
    }

    fn check(
        &self,
        rank: usize,
        link: &mut Link,
        call: &Exchange,
        gathers: u64,
    ) -> Result<(), CollectiveError> {
        // The sender is checked where its message is received. One that has sent the expected message may repeat it.
        let receive = self.receives[rank].as_ref();
        let waiting =
            if receive.is_some_and(|receive| !receive.is_done()) { None } else { link.waiting_tag()? };
        if let Some(theirs) = waiting {
            match call.tag.judge(&theirs) {
                Timeliness::Old | Timeliness::Early => {}
                Timeliness::Expected if receive.is_some() => {}
                Timeliness::Expected | Timeliness::Different | Timeliness::NewerMembership => {
                    return Err(link.mismatch(call, &theirs));
                }
            }
        }
        if let Some(theirs) = link.shown_tag(gathers + 1)? {
            match call.tag.judge(&theirs) {
                Timeliness::Old | Timeliness::Early => {}
                Timeliness::Expected | Timeliness::Different | Timeliness::NewerMembership => {
                    return Err(link.mismatch(call, &theirs));
                }
            }
        }
        Ok(())
    }

    fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }
}

impl Waiting for Gathering {
    fn missing(&self, rank: usize, _link: &Link) -> (usize, usize) {
        (if self.there[rank] { 0 } else { self.block }, 0)
    }

    fn begun(&self, _rank: usize, _link: &Link) -> bool {
        false
    }

    fn check(
        &self,
        rank: usize,
        link: &mut Link,
        call: &Exchange,
        gathers: u64,
    ) -> Result<(), CollectiveError> {
        if self.there[rank] {
            return Ok(());
        }
        let Some(theirs) = link.waiting_tag()? else { return Ok(()) };
        // It may have shown its block and gone on since this rank looked.
        let old = call.tag.judge(&theirs) == Timeliness::Old;
        if old || link.slots.shown(gathers).is_some() { Ok(()) } else { Err(link.mismatch(call, &theirs)) }
    }

    fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }
}

/// This member's memory, and the links to those it shares it with.
#[derive(Debug)]
pub(super) struct Local {
    arena: Arc<Arena>,
    slots: Slots,
    // Blocks shown so far.
    gathers: u64,
    regions: Regions,
    links: Vec<Option<Link>>,
    patience: Patience,
}

impl Local {
    /// Without links.
    pub(super) fn new(group: &Group, abort: &AbortHandle) -> Result<Self, CollectiveError> {
        let arena = Arena::create(Shape::of_group(group.world() as usize))
            .map_err(|e| CollectiveError::io("making shared memory", &e))?;
        let arena = Arc::new(arena);
        let sleeper: Arc<dyn Wake> = arena.clone();
        abort.wakes(Arc::downgrade(&sleeper));
        let (slots, regions) = (arena.slots(), Regions::new(&arena));
        let links = (0..group.world()).map(|_| None).collect();
        Ok(Self { arena, slots, gathers: 0, regions, links, patience: Patience::of(1) })
    }

    /// What the peers need.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.arena.descriptor()
    }

    /// Links with a peer that handed over its memory.
    pub(super) fn link(&mut self, group: &Group, rank: Rank, file: OwnedFd) -> Result<(), CollectiveError> {
        let peer = group.holder(rank);
        let failed = |e: io::Error| CollectiveError::io(&format!("mapping memory of {peer}"), &e);
        let theirs = Arena::open(file, Shape::of_group(group.world() as usize)).map_err(failed)?;
        let link = Link::new((group.me(), &self.arena), (rank, theirs), peer).map_err(failed)?;
        self.links[rank.0 as usize] = Some(link);
        self.patience = Patience::of(1 + self.links.iter().flatten().count());
        Ok(())
    }

    /// Whether memory is shared with that rank.
    pub(super) fn is_linked(&self, rank: Rank) -> bool {
        self.links[rank.0 as usize].is_some()
    }

    /// Memory that the linked peers can read where it lies.
    pub(super) fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        let region = self.regions.make(len_bytes);
        region
            .map(Region::shared)
            .map_err(|e| CollectiveError::io(&format!("allocating {len_bytes} shared bytes"), &e))
    }

    /// Whether these bytes lie there.
    pub(super) fn owns(&self, bytes: &[u8]) -> bool {
        self.regions.find(bytes).is_some()
    }

    /// A wait, for as long as it pays here.
    pub(super) const fn idle(&self) -> Idle {
        Idle::new(self.patience)
    }

    /// Something moved: a wait begins anew.
    pub(super) fn moved(&self, idle: &mut Idle) {
        idle.moved(self.arena.bell());
    }

    /// Nothing moved.
    pub(super) fn next(&self, idle: &mut Idle) -> Next {
        idle.next(self.arena.bell())
    }

    /// Slept, or need not.
    pub(super) fn awake(&self, idle: &mut Idle) {
        idle.awake(self.arena.bell());
    }

    fn ring_all(&self) {
        for link in self.links.iter().flatten() {
            link.arena.ring();
        }
    }

    /// Moves everything that can move; whether anything did.
    pub(super) fn advance(&mut self, call: &Exchange, round: &mut Round<'_, '_>) -> Result<bool, Ended> {
        let mut moved = false;
        for (rank, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            if let Some(sending) = &mut round.sends[rank] {
                moved |= link.send(sending, &round.tag, &self.regions)?;
            }
            if let Some(receiving) = &mut round.receives[rank] {
                moved |= link.receive(receiving, call, &round.tag)?;
            }
        }
        if let Some(merging) = &mut round.merging {
            moved |= self.merge(merging, &round.receives)?;
        }
        Ok(moved)
    }

    // Takes the next piece of messages that are all there.
    fn merge(
        &mut self,
        merging: &mut Merging<'_>,
        receives: &[Option<Receiving<'_, '_>>],
    ) -> Result<bool, Ended> {
        if merging.is_done() || !receives.iter().flatten().all(Receiving::is_done) {
            return Ok(false);
        }
        let missing = merging.merge.len_bytes() - merging.done;
        // No short rest: the last piece may be twice as long.
        let len = if missing < 2 * LENT_PIECE { missing } else { LENT_PIECE };
        let both = self.links.iter_mut().zip(receives).filter_map(|(link, r)| link.as_mut().zip(r.as_ref()));
        let mut pieces: Vec<Piece<'_>> =
            both.map(|(link, receiving)| link.piece(receiving, merging.done, len)).collect();
        merging.merge.merge(merging.done, &mut pieces);
        drop(pieces);
        merging.done += len;
        for (link, receiving) in self.links.iter_mut().zip(receives) {
            if let Some((link, receiving)) = link.as_mut().zip(receiving.as_ref()) {
                link.took(receiving, len, merging.is_done())?;
            }
        }
        Ok(true)
    }

    /// Copies the blocks that are shown; whether there was one.
    pub(super) fn gather(
        &self,
        call: &Exchange,
        gathering: &mut Gathering,
        blocks: &mut [u8],
    ) -> Result<bool, CollectiveError> {
        let mut moved = false;
        for (rank, link) in self.links.iter().enumerate() {
            let Some(link) = link else { continue };
            if gathering.there[rank] {
                continue;
            }
            let Some((tag, content)) = link.slots.shown(gathering.number) else { continue };
            if *tag != gathering.tag {
                let theirs = tag_of(tag);
                let corrupt =
                    |e: FrameError| CollectiveError::Corrupt { peer: link.peer, what: e.to_string() };
                return Err(link.mismatch(call, &theirs.map_err(corrupt)?));
            }
            if content.len() != gathering.block {
                let theirs = format!("{}, a block of {} bytes", call.tag, content.len());
                let ours = format!("{}, blocks of {} bytes", call.tag, gathering.block);
                return Err(CollectiveError::Mismatch { peer: link.peer, theirs, ours });
            }
            blocks[rank * gathering.block..][..gathering.block].copy_from_slice(content);
            gathering.there[rank] = true;
            gathering.missing -= 1;
            moved = true;
        }
        Ok(moved)
    }

    /// Until the bell rings, or it is time to look about.
    pub(super) fn sleep(&self, call: &Exchange, heard: u32) {
        let left = call.deadline.saturating_duration_since(Instant::now());
        self.arena.sleep(heard, TICK.min(left));
    }

    /// Looks about for trouble, before sleeping: peers that are gone, late, or at another call. `false` if one is gone
    /// whose last doings have to be looked for first.
    pub(super) fn look(
        &mut self,
        call: &Exchange,
        waiting: &mut impl Waiting,
        is_closed: impl Fn(Rank) -> bool,
    ) -> Result<bool, Ended> {
        let now = Instant::now();
        let (mut quiet, mut silent) = (true, None);
        waiting.watch().marks.resize(self.links.len(), Mark::default());
        for (rank, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            waiting.check(rank, link, call, self.gathers)?;
            let missing = waiting.missing(rank, link);
            if missing == (0, 0) {
                continue;
            }
            let begun = waiting.begun(rank, link);
            let mark = &mut waiting.watch().marks[rank];
            if mark.closed {
                return Err(Ended::Gone(link.rank));
            }
            if is_closed(link.rank) {
                (mark.closed, quiet) = (true, false);
            }
            if mark.missing != missing || mark.since.is_none() {
                (mark.missing, mark.since) = (missing, Some(now));
            }
            if begun && mark.since.is_some_and(|since| now.duration_since(since) >= call.stall) {
                silent = silent.or(Some((link.rank, missing.0 + missing.1)));
            }
        }
        let culprit = silent.or_else(|| waiting.late(self).filter(|_| now >= call.deadline));
        culprit.map_or(Ok(quiet), |(rank, missing)| Err(Ended::Silent(self.timeout(call, rank, missing))))
    }

    /// The error of having waited too long for a peer.
    pub(super) fn timeout(&self, call: &Exchange, rank: Rank, missing: usize) -> CollectiveError {
        let peer = self.links[rank.0 as usize].as_ref().expect("only linked peers are waited for").peer;
        let waited = call.started.elapsed();
        CollectiveError::Timeout { peer, at: call.tag, waited, missing: missing as u64 }
    }

    /// Takes all offers back and wakes the peers: from now on the memory is the caller's again.
    pub(super) fn give_up(&mut self) {
        for link in self.links.iter_mut().flatten() {
            link.withdraw();
            link.arena.alarm();
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // Members that still wait for this one find its connection closed at once, and not after their tick.
        self.give_up();
    }
}
