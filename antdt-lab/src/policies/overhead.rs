//! What the monitor and the agent cost: their CPU time for each step of a job.
//!
//! The agent is measured in jobs of real processes whose steps take 100 ms: the CPU time of a worker's thread `antdt-agent`, which sends
//! heartbeats and looks at the load of the host, and, alone, what the training thread does for it. The monitor is measured alone, with
//! the reports of a job's workers as they come off the wire.
//!
//! The same thread carries the calls to the shard service. In an all-reduce there is one for each step, as the samples of a step count once it
//! is committed; with an average every `AVERAGE` steps there are next to none, and what is left is the agent's.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use antdt_agent::{AgentSession, Meter, Part, Reported};
use antdt_core::{
    DeviceClass, Holder, Incarnation, Iteration, JobTime, Machine, NodeId, NodeInfo, PlanVersion,
};
use antdt_monitor::{MonitorConfig, StragglerDetector};
use antdt_proto::v1;
use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};

use super::OTHERS_MAX;
use super::contention::worker_of;
use crate::entry::State;
use crate::meter::Others;
use crate::run;
use crate::{Entry, Rows, Settings};

/// Duration of a step.
const STEP: Duration = Duration::from_millis(100);
/// Most that the monitor and the agent may take of it, percent; and with the shard service's calls.
const MOST: f64 = 0.1;
const MOST_WITH_SHARDS: f64 = 1.0;
/// Steps between two averages, and samples of a shard: as many steps'.
const AVERAGE: u32 = 50;
/// Samples of a step of both workers, and of a worker per second.
const GLOBAL: u32 = 128;
const SPEED: u32 = 640;
/// Workers whose reports the monitor judges.
const WORKERS: u32 = 8;
/// Steps between two heartbeats: those of 500 ms.
const STEPS_OF_BEAT: u64 = 5;
/// Steps that are measured alone: a second or less.
const STEPS: u64 = 100_000;

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanoseconds.unwrap_or_default())
}

/// CPU time per step of what a training thread does for the agent, and of the monitor.
///
/// # Errors
/// If the monitor cannot be made.
fn alone() -> Result<(Duration, Duration)> {
    let mut monitor = StragglerDetector::new(MonitorConfig::default())?;
    let holders: Vec<Holder> =
        (0..WORKERS).map(|index| Holder::new(NodeId::worker(index), Incarnation(0))).collect();
    let mut agents: Vec<(Meter, AgentSession)> = Vec::new();
    for holder in &holders {
        monitor.node_joined(
            JobTime::ZERO,
            &NodeInfo {
                holder: *holder,
                host: String::new(),
                device: DeviceClass::default(),
                memory_bytes: None,
                batch_size_min: 1,
                batch_size_max: 1 << 20,
            },
        );
        agents.push((Meter::new(*holder, JobTime::ZERO), AgentSession::new(JobTime::ZERO, STEP)));
    }
    let (mut of_agents, mut of_monitor) = (Duration::ZERO, Duration::ZERO);
    let mut now = JobTime::ZERO;
    for step in 0..STEPS {
        let began = cpu_time();
        for (index, (meter, session)) in (0_u32..).zip(&mut agents) {
            // Batches that differ, as real ones do.
            let compute = STEP.mul_f64(0.7 + 0.01 * f64::from(index) + 0.001 * f64::from(step as u32 % 97));
            meter.enter(now, Part::Compute);
            meter.enter(now + compute, Part::Communicate);
            let report = meter.finish(now + STEP, Iteration(step), PlanVersion(1), 64, 1);
            session.report(Reported { report, loss_sum: 1.0 });
        }
        now = now + STEP;
        of_agents += cpu_time().saturating_sub(began);
        if step % STEPS_OF_BEAT != 0 {
            continue;
        }
        // The conversion for the wire is the agent's thread's.
        let beats: Vec<Vec<v1::BatchReport>> = agents
            .iter_mut()
            .map(|(_, session)| {
                let reports = session.beat().reports;
                reports.iter().map(|it| v1::BatchReport::from_core(&it.report, it.loss_sum)).collect()
            })
            .collect();
        let began = cpu_time();
        for (holder, reports) in holders.iter().zip(&beats) {
            monitor.heartbeat(now, *holder);
            for report in reports {
                black_box(monitor.report(now, &report.to_core(*holder)));
            }
        }
        while let Some(effect) = monitor.poll_effect() {
            black_box(effect);
        }
        for holder in &holders {
            black_box(monitor.observe(now, holder.node));
        }
        of_monitor += cpu_time().saturating_sub(began);
    }
    let steps = u32::try_from(STEPS).unwrap_or(u32::MAX);
    Ok((of_agents / WORKERS / steps, of_monitor / steps))
}

/// CPU time that the agent's threads of a process have taken; `None` if the system does not say it.
fn of_agent(process: u32) -> Option<Duration> {
    let mut all = None;
    for thread in fs::read_dir(format!("/proc/{process}/task")).ok()? {
        let thread = thread.ok()?.path();
        if fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == "antdt-agent") {
            *all.get_or_insert(Duration::ZERO) += on_cpu(&thread)?;
        }
    }
    all
}

/// CPU time of a thread, to the nanosecond.
fn on_cpu(thread: &Path) -> Option<Duration> {
    let text = fs::read_to_string(thread.join("schedstat")).ok()?;
    Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
}

/// What comes before is the start: connections are made, and the program is read from the disk.
const START: Duration = Duration::from_secs(2);

/// Share of the time of a job of real processes that the agent's threads of a worker take on a CPU.
///
/// # Errors
/// If the job fails, or its system does not say what a thread takes.
fn in_a_job(settings: &Settings, sync: &str, steps: u32) -> Result<f64> {
    let text = format!(
        "--nproc-per-node 2 --sync {sync} --policy nd --workload deepfm --epochs 1 --seed 1 --quiet \
         --data synthetic:{} --global-batch-size {GLOBAL} --emulate-speed {SPEED} --shard-len {}",
        u64::from(steps) * u64::from(GLOBAL),
        AVERAGE * GLOBAL / 2
    );
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let folder = settings.report_dir.join(format!("overhead-{sync}"));
    let mut job = run::start(&settings.antdt, &words, &folder)?;
    let limit = Duration::from_secs(60) + 4 * STEP * steps;
    let began = Instant::now();
    let worker = match worker_of(&mut job) {
        Ok(worker) => worker,
        Err(error) => {
            let _ = job.kill();
            let _ = job.wait();
            return Err(error);
        }
    };
    let mut seen: Vec<(Instant, Duration)> = Vec::new();
    let status = loop {
        seen.extend(of_agent(worker).map(|taken| (Instant::now(), taken)));
        match job.try_wait()? {
            Some(status) => break status,
            None if began.elapsed() > limit => {
                job.kill()?;
                job.wait()?;
                bail!("the job is not done after {:.0} s", limit.as_secs_f64());
            }
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    if !status.success() {
        bail!("the job failed: {}", run::last_lines(&folder.join(run::LOG)));
    }
    let begun = seen.first().context("/proc says nothing of the thread antdt-agent")?.0;
    let steady: Vec<_> = seen.into_iter().filter(|(at, _)| at.duration_since(begun) >= START).collect();
    match &steady[..] {
        [(from, before), .., (to, after)] => {
            Ok(after.saturating_sub(*before).as_secs_f64() / to.duration_since(*from).as_secs_f64())
        }
        _ => bail!("the job was over too soon"),
    }
}

/// The rows of the overhead: of the monitor and the agent, and with the calls to the shard service.
///
/// # Errors
/// If the monitor cannot be made.
pub(super) fn run(settings: &Settings, steps: u32, rows: &mut Rows) -> Result<()> {
    let name = format!("overhead of monitor and agent, steps of {} ms, {WORKERS} workers", STEP.as_millis());
    let others = Others::watch();
    let (training, monitor) = alone()?;
    let both = in_a_job(settings, &format!("local-sgd={AVERAGE}"), steps)
        .and_then(|agent| Ok((agent, in_a_job(settings, "allreduce", steps)?)));
    let (agent, with_shards) = match both {
        Ok(both) => both,
        Err(error) => {
            rows.push(Entry::without(name, State::NotMeasured, format!("{error:#}")));
            return Ok(());
        }
    };
    let others = others.share();
    let micro = |time: Duration| time.as_secs_f64() * 1e6;
    let mut row = |name: String, agent: f64, most: f64, what: &str| {
        let agent = STEP.mul_f64(agent);
        let share = 100.0 * (training + monitor + agent).as_secs_f64() / STEP.as_secs_f64();
        rows.push(Entry::shown(name, share, "%").at_most(most).unless_overloaded(others, OTHERS_MAX).beside(
            format!(
                "CPU time per step: monitor {:.1} us for all workers, agent of a worker {:.1} us in its thread{what} and {:.1} us in the \
                 training thread",
                micro(monitor),
                micro(agent),
                micro(training)
            ),
        ));
    };
    let shards = format!("{name}: with the calls to the shard service");
    row(name, agent, MOST, "");
    row(shards, with_shards, MOST_WITH_SHARDS, ", one call for each step included,");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_a_thread_is_found_by_its_name() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("antdt-agent".to_owned());
        let thread = thread.spawn(move || {
            let began = cpu_time();
            while cpu_time().saturating_sub(began) < Duration::from_millis(20) {
                black_box(0);
            }
            // It lives until it was looked at.
            let _ = wait.recv();
        });
        let thread = thread.unwrap();
        let bound = Instant::now() + Duration::from_secs(60);
        let mut seen = of_agent(std::process::id());
        while seen.is_some_and(|seen| seen < Duration::from_millis(20)) && Instant::now() < bound {
            std::thread::yield_now();
            seen = of_agent(std::process::id());
        }
        drop(go);
        thread.join().unwrap();
        match seen {
            Some(seen) => assert!(seen >= Duration::from_millis(20), "{seen:?}"),
            None => println!("skipped, not here: /proc says nothing of threads"),
        }
    }
}
