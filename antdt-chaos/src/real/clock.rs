//! A wall clock that jumps: libfaketime, which shows the job's processes another time than the machine's, whose clock stays as it is.
//! Their monotonic clock goes on as ever, as it does when a real clock is set.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The library, below the folder of libraries of a system.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The clock of a job.
#[derive(Debug)]
pub(super) struct Clock {
    library: PathBuf,
    /// What the processes read how wrong their clock is from.
    file: PathBuf,
}

impl Clock {
    /// Finds the library; `file` is made.
    pub(super) fn find(file: &Path) -> Result<Self, String> {
        let folders = ["/usr/lib64", "/usr/lib", "/usr/local/lib"].map(PathBuf::from);
        let below = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
        let library = folders.into_iter().chain(below).map(|folder| folder.join(LIBRARY));
        let library = library
            .into_iter()
            .find(|library| library.exists())
            .ok_or_else(|| format!("there is no {LIBRARY} (package libfaketime)"))?;
        let clock = Self { library, file: file.to_owned() };
        clock.set(0).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(clock)
    }

    /// The variables for the processes.
    pub(super) fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// Sets how wrong it is, in seconds.
    pub(super) fn set(&self, seconds: i64) -> io::Result<()> {
        let part = self.file.with_extension("part");
        fs::write(&part, format!("{seconds:+}\n"))?;
        fs::rename(&part, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_process_sees_another_time_and_the_machine_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let clock = match Clock::find(&folder.path().join("clock")) {
            Ok(clock) => clock,
            Err(why) => return println!("skipped: {why}"),
        };
        for wrong in [0, 3_600, -7_200] {
            clock.set(wrong).unwrap();
            let shown = Command::new("date").arg("+%s").envs(clock.variables()).output().unwrap();
            let shown: i64 = String::from_utf8(shown.stdout).unwrap().trim().parse().unwrap();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            let off = shown - i64::try_from(now).unwrap() - wrong;
            // As long as the process took.
            assert!((-600..=1).contains(&off), "off by {off} s beyond {wrong}");
        }
    }
}
