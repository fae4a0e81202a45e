//! A worker whose reads of the data are limited by the block controller of its control group.
//!
//! Only what comes from the disk is limited, so that the file's pages are dropped from memory while the job runs. No policy reacts to a
//! worker that waits for data, which is no slower than its peers: the monitor has to name it, by the share of its time that it waits.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Advice, fadvise};

use super::super::OTHERS_MAX;
use super::{LIMIT, job};
use crate::entry::State;
use crate::meter::Others;
use crate::run;
use crate::{Entry, Rows, Settings};

/// Bytes a second that the worker may read: of a step it needs 64 kB, and what the system reads ahead of it.
const RATE: u64 = 1_000_000;

/// Samples of a step of both workers, and of a worker per second: gradients of 100 ms, beside which reading from a disk that nothing limits
/// is little.
const GLOBAL: u32 = 512;
const SPEED: u32 = 2_560;

/// Share of its own time that a worker waits for data, from which on `antdt status --diagnose` names it.
const NAMED: f64 = 0.25;

/// Bytes of the trial that shows whether the limit is kept, and the time that they take at least if it is: half of what they should.
const TRIAL: u64 = 1 << 20;
const BLOCK: u64 = 64 << 10;
const TRIAL_LEAST: Duration = Duration::from_millis(500);

/// Time between two rounds of dropping the file's pages: a worker reads ahead by a few steps at most.
const DROP_EVERY: Duration = Duration::from_millis(20);

/// A control group whose processes read so many bytes a second from one disk; it goes with it.
struct Group(PathBuf);

impl Group {
    /// Of either version of control groups, for the disk that `file` is on.
    fn new(name: &str, file: &Path) -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let disk = disk_of(file)?;
        let (folder, setting, text) = if root.join("blkio").is_dir() {
            (root.join("blkio").join(name), "blkio.throttle.read_bps_device", format!("{disk} {RATE}"))
        } else {
            (root.join(name), "io.max", format!("{disk} rbps={RATE}"))
        };
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make a control group, {}", folder.display()))?;
        let group = Self(folder);
        let setting = group.0.join(setting);
        ensure!(setting.exists(), "the block controller has no {}", setting.display());
        fs::write(&setting, text).with_context(|| format!("cannot write {}", setting.display()))?;
        Ok(group)
    }

    fn add(&self, process: u32) -> Result<()> {
        let procs = self.0.join("cgroup.procs");
        fs::write(&procs, process.to_string()).with_context(|| format!("cannot write {}", procs.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended; an empty group that is left does no harm.
        let _ = fs::remove_dir(&self.0);
    }
}

/// The numbers of the disk that a file is on: a limit is for a disk and not for a part of it.
fn disk_of(file: &Path) -> Result<String> {
    let device = fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?.dev();
    let numbers = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let known = Path::new("/sys/dev/block").join(&numbers);
    ensure!(known.exists(), "{} is on no disk: device {numbers}", file.display());
    if !known.join("partition").exists() {
        return Ok(numbers);
    }
    let whole = fs::canonicalize(&known)?.parent().context("a partition without a disk")?.join("dev");
    Ok(fs::read_to_string(&whole)
        .with_context(|| format!("cannot read {}", whole.display()))?
        .trim()
        .to_owned())
}

/// Whether the limit is kept.
///
/// # Errors
/// If it is not, or cannot be set.
fn try_out(file: &Path) -> Result<()> {
    let group = Group::new(&format!("antdt-bench-try-{}", std::process::id()), file)?;
    let procs = group.0.join("cgroup.procs").display().to_string();
    let blocks = TRIAL / BLOCK;
    let script =
        format!("echo $$ > \"$1\" && exec dd if=\"$2\" of=/dev/null bs={BLOCK} count={blocks} iflag=direct");
    let began = Instant::now();
    let output = Command::new("sh")
        .args(["-c", &script, "sh", &procs, &file.display().to_string()])
        .stdin(Stdio::null())
        .output()?;
    ensure!(
        output.status.success(),
        "cannot read past the system's memory: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    ensure!(
        began.elapsed() >= TRIAL_LEAST,
        "the block controller does not limit reads: {TRIAL} bytes took {:.2} s",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Drops the pages of a file from memory, again and again, until it is dropped.
struct Uncached {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Uncached {
    fn new(file: &Path) -> Result<Self> {
        let file = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        let (over, ended) = channel();
        let thread = thread::spawn(move || {
            // What the system does not drop is read from memory: then the row says that no worker waits.
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(DROP_EVERY) {
                let _ = fadvise(&file, 0, None, Advice::DontNeed);
            }
        });
        Ok(Self { over: Some(over), thread: Some(thread) })
    }
}

impl Drop for Uncached {
    fn drop(&mut self) {
        drop(self.over.take());
        // It ends at once.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The rows: the share of its own time that the limited worker waits for data, and that of the other one.
///
/// # Errors
/// If the job fails.
pub(super) fn run(settings: &Settings, steps: u32, rows: &mut Rows) -> Result<()> {
    let about = format!(
        "real contention, disk of worker 1 limited to {} kB/s, {steps} steps: share of the time that",
        RATE / 1000
    );
    let name = format!("{about} it waits for data");
    let file = settings.report_dir.join("contention-disk.tsv");
    generate(&settings.antdt, u64::from(steps) * u64::from(GLOBAL), &file)?;
    if let Err(why) = try_out(&file) {
        rows.push(Entry::without(name, State::NotCompared, format!("skipped: {why:#}")));
        return Ok(());
    }
    let others = Others::watch();
    let folder = settings.report_dir.join("contention-disk-nd");
    let report = {
        let _uncached = Uncached::new(&file)?;
        let flags = format!("--data {} --global-batch-size {GLOBAL} --emulate-speed {SPEED}", file.display());
        job(settings, "nd", &flags, &folder, |process| {
            let group = Group::new(&format!("antdt-bench-{process}"), &file)?;
            group.add(process)?;
            Ok(group)
        })?
    };
    let share = |worker: usize| {
        let times = report.workers.get(worker)?.times;
        Some(times.data_wait_s / (times.data_wait_s + times.compute_s).max(f64::MIN_POSITIVE))
    };
    let (Some(peer), Some(own)) = (share(0), share(1)) else { bail!("the report has not two workers") };
    let others = others.share();
    let row = Entry::shown(name, own, "").at_least(NAMED).unless_overloaded(others, OTHERS_MAX);
    rows.push(row.beside(format!(
        "from {NAMED} on `antdt status --diagnose` names it; the job took {:.1} s",
        report.job_completion_time_s
    )));
    let row = Entry::shown(format!("{about} the other one waits"), peer, "");
    rows.push(row.at_most(NAMED).unless_overloaded(others, OTHERS_MAX));
    Ok(())
}

/// Writes generated clicks to a file that is on the disk.
fn generate(antdt: &Path, rows: u64, file: &Path) -> Result<()> {
    // It does not write over a file of its own.
    let _ = fs::remove_file(file);
    let words = ["data", "synth", "--rows", &rows.to_string(), "--out", &file.display().to_string()]
        .map(str::to_owned);
    let log = file.with_extension("log");
    let out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let status = run::wait(run::program_with(antdt, &words, out)?, LIMIT)?;
    ensure!(status.success(), "antdt data synth: {status}; {}", run::last_lines(&log));
    File::open(file)
        .and_then(|file| file.sync_all())
        .with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_on_a_disk_with_numbers_and_one_on_none_is_refused() {
        let told = disk_of(Path::new("/proc/self/stat")).unwrap_err();
        assert!(format!("{told:#}").contains("is on no disk"), "{told:#}");
        match disk_of(&std::env::current_exe().unwrap()) {
            Ok(disk) => assert!(disk.split(':').all(|number| number.parse::<u32>().is_ok()), "{disk}"),
            Err(why) => println!("skipped: {why:#}"),
        }
    }

    #[test]
    fn a_limit_is_kept_or_the_reason_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data");
        fs::write(&file, vec![7; 1 << 20]).unwrap();
        File::open(&file).unwrap().sync_all().unwrap();
        if let Err(why) = try_out(&file) {
            println!("skipped: {why:#}");
        }
        let name = format!("antdt-bench-try-{}", std::process::id());
        let left =
            ["/sys/fs/cgroup/blkio", "/sys/fs/cgroup"].map(|root| Path::new(root).join(&name).exists());
        assert_eq!(left, [false; 2], "the group is gone");
    }

    #[test]
    fn pages_are_dropped_until_the_end_and_no_longer() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let uncached = Uncached::new(file.path()).unwrap();
        drop(uncached);
        assert!(Uncached::new(Path::new("/nowhere/data")).is_err());
    }
}
