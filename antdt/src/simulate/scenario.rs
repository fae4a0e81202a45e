//! `antdt sim`: a scenario from many seeds, under all invariants.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use antdt_controller::policy;
use antdt_core::{InvalidValue, JobTime, Seed};
use antdt_rt::{PackedFile, Packing};
use antdt_sim::invariant::{self, Checkers};
use antdt_sim::partial::{self, GroupFormation};
use antdt_sim::scenario::GroupScenario;
use antdt_sim::{AnyScenario, Calibration, Scenario, SimulatedJob, Tracer, Violation, World};
use serde::Serialize;

use super::CommandOutput;
use crate::cli::{CliError, Sim};

/// Virtual time after which a run is given up.
const LIMIT: JobTime = JobTime(30 * 24 * 3600 * 1_000_000_000);

/// Seeds whose failures are told.
const SHOWN: usize = 10;

/// What came of one seed.
struct Run<O> {
    seed: u64,
    outcome: Option<O>,
    /// What must not have happened, one line each.
    wrong: Vec<String>,
}

/// Runs the scenario.
///
/// # Errors
/// If the scenario cannot be used, or the trace cannot be written.
pub fn run(asked: &Sim) -> Result<CommandOutput, CliError> {
    let calibration = Calibration::line().map_err(|error| CliError::new(error.to_string()))?;
    match AnyScenario::read_with(&asked.scenario, antdt_rt::open_trace)
        .map_err(|error| refused(asked, &error))?
    {
        AnyScenario::Job(scenario) => {
            let policy = asked.policy.as_ref().unwrap_or(&scenario.policy);
            let runs = each_seed(asked, |seed| once(asked, &scenario, seed))?;
            let completed = |outcome: &SimulatedJob| outcome.result.is_ok().then_some(outcome.completed);
            answer(asked, (&scenario.about, policy), &runs, completed, Figures::of, &calibration)
        }
        AnyScenario::Groups(mut scenario) => {
            if let Some(name) = &asked.policy {
                scenario.setup.formation = GroupFormation::by_name(name).map_err(|error| {
                    let field = format!("--{}", error.field);
                    CliError::new(InvalidValue { field, ..error }.to_string())
                })?;
            }
            let policy = scenario.setup.formation.name();
            let runs = each_seed(asked, |seed| once_in_groups(asked, &scenario, seed))?;
            let completed =
                |outcome: &partial::SimulatedAveraging| outcome.result.is_ok().then_some(outcome.completed);
            answer(
                asked,
                (&scenario.about, policy),
                &runs,
                completed,
                GroupFigures::of,
                Calibration::NONE_OF_GROUPS,
            )
        }
    }
}

fn refused(asked: &Sim, error: &dyn std::fmt::Display) -> CliError {
    CliError::new(format!("--scenario = {}: {}", asked.scenario.display(), error))
}

fn each_seed<O>(
    asked: &Sim,
    once: impl FnMut(u64) -> Result<Run<O>, CliError>,
) -> Result<Vec<Run<O>>, CliError> {
    (asked.seed..=asked.seed + (asked.seeds - 1)).map(once).collect()
}

/// What is said of all runs: of a scenario that is about something, under a policy.
fn answer<'a, O, F: Serialize>(
    asked: &Sim,
    (about, policy): (&str, &str),
    runs: &'a [Run<O>],
    completed: impl Fn(&O) -> Option<JobTime>,
    figures: impl Fn(&'a Run<O>, &'a str) -> F,
    calibration: &'a str,
) -> Result<CommandOutput, CliError> {
    let good = runs.iter().all(|run| run.wrong.is_empty());
    let text = if asked.json {
        let figures: Vec<F> = runs.iter().map(|run| figures(run, calibration)).collect();
        let text = serde_json::to_string_pretty(&figures)
            .map_err(|error| CliError::new(format!("--json: {error}")))?;
        text + "\n"
    } else {
        told(asked, about, policy, runs, completed) + &format!("\n{calibration}\n")
    };
    Ok(CommandOutput { text, good })
}

fn once(asked: &Sim, scenario: &Scenario, seed: u64) -> Result<Run<SimulatedJob>, CliError> {
    let refused = |error: &dyn std::fmt::Display| refused(asked, error);
    let (setup, named, models) = scenario.build(Seed(seed)).map_err(|error| refused(&error))?;
    let name = asked.policy.as_ref().unwrap_or(&named);
    let policy = policy::build(name, &BTreeMap::new()).map_err(|error| refused(&error))?;
    let tracer = tracer(asked, |file, job| Tracer::new(file, job, &setup, policy.clone()))?;
    let checkers = Checkers::new(invariant::all(&setup).map_err(|error| refused(&error))?);
    let world = World::watched(setup, policy, models, (tracer, checkers)).map_err(|error| refused(&error))?;
    finished(asked, seed, world.run(LIMIT), |outcome| scenario.expect.check(outcome))
}

fn once_in_groups(
    asked: &Sim,
    scenario: &GroupScenario,
    seed: u64,
) -> Result<Run<partial::SimulatedAveraging>, CliError> {
    let refused = |error: &dyn std::fmt::Display| refused(asked, error);
    let (setup, models) = scenario.build(Seed(seed)).map_err(|error| refused(&error))?;
    let tracer = tracer(asked, |file, name| Tracer::of_groups(file, name, &setup))?;
    let checkers = Checkers::new(invariant::all_of_groups());
    let world =
        partial::GroupWorld::watched(setup, models, (tracer, checkers)).map_err(|error| refused(&error))?;
    finished(asked, seed, world.run(LIMIT), |outcome| scenario.expect.check(outcome))
}

/// Where the trace goes, if one was asked for.
type Trace = Option<Tracer<PackedFile>>;

/// Observers of the run.
type Watched = (Trace, Checkers);

fn tracer(
    asked: &Sim,
    begin: impl FnOnce(PackedFile, &str) -> io::Result<Tracer<PackedFile>>,
) -> Result<Trace, CliError> {
    let Some(path) = &asked.trace else { return Ok(None) };
    let file = File::create(path).map_err(|error| unwritten(path, &error))?;
    let begun = begin(PackedFile::new(file, Packing::of(path)), &asked.scenario.display().to_string());
    Ok(Some(begun.map_err(|error| unwritten(path, &error))?))
}

/// What came of a world. `check` says what is not as the scenario expects.
fn finished<O>(
    asked: &Sim,
    seed: u64,
    ended: Result<(O, Watched), (Violation, Watched)>,
    check: impl FnOnce(&O) -> Vec<String>,
) -> Result<Run<O>, CliError> {
    let (outcome, mut wrong, (tracer, mut checkers)) = match ended {
        Ok((outcome, watched)) => {
            // What a scenario expects is said of its own policy.
            let wrong = if asked.policy.is_none() { check(&outcome) } else { Vec::new() };
            (Some(outcome), wrong, watched)
        }
        Err((violation, watched)) => (None, vec![violation.to_string()], watched),
    };
    if outcome.is_some()
        && let Err(violation) = checkers.finish()
    {
        wrong.push(violation.to_string());
    }
    if let (Some(tracer), Some(path)) = (tracer, &asked.trace) {
        // What came after a violation was not seen.
        let written = if outcome.is_some() { tracer.finish() } else { tracer.break_off() };
        written.and_then(PackedFile::finish).map_err(|error| {
            // What is there of it would be taken for a shorter run.
            if path.is_file() {
                let _ = std::fs::remove_file(path);
            }
            unwritten(path, &error)
        })?;
    }
    Ok(Run { seed, outcome, wrong })
}

fn unwritten(path: &Path, error: &io::Error) -> CliError {
    CliError::new(format!("--trace = {}: {error}; name another file", path.display()))
}

/// A run as JSON.
#[derive(Serialize)]
struct Figures<'a> {
    seed: u64,
    /// How far simulated figures are from real ones.
    calibration: &'a str,
    completed: bool,
    job_completion_time_s: Option<f64>,
    goodput_samples_per_s: Option<f64>,
    idle_share: Option<f64>,
    steps: Option<u64>,
    actions: Option<usize>,
    wrong: &'a [String],
}

impl<'a> Figures<'a> {
    fn of(run: &'a Run<SimulatedJob>, calibration: &'a str) -> Self {
        let outcome = run.outcome.as_ref();
        Self {
            seed: run.seed,
            calibration,
            completed: outcome.is_some_and(|outcome| outcome.result.is_ok()),
            job_completion_time_s: outcome.map(|outcome| outcome.completed.as_secs_f64()),
            goodput_samples_per_s: outcome.map(SimulatedJob::goodput),
            idle_share: outcome.map(SimulatedJob::idle_share),
            steps: outcome.map(|outcome| outcome.steps),
            actions: outcome.map(|outcome| outcome.actions.len()),
            wrong: &run.wrong,
        }
    }
}

/// A run of workers that average in groups as JSON.
#[derive(Serialize)]
struct GroupFigures<'a> {
    seed: u64,
    /// Statement that simulated figures of groups were not compared with real ones.
    calibration: &'a str,
    completed: bool,
    completion_time_s: Option<f64>,
    busy_share: Option<f64>,
    steps: Option<u64>,
    averages: Option<u64>,
    wrong: &'a [String],
}

impl<'a> GroupFigures<'a> {
    fn of(run: &'a Run<partial::SimulatedAveraging>, calibration: &'a str) -> Self {
        let outcome = run.outcome.as_ref();
        Self {
            seed: run.seed,
            calibration,
            completed: outcome.is_some_and(|outcome| outcome.result.is_ok()),
            completion_time_s: outcome.map(|outcome| outcome.completed.as_secs_f64()),
            busy_share: outcome.map(|outcome| outcome.busy),
            steps: outcome.map(|outcome| outcome.steps),
            averages: outcome.map(|outcome| outcome.averages),
            wrong: &run.wrong,
        }
    }
}

fn told<O>(
    asked: &Sim,
    about: &str,
    policy: &str,
    runs: &[Run<O>],
    completed: impl Fn(&O) -> Option<JobTime>,
) -> String {
    let mut out = String::new();
    // The first paragraph.
    for line in about.lines().take_while(|line| !line.is_empty()) {
        out += &format!("{line}\n");
    }
    out += if out.is_empty() { "" } else { "\n" };
    let done = runs.iter().filter_map(|run| completed(run.outcome.as_ref()?));
    let mut times: Vec<f64> = done.map(JobTime::as_secs_f64).collect();
    times.sort_by(f64::total_cmp);
    out += &format!("policy {policy}: {} of {} runs completed", times.len(), runs.len());
    if let (Some(p5), Some(median), Some(p95)) =
        (quantile(&times, 5), quantile(&times, 50), quantile(&times, 95))
    {
        out += &format!("; completion time median {median:.1} s, p5 {p5:.1} s, p95 {p95:.1} s");
    }
    out.push('\n');
    let wrong: Vec<&Run<O>> = runs.iter().filter(|run| !run.wrong.is_empty()).collect();
    if wrong.is_empty() {
        out += "every invariant holds, and all is as the scenario expects\n";
    }
    for run in wrong.iter().take(SHOWN) {
        for line in &run.wrong {
            out += &format!("\nseed {}: {line}\n", run.seed);
        }
        let policy = asked.policy.as_ref().map(|name| format!(" --policy {name}")).unwrap_or_default();
        let file = asked.scenario.display();
        out += &format!(
            "    again: antdt sim --scenario {file} --seed {}{policy} --trace seed.jsonl\n",
            run.seed
        );
    }
    if let Some(more @ 1..) = wrong.len().checked_sub(SHOWN) {
        out += &format!("\nand {more} more seeds; --json has all\n");
    }
    out
}

/// The value that `percent` of the sorted values do not exceed.
fn quantile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}
