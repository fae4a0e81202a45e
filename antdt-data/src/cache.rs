//! The cache of data that is computed once per machine: row indexes, and unpacked copies of compressed files.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::OpenError;

/// A folder for row indexes and for unpacked copies of files. All of its content can be computed again; the
/// user may delete it whenever no job reads from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    folder: PathBuf,
    unpack_limit: u32,
}

impl Cache {
    /// Environment variable that names the folder of the cache.
    pub const VARIABLE: &'static str = "ANTDT_CACHE_DIR";

    /// How many times its own length a compressed file may unpack to unless told otherwise: rows of text take 3 to 20 times what
    /// they take compressed.
    pub const UNPACK_LIMIT: u32 = 100;

    /// What every file may unpack to, in bytes: a short one may be of a few values over and over.
    const UNPACK_ALWAYS_BYTES: u64 = 1 << 30;

    /// Returns the cache in this folder, which is created when the first file is stored in it.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), unpack_limit: Self::UNPACK_LIMIT }
    }

    /// Returns the cache with another limit for the copies of compressed files: so many times the length of the file, but never below
    /// 1 GiB. A file made to fill the disk is given up there.
    #[must_use]
    pub fn with_unpack_limit(self, times: u32) -> Self {
        Self { unpack_limit: times, ..self }
    }

    /// What a compressed file of this length may unpack to, in bytes.
    pub(crate) fn unpack_limit_bytes(&self, len_bytes: u64) -> u64 {
        len_bytes.saturating_mul(self.unpack_limit.into()).max(Self::UNPACK_ALWAYS_BYTES)
    }

    /// Returns the cache in the folder that the environment variable [`VARIABLE`](Self::VARIABLE) names, or
    /// else in `$XDG_CACHE_HOME/antdt`, or else in `$HOME/.cache/antdt`. `get` reads an environment variable.
    ///
    /// # Errors
    /// If no variable names a folder.
    pub fn of_user(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, OpenError> {
        let folder = |name: &str| get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let named = folder(Self::VARIABLE);
        let xdg = || folder("XDG_CACHE_HOME").map(|folder| folder.join("antdt"));
        let home = || folder("HOME").map(|folder| folder.join(".cache/antdt"));
        named.or_else(xdg).or_else(home).map(Self::at).ok_or(OpenError::NoCache)
    }

    /// Returns the path of the cache's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Pause between two attempts at a lock.
const PAUSE: Duration = Duration::from_millis(50);

/// The right to make one file of a cache, held against the other processes of this machine.
#[derive(Debug)]
pub(crate) enum Turn {
    /// This process alone makes the file until this value is dropped. The lock ends when its file is closed.
    Alone(#[allow(dead_code, reason = "held, not read")] File),
    /// Another process may be making the file too: it took too long, or the file system has no locks.
    TimedOut,
}

impl Turn {
    /// Waits until no other process makes the file at `target`. After the time in which that process should have
    /// handled `len_bytes` bytes, the caller takes its turn regardless: work is then done twice, and nothing is lost.
    pub(crate) fn take(target: &Path, len_bytes: u64) -> io::Result<Self> {
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut path = target.as_os_str().to_owned();
        path.push(".lock");
        let lock = File::create(path)?;
        // A minute, and the time of a slow disk: 10 MB/s.
        let deadline = Instant::now() + Duration::from_secs(60 + len_bytes / 10_000_000);
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self::Alone(lock)),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return Ok(Self::TimedOut),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    #[test]
    fn the_nearest_variable_names_the_folder() {
        let of = |set: &[(&str, &str)]| {
            let get =
                |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            Cache::of_user(get).map(|cache| cache.folder().to_owned())
        };
        let (own, xdg, home) = (("ANTDT_CACHE_DIR", "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c"));
        assert_eq!(of(&[own, xdg, home]).unwrap(), Path::new("/a"));
        assert_eq!(of(&[("ANTDT_CACHE_DIR", ""), xdg, home]).unwrap(), Path::new("/b/antdt"));
        assert_eq!(of(&[home]).unwrap(), Path::new("/c/.cache/antdt"));
        let none = of(&[]).unwrap_err().to_string();
        assert!(none.contains("neither HOME nor XDG_CACHE_HOME is set"), "{none}");
        assert!(none.ends_with("; name one with --cache-dir or ANTDT_CACHE_DIR"), "{none}");
    }

    #[test]
    fn one_process_at_a_time_makes_a_file() {
        let folder = Folder::new();
        let target = folder.path().join("deep/file");
        let first = Turn::take(&target, 0).unwrap();
        assert!(matches!(first, Turn::Alone(_)));
        let other = File::options().write(true).open(folder.path().join("deep/file.lock")).unwrap();
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        drop(first);
        assert!(other.try_lock().is_ok());
    }
}
