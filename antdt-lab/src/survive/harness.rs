//! [`Bench`]: hurts the jobs, one cell after the other.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use antdt::report::{EventEntry, Report};
use antdt_core::Seed;
use antdt_job::SyncMode;
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal};

use super::cell::{Cell, Measured, What};
use super::etcd::Etcd;
use super::job::{Followed, Job, Left, NO_POLICY, Order, SAMPLES, newest, send};
use super::soak::{self, Soak};
use super::{large, pause, points, round};
use crate::Settings;
use crate::meter::Others;
use crate::tree::is_alive;

/// Samples of a step of all workers.
const GLOBAL_BATCH_SIZE: u32 = 48;
/// Workers of a job, unless it is scaled.
const WORKERS: u32 = 3;
/// Samples per second of a worker: steps of 100 ms, of which an epoch of the counting model has 25.
const SPEED: u32 = 160;
/// Samples per second of all workers, to say how long a job is.
const PACE: u64 = (SPEED * WORKERS) as u64;

/// How long the jobs are in which a worker stands still until it is found, those that go back to a checkpoint, and those that are killed
/// at any moment after one.
const STOPPED: Duration = Duration::from_secs(5);
const KEPT: Duration = Duration::from_millis(2500);
const CRASHED: Duration = Duration::from_secs(10);
/// The same of one whose server is found to be slow: a second of reports after as long of others, and what remains must be worth a
/// hand-over.
const SLOWED: Duration = Duration::from_millis(7500);

/// How a server of the job `repartition` is slow, and what makes the policy act on it within seconds: a server that is slow for a
/// twentieth of the long window stays so, no restart would cure it, and a pause to form a group costs next to nothing.
const SLOW_SERVER: &str = "server=1,slow=700";
const SLOW_SERVER_JOB: &str =
    "[policy.nd]\nrestart-cures = 0\nreform-pause = \"100ms\"\n\n[pace-rule.ratio]\nslow-fraction = 0.05\n";

/// Samples that the job trains between two deaths of workers: a second and a half.
const SAMPLES_BETWEEN_KILLS: u64 = PACE * 3 / 2;

/// The numbers of servers that a job of 2 has one after the other.
const SERVERS: [u32; 2] = [4, 1];

/// Rounds of the membership.
const ROUNDS: usize = 31;

/// A benchmark that runs.
pub(super) struct Bench<'a> {
    settings: &'a Settings,
    program: PathBuf,
    runtime: tokio::runtime::Runtime,
    jobs: u32,
}

impl<'a> Bench<'a> {
    pub(super) fn new(settings: &'a Settings) -> Result<Self> {
        let folder = settings.antdt.parent().context("the program under test has no folder")?;
        let program = folder.join("examples/counting");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { settings, program, runtime, jobs: 0 })
    }

    /// Does what a cell says.
    ///
    /// # Errors
    /// If a job cannot be run, or does not end as it should.
    pub(super) fn measure(&mut self, cell: &Cell) -> Result<Measured> {
        let mut measured = Measured::of(cell.clone());
        let name = cell.what.to_string();
        let watched = Others::watch();
        let m = &mut measured;
        match &cell.what {
            What::Kills(mode, kills) => self.kills(m, &mode.parse()?, *kills)?,
            What::Stop => self.stop(m)?,
            What::Hang => self.hang(m)?,
            What::Server(mode) => self.kill_server(m, &mode.parse()?)?,
            What::ScaleServers(mode) => self.scale_servers(m, &mode.parse()?)?,
            What::Repartition => self.repartition(m)?,
            What::AllWorkers => self.kill_all_workers(m)?,
            What::Master(mode) => self.kill_master(m, &mode.parse()?, false)?,
            What::Standby(mode) => self.kill_master(m, &mode.parse()?, true)?,
            What::Elected(mode) => self.elected(m, &mode.parse()?, Signal::KILL)?,
            What::Deposed(mode) => self.elected(m, &mode.parse()?, Signal::STOP)?,
            What::Whole => self.kill_whole(m)?,
            What::Scale(most) => self.scale(m, *most)?,
            What::Points(count) => {
                self.says(&name);
                let began = Instant::now();
                points::measure(m, *count);
                println!("{:>6.1} s", began.elapsed().as_secs_f64());
            }
            What::Crash(mode) => self.crash(m, &mode.parse()?, cell.number)?,
            What::Soak(mode, soak) => self.soak(m, &mode.parse()?, *soak)?,
            What::Goodput(lasting) => self.goodput(m, *lasting)?,
            What::Round(members) => {
                self.says(&name);
                let folder = self.folder(&format!("rounds-{members}"));
                m.figures = round::measure(*members, ROUNDS, &folder)?;
                println!("{:>6.1} ms", 1e3 * crate::meter::median(m.figures.iter().copied()));
            }
            What::Keep(bytes) => {
                self.says(&name);
                let folder = self.folder("large-kept");
                let kept = large::keep(&self.program, &folder, *bytes, &self.runtime)?;
                println!("{:>6.2} of dd", kept.speed);
                m.figures = vec![kept.held, kept.extra, kept.speed];
                m.beside = format!("dd with fsync: {:.0} MB/s", kept.disk / 1e6);
            }
            What::Join(bytes) => {
                self.says(&name);
                let folder = self.folder("large-joined");
                let (share, link) = large::join(&self.program, &folder, *bytes, &self.runtime)?;
                println!("{share:>6.2} of the link");
                m.figures = vec![share];
                m.beside = format!("emulated link, which carries {:.0} MB/s", link / 1e6);
            }
        }
        measured.others = watched.share();
        Ok(measured)
    }

    fn says(&self, what: &str) {
        print!("{what:<40}");
        // Progress only.
        let _ = io::stdout().flush();
    }

    /// The folder of the next job.
    fn folder(&mut self, what: &str) -> PathBuf {
        self.jobs += 1;
        self.settings.report_dir.join(format!("{}-{}", self.jobs, what.replace([',', ' '], "-")))
    }

    fn order(&mut self, what: &str, sync: &SyncMode, epochs: u32, arguments: &[String]) -> Order {
        self.says(what);
        let pace =
            ["--emulate-speed", &SPEED.to_string(), "--global-batch-size", &GLOBAL_BATCH_SIZE.to_string()];
        Order {
            program: self.program.clone(),
            folder: self.folder(what),
            sync: sync.to_string(),
            epochs,
            policy: NO_POLICY,
            arguments: pace.iter().map(|word| (*word).to_owned()).chain(arguments.iter().cloned()).collect(),
        }
    }

    /// Waits for the end of a job, and counts.
    fn finish(m: &mut Measured, job: Job) -> Result<Report> {
        let folder = job.folder.clone();
        let Left { report, inexact } = job.finish()?;
        println!("{:>6.1} s", report.job_completion_time_s);
        m.jobs += 1;
        m.inexact.extend(inexact.map(|why| format!("{}: {why}", folder.display())));
        Ok(report)
    }

    /// Counts the nodes that had these processes, and those of them that have them no more.
    fn keep_processes(m: &mut Measured, before: &BTreeMap<String, Pid>) -> Result<()> {
        m.survivors = u32::try_from(before.len())?;
        m.replaced = u32::try_from(before.values().filter(|pid| !is_alive(**pid)).count())?;
        Ok(())
    }

    /// Kills workers of a job of this mode one after the other, each when all take part.
    fn kills(&mut self, m: &mut Measured, sync: &SyncMode, kills: u32) -> Result<()> {
        let name = m.cell.what.to_string();
        let long = epochs(KEPT + 4 * Duration::from_secs(u64::from(kills.saturating_sub(1))));
        let order = self.order(&name, sync, long, &of_mode(sync, WORKERS));
        let mut job = Job::start(&order)?;
        let mut dead = Vec::new();
        for kill in 0..kills {
            // Each death on its own: the life that followed the last one has joined, and all have trained since.
            match kill {
                0 => job.until(&self.runtime, WORKERS, 1)?,
                _ => job.trains(&self.runtime, WORKERS, SAMPLES_BETWEEN_KILLS)?,
            }
            let victim = format!("worker-{}", 1 + kill % (WORKERS - 1));
            let before = job.nodes("");
            let pid = *before.get(&victim).with_context(|| format!("there is no {victim}"))?;
            send(pid, Signal::KILL)?;
            job.node(&victim, Some(pid))?;
            let after = job.nodes("");
            for (node, pid) in before.iter().filter(|(node, _)| **node != victim) {
                m.survivors += 1;
                m.replaced += u32::from(after.get(node) != Some(pid));
            }
            dead.push(format!("{victim}#{} ended", kill / (WORKERS - 1)));
        }
        let report = Self::finish(m, job)?;
        let mut deaths = vec![Vec::new(); WORKERS as usize];
        for (kill, dead) in (0..).zip(&dead) {
            let at = event(&report, "lost", dead).with_context(|| format!("the report has no `{dead}`"))?;
            deaths[1 + kill % (WORKERS as usize - 1)].push(at);
        }
        for (victim, times) in deaths.iter().enumerate() {
            let survivors = report.workers.iter().zip(&deaths).enumerate();
            for (_, (worker, own)) in survivors.filter(|(worker, _)| *worker != victim) {
                m.figures.extend(times.iter().filter_map(|at| pause::after(&worker.series, *at, own)));
            }
        }
        ensure!(!m.figures.is_empty(), "{name}: no survivor went on after a kill");
        Ok(())
    }

    /// Starts a job that takes a checkpoint every five steps, and waits until it has one.
    fn kept(&mut self, m: &Measured, sync: &SyncMode, lasting: Duration) -> Result<Job> {
        self.kept_with(m, sync, lasting, &[])
    }

    /// The same with further arguments.
    fn kept_with(
        &mut self,
        m: &Measured,
        sync: &SyncMode,
        lasting: Duration,
        more: &[String],
    ) -> Result<Job> {
        let often = ["--checkpoint-every", "5steps"].map(str::to_owned);
        let arguments = [&of_mode(sync, WORKERS), &often[..], more].concat();
        let order = self.order(&m.cell.what.to_string(), sync, epochs(lasting), &arguments);
        let mut job = Job::start(&order)?;
        job.until(&self.runtime, WORKERS, 1)?;
        job.wait_for("a checkpoint", |job| newest(&job.folder).ok())?;
        Ok(job)
    }

    /// Stops a worker for good; the time until its process is ended.
    fn stop(&mut self, m: &mut Measured) -> Result<()> {
        let sync: SyncMode = "allreduce".parse()?;
        let order = self.order(&m.cell.what.to_string(), &sync, epochs(STOPPED), &of_mode(&sync, WORKERS));
        let mut job = Job::start(&order)?;
        // The limit follows the steps, which are known after a few.
        job.until(&self.runtime, WORKERS, 10)?;
        let pid = job.node("worker-1", None)?;
        send(pid, Signal::STOP)?;
        let stopped = Instant::now();
        job.wait_for("the end of the process that stands still", |_| (!is_alive(pid)).then_some(()))?;
        m.figures.push(stopped.elapsed().as_secs_f64());
        Self::finish(m, job)?;
        Ok(())
    }

    /// Lets a training thread hang; the times from its last step until it is reported and until it is ended.
    fn hang(&mut self, m: &mut Measured) -> Result<()> {
        let sync: SyncMode = "allreduce".parse()?;
        // The emulated worker sleeps in the middle of a batch for thirty years, and its heartbeats go on.
        let hang = ["--straggler", "worker=1,slow=1e9,from=2s,restart=cures"].map(str::to_owned);
        let arguments = [of_mode(&sync, WORKERS), hang.to_vec()].concat();
        let order = self.order(&m.cell.what.to_string(), &sync, epochs(STOPPED), &arguments);
        let report = Self::finish(m, Job::start(&order)?)?;
        let series = &report.workers.get(1).context("there is no worker-1")?.series;
        let told = event(&report, "stalled", "worker-1#0").context("the hang was not reported")?;
        let ended = event(&report, "lost", "worker-1#0 hangs").context("the hang was not ended")?;
        let since = |at| pause::since_last(series, at).context("worker-1 took no step");
        m.figures = vec![since(told)?, since(ended)?];
        Ok(())
    }

    /// Kills a server; the time until any worker ends a batch again.
    fn kill_server(&mut self, m: &mut Measured, sync: &SyncMode) -> Result<()> {
        let mut job = self.kept(m, sync, KEPT)?;
        let before = job.nodes("worker-");
        let pid = job.node("server-1", None)?;
        send(pid, Signal::KILL)?;
        job.node("server-1", Some(pid))?;
        job.goes_on(&self.runtime, WORKERS, 2)?;
        Self::keep_processes(m, &before)?;
        let report = Self::finish(m, job)?;
        let at = event(&report, "lost", "server-1#0 ended").context("the report has no end of the server")?;
        m.figures.push(until_back(&report, at)?);
        m.beside = went_back(&report);
        Ok(())
    }

    /// Changes the number of servers of a job twice; the longest pauses of a worker after the two.
    fn scale_servers(&mut self, m: &mut Measured, sync: &SyncMode) -> Result<()> {
        let order = self.order(&m.cell.what.to_string(), sync, epochs(STOPPED), &of_mode(sync, WORKERS));
        let mut job = Job::start(&order)?;
        job.until(&self.runtime, WORKERS, 1)?;
        let before = job.nodes("worker-");
        for servers in SERVERS {
            job.change_servers(&self.runtime, servers)?;
            job.goes_on(&self.runtime, WORKERS, 2)?;
        }
        Self::keep_processes(m, &before)?;
        let report = Self::finish(m, job)?;
        m.figures = pauses_after(&report, "SCALE")?;
        ensure!(m.figures.len() == SERVERS.len(), "the report has {} changes", m.figures.len());
        m.inexact.extend(undone(&report));
        m.beside = went_back(&report);
        Ok(())
    }

    /// Has a job find one of its servers slow and give it a smaller share of the parameters; the longest pause of a worker after that.
    fn repartition(&mut self, m: &mut Measured) -> Result<()> {
        let sync: SyncMode = "ps-bsp".parse()?;
        let name = m.cell.what.to_string();
        let settings = self.settings.report_dir.join("slow-server.toml");
        fs::write(&settings, SLOW_SERVER_JOB)
            .with_context(|| format!("cannot write {}", settings.display()))?;
        let settings = settings.display().to_string();
        let slow = ["--job", &settings, "--straggler", SLOW_SERVER, "--heartbeat", "50ms"];
        // Before it has one, the time for which the servers would stand still is unknown.
        let often = ["--checkpoint-every", "5steps"];
        let more = slow.iter().chain(&often).map(|word| (*word).to_owned());
        let arguments: Vec<String> = of_mode(&sync, WORKERS).into_iter().chain(more).collect();
        let order = Order { policy: "nd", ..self.order(&name, &sync, epochs(SLOWED), &arguments) };
        let mut job = Job::start(&order)?;
        job.until(&self.runtime, WORKERS, 1)?;
        let before = job.nodes("worker-");
        let slow = job.node("server-1", None)?;
        job.node("server-1", Some(slow))?;
        job.goes_on(&self.runtime, WORKERS, 2)?;
        Self::keep_processes(m, &before)?;
        let report = Self::finish(m, job)?;
        m.figures = pauses_after(&report, "REPARTITION")?;
        ensure!(!m.figures.is_empty(), "{name}: the servers' shares stayed as they were");
        m.inexact.extend(undone(&report));
        m.beside = report
            .actions
            .iter()
            .find(|action| action.kind == "REPARTITION")
            .map(|action| action.reason.clone())
            .unwrap_or_default();
        Ok(())
    }

    fn kill_all_workers(&mut self, m: &mut Measured) -> Result<()> {
        let job = self.kept(m, &"allreduce".parse()?, KEPT)?;
        for pid in job.nodes("worker-").into_values() {
            send(pid, Signal::KILL)?;
        }
        let report = Self::finish(m, job)?;
        let at = event(&report, "lost", "#0 ended").context("the report has no end of a worker")?;
        m.figures.push(until_back(&report, at)?);
        m.beside = went_back(&report);
        Ok(())
    }

    /// Kills the master of a job. Another one is started then, or waits already; the times until that one answers, and until its
    /// first step.
    fn kill_master(&mut self, m: &mut Measured, sync: &SyncMode, waits: bool) -> Result<()> {
        let mut job = self.kept(m, sync, KEPT)?;
        let before = job.nodes("worker-");
        let serving = match waits {
            true => job.standby(&self.program, Signal::KILL, &self.runtime)?.serving,
            false => job.next_master(&self.program, &self.runtime)?,
        };
        job.until(&self.runtime, WORKERS, 1)?;
        Self::keep_processes(m, &before)?;
        let report = Self::finish(m, job)?;
        let first = pause::until_next(&report, 0.0).context("the job that is taken over took no step")?;
        m.figures = vec![serving, first];
        Ok(())
    }

    /// Kills or stops the master of a job of which etcd elects another one. The times until that one answers, and until its first
    /// step. A master that was stopped goes on then.
    fn elected(&mut self, m: &mut Measured, sync: &SyncMode, signal: Signal) -> Result<()> {
        let folder = self.settings.report_dir.join("etcd");
        let Some(etcd) = Etcd::start(&folder)? else {
            m.beside = "there is no etcd in the path".to_owned();
            return Ok(());
        };
        let elect = ["--elect".to_owned(), format!("etcd://{}", etcd.address)];
        let mut job = match self.kept_with(m, sync, KEPT, &elect) {
            Err(error) if format!("{error:#}").contains("without etcd") => {
                println!();
                m.beside = "the program was built without etcd, since there was no protoc".to_owned();
                return Ok(());
            }
            job => job?,
        };
        let before = job.nodes("worker-");
        let Followed { serving, harm } = job.standby(&self.program, signal, &self.runtime)?;
        job.until(&self.runtime, WORKERS, 1)?;
        Self::keep_processes(m, &before)?;
        m.inexact.extend(harm.map(|harm| format!("{}: {harm}", job.folder.display())));
        let report = Self::finish(m, job)?;
        let first = pause::until_next(&report, 0.0).context("the job that is taken over took no step")?;
        m.figures = vec![serving, first];
        Ok(())
    }

    /// Kills master and nodes at once and goes on with another number of workers; the time from the start of the second
    /// job to its first step.
    fn kill_whole(&mut self, m: &mut Measured) -> Result<()> {
        let sync: SyncMode = "allreduce".parse()?;
        let job = self.kept(m, &sync, KEPT)?;
        let report = self.resumed(m, job, &sync, "everything, resumed", 2, KEPT)?;
        let first = pause::until_next(&report, 0.0).context("the job that goes on took no step")?;
        m.figures.push(first);
        m.beside = report.resumed.context("the second job went on from nothing")?;
        Ok(())
    }

    /// Kills a job whole at a random moment after its first checkpoint and goes on with another number of workers. The
    /// parameters count how often each sample was trained: equal to those of a job that was never killed.
    fn crash(&mut self, m: &mut Measured, sync: &SyncMode, number: u32) -> Result<()> {
        let rng = &mut Seed(16).derive("crashes").derive_number(number.into()).rng();
        let job = self.kept(m, sync, CRASHED)?;
        std::thread::sleep(Duration::from_secs(3).mul_f64(rng.unit()));
        let workers = [2, 4, 5][usize::try_from(rng.below(3))?];
        let what = format!("crash {number}, {sync}, {workers} workers");
        self.resumed(m, job, sync, &what, workers, CRASHED)?;
        Ok(())
    }

    /// Kills a job whole and runs it to its end from its newest checkpoint.
    fn resumed(
        &mut self,
        m: &mut Measured,
        job: Job,
        sync: &SyncMode,
        what: &str,
        workers: u32,
        lasting: Duration,
    ) -> Result<Report> {
        let folder = job.folder.clone();
        job.kill_whole()?;
        println!();
        let resume = ["--resume".to_owned(), folder.display().to_string()];
        let arguments = [of_mode(sync, workers), resume.to_vec()].concat();
        let order = self.order(what, sync, epochs(lasting), &arguments);
        Self::finish(m, Job::start(&order)?)
    }

    /// Runs a job under all kinds of faults.
    fn soak(&mut self, m: &mut Measured, sync: &SyncMode, soak: Soak) -> Result<()> {
        m.chaos = Some(self.chaos(&format!("chaos, {sync}"), sync, epochs(soak.work()), soak)?);
        Ok(())
    }

    fn chaos(
        &mut self,
        what: &str,
        sync: &SyncMode,
        epochs: u32,
        soak: Soak,
    ) -> Result<antdt_chaos::ChaosReport> {
        let order = self.order(what, sync, epochs, &of_mode(sync, WORKERS));
        let mode = ["--sync".to_owned(), order.sync, "--epochs".to_owned(), epochs.to_string()];
        let arguments = [&mode[..], &order.arguments].concat();
        // What the job needs without a fault, and what faults may cost it; the chaos itself ends a job that stands still.
        let limit = Duration::from_secs(300 + 3 * u64::from(epochs) * SAMPLES / PACE) + 3 * soak.lasting;
        let report = soak::run(&order.program, &order.folder, 1, soak, limit, &arguments)?;
        println!("{:>6.1} s", report.lasted_s);
        Ok(report)
    }

    /// Runs a job with a fault a minute, and one without; the share of its samples a second that the first has.
    fn goodput(&mut self, m: &mut Measured, lasting: Duration) -> Result<()> {
        let sync: SyncMode = "allreduce".parse()?;
        let (calm, long) = (epochs(Duration::from_secs(30)), epochs(lasting));
        let undisturbed = self.chaos("goodput, no faults", &sync, calm, Soak::CALM)?;
        // Faults go on for as long as the job does.
        let faults = Soak { lasting: lasting * 3, mtbf: Duration::from_secs(60) };
        let disturbed = self.chaos("goodput, a fault a minute", &sync, long, faults)?;
        let each = |lasted: f64, epochs: u32| lasted / f64::from(epochs);
        let injected: u32 = disturbed.kinds.iter().map(|kind| kind.injected).sum();
        m.figures = vec![each(undisturbed.lasted_s, calm) / each(disturbed.lasted_s, long)];
        m.beside = format!("{injected} faults in {:.0} s", disturbed.lasted_s);
        m.inexact.extend(disturbed.violations.iter().chain(&undisturbed.violations).cloned());
        m.jobs = 2;
        Ok(())
    }

    /// Scales a job of one worker up and down again.
    fn scale(&mut self, m: &mut Measured, most: u32) -> Result<()> {
        let sync: SyncMode = "allreduce".parse()?;
        let stay = 3;
        let long = epochs(Duration::from_secs(10) * most / 8);
        let order = self.order(&m.cell.what.to_string(), &sync, long, &of_mode(&sync, 1));
        let folder = order.folder.clone();
        let mut job = Job::start(&order)?;
        job.until(&self.runtime, 1, 1)?;
        for workers in [most, stay] {
            let before = job.nodes("worker-");
            let runtime = &self.runtime;
            runtime
                .block_on(async { antdt::remote::RemoteJob::find(Some(&folder))?.scale(workers).await })?;
            job.goes_on(&self.runtime, workers, 2)?;
            let after = job.nodes("worker-");
            // Those with the lowest numbers stay; by their names, worker-10 comes before worker-2.
            let lowest = (0..workers).map(|number| format!("worker-{number}"));
            for (node, pid) in lowest.filter_map(|node| before.get_key_value(&node)) {
                m.survivors += 1;
                m.replaced += u32::from(after.get(node) != Some(pid));
            }
        }
        let report = Self::finish(m, job)?;
        let asked: Vec<f64> = report
            .actions
            .iter()
            .filter(|action| action.kind == "SCALE")
            .map(|action| action.time_s)
            .collect();
        ensure!(asked.len() == 2, "the report has {} changes of the number of workers", asked.len());
        let series = &report.workers.first().context("there is no worker-0")?.series;
        m.figures.push(asked.iter().filter_map(|at| pause::after(series, *at, &[])).fold(0.0, f64::max));
        m.beside = format!("1 -> {most} -> {stay} workers");
        Ok(())
    }
}

/// Time of the first event of a node that is told so, in seconds.
fn event(report: &Report, kind: &str, text: &str) -> Option<f64> {
    let is_it = |event: &&EventEntry| event.kind == kind && event.text.contains(text);
    report.events.iter().find(is_it).map(|event| event.time_s)
}

/// The longest pause of a worker after each action of this kind.
fn pauses_after(report: &Report, kind: &str) -> Result<Vec<f64>> {
    let actions = report.actions.iter().filter(|action| action.kind == kind);
    let of_each = actions.map(|action| {
        let pauses =
            report.workers.iter().filter_map(|worker| pause::after(&worker.series, action.time_s, &[]));
        pauses.max_by(f64::total_cmp).with_context(|| format!("nobody went on after the {kind}"))
    });
    of_each.collect()
}

/// Why a job whose servers handed over has undone steps, if it has.
fn undone(report: &Report) -> Option<String> {
    let back = |event: &&EventEntry| event.kind == "rollback" && event.text.starts_with("went back");
    let events = report.events.iter().filter(back);
    events.map(|event| event.text.clone()).find(|text| !text.contains(" 0 are trained again"))
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
    let samples = time.as_millis() * u128::from(PACE);
    u32::try_from(samples.div_ceil(u128::from(SAMPLES) * 1000)).unwrap_or(u32::MAX).max(1)
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

    #[test]
    fn a_job_is_as_long_as_its_faults_need() {
        assert_eq!(epochs(Duration::from_millis(2500)), 1);
        assert_eq!(epochs(Duration::from_millis(2501)), 2);
        assert_eq!(epochs(Duration::from_secs(11)), 5);
    }
}
