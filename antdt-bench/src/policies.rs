//! Every policy on every kind of straggler: whole completion times against doing nothing and against an oracle with perfect
//! foresight for that trace, which has the same actions and pays their costs. In the simulator over many seeds, and once with
//! real processes.
//!
//! Where the ceiling, the time of doing nothing over that of the oracle, is at least `CEILING`, a policy is judged by its saved
//! share, `(t_none - t) / (t_none - t_oracle)`; elsewhere it must cost next to nothing. The oracle is the best of several ways to
//! use what it knows, none of which is proven to be the optimum; so there is a second bound that holds for anybody, all workers
//! computing all the time. A figure beyond either is an error of measuring, and fails.

use std::time::Duration;

use antdt_collective::schedule::{Choice, CostModel};
use antdt_controller::Policy;
use antdt_controller::policy::REGISTRY;
use antdt_core::{JobTime, Seed};
use antdt_sim::model::compute::{Constant, LogNormal, Slow, Straggler};
use antdt_sim::model::faults::Listed;
use antdt_sim::model::network::AlphaBeta;
use antdt_sim::model::{Hosts, Models, scheduler};
use antdt_sim::{Setup, World};
use anyhow::{Result, anyhow};

use crate::meter::{Others, interval, median};
use crate::{Entry, Rows, Settings};

mod devices;
mod foresight;
mod trace;

use foresight::{Foresight, Way};
use trace::Trace;

/// Workers of a simulated job.
const WORKERS: u32 = 8;
/// Samples of a worker's batch in an even plan, and of a healthy worker per second: 256 ms a step.
const BATCH: u32 = 64;
const SPEED: f64 = 250.0;
/// From the order to start a process until it registers.
const START: Duration = Duration::from_secs(10);

/// Time of doing nothing over that of the oracle from which on a saved share says something.
const CEILING: f64 = 1.3;
/// Least saved share of a judged policy.
const SAVED: f64 = 0.85;
/// What a judged policy may cost where little can be saved, percent.
const COST_PERCENT: f64 = 1.0;
/// Judged policies; the others are baselines, whose figures are shown.
const JUDGED: [&str; 1] = ["nd"];
/// What a figure may be beyond the oracle: it is the best of a few ways, and may be beaten by a little.
const BEYOND: f64 = 0.02;

/// How much is measured.
struct Scale {
    steps: u32,
    seeds: u64,
    /// Steps of the jobs of real processes.
    real_steps: u32,
}

impl Scale {
    const QUICK: Self = Self { steps: 480, seeds: 12, real_steps: 100 };
    const FULL: Self = Self { steps: 960, seeds: 20, real_steps: 300 };
}

/// Runs the benchmark.
///
/// # Errors
/// If a job cannot be run.
pub fn run(settings: &Settings, rows: &mut Rows) -> Result<()> {
    let scale = if settings.quick { Scale::QUICK } else { Scale::FULL };
    for trace in trace::ALL {
        let measured = measure(&trace, scale.steps, scale.seeds)?;
        rows.extend(judge(&trace, scale.steps, &measured));
    }
    devices::run(rows)?;
    real(settings, scale.real_steps, rows)?;
    real_devices(settings, scale.real_steps, rows)
}

/// Times of one seed, in seconds without the start.
#[derive(Debug, Clone)]
struct Times {
    none: f64,
    oracle: f64,
    /// What nobody can be faster than.
    least: f64,
    /// In the order of [`policies`].
    policies: Vec<f64>,
}

/// Names of all policies but the one that does nothing, and `dd`: it is for devices of several kinds and has rows of its own.
fn policies() -> Vec<&'static str> {
    REGISTRY.names().into_iter().filter(|name| !["none", "dd"].contains(name)).collect()
}

fn measure(trace: &Trace, steps: u32, seeds: u64) -> Result<Vec<Times>> {
    let length = f64::from(steps * BATCH) / SPEED;
    (0..seeds)
        .map(|seed| {
            // Stragglers are counted from the start of training.
            let stragglers = shifted(&trace.stragglers(Seed(seed), length));
            let job = Job {
                workers: WORKERS,
                speed: SPEED,
                steps,
                noise: trace.noise,
                stragglers,
                seed: Seed(seed),
            };
            let named = |name: &str| REGISTRY.by_name(name).map_err(|error| anyhow!("{error}"));
            let none = job.took(named("none")?)?;
            let policies =
                policies().into_iter().map(|name| job.took(named(name)?)).collect::<Result<_>>()?;
            let samples = f64::from(steps * BATCH * WORKERS);
            let least = trace::least_s(&unshifted(&job.stragglers), trace.noise, samples);
            Ok(Times { none, oracle: job.oracle(none)?, least, policies })
        })
        .collect()
}

fn shifted(stragglers: &[Straggler]) -> Vec<Straggler> {
    let shift = |at: JobTime| if at == JobTime::NEVER { at } else { at + START };
    stragglers.iter().map(|it| Straggler { from: shift(it.from), to: shift(it.to), ..*it }).collect()
}

fn unshifted(stragglers: &[Straggler]) -> Vec<Straggler> {
    let shift = |at: JobTime| if at == JobTime::NEVER { at } else { at - START };
    stragglers.iter().map(|it| Straggler { from: shift(it.from), to: shift(it.to), ..*it }).collect()
}

/// A simulated job.
struct Job {
    workers: u32,
    speed: f64,
    steps: u32,
    noise: f64,
    stragglers: Vec<Straggler>,
    seed: Seed,
}

impl Job {
    /// Seconds from the start of its workers to the commit of its last sample.
    fn took(&self, policy: Box<dyn Policy>) -> Result<f64> {
        let hosts = Hosts::default();
        let noisy = LogNormal::new(Constant::speed(self.speed)?, self.noise)?;
        let network = AlphaBeta::new(hosts, CostModel::LOOPBACK, CostModel::LOOPBACK, Choice::Auto)?;
        let models = Models {
            compute: Box::new(Slow::new(noisy, hosts, self.stragglers.iter().copied())?),
            network: Box::new(network),
            scheduler: Box::new(scheduler::Constant(START)),
            faults: Box::new(Listed::new([])),
        };
        let setup = Setup {
            workers: self.workers,
            global_batch_size: BATCH * self.workers,
            samples: u64::from(BATCH * self.workers) * u64::from(self.steps),
            seed: self.seed,
            ..Setup::default()
        };
        let name = policy.name();
        let (job, _) =
            World::new(setup, policy, models)?.run(JobTime::NEVER).map_err(|(violation, _)| violation)?;
        job.result.map_err(|why| anyhow!("the simulated job under {name} failed: {why}"))?;
        Ok(job.completed.since(JobTime::ZERO + START).as_secs_f64())
    }

    /// The best that is found with perfect foresight; doing nothing is one of the ways.
    fn oracle(&self, none: f64) -> Result<f64> {
        let begins = JobTime::ZERO + START;
        Way::all(&self.stragglers).into_iter().try_fold(none, |best, way| {
            let policy = Foresight::new(&self.stragglers, way, begins);
            Ok(best.min(self.took(Box::new(policy))?))
        })
    }
}

/// The rows of a trace.
fn judge(trace: &Trace, steps: u32, measured: &[Times]) -> Vec<Entry> {
    let column = |of: &dyn Fn(&Times) -> f64| measured.iter().map(of).collect::<Vec<f64>>();
    let (none, oracle) = (median(column(&|it| it.none)), median(column(&|it| it.oracle)));
    let ceiling = median(column(&|it| it.none / it.oracle));
    let mut rows = Vec::new();
    for (at, policy) in policies().into_iter().enumerate() {
        let name = format!("{}, {steps} steps, {policy}", trace.name);
        let took = median(column(&|it| it.policies[at]));
        let is_judged = JUDGED.contains(&policy);
        let peer = format!(
            "ceiling {ceiling:.2}x: none {none:.0} s, oracle {oracle:.0} s, {policy} {took:.0} s; {} seeds{}",
            measured.len(),
            if is_judged { "" } else { "; a baseline" }
        );
        let row = if ceiling >= CEILING {
            let (mean, bounds) = interval(&column(&|it| (it.none - it.policies[at]) / (it.none - it.oracle)));
            let row = Entry::shown(format!("{name}: saved share"), mean, "");
            if is_judged { row.interval_at_least(bounds, SAVED) } else { row }
        } else {
            let (mean, bounds) = interval(&column(&|it| 100.0 * (it.policies[at] / it.none - 1.0)));
            let row = Entry::shown(format!("{name}: time over doing nothing"), mean, "%");
            if is_judged { row.interval_at_most(bounds, COST_PERCENT) } else { row }
        };
        rows.push(row.beside(peer));
    }
    let beyond: usize = measured.iter().map(errors).sum();
    #[allow(clippy::cast_precision_loss, reason = "a small number")]
    let count = beyond as f64;
    let peer = "no policy beats the oracle by more than 2 %, and nobody all workers computing all the time";
    rows.push(
        Entry::shown(format!("{}: figures above their ceiling", trace.name), count, "")
            .at_most(0.0)
            .beside(peer),
    );
    rows
}

/// Figures of a seed that cannot be.
fn errors(times: &Times) -> usize {
    let faster = |time: f64| {
        time < times.least
            || (times.none - time) > (1.0 + BEYOND) * (times.none - times.oracle) + BEYOND * times.oracle
    };
    let all = times.policies.iter().chain([&times.none]);
    all.filter(|time| faster(**time)).count() + usize::from(times.oracle < times.least)
}

/// Workers of a job of real processes, samples of each per second, which of them is slow, and how many times.
const REAL_WORKERS: u32 = 4;
const REAL_SPEED: f64 = 500.0;
const REAL_STRAGGLER: u32 = 1;
const REAL_SLOW: f64 = 4.0;

/// Share of the cores that others may take before a missed target counts as not measured; as in `job`.
const OTHERS_MAX: f64 = 0.5;

/// Real processes with a straggler from the start. What the oracle saves is that of the same job in the simulator.
fn real(settings: &Settings, steps: u32, rows: &mut Rows) -> Result<()> {
    let who = antdt_sim::model::compute::Who::Node(antdt_core::NodeId::worker(REAL_STRAGGLER));
    let (from, to) = (JobTime::ZERO, JobTime::NEVER);
    let straggler = Straggler { who, slow: REAL_SLOW, from, to, cured_by_restart: false };
    let job = Job {
        workers: REAL_WORKERS,
        speed: REAL_SPEED,
        steps,
        noise: 0.02,
        stragglers: vec![straggler],
        seed: Seed(1),
    };
    let simulated = job.took(REGISTRY.by_name("none").map_err(|error| anyhow!("{error}"))?)?;
    let saves = simulated - job.oracle(simulated)?;
    let limit = Duration::from_secs_f64(60.0 + 4.0 * simulated);
    let others = Others::watch();
    let took = |policy: &str| -> Result<f64> {
        let text = format!(
            "--nproc-per-node {REAL_WORKERS} --sync allreduce --policy {policy} --workload deepfm --epochs 1 --seed 1 \
             --data synthetic:{} --global-batch-size {} --emulate-speed {REAL_SPEED} \
             --straggler worker={REAL_STRAGGLER},slow={REAL_SLOW} --quiet",
            u64::from(steps) * u64::from(BATCH * REAL_WORKERS),
            BATCH * REAL_WORKERS,
        );
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let folder = settings.report_dir.join(format!("real-{policy}"));
        Ok(crate::run::run(&settings.antdt, &words, &folder, limit)?.job_completion_time_s)
    };
    let none = took("none")?;
    let times =
        policies().into_iter().map(|policy| Ok((policy, took(policy)?))).collect::<Result<Vec<_>>>()?;
    let others = others.share();
    for (policy, time) in times {
        let is_judged = JUDGED.contains(&policy);
        let peer = format!(
            "none {none:.1} s, {policy} {time:.1} s; the oracle saves {saves:.1} s{}",
            if is_judged { "" } else { "; a baseline" }
        );
        let row = Entry::shown(
            format!("real processes, steady, {steps} steps, {policy}: saved share"),
            (none - time) / saves,
            "",
        );
        let row = if is_judged { row.at_least(SAVED).unless_overloaded(others, OTHERS_MAX) } else { row };
        rows.push(row.beside(peer));
    }
    Ok(())
}

/// Devices of the job of real processes: two that compute four times as fast as the two others. No more than an even share fits any
/// of them at once, so that the fast ones can take more in micro-batches only.
const REAL_DEVICES: &str = "--device class=fast,worker=0-1,speed=2000,fixed=10ms,batch-max=64 \
                            --device class=slow,worker=2-3,speed=500,fixed=10ms,batch-max=64";

/// Least gain with them: 138 ms a step of even batches, 69 ms of the best, less the profile.
const REAL_DEVICES_GAIN: f64 = 1.2;

/// Real processes on a mix of emulated devices, each sample counted.
fn real_devices(settings: &Settings, steps: u32, rows: &mut Rows) -> Result<()> {
    let global = BATCH * REAL_WORKERS;
    let samples = u64::from(steps) * u64::from(global);
    let others = Others::watch();
    let took = |policy: &str| -> Result<f64> {
        let text = format!(
            "--nproc-per-node {REAL_WORKERS} --sync allreduce --policy {policy} --workload deepfm --epochs 1 --seed 1 \
             --data synthetic:{samples} --global-batch-size {global} {REAL_DEVICES} --quiet"
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
    rows.push(row.at_least(REAL_DEVICES_GAIN).unless_overloaded(others.share(), OTHERS_MAX).beside(format!(
        "none {none:.1} s, lb-bsp {lb:.1} s, dd {dd:.1} s, its profile included; {samples} samples counted in each"
    )));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_above_its_ceiling_is_an_error_of_measuring() {
        let of = |oracle: f64, policies: &[f64]| {
            errors(&Times { none: 400.0, oracle, least: 140.0, policies: policies.to_vec() })
        };
        assert_eq!(of(150.0, &[160.0, 149.0]), 0);
        assert_eq!(of(150.0, &[139.0, 160.0]), 1, "faster than all workers can be");
        assert_eq!(of(150.0, &[141.0]), 1, "far better than the oracle");
        assert_eq!(of(139.0, &[160.0]), 1, "the oracle, too");
    }

    #[test]
    fn the_oracle_is_worth_its_name_on_a_short_job_of_each_kind() {
        for trace in trace::ALL {
            let times = &measure(&trace, 120, 1).unwrap()[0];
            assert_eq!(errors(times), 0, "{}: {times:?}", trace.name);
            assert!(times.oracle <= times.none, "{}: {times:?}", trace.name);
            let saves = ["steady", "transient", "persistent", "mixed"].contains(&trace.name);
            assert!(!saves || times.none / times.oracle > 1.3, "{}: {times:?}", trace.name);
        }
    }

    #[test]
    fn a_policy_that_saves_too_little_fails_its_row_and_a_baseline_is_shown() {
        let of = |nd: f64, spread: f64| {
            let times = |at: f64| Times {
                none: 400.0,
                oracle: 150.0,
                least: 140.0,
                policies: vec![nd + at * spread, 300.0, 300.0],
            };
            judge(&trace::ALL[0], 100, &[times(0.0), times(1.0), times(-1.0)])
        };
        use crate::entry::State;
        assert_eq!(of(160.0, 1.0)[0].state, State::Ok);
        assert_eq!(of(300.0, 1.0)[0].state, State::Failed);
        assert_eq!(of(187.0, 20.0)[0].state, State::Unresolved);
        let baseline = &of(160.0, 1.0)[1];
        assert!(baseline.target.is_none() && baseline.state == State::Ok, "{baseline:?}");
    }
}
