//! Stragglers made by real contention, not by emulation: a worker whose processes may use a quarter of a core, one that shares its core
//! with busy processes, one whose disk is limited, and one whose network card is. The workers compute at the machine's own speed, but for the
//! last two, whose gradients must take as long as reading and sending do.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use antdt::report::Report;
use anyhow::{Context, Result, anyhow, bail};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::Scale;
use super::cells::Cells;
use crate::entry::State;
use crate::meter::Others;
use crate::run;
use crate::{Entry, Settings};

mod disk;
mod link;

/// Processes that share the worker's core: it gets a quarter of it.
const RIVALS: usize = 3;

/// Samples of a step of both workers. A worker's gradient takes more than half of a quota's period of its core: of one that takes a hundredth
/// of it, most batches would be as fast as ever and a few stand still, which is no pace.
const GLOBAL: u32 = 32_768;

/// Of each period, the time that the worker's processes may compute, and the period; as the kernel's default period.
const QUOTA: (u32, u32) = (25_000, 100_000);

/// Least gain of `nd` over doing nothing: with a quarter of a core for one of two workers the ideal is 2.5, less the steps until the first plan,
/// and the threads that do not compute want a part of the quarter too.
const GAIN: f64 = 1.3;

/// Bound on a job; it takes about a minute.
const LIMIT: Duration = Duration::from_secs(240);

/// What takes the time of worker 1. Ends when it is dropped.
enum Contention {
    /// A control group with a quota.
    Quota(PathBuf),
    /// Busy processes on its core.
    Rivals(Vec<Child>),
}

impl Drop for Contention {
    fn drop(&mut self) {
        match self {
            // Its processes have ended: an empty group can be removed, and one that is left does no harm.
            Self::Quota(folder) => drop(fs::remove_dir(folder)),
            Self::Rivals(rivals) => {
                for rival in rivals {
                    // It may have ended by itself.
                    let _ = rival.kill();
                    let _ = rival.wait();
                }
            }
        }
    }
}

/// A kind of contention.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Quota,
    Rivals,
}

impl Kind {
    const fn about(self) -> &'static str {
        match self {
            Self::Quota => "a CPU quota of a quarter of a core",
            Self::Rivals => "3 busy processes on the core of",
        }
    }

    /// Why it cannot be had here.
    fn unavailable(self) -> Option<String> {
        match self {
            Self::Quota => group(std::process::id())
                .map(|folder| drop(fs::remove_dir(folder)))
                .err()
                .map(|e| format!("{e:#}")),
            Self::Rivals => {
                let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
                (cores < 2).then(|| "it takes two cores".to_owned())
            }
        }
    }

    /// Puts it on a worker.
    fn begin(self, worker: u32) -> Result<Contention> {
        match self {
            Self::Quota => {
                let folder = group(worker)?;
                let quota = Contention::Quota(folder.clone());
                let procs = folder.join("cgroup.procs");
                fs::write(&procs, worker.to_string())
                    .with_context(|| format!("cannot write {}", procs.display()))?;
                Ok(quota)
            }
            Self::Rivals => {
                let mut core = CpuSet::new();
                core.set(0);
                let mut rivals = Contention::Rivals(Vec::new());
                for thread in fs::read_dir(format!("/proc/{worker}/task"))? {
                    pin(thread?.file_name().to_string_lossy().parse()?, &core)?;
                }
                for _ in 0..RIVALS {
                    let rival = Command::new("sh")
                        .args(["-c", "while :; do :; done"])
                        .stdin(Stdio::null())
                        .spawn()?;
                    pin(rival.id(), &core)?;
                    if let Contention::Rivals(all) = &mut rivals {
                        all.push(rival);
                    }
                }
                Ok(rivals)
            }
        }
    }
}

fn pin(process: u32, cores: &CpuSet) -> Result<()> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).context("no process id")?;
    sched_setaffinity(Some(pid), cores).context("cannot keep a process on one core")
}

/// Makes a control group with the quota, of either version of control groups.
fn group(name: u32) -> Result<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let name = format!("antdt-bench-{name}");
    let (period, quota) = (QUOTA.1.to_string(), QUOTA.0.to_string());
    let (folder, files) = if root.join("cpu").is_dir() {
        let folder = root.join("cpu").join(name);
        (folder, vec![("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", quota)])
    } else {
        (root.join(name), vec![("cpu.max", format!("{quota} {period}"))])
    };
    fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make a control group, {}", folder.display()))?;
    for (file, text) in files {
        let file = folder.join(file);
        if let Err(error) = fs::write(&file, text) {
            let _ = fs::remove_dir(&folder);
            return Err(anyhow!(error).context(format!("cannot write {}", file.display())));
        }
    }
    Ok(folder)
}

/// The process of worker 1 among those that `job` has started; waits until there is one.
pub(super) fn worker_of(job: &mut Child) -> Result<u32> {
    let began = Instant::now();
    loop {
        let mut family = BTreeSet::from([job.id()]);
        let mut processes: Vec<(u32, u32)> = fs::read_dir("/proc")?
            .filter_map(|entry| entry.ok()?.file_name().to_string_lossy().parse().ok())
            .filter_map(|process| Some((process, parent_of(process)?)))
            .collect();
        processes.sort_unstable();
        // A child may have a smaller number than its parent: until none is added.
        while processes.iter().any(|(process, parent)| family.contains(parent) && family.insert(*process)) {}
        let is_worker = |process: &&u32| {
            let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == b"ANTDT_NODE=worker-1")
        };
        if let Some(worker) = family.iter().find(is_worker) {
            return Ok(*worker);
        }
        if job.try_wait()?.is_some() || began.elapsed() > LIMIT {
            bail!("the job has no worker 1");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn parent_of(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// Runs a job of two workers with these flags besides. `hurt` gets the process of worker 1; what it returns lasts until the job's end.
fn job<T>(
    settings: &Settings,
    policy: &str,
    flags: &str,
    folder: &Path,
    hurt: impl FnOnce(u32) -> Result<T>,
) -> Result<Report> {
    let text = format!(
        "--nproc-per-node 2 --sync allreduce --policy {policy} --workload deepfm --epochs 1 --seed 1 \
         {flags} --quiet"
    );
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let mut job = run::start(&settings.antdt, &words, folder)?;
    let contention = match worker_of(&mut job).and_then(hurt) {
        Ok(contention) => contention,
        Err(error) => {
            let _ = job.kill();
            let _ = job.wait();
            return Err(error);
        }
    };
    let status = run::wait(job, LIMIT)?;
    drop(contention);
    if !status.success() {
        bail!("the job failed: {}", run::last_lines(&folder.join(run::LOG)));
    }
    run::report(folder)
}

/// The rows of each kind. Of CPU time: the time of doing nothing over that of `nd`, and whether the worker was found.
///
/// # Errors
/// If a job cannot be run.
pub(super) fn run(settings: &Settings, scale: &Scale, cells: &mut Cells<'_>) -> Result<()> {
    for (kind, steps) in [(Kind::Quota, scale.quota_steps), (Kind::Rivals, scale.rivals_steps)] {
        if steps > 0 {
            cells.measure(&format!("contention: {}", kind.about()), |rows| {
                rows.push(of_cpu(settings, kind, steps)?);
                Ok(())
            })?;
        }
    }
    if scale.disk_steps > 0 {
        cells.measure("contention: disk", |rows| disk::run(settings, scale.disk_steps, rows))?;
    }
    if scale.link_steps > 0 {
        cells.measure("contention: link", |rows| link::run(settings, scale.link_steps, rows))?;
    }
    Ok(())
}

fn of_cpu(settings: &Settings, kind: Kind, steps: u32) -> Result<Entry> {
    let name = format!("real contention, {} worker 1, {steps} steps: time of none over nd", kind.about());
    if let Some(why) = kind.unavailable() {
        return Ok(Entry::without(name, State::NotCompared, format!("skipped: {why}")));
    }
    let others = Others::watch();
    // A model that is evaluated on all of the data keeps a core busy for a fifth of the job's time once that is measured.
    let flags = format!(
        "--data synthetic:{} --global-batch-size {GLOBAL} --eval-fraction 0.01",
        u64::from(steps) * u64::from(GLOBAL)
    );
    let took = |policy: &str| -> Result<(f64, bool)> {
        let folder = settings.report_dir.join(format!("contention-{kind:?}-{policy}").to_lowercase());
        let report = job(settings, policy, &flags, &folder, |worker| kind.begin(worker))?;
        let is_found =
            report.events.iter().any(|event| event.kind == "straggler" && event.node == "worker-1");
        Ok((report.job_completion_time_s, is_found))
    };
    let ((none, _), (nd, is_found)) = (took("none")?, took("nd")?);
    let found = if is_found { "was found" } else { "was not found" };
    Ok(Entry::shown(name, none / nd, "x")
        .at_least(GAIN)
        .unless_overloaded(others.share(), super::OTHERS_MAX)
        .beside(format!("none {none:.1} s, nd {nd:.1} s; the straggler {found}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_of_a_job_is_found_among_its_processes_and_no_other() {
        // A stranger of the same name, and a grandchild.
        let run =
            |script: &str| Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap();
        let mut stranger = run("export ANTDT_NODE=worker-1; exec sleep 60");
        let mut job = run("(export ANTDT_NODE=worker-1; exec sleep 60) & wait");
        let worker = worker_of(&mut job).unwrap();
        assert_ne!(worker, stranger.id());
        assert_eq!(parent_of(worker), Some(job.id()));
        for process in [worker, job.id(), stranger.id()] {
            let pid = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = (job.wait(), stranger.wait());
    }

    #[test]
    fn a_group_has_the_quota_or_says_why_not() {
        match group(std::process::id()) {
            Ok(folder) => {
                let files = ["cpu.cfs_quota_us", "cpu.max"].map(|file| fs::read_to_string(folder.join(file)));
                fs::remove_dir(&folder).unwrap();
                let text = files.into_iter().find_map(Result::ok).unwrap();
                assert!(text.starts_with("25000"), "{text}");
            }
            Err(error) => println!("skipped: {error:#}"),
        }
    }
}
