//! [`Doorway`]: the accepted connections whose callers have not said yet who they are.
//!
//! A port that any process can connect to gives each caller a descriptor, and often a thread, before it can tell a node of
//! the job from a stranger. A doorway bounds that: it holds a few such connections, for a few seconds each. A caller leaves
//! it with its first authenticated message, and only then takes a seat among the peers of the process.
//!
//! ```text
//! accepted ── enter ──▶ waiting ── pass ──▶ a peer
//!                          └── expire, or the oldest of a full doorway when another comes ──▶ closed
//! ```
//!
//! The doorway decides and its driver carries out: it accepts when [`opens_at`](Doorway::opens_at) has come, and closes what
//! it is handed back.

use std::collections::VecDeque;
use std::time::Duration;

/// Limits of a [`Doorway`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoorwayLimits {
    /// Largest number of connections whose callers are unknown. Default 64: each costs a descriptor or two, and a thread at
    /// a parameter server.
    pub most: usize,
    /// Longest time until a caller identifies itself. Default 5 s: a node does it at once, within one round trip.
    pub patience: Duration,
    /// Shortest time that a caller has, however many come after it. Default 100 ms. Without it the workers of a large job, which
    /// connect at the same moment, would close each other's connections before any of them is heard; with it a
    /// stranger holds up others for that long per `most` connections.
    pub stay: Duration,
}

impl Default for DoorwayLimits {
    fn default() -> Self {
        Self { most: 64, patience: Duration::from_secs(5), stay: Duration::from_millis(100) }
    }
}

/// Number of a caller, in order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallerId(u64);

/// Back-off after an error of the system: doubled from the first to the last.
const BACKOFF: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// The connections whose callers are unknown, and when the next one is accepted. See the [module](self).
///
/// All times are durations since one moment that the driver chooses, and never go back.
///
/// ```
/// use std::time::Duration;
/// use antdt_core::{Doorway, DoorwayLimits};
/// let at = Duration::from_secs;
/// let mut doorway = Doorway::new(DoorwayLimits::default());
/// let (node, _) = doorway.enter(at(0), "a node");
/// doorway.enter(at(1), "a stranger");
/// assert_eq!(doorway.pass(node), Some("a node"));
/// assert_eq!(doorway.expire(at(6)), Some("a stranger"));
/// ```
#[derive(Debug)]
pub struct Doorway<C> {
    limits: DoorwayLimits,
    /// Oldest first.
    waiting: VecDeque<(CallerId, Duration, C)>,
    next: u64,
    /// Consecutive errors of the system.
    failures: u32,
    closed_until: Duration,
}

impl<C> Doorway<C> {
    /// Returns an empty doorway. It holds at least one connection.
    pub const fn new(limits: DoorwayLimits) -> Self {
        Self { limits, waiting: VecDeque::new(), next: 0, failures: 0, closed_until: Duration::ZERO }
    }

    /// Returns the time from which on the driver may accept the next connection. It may be past, and it may become
    /// earlier when a caller passes.
    pub fn opens_at(&self) -> Duration {
        let oldest = self.waiting.front().filter(|_| self.is_full());
        let room = oldest.map_or(Duration::ZERO, |(_, since, _)| *since + self.limits.stay);
        room.max(self.closed_until)
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= self.limits.most.max(1)
    }

    /// Takes in a connection that was accepted at `now`. Returns the number of its caller, and the connection that the driver must
    /// close for it: the oldest, if the doorway is full.
    pub fn enter(&mut self, now: Duration, connection: C) -> (CallerId, Option<C>) {
        self.failures = 0;
        let evicted = if self.is_full() { self.waiting.pop_front() } else { None };
        let id = CallerId(self.next);
        self.next += 1;
        self.waiting.push_back((id, now, connection));
        (id, evicted.map(|(_, _, connection)| connection))
    }

    /// Returns and forgets the connection of a caller that has identified itself or has hung up; `None` if it was
    /// returned before, to be closed.
    pub fn pass(&mut self, id: CallerId) -> Option<C> {
        let place = self.waiting.iter().position(|(caller, ..)| *caller == id)?;
        self.waiting.remove(place).map(|(_, _, connection)| connection)
    }

    /// Returns a connection that the driver must close at `now`, because its caller took too long; called until
    /// it returns `None`.
    pub fn expire(&mut self, now: Duration) -> Option<C> {
        self.deadline().filter(|deadline| *deadline <= now)?;
        self.waiting.pop_front().map(|(_, _, connection)| connection)
    }

    /// Returns the time at which the next connection [expires](Self::expire); `None` if there is none.
    pub fn deadline(&self) -> Option<Duration> {
        self.waiting.front().map(|(_, since, _)| *since + self.limits.patience)
    }

    /// The system could not accept a connection at `now`, most often for lack of descriptors. The doorway stays closed for a while,
    /// longer each time in a row. Returns the connection that the driver must close to make room: the oldest.
    pub fn starved(&mut self, now: Duration) -> Option<C> {
        let [first, last] = BACKOFF;
        self.closed_until = now + (first * 2_u32.pow(self.failures.min(16))).min(last);
        self.failures += 1;
        self.waiting.pop_front().map(|(_, _, connection)| connection)
    }

    /// Returns the connections, oldest first.
    pub fn connections(&self) -> impl Iterator<Item = &C> {
        self.waiting.iter().map(|(_, _, connection)| connection)
    }

    /// Returns the connections with the numbers of their callers, oldest first, for changes.
    pub fn connections_mut(&mut self) -> impl Iterator<Item = (CallerId, &mut C)> {
        self.waiting.iter_mut().map(|(id, _, connection)| (*id, connection))
    }
}

/// Bounds how often an event is logged that strangers can cause at will, so that they cannot fill a disk: once per interval,
/// with the number of events since the last line.
#[derive(Debug, Default)]
pub struct LogLimit {
    told: Option<Duration>,
    held_back: u64,
}

impl LogLimit {
    /// Time from one line to the next. A disk of 1 GiB lasts for thousands of years.
    pub const INTERVAL: Duration = Duration::from_secs(60);

    /// An event occurs at `now`. Returns the number of events since the last line, this one included, if a line is due.
    pub fn due(&mut self, now: Duration) -> Option<u64> {
        self.held_back += 1;
        if self.told.is_some_and(|told| now.saturating_sub(told) < Self::INTERVAL) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(all(test, feature = "testing"))]
mod properties {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Event {
        Accept,
        Pass(usize),
        Starve,
        Wait(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => Just(Event::Accept),
            2 => (0_usize..8).prop_map(Event::Pass),
            1 => Just(Event::Starve),
            3 => (0_u64..3000).prop_map(Event::Wait),
        ]
    }

    proptest! {
        /// Every connection is handed back exactly once, no more than `most` wait, none is closed for others before its stay,
        /// and none waits past its patience.
        #[test]
        fn any_history_keeps_the_limits(
            most in 1_usize..5,
            events in prop::collection::vec(event(), 1..200),
        ) {
            let limits =
                DoorwayLimits { most, patience: Duration::from_secs(5), stay: Duration::from_millis(200) };
            let mut doorway = Doorway::new(limits);
            let mut now = Duration::ZERO;
            let mut open: BTreeMap<CallerId, Duration> = BTreeMap::new();
            let mut ids: Vec<CallerId> = Vec::new();
            for event in events {
                match event {
                    Event::Accept => {
                        // As a driver does.
                        now = now.max(doorway.opens_at());
                        while let Some(number) = doorway.expire(now) {
                            let since = open.remove(&ids[number]).expect("closed once");
                            prop_assert!(now - since >= limits.patience);
                        }
                        let (id, evicted) = doorway.enter(now, ids.len());
                        ids.push(id);
                        open.insert(id, now);
                        if let Some(number) = evicted {
                            let since = open.remove(&ids[number]).expect("closed once");
                            prop_assert!(now - since >= limits.stay);
                            prop_assert!(open.values().all(|other| since <= *other), "the oldest goes");
                        }
                    }
                    Event::Pass(back) => {
                        let Some(id) = ids.len().checked_sub(back + 1).map(|index| ids[index]) else { continue };
                        prop_assert_eq!(doorway.pass(id).is_some(), open.remove(&id).is_some());
                    }
                    Event::Starve => {
                        if let Some(number) = doorway.starved(now) {
                            prop_assert!(open.remove(&ids[number]).is_some());
                        }
                        prop_assert!(doorway.opens_at() > now, "it backs off");
                    }
                    Event::Wait(ms) => now += Duration::from_millis(ms),
                }
                prop_assert!(open.len() <= most);
                prop_assert_eq!(doorway.connections().count(), open.len());
                prop_assert_eq!(doorway.deadline(), open.values().min().map(|since| *since + limits.patience));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: DoorwayLimits =
        DoorwayLimits { most: 3, patience: Duration::from_secs(5), stay: Duration::from_secs(1) };

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn full_doorway_closes_the_oldest_connection_once_it_has_had_its_stay() {
        let mut doorway = Doorway::new(LIMITS);
        for caller in 0..3 {
            assert!(doorway.opens_at() <= at(caller));
            assert_eq!(doorway.enter(at(caller), caller).1, None);
        }
        assert_eq!(doorway.opens_at(), at(1000));
        assert_eq!(doorway.enter(at(1000), 3).1, Some(0));
        assert_eq!(doorway.opens_at(), at(1001));
    }

    #[test]
    fn caller_that_identified_itself_is_neither_evicted_nor_expired() {
        let mut doorway = Doorway::new(LIMITS);
        let (node, _) = doorway.enter(at(0), 0);
        doorway.enter(at(1), 1);
        assert_eq!((doorway.pass(node), doorway.pass(node)), (Some(0), None));
        assert_eq!(doorway.opens_at(), Duration::ZERO, "its place is free");
        assert_eq!((doorway.expire(at(5000)), doorway.deadline()), (None, Some(at(5001))));
        assert_eq!((doorway.expire(at(5001)), doorway.expire(at(9999))), (Some(1), None));
    }

    #[test]
    fn error_of_the_system_frees_a_descriptor_and_closes_the_doorway_for_longer_each_time() {
        let mut doorway = Doorway::new(LIMITS);
        doorway.enter(at(0), 0);
        assert_eq!(doorway.starved(at(10)), Some(0));
        assert_eq!(doorway.opens_at(), at(20));
        assert_eq!(doorway.starved(at(20)), None);
        assert_eq!(doorway.opens_at(), at(40));
        for _ in 0..100 {
            doorway.starved(at(50));
        }
        assert_eq!(doorway.opens_at(), at(1050));
        doorway.enter(at(1050), 1);
        doorway.starved(at(2000));
        assert_eq!(doorway.opens_at(), at(2010), "a success ends the row");
    }

    #[test]
    fn event_that_repeats_is_logged_once_per_interval_with_its_number() {
        let mut limit = LogLimit::default();
        let due: Vec<_> = (0..1000).filter_map(|event| limit.due(at(event * 100))).collect();
        assert_eq!(due, [1, 600]);
    }
}
