//! Why a process of this host was ended by a signal, in words, as far as the host knows.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Resource, Signal, getrlimit};

use crate::launcher::NodeExit;

/// Free room of `/dev/shm` below which it is full: what a process is refused may be larger than what is left.
const SHM_FULL: u64 = 1 << 20;

/// Names of what the kernel says of a cgroup's memory.
#[derive(Debug)]
struct Files {
    events: &'static str,
    limit: &'static str,
    /// The most that was used, and what is used now, for kernels that do not say the former.
    used: [&'static str; 2],
}

const VERSION_2: Files =
    Files { events: "memory.events", limit: "memory.max", used: ["memory.peak", "memory.current"] };

const VERSION_1: Files = Files {
    events: "memory.oom_control",
    limit: "memory.limit_in_bytes",
    used: ["memory.max_usage_in_bytes", "memory.usage_in_bytes"],
};

#[derive(Debug)]
struct Cgroup {
    /// Of the hierarchy.
    root: PathBuf,
    path: PathBuf,
    files: &'static Files,
}

impl Cgroup {
    /// Returns the cgroup that `own`, the text of `/proc/self/cgroup`, says, if its memory is counted.
    fn of(own: &str, mounts: &[(&str, &str, &'static Files)]) -> Option<Self> {
        mounts.iter().find_map(|(hierarchy, root, files)| {
            let path = own.lines().find_map(|line| line.split_once(hierarchy)?.1.strip_prefix('/'))?;
            let (root, path) = (PathBuf::from(root), Path::new(root).join(path));
            path.join(files.events).exists().then_some(Self { root, path, files })
        })
    }
}

/// The cgroup that this process starts its children in, and how many of the kernel's kills there for lack of memory are accounted for.
#[derive(Debug)]
pub(super) struct MemoryKills {
    /// `None` if no memory is counted.
    cgroup: Option<Cgroup>,
    claimed: Mutex<u64>,
}

impl MemoryKills {
    pub(super) fn here() -> Self {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = [
            ("0::", "/sys/fs/cgroup", &VERSION_2),
            ("0::", "/sys/fs/cgroup/unified", &VERSION_2),
            (":memory:", "/sys/fs/cgroup/memory", &VERSION_1),
        ];
        Self::of(Cgroup::of(&own, &mounts))
    }

    const fn of(cgroup: Option<Cgroup>) -> Self {
        Self { cgroup, claimed: Mutex::new(0) }
    }

    /// Returns the number of kills so far.
    pub(super) fn count(&self) -> u64 {
        let events = self.cgroup.as_ref().and_then(|cgroup| read(&cgroup.path, cgroup.files.events));
        let events = events.unwrap_or_default();
        let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.and_then(|kills| kills.trim().parse().ok()).unwrap_or(0)
    }

    /// Whether a kill since there were `before` of them is that of a process whose end is accounted for now. Each counts for one
    /// process.
    fn claim(&self, before: u64) -> bool {
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        let first = before.max(*claimed);
        let is_one = first < self.count();
        if is_one {
            *claimed = first + 1;
        }
        is_one
    }

    /// The nearest limit on memory of the cgroup, with what was used.
    fn limit(&self) -> Option<String> {
        let Cgroup { root, path, files } = self.cgroup.as_ref()?;
        let (place, most) = (path.ancestors())
            .take_while(|place| place.starts_with(root))
            .find_map(|place| Some((place, number(place, files.limit)?)))?;
        let used = files.used.iter().find_map(|file| number(place, file));
        let used = used.map(|used| format!(", used {}", mebibytes(used))).unwrap_or_default();
        Some(format!("{} of {} is {}{used}", files.limit, place.display(), mebibytes(most)))
    }
}

fn read(cgroup: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(cgroup.join(file)).ok()
}

/// `None` without a limit: version 2 says "max" then, and version 1 a number beyond any memory.
fn number(cgroup: &Path, file: &str) -> Option<u64> {
    read(cgroup, file)?.trim().parse().ok().filter(|number| *number < 1 << 60)
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Why a process ended that ran while the kernel's kills were `kills_before` and more; `None` if this host does not know it.
pub(super) fn of(exit: NodeExit, kills: &MemoryKills, kills_before: u64) -> Option<String> {
    // Shells, and what watches over a program, tell of a program's signal by their exit code.
    let by_code = || exit.code.filter(|code| (129..=128 + 31).contains(code)).map(|code| code - 128);
    let signal = Signal::from_named_raw(exit.signal.or_else(by_code)?)?;
    let limit = |resource| {
        getrlimit(resource).current.map_or_else(|| "its limit".to_owned(), |limit| limit.to_string())
    };
    match signal {
        Signal::KILL if kills.claim(kills_before) => {
            let limit = kills.limit().unwrap_or_else(|| "the memory of the host is used up".to_owned());
            Some(format!(
                "out of memory: the kernel killed it (oom_kill of its cgroup), {limit}; raise the limit, or take fewer workers \
                 or smaller batches"
            ))
        }
        Signal::XFSZ => {
            let bytes = limit(Resource::Fsize);
            Some(format!("a file grew beyond RLIMIT_FSIZE, {bytes} bytes; raise it by `ulimit -f`"))
        }
        Signal::XCPU => {
            let seconds = limit(Resource::Cpu);
            Some(format!("it used more CPU time than RLIMIT_CPU, {seconds} s; raise it by `ulimit -t`"))
        }
        Signal::BUS => {
            let shm = rustix::fs::statvfs("/dev/shm").ok()?;
            let [free, all] = [shm.f_bavail, shm.f_blocks].map(|blocks| blocks.saturating_mul(shm.f_frsize));
            (free < SHM_FULL).then(|| {
                let (free, all) = (mebibytes(free), mebibytes(all));
                format!("/dev/shm is full, {free} of {all} are free; enlarge it (docker run --shm-size)")
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn killed(signal: Signal) -> NodeExit {
        NodeExit { code: None, signal: Some(signal.as_raw()) }
    }

    /// A cgroup as the kernel shows it, in a folder of its own.
    fn cgroup(root: &Path) -> MemoryKills {
        let own = root.join("job.slice/job");
        std::fs::create_dir_all(&own).unwrap();
        for (file, text) in [
            ("job.slice/job/memory.events", "low 0\nmax 7\noom 1\noom_kill 1\n"),
            ("job.slice/job/memory.max", "max\n"),
            ("job.slice/memory.max", "268435456\n"),
            ("job.slice/memory.peak", "268431360\n"),
        ] {
            std::fs::write(root.join(file), text).unwrap();
        }
        let mounts = [("0::", root.to_str().unwrap(), &VERSION_2)];
        MemoryKills::of(Cgroup::of("3:cpu:/x\n0::/job.slice/job\n", &mounts))
    }

    #[test]
    fn kill_for_lack_of_memory_counts_for_one_process_that_ran_then_and_names_limit_and_use() {
        let root = tempfile::tempdir().unwrap();
        let kills = cgroup(root.path());
        assert_eq!(of(killed(Signal::TERM), &kills, 0), None);
        assert_eq!(of(killed(Signal::KILL), &kills, 1), None, "it began after that kill");
        let cause = of(killed(Signal::KILL), &kills, 0).unwrap();
        assert!(cause.starts_with("out of memory: "), "{cause}");
        assert!(cause.contains("job.slice is 256 MiB, used 255 MiB"), "{cause}");
        assert_eq!(of(killed(Signal::KILL), &kills, 0), None, "the only kill is accounted for");
        assert_eq!(of(killed(Signal::KILL), &MemoryKills::of(None), 0), None);
    }

    #[test]
    fn signal_of_a_limit_names_the_limit() {
        let none = MemoryKills::of(None);
        let cause = |signal| of(killed(signal), &none, 0);
        assert!(cause(Signal::XFSZ).unwrap().contains("RLIMIT_FSIZE"));
        assert!(cause(Signal::XCPU).unwrap().contains("RLIMIT_CPU"));
        let by_code = NodeExit { code: Some(128 + Signal::XCPU.as_raw()), signal: None };
        assert!(of(by_code, &none, 0).unwrap().contains("RLIMIT_CPU"), "a shell tells of it by its code");
        assert_eq!(cause(Signal::SEGV), None);
    }
}
