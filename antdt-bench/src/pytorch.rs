//! `pytorch`: training scripts of PyTorch under `antdt run`, beside the same under torchrun with gloo.
//!
//! All processes have one thread. A straggler sleeps, so that the machine's load has little part in the figures; without a straggler
//! the two take turns. Times are those that the scripts write after each step.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::entry::State;
use crate::run::{LOG, last_lines, program_with, wait};
use crate::{Entry, Rows, Settings};

const TRAIN: &str = include_str!("pytorch/train.py");

/// A script that is torchrun, also where Python is too new for it.
pub const TORCHRUN: &str = include_str!("pytorch/torchrun.py");

/// No run of a script takes as long.
const LIMIT: Duration = Duration::from_secs(600);

/// What `--only` can select.
const PARTS: [&str; 4] = ["import", "step", "kill", "slower"];

/// Steps after which a job has settled.
const SETTLED: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    Antdt,
    Ddp,
}

impl Peer {
    const fn name(self) -> &'static str {
        match self {
            Self::Antdt => "antdt",
            Self::Ddp => "ddp",
        }
    }
}

/// What a script is asked to do.
#[derive(Debug, Clone, Copy)]
struct Work {
    workers: u32,
    samples: u32,
    /// Samples of a worker in a step.
    batch: u32,
    /// Size of the hidden layers.
    width: u32,
    /// Time for each sample, in seconds, and how many times as much worker 0 takes.
    seconds: f64,
    slow: u32,
}

/// A life of a rank, by its process, and the times of its steps in seconds since 1970.
#[derive(Debug)]
struct Life {
    rank: u32,
    pid: i32,
    steps: Vec<f64>,
}

/// What a rank says in the end.
#[derive(Debug, Deserialize)]
struct End {
    /// Samples that were not in exactly one step.
    inexact: u64,
    /// 99th percentile of the time to the next batch, in seconds.
    next_p99: f64,
}

/// A run of the script.
struct Run {
    child: Child,
    folder: PathBuf,
    began: f64,
}

/// What runs scripts.
struct Bench<'a> {
    settings: &'a Settings,
    python: PathBuf,
    script: PathBuf,
    torchrun: PathBuf,
    runs: u32,
}

/// Runs the benchmark.
///
/// # Errors
/// If a run fails.
pub fn run(settings: &Settings, rows: &mut Rows) -> Result<()> {
    if !PARTS.iter().any(|part| settings.asks_for(part)) {
        bail!("--only = {}: no part has this name; there are {}", settings.only.join(", "), PARTS.join(", "));
    }
    let Some((python, version)) = python() else {
        let why =
            "no python3 imports torch and antdt; install python3-torch, and run `cargo xtask bench pytorch`";
        rows.push(Entry::without("PyTorch", State::NotCompared, why));
        return Ok(());
    };
    println!("{version}; one thread a process");
    let folder = std::path::absolute(&settings.report_dir)?;
    let [script, torchrun] = ["train.py", "torchrun.py"].map(|name| folder.join(name));
    for (file, text) in [(&script, TRAIN), (&torchrun, TORCHRUN)] {
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let mut bench = Bench { settings, python, script, torchrun, runs: 0 };
    let [import, step, kill, slower] = PARTS;
    if settings.asks_for(import) {
        bench.imports(rows)?;
    }
    for workers in [2, 4] {
        if settings.asks_for(step) {
            bench.even(workers, rows)?;
        }
    }
    if settings.asks_for(kill) {
        bench.kills(rows)?;
    }
    if settings.asks_for(slower) {
        bench.straggler(rows)?;
    }
    Ok(())
}

/// A Python that has what the script needs, and the versions.
fn python() -> Option<(PathBuf, String)> {
    ["python3", "/usr/bin/python3"].into_iter().find_map(|python| {
        let asks = "import torch.distributed, antdt; print('PyTorch', torch.__version__)";
        let output = Command::new(python).args(["-c", asks]).stdin(Stdio::null()).output().ok()?;
        let version = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| (python.into(), version.trim().to_owned()))
    })
}

impl Bench<'_> {
    fn start(&mut self, peer: Peer, work: Work) -> Result<Run> {
        let Work { workers, samples, batch, width, seconds, slow } = work;
        self.runs += 1;
        let folder =
            std::path::absolute(&self.settings.report_dir)?.join(format!("{}-{}", peer.name(), self.runs));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let python = self.python.display().to_string();
        let script = self.script.display().to_string();
        let mut words: Vec<String> = match peer {
            Peer::Antdt => {
                let job = format!(
                    "run --nproc-per-node {workers} --data samples:{samples} --global-batch-size {} --report-dir",
                    workers * batch
                );
                let report = [folder.join("report").display().to_string(), "--".to_owned(), python];
                job.split(' ').map(str::to_owned).chain(report).collect()
            }
            Peer::Ddp => {
                let job = format!(
                    "--nproc_per_node {workers} --max_restarts 1 --master_addr 127.0.0.1 --master_port {}",
                    free_port()?
                );
                std::iter::once(self.torchrun.display().to_string())
                    .chain(job.split(' ').map(str::to_owned))
                    .collect()
            }
        };
        words.extend([script, peer.name().to_owned(), folder.display().to_string()]);
        words.extend([samples, batch, width].map(|number| number.to_string()));
        words.extend([seconds.to_string(), slow.to_string()]);
        let program = if peer == Peer::Antdt { self.settings.antdt.clone() } else { self.python.clone() };
        let out = File::create(folder.join(LOG))?;
        let began = now();
        let child = program_with(&program, &words, out)?;
        Ok(Run { child, folder, began })
    }

    fn whole(&mut self, peer: Peer, work: Work) -> Result<Done> {
        self.start(peer, work)?.finish(work)
    }

    /// What importing the package costs once torch is there.
    fn imports(&self, rows: &mut Rows) -> Result<()> {
        let asks = "import time, torch; began = time.perf_counter(); import antdt; antdt.DDP; print(time.perf_counter() - began)";
        let timed = || -> Result<f64> {
            let output = Command::new(&self.python).args(["-c", asks]).stdin(Stdio::null()).output()?;
            ensure!(output.status.success(), "{asks}: {}", output.status);
            Ok(String::from_utf8(output.stdout)?.trim().parse()?)
        };
        let mut times = (0..5).map(|_| timed()).collect::<Result<Vec<_>>>()?;
        let row = Entry::shown("import antdt, beyond torch", median(&mut times) * 1e3, "ms");
        rows.push(row.at_most(100.0));
        Ok(())
    }

    /// No straggler: the two take turns.
    fn even(&mut self, workers: u32, rows: &mut Rows) -> Result<()> {
        let steps = if self.settings.quick { 200 } else { 600 };
        let work =
            Work { workers, samples: steps * workers * 32, batch: 32, width: 512, seconds: 0.0, slow: 1 };
        let rounds = if self.settings.quick { 2 } else { 5 };
        let (mut steps, mut starts) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        let mut next = Vec::new();
        for _ in 0..rounds {
            for (at, peer) in [Peer::Antdt, Peer::Ddp].into_iter().enumerate() {
                let done = self.whole(peer, work)?;
                steps[at].push(done.step_time()?);
                starts[at].push(done.first_step() - done.began);
                if peer == Peer::Antdt {
                    next.push(done.ends.iter().map(|end| end.next_p99).fold(0.0, f64::max) * 1e6);
                }
            }
        }
        let [ours, theirs] = steps.each_mut().map(|times| median(times));
        let beside = format!("{:.2} ms against {:.2} of torchrun with gloo", ours * 1e3, theirs * 1e3);
        rows.push(
            Entry::shown(format!("step, {workers} workers"), ours / theirs, "x").at_most(1.02).beside(beside),
        );
        let [ours, theirs] = starts.each_mut().map(|times| median(times));
        let beside = format!("{ours:.2} s against {theirs:.2} of torchrun");
        rows.push(
            Entry::shown(format!("start to first step, {workers} workers"), ours / theirs, "x")
                .at_most(1.1)
                .beside(beside),
        );
        rows.push(
            Entry::shown(format!("next batch, p99, {workers} workers"), median(&mut next), "us")
                .beside("with the samples, and with the wait for the step of the others"),
        );
        Ok(())
    }

    /// Worker 1 of 3 is killed.
    fn kills(&mut self, rows: &mut Rows) -> Result<()> {
        let work = Work { workers: 3, samples: 96 * 60, batch: 32, width: 64, seconds: 0.001_5, slow: 1 };
        let mut pauses = Vec::new();
        let mut inexact = 0;
        for _ in 0..if self.settings.quick { 3 } else { 20 } {
            let (done, pause) = self.killed(Peer::Antdt, work)?;
            let others = [0, 2].map(|rank| done.lives.iter().filter(|life| life.rank == rank).count());
            ensure!(others == [1, 1], "the other workers were started again: {others:?}");
            inexact += done.ends.iter().map(|end| end.inexact).sum::<u64>();
            pauses.push(pause);
        }
        let (done, theirs) = self.killed(Peer::Ddp, work)?;
        let repeated: usize =
            done.lives.iter().filter(|life| life.rank == 0).map(|life| life.steps.len()).sum();
        let beside = format!(
            "torchrun: {theirs:.2} s, all processes anew, {} steps again",
            repeated.saturating_sub(60)
        );
        pauses.sort_by(f64::total_cmp);
        let p95 = pauses[(pauses.len() * 95).div_ceil(100) - 1];
        rows.push(Entry::shown("pause after kill -9 of 1 of 3, p95", p95, "s").at_most(2.0).beside(beside));
        #[allow(clippy::cast_precision_loss, reason = "a few thousand samples")]
        let inexact = inexact as f64;
        rows.push(
            Entry::shown("samples not in exactly one step, after kills", inexact, "samples").at_most(0.0),
        );
        Ok(())
    }

    /// Kills worker 1 after some steps. Returns the longest time between two steps of worker 0 beyond the usual.
    fn killed(&mut self, peer: Peer, work: Work) -> Result<(Done, f64)> {
        let run = self.start(peer, work)?;
        let deadline = Instant::now() + LIMIT;
        let victim = loop {
            let victim =
                lives(&run.folder)?.into_iter().find(|life| life.rank == 1 && life.steps.len() >= SETTLED);
            if let Some(victim) = victim {
                break victim.pid;
            }
            ensure!(
                Instant::now() < deadline,
                "worker 1 takes no steps:\n{}",
                last_lines(&run.folder.join(LOG))
            );
            thread::sleep(Duration::from_millis(20));
        };
        let victim = rustix::process::Pid::from_raw(victim).context("a process has a number")?;
        rustix::process::kill_process(victim, rustix::process::Signal::KILL)?;
        let done = run.finish(work)?;
        let mut steps: Vec<f64> =
            done.lives.iter().filter(|life| life.rank == 0).flat_map(|life| life.steps.clone()).collect();
        steps.sort_by(f64::total_cmp);
        let mut gaps: Vec<f64> = steps.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let longest = gaps.iter().copied().fold(0.0, f64::max);
        Ok((done, longest - median(&mut gaps)))
    }

    /// Worker 0 of 4 takes four times as long; the two run side by side.
    fn straggler(&mut self, rows: &mut Rows) -> Result<()> {
        let samples = if self.settings.quick { 32_000 } else { 96_000 };
        let work = Work { workers: 4, samples, batch: 32, width: 64, seconds: 0.002, slow: 4 };
        let (ours, theirs) = (self.start(Peer::Antdt, work)?, self.start(Peer::Ddp, work)?);
        let (ours, theirs) = (ours.finish(work)?, theirs.finish(work)?);
        let inexact: u64 = ours.ends.iter().map(|end| end.inexact).sum();
        ensure!(inexact == 0, "{inexact} samples were not in exactly one step");
        let [ours, theirs] = [ours.took(), theirs.took()];
        let beside = format!("{ours:.1} s against {theirs:.1}; perfect foresight: 3.25 x");
        let row = Entry::shown("one of 4 four times slower, torchrun / antdt", theirs / ours, "x");
        // Until the policy knows the straggler, some seconds pass, which are a fifth of a short job.
        rows.push(if self.settings.quick { row } else { row.at_least(2.7) }.beside(beside));
        Ok(())
    }
}

/// A run that is over.
struct Done {
    began: f64,
    lives: Vec<Life>,
    ends: Vec<End>,
}

impl Run {
    fn finish(self, work: Work) -> Result<Done> {
        let Self { child, folder, began } = self;
        let log = folder.join(LOG);
        let status = wait(child, LIMIT).with_context(|| last_lines(&log))?;
        if !status.success() {
            bail!("{}: {status}\n{}", folder.display(), last_lines(&log));
        }
        let end = |rank: u32| -> Result<End> {
            let file = folder.join(format!("end-{rank}.json"));
            let text =
                fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            Ok(serde_json::from_str(&text)?)
        };
        let ends = (0..work.workers).map(end).collect::<Result<_>>()?;
        Ok(Done { began, lives: lives(&folder)?, ends })
    }
}

impl Done {
    /// Median time of a step of worker 0 once the job has settled, in seconds.
    fn step_time(&self) -> Result<f64> {
        let first = self.lives.iter().find(|life| life.rank == 0).context("worker 0 took no step")?;
        let mut times: Vec<f64> =
            first.steps.windows(2).skip(SETTLED).map(|pair| pair[1] - pair[0]).collect();
        ensure!(!times.is_empty(), "worker 0 took only {} steps", first.steps.len());
        Ok(median(&mut times))
    }

    /// When the last worker had taken its first step.
    fn first_step(&self) -> f64 {
        self.lives.iter().filter_map(|life| life.steps.first().copied()).fold(0.0, f64::max)
    }

    /// Time from the first step to the last one, in seconds.
    fn took(&self) -> f64 {
        let steps = || self.lives.iter().flat_map(|life| life.steps.iter().copied());
        steps().fold(0.0, f64::max) - steps().fold(f64::INFINITY, f64::min)
    }
}

/// What the ranks of a run have written so far.
fn lives(folder: &Path) -> Result<Vec<Life>> {
    let mut lives = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some((rank, pid)) = name.strip_prefix("steps-").and_then(|rest| rest.split_once('-')) else {
            continue;
        };
        let (rank, pid) = (rank.parse()?, pid.parse()?);
        let text = fs::read_to_string(&path)?;
        // The last line may be half written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let steps = whole.lines().map(str::parse).collect::<Result<_, _>>()?;
        lives.push(Life { rank, pid, steps });
    }
    Ok(lives)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_by_rank_and_process_without_a_line_that_is_half_written() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("steps-1-77"), "1.5\n2.5\n3.").unwrap();
        fs::write(folder.path().join("steps-0-76"), "").unwrap();
        fs::write(folder.path().join(LOG), "said").unwrap();
        let mut lives = lives(folder.path()).unwrap();
        lives.sort_by_key(|life| life.rank);
        let seen: Vec<_> = lives.iter().map(|life| (life.rank, life.pid, life.steps.as_slice())).collect();
        assert_eq!(seen, [(0, 76, &[][..]), (1, 77, &[1.5, 2.5])]);
        let done = Done { began: 1.0, lives, ends: Vec::new() };
        assert_eq!((done.first_step(), done.took()), (1.5, 1.0));
        assert!(done.step_time().unwrap_err().to_string().contains("0 steps"));
    }
}
