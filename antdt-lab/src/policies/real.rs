//! Jobs of real processes, whose time for a gradient is emulated.

use std::time::Duration;

use antdt_core::{JobTime, NodeId, Seed};
use antdt_sim::model::compute::{Straggler, Who};
use anyhow::Result;

use super::job::{Job, named};
use super::trace::Trace;
use super::{BATCH, CEILING, JUDGED, OTHERS_MAX, SAVED, SERVE, START, Scale};
use crate::meter::Others;
use crate::{Entry, Rows, Settings};

/// Workers of a job of real processes, samples of each per second, which of them is slow, and how many times.
const WORKERS: u32 = 4;
const SPEED: f64 = 500.0;
const STRAGGLER: u32 = 1;
const SLOW: f64 = 4.0;

/// Real processes with a straggler from the start.
pub(super) fn steady(settings: &Settings, scale: &Scale, rows: &mut Rows) -> Result<()> {
    let who = Who::Node(NodeId::worker(STRAGGLER));
    let (from, to) = (JobTime::ZERO, JobTime::NEVER);
    let straggler = Straggler { who, slow: SLOW, from, to, cured_by_restart: false };
    let job = Job {
        workers: WORKERS,
        sync: "allreduce",
        servers: 0,
        serve: SERVE,
        speed: SPEED,
        steps: scale.real_steps,
        noise: NOISE,
        stragglers: vec![straggler],
        slow_link: (1.0, 0.0),
        seed: Seed(1),
    };
    measure(settings, "steady", &job, scale.real_policies, rows)
}

/// Real processes that meet the stragglers of a kind, as far as they can be emulated: one of each worker.
pub(super) fn kind(settings: &Settings, trace: &Trace, steps: u32, rows: &mut Rows) -> Result<()> {
    let length = f64::from(steps * BATCH) / super::SPEED;
    let mut job = Job { noise: NOISE, ..Job::of(trace, steps, length, Seed(1)) };
    let mut seen = std::collections::BTreeSet::new();
    job.stragglers.retain(|it| seen.insert(it.who));
    measure(settings, trace.name, &job, &["nd", "predictive"], rows)
}

/// Noise of batches whose time is emulated.
pub(super) const NOISE: f64 = 0.02;

/// The flags of `antdt run` that emulate a straggler of a simulated job.
fn emulated(straggler: &Straggler) -> String {
    let Who::Node(node) = straggler.who else { return String::new() };
    let since = |at: JobTime| at.since_start().saturating_sub(START).as_millis();
    let to =
        if straggler.to == JobTime::NEVER { String::new() } else { format!(",to={}ms", since(straggler.to)) };
    let cured = if straggler.cured_by_restart { ",restart=cures" } else { "" };
    let from = since(straggler.from);
    format!(" --straggler worker={},slow={},from={from}ms{to}{cured}", node.index, straggler.slow)
}

/// Real processes under doing nothing and under these policies. What the oracle saves is that of the same job in the simulator.
fn measure(
    settings: &Settings,
    kind: &str,
    job: &Job,
    policies: &[&'static str],
    rows: &mut Rows,
) -> Result<()> {
    let Job { workers, speed, steps, .. } = *job;
    let simulated = job.took(named("none")?)?;
    let oracle = job.oracle(simulated)?;
    let (saves, ceiling) = (simulated - oracle, simulated / oracle);
    let limit = Duration::from_secs_f64(60.0 + 4.0 * simulated);
    let stragglers: String = job.stragglers.iter().map(emulated).collect();
    let others = Others::watch();
    let took = |policy: &str| -> Result<f64> {
        let text = format!(
            "--nproc-per-node {workers} --sync allreduce --policy {policy} --workload deepfm --epochs 1 --seed 1 \
             --data synthetic:{} --global-batch-size {} --emulate-speed {speed}{stragglers} --quiet",
            u64::from(steps) * u64::from(BATCH * workers),
            BATCH * workers,
        );
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let folder = settings.report_dir.join(format!("real-{kind}-{policy}").replace(' ', "-"));
        Ok(crate::run::run(&settings.antdt, &words, &folder, limit)?.job_completion_time_s)
    };
    let none = took("none")?;
    let times = policies.iter().map(|policy| Ok((*policy, took(policy)?))).collect::<Result<Vec<_>>>()?;
    let others = others.share();
    for (policy, time) in times {
        let is_judged = JUDGED.contains(&policy);
        let peer = format!(
            "none {none:.1} s, {policy} {time:.1} s; the oracle saves {saves:.1} s{}",
            if is_judged { "" } else { "; a baseline" }
        );
        let name = format!("real processes, {kind}, {steps} steps, {policy}");
        let row = if ceiling >= CEILING {
            let row = Entry::shown(format!("{name}: saved share"), (none - time) / saves, "");
            if is_judged { row.at_least(SAVED).unless_overloaded(others, OTHERS_MAX) } else { row }
        } else {
            // A percent takes more than one pair of jobs to tell.
            Entry::shown(format!("{name}: time over doing nothing"), 100.0 * (time / none - 1.0), "%")
        };
        rows.push(row.beside(peer));
    }
    Ok(())
}

/// Devices of the job of real processes: two that compute four times as fast as the two others. No more than an even share fits any
/// of them at once, so that the fast ones can take more in micro-batches only.
const DEVICES: &str = "--device class=fast,worker=0-1,speed=2000,fixed=10ms,batch-max=64 \
                            --device class=slow,worker=2-3,speed=500,fixed=10ms,batch-max=64";

/// Least gain with them: 138 ms a step of even batches, 69 ms of the best, less the profile.
const DEVICES_GAIN: f64 = 1.2;

/// Real processes on a mix of emulated devices, each sample counted.
pub(super) fn devices(settings: &Settings, steps: u32, rows: &mut Rows) -> Result<()> {
    let global = BATCH * WORKERS;
    let samples = u64::from(steps) * u64::from(global);
    let others = Others::watch();
    let took = |policy: &str| -> Result<f64> {
        let text = format!(
            "--nproc-per-node {WORKERS} --sync allreduce --policy {policy} --workload deepfm --epochs 1 --seed 1 \
             --data synthetic:{samples} --global-batch-size {global} {DEVICES} --quiet"
        );
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let folder = settings.report_dir.join(format!("real-devices-{policy}"));
        let limit = Duration::from_secs(60) + Duration::from_millis(800) * steps;
        let report = crate::run::run(&settings.antdt, &words, &folder, limit)?;
        anyhow::ensure!(
            report.samples.committed == samples && report.samples.lost == 0,
            "{policy} trained {} of {samples} samples",
            report.samples.committed
        );
        Ok(report.job_completion_time_s)
    };
    let (none, lb, dd) = (took("none")?, took("lb-bsp")?, took("dd")?);
    let row = Entry::shown(
        format!("real processes, 2 fast and 2 slow devices, {steps} steps: time of none over dd"),
        none / dd,
        "x",
    );
    rows.push(row.at_least(DEVICES_GAIN).unless_overloaded(others.share(), OTHERS_MAX).beside(format!(
        "none {none:.1} s, lb-bsp {lb:.1} s, dd {dd:.1} s, its profile included; {samples} samples counted in each"
    )));
    Ok(())
}
