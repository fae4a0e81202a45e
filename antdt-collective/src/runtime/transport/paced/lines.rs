//! The lines of all emulated hosts, in memory that the processes of a job share.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::time::{ClockId, clock_gettime};

use super::line::free_after;
use super::network::{EmulatedNetwork, HOSTS_MAX};
use crate::runtime::transport::shm::{Segment, Shared};

/// Two numbers for each host: the times from which its line out and its line in are free.
const LEN: usize = HOSTS_MAX as usize * 2 * size_of::<AtomicU64>();

/// The send and receive lines of the network cards of all emulated hosts of a job, in memory that its
/// processes share. For each line they hold the time from which it is free.
#[derive(Debug, Clone)]
pub struct Lines {
    segment: Arc<Segment>,
    // Keeps the path of `path` alive; only in the process that made the lines.
    file: Option<Arc<File>>,
}

/// When a message is on its way; nanoseconds of [`clock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Crossing {
    /// When the sender's line was free for it.
    pub(super) begins: u64,
    pub(super) arrives: u64,
}

/// Reason why the shared lines of an emulated network could not be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinesError {
    /// The operating system refused memory that processes can share.
    #[error("memory for an emulated network: {source}")]
    Memory {
        /// Error of the operating system.
        source: io::Error,
    },
    /// The shared memory of the process that made the lines cannot be opened.
    #[error(
        "cannot open the emulated network at {}: {source}; all processes of the job must run on one machine as one user, and \
         the process that made it must be alive",
        path.display()
    )]
    Open {
        /// Path that the caller gave.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl Lines {
    /// Makes the lines of a job; all of them are free.
    ///
    /// # Errors
    /// If the system has no memory or file descriptor left.
    pub fn new() -> Result<Self, LinesError> {
        let made = || {
            let file = File::from(rustix::fs::memfd_create("antdt-network", MemfdFlags::CLOEXEC)?);
            file.set_len(LEN as u64)?;
            let segment = Arc::new(Segment::map(&file, 0, LEN, true)?);
            Ok(Self { segment, file: Some(Arc::new(file)) })
        };
        made().map_err(|source| LinesError::Memory { source })
    }

    /// Opens the lines that another process has made.
    ///
    /// # Errors
    /// If there are no lines at `path`, for example after that process has ended.
    pub fn open(path: &Path) -> Result<Self, LinesError> {
        let opened = || {
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            if file.metadata()?.len() != LEN as u64 {
                return Err(io::Error::other("not an emulated network, or one of another version"));
            }
            Ok(Self { segment: Arc::new(Segment::map(&file, 0, LEN, true)?), file: None })
        };
        opened().map_err(|source| LinesError::Open { path: path.to_owned(), source })
    }

    /// Returns the path by which other processes [open](Self::open) these lines while this process runs;
    /// `None` if this process has opened them itself.
    pub fn path(&self) -> Option<PathBuf> {
        let file = self.file.as_ref()?;
        Some(PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())))
    }

    /// Hands a message to the lines at `now`. A message inside a host arrives at once.
    pub(super) fn carry(
        &self,
        network: &EmulatedNetwork,
        from: u32,
        to: u32,
        bytes: usize,
        now: u64,
    ) -> Crossing {
        if from == to {
            return Crossing { begins: now, arrives: now };
        }
        let (out, into) = (network.speed(from), network.speed(to));
        let occupied = out.occupies(bytes);
        let sent = self.occupy(2 * from, now, occupied);
        let received = self.occupy(2 * to + 1, now, into.occupies(bytes));
        let arrives = sent.max(received).saturating_add(out.latency_ns);
        Crossing { begins: sent.saturating_sub(occupied), arrives }
    }

    fn occupy(&self, line: u32, now: u64, occupied: u64) -> u64 {
        let line: Shared<AtomicU64> = Shared::new(&self.segment, line as usize * size_of::<AtomicU64>());
        let next = |free| free_after(free, now, occupied);
        // Only the number itself is shared, and it orders nothing else.
        let before = line.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(next(free)));
        next(before.unwrap_or_else(|free| free))
    }

    /// When the line out of a process's host is free, in nanoseconds of [`clock`].
    #[cfg(test)]
    pub(super) fn out_free(&self, network: &EmulatedNetwork, node: antdt_core::NodeId) -> u64 {
        let line = 2 * network.host(node) as usize * size_of::<AtomicU64>();
        Shared::<AtomicU64>::new(&self.segment, line).load(Ordering::Relaxed)
    }
}

/// The clock that all processes of a machine share, in nanoseconds.
pub(super) fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}
