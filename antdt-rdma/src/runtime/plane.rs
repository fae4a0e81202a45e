//! All connections of a member over its adapter, and the memory that they share.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use antdt_collective::frame::{Tag, Timeliness};
use antdt_collective::runtime::Region;
use antdt_collective::runtime::abort::Interest;
use antdt_collective::runtime::transport::tcp::Ended;
use antdt_collective::runtime::transport::{Exchange, Incoming, Outgoing};
use antdt_collective::{AbortHandle, CollectiveError};
use antdt_core::Rank;

use super::link::{Link, Receiving, Request, Sending};
use super::result::VerbsError;
use super::safe::{
    Access, CompletionQueue, Connection, MemoryRegion, ProtectionDomain, QueuePair, RegisteredRegion,
};

/// How long a member that goes away waits at least for its peers' adapters to have what it sent.
const LINGER: Duration = Duration::from_secs(1);

/// How long a member that failed does so: what it sent in calls before may still be awaited.
const LINGER_FAILED: Duration = Duration::from_millis(100);

/// Between two looks at a peer that may have gone meanwhile.
const LOOK: Duration = Duration::from_millis(5);

/// The regions that a member has handed out.
#[derive(Debug, Clone)]
pub(super) struct Regions {
    pub(super) domain: Arc<ProtectionDomain>,
    out: Vec<Weak<MemoryRegion>>,
}

impl Regions {
    pub(super) const fn new(domain: Arc<ProtectionDomain>) -> Self {
        Self { domain, out: Vec::new() }
    }

    pub(super) fn make(&mut self, len_bytes: usize) -> Result<Region, VerbsError> {
        let region = MemoryRegion::new(&self.domain, len_bytes, Access::Remote)?;
        self.out.retain(|region| region.strong_count() > 0);
        self.out.push(Arc::downgrade(&region));
        Ok(Region::on_host(Box::new(RegisteredRegion::new(region, len_bytes))))
    }

    /// The region in which these bytes lie.
    pub(super) fn home(&self, bytes: &[u8]) -> Option<Arc<MemoryRegion>> {
        self.out.iter().filter_map(Weak::upgrade).find(|region| region.holds(bytes))
    }
}

/// The messages of one round, by rank of the peer.
pub(super) struct Round<'a, 'b> {
    tag: Tag,
    sends: Vec<Option<Sending<'a>>>,
    receives: Vec<Option<Receiving<'a, 'b>>>,
    marks: Vec<Mark>,
}

/// Since when a peer has not moved.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    missing: (usize, usize),
    since: Option<Instant>,
    // The end of its connection was seen before the last look at what had come.
    closed: bool,
}

impl<'a, 'b> Round<'a, 'b> {
    pub(super) fn new(
        plane: &Plane,
        call: &Exchange,
        sends: &'a [Outgoing<'a>],
        receives: &'a mut [Incoming<'b>],
    ) -> Self {
        let world = plane.links.len();
        let mut round = Self {
            tag: call.tag,
            sends: (0..world).map(|_| None).collect(),
            receives: (0..world).map(|_| None).collect(),
            marks: vec![Mark::default(); world],
        };
        for Outgoing { to, bytes } in sends {
            round.sends[to.0 as usize] = Some(Sending::new(bytes, &plane.regions));
        }
        for Incoming { from, sink } in receives {
            round.receives[from.0 as usize] = Some(Receiving::new(sink));
        }
        round
    }

    // Bytes to come from and to go to a peer.
    fn missing(&self, link: &Link) -> (usize, usize) {
        let rank = link.rank.0 as usize;
        (
            self.receives[rank].as_ref().map_or(0, Receiving::missing),
            self.sends[rank].as_ref().map_or(0, |sending| link.unsent(sending)),
        )
    }

    // Whether a message with that peer has begun.
    fn begun(&self, link: &Link) -> bool {
        let rank = link.rank.0 as usize;
        self.receives[rank].as_ref().is_some_and(Receiving::has_begun)
            || self.sends[rank].as_ref().is_some_and(|sending| link.is_being_taken(sending))
    }
}

/// Why a look ended a round.
pub(super) enum Trouble {
    /// The connection with a peer that is needed has ended.
    Gone(Rank),
    /// The adapter cannot reach a peer that is needed any more.
    Broken(Rank),
    /// Another reason.
    Ended(Ended),
}

impl From<CollectiveError> for Trouble {
    fn from(error: CollectiveError) -> Self {
        Self::Ended(Ended::Failed(error))
    }
}

#[derive(Debug)]
pub(super) struct Plane {
    pub(super) links: Vec<Option<Link>>,
    pub(super) regions: Regions,
    pub(super) completions: Arc<CompletionQueue>,
    // Of the connection manager, where it connected the queue pairs.
    _connections: Vec<Connection>,
    pub(super) abort: AbortHandle,
    // Until when what was sent is waited for in the end; `None` once the group has failed.
    lingers: Option<Instant>,
}

impl Plane {
    pub(super) fn new(
        links: Vec<Option<Link>>,
        regions: Regions,
        completions: Arc<CompletionQueue>,
        connections: Vec<Connection>,
        abort: AbortHandle,
    ) -> Self {
        Self { links, regions, completions, _connections: connections, abort, lingers: Some(Instant::now()) }
    }

    /// The queue pairs of all links.
    pub(super) fn pairs(&self) -> Vec<Arc<QueuePair>> {
        self.links.iter().flatten().map(|link| link.pair.clone()).collect()
    }

    // Takes note of everything that has ended; whether there was anything.
    fn poll(&mut self) -> Result<bool, CollectiveError> {
        let links = &mut self.links;
        let polled = self.completions.poll(|completion| {
            let (rank, request) = Request::of(completion.id);
            if let Some(Some(link)) = links.get_mut(rank.0 as usize) {
                link.complete(request, &completion);
            }
        });
        polled.map_err(|error| failed("polling for completions", &error))
    }

    /// Moves everything that can move; whether anything did.
    pub(super) fn advance(
        &mut self,
        call: &Exchange,
        round: &mut Round<'_, '_>,
    ) -> Result<bool, CollectiveError> {
        self.lingers = self.lingers.map(|until| until.max(call.deadline));
        let mut moved = self.poll()?;
        for link in self.links.iter_mut().flatten() {
            let rank = link.rank.0 as usize;
            link.check()?;
            match &mut round.receives[rank] {
                Some(receiving) if !receiving.is_done() => {
                    moved |= link.receive(receiving, call, &self.regions)?;
                }
                _ => moved |= link.drop_old(&call.tag)?,
            }
            link.flush()?;
            if let Some(sending) = &mut round.sends[rank] {
                moved |= link.send(sending, &round.tag)?;
            }
        }
        Ok(moved)
    }

    pub(super) fn is_done(&self, round: &Round<'_, '_>) -> bool {
        self.links.iter().flatten().all(|link| round.missing(link) == (0, 0))
    }

    /// Looks about for trouble, before sleeping: peers that are gone, late, or at another call. Returns until when there
    /// is nothing to complain about; `None` if what has come has to be looked at once more first.
    pub(super) fn look(
        &self,
        call: &Exchange,
        round: &mut Round<'_, '_>,
        is_closed: impl Fn(Rank) -> bool,
    ) -> Result<Option<Instant>, Trouble> {
        let now = Instant::now();
        let (mut quiet, mut stalled, mut until) = (true, None, call.deadline);
        for link in self.links.iter().flatten() {
            let rank = link.rank.0 as usize;
            Self::agrees(link, call, round.receives[rank].as_ref())?;
            let missing = round.missing(link);
            if missing == (0, 0) {
                continue;
            }
            let begun = round.begun(link);
            let mark = &mut round.marks[rank];
            if mark.closed {
                return Err(Trouble::Gone(link.rank));
            }
            if is_closed(link.rank) {
                (mark.closed, quiet) = (true, false);
                continue;
            }
            if link.broken.is_some() {
                return Err(Trouble::Broken(link.rank));
            }
            if mark.missing != missing || mark.since.is_none() {
                (mark.missing, mark.since) = (missing, Some(now));
            }
            let end = mark.since.and_then(|since| since.checked_add(call.stall));
            if let Some(end) = end.filter(|_| begun) {
                until = until.min(end);
                if end <= now {
                    stalled = stalled.or(Some(link.rank));
                }
            }
        }
        if !quiet {
            return Ok(None);
        }
        if stalled.is_some() || now >= call.deadline {
            return Err(Trouble::Ended(Ended::Silent(self.late(call, round, stalled))));
        }
        Ok(Some(until))
    }

    // Whether a peer is at the same call. Where a message is awaited, that is seen when it comes.
    fn agrees(
        link: &Link,
        call: &Exchange,
        receive: Option<&Receiving<'_, '_>>,
    ) -> Result<(), CollectiveError> {
        if receive.is_some_and(|receive| !receive.is_done()) {
            return Ok(());
        }
        let Some(theirs) = link.waiting_tag()? else { return Ok(()) };
        match call.tag.judge(&theirs) {
            Timeliness::Old | Timeliness::Early => Ok(()),
            Timeliness::Expected if receive.is_some() => Ok(()),
            Timeliness::Expected | Timeliness::Different | Timeliness::NewerMembership => {
                Err(link.mismatch(call, theirs.to_string()))
            }
        }
    }

    /// The error of a wait that has lasted too long. A member that does not send is more likely the culprit than one that
    /// does not receive.
    pub(super) fn late(
        &self,
        call: &Exchange,
        round: &Round<'_, '_>,
        culprit: Option<Rank>,
    ) -> CollectiveError {
        let links = || self.links.iter().flatten();
        let late = culprit.and_then(|rank| links().find(|link| link.rank == rank));
        let late = late.or_else(|| links().find(|link| round.missing(link).0 > 0));
        let late = late.or_else(|| links().find(|link| round.missing(link).1 > 0));
        let late = late.or_else(|| links().next()).expect("a rank that waits has a peer");
        let (coming, going) = round.missing(late);
        CollectiveError::Timeout {
            peer: late.peer,
            at: call.tag,
            waited: call.started.elapsed(),
            missing: if coming > 0 { coming } else { going } as u64,
        }
    }

    /// Gives all connections up, once what was sent before has reached the peers' adapters or some time has passed: from
    /// now on, memory is the caller's again.
    pub(super) fn give_up(&mut self) {
        if self.lingers.take().is_some() {
            self.linger(Instant::now() + LINGER_FAILED);
        }
        for link in self.links.iter().flatten() {
            link.pair.give_up();
        }
    }

    // Waits until the peers' adapters have all that was sent. What comes meanwhile is of no use any more.
    fn linger(&mut self, until: Instant) {
        loop {
            let polled = self.poll().unwrap_or(false);
            let pending =
                self.links.iter().flatten().any(|link| link.broken.is_none() && link.under_way() > 0);
            let now = Instant::now();
            if !pending || now >= until || self.abort.error().is_some() {
                return;
            }
            if polled {
                continue;
            }
            // Armed, and looked at once more before the sleep.
            if self.completions.arm().is_err() {
                return;
            }
            if self.poll().unwrap_or(false) {
                continue;
            }
            let events = self.completions.descriptor();
            if self.abort.wait_for(&events, Interest::Read, until.min(now + LOOK)).is_err() {
                return;
            }
            self.completions.hear();
        }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        if let Some(until) = self.lingers.take() {
            self.linger(until.max(Instant::now() + LINGER));
        }
    }
}

/// The error of a verb, in words.
pub(super) fn failed(what: &str, error: &VerbsError) -> CollectiveError {
    let kind = match error {
        VerbsError::Memory { source, .. } | VerbsError::Call { source, .. } => source.kind(),
        VerbsError::NoAdapter
        | VerbsError::NoSuchAdapter { .. }
        | VerbsError::Unusable { .. }
        | VerbsError::NoManager { .. } => std::io::ErrorKind::NotFound,
        VerbsError::Full => std::io::ErrorKind::WouldBlock,
    };
    CollectiveError::Io { what: format!("{what}: {error}"), kind }
}
