//! The driver of a server's [`Doorway`]: closes the connections of callers that have not said hello.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use antdt_core::{CallerId, Doorway, DoorwayLimits, LogLimit};

use super::stream::StreamError;

/// How often a full doorway is looked at: a place becomes free when a caller says hello, of which the accepting thread
/// is not told.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug)]
struct State {
    doorway: Doorway<TcpStream>,
    strangers: LogLimit,
    errors: LogLimit,
}

/// The connections that have not said hello, each by the handle that hangs it up.
#[derive(Debug)]
pub(super) struct Door {
    opened: Instant,
    state: Mutex<State>,
}

fn hang_up(handle: Option<TcpStream>) {
    if let Some(handle) = handle {
        // Fails if the caller has hung up in this moment. The thread of the connection ends by it.
        let _ = handle.shutdown(Shutdown::Both);
    }
}

impl Door {
    pub(super) fn new(limits: DoorwayLimits) -> Self {
        let state = State {
            doorway: Doorway::new(limits),
            strangers: LogLimit::default(),
            errors: LogLimit::default(),
        };
        Self { opened: Instant::now(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the connections that took too long. Returns the time until the next look if no connection may be accepted now.
    pub(super) fn closed_for(&self) -> Option<Duration> {
        let (mut state, now) = (self.state(), self.opened.elapsed());
        while let Some(handle) = state.doorway.expire(now) {
            hang_up(Some(handle));
        }
        let opens_at = state.doorway.opens_at();
        (now < opens_at).then(|| (opens_at - now).min(LOOK))
    }

    /// Returns the time until the next connection takes too long; `None` if there is none.
    pub(super) fn patience(&self) -> Option<Duration> {
        let deadline = self.state().doorway.deadline();
        deadline.map(|deadline| deadline.saturating_sub(self.opened.elapsed()))
    }

    /// Takes in a connection that was accepted.
    pub(super) fn enter(&self, handle: TcpStream) -> CallerId {
        let now = self.opened.elapsed();
        let (caller, evicted) = self.state().doorway.enter(now, handle);
        hang_up(evicted);
        caller
    }

    /// The caller has said hello, or its connection has ended.
    pub(super) fn pass(&self, caller: CallerId) {
        drop(self.state().doorway.pass(caller));
    }

    /// The system has too little for another connection.
    pub(super) fn starved(&self, error: &io::Error) {
        let (mut state, now) = (self.state(), self.opened.elapsed());
        hang_up(state.doorway.starved(now));
        if let Some(times) = state.errors.due(now) {
            tracing::error!(%error, times, "a connection cannot be accepted; trying again");
        }
    }

    /// A connection ended that never said hello.
    pub(super) fn stranger(&self, peer: SocketAddr, error: &StreamError) {
        let now = self.opened.elapsed();
        if let Some(times) = self.state().strangers.due(now) {
            tracing::warn!(%peer, ?error, times, "a connection ended before its hello");
        }
    }
}
