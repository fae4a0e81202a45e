//! The benchmark `calibrate`, the calibration gate: compares real jobs with their simulation, for every sync
//! mode and policy.
//!
//! A real job is processes of this machine whose gradients take an emulated time. Its simulation knows the settings, how
//! fast the workers are said to be, how long the recorded processes took to start and the first group to form, and, from one
//! probe job of each sync mode and number of workers, what a step takes besides the gradient. (One more job runs before all
//! of them and is not compared, so that no probe is the first job after a pause.) It must find the completion time of all
//! other jobs, and the policy must do the same at the same steps. A probe is simulated and shown too, but not counted: what
//! was fitted to it would be compared with itself. Only then are simulated figures worth anything.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use antdt_core::{Barrier, Capabilities, DetRng, Holder, JobTime, NodeId, Role, Seed};
use antdt_job::SyncMode;
use antdt_sim::calibration::Row;
use antdt_sim::model::compute::Constant;
use antdt_sim::model::faults::Listed;
use antdt_sim::model::{Collective, Compute, Models, Network, Site};
use antdt_sim::recording::{BatchFact, Facts, RecordedStarts};
use antdt_sim::{Calibration, Recording, Setup, SimulatedJob, World};
use anyhow::{Context, Result, bail};

use crate::run::run as run_antdt;
use crate::{Entry, Rows, Settings};
use antdt_bench::job::modes_with_an_oracle;

/// Samples per second of a worker, and of its batch in an even plan: a step of 100 ms. On two cores what is not emulated
/// must be small against it.
const SPEED: f64 = 640.0;
const BATCH: u32 = 64;
/// Worker that is slow.
const STRAGGLER: u32 = 1;
/// Limit of one job.
const LIMIT: Duration = Duration::from_secs(240);
/// Steps of a worker that an action may come earlier or later.
const STEPS_OFF_MAX: u64 = 2;

/// One job.
#[derive(Debug, Clone, PartialEq)]
struct Case {
    sync: SyncMode,
    policy: &'static str,
    slow: f64,
    workers: u32,
}

impl Case {
    fn name(&self) -> String {
        format!("{} {} x{} n{}", self.sync, self.policy, self.slow, self.workers)
    }

    fn servers(&self) -> u32 {
        if self.sync.capabilities().needs_servers() { 2 } else { 0 }
    }

    fn arguments(&self, steps: u32, record: &Path) -> Vec<String> {
        let batch = BATCH * self.workers;
        let mut text = format!(
            "--nproc-per-node {} --sync {} --policy {} --workload deepfm --epochs 1 --seed 1 --data synthetic:{} \
             --global-batch-size {batch} --emulate-speed {SPEED} --quiet",
            self.workers,
            self.sync,
            self.policy,
            steps * batch,
        );
        if self.sync.capabilities().needs_servers() {
            text.push_str(&format!(" --servers {}", self.servers()));
        }
        if self.slow > 1.0 {
            text.push_str(&format!(" --straggler worker={STRAGGLER},slow={}", self.slow));
        }
        let mut arguments: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        arguments.extend(["--record".to_owned(), record.display().to_string()]);
        arguments
    }

    fn setup(&self, steps: u32) -> Setup {
        Setup {
            sync: self.sync.clone(),
            workers: self.workers,
            servers: self.servers(),
            global_batch_size: BATCH * self.workers,
            samples: u64::from(steps * BATCH * self.workers),
            seed: Seed(1),
            ..Setup::default()
        }
    }

    /// Its simulation, with what a step takes besides the gradient.
    fn simulate(&self, steps: u32, facts: &Facts, beside: Duration) -> Result<SimulatedJob> {
        let starts = RecordedStarts::new(facts).context("no process registered")?;
        let models = Models {
            compute: Box::new(Emulated { speed: Constant::speed(SPEED)?, slow: self.slow }),
            network: Box::new(Beside { step: beside, formed: facts.formed }),
            scheduler: Box::new(starts),
            faults: Box::new(Listed::new([])),
        };
        let policy = antdt_controller::policy::REGISTRY.by_name(self.policy)?;
        let world = World::new(self.setup(steps), policy, models)?;
        let (outcome, _) =
            world.run(JobTime::from_duration(10 * LIMIT)).map_err(|(violation, _)| violation)?;
        match &outcome.result {
            Ok(()) => Ok(outcome),
            Err(why) => bail!("{}: the simulated job failed: {why}", self.name()),
        }
    }
}

/// The speed that the processes emulate.
#[derive(Debug)]
struct Emulated {
    speed: Constant,
    slow: f64,
}

impl Compute for Emulated {
    fn time(&mut self, at: JobTime, holder: Holder, samples: u64, rng: &mut DetRng) -> Duration {
        match holder.node.role {
            Role::Server => Duration::ZERO,
            Role::Worker if holder.node.index == STRAGGLER => {
                self.speed.time(at, holder, samples, rng).mul_f64(self.slow)
            }
            Role::Worker => self.speed.time(at, holder, samples, rng),
        }
    }
}

/// A network on which a step takes this long besides the gradient.
#[derive(Debug)]
struct Beside {
    step: Duration,
    /// Until the first group is formed; nothing is known of others.
    formed: Option<Duration>,
}

impl Network for Beside {
    fn message(&mut self, at: JobTime, from: Site, to: Site, _: u64, _: &mut DetRng) -> Option<JobTime> {
        let time = match (from, to) {
            // To a server and back, for a pull and for a push.
            (Site::Node(_), Site::Node(_)) => self.step / 4,
            // What a worker waits for the master is part of its step, or of its start.
            (Site::Master, _) | (_, Site::Master) => Duration::ZERO,
        };
        Some(at + time)
    }

    fn collective(&mut self, _: JobTime, operation: Collective, _: u32, _: &mut DetRng) -> Duration {
        match operation {
            Collective::AllReduce(bytes) if bytes > 1024 => self.step,
            _ => Duration::ZERO,
        }
    }

    fn form(&mut self, _: JobTime, _: u32, _: &mut DetRng) -> Duration {
        self.formed.take().unwrap_or_default()
    }
}

/// What a step takes besides the gradient, the median over all steps but the first. In step with others it is what is left
/// of the step without the gradient of the slowest. The step is the mean over the workers: one is let go first after one
/// step and another after the next, so that what the quickest of each step sees is shorter than a step.
fn beside(workers: &BTreeMap<NodeId, Vec<BatchFact>>, mode: Capabilities) -> Duration {
    let longest = workers.values().map(Vec::len).max().unwrap_or(0);
    let mut times: Vec<Duration> = (1..longest)
        .flat_map(|step| {
            let batches: Vec<&BatchFact> = workers.values().filter_map(|batches| batches.get(step)).collect();
            if mode.waits_for_all() {
                let count = u32::try_from(batches.len()).unwrap_or(u32::MAX).max(1);
                let mean = batches.iter().map(|batch| batch.wall()).sum::<Duration>() / count;
                let slowest = batches.iter().map(|batch| batch.compute).max().unwrap_or_default();
                vec![mean.saturating_sub(slowest)]
            } else {
                batches.iter().map(|batch| batch.wall().saturating_sub(batch.compute)).collect()
            }
        })
        .collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The steps of the plans that a policy made, of a recorded job: how many steps the first worker had reported by then.
fn recorded_actions(facts: &Facts, mode: Capabilities) -> Vec<(String, u64)> {
    let mut ends: Vec<JobTime> = match mode.barrier {
        Barrier::Within(_) | Barrier::Peers | Barrier::Nobody => {
            facts.batches.values().flatten().map(|batch| batch.end).collect()
        }
        Barrier::All | Barrier::AllBut(_) => {
            let longest = facts.batches.values().max_by_key(|batches| batches.len());
            longest.into_iter().flatten().map(|batch| batch.end).collect()
        }
    };
    ends.sort_unstable();
    let step = |at: JobTime| ends.partition_point(|end| *end <= at) as u64;
    facts.actions.iter().map(|action| (action.kind.clone(), step(action.at))).collect()
}

/// Steps that an action may come earlier or later, as the steps of a job are counted: at their own pace each worker's are, so
/// that two steps of one are two of each of the others.
fn slack(mode: Capabilities, workers: u32) -> u64 {
    match mode.barrier {
        Barrier::Within(_) | Barrier::Peers | Barrier::Nobody => STEPS_OFF_MAX * u64::from(workers),
        Barrier::All | Barrier::AllBut(_) => STEPS_OFF_MAX,
    }
}

/// How many actions of one job have no counterpart in the other.
fn actions_off(real: &[(String, u64)], simulated: &[(String, u64)], steps_off_max: u64) -> usize {
    let paired = real
        .iter()
        .zip(simulated)
        .filter(|((a, at), (b, then))| a == b && at.abs_diff(*then) <= steps_off_max)
        .count();
    real.len().max(simulated.len()) - paired
}

/// How far a simulation is from its job, in percent of the job.
fn error_percent(row: &Row) -> f64 {
    100.0 * (row.simulated_s - row.real_s) / row.real_s
}

/// How far the simulations are from the jobs that are no probes; `None` if there are no such jobs.
fn judged(rows: Vec<Row>, commit: String) -> Option<Calibration> {
    let counted = || rows.iter().filter(|job| !job.is_probe);
    let mut errors: Vec<f64> = counted().map(|job| error_percent(job).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let rank = (errors.len() as f64 * share).ceil() as usize;
        errors.get(rank.max(1) - 1).copied()
    };
    let actions_off = counted().map(|job| job.actions_off).sum();
    Some(Calibration {
        commit,
        source: Calibration::SOURCE.to_owned(),
        runs: errors.len(),
        median_percent: at(0.5)?,
        p95_percent: at(0.95)?,
        actions_off,
        rows,
    })
}

/// The commit that is checked out, marked if files differ from it; `unknown` where there is no git.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match (git(&["rev-parse", "HEAD"]), git(&["status", "--porcelain"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => format!("{commit} with changes"),
        (None, _) => "unknown".to_owned(),
    }
}

/// Runs a job for real and simulated, and adds a row. `probe` is the time of a step besides the gradient, and is found out if it is
/// not known yet.
fn compare(
    settings: &Settings,
    case: &Case,
    steps: u32,
    probe: &mut Option<Duration>,
    rows: &mut Rows,
) -> Result<Row> {
    let mode = case.sync.capabilities();
    print!("{:<24}", case.name());
    // Progress only.
    let _ = std::io::stdout().flush();
    let folder = settings.report_dir.join(case.name().replace(' ', "-"));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let file = folder.join("trace.jsonl");
    // What an earlier run left is not this one's.
    let _ = std::fs::remove_file(&file);
    run_antdt(&settings.antdt, &case.arguments(steps, &file), &folder, LIMIT)?;
    let facts = Recording::read(&file)?.facts()?;
    let real = facts.completed.context("the recorded job was not completed")?.as_secs_f64();
    let is_probe = probe.is_none();
    let per_step = *probe.get_or_insert_with(|| beside(&facts.batches, mode));
    let outcome = case.simulate(steps, &facts, per_step)?;
    let simulated = outcome.completed.as_secs_f64();
    let done = recorded_actions(&facts, mode);
    let predicted: Vec<(String, u64)> =
        outcome.actions.iter().map(|action| (action.kind.to_owned(), action.step)).collect();
    let differ = actions_off(&done, &predicted, slack(mode, case.workers));
    let counted = if is_probe { " (probe: not counted)" } else { "" };
    let row = Row { job: case.name(), real_s: real, simulated_s: simulated, is_probe, actions_off: differ };
    let error = error_percent(&row);
    println!("{real:>7.2} s, simulated {simulated:>7.2} s, {error:>6.2} %{counted}");
    let say = |actions: &[(String, u64)]| {
        let said: Vec<String> = actions.iter().map(|(kind, step)| format!("{kind}@{step}")).collect();
        said.join(" ")
    };
    rows.push(Entry::shown(format!("{}: error", case.name()), error, "%").beside(format!(
        "{real:.2} s{counted}; besides the gradient {:.1} ms a step; {differ} actions differ: {} | {}",
        per_step.as_secs_f64() * 1e3,
        say(&done),
        say(&predicted),
    )));
    Ok(row)
}

/// Runs the benchmark `calibrate`: every job for real and simulated. Adds a row for each.
///
/// # Errors
/// If a job cannot be run. A job that the simulation does not match is a row that has failed.
pub fn run(settings: &Settings, rows: &mut Rows) -> Result<()> {
    let (steps, slows, sizes): (u32, &[f64], &[u32]) =
        if settings.quick { (40, &[1.0, 2.0], &[4]) } else { (40, &[1.0, 2.0, 5.0], &[4, 8]) };
    let case = |sync: &SyncMode, policy, slow, workers| Case { sync: sync.clone(), policy, slow, workers };
    // What was built before, or ran before, has the machine's memory and caches, and a host may have taken back memory that none
    // used: the steps of a first job were seen to take 8 ms more than those of all others. A probe must be like these.
    let warm = settings.report_dir.join("warm-up");
    let most = sizes.iter().copied().max().unwrap_or(1);
    let first = case(&SyncMode::default(), "none", 1.0, most).arguments(steps, &warm.join("trace.jsonl"));
    run_antdt(&settings.antdt, &first, &warm, LIMIT)?;
    let mut all = Vec::new();
    for sync in modes_with_an_oracle() {
        // At their own pace workers are done soon, and the start of a job, which is not what is asked, weighs more.
        let steps = if sync.capabilities().waits_for_all() { steps } else { 2 * steps };
        for workers in sizes {
            // The first job of a kind, even and without a policy, is the probe.
            let mut probe = None;
            for (policy, slow) in ["none", "nd"].into_iter().flat_map(|p| slows.iter().map(move |s| (p, *s)))
            {
                let case = case(&sync, policy, slow, *workers);
                all.push(compare(settings, &case, steps, &mut probe, rows)?);
            }
        }
    }
    let calibration = judged(all, commit()).context("no job was compared")?;
    // It is shipped as `antdt-sim/calibration.json`.
    let file = settings.report_dir.join("calibration.json");
    std::fs::write(&file, format!("{}\n", serde_json::to_string_pretty(&calibration)?))
        .with_context(|| format!("cannot write {}", file.display()))?;
    let Calibration { median_percent, p95_percent, actions_off, .. } = calibration;
    let median = Entry::shown("completion time: median error", median_percent, "%");
    rows.push(
        median.at_most(Calibration::MEDIAN_MAX).beside(format!("{} jobs, no probes", calibration.runs)),
    );
    let p95 = Entry::shown("completion time: error at p95", p95_percent, "%");
    rows.push(p95.at_most(Calibration::P95_MAX));
    #[allow(clippy::cast_precision_loss, reason = "a count")]
    rows.push(Entry::shown("actions at other steps", actions_off as f64, "actions").at_most(0.0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_of_the_probe_is_that_of_all_workers_and_not_of_the_first() {
        let ms = Duration::from_millis;
        let batch = |compute, communicate| BatchFact {
            end: JobTime::ZERO,
            batches: 1,
            life: 0,
            samples: 64,
            data_wait: Duration::ZERO,
            compute: ms(compute),
            communicate: ms(communicate),
            barrier_wait: Duration::ZERO,
        };
        // After 500 ms of getting under way, both take 108 ms for a step: one of them is let go 8 ms earlier in turns.
        let turns =
            |first: usize| (0..10).map(move |step| batch(100, if step % 2 == first { 4 } else { 12 }));
        let worker =
            |first| -> Vec<BatchFact> { [batch(100, 400)].into_iter().chain(turns(first)).collect() };
        let mut workers: BTreeMap<NodeId, Vec<BatchFact>> =
            [(NodeId::worker(0), worker(0)), (NodeId::worker(1), worker(1))].into();
        assert_eq!(beside(&workers, Capabilities::REPLICAS_IN_STEP), ms(8));
        // A slow worker has all others wait, and is waited for by itself only.
        workers.insert(NodeId::worker(2), vec![batch(104, 4); 11]);
        assert_eq!(beside(&workers, Capabilities::SERVERS_IN_STEP), ms(4));
        assert_eq!(
            beside(&BTreeMap::from([(NodeId::worker(0), worker(0))]), Capabilities::SERVERS_AT_OWN_PACE),
            ms(12)
        );
        assert_eq!(beside(&BTreeMap::new(), Capabilities::SERVERS_AT_OWN_PACE), Duration::ZERO);
    }

    #[test]
    fn a_figure_fitted_to_a_job_is_not_judged_by_that_job() {
        let job = |is_probe, simulated_s, actions_off| Row {
            job: "a job".to_owned(),
            real_s: 100.0,
            simulated_s,
            is_probe,
            actions_off,
        };
        assert_eq!(judged(vec![job(true, 100.0, 0)], "c".to_owned()), None);
        let all = vec![job(true, 100.0, 1), job(false, 97.0, 2), job(true, 109.0, 0), job(false, 101.0, 0)];
        let expected = Calibration {
            commit: "c".to_owned(),
            source: Calibration::SOURCE.to_owned(),
            runs: 2,
            median_percent: 1.0,
            p95_percent: 3.0,
            actions_off: 2,
            rows: all.clone(),
        };
        assert_eq!(judged(all, "c".to_owned()), Some(expected));
    }

    #[test]
    fn where_steps_of_all_workers_are_counted_an_action_may_be_off_by_two_of_each() {
        for mode in Capabilities::COMMON {
            let steps = if mode.steps_in_common() { 2 } else { 16 };
            assert_eq!(slack(mode, 8), steps, "{mode:?}");
        }
    }

    #[test]
    fn actions_are_the_same_if_their_kinds_and_steps_are() {
        let actions = |list: &[(&str, u64)]| -> Vec<(String, u64)> {
            list.iter().map(|(kind, step)| ((*kind).to_owned(), *step)).collect()
        };
        let real = actions(&[("ADJUST_BS", 20), ("KILL_RESTART", 40)]);
        assert_eq!(actions_off(&real, &actions(&[("ADJUST_BS", 22), ("KILL_RESTART", 38)]), 2), 0);
        assert_eq!(actions_off(&real, &actions(&[("ADJUST_BS", 23), ("KILL_RESTART", 40)]), 2), 1);
        assert_eq!(actions_off(&real, &actions(&[("ADJUST_BS", 20)]), 2), 1);
        assert_eq!(actions_off(&[], &real, 2), 2);
    }
}
