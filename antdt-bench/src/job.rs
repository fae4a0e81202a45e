//! The benchmark `job`: measures whole jobs. They are: every sync mode without a straggler; the modes with an
//! oracle, under the policies `none` and `nd`, without a straggler and with one worker of four that is four
//! times slower; what the ledger gains over static shares; and what a policy costs that has nothing to do.
//!
//! A completion time is divided by the ideal time of the same job, which follows from the emulated speeds of
//! the workers alone. The ratio is comparable between machines, and contains everything else that the job
//! does.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use antdt::report::Report;
use antdt_core::{Barrier, LocalSteps};
use antdt_job::SyncMode;
use anyhow::{Context, Result, bail};

use crate::entry::State;
use crate::meter::{Others, interval, median};
use crate::oracle::Cluster;
use crate::run::{batch_time_s, run as run_antdt, steps_until_adjusted};
use crate::{Entry, Rows, Settings};

mod overlap;

const WORKERS: u32 = 4;
const GLOBAL_BATCH_SIZE: u32 = 256;
/// Which worker is slow, and how many times.
const STRAGGLER: usize = 1;
const SLOW: f64 = 4.0;
/// Samples per second of a worker. A batch of 64 takes 128 ms: on two cores, the work that is not emulated (four
/// gradients, exchange, update; 5 to 10 ms) must be small against that. Slower workers would make the quick run too long.
const SPEED: f64 = 500.0;
/// Samples per shard. At the end of a job a shard of the straggler takes 1 s.
const SHARD_LEN: u32 = 128;

/// Slow steps until the batch sizes are evened out, at most: what the detector and the plan need.
///
/// - 3 until the straggler is told apart from noise: one of warm-up that is not looked at, and two that show the same speed
///   (`antdt-monitor`, `WARMUP` and `ESTIMATE_MIN` of its segments).
/// - 4 until all have the plan: the report of the third batch waits for a heartbeat (500 ms), its verdict for a tick
///   (200 ms), the plan for the next heartbeat of every worker, and their consent for one more: 1.7 s of slow steps, which
///   take 512 ms.
/// - 1 because a plan is for a step that has not begun.
///
/// Where workers take several steps between two times that they combine, a plan waits for such a time.
const REACTION: u32 = 8;

/// Share of the cores that others may take before a missed target counts as not measured. The jobs take less than a tenth
/// of two cores; beside compilers that took 93 % of them they met all targets but that of the cost.
const OTHERS_MAX: f64 = 0.5;

/// How long the jobs are and how much noise is forgiven.
struct Scale {
    /// Modes that are measured at the same time. A quick run that measured one after the other took 24 s of processor time in
    /// 213 s: its jobs wait for emulated computing, and three of them do not wait for each other.
    modes_at_once: usize,
    steps: u32,
    /// Steps of the jobs that are compared in pairs.
    pair_steps: u32,
    /// How many pairs.
    pairs: usize,
    /// Tolerance of a step time, percent: what the gradients, the network and this machine's other work add.
    step_percent: f64,
    /// Most completion time over the ideal. The start of a job, which no ideal holds, is a twelfth of a quick one.
    completion: f64,
    /// The same in a mode whose ideal leaves more out: waiting for a partner that averages with another, the batch of a
    /// backup worker that comes too late. Measured 1.26 to 1.45 while others took all they could get of two cores.
    completion_loose: f64,
    /// Slow steps more than [`REACTION`] that are forgiven: a verdict that comes a heartbeat later.
    reaction_slack: u32,
    /// Least share of the oracle's gain.
    gain_share: f64,
    /// What `nd` may cost without a straggler, percent of the completion time.
    cost_percent: f64,
}

impl Scale {
    const QUICK: Self = Self {
        modes_at_once: 3,
        steps: 36,
        pair_steps: 36,
        pairs: 5,
        step_percent: 15.0,
        completion: 1.25,
        completion_loose: 1.5,
        reaction_slack: 2,
        gain_share: 0.8,
        cost_percent: 5.0,
    };
    const FULL: Self = Self {
        modes_at_once: 1,
        steps: 480,
        pair_steps: 240,
        pairs: 8,
        step_percent: 10.0,
        completion: 1.1,
        completion_loose: 1.5,
        reaction_slack: 1,
        gain_share: 0.9,
        cost_percent: 1.0,
    };
}

/// One job of the matrix.
#[derive(Debug, Clone, PartialEq)]
struct Case {
    sync: SyncMode,
    policy: &'static str,
    sharding: &'static str,
    straggler: bool,
    steps: u32,
}

impl Case {
    fn name(&self) -> String {
        let shares = if self.sharding == "static" { " static" } else { "" };
        let straggler = if self.straggler { "straggler" } else { "even" };
        format!("{} {}{shares} {straggler}, {} steps", self.sync, self.policy, self.steps)
    }

    fn cluster(&self) -> Cluster {
        Cluster { workers: WORKERS, speed: SPEED, slow: if self.straggler { SLOW } else { 1.0 } }
    }

    fn is_synchronous(&self) -> bool {
        self.sync.capabilities().waits_for_all()
    }

    /// Workers that a step need not wait for.
    fn backups(&self) -> u32 {
        match self.sync.capabilities().barrier {
            Barrier::AllBut(backups) => backups,
            Barrier::All | Barrier::Within(_) | Barrier::Peers | Barrier::Nobody => 0,
        }
    }

    /// The most that its completion time may be over the ideal.
    fn completion_most(&self, scale: &Scale) -> f64 {
        match self.sync.capabilities().barrier {
            Barrier::All | Barrier::Within(_) | Barrier::Nobody => scale.completion,
            Barrier::AllBut(_) | Barrier::Peers => scale.completion_loose,
        }
    }

    /// Whether the policy is to even the batch sizes out.
    fn adapts(&self) -> bool {
        self.policy == "nd" && self.straggler && self.is_synchronous()
    }

    /// See [`REACTION`].
    fn reaction(&self) -> u32 {
        let several = self.sync.capabilities().local_steps == LocalSteps::Several;
        let name = self.sync.to_string();
        // The setting of such a mode is their number.
        let steps = name.split_once('=').and_then(|(_, steps)| steps.parse().ok()).filter(|_| several);
        REACTION + steps.unwrap_or(1) - 1
    }

    /// What the emulated speeds alone take, in seconds.
    fn ideal_s(&self) -> f64 {
        self.ideal_after_s(self.reaction())
    }

    /// The same for a policy that needs so many slow steps.
    fn ideal_after_s(&self, reaction: u32) -> f64 {
        let samples = f64::from(self.steps * GLOBAL_BATCH_SIZE);
        match (self.is_synchronous(), self.sharding) {
            (true, _) if self.adapts() => {
                self.cluster().adapted_job_s(GLOBAL_BATCH_SIZE, self.steps, reaction)
            }
            (true, _) => f64::from(self.steps) * self.cluster().uniform_step_s(GLOBAL_BATCH_SIZE),
            _ if self.backups() > 0 => {
                // A step counts the batches of all but the backups; the samples of those come again.
                let counted = f64::from(WORKERS - self.backups()) / f64::from(WORKERS);
                f64::from(self.steps) / counted * self.cluster().uniform_step_s(GLOBAL_BATCH_SIZE)
            }
            (false, "static") => self.cluster().static_makespan_s(samples),
            (false, _) => self.cluster().makespan_bound_s(samples, f64::from(SHARD_LEN)),
        }
    }

    fn arguments(&self) -> Vec<String> {
        let mut text = format!(
            "--nproc-per-node {WORKERS} --sync {} --policy {} --sharding {} --workload deepfm --epochs 1 --seed 1 \
             --data synthetic:{} --global-batch-size {GLOBAL_BATCH_SIZE} --shard-len {SHARD_LEN} \
             --emulate-speed {SPEED} --quiet",
            self.sync,
            self.policy,
            self.sharding,
            self.steps * GLOBAL_BATCH_SIZE,
        );
        if self.sync.capabilities().needs_servers() {
            text.push_str(" --servers 1");
        }
        if self.straggler {
            text.push_str(&format!(" --straggler worker={STRAGGLER},slow={SLOW}"));
        }
        text.split_whitespace().map(str::to_owned).collect()
    }
}

/// A job that ran.
struct Ran {
    report: Report,
    /// Share of the cores that other work took meanwhile.
    others: Option<f64>,
}

impl Ran {
    fn completion_s(&self) -> f64 {
        self.report.job_completion_time_s
    }
}

/// Runs the benchmark `job` and adds its rows to `rows`. A quick run leaves out what another row shows as
/// well: the pairs of the other modes, `none` beside a straggler in a second synchronous mode, and `nd` in
/// one in which no worker waits.
///
/// # Errors
/// If a job cannot be run; a job that misses its target is a row that says so.
pub fn run(settings: &Settings, rows: &mut Rows) -> Result<()> {
    let chosen = |text: &String| overlap::OVERLAP.contains(text.as_str());
    if !settings.only.iter().all(chosen) {
        bail!("--only = {}: here it is `{}`, or nothing for all", settings.only.join(", "), overlap::OVERLAP);
    }
    if !settings.only.is_empty() {
        return overlap::run(settings, rows);
    }
    let scale = &if settings.quick { Scale::QUICK } else { Scale::FULL };
    // What was just built, or has not run for long, comes from the disk: the first job was seen to start a quarter of a
    // second later than all others.
    let warm_up = Case { steps: 4, ..case(scale, &SyncMode::default(), "none", false) };
    ran(settings, &warm_up, "warm-up")?;
    let modes = modes_with_an_oracle();
    let next = Mutex::new(modes.iter().enumerate());
    let shared = Mutex::new(&mut *rows);
    let lane = || {
        let next = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((index, sync)) = next() {
            measure_mode(settings, scale, sync, !settings.quick || index == 0, &shared)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..scale.modes_at_once).map(|_| scope.spawn(lane)).collect();
        // Where one ends with a mode that cannot be measured, the others go on with what is left.
        let ended = lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|panic| resume_unwind(panic)));
        ended.collect::<Vec<Result<()>>>().into_iter().collect::<Result<()>>()
    })?;
    rows.sort_by_key(|entry| modes.iter().position(|sync| entry.name.starts_with(&format!("{sync} "))));
    overlap::run(settings, rows)
}

/// The rows of one mode; a quick run measures `everything` in the first mode only.
fn measure_mode(
    settings: &Settings,
    scale: &Scale,
    sync: &SyncMode,
    everything: bool,
    rows: &Shared<'_>,
) -> Result<()> {
    let case = |policy, straggler| case(scale, sync, policy, straggler);
    measure(settings, scale, &case("none", false), rows)?;
    if everything {
        cost(settings, scale, sync, rows)?;
    }
    if sync.capabilities().waits_for_all() {
        let adapted = measure(settings, scale, &case("nd", true), rows)?;
        if everything {
            let uniform = case("none", true);
            let slow = measure(settings, scale, &uniform, rows)?;
            let oracle = uniform.ideal_s() / case("nd", true).ideal_s();
            push(rows, [gain(&format!("{sync} nd over none"), scale, oracle, &slow, &adapted)]);
        }
    } else {
        let ledger = case("none", true);
        let taken = measure(settings, scale, &ledger, rows)?;
        let shares = Case { sharding: "static", ..ledger.clone() };
        let fixed = measure(settings, scale, &shares, rows)?;
        let oracle = shares.ideal_s() / ledger.ideal_s();
        push(rows, [gain(&format!("{sync} ledger over static"), scale, oracle, &fixed, &taken)]);
        if everything {
            measure(settings, scale, &case("nd", true), rows)?;
        }
    }
    Ok(())
}

/// The rows, to which modes add that are measured at the same time.
type Shared<'a> = Mutex<&'a mut Rows>;

fn push(rows: &Shared<'_>, entries: impl IntoIterator<Item = Entry>) {
    rows.lock().unwrap_or_else(PoisonError::into_inner).extend(entries);
}

/// A job that takes its shards as it goes.
fn case(scale: &Scale, sync: &SyncMode, policy: &'static str, straggler: bool) -> Case {
    Case { sync: sync.clone(), policy, sharding: "dynamic", straggler, steps: scale.steps }
}

/// Returns the modes whose completion time is known in advance, with a straggler too: those in which a worker waits for all
/// others or for none.
/// Returns the sync modes whose completion time follows from the set-up alone.
pub fn modes_with_an_oracle() -> Vec<SyncMode> {
    SyncMode::examples().into_iter().filter(has_an_oracle).collect()
}

fn has_an_oracle(sync: &SyncMode) -> bool {
    match sync.capabilities().barrier {
        Barrier::All | Barrier::Nobody => true,
        Barrier::AllBut(_) | Barrier::Within(_) | Barrier::Peers => false,
    }
}

/// Runs a job; its report goes to the folder `name`.
fn ran(settings: &Settings, case: &Case, name: &str) -> Result<Ran> {
    let limit = Duration::from_secs_f64(60.0 + 2.0 * case.ideal_s());
    let folder = settings.report_dir.join(name.replace(", ", "-").replace(' ', "-"));
    let watched = Others::watch();
    let report = run_antdt(&settings.antdt, &case.arguments(), &folder, limit)?;
    let ran = Ran { report, others: watched.share() };
    let others = ran.others.map_or(String::new(), |share| format!(", others {:.0} %", 100.0 * share));
    println!("{name:<40} {:>7.1} s{others}", ran.completion_s());
    Ok(ran)
}

/// Runs one case and checks what its own oracle says.
fn measure(settings: &Settings, scale: &Scale, case: &Case, rows: &Shared<'_>) -> Result<Ran> {
    let name = case.name();
    let ran = ran(settings, case, &name)?;
    push(rows, [accounting(&name, case, &ran.report)]);
    push(rows, times(&name, scale, case, &ran)?);
    Ok(ran)
}

/// Zero only if all of it holds: the right number expected, all committed, none lost, repeated or given up.
fn accounting(name: &str, case: &Case, report: &Report) -> Entry {
    accounting_of(name, u64::from(case.steps * GLOBAL_BATCH_SIZE), report)
}

/// The same for a job of so many samples.
fn accounting_of(name: &str, expected: u64, report: &Report) -> Entry {
    let samples = &report.samples;
    let wrong = samples.expected.abs_diff(expected)
        + samples.expected.abs_diff(samples.committed)
        + samples.lost
        + samples.duplicated
        + samples.quarantined;
    #[allow(clippy::cast_precision_loss, reason = "0, or a failure")]
    Entry::shown(format!("{name}: samples off"), wrong as f64, "samples").at_most(0.0)
}

/// The completion time, and of a synchronous job the step time and the reaction.
fn times(name: &str, scale: &Scale, case: &Case, ran: &Ran) -> Result<Vec<Entry>> {
    // What is forgiven as a reaction is not held against the completion once more.
    let ideal = case.ideal_after_s(case.reaction() + scale.reaction_slack);
    let mut rows = vec![
        Entry::shown(format!("{name}: completion over ideal"), ran.completion_s() / ideal, "x")
            .at_most(case.completion_most(scale))
            .beside(format!("{:.2} s, ideal {ideal:.2} s", ran.completion_s())),
    ];
    if case.adapts() {
        rows.push(reaction(name, scale, case, &ran.report));
    }
    if case.is_synchronous() {
        rows.push(step_time(name, scale, case, &ran.report)?);
    }
    Ok(rows.into_iter().map(|row| row.unless_overloaded(ran.others, OTHERS_MAX)).collect())
}

/// Steps that the straggler took before its batch was another.
fn reaction(name: &str, scale: &Scale, case: &Case, report: &Report) -> Entry {
    let straggler = report.workers.get(STRAGGLER);
    let steps = straggler.map_or(0, |worker| steps_until_adjusted(&worker.series));
    #[allow(clippy::cast_precision_loss, reason = "a count of steps")]
    Entry::shown(format!("{name}: reaction"), steps as f64, "steps")
        .at_most((case.reaction() + scale.reaction_slack).into())
        .beside(format!("{} that the detector and the plan need at most", case.reaction()))
}

/// The step time, after the policy has acted if it is to act.
fn step_time(name: &str, scale: &Scale, case: &Case, report: &Report) -> Result<Entry> {
    let cluster = case.cluster();
    let adjusted = report.actions.iter().rev().find(|action| action.kind == "ADJUST_BS");
    let (what, from_s, oracle) = match (case.adapts(), adjusted) {
        (true, Some(last)) => ("after the last plan", last.time_s, cluster.best_step_s(GLOBAL_BATCH_SIZE)),
        // A policy that never acted is held against the steps it should have reached.
        (true, None) => ("without any plan", 0.0, cluster.best_step_s(GLOBAL_BATCH_SIZE)),
        (false, _) => ("median", 0.0, cluster.uniform_step_s(GLOBAL_BATCH_SIZE)),
    };
    let time = batch_time_s(&report.workers, from_s).with_context(|| format!("{name}: no batch {what}"))?;
    Ok(Entry::shown(format!("{name}: step {what}"), time, "s")
        .within(scale.step_percent, oracle)
        .beside(format!("oracle {oracle:.4} s")))
}

/// What the policy costs when there is nothing to do: completion times of jobs with it and without, in pairs that take
/// turns at being first.
fn cost(settings: &Settings, scale: &Scale, sync: &SyncMode, rows: &Shared<'_>) -> Result<()> {
    let case = |policy| Case { steps: scale.pair_steps, ..case(scale, sync, policy, false) };
    let (mut pairs, mut others) = (Vec::new(), Vec::new());
    for pair in 0..scale.pairs {
        let mut took = [0.0; 2];
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            let case = case(["none", "nd"][which]);
            let ran = ran(settings, &case, &format!("{}, pair {}", case.name(), pair + 1))?;
            took[which] = ran.completion_s();
            let accounting = accounting(&case.name(), &case, &ran.report);
            push(rows, (accounting.state != State::Ok).then_some(accounting));
            others.extend(ran.others);
        }
        pairs.push(took);
    }
    let others = others.into_iter().reduce(f64::max);
    push(rows, [cost_of(sync, scale, &pairs).unless_overloaded(others, OTHERS_MAX)]);
    Ok(())
}

/// The row of such pairs: `none`, `nd`.
fn cost_of(sync: &SyncMode, scale: &Scale, pairs: &[[f64; 2]]) -> Entry {
    let percents: Vec<f64> = pairs.iter().map(|[none, nd]| 100.0 * (nd / none - 1.0)).collect();
    let (mean, interval) = interval(&percents);
    let none = median(pairs.iter().map(|[none, _]| *none));
    Entry::shown(format!("{sync} nd over none, even, {} steps: cost", scale.pair_steps), mean, "%")
        .interval_at_most(interval, scale.cost_percent)
        .beside(format!("{} pairs, none {none:.2} s", pairs.len()))
}

/// How many times sooner `better` is done than `worse`.
fn gain(what: &str, scale: &Scale, oracle: f64, worse: &Ran, better: &Ran) -> Entry {
    let value = worse.completion_s() / better.completion_s();
    let long = Cluster { workers: WORKERS, speed: SPEED, slow: SLOW }.speedup();
    // Overload of the slower job would be a gain of neither.
    let others = [worse.others, better.others].into_iter().flatten().reduce(f64::max);
    Entry::shown(format!("{what}, straggler, {} steps: gain", scale.steps), value, "x")
        .at_least(oracle * scale.gain_share)
        .beside(format!(
            "oracle {oracle:.2} for this length, {long:.2} for a long job; {:.1} s against {:.1} s",
            better.completion_s(),
            worse.completion_s()
        ))
        .unless_overloaded(others, OTHERS_MAX)
}

#[cfg(test)]
mod tests {
    use antdt::report::{BatchSeries, WorkerEntry};

    use super::*;

    fn case(sync: &str, policy: &'static str, straggler: bool) -> Case {
        let sync = sync.parse().expect("a mode of the registry");
        Case { sync, policy, sharding: "dynamic", straggler, steps: Scale::QUICK.steps }
    }

    /// A job that took so long, whose straggler took so many steps at its first batch size.
    fn ran(completion_s: f64, slow_steps: u32) -> Ran {
        let mut series = BatchSeries::default();
        for step in 0..Scale::QUICK.steps {
            let size = if step < slow_steps { 64 } else { 19 };
            series.push(f64::from(step), 0.1, 0.158, size, size.into());
        }
        let workers = vec![WorkerEntry { series, ..WorkerEntry::default() }; WORKERS as usize];
        let report = Report { job_completion_time_s: completion_s, workers, ..Report::default() };
        Ran { report, others: Some(0.0) }
    }

    fn state(rows: &[Entry], end: &str) -> State {
        rows.iter().find(|row| row.name.ends_with(end)).expect("there is such a row").state
    }

    #[test]
    fn every_case_is_a_command_line_of_antdt() {
        let case = Case { sharding: "static", steps: 50, ..case("ps-asp", "none", true) };
        let line = case.arguments().join(" ");
        for part in
            ["--servers 1", "--straggler worker=1,slow=4", "--data synthetic:12800", "--sharding static"]
        {
            assert!(line.contains(part), "{line}");
        }
        assert_eq!(case.name(), "ps-asp none static straggler, 50 steps");
    }

    #[test]
    fn the_full_target_is_at_least_the_gain_that_was_promised() {
        let full = |policy| Case { steps: Scale::FULL.steps, ..case("allreduce", policy, true) };
        let oracle = full("none").ideal_s() / full("nd").ideal_s();
        assert!(oracle * Scale::FULL.gain_share >= 2.6, "{oracle}");
    }

    #[test]
    fn a_reaction_that_comes_late_fails() {
        let case = case("allreduce", "nd", true);
        let of = |steps| {
            let rows = times("job", &Scale::QUICK, &case, &ran(11.0, steps)).unwrap();
            state(&rows, "reaction")
        };
        let most = REACTION + Scale::QUICK.reaction_slack;
        assert_eq!(of(6), State::Ok, "as it is");
        assert_eq!(of(most), State::Ok, "as late as it may be");
        assert_eq!(of(most + 1), State::Failed, "a step too late");
        assert_eq!(of(28), State::Failed, "it passed once");
        assert_eq!(of(Scale::QUICK.steps), State::Failed, "it never came");
        let averaged = Case { sync: "local-sgd=4".parse().unwrap(), ..case };
        assert_eq!(averaged.reaction(), REACTION + 3, "its plans wait for an average");
    }

    #[test]
    fn a_job_that_takes_twice_its_time_fails_in_every_mode() {
        for sync in SyncMode::examples() {
            let case = case(&sync.to_string(), "none", false);
            let of = |completion_s| {
                state(
                    &times("job", &Scale::QUICK, &case, &ran(completion_s, 0)).unwrap(),
                    "completion over ideal",
                )
            };
            // As measured: 4.7 s are usual, and 8.6 s passed once. With a backup worker a third more steps are taken.
            let usual = if case.backups() == 0 { 4.7 } else { 6.3 };
            assert_eq!(of(usual), State::Ok, "{sync}");
            assert_eq!(of(usual * 8.6 / 4.7), State::Failed, "{sync}");
        }
    }

    #[test]
    fn the_cost_of_a_policy_is_told_by_pairs_and_not_by_the_pace_of_the_machine() {
        let sync = SyncMode::default();
        let of = |pairs: &[[f64; 2]]| cost_of(&sync, &Scale::QUICK, pairs);
        // The machine slows down by a half; each pair still costs two percent.
        let slower = [[4.0, 4.08], [5.0, 5.1], [6.0, 6.12]];
        assert_eq!(of(&slower).state, State::Ok);
        assert!((of(&slower).value.unwrap() - 2.0).abs() < 1e-9);
        let dear = [[4.0, 4.31], [5.0, 5.4], [6.0, 6.49]];
        assert_eq!(of(&dear).state, State::Failed);
        let noise = [[4.0, 4.4], [5.0, 4.8], [6.0, 6.3]];
        assert_eq!(of(&noise).state, State::Unresolved);
    }
}
