//! [`LoadMeter`]: measures the load of the host and the limits of this process's control group, as the
//! operating system reports them.
//!
//! | figure | control groups, second version | first version | else |
//! |---|---|---|---|
//! | CPU quota | `cpu.max` | `cpu.cfs_quota_us`, `cpu.cfs_period_us` | |
//! | time without CPU for it | `throttled_usec` of `cpu.stat` | `throttled_time` of `cpu.stat` | |
//! | busy CPUs, and steal of them | | | `/proc/stat` |
//! | CPU time of this process | | | `/proc/self/stat` |
//! | memory and its bound | `memory.current`, `memory.max` | `memory.usage_in_bytes`, `memory.limit_in_bytes` | `/proc/meminfo` |
//!
//! With the feature `nvml`, the load of a GPU stands beside them, where there is one.
//!
//! A process is limited by its group and by all groups around it: the smallest limit counts. Cached files
//! that may be dropped from the memory of the group (`inactive_file`) are not counted as used. A missing or
//! unreadable file makes its figure unknown, and is never an error.
//!
//! A measurement reads about ten small files in some 0.1 ms, at most once in two seconds; they stay open, for to open one takes longer than to
//! read it. What a group uses is read of the one with the smallest bound only.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use antdt_core::{GpuLoad, JobTime, NodeLoad};

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(2);

/// Stretch of time that shares are of: long enough for a hundred periods of a quota, short enough to be what is now.
const OVER: Duration = Duration::from_secs(10);

/// Looks that are kept: those of ten seconds, and the one before them.
const LOOKS_MAX: usize = 6;

/// Text of a file, if there is one that may be read.
type Read = Box<dyn Fn(&str) -> Option<String> + Send>;

/// Counters that only grow, at one moment.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: JobTime,
    throttled: Option<Duration>,
    ticks: Option<Ticks>,
    /// Ticks of this process on any CPU.
    own: Option<u64>,
}

/// Ticks of all CPUs of the host.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    /// Busy ones, those that were stolen included.
    busy: u64,
    steal: u64,
    all: u64,
}

/// Measures the load of this host, and the limits of this process's control group, from files of the
/// operating system.
pub struct LoadMeter {
    read: Read,
    looks: VecDeque<Look>,
    #[cfg(feature = "nvml")]
    gpu: Option<super::gpu::GpuMeter>,
}

impl std::fmt::Debug for LoadMeter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadMeter").field("looks", &self.looks).finish_non_exhaustive()
    }
}

impl Default for LoadMeter {
    /// A meter of this process.
    fn default() -> Self {
        let files = OpenFiles::default();
        Self::of(move |path| files.read(path)).with_gpu()
    }
}

impl LoadMeter {
    /// Returns a meter that reads files through `read`.
    fn of(read: impl Fn(&str) -> Option<String> + Send + 'static) -> Self {
        Self {
            read: Box::new(read),
            looks: VecDeque::with_capacity(LOOKS_MAX),
            #[cfg(feature = "nvml")]
            gpu: None,
        }
    }

    /// The meter that also measures the load of a GPU, if it can.
    #[cfg(feature = "nvml")]
    fn with_gpu(self) -> Self {
        Self { gpu: super::gpu::GpuMeter::start(), ..self }
    }

    #[cfg(not(feature = "nvml"))]
    fn with_gpu(self) -> Self {
        self
    }

    /// The newest load of the GPU; `None` without the feature `nvml`.
    #[cfg(feature = "nvml")]
    fn gpu(&self) -> Option<GpuLoad> {
        self.gpu.as_ref()?.newest()
    }

    #[cfg(not(feature = "nvml"))]
    fn gpu(&self) -> Option<GpuLoad> {
        None
    }

    /// Measures the load, unless the last measurement is less than two seconds old. Rates are over the last ten
    /// seconds. Returns `None` without a measurement, and at the first one.
    pub fn look(&mut self, now: JobTime) -> Option<NodeLoad> {
        if self.looks.back().is_some_and(|last| now.since(last.at) < EVERY) {
            return None;
        }
        let read = |path: &str| (self.read)(path);
        let of_process = read("/proc/self/cgroup").unwrap_or_default();
        let cpu = groups(&of_process, "cpu");
        let look =
            Look { at: now, throttled: throttled(&read, &cpu), ticks: ticks(&read), own: own_ticks(&read) };
        while self.looks.len() >= LOOKS_MAX || self.looks.get(1).is_some_and(|it| now.since(it.at) >= OVER) {
            self.looks.pop_front();
        }
        let before = self.looks.front().copied();
        self.looks.push_back(look);
        let before = before?;
        let over = now.since(before.at);
        let memory = memory(&read, &groups(&of_process, "memory"));
        let all = before.ticks.zip(look.ticks).map(|(before, now)| now.all.saturating_sub(before.all));
        // Of the time of all CPUs. The counters of CPUs that were switched off are gone.
        let share = |ticks: Option<(u64, u64)>| {
            let (before, now) = ticks?;
            #[allow(clippy::cast_precision_loss, reason = "a share")]
            all.filter(|all| *all > 0).map(|all| (now.saturating_sub(before) as f64 / all as f64).min(1.0))
        };
        let of_ticks = |of: fn(Ticks) -> u64| before.ticks.map(of).zip(look.ticks.map(of));
        Some(NodeLoad {
            over,
            cpu_quota: quota(&read, &cpu),
            cpu_throttled: before.throttled.zip(look.throttled).map(|(before, now)| {
                (now.saturating_sub(before).as_secs_f64() / over.as_secs_f64()).min(1.0)
            }),
            host_busy: share(of_ticks(|it| it.busy)),
            host_steal: share(of_ticks(|it| it.steal)),
            own_busy: share(before.own.zip(look.own)),
            memory_used: memory.map(|(used, _)| used),
            memory_bound: memory.map(|(_, bound)| bound),
            gpu: self.gpu(),
        })
    }
}

/// Bytes of a file that are read at once: most files have less. Such files have no length, and what grows its buffer from a few
/// bytes on asks the system five times as often.
const READ: usize = 4096;

/// Files that are kept open at most: several times those of a look. More are of groups that the process was moved out of.
const OPEN_MAX: usize = 64;

/// The text of a file.
fn read_file(path: &str) -> Option<String> {
    text_of(&File::open(path).ok()?)
}

/// What is in a file now, from its beginning.
fn text_of(file: &File) -> Option<String> {
    let mut text = Vec::with_capacity(READ);
    loop {
        let read = text.len();
        text.resize(read + READ, 0);
        let more = file.read_at(&mut text[read..], read as u64).ok()?;
        text.truncate(read + more);
        if more == 0 {
            return String::from_utf8(text).ok();
        }
    }
}

/// Reads files as [`read_file`] does, and keeps them open for the next time.
#[derive(Default)]
struct OpenFiles(RefCell<BTreeMap<String, File>>);

impl OpenFiles {
    fn read(&self, path: &str) -> Option<String> {
        let mut open = self.0.borrow_mut();
        // A file of a group that was removed can no longer be read; there may be another one of its name.
        if let Some(text) = open.get(path).and_then(text_of) {
            return Some(text);
        }
        open.remove(path);
        let file = File::open(path).ok()?;
        let text = text_of(&file)?;
        if open.len() >= OPEN_MAX {
            open.clear();
        }
        open.insert(path.to_owned(), file);
        Some(text)
    }
}

/// A control group, or one around it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    folder: String,
    /// Whether it is of the second version.
    unified: bool,
}

impl Group {
    fn file(&self, read: &dyn Fn(&str) -> Option<String>, unified: &str, first: &str) -> Option<String> {
        read(&format!("{}/{}", self.folder, if self.unified { unified } else { first }))
    }
}

/// The groups, of those `of_process`, that may have a bound of `controller`, from the process's own outwards.
fn groups(of_process: &str, controller: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in of_process.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, unified) = match controllers {
            "" => ("/sys/fs/cgroup".to_owned(), true),
            list if list.split(',').any(|one| one == controller) => {
                (format!("/sys/fs/cgroup/{controller}"), false)
            }
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            groups.push(Group { folder: format!("{root}{path}"), unified });
            let Some((parent, _)) = path.rsplit_once('/') else { break };
            path = parent;
        }
    }
    groups
}

/// The number after a key at the start of a line.
fn value(text: &str, key: &str) -> Option<u64> {
    let rest =
        text.lines().find_map(|line| line.strip_prefix(key).filter(|rest| rest.starts_with([' ', '\t'])))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Time for which the groups had no CPU left that something in them wanted, summed over CPUs and groups.
fn throttled(read: &dyn Fn(&str) -> Option<String>, groups: &[Group]) -> Option<Duration> {
    let of_group = |group: &Group| {
        let stat = group.file(read, "cpu.stat", "cpu.stat")?;
        match group.unified {
            true => value(&stat, "throttled_usec").map(Duration::from_micros),
            false => value(&stat, "throttled_time").map(Duration::from_nanos),
        }
    };
    groups.iter().filter_map(of_group).reduce(Duration::saturating_add)
}

/// CPUs that the process may use, by the smallest quota.
fn quota(read: &dyn Fn(&str) -> Option<String>, groups: &[Group]) -> Option<f64> {
    let of_group = |group: &Group| {
        let (quota, period) = if group.unified {
            let text = group.file(read, "cpu.max", "")?;
            let mut fields = text.split_whitespace().map(str::to_owned);
            (fields.next()?, fields.next()?)
        } else {
            (group.file(read, "", "cpu.cfs_quota_us")?, group.file(read, "", "cpu.cfs_period_us")?)
        };
        // "max" and -1 are no quota.
        let (quota, period): (u32, u32) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
        (period > 0).then(|| f64::from(quota) / f64::from(period))
    };
    groups.iter().filter_map(of_group).reduce(f64::min)
}

/// Ticks of the CPUs of the host.
fn ticks(read: &dyn Fn(&str) -> Option<String>) -> Option<Ticks> {
    let stat = read("/proc/stat")?;
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // user nice system idle iowait irq softirq steal; what follows is in user and nice already.
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|text| text.parse().ok()).collect();
    let idle = ticks.get(3)?.saturating_add(*ticks.get(4).unwrap_or(&0));
    let all = ticks.iter().fold(0, |sum: u64, it| sum.saturating_add(*it));
    Some(Ticks { busy: all.saturating_sub(idle), steal: *ticks.get(7).unwrap_or(&0), all })
}

/// Ticks for which threads of this process were on a CPU.
fn own_ticks(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let stat = read("/proc/self/stat")?;
    // The name, in brackets, may hold blanks; utime and stime are the 12th and the 13th after it.
    let mut ticks = stat.rsplit(')').next()?.split_whitespace().skip(11).map(|text| text.parse::<u64>().ok());
    Some(ticks.next()??.saturating_add(ticks.next()??))
}

/// The memory of the host in bytes: used, and in all.
fn host_memory(read: &dyn Fn(&str) -> Option<String>) -> Option<(u64, u64)> {
    let text = read("/proc/meminfo")?;
    let bytes = |key| value(&text, key).map(|kib| kib.saturating_mul(1024));
    let all = bytes("MemTotal:")?;
    Some((all.saturating_sub(bytes("MemAvailable:").or_else(|| bytes("MemFree:"))?), all))
}

/// The size of the memory that a group may use; `None` if it has no bound.
fn bound(read: &dyn Fn(&str) -> Option<String>, group: &Group) -> Option<u64> {
    // "max" is none.
    group.file(read, "memory.max", "memory.limit_in_bytes")?.trim().parse().ok()
}

/// Bytes in use of the memory that binds the process most, and that bound.
fn memory(read: &dyn Fn(&str) -> Option<String>, groups: &[Group]) -> Option<(u64, u64)> {
    let used = |group: &Group| {
        let used: u64 = group.file(read, "memory.current", "memory.usage_in_bytes")?.trim().parse().ok()?;
        let stat = group.file(read, "memory.stat", "memory.stat").unwrap_or_default();
        let spare = value(&stat, if group.unified { "inactive_file" } else { "total_inactive_file" });
        Some(used.saturating_sub(spare.unwrap_or(0)))
    };
    let host = host_memory(read);
    let mut bounds: Vec<(u64, &Group)> =
        groups.iter().filter_map(|group| Some((bound(read, group)?, group))).collect();
    bounds.sort_by_key(|(bound, _)| *bound);
    let within = |bound: u64| host.is_none_or(|(_, all)| bound <= all);
    let of_groups = bounds.into_iter().take_while(|(bound, _)| within(*bound));
    let mut known = of_groups.filter_map(|(bound, group)| Some((used(group)?, bound)));
    known.next().or(host)
}

/// Returns the memory in bytes that the processes of this host, or of this process's control group, may use
/// together; `None` if the operating system does not say.
pub fn memory_bytes() -> Option<u64> {
    memory_bound(&read_file)
}

/// The smallest bound of the host's memory and those of the control group and the groups around it.
fn memory_bound(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let total = read("/proc/meminfo").and_then(|text| value(&text, "MemTotal:"));
    let groups = groups(&read("/proc/self/cgroup").unwrap_or_default(), "memory");
    let bounds = groups.iter().filter_map(|group| bound(read, group));
    bounds.chain(total.map(|kib| kib.saturating_mul(1024))).min()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Files that a test writes.
    #[derive(Clone, Default)]
    struct Files(Arc<Mutex<BTreeMap<String, String>>>);

    impl Files {
        fn of(files: &[(&str, &str)]) -> Self {
            let all = Self::default();
            files.iter().for_each(|(path, text)| all.write(path, text));
            all
        }

        fn write(&self, path: &str, text: &str) {
            self.0.lock().unwrap().insert(path.to_owned(), text.to_owned());
        }

        fn read(&self) -> impl Fn(&str) -> Option<String> + Send + 'static {
            let files = self.clone();
            move |path| files.0.lock().unwrap().get(path).cloned()
        }

        fn bound(&self) -> Option<u64> {
            memory_bound(&self.read())
        }
    }

    fn at(millis: u64) -> JobTime {
        JobTime::from_duration(Duration::from_millis(millis))
    }

    const HOST: (&str, &str) =
        ("/proc/meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:  400 kB\n");
    const UNIFIED: (&str, &str) = ("/proc/self/cgroup", "0::/jobs/one\n");

    #[test]
    fn a_quota_of_the_second_version_is_told_with_the_share_of_time_that_it_cost() {
        let files = Files::of(&[
            HOST,
            UNIFIED,
            ("/proc/stat", "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4\n"),
            ("/proc/self/stat", "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 0"),
            ("/sys/fs/cgroup/jobs/one/cpu.stat", "usage_usec 1\nnr_periods 9\nthrottled_usec 5000000\n"),
            ("/sys/fs/cgroup/jobs/one/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/jobs/cpu.max", "50000 100000\n"),
            ("/sys/fs/cgroup/jobs/one/memory.max", "4096\n"),
            ("/sys/fs/cgroup/jobs/one/memory.current", "3000\n"),
            ("/sys/fs/cgroup/jobs/one/memory.stat", "anon 5\ninactive_file 1000\n"),
        ]);
        let mut meter = LoadMeter::of(files.read());
        assert_eq!(meter.look(at(0)), None, "a share takes two looks");
        assert_eq!(meter.look(at(1_999)), None, "too soon");
        files.write("/proc/stat", "cpu  190 0 90 830 80 0 0 10 0 0\n");
        files.write("/proc/self/stat", "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 130 40 3 4 0");
        files.write("/sys/fs/cgroup/jobs/one/cpu.stat", "throttled_usec 5760000\n");
        let expected = NodeLoad {
            over: Duration::from_secs(2),
            cpu_quota: Some(0.5),
            cpu_throttled: Some(0.38),
            host_busy: Some(0.7),
            host_steal: Some(0.05),
            own_busy: Some(0.25),
            memory_used: Some(2000),
            memory_bound: Some(4096),
            gpu: None,
        };
        assert_eq!(meter.look(at(2_000)), Some(expected));
    }

    #[test]
    fn groups_of_the_first_version_say_the_same_in_their_own_files() {
        let files = Files::of(&[
            HOST,
            ("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n1:name=systemd:/y\n"),
            ("/sys/fs/cgroup/cpu/x/cpu.stat", "nr_throttled 3\nthrottled_time 1000000000\n"),
            ("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "150000\n"),
            ("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2048\n"),
            ("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "2000\n"),
            ("/sys/fs/cgroup/memory/x/memory.stat", "total_inactive_file 500\n"),
        ]);
        assert_eq!(files.bound(), Some(2048));
        let mut meter = LoadMeter::of(files.read());
        meter.look(at(0));
        files.write("/sys/fs/cgroup/cpu/x/cpu.stat", "throttled_time 1500000000\n");
        let seen = meter.look(at(2_000)).unwrap();
        assert_eq!((seen.cpu_quota, seen.cpu_throttled, seen.host_busy), (Some(1.5), Some(0.25), None));
        assert_eq!((seen.memory_used, seen.memory_bound), (Some(1500), Some(2048)));
    }

    #[test]
    fn values_that_the_system_does_not_give_are_unknown() {
        let mut meter = LoadMeter::of(|_| None);
        assert_eq!(meter.look(at(0)), None);
        assert_eq!(
            meter.look(at(2_000)),
            Some(NodeLoad { over: Duration::from_secs(2), ..NodeLoad::default() })
        );
        // Nonsense neither.
        let mut meter =
            LoadMeter::of(|_| Some("cpu x\n:::\nMemTotal: many kB\nthrottled_usec -5\n".to_owned()));
        meter.look(at(0));
        let seen = meter.look(at(2_000)).unwrap();
        assert_eq!(seen, NodeLoad { over: Duration::from_secs(2), ..NodeLoad::default() });
        // Without a bound of its own, a group has the host's.
        let files = Files::of(&[HOST, UNIFIED, ("/sys/fs/cgroup/jobs/one/memory.max", "max\n")]);
        let of_process = files.read()("/proc/self/cgroup").unwrap();
        assert_eq!(memory(&files.read(), &groups(&of_process, "memory")), Some((600 * 1024, 1000 * 1024)));
        // A group whose bound is known and not what it uses leaves the next larger one.
        files.write("/sys/fs/cgroup/jobs/one/memory.max", "4096\n");
        files.write("/sys/fs/cgroup/jobs/memory.max", "8192\n");
        files.write("/sys/fs/cgroup/jobs/memory.current", "5000\n");
        assert_eq!(memory(&files.read(), &groups(&of_process, "memory")), Some((5000, 8192)));
    }

    #[test]
    fn shares_are_of_the_last_ten_seconds() {
        let files = Files::of(&[UNIFIED]);
        let throttled = |micros: u64| {
            files.write("/sys/fs/cgroup/jobs/one/cpu.stat", &format!("throttled_usec {micros}\n"));
        };
        let mut meter = LoadMeter::of(files.read());
        // The first 20 s without CPU, the 20 s after them with as much as is wanted.
        let mut seen = Vec::new();
        for second in 0..=40_u64 {
            throttled(second.min(20) * 1_000_000);
            seen.extend(meter.look(at(second * 1_000)));
        }
        let shares: Vec<f64> =
            [0, 9, 12, 14, 19].map(|index: usize| seen[index].cpu_throttled.unwrap()).into();
        assert_eq!(shares, [1.0, 1.0, 0.4, 0.0, 0.0]);
        assert_eq!((seen[0].over, seen[19].over), (Duration::from_secs(2), Duration::from_secs(10)));
        assert!(meter.looks.len() <= LOOKS_MAX);
    }

    #[test]
    fn the_smallest_bound_around_the_process_counts() {
        assert_eq!(Files::default().bound(), None);
        assert_eq!(Files::of(&[HOST]).bound(), Some(1_024_000));
        let unbounded = ("/sys/fs/cgroup/jobs/one/memory.max", "max\n");
        assert_eq!(Files::of(&[HOST, UNIFIED, unbounded]).bound(), Some(1_024_000));
        let parent = ("/sys/fs/cgroup/jobs/memory.max", "4096\n");
        assert_eq!(Files::of(&[HOST, UNIFIED, unbounded, parent]).bound(), Some(4096));
        let namespace = [HOST, ("/proc/self/cgroup", "0::/\n"), ("/sys/fs/cgroup/memory.max", "8192\n")];
        assert_eq!(Files::of(&namespace).bound(), Some(8192));
    }

    #[test]
    fn this_host_has_memory_and_a_look_at_it_is_no_error() {
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
        let mut meter = LoadMeter::default();
        meter.look(at(0));
        let seen = meter.look(at(10_000)).unwrap();
        assert!(seen.memory_bound.is_some_and(|bytes| bytes > 1 << 20), "{seen:?}");
        // What this process uses is a part of what is busy; both are known on any Linux.
        assert!(own_ticks(&read_file).is_some());
        // A file of several reads, and one that is not there.
        let file = std::env::current_exe().unwrap().with_file_name(format!("read-{}", std::process::id()));
        let text = "0123456789".repeat(READ);
        std::fs::write(&file, &text).unwrap();
        let read = read_file(file.to_str().unwrap());
        std::fs::remove_file(&file).unwrap();
        assert!(read.is_some_and(|read| read == text));
        assert_eq!(read_file("/nowhere"), None);
    }

    #[test]
    fn a_file_that_is_kept_open_gives_its_present_text_and_one_that_is_gone_gives_none() {
        let files = OpenFiles::default();
        let path = std::env::current_exe().unwrap().with_file_name(format!("open-{}", std::process::id()));
        for text in ["1", "a longer text", "23"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(files.read(path.to_str().unwrap()).as_deref(), Some(text));
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(files.0.borrow().len(), 1);
        // As a group's files are gone with the group, those of a thread are with it.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
            // It lives until its file was read.
            let _ = wait.recv();
        });
        let stat = format!("/proc/{}/stat", told.recv().unwrap().display());
        assert!(files.read(&stat).is_some_and(|text| text.contains(')')));
        drop(go);
        thread.join().unwrap();
        // The thread is told to have ended a moment before its files are gone.
        while std::fs::exists(&stat).unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(files.read(&stat), None);
        assert_eq!(files.0.borrow().len(), 1, "it is not kept");
        let all = std::env::temp_dir();
        assert_eq!(files.read(all.to_str().unwrap()), None, "a folder has no text");
    }

    #[test]
    fn not_more_files_are_kept_open_than_a_few_groups_have() {
        let folder = std::env::current_exe().unwrap().with_file_name(format!("files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let files = OpenFiles::default();
        for number in 0..2 * OPEN_MAX {
            let path = folder.join(number.to_string());
            std::fs::write(&path, number.to_string()).unwrap();
            assert_eq!(files.read(path.to_str().unwrap()), Some(number.to_string()));
            assert!(files.0.borrow().len() <= OPEN_MAX);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
