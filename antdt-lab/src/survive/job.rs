//! A job of the counting model, as processes that can be hurt, and what it leaves.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use antdt::checkpoint::{Checkpoint, Folder};
use antdt::remote::RemoteJob;
use antdt::report::Report;
use antdt::run_dir::{MASTER, MasterFile};
use antdt_chaos::count::{counted, inexact};
use antdt_proto::v1::DescribeReply;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::run::{LOG, last_lines, program_with, report, start, wait};
use crate::tree::{children, is_alive};

/// Samples of the counting model, and its parameters: `antdt/examples/counting.rs`.
pub(super) const SAMPLES: u64 = 1_200;

/// The policy of a job that is only hurt: no other change to it than what is done.
pub(super) const NO_POLICY: &str = "none";

/// Bound on whatever a job is waited for; all of it takes seconds.
const LIMIT: Duration = Duration::from_secs(90);

/// What a master in waiting says goes to this file.
const STANDBY_LOG: &str = "standby.txt";

/// What it says when it waits.
const WAITS: &str = "waiting for the end of the master";

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// A job that runs.
#[derive(Debug)]
pub(super) struct Job {
    child: Child,
    pub(super) folder: PathBuf,
    epochs: u32,
}

/// What a job left that completed.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) report: Report,
    /// Why the job is not exact, by its report or by the model's own count.
    pub(super) inexact: Option<String>,
}

/// What a master left to the next one.
#[derive(Debug)]
pub(super) struct Followed {
    /// Until the next one answered, in seconds.
    pub(super) serving: f64,
    /// What it did that it must not.
    pub(super) harm: Option<String>,
}

/// A job to start.
#[derive(Debug, Clone)]
pub(super) struct Order {
    /// The counting program.
    pub(super) program: PathBuf,
    /// Where the report goes; emptied before.
    pub(super) folder: PathBuf,
    pub(super) sync: String,
    pub(super) epochs: u32,
    pub(super) policy: &'static str,
    pub(super) arguments: Vec<String>,
}

impl Job {
    /// Starts a job.
    pub(super) fn start(order: &Order) -> Result<Self> {
        let Order { program, folder, sync, epochs, policy, arguments } = order;
        // What an earlier benchmark left there would be taken for this job's.
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        let epochs_text = epochs.to_string();
        let counting = ["--workload", "counting", "--optimizer", "sums", "--policy", *policy];
        let job = ["--sync", sync.as_str(), "--epochs", &epochs_text];
        let own = counting.iter().chain(&job).map(|word| (*word).to_owned());
        let child = start(program, &own.chain(arguments.iter().cloned()).collect::<Vec<_>>(), folder)
            .context("the program is built by `cargo build -p antdt --example counting`")?;
        Ok(Self { child, folder: folder.clone(), epochs: *epochs })
    }

    /// Waits until something is there.
    pub(super) fn wait_for<T>(&mut self, what: &str, mut ask: impl FnMut(&Self) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(found) = ask(self) {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "waited for {what}, but the job ended: {status}\n{}",
                    last_lines(&self.folder.join(LOG))
                );
            }
            if Instant::now() >= deadline {
                self.child.kill()?;
                self.child.wait()?;
                bail!("waited for {what} for {LIMIT:?}; see {}", self.folder.display());
            }
            thread::sleep(LOOK);
        }
    }

    /// Waits until so many workers take part, of as many, and the job has taken so many steps.
    pub(super) fn until(
        &mut self,
        runtime: &tokio::runtime::Runtime,
        workers: u32,
        steps: u64,
    ) -> Result<()> {
        self.until_all(runtime, workers, |reply| reply.steps >= steps)
    }

    /// Waits until so many workers take part, of as many, and what the job says of itself is enough.
    fn until_all(
        &mut self,
        runtime: &tokio::runtime::Runtime,
        workers: u32,
        enough: impl Fn(&DescribeReply) -> bool,
    ) -> Result<()> {
        self.wait_for(&format!("{workers} workers"), |job| {
            let reply = runtime.block_on(describe(&job.folder)).ok()?;
            (reply.workers == workers && reply.members == workers && enough(&reply)).then_some(())
        })
    }

    /// Waits until so many workers take part, of as many, and the job has taken so many more steps than now.
    pub(super) fn goes_on(
        &mut self,
        runtime: &tokio::runtime::Runtime,
        workers: u32,
        more: u64,
    ) -> Result<()> {
        let now = runtime.block_on(describe(&self.folder))?.steps;
        self.until(runtime, workers, now + more)
    }

    /// Waits until so many workers take part, of as many, and so many more samples are trained than now.
    pub(super) fn trains(
        &mut self,
        runtime: &tokio::runtime::Runtime,
        workers: u32,
        more: u64,
    ) -> Result<()> {
        let trained = |reply: &DescribeReply| reply.counts.as_ref().map_or(0, |counts| counts.acked);
        let now = trained(&runtime.block_on(describe(&self.folder))?);
        self.until_all(runtime, workers, |reply| trained(reply) >= now + more)
    }

    /// Changes the number of its servers, which stay as they are while others begin, and waits until others serve.
    pub(super) fn change_servers(&mut self, runtime: &tokio::runtime::Runtime, servers: u32) -> Result<()> {
        let before = self.nodes("server-");
        runtime.block_on(async { RemoteJob::find(Some(&self.folder))?.scale_servers(servers).await })?;
        self.wait_for(&format!("{servers} other servers"), |job| {
            let now = job.nodes("server-");
            let others = now.iter().all(|(node, pid)| before.get(node) != Some(pid));
            (now.len() == servers as usize && others).then_some(())
        })
    }

    /// The processes of its nodes of one kind, by the names of the nodes.
    pub(super) fn nodes(&self, kind: &str) -> BTreeMap<String, Pid> {
        children(Pid::from_child(&self.child)).into_iter().filter_map(|child| node(child, kind)).collect()
    }

    /// The process of a node, once there is one other than `before`.
    pub(super) fn node(&mut self, name: &str, before: Option<Pid>) -> Result<Pid> {
        self.wait_for(name, |job| job.nodes(name).get(name).copied().filter(|pid| Some(*pid) != before))
    }

    /// Ends its master and then all of its nodes, as a power cut would.
    pub(super) fn kill_whole(mut self) -> Result<()> {
        let nodes = [self.nodes("worker-"), self.nodes("server-")];
        self.child.kill()?;
        self.child.wait()?;
        for pid in nodes.iter().flat_map(BTreeMap::values) {
            // They would wait for another master; one may have ended by itself.
            let _ = send(*pid, Signal::KILL);
        }
        let deadline = Instant::now() + LIMIT;
        while nodes.iter().flat_map(BTreeMap::values).any(|pid| is_alive(*pid)) {
            if Instant::now() >= deadline {
                bail!("nodes live on after their master was killed; see {}", self.folder.display());
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Kills its master and starts another one, which takes the job over; the time until that one answers, in seconds.
    pub(super) fn next_master(&mut self, program: &Path, runtime: &tokio::runtime::Runtime) -> Result<f64> {
        self.child.kill()?;
        self.child.wait()?;
        let began = Instant::now();
        let resume = ["--resume".to_owned(), self.folder.display().to_string()];
        self.child = start(program, &resume, &self.folder)?;
        self.answers(runtime)?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Has another master wait, and kills or stops the one that is, until the other one answers; one that was stopped then goes on, and
    /// has to end by itself.
    pub(super) fn standby(
        &mut self,
        program: &Path,
        signal: Signal,
        runtime: &tokio::runtime::Runtime,
    ) -> Result<Followed> {
        let log = self.folder.join(STANDBY_LOG);
        let out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let folder = self.folder.display().to_string();
        let words = ["master".to_owned(), "--standby".to_owned(), folder];
        let next = program_with(program, &words, out)?;
        let mut old = std::mem::replace(&mut self.child, next);
        let ready = self.wait_for("a master in waiting", |_| {
            fs::read_to_string(&log).is_ok_and(|text| text.contains(WAITS)).then_some(())
        });
        let before = self.master();
        let (pid, began) = (Pid::from_child(&old), Instant::now());
        let hit = send(pid, signal).and(ready);
        let ended = (signal == Signal::KILL).then(|| old.wait());
        let after = hit.and_then(|()| {
            self.wait_for("the next master", |job| {
                let leads =
                    |master: &MasterFile| Some(master.pid) != before.as_ref().map(|before| before.pid);
                job.master().filter(leads)
            })
        });
        let answered = after.and_then(|after| self.answers(runtime).map(|()| after));
        let serving = began.elapsed().as_secs_f64();
        let mut harm = None;
        if ended.is_none() {
            // It may have ended by itself already.
            let _ = send(pid, Signal::CONT);
            let status = wait(old, LIMIT).context("a master that another one followed goes on")?;
            harm = status.success().then(|| "a master that another one followed ended well".to_owned());
        }
        ended.transpose()?;
        let (before, after) = (before.context("the job has no master")?.generation, answered?.generation);
        if after <= before {
            harm = Some(format!("master {before} was followed by master {after}"));
        }
        Ok(Followed { serving, harm })
    }

    /// The process of its master, by the run directory.
    fn master(&self) -> Option<MasterFile> {
        let text = fs::read_to_string(self.folder.join("run").join(MASTER)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Waits until its master answers.
    fn answers(&mut self, runtime: &tokio::runtime::Runtime) -> Result<()> {
        self.wait_for("an answer of the next master", |job| {
            runtime
                .block_on(async { RemoteJob::find(Some(&job.folder)).ok()?.describe().await.ok().map(drop) })
        })
    }

    /// Ends it in order, before it is done.
    pub(super) fn stop(self, runtime: &tokio::runtime::Runtime) -> Result<Report> {
        runtime.block_on(async { RemoteJob::find(Some(&self.folder))?.stop().await })?;
        // Its report comes last.
        wait(self.child, LIMIT)?;
        report(&self.folder)
    }

    /// Waits for its end, and counts.
    pub(super) fn finish(self) -> Result<Left> {
        let log = self.folder.join(LOG);
        let status = wait(self.child, LIMIT).with_context(|| format!("see {}", log.display()))?;
        if !status.success() {
            bail!("the job ended with {status}\n{}", last_lines(&log));
        }
        let report = report(&self.folder)?;
        let counts = counted(&self.folder)?.context("the job left no checkpoint")?;
        let expected = SAMPLES * u64::from(self.epochs);
        let short = (report.samples.expected != expected)
            .then(|| format!("{} samples were to be trained, not {expected}", report.samples.expected));
        let inexact = short.or_else(|| inexact(&report, Some(&counts), self.epochs));
        Ok(Left { report, inexact })
    }
}

/// What the job of a folder says of itself.
async fn describe(folder: &Path) -> Result<DescribeReply> {
    Ok(RemoteJob::find(Some(folder))?.describe().await?)
}

/// A process, if it is a node of this kind.
fn node(pid: Pid, kind: &str) -> Option<(String, Pid)> {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).ok()?;
    let variables = environment.split(|byte| *byte == 0);
    let name = variables.filter_map(|variable| variable.strip_prefix(b"ANTDT_NODE=")).next()?;
    let name = String::from_utf8(name.to_vec()).ok().filter(|name| name.starts_with(kind))?;
    Some((name, pid))
}

/// Sends a signal to a process of a job.
pub(super) fn send(pid: Pid, signal: Signal) -> Result<()> {
    kill_process(pid, signal).context("the process is gone already")
}

/// A job's newest whole checkpoint.
pub(super) fn newest(folder: &Path) -> Result<Checkpoint> {
    Folder::open(folder.join("run/checkpoints"))?.newest()?.checkpoint.context("the job left no checkpoint")
}
