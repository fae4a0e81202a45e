//! `antdt doctor`: shows the deadlines of a job and whether they are in order, and the problems that a job
//! would have on this machine.

pub(crate) mod hosts;
pub mod machine;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use antdt_core::Connections;
use antdt_core::text::format_duration;
use antdt_monitor::Deadlines;

use crate::cli::{CliError, Doctor, HostsToExamine};
use crate::job::JobSpec;
use crate::master;
use crate::remote::RemoteJob;
use crate::run_dir;
use crate::simulate::CommandOutput;
use machine::State;

/// Steps that are shown where none is given.
const SHOWN: [Duration; 4] =
    [Duration::from_millis(10), Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(600)];

/// Shortest and longest step for which the order is checked.
const CHECKED: (Duration, Duration) = (Duration::from_micros(1), Duration::from_secs(24 * 3600));

/// Runs `antdt doctor` and returns its output.
///
/// # Errors
/// If the folder is not a run directory, or the settings of its job cannot be read.
pub fn run(asked: &Doctor, connections: Connections) -> Result<CommandOutput, CliError> {
    if let Some(HostsToExamine { args, spec, json }) = &asked.hosts {
        return hosts::run(args, spec, *json);
    }
    let dir = asked.dir.as_deref().map(run_dir::below);
    let found = dir.as_deref().map(settings).transpose()?.flatten();
    let whose = if found.is_some() { "of the job" } else { "of a job with default settings" };
    let spec = found.unwrap_or_default();
    let step = asked.step.or_else(|| dir.as_deref().and_then(|dir| observed(dir, connections)));
    let (table, in_order) = deadlines(&spec, step);
    let mut text = format!("deadlines {whose}\n{table}");
    let findings = machine::look(&spec, dir.as_deref());
    text += "this machine\n";
    for finding in &findings {
        let _ = writeln!(text, "  {finding}");
    }
    let faults = findings.iter().filter(|finding| finding.state == State::Fault).count();
    Ok(CommandOutput { text, good: in_order && faults == 0 })
}

/// The settings of the job in a run directory; `None` if it has left none, as a job that can have no other master.
fn settings(dir: &Path) -> Result<Option<JobSpec>, CliError> {
    let found = master::settings(dir).and_then(|found| match found {
        None => run_dir::read(dir).map(|_| None),
        found => Ok(found),
    });
    found.map_err(|error| CliError::new(error.to_string()))
}

/// How long the steps of a running job take; `None` if it has made none, or does not answer.
fn observed(dir: &Path, connections: Connections) -> Option<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let reply = runtime
        .block_on(async { RemoteJob::find_with(Some(dir), connections).ok()?.diagnose().await.ok() })?;
    reply.step_ns.map(Duration::from_nanos)
}

/// The table of deadlines, and whether they are in order.
fn deadlines(spec: &JobSpec, step: Option<Duration>) -> (String, bool) {
    let steps: Vec<Option<Duration>> = match step {
        Some(step) => vec![Some(step)],
        None => std::iter::once(None).chain(SHOWN.map(Some)).collect(),
    };
    let columns: Vec<Deadlines> = steps.iter().map(|step| spec.deadlines(*step)).collect();
    let heads: Vec<String> =
        steps.iter().map(|step| step.map_or_else(|| "before the first".to_owned(), short)).collect();
    let mut rows = vec![(String::from("steps of"), heads, "")];
    for number in 0..columns[0].list().len() {
        let one = columns[0].list()[number];
        let cells = columns.iter().map(|column| short(column.list()[number].limit)).collect();
        rows.push((format!("  {}", one.name), cells, one.what));
    }
    let names = rows.iter().map(|row| row.0.len()).max().unwrap_or(0);
    let widths: Vec<usize> =
        (0..columns.len()).map(|at| rows.iter().map(|row| row.1[at].len()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for (name, cells, what) in &rows {
        let _ = write!(text, "  {name:names$}");
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(text, "  {cell:>width$}");
        }
        let _ = write!(text, "  {what}");
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    let (count, faults) = check(spec);
    if faults.is_empty() {
        let (from, to) = CHECKED;
        let _ = writeln!(
            text,
            "  in order for {count} lengths of a step from {} to {}, and before the first: heartbeat < late < lost < peer; \
             step < stalled < hung < peer; peer < master",
            short(from),
            short(to)
        );
    }
    for fault in &faults {
        let _ = writeln!(text, "  not in order: {fault}");
    }
    (text, faults.is_empty())
}

/// Derives the deadlines for steps of all lengths, each an eighth longer than the one before. Returns how many, and which pairs
/// are not in order, each with the first step for which it is not.
fn check(spec: &JobSpec) -> (usize, Vec<String>) {
    let (mut step, most) = CHECKED;
    let mut steps = vec![None];
    while step <= most {
        steps.push(Some(step));
        step += step / 8;
    }
    steps.push(Some(most));
    let (mut seen, mut faults) = (Vec::new(), Vec::new());
    for step in &steps {
        for (below, above) in spec.deadlines(*step).faults() {
            if !seen.contains(&(below.name, above.name)) {
                seen.push((below.name, above.name));
                let of = step.map_or_else(
                    || "before the first step".to_owned(),
                    |step| format!("with steps of {}", short(step)),
                );
                faults.push(format!(
                    "{} {} is not below {} {} {of}; leave out --silence-limit, --hang-limit, --collective-timeout and --master-grace, \
                     or set the second higher",
                    below.name,
                    short(below.limit),
                    above.name,
                    short(above.limit)
                ));
            }
        }
    }
    (steps.len() - 1, faults)
}

/// A time for people: to the millisecond, and to the second above a minute.
fn short(time: Duration) -> String {
    let unit = match time {
        time if time >= Duration::from_secs(60) => Duration::from_secs(1),
        time if time >= Duration::from_millis(10) => Duration::from_millis(1),
        _ => Duration::from_micros(1),
    };
    let whole = time.as_nanos() / unit.as_nanos();
    let whole = u32::try_from(whole).map_or(time, |whole| unit * whole);
    format_duration(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_order_and_the_table_has_a_column_for_each_step() {
        let (text, good) = deadlines(&JobSpec::default(), None);
        assert!(good && text.contains("in order for "), "{text}");
        let head = text.lines().next().unwrap();
        for step in ["before the first", "10ms", "1s", "10s", "10m"] {
            assert!(head.contains(step), "{head}");
        }
        let (text, _) = deadlines(&JobSpec::default(), Some(Duration::from_millis(100)));
        let row = |name: &str| {
            let line = text.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        assert_eq!(["lost", "hung", "peer", "master"].map(row), ["1s750ms", "3s", "30s", "1m"]);
    }

    #[test]
    fn a_setting_that_breaks_the_order_is_named_with_the_remedy() {
        let mut spec = JobSpec::default();
        spec.set("master-grace", "2s").unwrap();
        let (text, good) = deadlines(&spec, None);
        assert!(!good);
        assert!(text.contains("not in order: peer 30s is not below master 2s with steps of 1us"), "{text}");
        assert!(text.contains("leave out"), "{text}");
    }
}
