//! Carries out a schedule of faults on a real job, and waits until the job ends.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use antdt_core::Seed;
use antdt_rt::CancellationToken;
use nix::sys::signal::Signal;

use super::cgroup::Group;
use super::disk::Disks;
use super::hang::Hang;
use super::job::{Node, RealJob, describe, is_alive, listens_at, ports, send};
use super::packet::Effect;
use super::rpc::Trouble;
use super::seen::{LOOK, Seen, ask, status};
use super::strangers::Strangers;
use super::tools::{Told, Tools};
use super::{COUNTING, ChaosError, ChaosRun, FILE};
use crate::ChaosKind;
use crate::count;
use crate::{ChaosFault, ChaosPlan, ChaosSchedule, ChaosStep};
use crate::{ChaosReport, FaultEntry, KindEntry};
use antdt::report::Report;

/// How long the job may take until all workers train.
const BEGIN: Duration = Duration::from_secs(120);

/// How long a fault waits for a node that it can hit.
const WAITS: Duration = Duration::from_secs(10);

/// How long a process without memory may live until it is killed as the kernel would.
const STARVES: Duration = Duration::from_secs(2);

/// Pause before another master is started after one that ended by itself.
const AGAIN: Duration = Duration::from_millis(500);

/// Masters that may end by themselves one after the other while nothing is trained.
const ENDS_MAX: u32 = 8;

/// How long after a disk was full a master may end because of it.
const EXCUSED: Duration = Duration::from_secs(30);

/// Why a fault does not happen whose tool this machine lacks.
const MISSING: &str = "the means for it are missing";

/// A fault that lasts.
#[derive(Debug)]
enum Active {
    Stopped(i32),
    Hanging(#[allow(dead_code, reason = "ends when it is dropped")] Hang),
    Slowed(#[allow(dead_code, reason = "ends when it is dropped")] Group),
    Link(i32),
    Strangers(Strangers),
    Calls(u64),
    Disk,
    Clock,
    Master,
}

/// A process that has no memory.
#[derive(Debug)]
struct Starving {
    group: Option<Group>,
    pid: i32,
    since: Duration,
    fault: u32,
}

/// The job and what happens to it.
pub(super) struct Driver<'a> {
    chaos: &'a ChaosRun,
    dir: PathBuf,
    job: RealJob,
    say: &'a mut (dyn FnMut(String) + Send),
    schedule: ChaosSchedule,
    began: Instant,
    active: BTreeMap<u32, Active>,
    waiting: Vec<(ChaosFault, String)>,
    starving: Vec<Starving>,
    entries: Vec<FaultEntry>,
    violations: Vec<String>,
    /// When the last disk fault ended.
    disk: Option<Duration>,
    /// When a master is started again, and how many have ended by themselves since something was trained.
    again: Option<Duration>,
    ends: u32,
    /// After the job: what it leans on goes last.
    tools: Tools,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        chaos: &'a ChaosRun,
        dir: PathBuf,
        tools: Tools,
        told: Told,
        say: &'a mut (dyn FnMut(String) + Send),
    ) -> Self {
        let spec = &chaos.spec;
        let name = spec.job_id.clone();
        let name = name.unwrap_or_else(|| format!("chaos-{}-{}", chaos.plan.seed, std::process::id()));
        let run_dir = told.run_dir.or_else(|| spec.run_dir.clone()).unwrap_or_else(|| dir.join("run"));
        let mut job = RealJob::new(chaos.program.clone(), name, run_dir, dir.join("job.log"));
        job.variables = told.variables;
        job.arguments = told.arguments;
        let own = [
            ("job-id", job.name.clone()),
            ("report-dir", dir.display().to_string()),
            ("checkpoint-every", "3s".to_owned()),
        ];
        for (name, text) in own.into_iter().filter(|(name, _)| !chaos.given.contains(name)) {
            job.arguments.extend([format!("--{name}"), text]);
        }
        job.arguments.extend(chaos.arguments.iter().cloned());
        let possible = chaos.plan.kinds.iter().filter(|kind| !tools.missing.contains_key(kind));
        let schedule =
            ChaosSchedule::draw(&ChaosPlan { kinds: possible.copied().collect(), ..chaos.plan.clone() });
        Self {
            chaos,
            dir,
            job,
            say,
            schedule,
            began: Instant::now(),
            active: BTreeMap::new(),
            waiting: Vec::new(),
            starving: Vec::new(),
            entries: Vec::new(),
            violations: Vec::new(),
            disk: None,
            again: None,
            ends: 0,
            tools,
        }
    }

    /// Runs the job to its end.
    pub(super) async fn run(mut self, stop: &CancellationToken) -> Result<ChaosReport, ChaosError> {
        for (kind, why) in self.tools.missing.iter().filter(|(kind, _)| self.chaos.plan.kinds.contains(kind))
        {
            (self.say)(format!("skipped {kind}: {why}"));
        }
        self.start()?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let asking = tokio::spawn(ask(self.job.run_dir.clone(), self.chaos.spec.workers, Arc::clone(&seen)));
        let done = self.drive(&seen, stop).await;
        asking.abort();
        let outcome = done?;
        let lasted = self.began.elapsed();
        self.job.end();
        self.finish(outcome, lasted)
    }

    fn start(&mut self) -> Result<(), ChaosError> {
        let source = match self.job.start() {
            Ok(anew) => {
                if anew {
                    let at = self.began.elapsed().as_secs_f64();
                    (self.say)(format!("{at:8.1} s  there is no checkpoint yet: the job begins anew"));
                }
                return Ok(());
            }
            Err(source) => source,
        };
        Err(ChaosError::Start { program: self.chaos.program.clone(), source })
    }

    async fn drive(&mut self, seen: &Mutex<Seen>, stop: &CancellationToken) -> Result<String, ChaosError> {
        let seen = || *seen.lock().unwrap_or_else(PoisonError::into_inner);
        while !seen().begun {
            let failed = match self.job.ended() {
                Ok(None) if self.began.elapsed() < BEGIN => None,
                Ok(None) => Some(format!("not within {} s", BEGIN.as_secs())),
                Ok(Some(status)) => Some(format!("{}, {}", describe(status), self.job.last_words())),
                Err(error) => Some(error.to_string()),
            };
            if let Some(why) = failed {
                return Err(ChaosError::NotBegun { why, log: self.job.log.clone() });
            }
            look(stop).await?;
        }
        self.began = Instant::now();
        let (mut trained, mut last) = (seen().trained, Duration::ZERO);
        loop {
            let now = self.began.elapsed();
            if let Some(outcome) = self.master(now)? {
                return Ok(outcome);
            }
            while let Some(step) = self.schedule.due(now) {
                match step {
                    ChaosStep::Begin(fault) => self.begin(fault, now),
                    ChaosStep::End(fault) => self.end(fault, now)?,
                }
            }
            for (fault, _) in std::mem::take(&mut self.waiting) {
                self.begin(fault, now);
            }
            self.look_after(now);
            if seen().trained != trained {
                (trained, last, self.ends) = (seen().trained, now, 0);
            }
            if now.saturating_sub(last) > self.chaos.patience {
                let (for_s, said) = (self.chaos.patience.as_secs(), self.job.last_words());
                let found = status(&self.job.run_dir).await;
                self.violations
                    .push(format!("the job has trained nothing for {for_s} s; it said: {said}\n{found}"));
                return Ok("stands still".to_owned());
            }
            look(stop).await?;
        }
    }

    /// Starts a master again that ended by itself; says how the job ended if it did.
    fn master(&mut self, now: Duration) -> Result<Option<String>, ChaosError> {
        let ended = self.job.ended();
        let ended =
            ended.map_err(|source| ChaosError::Start { program: self.chaos.program.clone(), source })?;
        if let Some(status) = ended {
            if status.success() {
                return Ok(Some("the job completed".to_owned()));
            }
            let said = format!("the master ended: {}, {}", describe(status), self.job.last_words());
            (self.say)(format!("{:8.1} s  {said}", now.as_secs_f64()));
            self.ends += 1;
            let disks = self.active.values().any(|active| matches!(active, Active::Disk));
            let excused = disks || self.disk.is_some_and(|at| now < at + EXCUSED);
            if !excused {
                self.violations.push(said);
            }
            if self.ends > ENDS_MAX {
                self.violations.push(format!("{ENDS_MAX} masters ended one after the other"));
                return Ok(Some("does not go on".to_owned()));
            }
            self.again = Some(now + AGAIN);
        }
        if self.again.is_some_and(|at| at <= now) {
            self.again = None;
            self.start()?;
        }
        Ok(None)
    }

    fn begin(&mut self, fault: ChaosFault, now: Duration) {
        match self.inject(fault, now) {
            Ok(text) => {
                (self.say)(format!("{:8.1} s  {}: {text}", now.as_secs_f64(), fault.kind));
                self.enter(fault, Some(now), text);
            }
            Err(why) if now < fault.at + WAITS => self.waiting.push((fault, why)),
            Err(why) => self.give_up(fault, now, &why),
        }
    }

    fn give_up(&mut self, fault: ChaosFault, now: Duration, why: &str) {
        (self.say)(format!("{:8.1} s  {}: did not happen: {why}", now.as_secs_f64(), fault.kind));
        self.enter(fault, None, format!("did not happen: {why}"));
    }

    fn enter(&mut self, fault: ChaosFault, began: Option<Duration>, text: String) {
        let ChaosFault { number, kind, at, .. } = fault;
        let began_s = began.map(|began| began.as_secs_f64());
        let due_s = at.as_secs_f64();
        self.entries.push(FaultEntry { number, kind, due_s, began_s, ended_s: None, text });
    }

    /// Makes a fault happen. Returns the node that it hits and how, or the reason why it cannot happen now.
    fn inject(&mut self, fault: ChaosFault, now: Duration) -> Result<String, String> {
        let ChaosFault { number, kind, strength, .. } = fault;
        let text = match kind {
            ChaosKind::WorkerKill => self.signal("worker-", fault, Signal::SIGKILL)?,
            ChaosKind::ServerKill => self.signal("server-", fault, Signal::SIGKILL)?,
            ChaosKind::Preempt => self.signal("worker-", fault, Signal::SIGTERM)?,
            ChaosKind::AllWorkersKill => self.kill_all_workers()?,
            ChaosKind::Stop => {
                let node = self.victim("worker-", fault)?;
                send(node.pid, Signal::SIGSTOP)?;
                self.active.insert(number, Active::Stopped(node.pid));
                node.name
            }
            ChaosKind::Hang => {
                let node = self.victim("worker-", fault)?;
                let hang = Hang::begin(node.pid).map_err(|error| format!("it cannot be traced: {error}"))?;
                self.active.insert(number, Active::Hanging(hang));
                node.name
            }
            ChaosKind::SlowCpu => {
                let node = self.victim("worker-", fault)?;
                let share = 0.02 + 0.28 * (1.0 - strength);
                let place = self.tools.cpu.as_ref().ok_or(MISSING)?;
                let group = place.slow(node.pid, share).map_err(|error| error.to_string())?;
                self.active.insert(number, Active::Slowed(group));
                format!("{}, {:.0} % of a core", node.name, share * 100.0)
            }
            ChaosKind::OutOfMemory => {
                let node = self.victim("worker-", fault)?;
                let group = self.tools.memory.as_ref().and_then(|place| place.starve(node.pid).ok());
                self.starving.push(Starving { group, pid: node.pid, since: now, fault: number });
                node.name
            }
            ChaosKind::SlowLink => {
                let bandwidth = 2e6 * 0.05_f64.powf(strength);
                let latency = Duration::from_millis(5).mul_f64(1.0 + 9.0 * strength);
                let text = format!("{:.0} KB/s, {} ms", bandwidth / 1e3, latency.as_millis());
                self.link(fault, Effect::Slow { bandwidth, latency }, &text)?
            }
            ChaosKind::LossyLink => {
                let share = 0.01 + 0.19 * strength;
                self.link(fault, Effect::Lossy(share), &format!("{:.0} % lost", share * 100.0))?
            }
            ChaosKind::CutLink => self.link(fault, Effect::Cut, "cut")?,
            ChaosKind::HalfReset => {
                let victim = strength < 0.5;
                let text = if victim { "only it is told" } else { "only its peers are told" };
                self.link(fault, Effect::HalfReset { victim }, text)?
            }
            ChaosKind::BlackHole => self.link(fault, Effect::BlackHole, "nothing arrives")?,
            ChaosKind::CorruptFrame => {
                let share = 0.005 + 0.045 * strength;
                self.link(fault, Effect::Corrupt(share), &format!("{:.1} % of packets", share * 100.0))?
            }
            ChaosKind::DuplicateRpc => self.calls(number, Trouble::Twice(0.2 + 0.8 * strength))?,
            ChaosKind::ReorderRpc => self.calls(number, Trouble::Late(0.1 + 0.5 * strength))?,
            ChaosKind::DiskFull => self.disk(number, "the run directory", Disks::fill)?,
            ChaosKind::DiskReadOnly => self.disk(number, "the checkpoints", Disks::protect)?,
            ChaosKind::ClockJump => self.jump_clock(number, strength)?,
            ChaosKind::Strangers => self.strangers(number, strength)?,
            ChaosKind::MasterKill => {
                let pid = self.job.master().filter(|pid| is_alive(*pid)).ok_or("no master lives")?;
                self.job.kill_master().map_err(|error| error.to_string())?;
                self.active.insert(number, Active::Master);
                format!("process {pid}, for {:.1} s", fault.lasts.as_secs_f64())
            }
        };
        Ok(text)
    }

    /// One of the nodes of this kind.
    fn victim(&self, kind: &str, fault: ChaosFault) -> Result<Node, String> {
        let mut nodes = self.job.nodes(kind);
        if nodes.is_empty() {
            return Err(format!("no {} lives", kind.trim_end_matches('-')));
        }
        Ok(nodes.swap_remove(usize::try_from(fault.pick % nodes.len() as u64).unwrap_or(0)))
    }

    fn signal(&self, kind: &str, fault: ChaosFault, signal: Signal) -> Result<String, String> {
        let node = self.victim(kind, fault)?;
        send(node.pid, signal)?;
        Ok(node.name)
    }

    fn kill_all_workers(&self) -> Result<String, String> {
        let workers = self.job.nodes("worker-");
        match workers.iter().filter(|node| send(node.pid, Signal::SIGKILL).is_ok()).count() {
            0 => Err("no worker lives".to_owned()),
            killed => Ok(format!("{killed} workers")),
        }
    }

    fn disk(
        &mut self,
        fault: u32,
        what: &str,
        harm: impl FnOnce(&Disks) -> io::Result<()>,
    ) -> Result<String, String> {
        let disks = self.tools.disks.as_ref().ok_or(MISSING)?;
        harm(disks).map_err(|error| error.to_string())?;
        self.active.insert(fault, Active::Disk);
        Ok(what.to_owned())
    }

    /// Sets the clock forwards or backwards, by a second to an hour.
    fn jump_clock(&mut self, fault: u32, strength: f64) -> Result<String, String> {
        let size = 3_600_f64.powf((strength * 2.0 - 1.0).abs());
        #[allow(clippy::cast_possible_truncation, reason = "an hour at most")]
        let seconds = (size * (strength - 0.5).signum()) as i64;
        let clock = self.tools.clock.as_ref().ok_or(MISSING)?;
        clock.set(seconds).map_err(|error| error.to_string())?;
        self.active.insert(fault, Active::Clock);
        Ok(format!("{seconds:+} s"))
    }

    fn link(&mut self, fault: ChaosFault, effect: Effect, text: &str) -> Result<String, String> {
        let node = self.victim("worker-", fault)?;
        let links = self.tools.links.as_ref().ok_or(MISSING)?;
        links.begin(fault.number, effect);
        links.ports(fault.number, &ports(node.pid));
        self.active.insert(fault.number, Active::Link(node.pid));
        Ok(format!("{}, {text}", node.name))
    }

    fn strangers(&mut self, fault: u32, strength: f64) -> Result<String, String> {
        let nodes = ["worker-", "server-"].map(|kind| self.job.nodes(kind));
        let pids = nodes.iter().flatten().map(|node| node.pid).chain(self.job.master());
        let ports: Vec<_> = pids.flat_map(listens_at).collect();
        if ports.is_empty() {
            return Err("no node listens".to_owned());
        }
        let (count, each) = (ports.len(), if strength < 0.5 { 64 } else { 256 });
        let seed = Seed(self.chaos.plan.seed).derive(&fault.to_string());
        let strangers = Strangers::begin(ports, each, seed).map_err(|error| error.to_string())?;
        self.active.insert(fault, Active::Strangers(strangers));
        Ok(format!("{count} ports, {each} at each"))
    }

    fn calls(&mut self, fault: u32, trouble: Trouble) -> Result<String, String> {
        let calls = self.tools.calls.as_ref().ok_or(MISSING)?;
        calls.set(Some(trouble));
        self.active.insert(fault, Active::Calls(calls.troubled()));
        let (Trouble::Twice(share) | Trouble::Late(share)) = trouble;
        Ok(format!("{:.0} % of calls", share * 100.0))
    }

    /// Ends a fault that lasts.
    fn end(&mut self, fault: ChaosFault, now: Duration) -> Result<(), ChaosError> {
        if let Some(at) = self.waiting.iter().position(|(waiting, _)| waiting.number == fault.number) {
            let (_, why) = self.waiting.swap_remove(at);
            self.give_up(fault, now, &why);
            return Ok(());
        }
        let Some(active) = self.active.remove(&fault.number) else { return Ok(()) };
        let mut hits = None;
        match active {
            Active::Stopped(pid) => {
                // It may have been killed meanwhile.
                let _ = send(pid, Signal::SIGCONT);
            }
            Active::Hanging(_) | Active::Slowed(_) => {}
            Active::Strangers(strangers) => hits = Some(strangers.opened()),
            Active::Link(_) => hits = self.tools.links.as_ref().map(|links| links.end(fault.number)),
            Active::Calls(before) => {
                if let Some(calls) = &self.tools.calls {
                    calls.set(None);
                    hits = Some(calls.troubled() - before);
                }
            }
            Active::Disk => {
                if let Some(Err(error)) = self.tools.disks.as_ref().map(|disks| disks.restore()) {
                    self.violations.push(format!("a disk stays as it is: {error}"));
                }
                self.disk = Some(now);
            }
            Active::Clock => {
                if let Some(Err(error)) = self.tools.clock.as_ref().map(|clock| clock.set(0)) {
                    self.violations.push(format!("the clock stays as it is: {error}"));
                }
            }
            Active::Master => self.start()?,
        }
        if let Some(entry) = self.entries.iter_mut().rfind(|entry| entry.number == fault.number) {
            entry.ended_s = Some(now.as_secs_f64());
            match hits {
                None => {}
                Some(0) => {
                    entry.text += "; nothing was there to be hit";
                    entry.began_s = None;
                }
                Some(hits) => entry.text += &format!("; {hits} hit"),
            }
        }
        Ok(())
    }

    /// Follows victims that open connections, and those without memory.
    fn look_after(&mut self, now: Duration) {
        if let Some(links) = &self.tools.links {
            for (fault, active) in &self.active {
                if let Active::Link(pid) = active {
                    links.ports(*fault, &ports(*pid));
                }
            }
        }
        for starving in std::mem::take(&mut self.starving) {
            let lives = is_alive(starving.pid);
            if lives && starving.group.is_some() && now < starving.since + STARVES {
                self.starving.push(starving);
                continue;
            }
            let how = match (lives, &starving.group) {
                (false, _) => "; ended by the kernel",
                (true, Some(_)) => "; it wanted no memory, SIGKILL",
                (true, None) => "; there are no limits of memory here, SIGKILL",
            };
            if lives {
                // It ends meanwhile or it does not.
                let _ = send(starving.pid, Signal::SIGKILL);
            }
            if let Some(entry) = self.entries.iter_mut().rfind(|entry| entry.number == starving.fault) {
                entry.text += how;
            }
        }
    }

    /// Counts, and writes down what came of it.
    fn finish(mut self, outcome: String, lasted: Duration) -> Result<ChaosReport, ChaosError> {
        self.active.clear();
        let spec = &self.chaos.spec;
        let file = self.dir.join("report.json");
        let is_counting =
            (spec.workload.as_str(), spec.optimizer.as_deref()) == (COUNTING.0, Some(COUNTING.1));
        let counted = if is_counting {
            "by the model, apart from the ledger".to_owned()
        } else {
            "by the ledger only: the model of --workload counting counts apart from it".to_owned()
        };
        if self.violations.is_empty() {
            let report = std::fs::read_to_string(&file).map_err(|error| error.to_string());
            let report =
                report.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
            let counts = is_counting.then(|| count::counted(&self.job.run_dir)).transpose();
            let wrong = match (report, counts) {
                (Err(why), _) => Some(format!("{}: {why}", file.display())),
                (_, Err(error)) => Some(error.to_string()),
                (_, Ok(Some(None))) => Some("the job left no whole checkpoint".to_owned()),
                (Ok::<Report, _>(report), Ok(counts)) => {
                    count::inexact(&report, counts.flatten().as_deref(), spec.epochs)
                }
            };
            self.violations.extend(wrong);
        }
        if let Some(disks) = &self.tools.disks {
            let to = self.dir.join("run").join(antdt::resume::CHECKPOINTS);
            disks.keep(&to).map_err(|source| ChaosError::File { path: to, source })?;
        }
        let kinds = self.chaos.plan.kinds.iter().map(|kind| {
            let of = |began: bool| {
                let entries = self.entries.iter();
                let count =
                    entries.filter(|entry| entry.kind == *kind && entry.began_s.is_some() == began).count();
                u32::try_from(count).unwrap_or(u32::MAX)
            };
            let skipped = self.tools.missing.get(kind).cloned();
            KindEntry { kind: *kind, injected: of(true), missed: of(false), skipped }
        });
        let report = ChaosReport {
            seed: self.chaos.plan.seed,
            kinds: kinds.collect(),
            faults: self.entries.clone(),
            lasted_s: lasted.as_secs_f64(),
            masters: self.job.masters,
            outcome,
            counted,
            violations: std::mem::take(&mut self.violations),
        };
        let path = self.dir.join(FILE);
        let text = serde_json::to_string_pretty(&report).expect("plain values") + "\n";
        std::fs::write(&path, text).map_err(|source| ChaosError::File { path, source })?;
        Ok(report)
    }
}

/// Waits a little.
async fn look(stop: &CancellationToken) -> Result<(), ChaosError> {
    tokio::select! {
        () = tokio::time::sleep(LOOK) => Ok(()),
        () = stop.cancelled() => Err(ChaosError::Interrupted),
    }
}
