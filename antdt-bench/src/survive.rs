//! What a death costs: real jobs whose workers, servers or masters are killed, stopped or hang, and whose number of workers
//! changes while they run.
//!
//! The jobs train the counting model of `antdt/examples/counting.rs`: parameter `n` of the trained model is the number of times that
//! sample `n` is in it, so that a job is counted apart from its ledger. Times are those of the report, or of this process
//! where the report cannot know: when a process was stopped.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use antdt::report::{EventEntry, Report};
use antdt_core::{Barrier, Seed};
use antdt_job::SyncMode;
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::meter::{Others, median, quantile};
use crate::{Entry, Rows, Settings};

mod job;
mod pause;
mod soak;

use job::{Job, Left, Order, SAMPLES, is_alive, newest, send};
use soak::Soak;

/// Samples of a step of all workers.
const GLOBAL_BATCH_SIZE: u32 = 24;
/// Workers of a job, unless it is scaled.
const WORKERS: u32 = 3;
/// Samples per second of a worker: steps of 100 ms.
const SPEED: u32 = 80;
/// Samples per second of all workers, to say how long a job is.
const PACE: u64 = (SPEED * WORKERS) as u64;

/// The targets of issue and contract: pauses of those that live, in seconds.
const PAUSE_P50: f64 = 1.0;
const PAUSE_P95: f64 = 2.0;
/// From `SIGSTOP` until the process is ended, in seconds, 95 %.
const SILENCE_P95: f64 = 2.0;
/// From the last sign of a training thread that hangs until it is reported: this long, or so many of its steps, in seconds.
const HANG: f64 = 2.0;

/// Longest time from the start of another master until it answers, in seconds.
const SERVING: f64 = 1.0;

/// How long the jobs are that go back to a checkpoint.
const KEPT: Duration = Duration::from_secs(6);

/// Share of the cores that others may take before a missed target counts as not measured.
const OTHERS_MAX: f64 = 0.5;

/// How often things die.
struct Scale {
    /// Kills of workers in a job of each mode.
    kills: u32,
    /// Jobs of each mode.
    jobs: u32,
    /// Jobs in which a worker is stopped.
    stops: u32,
    /// Jobs in which a training thread hangs, a server, all workers or everything is killed.
    others: u32,
    /// Most workers of the job that is scaled.
    workers: u32,
    /// Jobs that are killed whole at a random moment and resumed with another number of workers.
    crashes: u32,
    /// Jobs under chaos: how many of the modes below, and for how long.
    soaks: usize,
    soak: Soak,
}

/// Modes of the jobs under chaos.
const SOAKED: [&str; 5] = ["ps-bsp", "allreduce", "ps-asp", "local-sgd=4", "ad-psgd"];

impl Scale {
    const QUICK: Self =
        Self { kills: 1, jobs: 1, stops: 1, others: 1, workers: 8, crashes: 0, soaks: 1, soak: Soak::QUICK };
    const FULL: Self = Self {
        kills: 5,
        jobs: 4,
        stops: 10,
        others: 5,
        workers: 16,
        crashes: 10,
        soaks: 5,
        soak: Soak::CORE,
    };
    /// As core, with chaos for as long as the target says.
    const WHOLE: Self = Self { crashes: 50, soaks: 2, soak: Soak::FULL, ..Self::FULL };
}

/// What all jobs of the benchmark have shown.
#[derive(Debug, Default)]
struct Found {
    jobs: u32,
    inexact: Vec<String>,
    kills: u32,
    pauses: Vec<f64>,
    /// Survivors of a kill, and those of them whose process was another afterwards.
    survivors: u32,
    replaced: u32,
}

/// A benchmark that runs.
struct Bench<'a> {
    settings: &'a Settings,
    program: PathBuf,
    runtime: tokio::runtime::Runtime,
    found: Found,
    jobs: u32,
}

/// Runs the benchmark.
///
/// # Errors
/// If a job cannot be run, or does not end as it should.
pub fn run(settings: &Settings, rows: &mut Rows) -> Result<()> {
    let scale = match (settings.quick, settings.full) {
        (true, _) => Scale::QUICK,
        (false, false) => Scale::FULL,
        (false, true) => Scale::WHOLE,
    };
    let folder = settings.antdt.parent().context("the program under test has no folder")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let program = folder.join("examples/counting");
    let mut bench = Bench { settings, program, runtime, found: Found::default(), jobs: 0 };
    let watched = Others::watch();
    for sync in SyncMode::examples() {
        for _ in 0..scale.jobs {
            rows.push(bench.kills(&sync, scale.kills)?);
        }
    }
    let others = watched.share();
    rows.extend(pauses(&mut bench.found).into_iter().map(|row| row.unless_overloaded(others, OTHERS_MAX)));
    let watched = Others::watch();
    let stopped = (0..scale.stops).map(|_| bench.stop()).collect::<Result<Vec<f64>>>()?;
    rows.push(silence(&stopped).unless_overloaded(watched.share(), OTHERS_MAX));
    let hung = (0..scale.others).map(|_| bench.hang()).collect::<Result<Vec<_>>>()?;
    rows.extend(hangs(&hung));
    for _ in 0..scale.others {
        rows.extend(bench.kill_server()?);
        rows.push(bench.kill_all_workers()?);
        rows.extend(bench.kill_master()?);
        rows.push(bench.kill_whole()?);
    }
    rows.extend(bench.scale(scale.workers)?);
    if scale.crashes > 0 {
        rows.push(bench.crashes(scale.crashes)?);
    }
    rows.push(exactness(&bench.found));
    rows.extend(bench.soak(&SOAKED[..scale.soaks], scale.soak)?);
    Ok(())
}

/// The share of survivors with their processes, and their pauses.
fn pauses(found: &mut Found) -> Vec<Entry> {
    let Found { kills, survivors, replaced, .. } = *found;
    let mut times: Vec<Duration> = found.pauses.iter().map(|s| Duration::from_secs_f64(*s)).collect();
    let p95 = quantile(&mut times, 0.95).as_secs_f64();
    let of = format!("{} pauses of survivors of {kills} kills", times.len());
    let kept = 100.0 * f64::from(survivors - replaced) / f64::from(survivors);
    vec![
        Entry::shown("kill -9 of a worker: survivors that keep their process", kept, "%")
            .at_least(100.0)
            .beside(format!("{replaced} of {survivors} did not")),
        Entry::shown("kill -9 of a worker: pause, median", median(found.pauses.iter().copied()), "s")
            .at_most(PAUSE_P50)
            .beside(of.clone()),
        Entry::shown("kill -9 of a worker: pause, 95 %", p95, "s").at_most(PAUSE_P95).beside(of),
    ]
}

fn silence(stopped: &[f64]) -> Entry {
    let mut times: Vec<Duration> = stopped.iter().map(|s| Duration::from_secs_f64(*s)).collect();
    let p95 = quantile(&mut times, 0.95).as_secs_f64();
    Entry::shown("kill -STOP of a worker: until it is ended, 95 %", p95, "s")
        .at_most(SILENCE_P95)
        .beside(format!("{} stops; torchft's heartbeats alone take 5.03 s", stopped.len()))
}

/// From the last step of a training thread that hangs until it is reported, and until its process is ended.
fn hangs(hung: &[(f64, f64)]) -> [Entry; 2] {
    let of = format!("{} hangs, the slowest", hung.len());
    let worst = |of: fn(&(f64, f64)) -> f64| hung.iter().map(of).fold(0.0, f64::max);
    [
        Entry::shown("hang of a training thread: until it is reported", worst(|hang| hang.0), "s")
            .at_most(HANG)
            .beside(of.clone()),
        Entry::shown("hang of a training thread: until it is ended", worst(|hang| hang.1), "s").beside(of),
    ]
}

fn exactness(found: &Found) -> Entry {
    let first =
        found.inexact.first().cloned().unwrap_or_else(|| "counted by the model and by the ledger".to_owned());
    #[allow(clippy::cast_precision_loss, reason = "a handful")]
    Entry::shown(format!("jobs that are not exact, of {}", found.jobs), found.inexact.len() as f64, "jobs")
        .at_most(0.0)
        .beside(first)
}

/// Time of the first event of a node that is told so, in seconds.
fn event(report: &Report, kind: &str, text: &str) -> Option<f64> {
    let is_it = |event: &&EventEntry| event.kind == kind && event.text.contains(text);
    report.events.iter().find(is_it).map(|event| event.time_s)
}

/// The usual arguments of a mode, with so many workers.
fn of_mode(sync: &SyncMode, workers: u32) -> Vec<String> {
    let mut arguments = vec!["--nproc-per-node".to_owned(), workers.to_string()];
    if sync.capabilities().needs_servers() {
        arguments.extend(["--servers".to_owned(), "2".to_owned()]);
    }
    arguments
}

/// Epochs that take a job of [`WORKERS`] so long.
fn epochs(time: Duration) -> u32 {
    u32::try_from((time.as_secs() * PACE).div_ceil(SAMPLES)).unwrap_or(u32::MAX).max(1)
}

impl Bench<'_> {
    fn order(&mut self, what: &str, sync: &SyncMode, epochs: u32, arguments: &[String]) -> Order {
        self.jobs += 1;
        print!("{what:<40}");
        // Progress only.
        let _ = io::stdout().flush();
        let pace =
            ["--emulate-speed", &SPEED.to_string(), "--global-batch-size", &GLOBAL_BATCH_SIZE.to_string()];
        Order {
            program: self.program.clone(),
            folder: self.settings.report_dir.join(format!("{}-{}", self.jobs, what.replace([',', ' '], "-"))),
            averages: sync.capabilities().averages_models(),
            sync: sync.to_string(),
            epochs,
            arguments: pace.iter().map(|word| (*word).to_owned()).chain(arguments.iter().cloned()).collect(),
        }
    }

    fn finish(&mut self, job: Job) -> Result<Report> {
        let folder = job.folder.clone();
        let Left { report, inexact } = job.finish()?;
        println!("{:>6.1} s", report.job_completion_time_s);
        self.found.jobs += 1;
        self.found.inexact.extend(inexact.map(|why| format!("{}: {why}", folder.display())));
        Ok(report)
    }

    /// Kills workers of a job of this mode one after the other, each when all take part.
    fn kills(&mut self, sync: &SyncMode, kills: u32) -> Result<Entry> {
        let name = sync.to_string();
        let long = epochs(Duration::from_secs(2 + 3 * u64::from(kills)));
        let order = self.order(&format!("kills, {name}"), sync, long, &of_mode(sync, WORKERS));
        let mut job = Job::start(&order)?;
        let mut dead = Vec::new();
        for kill in 0..kills {
            job.until(&self.runtime, WORKERS, 1)?;
            let victim = format!("worker-{}", 1 + kill % (WORKERS - 1));
            let before = job.nodes("");
            let pid = *before.get(&victim).with_context(|| format!("there is no {victim}"))?;
            send(pid, Signal::KILL)?;
            job.node(&victim, Some(pid))?;
            let after = job.nodes("");
            for (node, pid) in before.iter().filter(|(node, _)| **node != victim) {
                self.found.survivors += 1;
                self.found.replaced += u32::from(after.get(node) != Some(pid));
            }
            dead.push(format!("{victim}#{} ended", kill / (WORKERS - 1)));
        }
        let report = self.finish(job)?;
        let mut pauses = Vec::new();
        for (kill, dead) in (0..).zip(&dead) {
            let at = event(&report, "lost", dead).with_context(|| format!("the report has no `{dead}`"))?;
            let victim = 1 + kill % (WORKERS as usize - 1);
            let survivors = report.workers.iter().enumerate().filter(|(worker, _)| *worker != victim);
            pauses.extend(survivors.filter_map(|(_, worker)| pause::after(&worker.series, at)));
        }
        ensure!(!pauses.is_empty(), "no survivor went on after a kill in {name}");
        self.found.kills += kills;
        self.found.pauses.extend(&pauses);
        let waits = if sync.capabilities().barrier == Barrier::Nobody { "nobody waits; " } else { "" };
        Ok(Entry::shown(
            format!("kill -9 of a worker, {name}: longest pause"),
            pauses.iter().copied().fold(0.0, f64::max),
            "s",
        )
        .beside(format!("{waits}{kills} kills")))
    }

    /// Starts a job that takes a checkpoint every ten steps, and waits until it has one.
    fn kept(&mut self, what: &str, sync: &SyncMode) -> Result<Job> {
        let often = ["--checkpoint-every", "10steps"].map(str::to_owned);
        let arguments = [of_mode(sync, WORKERS), often.to_vec()].concat();
        let order = self.order(&format!("{what}, {sync}"), sync, epochs(KEPT), &arguments);
        let mut job = Job::start(&order)?;
        job.until(&self.runtime, WORKERS, 1)?;
        job.wait_for("a checkpoint", |job| newest(&job.folder).ok())?;
        Ok(job)
    }

    /// Stops a worker for good; the time until its process is ended.
    fn stop(&mut self) -> Result<f64> {
        let sync: SyncMode = "allreduce".parse()?;
        let long = epochs(Duration::from_secs(8));
        let order = self.order("stop, allreduce", &sync, long, &of_mode(&sync, WORKERS));
        let mut job = Job::start(&order)?;
        // The limit follows the steps, which are known after a few.
        job.until(&self.runtime, WORKERS, 10)?;
        let pid = job.node("worker-1", None)?;
        send(pid, Signal::STOP)?;
        let stopped = Instant::now();
        job.wait_for("the end of the process that stands still", |_| (!is_alive(pid)).then_some(()))?;
        let took = stopped.elapsed().as_secs_f64();
        self.finish(job)?;
        Ok(took)
    }

    /// Lets a training thread hang; the times from its last step until it is reported and until it is ended.
    fn hang(&mut self) -> Result<(f64, f64)> {
        let sync: SyncMode = "allreduce".parse()?;
        let long = epochs(Duration::from_secs(8));
        // The emulated worker sleeps in the middle of a batch for thirty years, and its heartbeats go on.
        let hang = ["--straggler", "worker=1,slow=1e9,from=3s,restart=cures"].map(str::to_owned);
        let arguments = [of_mode(&sync, WORKERS), hang.to_vec()].concat();
        let order = self.order("hang, allreduce", &sync, long, &arguments);
        let job = Job::start(&order)?;
        let report = self.finish(job)?;
        let series = &report.workers.get(1).context("there is no worker-1")?.series;
        let told = event(&report, "stalled", "worker-1#0").context("the hang was not reported")?;
        let ended = event(&report, "lost", "worker-1#0 hangs").context("the hang was not ended")?;
        let since = |at| pause::since_last(series, at).context("worker-1 took no step");
        Ok((since(told)?, since(ended)?))
    }

    /// Kills a server; the time until anybody ends a batch again, in each kind of mode.
    fn kill_server(&mut self) -> Result<Vec<Entry>> {
        let mut rows = Vec::new();
        for name in ["ps-bsp", "ps-asp"] {
            let sync: SyncMode = name.parse()?;
            let mut job = self.kept("server", &sync)?;
            let pid = job.node("server-1", None)?;
            send(pid, Signal::KILL)?;
            let report = self.finish(job)?;
            let at =
                event(&report, "lost", "server-1#0 ended").context("the report has no end of the server")?;
            let until = until_back(&report, at)?;
            rows.push(
                Entry::shown(format!("kill -9 of a server, {name}: until the next step"), until, "s")
                    .beside(went_back(&report)),
            );
        }
        Ok(rows)
    }

    fn kill_all_workers(&mut self) -> Result<Entry> {
        let sync: SyncMode = "allreduce".parse()?;
        let job = self.kept("all workers", &sync)?;
        for pid in job.nodes("worker-").into_values() {
            send(pid, Signal::KILL)?;
        }
        let report = self.finish(job)?;
        let at = event(&report, "lost", "#0 ended").context("the report has no end of a worker")?;
        let until = until_back(&report, at)?;
        Ok(Entry::shown("kill -9 of all workers, allreduce: until the next step", until, "s")
            .beside(went_back(&report)))
    }

    /// Kills the master of a job and starts another one; the time until that one answers, in each kind of mode.
    fn kill_master(&mut self) -> Result<Vec<Entry>> {
        let mut rows = Vec::new();
        for name in ["ps-bsp", "allreduce"] {
            let sync: SyncMode = name.parse()?;
            let mut job = self.kept("master", &sync)?;
            let before = job.nodes("worker-");
            let serving = job.next_master(&self.program, &self.runtime)?;
            job.until(&self.runtime, WORKERS, 1)?;
            let kept = before.values().filter(|pid| is_alive(**pid)).count();
            let report = self.finish(job)?;
            let first = pause::until_next(&report, 0.0).context("the job that is taken over took no step")?;
            let beside = format!(
                "{kept} of {} workers keep their process; first step after {first:.2} s",
                before.len()
            );
            let what = format!("kill -9 of the master, {name}, --resume: until the next one answers");
            rows.push(Entry::shown(what, serving, "s").at_most(SERVING).beside(beside));
        }
        Ok(rows)
    }

    /// Kills master and nodes at once and goes on with another number of workers; the time from the start of the second
    /// job to its first step.
    fn kill_whole(&mut self) -> Result<Entry> {
        let sync: SyncMode = "allreduce".parse()?;
        let job = self.kept("everything", &sync)?;
        let folder = job.folder.clone();
        job.kill_whole()?;
        println!();
        let resume = ["--resume".to_owned(), folder.display().to_string()];
        let arguments = [of_mode(&sync, 2), resume.to_vec()].concat();
        let order = self.order("everything, resumed", &sync, epochs(KEPT), &arguments);
        let job = Job::start(&order)?;
        let report = self.finish(job)?;
        let first = pause::until_next(&report, 0.0).context("the job that goes on took no step")?;
        let from = report.resumed.context("the second job went on from nothing")?;
        Ok(Entry::shown("kill -9 of everything, --resume: until the first step", first, "s").beside(from))
    }

    /// Kills jobs of all modes whole at a random moment after their first checkpoint and goes on with another number of workers. The
    /// parameters count how often each sample was trained: equal to those of a job that was never killed.
    fn crashes(&mut self, crashes: u32) -> Result<Entry> {
        let rng = &mut Seed(16).derive("crashes").rng();
        let inexact = self.found.inexact.len();
        for (crash, sync) in (0..crashes).zip(SyncMode::examples().into_iter().cycle()) {
            let job = self.kept("crash", &sync)?;
            std::thread::sleep(Duration::from_secs(3).mul_f64(rng.unit()));
            let folder = job.folder.clone();
            job.kill_whole()?;
            println!();
            let workers = [2, 4, 5][usize::try_from(rng.below(3)).unwrap_or(0)];
            let resume = ["--resume".to_owned(), folder.display().to_string()];
            let arguments = [of_mode(&sync, workers), resume.to_vec()].concat();
            let what = format!("crash {crash}, {sync}, {workers} workers");
            let order = self.order(&what, &sync, epochs(KEPT), &arguments);
            let job = Job::start(&order)?;
            self.finish(job)?;
        }
        let wrong = self.found.inexact.len() - inexact;
        #[allow(clippy::cast_precision_loss, reason = "a handful")]
        let row =
            Entry::shown("kill -9 of everything, 2 to 5 workers resume: not exact", wrong as f64, "jobs");
        Ok(row.at_most(0.0).beside(format!("of {crashes}, at random moments, all modes")))
    }

    /// Runs jobs of some modes under all kinds of faults.
    fn soak(&mut self, modes: &[&str], soak: Soak) -> Result<Vec<Entry>> {
        let mut soaks = Vec::new();
        for (seed, name) in (1..).zip(modes) {
            let sync: SyncMode = name.parse()?;
            // Half of the time goes to what the faults cost.
            let order = self.order(
                &format!("chaos, {name}"),
                &sync,
                epochs(soak.lasting / 2),
                &of_mode(&sync, WORKERS),
            );
            let mode = ["--sync".to_owned(), order.sync, "--epochs".to_owned(), order.epochs.to_string()];
            let arguments = [&mode[..], &order.arguments].concat();
            let report = soak::run(&order.program, &order.folder, seed, soak, &arguments)?;
            println!("{:>6.1} s", report.lasted_s);
            soaks.push(((*name).to_owned(), report));
        }
        Ok(soak::rows(&soaks))
    }

    /// Scales a job of one worker up and down again.
    fn scale(&mut self, most: u32) -> Result<Vec<Entry>> {
        let sync: SyncMode = "allreduce".parse()?;
        let stay = 3;
        let order =
            self.order("scale, allreduce", &sync, epochs(Duration::from_secs(24)), &of_mode(&sync, 1));
        let folder = order.folder.clone();
        let mut job = Job::start(&order)?;
        job.until(&self.runtime, 1, 1)?;
        let mut kept = true;
        for workers in [most, stay] {
            let before = job.nodes("worker-");
            let runtime = &self.runtime;
            runtime
                .block_on(async { antdt::remote::RemoteJob::find(Some(&folder))?.scale(workers).await })?;
            job.until(&self.runtime, workers, 1)?;
            let after = job.nodes("worker-");
            kept &= before.iter().take(workers as usize).all(|(node, pid)| after.get(node) == Some(pid));
        }
        let report = self.finish(job)?;
        let asked: Vec<f64> = report
            .actions
            .iter()
            .filter(|action| action.kind == "SCALE")
            .map(|action| action.time_s)
            .collect();
        ensure!(asked.len() == 2, "the report has {} changes of the number of workers", asked.len());
        let series = &report.workers.first().context("there is no worker-0")?.series;
        let longest = asked.iter().filter_map(|at| pause::after(series, *at)).fold(0.0, f64::max);
        let name = format!("1 -> {most} -> {stay} workers");
        Ok(vec![
            Entry::shown(
                format!("{name}: workers that stay keep their processes"),
                f64::from(u8::from(kept)),
                "",
            )
            .at_least(1.0),
            Entry::shown(format!("{name}: longest pause of worker-0"), longest, "s").at_most(PAUSE_P95),
        ])
    }
}

/// Time from the end of a process until the first batch that ends after the job has gone back, in seconds.
fn until_back(report: &Report, at: f64) -> Result<f64> {
    let back = event(report, "rollback", "went back to").context("the job did not go back")?;
    Ok(back - at + pause::until_next(report, back).context("nobody went on")?)
}

/// What the report says of the rollback.
fn went_back(report: &Report) -> String {
    let mut events = report.events.iter().rev().filter(|event| event.kind == "rollback");
    events.next().map(|event| event.text.clone()).unwrap_or_else(|| "it did not go back".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::State;

    #[test]
    fn each_promise_that_is_broken_fails_its_row() {
        let states = |found: Found| pauses(&mut { found }).iter().map(|row| row.state).collect::<Vec<_>>();
        let found = |pauses: &[f64], replaced| Found {
            kills: 2,
            survivors: 4,
            replaced,
            pauses: pauses.to_vec(),
            ..Found::default()
        };
        assert_eq!(states(found(&[0.1, 0.2, 0.3], 0)), [State::Ok; 3]);
        assert_eq!(states(found(&[0.1, 0.2, 2.3], 0)), [State::Ok, State::Ok, State::Failed]);
        assert_eq!(states(found(&[0.1, 1.2, 1.3], 1)), [State::Failed, State::Failed, State::Ok]);
        assert_eq!(silence(&[1.0, 2.1]).state, State::Failed);
        assert_eq!(silence(&[1.0, 1.9]).state, State::Ok);
        assert_eq!(hangs(&[(1.6, 3.0), (2.4, 3.0)])[0].state, State::Failed);
        let exact = |inexact: &[&str]| {
            let inexact = inexact.iter().map(|why| (*why).to_owned()).collect();
            exactness(&Found { jobs: 3, inexact, ..Found::default() }).state
        };
        assert_eq!((exact(&[]), exact(&["sample 7 is 3 times in the model"])), (State::Ok, State::Failed));
    }

    #[test]
    fn a_job_is_as_long_as_what_is_to_happen_in_it() {
        assert_eq!(epochs(Duration::from_secs(5)), 1);
        assert_eq!(epochs(Duration::from_secs(11)), 3);
    }
}
