//! `antdt sim`: a scenario from many seeds, under all invariants.

use std::fs::File;
use std::path::Path;

use antdt_controller::policy;
use antdt_core::{JobTime, Seed};
use antdt_rt::{PackedFile, Packing};
use antdt_sim::invariant::{self, Checkers};
use antdt_sim::{Calibration, Outcome, Scenario, Tracer, World};
use serde::Serialize;

use super::Answer;
use crate::cli::{CliError, Sim};

/// Virtual time after which a run is given up.
const LIMIT: JobTime = JobTime(30 * 24 * 3600 * 1_000_000_000);

/// Seeds whose failures are told.
const SHOWN: usize = 10;

/// What came of one seed.
struct Run {
    seed: u64,
    outcome: Option<Outcome>,
    /// What must not have happened, one line each.
    wrong: Vec<String>,
}

/// Runs the scenario.
///
/// # Errors
/// If the scenario cannot be used, or the trace cannot be written.
pub fn run(asked: &Sim) -> Result<Answer, CliError> {
    let refused = |error: &dyn std::fmt::Display| {
        CliError::new(format!("--scenario = {}: {}", asked.scenario.display(), error))
    };
    let calibration = Calibration::line().map_err(|error| CliError::new(error.to_string()))?;
    let scenario = Scenario::read(&asked.scenario).map_err(|error| refused(&error))?;
    let mut runs = Vec::new();
    for seed in asked.seed..=asked.seed + (asked.seeds - 1) {
        runs.push(once(asked, &scenario, seed)?);
    }
    let good = runs.iter().all(|run| run.wrong.is_empty());
    let text = if asked.json {
        json(&runs, &calibration)?
    } else {
        told(asked, &scenario, &runs) + &format!("\n{calibration}\n")
    };
    Ok(Answer { text, good })
}

fn once(asked: &Sim, scenario: &Scenario, seed: u64) -> Result<Run, CliError> {
    let refused = |error: &dyn std::fmt::Display| {
        CliError::new(format!("--scenario = {}: {}", asked.scenario.display(), error))
    };
    let (setup, named, models) = scenario.build(Seed(seed)).map_err(|error| refused(&error))?;
    let name = asked.policy.as_ref().unwrap_or(&named);
    let policy = policy::by_name(name).map_err(|error| refused(&error))?;
    let tracer = match &asked.trace {
        Some(path) => {
            let file = File::create(path).map_err(|error| unwritten(path, &error))?;
            let file = PackedFile::new(file, Packing::of(path));
            let job = asked.scenario.display().to_string();
            let tracer = Tracer::new(file, &job, &setup, policy.clone());
            Some(tracer.map_err(|error| unwritten(path, &error))?)
        }
        None => None,
    };
    let checkers = Checkers::new(invariant::all(&setup).map_err(|error| refused(&error))?);
    let world = World::watched(setup, policy, models, (tracer, checkers)).map_err(|error| refused(&error))?;
    let (outcome, mut wrong, (tracer, checkers)) = match world.run(LIMIT) {
        Ok((outcome, watched)) => {
            // What a scenario expects is said of its own policy.
            let expected = asked.policy.is_none().then(|| scenario.expect.check(&outcome));
            (Some(outcome), expected.unwrap_or_default(), watched)
        }
        Err((violation, watched)) => (None, vec![violation.to_string()], watched),
    };
    if let (Some(_), mut checkers) = (&outcome, checkers)
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

fn unwritten(path: &Path, error: &std::io::Error) -> CliError {
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
            goodput_samples_per_s: outcome.map(Outcome::goodput),
            idle_share: outcome.map(Outcome::idle_share),
            steps: outcome.map(|outcome| outcome.steps),
            actions: outcome.map(|outcome| outcome.actions.len()),
            wrong: &run.wrong,
        }
    }
}

fn json(runs: &[Run], calibration: &str) -> Result<String, CliError> {
    let figures: Vec<Figures<'_>> = runs.iter().map(|run| Figures::of(run, calibration)).collect();
    let text =
        serde_json::to_string_pretty(&figures).map_err(|error| CliError::new(format!("--json: {error}")))?;
    Ok(text + "\n")
}

fn told(asked: &Sim, scenario: &Scenario, runs: &[Run]) -> String {
    let mut out = String::new();
    // The first paragraph.
    for line in scenario.about.lines().take_while(|line| !line.is_empty()) {
        out += &format!("{line}\n");
    }
    out += if out.is_empty() { "" } else { "\n" };
    let done = || runs.iter().filter_map(|run| run.outcome.as_ref()).filter(|outcome| outcome.result.is_ok());
    let mut times: Vec<f64> = done().map(|outcome| outcome.completed.as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    let policy = asked.policy.as_ref().unwrap_or(&scenario.policy);
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
