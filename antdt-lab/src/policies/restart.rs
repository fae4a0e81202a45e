//! Whether a restart is decided on where it pays: simulated jobs on both sides of the break-even curve, and a job of real processes whose
//! straggler a restart cures.
//!
//! A worker is slow from the start, and its restart cures it. When `nd` may restart it, the rest of the job is 20 % shorter or longer
//! than the break-even time, `(v_n D + 2 R V) / (v_n - v_s)`: with `D` from the order until the worker is back, `R` for which all
//! workers wait for a new group, `v_s` and `v_n` the worker's speed before and after, and `V` that of the others. Right
//! is a restart beyond that time, and none before. That the formula is right is measured too: the same job is run with a restart at
//! that moment and without any, and on average over the seeds the restart must pay where it is right.

use std::time::Duration;

use antdt_controller::policy::{self, ProposedAction};
use antdt_controller::{ApportionError, Decision, Policy, RestartBudget, Seat, Split};
use antdt_core::{
    ActionOutcome, ClusterView, DetRng, Holder, Incarnation, JobTime, NodeActionKind, NodeId, Reason, Seed,
};
use antdt_sim::model::compute::{Constant, LogNormal, Slow, Straggler, Who};
use antdt_sim::model::faults::Listed;
use antdt_sim::model::{Collective, Hosts, Models, Network, Site, scheduler};
use antdt_sim::{Setup, SimulatedJob, World};
use anyhow::{Result, anyhow, ensure};

use super::cells::Cells;
use super::job::named;
use super::spread::spread;
use super::{BATCH, JUDGED, OTHERS_MAX, SPEED, WORKERS};
use crate::entry::State;
use crate::meter::Others;
use crate::{Entry, Rows, Settings};

/// The worker that is slow: not the chief, which is not restarted.
const WORKER: u32 = 3;
/// Noise of a batch.
const NOISE: f64 = 0.05;
/// Rests of the job in units of the break-even time.
const SIDES: [f64; 2] = [0.8, 1.2];
/// Least share of seeds with the right decision, percent.
const RIGHT: f64 = 95.0;
/// Samples of the job by which the moment of the decision is found: 10 minutes without a straggler.
const LONG: u64 = (SPEED as u64) * (WORKERS as u64) * 600;

/// A point of the break-even curve: how slow the worker is, how long a start takes, and how long a new group.
#[derive(Debug, Clone, Copy)]
struct Point {
    slow: f64,
    start: Duration,
    form: Duration,
}

/// With the pause for a new group that policies suppose.
const CURVE: [Point; 3] = [
    Point { slow: 2.0, start: Duration::from_secs(10), form: Duration::from_secs(1) },
    Point { slow: 4.0, start: Duration::from_secs(10), form: Duration::from_secs(1) },
    Point { slow: 4.0, start: Duration::from_secs(30), form: Duration::from_secs(1) },
];

/// Nothing takes time but to form a group.
#[derive(Debug)]
struct Forming(Duration);

impl Network for Forming {
    fn message(&mut self, at: JobTime, _: Site, _: Site, _: u64, _: &mut DetRng) -> Option<JobTime> {
        Some(at)
    }

    fn collective(&mut self, _: JobTime, _: Collective, _: u32, _: &mut DetRng) -> Duration {
        Duration::ZERO
    }

    fn form(&mut self, _: JobTime, _: u32, _: &mut DetRng) -> Duration {
        self.0
    }
}

/// `nd`, but restarts are as told: the worker at one moment, or none.
#[derive(Debug)]
struct Told {
    /// Finds that no restart is worth it.
    base: Box<dyn Policy>,
    restart_at: Option<JobTime>,
}

impl Told {
    fn new(restart_at: Option<JobTime>) -> Result<Self> {
        let settings = [("safety-factor".to_owned(), "1e9".to_owned())].into();
        let base = policy::build("nd", &settings).map_err(|error| anyhow!("{error}"))?;
        Ok(Self { base, restart_at })
    }
}

impl Policy for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    fn decide(&mut self, now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
        if self.restart_at.is_some_and(|at| at <= now) && !view.plan_pending && !view.membership_changed {
            self.restart_at = None;
            let action = ProposedAction {
                target: Holder::new(NodeId::worker(WORKER), Incarnation(0)),
                kind: NodeActionKind::KillRestart { drain: Duration::from_secs(30) },
                reason: Reason::Other("to see whether it pays".to_owned()),
            };
            return Decision { node_actions: vec![action], ..Decision::default() };
        }
        self.base.decide(now, view, budget)
    }

    fn split(&self, total: u32, seats: &[Seat]) -> Result<Split, ApportionError> {
        self.base.split(total, seats)
    }

    fn on_outcome(&mut self, now: JobTime, outcome: &ActionOutcome) {
        self.base.on_outcome(now, outcome);
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(Self { base: self.base.clone_box(), restart_at: self.restart_at })
    }
}

impl Point {
    /// Rest of the job, in seconds, from which on a restart pays.
    fn break_even_s(self) -> f64 {
        let (away, pause) = ((self.start + self.form).as_secs_f64(), self.form.as_secs_f64());
        let others = f64::from(WORKERS - 1) * SPEED;
        (SPEED * away + 2.0 * pause * others) / (SPEED - SPEED / self.slow)
    }

    fn run(self, seed: u64, samples: u64, policy: Box<dyn Policy>) -> Result<SimulatedJob> {
        let who = Who::Node(NodeId::worker(WORKER));
        let (from, to) = (JobTime::ZERO, JobTime::NEVER);
        let straggler = Straggler { who, slow: self.slow, from, to, cured_by_restart: true };
        let workers = LogNormal::new(Constant::speed(SPEED)?, NOISE)?;
        let models = Models {
            compute: Box::new(Slow::new(workers, Hosts::default(), [straggler])?),
            network: Box::new(Forming(self.form)),
            scheduler: Box::new(scheduler::Constant(self.start)),
            faults: Box::new(Listed::new([])),
        };
        let setup = Setup {
            workers: WORKERS,
            global_batch_size: BATCH * WORKERS,
            samples,
            seed: Seed(seed),
            ..Setup::default()
        };
        let (job, _) =
            World::new(setup, policy, models)?.run(JobTime::NEVER).map_err(|(violation, _)| violation)?;
        job.result.clone().map_err(|why| anyhow!("a simulated job failed: {why}"))?;
        Ok(job)
    }

    fn told(self, seed: u64, samples: u64, restart_at: Option<JobTime>) -> Result<f64> {
        Ok(self.run(seed, samples, Box::new(Told::new(restart_at)?))?.completed.as_secs_f64())
    }

    /// The moment at which the policy restarts the worker of a job that goes on for long.
    fn decided_at(self, seed: u64) -> Result<JobTime> {
        let job = self.run(seed, LONG, named("nd")?)?;
        restart(&job).ok_or_else(|| anyhow!("nd restarts nobody of a long job: {self:?}, seed {seed}"))
    }

    /// Samples of jobs that have so many seconds to go at this moment if they go on as they do.
    fn samples<const N: usize>(self, seed: u64, at: JobTime, to_go: [f64; N]) -> Result<[u64; N]> {
        let [long, half] = [LONG, LONG / 2];
        let (all, first) = (self.told(seed, long, None)?, self.told(seed, half, None)?);
        #[allow(clippy::cast_precision_loss, reason = "less than 2^53")]
        let rate = (long - half) as f64 / (all - first);
        let less = to_go.map(|to_go| (all - at.as_secs_f64() - to_go) * rate);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below those of the long job"
        )]
        let samples = less.map(|less| long.saturating_sub(less.max(0.0) as u64));
        ensure!(samples.iter().all(|it| *it > 0), "{self:?}, seed {seed}: nothing is left of the job");
        Ok(samples)
    }

    /// What a restart saves on each side of the break-even time, and what the policies decide.
    fn sides(self, seed: u64) -> Result<[Side; SIDES.len()]> {
        let at = self.decided_at(seed)?;
        let samples = self.samples(seed, at, SIDES.map(|side| side * self.break_even_s()))?;
        let mut sides = [Side::default(); SIDES.len()];
        for (side, samples) in sides.iter_mut().zip(samples) {
            side.saves = self.told(seed, samples, None)? - self.told(seed, samples, Some(at))?;
            for (restarts, policy) in side.restarts.iter_mut().zip(JUDGED) {
                *restarts = restart(&self.run(seed, samples, named(policy)?)?).is_some();
            }
        }
        Ok(sides)
    }
}

/// One side of the break-even time, with one seed.
#[derive(Debug, Clone, Copy, Default)]
struct Side {
    /// Seconds that a restart saves.
    saves: f64,
    /// Whether each of the judged policies restarts the worker.
    restarts: [bool; JUDGED.len()],
}

/// When the worker was restarted for its slowness.
fn restart(job: &SimulatedJob) -> Option<JobTime> {
    job.actions.iter().find(|action| action.kind == "KILL_RESTART").map(|action| action.at)
}

/// A row for each judged policy, point and side: the share of seeds in which it restarts the worker if and only if that makes the job shorter.
///
/// # Errors
/// If a job cannot be run.
pub(super) fn decisions(seeds: u64, cells: &mut Cells<'_>) -> Result<()> {
    for point in CURVE {
        cells.measure(&format!("restart {point:?}"), |rows| sides(point, seeds, rows))?;
    }
    Ok(())
}

fn sides(point: Point, seeds: u64, rows: &mut Rows) -> Result<()> {
    let seeds_of: Vec<u64> = (0..seeds).collect();
    let decided = spread(&seeds_of, |seed| point.sides(*seed))?;
    for (at, side) in SIDES.into_iter().enumerate() {
        let mut right = [0_u32; JUDGED.len()];
        let (mut pays, mut gain) = (0_u32, 0.0);
        for of_seed in decided.iter().map(|it| &it[at]) {
            pays += u32::from(of_seed.saves > 0.0);
            gain += of_seed.saves;
            for (right, restarts) in right.iter_mut().zip(of_seed.restarts) {
                *right += u32::from(restarts == (side > 1.0));
            }
        }
        #[allow(clippy::cast_precision_loss, reason = "a small number")]
        let count = seeds as f64;
        let gain = gain / count;
        for (right, policy) in right.into_iter().zip(JUDGED) {
            let name = format!(
                "restart of a worker {:.0}x as slow, start {} s, {side} of the break-even, {policy}: right decisions",
                point.slow,
                point.start.as_secs()
            );
            let runs = format!(
                "break-even {:.1} s; a restart pays in {pays} of {seeds} seeds, by {gain:.2} s on average",
                point.break_even_s()
            );
            rows.push(if (gain > 0.0) == (side > 1.0) {
                let share = 100.0 * f64::from(right) / count;
                Entry::shown(name, share, "%").at_least(RIGHT).beside(runs)
            } else {
                Entry::without(name, State::NotMeasured, format!("the formula is wrong here: {runs}"))
            });
        }
    }
    Ok(())
}

/// Workers of the job of real processes, samples of a worker's batch and of each per second: steps of 32 ms.
const REAL: (u32, u32, u32) = (4, 32, 1000);

/// Its steps: the long window, which makes the label, is 200 of them, and what follows is longer than the break-even time.
const REAL_STEPS: u32 = 600;

/// What the worker's time per sample may be after its restart, over that of its peers: from 1.3x on it would be a straggler.
const CURED: f64 = 1.3;

/// Real processes: a worker that is slow from 2 s on until its process is another one.
///
/// # Errors
/// If the job cannot be run.
pub(super) fn cure(settings: &Settings, rows: &mut Rows) -> Result<()> {
    let (workers, batch, speed) = REAL;
    let (name, global) = ("real processes, straggler that a restart cures, nd", workers * batch);
    let text = format!(
        "--nproc-per-node {workers} --sync allreduce --policy nd --workload deepfm --epochs 1 --seed 1 --quiet \
         --data synthetic:{} --global-batch-size {global} --emulate-speed {speed} \
         --straggler worker=1,slow=4,from=2s,restart=cures",
        u64::from(REAL_STEPS) * u64::from(global)
    );
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let others = Others::watch();
    let report = crate::run::run(
        &settings.antdt,
        &words,
        &settings.report_dir.join("cure"),
        Duration::from_secs(240),
    )?;
    let others = others.share();
    let restarts: Vec<f64> = report
        .actions
        .iter()
        .filter(|action| action.kind == "KILL_RESTART" && action.target == "worker-1")
        .map(|action| action.time_s)
        .collect();
    let took = format!("the job took {:.1} s", report.job_completion_time_s);
    let at = restarts.first().map_or_else(|| "no restart".to_owned(), |at| format!("restarted at {at:.1} s"));
    #[allow(clippy::cast_precision_loss, reason = "a small number")]
    let count = restarts.len() as f64;
    rows.push(
        Entry::shown(format!("{name}: KILL_RESTARTs of the straggler"), count, "")
            .within(0.0, 1.0)
            .unless_overloaded(others, OTHERS_MAX)
            .beside(format!("{at}; {took}")),
    );
    // The first batches of a life are slow by themselves; and without a restart all batches since the worker is slow.
    let from = restarts.first().map_or(2.0, |at| at + 3.0);
    let time_per_sample = |worker: u32| {
        let id = format!("worker-{worker}");
        let series = &report.workers.iter().find(|it| it.id == id)?.series;
        let (mut time, mut samples) = (0.0, 0.0);
        for point in series.points().iter().filter(|point| point.time_s >= from) {
            #[allow(clippy::cast_precision_loss, reason = "less than 2^53")]
            let (batches, trained) = (point.batches as f64, point.samples as f64);
            time += point.compute_s * batches;
            samples += trained;
        }
        (samples > 0.0).then(|| time / samples)
    };
    let name = format!("{name}: its time per sample over its peers' after the restart");
    let peers: Option<Vec<f64>> = [0, 2, 3].into_iter().map(time_per_sample).collect();
    rows.push(match (time_per_sample(1), peers) {
        (Some(own), Some(peers)) => {
            let peers = crate::meter::median(peers);
            Entry::shown(name, own / peers, "x")
                .at_most(CURED)
                .unless_overloaded(others, OTHERS_MAX)
                .beside(format!("4x before; {:.3} ms and {:.3} ms; {took}", own * 1e3, peers * 1e3))
        }
        _ => Entry::shown(name, f64::INFINITY, "x").at_most(CURED).beside("it trains nothing any more"),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_pays_beyond_the_break_even_and_not_before() {
        for point in CURVE {
            for side in SIDES {
                let at = point.decided_at(0).unwrap();
                let [samples] = point.samples(0, at, [side * point.break_even_s()]).unwrap();
                let [left, restarted] = [None, Some(at)].map(|at| point.told(0, samples, at).unwrap());
                let to_go = left - at.as_secs_f64();
                assert!(
                    (to_go / (side * point.break_even_s()) - 1.0).abs() < 0.03,
                    "{point:?}: {to_go} s are left"
                );
                assert_eq!(restarted < left, side > 1.0, "{point:?}, {side}: {restarted} s and {left} s");
            }
        }
    }
}
