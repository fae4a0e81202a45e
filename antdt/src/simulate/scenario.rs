//! `antdt sim`: simulates a scenario with many seeds, and checks all invariants.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use antdt_controller::policy;
use antdt_core::{JobTime, Seed};
use antdt_rt::{PackedFile, Packing};
use antdt_sim::invariant::{self, Checkers};
use antdt_sim::{Calibration, Scenario, SimulatedJob, Tracer, Violation, World};
use serde::Serialize;

use super::CommandOutput;
use crate::cli::{CliError, Sim};

/// Virtual time after which a run is given up.
const LIMIT: JobTime = JobTime(30 * 24 * 3600 * 1_000_000_000);

/// Seeds whose failures are told.
const SHOWN: usize = 10;

/// What came of one seed.
struct Run {
    seed: u64,
    outcome: Option<SimulatedJob>,
    /// What must not have happened, one line each.
    wrong: Vec<String>,
}

/// Runs `antdt sim`: simulates a scenario from several seeds and checks all invariants.
///
/// # Errors
/// If the scenario is invalid, or the trace cannot be written.
pub fn run(asked: &Sim) -> Result<CommandOutput, CliError> {
    let calibration = Calibration::line().map_err(|error| CliError::new(error.to_string()))?;
    let scenario =
        Scenario::read_with(&asked.scenario, antdt_rt::open_trace).map_err(|error| refused(asked, &error))?;
    let seeds = asked.seed..=asked.seed + (asked.seeds - 1);
    let runs = seeds.map(|seed| once(asked, &scenario, seed)).collect::<Result<Vec<Run>, CliError>>()?;
    let good = runs.iter().all(|run| run.wrong.is_empty());
    let text = if asked.json {
        let figures: Vec<Figures<'_>> = runs.iter().map(|run| Figures::of(run, &calibration)).collect();
        let text = serde_json::to_string_pretty(&figures)
            .map_err(|error| CliError::new(format!("--json: {error}")))?;
        text + "\n"
    } else {
        let policy = asked.policy.as_ref().unwrap_or(&scenario.policy);
        told(asked, &scenario.about, policy, &runs) + &format!("\n{calibration}\n")
    };
    Ok(CommandOutput { text, good })
}

fn refused(asked: &Sim, error: &dyn std::fmt::Display) -> CliError {
    CliError::new(format!("--scenario = {}: {}", asked.scenario.display(), error))
}

fn once(asked: &Sim, scenario: &Scenario, seed: u64) -> Result<Run, CliError> {
    let refused = |error: &dyn std::fmt::Display| refused(asked, error);
    let (setup, named, models) = scenario.build(Seed(seed)).map_err(|error| refused(&error))?;
    let name = asked.policy.as_ref().unwrap_or(&named);
    let policy = policy::build(name, &BTreeMap::new()).map_err(|error| refused(&error))?;
    let tracer = tracer(asked, |file, job| Tracer::new(file, job, &setup, policy.clone()))?;
    let checkers = Checkers::new(invariant::all(&setup).map_err(|error| refused(&error))?);
    let world = World::watched(setup, policy, models, (tracer, checkers)).map_err(|error| refused(&error))?;
    finished(asked, scenario, seed, world.run(LIMIT))
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

/// What came of a world.
fn finished(
    asked: &Sim,
    scenario: &Scenario,
    seed: u64,
    ended: Result<(SimulatedJob, Watched), (Violation, Watched)>,
) -> Result<Run, CliError> {
    let (outcome, mut wrong, (tracer, mut checkers)) = match ended {
        Ok((outcome, watched)) => {
            // What a scenario expects is said of its own policy.
            let wrong = if asked.policy.is_none() { scenario.expect.check(&outcome) } else { Vec::new() };
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
    fn of(run: &'a Run, calibration: &'a str) -> Self {
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

fn told(asked: &Sim, about: &str, policy: &str, runs: &[Run]) -> String {
    let mut out = String::new();
    // The first paragraph.
    for line in about.lines().take_while(|line| !line.is_empty()) {
        out += &format!("{line}\n");
    }
    out += if out.is_empty() { "" } else { "\n" };
    let done = runs.iter().filter_map(|run| run.outcome.as_ref().filter(|outcome| outcome.result.is_ok()));
    let mut times: Vec<f64> = done.map(|outcome| outcome.completed.as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    out += &format!("policy {policy}: {} of {} runs completed", times.len(), runs.len());
    if let (Some(p5), Some(median), Some(p95)) =
        (quantile(&times, 5), quantile(&times, 50), quantile(&times, 95))
    {
        out += &format!("; completion time median {median:.1} s, p5 {p5:.1} s, p95 {p95:.1} s");
    }
    out.push('\n');
    let wrong: Vec<&Run> = runs.iter().filter(|run| !run.wrong.is_empty()).collect();
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
