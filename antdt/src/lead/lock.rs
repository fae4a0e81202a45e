//! Which process has a lock.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

/// Returns the process of this host that has the lock on a file or folder, if the kernel says so.
pub(crate) fn holder(file: &File) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let (dev, inode) = (meta.dev(), meta.ino());
    let place = format!("{:02x}:{:02x}:{inode}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // Such as `1: FLOCK  ADVISORY  WRITE 4711 fe:01:123456 0 EOF`.
    let words = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    words.filter(|words| words.get(5) == Some(&&*place)).find_map(|words| words[4].parse().ok())
}

/// What is said of the process that has a lock, after what it keeps others from.
pub(crate) fn text(holder: &Option<u32>) -> String {
    holder.map(|process| format!(" (process {process} has the lock)")).unwrap_or_default()
}
