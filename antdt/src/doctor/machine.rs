//! Checks of this machine for `antdt doctor`: one finding for each property, with the remedy.

use std::fmt;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use antdt_core::text::format_duration;

use crate::gpu::{self, HostGpu};
use crate::job::JobSpec;
use crate::job::processor::Processor;
use crate::{descriptors, host, net, run_dir};

/// Free memory of `/dev/shm` below which it is noted: containers often begin with 64 MiB, and a gradient is soon larger.
const SHM_LEAST: u64 = 256 << 20;

/// Free room of the run directory below which it is noted.
const ROOM_LEAST: u64 = 1 << 30;

/// Files that one process may have open below which it is noted: a master has a connection for each node and a few for itself.
const FILES_LEAST: u64 = 1024;

/// Difference between the clocks of this host and of a file system beyond which it is noted.
const SKEW_MOST: Duration = Duration::from_secs(2);

/// How long Python may take to say whether it has a package.
const PYTHON_LIMIT: Duration = Duration::from_secs(20);

/// Severity of a finding of `antdt doctor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The machine is as a job needs it.
    Good,
    /// A job runs, but not as well as it could.
    Note,
    /// A job on this machine fails until the user fixes the cause.
    Fault,
}

/// A finding of `antdt doctor` about this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Severity of the finding.
    pub state: State,
    /// Property of the machine that was examined.
    pub what: &'static str,
    /// Description of the finding, with the remedy if one is needed.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Good => "ok",
            State::Note => "note",
            State::Fault => "FAULT",
        };
        write!(f, "{state:5}  {}: {}", self.what, self.text.replace(['\n', '\r'], " "))
    }
}

impl Finding {
    fn good(what: &'static str, text: impl Into<String>) -> Self {
        Self { state: State::Good, what, text: text.into() }
    }

    fn note(what: &'static str, text: impl Into<String>) -> Self {
        Self { state: State::Note, what, text: text.into() }
    }

    fn fault(what: &'static str, text: impl Into<String>) -> Self {
        Self { state: State::Fault, what, text: text.into() }
    }
}

/// Examines everything on this machine that a job with these settings needs. `dir` is the run directory of a
/// job, if the user named one.
pub fn look(spec: &JobSpec, dir: Option<&Path>) -> Vec<Finding> {
    let folder = match dir {
        Some(dir) => Some(dir.to_owned()),
        None => run_dir::place(spec, "doctor").and_then(|path| path.parent().map(Path::to_owned)),
    };
    let mut findings = vec![ports(spec, dir.is_some())];
    findings.extend(folder.map_or_else(
        || {
            vec![Finding::note(
                "run directory",
                "neither XDG_STATE_HOME nor HOME is set; give jobs a --run-dir",
            )]
        },
        |folder| run_directory(&folder),
    ));
    findings.extend(of_host(spec));
    findings.push(python());
    findings
}

/// Examines what each host of a job needs.
pub(crate) fn of_host(spec: &JobSpec) -> Vec<Finding> {
    let mut findings = vec![shm(), open_files(), clock()];
    findings.extend(groups(|path| std::fs::read_to_string(path).ok(), cores()));
    findings.push(gpus(spec.processor(), gpu::all(), gpu::compiler()));
    findings
}

/// The GPUs of this host, or why a worker can compute on none.
fn gpus(wanted: Processor, gpus: Result<Vec<HostGpu>, String>, compiler: Result<(), String>) -> Finding {
    const WHAT: &str = "GPUs";
    let list = gpus.and_then(|gpus| compiler.map(|()| gpus)).map(|gpus| {
        let each = gpus.iter().map(|gpu| format!("{} with {}", gpu.class, bytes(gpu.memory_bytes)));
        each.collect::<Vec<_>>().join(", ")
    });
    match (list, wanted) {
        (Ok(list), _) => Finding::good(WHAT, list),
        (Err(why), Processor::Cpu) => Finding::good(
            WHAT,
            format!("none that a worker computes on, nor does this job ask for one: {why}"),
        ),
        (Err(why), Processor::Auto) => Finding::note(WHAT, format!("workers compute on the CPU: {why}")),
        (Err(why), Processor::Cuda(_)) => {
            Finding::fault(WHAT, format!("--device {wanted} has none; choose cpu or auto: {why}"))
        }
    }
}

/// Whether a master can listen and be reached.
fn ports(spec: &JobSpec, runs: bool) -> Finding {
    const WHAT: &str = "ports";
    // The port of a job that runs is taken by that job.
    let port = if runs { 0 } else { spec.master_port };
    let bound = net::bind_address(&spec.bind).and_then(|ip| TcpListener::bind((ip, port)));
    let reached = bound.and_then(|listener| {
        let mut address = listener.local_addr()?;
        if address.ip().is_unspecified() {
            address.set_ip(if address.is_ipv4() {
                std::net::Ipv4Addr::LOCALHOST.into()
            } else {
                std::net::Ipv6Addr::LOCALHOST.into()
            });
        }
        TcpStream::connect_timeout(&address, Duration::from_secs(2)).map(|_| address)
    });
    match reached {
        Ok(address) => Finding::good(WHAT, format!("a master can listen at {address} and is reached there")),
        Err(error) => Finding::fault(
            WHAT,
            format!(
                "a master at {} is not reached: {error}; choose another --bind or --master-port, or let connections of this host to itself pass",
                net::join(&spec.bind, port)
            ),
        ),
    }
}

/// Whether a run directory can be in a folder, and what of a job works there.
fn run_directory(folder: &Path) -> Vec<Finding> {
    const WHAT: &str = "run directory";
    let shown = folder.display();
    let unusable = |error: io::Error| {
        vec![Finding::fault(
            WHAT,
            format!("{shown}: {error}; give jobs a --run-dir that this user can write to"),
        )]
    };
    // The nearest folder that exists: nothing is made that was not there.
    let Some(existing) = folder.ancestors().find(|path| path.is_dir()).map(Path::to_owned) else {
        return unusable(io::ErrorKind::NotFound.into());
    };
    let probe = existing.join(format!(".antdt-doctor-{}", std::process::id()));
    let written = std::fs::write(&probe, b"x").and_then(|()| {
        let file = std::fs::File::open(&probe)?;
        let locked = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        Ok((file.metadata()?.modified()?, locked))
    });
    let _ = std::fs::remove_file(&probe);
    let (modified, locked) = match written {
        Ok(written) => written,
        Err(error) => return unusable(error),
    };
    let mut findings = Vec::new();
    let kind = rustix::fs::statfs(&existing).map_or(0, |stat| stat.f_type);
    findings.push(match (file_system(kind), locked) {
        (_, Err(error)) => Finding::note(
            WHAT,
            format!("{shown}: no locks there ({error}); a job whose master dies cannot be taken over, choose a folder on a disk of this host"),
        ),
        (Place::Network(name), _) => Finding::note(
            WHAT,
            format!("{shown}: writable, on {name}; the lock that keeps two masters apart holds on one host only, choose a disk of this host"),
        ),
        (Place::Memory(name), _) => Finding::note(
            WHAT,
            format!("{shown}: writable, in memory ({name}); checkpoints there are lost with the machine, choose a disk"),
        ),
        (Place::Disk, _) => Finding::good(WHAT, format!("{shown}: writable, with locks")),
    });
    findings.push(skew(modified, SystemTime::now()));
    if let Ok(stat) = rustix::fs::statvfs(&existing) {
        findings.push(room(stat.f_bavail.saturating_mul(stat.f_frsize), &existing));
    }
    findings
}

/// Where files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Disk,
    Memory(&'static str),
    Network(&'static str),
}

/// By the number that Linux gives a file system (`linux/magic.h`, and the systems' own headers).
fn file_system(magic: rustix::fs::FsWord) -> Place {
    match magic {
        0x6969 => Place::Network("NFS"),
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => Place::Network("SMB"),
        0x0bd0_0bd0 => Place::Network("Lustre"),
        0x00c3_6400 => Place::Network("Ceph"),
        0x0102_1997 => Place::Network("9P"),
        0x6573_5546 => Place::Network("FUSE"),
        0x4750_4653 => Place::Network("GPFS"),
        0x0102_1994 => Place::Memory("tmpfs"),
        0x8584_58f6 => Place::Memory("ramfs"),
        _ => Place::Disk,
    }
}

/// Whether this host's clock is that of the file system.
fn skew(modified: SystemTime, now: SystemTime) -> Finding {
    const WHAT: &str = "clock of the run directory";
    let apart = now.duration_since(modified).unwrap_or_else(|error| error.duration());
    if apart <= SKEW_MOST {
        return Finding::good(WHAT, "that of this host");
    }
    let text = format!(
        "{} apart from this host's; checkpoints would be removed too early or too late, set both clocks by NTP",
        format_duration(Duration::from_secs(apart.as_secs()))
    );
    Finding::note(WHAT, text)
}

fn room(free: u64, folder: &Path) -> Finding {
    const WHAT: &str = "room for checkpoints";
    let text = format!("{} free at {}", bytes(free), folder.display());
    match free {
        0 => Finding::fault(
            WHAT,
            format!("{text}; delete something, or choose another --run-dir or --checkpoint-dir"),
        ),
        free if free < ROOM_LEAST => Finding::note(
            WHAT,
            format!("{text}; a checkpoint that does not fit is given up, choose another --checkpoint-dir"),
        ),
        _ => Finding::good(WHAT, text),
    }
}

/// Whether processes of this host can share memory.
fn shm() -> Finding {
    let probe = PathBuf::from(format!("/dev/shm/antdt-doctor-{}", std::process::id()));
    let written = std::fs::write(&probe, b"x");
    let _ = std::fs::remove_file(&probe);
    let free = rustix::fs::statvfs("/dev/shm").map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    shm_of(written.map_err(|error| error.to_string()), free.unwrap_or(0))
}

fn shm_of(written: Result<(), String>, free: u64) -> Finding {
    const WHAT: &str = "shared memory";
    match written {
        Err(error) => Finding::note(
            WHAT,
            format!(
                "/dev/shm: {error}; workers of this host use TCP instead, mount a tmpfs there (docker run --shm-size)"
            ),
        ),
        Ok(()) if free < SHM_LEAST => Finding::note(
            WHAT,
            format!(
                "/dev/shm has {} free; large gradients do not fit, enlarge it (docker run --shm-size 2g)",
                bytes(free)
            ),
        ),
        Ok(()) => Finding::good(WHAT, format!("/dev/shm has {} free", bytes(free))),
    }
}

/// How many files a process may have open.
fn open_files() -> Finding {
    files_of(descriptors::most())
}

fn files_of(most: u64) -> Finding {
    const WHAT: &str = "open files";
    match most {
        u64::MAX => Finding::good(WHAT, "no limit"),
        most if most >= FILES_LEAST => Finding::good(WHAT, format!("{most} for each process")),
        most => Finding::note(
            WHAT,
            format!(
                "{most} for each process, a hard limit; a job of many workers needs more, have `ulimit -Hn`, LimitNOFILE or limits.conf raised"
            ),
        ),
    }
}

/// Whether the system's clock is fast to read and has been set.
fn clock() -> Finding {
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    clock_of(source.ok().as_deref().map(str::trim), SystemTime::now())
}

fn clock_of(source: Option<&str>, now: SystemTime) -> Finding {
    const WHAT: &str = "clock";
    /// The first of January 2024: earlier than any release of this program.
    const RELEASED: Duration = Duration::from_secs(1_704_067_200);
    if now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() < RELEASED {
        return Finding::note(
            WHAT,
            "it was never set; reports and checkpoints would have wrong dates, start an NTP service",
        );
    }
    match source {
        Some(slow @ ("hpet" | "acpi_pm" | "jiffies" | "pit")) => Finding::note(
            WHAT,
            format!(
                "its source is {slow}, which takes microseconds to read; steps are measured with it, boot with clocksource=tsc if the CPU has one"
            ),
        ),
        Some(source) => Finding::good(WHAT, format!("set; its source is {source}")),
        None => Finding::good(WHAT, "set; the system does not name its source"),
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a number of cores")]
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

/// What the control group allows, in the second version of control groups.
fn groups(read: impl Fn(&str) -> Option<String>, cores: f64) -> Vec<Finding> {
    const WHAT: &str = "control group";
    let own = read("/proc/self/cgroup").unwrap_or_default();
    let path = own
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .map(|path| path.trim_end_matches('/').to_owned());
    let Some(path) = path else {
        let text = match own.is_empty() {
            true => "none",
            false => "of the first version; its limits of CPU and processes are not read",
        };
        return vec![Finding::good(WHAT, text)];
    };
    let file = |name: &str| read(&format!("/sys/fs/cgroup{path}/{name}"));
    let mut findings = Vec::new();
    if let Some(quota) = file("cpu.max").as_deref().and_then(quota)
        && quota < cores
    {
        findings.push(Finding::note(
            WHAT,
            format!("{quota:.1} CPUs of the {cores:.0} that this process sees; workers are held up for a part of each 0.1 s, start at most {} on this host", quota.max(1.0).floor()),
        ));
    }
    if let Some(most) = file("pids.max").and_then(|text| text.trim().parse::<u64>().ok())
        && most < 512
    {
        findings.push(Finding::note(
            WHAT,
            format!("at most {most} processes and threads; a node has about ten, raise it (docker run --pids-limit)"),
        ));
    }
    if findings.is_empty() {
        let memory = host::memory_bytes().map_or_else(|| "unbounded".to_owned(), bytes);
        findings.push(Finding::good(WHAT, format!("{cores:.0} CPUs, memory {memory}")));
    }
    findings
}

/// CPUs of a `cpu.max`: quota and period in microseconds. `None` without a quota.
fn quota(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    let (quota, period) = (words.next()?.parse::<f64>().ok()?, words.next()?.parse::<f64>().ok()?);
    (period > 0.0).then(|| quota / period)
}

/// Whether Python can load an exported model. No job needs it.
fn python() -> Finding {
    let mut command = Command::new("python3");
    command
        .args(["-c", "import safetensors"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let found = command.spawn().and_then(|mut child| {
        let deadline = Instant::now() + PYTHON_LIMIT;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status.success()));
            }
            if Instant::now() >= deadline {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    python_of(found.map_err(|error| error.kind()))
}

fn python_of(found: Result<Option<bool>, io::ErrorKind>) -> Finding {
    const WHAT: &str = "python";
    match found {
        Ok(Some(true)) => Finding::good(WHAT, "python3 with safetensors, to load exported models"),
        Ok(Some(false)) => Finding::good(
            WHAT,
            "python3 without safetensors; only to load exported models there: pip install safetensors",
        ),
        Ok(None) => Finding::note(
            WHAT,
            format!("python3 did not start within {PYTHON_LIMIT:?}; only exported models are loaded with it"),
        ),
        Err(_) => Finding::good(WHAT, "no python3; only exported models are loaded with it"),
    }
}

/// An amount for people.
#[allow(clippy::cast_precision_loss, reason = "for people")]
fn bytes(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 30 => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
        bytes => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::DeviceClass;

    use super::*;

    #[test]
    fn each_finding_is_one_line_and_all_that_is_not_good_has_a_remedy() {
        let old = SystemTime::UNIX_EPOCH;
        let now = SystemTime::now();
        let limited = |path: &str| match path {
            "/proc/self/cgroup" => Some("0::/jobs\n".to_owned()),
            "/sys/fs/cgroup/jobs/cpu.max" => Some("150000 100000\n".to_owned()),
            "/sys/fs/cgroup/jobs/pids.max" => Some("100\n".to_owned()),
            _ => None,
        };
        let mut all = vec![
            (shm_of(Ok(()), 1 << 30), State::Good, "1.0 GiB"),
            (shm_of(Ok(()), 64 << 20), State::Note, "--shm-size"),
            (shm_of(Err("no such\nfolder".to_owned()), 0), State::Note, "TCP"),
            (files_of(u64::MAX), State::Good, "no limit"),
            (files_of(4096), State::Good, "4096 for each process"),
            (files_of(256), State::Note, "LimitNOFILE"),
            (clock_of(Some("tsc"), now), State::Good, "tsc"),
            (clock_of(Some("hpet"), now), State::Note, "clocksource=tsc"),
            (clock_of(Some("tsc"), old), State::Note, "NTP"),
            (skew(now, now + Duration::from_secs(1)), State::Good, "this host"),
            (skew(now + Duration::from_secs(90), now), State::Note, "1m30s apart"),
            (room(0, Path::new("/full")), State::Fault, "--checkpoint-dir"),
            (room(1 << 20, Path::new("/d")), State::Note, "1.0 MiB"),
            (python_of(Err(io::ErrorKind::NotFound)), State::Good, "no python3"),
            (python_of(Ok(Some(false))), State::Good, "pip install safetensors"),
            (python_of(Ok(None)), State::Note, "did not start"),
        ];
        let gpu = HostGpu { class: DeviceClass("nvidia-h100".into()), memory_bytes: 80 << 30 };
        let none = || Err("no driver".to_owned());
        all.extend([
            (
                gpus(Processor::Cpu, Ok(vec![gpu.clone(); 2]), Ok(())),
                State::Good,
                "nvidia-h100 with 80.0 GiB, nvidia-h100",
            ),
            (gpus(Processor::Cpu, none(), Ok(())), State::Good, "no driver"),
            (gpus(Processor::Auto, none(), Ok(())), State::Note, "on the CPU: no driver"),
            (gpus(Processor::Cuda(None), none(), Ok(())), State::Fault, "choose cpu or auto: no driver"),
            (
                gpus(Processor::Cuda(Some(0)), Ok(vec![gpu]), Err("no NVRTC".to_owned())),
                State::Fault,
                "no NVRTC",
            ),
        ]);
        let mut of_group = groups(limited, 4.0).into_iter();
        all.push((of_group.next().unwrap(), State::Note, "1.5 CPUs of the 4"));
        all.push((of_group.next().unwrap(), State::Note, "--pids-limit"));
        for (finding, state, part) in all {
            let line = finding.to_string();
            assert!(finding.state == state && line.contains(part) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn a_folder_of_this_machine_is_looked_at_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let findings = run_directory(&folder.path().join("not/there/yet"));
        assert!(findings.iter().all(|finding| finding.state != State::Fault), "{findings:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(ports(&JobSpec::default(), false).state == State::Good);
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let spec = JobSpec { master_port: taken.local_addr().unwrap().port(), ..JobSpec::default() };
        let finding = ports(&spec, false);
        assert!(finding.state == State::Fault && finding.text.contains("--master-port"), "{finding}");
        assert_eq!(ports(&spec, true).state, State::Good, "it is the job's own");
    }

    #[test]
    fn file_systems_are_told_apart() {
        assert_eq!(file_system(0x6969), Place::Network("NFS"));
        assert_eq!(file_system(0x0102_1994), Place::Memory("tmpfs"));
        assert_eq!(file_system(0xef53), Place::Disk);
    }
}
