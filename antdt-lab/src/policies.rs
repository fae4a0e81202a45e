//! The benchmark `policies`: measures the completion times of jobs under every policy and every kind of
//! straggler. They are compared with those of the policy that does nothing, and of an oracle that knows the
//! slowdowns in advance, has the same actions and pays their costs. Most jobs are simulated, over many seeds;
//! some run once with real processes. Each part is stored as it is done, so that a long run goes on where it was ended.
//!
//! Where the ceiling, the time of doing nothing over that of the oracle, is at least `CEILING`, a policy is judged by its saved
//! share, `(t_none - t) / (t_none - t_oracle)`; elsewhere it must cost next to nothing. The oracle is the best of several plans
//! that use its knowledge. None of them is proven to be the optimum, so a policy with the oracle's actions may beat the oracle by
//! 2 %. No job can be faster than one in which all workers compute all the time. A figure beyond these bounds is a measuring
//! error, and its row fails.

use std::time::Duration;

use antdt_core::{JobTime, Seed};
use antdt_sim::model::compute::Straggler;
use anyhow::Result;

use crate::entry::State;
use crate::meter::{interval, median};
use crate::{Entry, Rows, Settings};

mod cells;
mod contention;
mod detection;
mod devices;
mod foresight;
mod headline;
mod job;
mod links;
mod overhead;
mod real;
mod replays;
mod restart;
mod spread;
mod trace;

use cells::Cells;
use foresight::Way;
use job::{Job, named, shifted};
use spread::spread;
use trace::Trace;

/// Share of the cores that others may take before a missed target counts as not measured; as in `job`.
const OTHERS_MAX: f64 = 0.5;

/// Workers of a simulated job.
const WORKERS: u32 = 8;
/// Samples of a worker's batch in an even plan, and of a healthy worker per second: 256 ms a step.
const BATCH: u32 = 64;
const SPEED: f64 = 250.0;
/// Time that a server is busy with a pull or a push: those of 8 workers, one after the other, are 16 ms of a step.
const SERVE: Duration = Duration::from_millis(1);
/// Bytes of the gradient where a link is slow: reducing it takes a twentieth of a step over healthy links, so that a slow one matters.
const GRADIENT_OF_LINKS: u64 = 16 << 20;
/// From the order to start a process until it registers.
const START: Duration = Duration::from_secs(10);

/// Time of doing nothing over that of the oracle from which on a saved share says something.
const CEILING: f64 = 1.3;
/// Least saved share of a judged policy.
const SAVED: f64 = 0.85;
/// What a judged policy may cost where little can be saved, percent.
const COST_PERCENT: f64 = 1.0;
/// Judged policies; the others are baselines, whose figures are shown.
const JUDGED: [&str; 2] = ["nd", "predictive"];
/// What a figure may be beyond the oracle: it is the best of a few ways, and may be beaten by a little.
const BEYOND: f64 = 0.02;

/// How much is measured. A part with no steps is left out.
#[derive(Debug)]
struct Scale {
    steps: u32,
    seeds: u64,
    /// Steps of the jobs of real processes, and policies of those with a steady straggler.
    real_steps: u32,
    real_policies: &'static [&'static str],
    /// Steps of the jobs of real processes with other kinds of stragglers.
    real_kinds_steps: u32,
    /// Steps of the job of real processes on devices of several kinds.
    devices_steps: u32,
    /// Steps of the replays, at most, and seeds with which policies are compared in them.
    replayed_steps: u32,
    replayed_seeds: u64,
    /// Steps of the jobs under real contention: of a core by a quota, of a core by processes, of a disk, of a link.
    quota_steps: u32,
    rivals_steps: u32,
    disk_steps: u32,
    link_steps: u32,
    /// Seeds of the headline in the simulator, and steps of it with real processes.
    headline_seeds: u64,
    headline_steps: u32,
    /// Seeded traces that the monitor looks at.
    detected: u64,
    /// Seeds of the jobs on either side of the break-even curve.
    decided: u64,
    /// Steps of 100 ms in which the overhead is measured.
    overhead_steps: u32,
}

impl Scale {
    /// Up to three minutes: the simulator, and one real job of each kind that other parts do not show.
    const QUICK: Self = Self {
        steps: 480,
        seeds: 6,
        real_steps: 60,
        real_policies: &["nd"],
        real_kinds_steps: 0,
        devices_steps: 0,
        replayed_steps: 960,
        replayed_seeds: 3,
        quota_steps: 40,
        rivals_steps: 0,
        disk_steps: 0,
        link_steps: 0,
        headline_seeds: 3,
        headline_steps: 0,
        detected: 1_000,
        decided: 20,
        overhead_steps: 60,
    };
    /// Up to twenty minutes: every row.
    const CORE: Self = Self {
        steps: 960,
        seeds: 20,
        real_steps: 200,
        real_policies: &["nd", "predictive", "lb-bsp"],
        real_kinds_steps: 0,
        devices_steps: 200,
        replayed_steps: 11_500,
        replayed_seeds: 5,
        quota_steps: 150,
        rivals_steps: 150,
        disk_steps: 120,
        link_steps: 200,
        headline_seeds: 6,
        headline_steps: 120,
        detected: 3_000,
        decided: 100,
        overhead_steps: 300,
    };
    /// Hours: more seeds, longer jobs, and real processes with every kind of stragglers that can be emulated.
    const FULL: Self = Self {
        steps: 1_920,
        seeds: 60,
        real_steps: 600,
        real_policies: &["nd", "predictive", "lb-bsp"],
        real_kinds_steps: 300,
        devices_steps: 600,
        replayed_steps: 11_500,
        replayed_seeds: 30,
        quota_steps: 1_000,
        rivals_steps: 1_000,
        disk_steps: 400,
        link_steps: 600,
        headline_seeds: 30,
        headline_steps: 400,
        detected: 10_000,
        decided: 400,
        overhead_steps: 1_000,
    };

    const fn of(settings: &Settings) -> Self {
        match (settings.quick, settings.full) {
            (true, _) => Self::QUICK,
            (false, false) => Self::CORE,
            (false, true) => Self::FULL,
        }
    }
}

/// Runs the benchmark `policies` and adds its rows to `rows`.
///
/// # Errors
/// If a job cannot be run, or the parts that an earlier run has stored cannot be read.
pub fn run(settings: &Settings, rows: &mut Rows) -> Result<()> {
    let scale = Scale::of(settings);
    let mut cells = Cells::open(settings, &scale, rows)?;
    cells.measure("detection", |rows| detection::run(scale.detected, rows))?;
    cells.measure("links", |rows| links::run(scale.detected, scale.seeds, scale.steps, rows))?;
    for trace in trace::ALL {
        cells.measure(trace.name, |rows| {
            let measured = measure(&trace, scale.steps, scale.seeds)?;
            let over = over_nd(&measured, trace.sync);
            rows.extend(judge(trace.name, scale.steps, trace.sync, &measured, &over));
            Ok(())
        })?;
    }
    match replays::all()? {
        Some(all) => {
            for series in all {
                cells.measure(&format!("replay of {}", series.name), |rows| replay(&scale, &series, rows))?;
            }
        }
        None => cells.measure("replays", |rows| {
            let why = "set ANTDT_DATA to a folder that has slowdown_series";
            rows.push(Entry::without("replays of recorded slowdowns", State::NotCompared, why));
            Ok(())
        })?,
    }
    cells.measure("headline", |rows| headline::simulated(scale.steps, scale.headline_seeds, rows))?;
    restart::decisions(scale.decided, &mut cells)?;
    cells.measure("devices", devices::run)?;
    cells.measure("overhead", |rows| overhead::run(settings, scale.overhead_steps, rows))?;
    cells.measure("cure", |rows| restart::cure(settings, rows))?;
    cells.measure("real", |rows| real::steady(settings, &scale, rows))?;
    if scale.devices_steps > 0 {
        cells.measure("real devices", |rows| real::devices(settings, scale.devices_steps, rows))?;
    }
    contention::run(settings, &scale, &mut cells)?;
    if scale.headline_steps > 0 {
        cells.measure("real headline", |rows| headline::real(settings, scale.headline_steps, rows))?;
    }
    for trace in trace::ALL.iter().filter(|trace| scale.real_kinds_steps > 0 && trace.can_be_emulated()) {
        cells.measure(&format!("real {}", trace.name), |rows| {
            real::kind(settings, trace, scale.real_kinds_steps, rows)
        })?;
    }
    Ok(())
}

/// Times of one seed, in seconds without the start.
#[derive(Debug, Clone)]
struct Times {
    none: f64,
    oracle: f64,
    /// Time below which no job can be.
    least: f64,
    /// In the order of [`contenders`].
    policies: Vec<f64>,
}

/// A policy in a sync mode. The oracle has the actions of those in the trace's own mode; backups and other modes are other actions.
#[derive(Debug, Clone, Copy)]
struct Contender {
    sync: &'static str,
    policy: &'static str,
}

impl Contender {
    /// Whether it has the oracle's actions.
    fn is_bounded(self, sync: &str) -> bool {
        self.sync == sync && !self.policy.contains("backup")
    }

    fn name(self, sync: &str) -> String {
        if self.sync == sync { self.policy.to_owned() } else { format!("{} in {}", self.policy, self.sync) }
    }
}

/// All that stand beside doing nothing in a job of this sync mode, but `dd`: it is for devices of several kinds and has rows of its own.
fn contenders(sync: &'static str) -> Vec<Contender> {
    let of = |policy: &'static str| Contender { sync, policy };
    let own = if sync == "ps-bsp" {
        vec!["nd", "predictive", "lb-bsp", "backup", "nd+backup"]
    } else {
        vec!["nd", "predictive", "lb-bsp"]
    };
    let asp = Contender { sync: "ps-asp", policy: "none" };
    own.into_iter().map(of).chain([asp]).collect()
}

fn measure(trace: &Trace, steps: u32, seeds: u64) -> Result<Vec<Times>> {
    let length = f64::from(steps * BATCH) / SPEED;
    let jobs: Vec<Job> = (0..seeds).map(|seed| Job::of(trace, steps, length, Seed(seed))).collect();
    times(&jobs)
}

/// A recorded series, at its own time.
fn replay(scale: &Scale, series: &replays::Series, rows: &mut Rows) -> Result<()> {
    let replays::Series { name, slowdowns, is_quiet } = series;
    let steps = scale.replayed_steps;
    let length = f64::from(steps * BATCH) / SPEED;
    // A series of which a job sees a part begins where most happens: 20 s before its largest value.
    let workers = u32::try_from(slowdowns.workers()).unwrap_or(u32::MAX);
    let stragglers = replays::stragglers(slowdowns, 4.0 * length + slowdowns.period().as_secs_f64());
    let most = stragglers.iter().max_by(|a, b| a.slow.total_cmp(&b.slow)).map_or(JobTime::ZERO, |it| it.from);
    let begin = if length < slowdowns.period().as_secs_f64() {
        most - Duration::from_secs(20)
    } else {
        JobTime::ZERO
    };
    let from = |it: &Straggler| it.to > begin;
    let moved = |it: &Straggler| Straggler {
        from: JobTime::ZERO + it.from.since(begin),
        to: JobTime::ZERO + it.to.since(begin),
        ..*it
    };
    let stragglers: Vec<Straggler> = stragglers.iter().filter(|it| from(it)).map(moved).collect();
    rows.push(predicted(name, slowdowns));
    let job = |seed: u64| Job {
        workers,
        sync: "allreduce",
        servers: 0,
        serve: SERVE,
        speed: SPEED,
        steps,
        noise: REPLAY_NOISE,
        stragglers: shifted(&stragglers),
        slow_link: (1.0, length),
        seed: Seed(seed),
    };
    let trace = format!("replay of {name}");
    // The oracle takes long, and one job shows what there is to save. Whether one policy is better than another takes several.
    let measured = times(&[job(1)])?;
    let mut over = over_nd(&measured, "allreduce");
    let others: Vec<(u64, &str)> = (2..=scale.replayed_seeds)
        .flat_map(|seed| ["predictive", "nd"].map(|policy| (seed, policy)))
        .collect();
    let took = spread(&others, |(seed, policy)| job(*seed).took(named(policy)?))?;
    over.extend(took.chunks_exact(2).map(|of_seed| 100.0 * (of_seed[0] / of_seed[1] - 1.0)));
    rows.extend(judge(&trace, steps, "allreduce", &measured, &over));
    if *is_quiet {
        for (policy, acted) in JUDGED.into_iter().zip(spread(&JUDGED, |policy| job(1).actions(policy))?) {
            rows.push(Entry::shown(format!("{trace}, {policy}: actions"), f64::from(acted), "").at_most(0.0));
        }
    }
    let (truth, window) = (truth(&stragglers, workers, steps), "the labels are those of the values");
    let found = detection::detect(&truth, REPLAY_NOISE, &mut Seed(1).rng())?;
    if found.is_empty() {
        rows.push(
            Entry::shown(format!("detection, {trace}: workers called slow"), f64::from(found.wrong()), "")
                .at_most(0.0)
                .beside("nobody is slow for long enough"),
        );
    } else {
        rows.extend(detection::told(&trace, &found, window));
    }
    Ok(())
}

/// How far predictions of a worker's next value are off, by predictor: the root of the mean squared error of its logarithm.
fn predicted(name: &str, slowdowns: &antdt_sim::model::compute::Slowdowns) -> Entry {
    use antdt_controller::predict::{NAMES, by_name};
    let workers = u32::try_from(slowdowns.workers()).unwrap_or(u32::MAX);
    let error = |predictor: &str, smoothing: f64| {
        let (mut sum, mut count) = (0.0, 0.0);
        for worker in 0..workers {
            let Ok(mut predictor) = by_name(predictor, smoothing) else { continue };
            for (_, factor) in slowdowns.entries(worker) {
                if let Some(predicted) = predictor.predict() {
                    sum += (predicted - factor.ln()).powi(2);
                    count += 1.0;
                }
                predictor.observe(factor.ln());
            }
        }
        100.0 * f64::sqrt(sum / f64::max(count, 1.0))
    };
    let errors: Vec<String> =
        NAMES.iter().map(|predictor| format!("{predictor} {:.2}", error(predictor, 0.5))).collect();
    let newest = error("ewma", 1.0);
    let best = NAMES.iter().map(|predictor| error(predictor, 0.5)).fold(f64::INFINITY, f64::min);
    Entry::shown(
        format!("prediction, {name}: error of the best predictor over that of the newest value"),
        best / newest,
        "x",
    )
    .beside(format!(
        "root mean squared error of the next value in percent: {}, the newest value {newest:.2}",
        errors.join(", ")
    ))
}

/// Noise of a batch beside what was recorded, which are means of 10 s.
const REPLAY_NOISE: f64 = 0.05;

/// The slowness of each worker at each step of a job without a policy.
fn truth(stragglers: &[Straggler], workers: u32, steps: u32) -> detection::Truth {
    let mut now = JobTime::ZERO;
    let mut truth: detection::Truth = vec![Vec::new(); workers as usize];
    let mut own: Vec<Vec<Straggler>> = vec![Vec::new(); workers as usize];
    for it in stragglers {
        if let antdt_sim::model::compute::Who::Node(node) = it.who {
            own[node.index as usize].push(*it);
        }
    }
    for _ in 0..steps {
        let mut longest = 1.0_f64;
        for (slowness, own) in truth.iter_mut().zip(&own) {
            let active = own.iter().filter(|it| it.from <= now && now < it.to);
            let slow: f64 = active.map(|it| it.slow).product();
            slowness.push(slow);
            longest = longest.max(slow);
        }
        now = now + Duration::from_secs_f64(longest * f64::from(BATCH) / SPEED);
    }
    truth
}

/// The oracle's time: doing nothing is one of its ways.
fn best(none: f64, ways: &[f64]) -> f64 {
    ways.iter().copied().fold(none, f64::min)
}

/// What a simulated job is run with.
#[derive(Debug, Clone, Copy)]
enum Runner {
    Contender(Contender),
    Oracle(Way),
}

/// The times of each of these jobs, all of which are run at once as far as there are cores.
fn times(jobs: &[Job]) -> Result<Vec<Times>> {
    let runners = |job: &Job| -> Vec<Runner> {
        let none = Contender { sync: job.sync, policy: "none" };
        let contenders = [none].into_iter().chain(contenders(job.sync)).map(Runner::Contender);
        contenders.chain(Way::all(&job.stragglers).into_iter().map(Runner::Oracle)).collect()
    };
    let all: Vec<(&Job, Runner)> =
        jobs.iter().flat_map(|job| runners(job).into_iter().map(move |runner| (job, runner))).collect();
    let mut took = spread(&all, |(job, runner)| job.took_by(*runner))?.into_iter();
    let of_job = |job: &Job| {
        let own: Vec<f64> = took.by_ref().take(runners(job).len()).collect();
        let (policies, ways) = own[1..].split_at(contenders(job.sync).len());
        Times { none: own[0], oracle: best(own[0], ways), least: job.least_s(), policies: policies.to_vec() }
    };
    Ok(jobs.iter().map(of_job).collect())
}

/// The rows of a trace. `over` is what `predictive` costs over `nd`, in percent.
fn judge(trace: &str, steps: u32, sync: &'static str, measured: &[Times], over: &[f64]) -> Vec<Entry> {
    let column = |of: &dyn Fn(&Times) -> f64| measured.iter().map(of).collect::<Vec<f64>>();
    let (none, oracle) = (median(column(&|it| it.none)), median(column(&|it| it.oracle)));
    let ceiling = median(column(&|it| it.none / it.oracle));
    let mut rows = Vec::new();
    for (at, contender) in contenders(sync).into_iter().enumerate() {
        let policy = contender.name(sync);
        let name = format!("{trace}, {steps} steps, {policy}");
        let took = median(column(&|it| it.policies[at]));
        let is_judged = JUDGED.contains(&policy.as_str());
        let peer = format!(
            "ceiling {ceiling:.2}x: none {none:.0} s, oracle {oracle:.0} s, {policy} {took:.0} s; {} seeds{}",
            measured.len(),
            if is_judged { "" } else { "; a baseline" }
        );
        // Of one job there is no interval.
        let bounds = |values: &[f64]| match values {
            [value] => (*value, [*value, *value]),
            _ => interval(values),
        };
        let row = if ceiling >= CEILING {
            let (mean, bounds) = bounds(&column(&|it| (it.none - it.policies[at]) / (it.none - it.oracle)));
            let row = Entry::shown(format!("{name}: saved share"), mean, "");
            if is_judged { row.interval_at_least(bounds, SAVED) } else { row }
        } else {
            let (mean, bounds) = bounds(&column(&|it| 100.0 * (it.policies[at] / it.none - 1.0)));
            let row = Entry::shown(format!("{name}: time over doing nothing"), mean, "%");
            if is_judged { row.interval_at_most(bounds, COST_PERCENT) } else { row }
        };
        rows.push(row.beside(peer));
    }
    rows.push(beside_nd(trace, steps, over));
    let beyond: usize = measured.iter().map(|times| errors(times, sync)).sum();
    #[allow(clippy::cast_precision_loss, reason = "a small number")]
    let count = beyond as f64;
    let peer = "no policy with its actions beats the oracle by more than 2 %, and nobody all workers computing all the time";
    rows.push(
        Entry::shown(format!("{trace}: figures above their ceiling"), count, "").at_most(0.0).beside(peer),
    );
    rows
}

/// What `predictive` costs over `nd` with each seed, in percent.
fn over_nd(measured: &[Times], sync: &'static str) -> Vec<f64> {
    let at = |name: &str| contenders(sync).iter().position(|it| it.sync == sync && it.policy == name);
    let (Some(nd), Some(predictive)) = (at("nd"), at("predictive")) else { return Vec::new() };
    measured.iter().map(|it| 100.0 * (it.policies[predictive] / it.policies[nd] - 1.0)).collect()
}

/// The row of it: `predictive` may be the default only if it is nowhere slower.
fn beside_nd(trace: &str, steps: u32, over: &[f64]) -> Entry {
    let (mean, bounds) = match over {
        [value] => (*value, [*value, *value]),
        _ => interval(over),
    };
    let row = Entry::shown(format!("{trace}, {steps} steps, predictive: time over nd"), mean, "%");
    row.interval_at_most(bounds, COST_PERCENT).beside(format!("{} seeds", over.len()))
}

/// Figures of a seed that cannot be.
fn errors(times: &Times, sync: &'static str) -> usize {
    let beats_all = |time: f64| time < times.least;
    let beats_the_oracle = |time: f64| {
        (times.none - time) > (1.0 + BEYOND) * (times.none - times.oracle) + BEYOND * times.oracle
    };
    let contenders = times.policies.iter().zip(contenders(sync));
    let wrong = contenders
        .filter(|(time, it)| beats_all(**time) || (it.is_bounded(sync) && beats_the_oracle(**time)));
    wrong.count() + [times.none, times.oracle].into_iter().filter(|time| beats_all(*time)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_above_its_ceiling_is_an_error_of_measuring() {
        let of = |oracle: f64, policies: &[f64]| {
            errors(&Times { none: 400.0, oracle, least: 140.0, policies: policies.to_vec() }, "allreduce")
        };
        assert_eq!(of(150.0, &[160.0, 149.0]), 0);
        assert_eq!(of(150.0, &[139.0, 160.0]), 1, "faster than all workers can be");
        assert_eq!(of(150.0, &[141.0]), 1, "far better than the oracle");
        assert_eq!(of(139.0, &[160.0]), 1, "the oracle, too");
        assert_eq!(
            of(150.0, &[160.0, 160.0, 160.0, 141.0]),
            0,
            "no worker waits for another there: it has another oracle"
        );
    }

    #[test]
    fn the_oracle_is_worth_its_name_on_a_short_job_of_each_kind() {
        for trace in trace::ALL {
            let times = &measure(&trace, 120, 1).unwrap()[0];
            assert_eq!(errors(times, trace.sync), 0, "{}: {times:?}", trace.name);
            assert!(times.oracle <= times.none, "{}: {times:?}", trace.name);
            let saves = ["steady", "transient", "persistent", "mixed", "whole host"].contains(&trace.name);
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
                policies: vec![nd + at * spread, nd, 300.0, 300.0],
            };
            judge("steady", 100, "allreduce", &[times(0.0), times(1.0), times(-1.0)], &[0.0, 1.0])
        };
        use crate::entry::State;
        assert_eq!(of(160.0, 1.0)[0].state, State::Ok);
        assert_eq!(of(300.0, 1.0)[0].state, State::Failed);
        assert_eq!(of(187.0, 20.0)[0].state, State::Unresolved);
        let baseline = &of(160.0, 1.0)[2];
        assert!(baseline.target.is_none() && baseline.state == State::Ok, "{baseline:?}");
    }
}
