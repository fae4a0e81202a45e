//! Waiting for descriptors with a deadline.

use std::io;
use std::time::Instant;

use rustix::event::{PollFd, Timespec, poll};

/// Waits until a descriptor is ready or the deadline has passed; returns early when a signal came. The caller looks at
/// the clock and the results.
pub(crate) fn wait(descriptors: &mut [PollFd<'_>], deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(left).ok();
    match poll(descriptors, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
