//! Closing a connection so that the peer still gets what was sent to it.
#![allow(unsafe_code, reason = "the system's count of unacknowledged bytes is behind an ioctl")]

use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::ioctl::{Getter, Opcode, ioctl};

use super::link::Link;
use crate::frame::Tag;
use crate::runtime::abort::AbortHandle;
use crate::runtime::transport::Exchange;
use crate::runtime::wait::wait;

/// How long a transport that goes away waits at least until its peers' systems have what it sent. A peer that reads, or has
/// room for it, takes far less, even where many ranks share a core.
const LINGER: Duration = Duration::from_secs(1);

/// How long it waits after a failure: the peers have been told already, and one that is cut off would have the others wait
/// before they form their next group.
const LINGER_FAILED: Duration = Duration::from_millis(100);

/// Between two looks at what is still unacknowledged.
const LOOK: Duration = Duration::from_millis(1);

/// Until when a transport waits that goes away.
#[derive(Debug)]
pub(super) struct Linger {
    deadline: Instant,
    // Longest without any of it getting on.
    stall: Duration,
    // Fewest bytes that were still unacknowledged, and since when they were so few.
    least: i64,
    moved: Instant,
}

impl Linger {
    /// After the last call in order. It may be over for this rank and not for the peers, which may take what was sent to them
    /// as slowly as within the call.
    pub(super) fn after(call: &Exchange, now: Instant) -> Self {
        Self::of(call.deadline.max(now + LINGER), call.stall.max(LINGER), now)
    }

    /// After a failure.
    pub(super) fn failed(now: Instant) -> Self {
        Self::of(now + LINGER_FAILED, LINGER_FAILED, now)
    }

    const fn of(deadline: Instant, stall: Duration, now: Instant) -> Self {
        Self { deadline, stall, least: i64::MAX, moved: now }
    }

    /// Until when, now that so many bytes are unacknowledged.
    pub(super) fn until(&mut self, now: Instant, unacknowledged: i64) -> Instant {
        if unacknowledged < self.least {
            (self.least, self.moved) = (unacknowledged, now);
        }
        self.moved.checked_add(self.stall).map_or(self.deadline, |end| end.min(self.deadline))
    }
}

/// Waits until nothing that was sent can be lost any more, within bounds. A socket that is closed while bytes lie in it
/// unread resets the connection, and so does one that is closed when bytes come, and a reset drops what is still to be sent:
/// the last part of a message, or the reason why this rank gave up. Hence all that comes is read, until all that went is
/// acknowledged. What comes later still finds that this side is shut: the peer can tell that from a connection that broke.
pub(super) fn linger(
    links: &mut [Option<Link>],
    tag: &Tag,
    scratch: &mut [u8],
    within: Linger,
    abort: Option<&AbortHandle>,
) {
    hand_over(links, tag, scratch, within, abort);
    for link in links.iter().flatten() {
        // Fails if the peer is gone.
        let _ = link.socket.stream.socket().shutdown(Shutdown::Write);
    }
}

fn hand_over(
    links: &mut [Option<Link>],
    tag: &Tag,
    scratch: &mut [u8],
    mut within: Linger,
    abort: Option<&AbortHandle>,
) {
    loop {
        let (mut pending, mut unacked) = (Vec::new(), 0);
        for link in links.iter_mut().flatten() {
            (link.socket.readable, link.socket.writable) = (true, true);
            // A peer that is gone needs nothing.
            let reachable = link.flush().is_ok();
            link.drain(tag, scratch);
            let still = unacknowledged(link.socket.stream.socket());
            if reachable && !link.socket.closed && (link.has_mail() || still > 0) {
                unacked += i64::from(still);
                pending.push(&*link);
            }
        }
        let now = Instant::now();
        let until = within.until(now, unacked);
        if pending.is_empty() || now >= until || abort.is_some_and(|abort| abort.error().is_some()) {
            return;
        }
        // What belongs to a newer membership stays unread, and would wake this at once.
        let read = pending.iter().filter(|link| link.listens());
        let mut fds: Vec<_> = read.map(|link| PollFd::new(&link.socket.stream, PollFlags::IN)).collect();
        if wait(&mut fds, until.min(now + LOOK)).is_err() {
            return;
        }
    }
}

// Bytes that the peer's system has not acknowledged; none if the socket cannot tell.
pub(super) fn unacknowledged(stream: &TcpStream) -> i32 {
    const SIOCOUTQ: Opcode = 0x5411;
    // SAFETY: SIOCOUTQ writes one int, as `Getter` is told.
    let queued = unsafe { ioctl(stream, Getter::<SIOCOUTQ, i32>::new()) };
    queued.unwrap_or(0)
}
