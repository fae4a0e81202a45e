//! A large model: what a checkpoint of it costs its worker, and how fast it goes to another one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use antdt::checkpoint::Folder;
use antdt::remote::RemoteJob;
use anyhow::{Context, Result, ensure};
use rustix::process::Pid;
use serde_json::Value;

use super::job::{Job, NO_POLICY, Order};
use super::pause;
use crate::baselines::pacer;
use crate::meter::{median, status_bytes_of};
use crate::run::LOG;

/// Checkpoints of a job, each beside a file that `dd` writes.
const ROUNDS: usize = 3;

/// Samples of a step: those of a second.
const BATCH: u32 = 24;

/// Bytes a second of the link over which a model goes to a worker that joins.
const LINK: f64 = 200e6;

/// What a checkpoint costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Kept {
    /// The longest time that the training thread was held, in seconds.
    pub(super) held: f64,
    /// Memory beyond that of training, in models.
    pub(super) extra: f64,
    /// Its writing, of what `dd` reaches.
    pub(super) speed: f64,
    /// Bytes a second of `dd`.
    pub(super) disk: f64,
}

/// The order for a job that trains so large a model.
fn order(program: &Path, folder: &Path, bytes: u64, arguments: &[&str]) -> Result<Order> {
    let beside = folder.with_extension("toml");
    let text =
        format!("[workload]\nname = \"counting\"\n\n[workload.counting]\nparameters = {}\n", bytes / 4);
    fs::write(&beside, text).with_context(|| format!("cannot write {}", beside.display()))?;
    let pace = BATCH.to_string();
    let usual = [
        "--job",
        &beside.display().to_string(),
        "--emulate-speed",
        &pace,
        "--global-batch-size",
        &pace,
        "--nproc-per-node",
        "1",
        "--heartbeat",
        "50ms",
    ]
    .map(str::to_owned);
    let arguments = usual.into_iter().chain(arguments.iter().map(|word| (*word).to_owned())).collect();
    Ok(Order {
        program: program.to_owned(),
        folder: folder.to_owned(),
        sync: "allreduce".to_owned(),
        epochs: 100,
        policy: NO_POLICY,
        arguments,
    })
}

/// Keeps a model some times, and writes as much with `dd` after each.
pub(super) fn keep(
    program: &Path,
    folder: &Path,
    bytes: u64,
    runtime: &tokio::runtime::Runtime,
) -> Result<Kept> {
    let mut job = Job::start(&order(program, folder, bytes, &["--checkpoint-keep", "1"])?)?;
    job.until(runtime, 1, 2)?;
    let pid = job.node("worker-0", None)?;
    let usual = peak(pid, || job.goes_on(runtime, 1, 3))?;
    let (mut extra, mut speeds, mut disks) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut id = 0;
        let most = peak(pid, || {
            let asked = runtime.block_on(async { RemoteJob::find(Some(folder))?.checkpoint().await });
            id = asked?.0;
            Ok(())
        })?;
        #[allow(clippy::cast_precision_loss, reason = "sizes of memory")]
        extra.push(most.saturating_sub(usual) as f64 / bytes as f64);
        let (len, ours) = written(folder, id)?;
        ensure!(len >= bytes, "the part of checkpoint {id} has {len} bytes, not {bytes}");
        let theirs = dd(folder, len)?;
        #[allow(clippy::cast_precision_loss, reason = "a size")]
        disks.push(len as f64 / theirs);
        speeds.push(theirs / ours);
        job.goes_on(runtime, 1, 1)?;
    }
    let report = job.stop(runtime)?;
    let series = &report.workers.first().context("there is no worker-0")?.series;
    let held = pause::longest(series).context("the job is too short")?;
    let extra = extra.into_iter().fold(0.0, f64::max);
    Ok(Kept { held, extra, speed: median(speeds), disk: median(disks) })
}

/// The most memory that a process holds meanwhile, in bytes.
fn peak(pid: Pid, meanwhile: impl FnOnce() -> Result<()>) -> Result<u64> {
    let process = pid.as_raw_nonzero();
    fs::write(format!("/proc/{process}/clear_refs"), "5").context("cannot reset the peak of memory")?;
    meanwhile()?;
    status_bytes_of(&process.to_string(), "VmHWM:")
}

/// Bytes of the model's part of a checkpoint, and the time from the creation of its file until it had its name, for which it must
/// be durable, in seconds.
fn written(folder: &Path, id: u64) -> Result<(u64, f64)> {
    let checkpoints = Folder::open(folder.join("run/checkpoints"))?;
    let found = checkpoints.open_checkpoint(antdt_core::CheckpointId(id))?;
    let part = found.manifest().files.iter().max_by_key(|file| file.bytes).context("an empty checkpoint")?;
    let file = fs::metadata(found.path().join(&part.name))?;
    let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let created = since(file.created().context("the file system does not tell when a file was created")?);
    #[allow(clippy::cast_precision_loss, reason = "seconds since 1970")]
    let named = file.ctime() as f64 + file.ctime_nsec() as f64 / 1e9;
    ensure!(named > created, "the part was named before it was created");
    Ok((file.len(), named - created))
}

/// The time that `dd` takes for so many bytes and a final sync, in seconds.
fn dd(folder: &Path, bytes: u64) -> Result<f64> {
    let file = folder.join("dd");
    let blocks = bytes.div_ceil(1 << 20);
    let began = Instant::now();
    let status = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "conv=fsync"])
        .arg(format!("of={}", file.display()))
        .arg(format!("count={blocks}"))
        .stderr(Stdio::null())
        .status()
        .context("cannot start dd")?;
    let took = began.elapsed().as_secs_f64();
    ensure!(status.success(), "dd: {status}");
    fs::remove_file(&file)?;
    Ok(took)
}

/// The time that a worker which joins takes for the model, of that which the link takes for as many bytes.
pub(super) fn join(
    program: &Path,
    folder: &Path,
    bytes: u64,
    runtime: &tokio::runtime::Runtime,
) -> Result<(f64, f64)> {
    let network = format!("bandwidth={LINK:.0}B/s,latency=1ms");
    let json = ["--log", "antdt=debug", "--log-format", "json"];
    let arguments = [&["--emulate-network", &network], &json[..]].concat();
    let mut job = Job::start(&order(program, folder, bytes, &arguments)?)?;
    job.until(runtime, 1, 2)?;
    runtime.block_on(async { RemoteJob::find(Some(folder))?.scale(2).await })?;
    let log = folder.join(LOG);
    let took =
        job.wait_for("the model at the worker that joins", |_| taken_over(&fs::read_to_string(&log).ok()?))?;
    job.kill_whole()?;
    let (carried, took) = took;
    ensure!(carried >= bytes, "{carried} bytes went to the worker, not {bytes}");
    let few = usize::try_from(bytes.min(64 << 20))?;
    #[allow(clippy::cast_precision_loss, reason = "sizes")]
    let link = few as f64 / (pacer::there_and_back(LINK, Duration::from_millis(1), few, 3)? / 2.0);
    #[allow(clippy::cast_precision_loss, reason = "sizes")]
    let share = carried as f64 / took / link;
    Ok((share, link))
}

/// What a worker says once it has the model: its bytes, and the seconds that it took.
fn taken_over(log: &str) -> Option<(u64, f64)> {
    log.lines().find_map(|line| {
        let line: Value = serde_json::from_str(line.get(line.find('{')?..)?).ok()?;
        let fields = line.get("fields")?;
        let is_it = fields.get("message")?.as_str()? == "the model is here";
        is_it.then(|| Some((fields.get("bytes")?.as_u64()?, fields.get("seconds")?.as_f64()?)))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workers_line_about_the_model_is_found_among_others() {
        let line = r#"{"level":"DEBUG","fields":{"message":"the model is here","bytes":7,"seconds":0.5}}"#;
        let log = format!(
            "[worker-0] {{broken\n[worker-0] {{\"fields\":{{\"message\":\"x\"}}}}\n[worker-1] {line}\n"
        );
        assert_eq!(taken_over(&log), Some((7, 0.5)));
        assert_eq!(taken_over("nothing\n"), None);
    }

    #[test]
    fn the_file_that_dd_writes_is_gone_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        assert!(dd(folder.path(), 1 << 20).unwrap() > 0.0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
