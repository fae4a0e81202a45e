//! Abort handles: how another thread ends a blocked call.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::wait::wait;
use crate::error::CollectiveError;

/// Operation on a file descriptor that a caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// A read or an accept that does not block.
    Read,
    /// A write that does not block.
    Write,
}

/// Something that sleeps on other means than a descriptor.
pub(crate) trait Wake: Send + Sync {
    fn wake(&self);
}

/// Ends every call that holds a clone of this handle, present and future ones, within milliseconds. Cheap to
/// clone. An abort is final, so each group needs a handle of its own.
#[derive(Clone)]
pub struct AbortHandle {
    inner: Arc<Inner>,
}

struct Inner {
    // Readable once aborted; it is never read, so that it stays readable for every poll.
    event: OwnedFd,
    reason: OnceLock<String>,
    sleepers: Mutex<Vec<Weak<dyn Wake>>>,
}

impl AbortHandle {
    /// Returns a handle on which nothing is aborted yet.
    ///
    /// # Errors
    /// If this process has no file descriptor left.
    pub fn new() -> Result<Self, CollectiveError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| CollectiveError::io("making an abort handle", &e.into()))?;
        Ok(Self { inner: Arc::new(Inner { event, reason: OnceLock::new(), sleepers: Mutex::default() }) })
    }

    /// Ends all calls that hold this handle. If it is called again, the first reason stays.
    pub fn abort(&self, reason: impl Into<String>) {
        if self.inner.reason.set(reason.into()).is_err() {
            return;
        }
        // Fails only if the counter were full, and then the descriptor is readable already.
        let _ = rustix::io::write(&self.inner.event, &1_u64.to_ne_bytes());
        for sleeper in self.inner.sleepers.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Some(sleeper) = sleeper.upgrade() {
                sleeper.wake();
            }
        }
    }

    /// Returns the reason of the abort; `None` if nothing was aborted.
    pub fn reason(&self) -> Option<&str> {
        self.inner.reason.get().map(String::as_str)
    }

    /// Waits until a descriptor is ready, [`abort`](Self::abort) is called, or the deadline passes. A signal
    /// makes it return early, so the caller checks the clock, the handle and the descriptor, and calls again.
    ///
    /// # Errors
    /// If the operating system refuses to wait.
    pub fn wait_for(&self, descriptor: &impl AsFd, readiness: Interest, deadline: Instant) -> io::Result<()> {
        let events = match readiness {
            Interest::Read => PollFlags::IN,
            Interest::Write => PollFlags::OUT,
        };
        wait(
            &mut [
                PollFd::from_borrowed_fd(self.descriptor(), PollFlags::IN),
                PollFd::new(descriptor, events),
            ],
            deadline,
        )
    }

    /// Waits until [`abort`](Self::abort) is called or the deadline passes. A signal makes it return early.
    ///
    /// # Errors
    /// If the operating system refuses to wait.
    pub fn wait_until(&self, deadline: Instant) -> io::Result<()> {
        wait(&mut [PollFd::from_borrowed_fd(self.descriptor(), PollFlags::IN)], deadline)
    }

    /// Returns the error of a call that was aborted; `None` if it was not.
    pub fn error(&self) -> Option<CollectiveError> {
        self.reason().map(|reason| CollectiveError::Aborted {
            by: None,
            culprit: None,
            reason: reason.to_owned(),
        })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.event.as_fd()
    }

    pub(crate) fn wakes(&self, sleeper: Weak<dyn Wake>) {
        let mut sleepers = self.inner.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        sleepers.retain(|sleeper| sleeper.strong_count() > 0);
        sleepers.push(sleeper);
    }
}

impl std::fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AbortHandle").field("reason", &self.reason()).finish()
    }
}
