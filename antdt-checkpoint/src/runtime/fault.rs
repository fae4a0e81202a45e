//! [`Fault`]: a disk that gets full, and a process that is killed between two changes of files.

use std::io::{self, ErrorKind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug)]
pub(crate) struct Fault {
    /// Bytes that the disk still takes.
    pub(crate) room: AtomicU64,
    /// Changes until the process is dead, and can change nothing any more.
    pub(crate) changes: AtomicU64,
    /// The changes that were made.
    pub(crate) log: Mutex<Vec<String>>,
}

impl Default for Fault {
    fn default() -> Self {
        Self { room: u64::MAX.into(), changes: u64::MAX.into(), log: Mutex::default() }
    }
}

impl Fault {
    pub(crate) fn step(&self, what: String) -> io::Result<()> {
        let left = self.changes.load(Relaxed);
        if left == 0 {
            return Err(io::Error::other("the process was killed"));
        }
        self.changes.store(left - 1, Relaxed);
        self.log.lock().unwrap().push(what);
        Ok(())
    }

    /// As a full disk does: some of it, then the error.
    pub(crate) fn fill(&self, bytes: &[u8], write: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let left = self.room.load(Relaxed);
        let Some(after) = left.checked_sub(bytes.len() as u64) else {
            write(&bytes[..left as usize])?;
            self.room.store(0, Relaxed);
            return Err(ErrorKind::StorageFull.into());
        };
        self.room.store(after, Relaxed);
        write(bytes)
    }
}
