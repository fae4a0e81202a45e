//! `antdt whatif`: simulates one job under several policies and compares them.

use std::collections::BTreeMap;

use antdt_controller::policy;
use antdt_core::InvalidValue;
use antdt_sim::Calibration;
use antdt_sim::whatif::{Provenance, Run, RunAction, WhatIfError};
use serde::Serialize;

use super::{CommandOutput, page};
use crate::cli::{CliError, WhatIfCommand};
use crate::report::{self, table::push_columns};

/// Actions of each policy that are printed; the files have all.
const SHOWN: usize = 12;

/// Runs `antdt whatif`: simulates a job under several policies, and writes the files that the user asked for.
///
/// # Errors
/// If the trace or the settings of its job are invalid, or a file cannot be written.
pub fn run(asked: &WhatIfCommand) -> Result<CommandOutput, CliError> {
    let calibration = Calibration::line().map_err(|error| CliError::new(error.to_string()))?;
    let refused = |error: &WhatIfError| match error {
        // The user knows the setting by its flag.
        WhatIfError::Value(value) if asked.changes.has(value.field.trim_start_matches("job.")) => {
            let InvalidValue { field, value, expected } = value;
            InvalidValue::new(format!("--{}", field.trim_start_matches("job.")), value, expected).into()
        }
        error => CliError::new(format!("--trace: {error}")),
    };
    let mut world =
        antdt_sim::WhatIf::read_with(&asked.trace, antdt_rt::open_trace).map_err(|error| refused(&error))?;
    if let Some(factor) = asked.speedup {
        world.compress(factor).map_err(|error| CliError::new(format!("--{error}")))?;
    }
    asked.changes.apply(&mut world.setup);
    world.network = asked.network;
    if let Some(speed) = asked.speed {
        world.emulate_speed(speed).map_err(|error| CliError::new(format!("--{error}")))?;
    }
    world.limit = asked.limit.unwrap_or(world.limit);
    let mut runs: Vec<Run> = world.recorded().into_iter().collect();
    for name in &asked.policies {
        let policy =
            policy::build(name, &BTreeMap::new()).map_err(|error| CliError::new(error.to_string()))?;
        runs.push(world.run(policy).map_err(|error| refused(&error))?);
    }
    let write = |flag: &str, path: &std::path::Path, text: String| {
        report::write::whole(path, text.as_bytes()).map_err(|error| {
            CliError::new(format!("{flag} = {}: {error}; name another file", path.display()))
        })
    };
    // One world has one recording: a line is the same of all runs that have it.
    let beyond: Vec<Vec<String>> = runs.iter().map(|run| world.beyond(run)).collect();
    let mut notes: Vec<&str> = Vec::new();
    for note in beyond.iter().flatten().chain([&calibration]) {
        if !notes.contains(&note.as_str()) {
            notes.push(note);
        }
    }
    let mut text = table(&runs);
    for note in &notes {
        text += &format!("\n{note}\n");
    }
    if let Some(path) = &asked.json {
        let figures: Vec<Figures<'_>> = runs
            .iter()
            .zip(&beyond)
            .map(|(run, beyond)| Figures::of(run, &calibration, beyond.join("; ")))
            .collect();
        let json = serde_json::to_string_pretty(&figures)
            .map_err(|error| CliError::new(format!("--json = {}: {error}", path.display())))?;
        if path.as_os_str() == "-" {
            text = json + "\n";
        } else {
            write("--json", path, json + "\n")?;
        }
    }
    if let Some(path) = &asked.html {
        write("--html", path, page::render(&asked.trace.display().to_string(), &world.setup, &runs, &notes))?;
        if asked.json.as_ref().is_none_or(|json| json.as_os_str() != "-") {
            text += &format!("\ncharts in {}\n", path.display());
        }
    }
    Ok(CommandOutput { text, good: true })
}

/// A run in a file.
#[derive(Serialize)]
struct Figures<'a> {
    policy: &'a str,
    /// A recording, the trace of a simulated job, or this simulation.
    source: &'static str,
    /// Whether it is what really happened.
    recorded: bool,
    /// How far simulated figures are from real ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<&'a str>,
    /// What was assumed beyond the recording.
    #[serde(skip_serializing_if = "String::is_empty")]
    beyond_recording: String,
    completed: bool,
    /// The recording ends before the job.
    cut_off: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<&'a str>,
    job_completion_time_s: f64,
    samples: u64,
    goodput_samples_per_s: f64,
    idle_share: f64,
    steps: u64,
    actions: Vec<Done<'a>>,
}

#[derive(Serialize)]
struct Done<'a> {
    time_s: f64,
    step: Option<u64>,
    kind: &'a str,
    target: &'a str,
    reason: &'a str,
}

impl<'a> Figures<'a> {
    fn of(run: &'a Run, calibration: &'a str, beyond_recording: String) -> Self {
        let done = |action: &'a RunAction| Done {
            time_s: action.at.as_secs_f64(),
            step: action.step,
            kind: &action.kind,
            target: &action.target,
            reason: &action.reason,
        };
        Self {
            policy: &run.policy,
            source: run.source.name(),
            recorded: run.source.is_real(),
            calibration: (!run.source.is_real()).then_some(calibration),
            beyond_recording,
            completed: run.result.is_ok(),
            cut_off: run.cut_off,
            why_not: run.result.as_ref().err().map(String::as_str),
            job_completion_time_s: run.completed.as_secs_f64(),
            samples: run.samples,
            goodput_samples_per_s: run.goodput(),
            idle_share: run.idle_share,
            steps: run.steps,
            actions: run.actions.iter().map(done).collect(),
        }
    }
}

/// What a run is called.
pub(super) fn name(run: &Run) -> String {
    match run.source {
        Provenance::Recording => format!("recorded ({})", run.policy),
        Provenance::Trace => format!("simulated ({})", run.policy),
        Provenance::Simulation => run.policy.clone(),
    }
}

/// The table and, below it, what was done and why. Ends with a newline.
pub(super) fn table(runs: &[Run]) -> String {
    let mut rows = vec![["policy", "completion", "samples/s", "idle", "steps", "actions"].map(str::to_owned)];
    for run in runs {
        let seconds = run.completed.as_secs_f64();
        rows.push([
            name(run),
            match run.result {
                Ok(()) => format!("{seconds:.1} s"),
                Err(_) if run.cut_off => "cut off".to_owned(),
                Err(_) => "never".to_owned(),
            },
            format!("{:.0}", run.goodput()),
            format!("{:.1} %", 100.0 * run.idle_share),
            run.steps.to_string(),
            run.actions.len().to_string(),
        ]);
    }
    let mut out = String::new();
    push_columns(&mut out, &rows);
    for run in runs {
        if let Err(why) = &run.result {
            let after = run.completed.as_secs_f64();
            let ended = if run.cut_off { "cut off" } else { "failed" };
            out += &format!("\n{}: {ended} after {after:.1} s: {why}\n", name(run));
        }
        if run.actions.is_empty() {
            continue;
        }
        out += &format!("\n{}:\n", name(run));
        for RunAction { at, step, kind, target, reason } in run.actions.iter().take(SHOWN) {
            let step = step.map_or_else(String::new, |step| format!("  step {step:>6}"));
            out += &format!("{:>9.1} s{step}  {kind} {target}: {reason}\n", at.as_secs_f64());
        }
        if let Some(more @ 1..) = run.actions.len().checked_sub(SHOWN) {
            out += &format!("            and {more} more; --json FILE or --html FILE has all\n");
        }
    }
    out
}
