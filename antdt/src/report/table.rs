//! The table that a run prints at its end.

use std::fmt::Write;

use antdt_core::Metric;

use super::{CheckpointEntry, EvaluationEntry, FinalQuality, Outcome, Report, SampleBalance};

/// Returns the report as text for a terminal: one line per worker, the actions, the balance of samples. Ends
/// with a newline.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    match report.is_foreign() {
        true => push_columns(&mut out, &programs(report)),
        false => push_columns(&mut out, &workers(report)),
    }
    if !report.actions.is_empty() {
        out.push('\n');
        for action in &report.actions {
            let (time, kind, target, reason) = (action.time_s, &action.kind, &action.target, &action.reason);
            push(&mut out, format_args!("{time:>8.1}s  {kind} {target}: {reason}\n"));
        }
    }
    out.push('\n');
    let reasons = [&report.chosen, &report.resumed, &report.stopped_early].into_iter().flatten().cloned();
    let balance = (!report.is_foreign()).then(|| balance(report));
    let lines = std::iter::once(outcome(report)).chain(balance).chain(reasons);
    let lines = lines.chain(report.evaluations.iter().map(evaluation)).chain(checkpoint(report));
    for line in lines.chain(model_spread(report)).chain(final_quality(&report.final_quality)) {
        push(&mut out, format_args!("{line}\n"));
    }
    out
}

/// Rows of the table of workers, below its heading.
fn workers(report: &Report) -> Vec<[String; 6]> {
    let mut rows =
        vec![["worker", "samples", "share", "batch sizes", "s/batch", "restarts"].map(str::to_owned)];
    let total: u64 = report.workers.iter().map(|worker| worker.samples).sum();
    for worker in &report.workers {
        // Not that of the last batch, which is what was left of the data.
        let mut times: Vec<f64> = worker.series.points().iter().map(|point| point.compute_s).collect();
        times.sort_by(f64::total_cmp);
        let median = times.get(times.len() / 2);
        rows.push([
            worker.id.clone(),
            worker.samples.to_string(),
            percent(worker.samples, total),
            sizes(&worker.batch_sizes),
            median.map_or("-".to_owned(), |seconds| format!("{seconds:.3}")),
            worker.restarts.to_string(),
        ]);
    }
    rows
}

/// The same of programs of which nothing else is known.
fn programs(report: &Report) -> Vec<[String; 2]> {
    let heading = ["program", "restarts"].map(str::to_owned);
    let rows = report.workers.iter().map(|worker| [worker.id.clone(), worker.restarts.to_string()]);
    std::iter::once(heading).chain(rows).collect()
}

fn outcome(report: &Report) -> String {
    let outcome = match &report.outcome {
        Outcome::Completed => "completed".to_owned(),
        Outcome::Incomplete { why } => format!("INCOMPLETE ({why})"),
        Outcome::Failed { why } => format!("FAILED ({why})"),
    };
    let Report { job_completion_time_s: time, steps, sync, policy, .. } = report;
    if report.is_foreign() {
        return format!("{outcome} in {time:.1} s: a program of your own");
    }
    let speed = if report.emulated { ", emulated speed" } else { "" };
    format!("{outcome} in {time:.1} s: {steps} steps, {sync}, policy {policy}{speed}")
}

fn balance(report: &Report) -> String {
    let samples = &report.samples;
    let remaining = match samples.remaining {
        0 => String::new(),
        remaining => format!("{remaining} remaining, "),
    };
    let SampleBalance { expected, committed, lost, duplicated, quarantined, .. } = samples;
    let exact = match (samples.is_exact(), report.averages_models()) {
        (false, _) => "NOT EXACT",
        (true, false) => "exact",
        (true, true) => "exact; each has a share of an average",
    };
    format!(
        "samples: {expected} expected, {committed} committed, {remaining}{lost} lost, {duplicated} duplicated, \
         {quarantined} quarantined ({exact})"
    )
}

fn evaluation(EvaluationEntry { epoch, samples, metrics, .. }: &EvaluationEntry) -> String {
    let found: Vec<String> = metrics.iter().map(|(name, value)| format!("{name} {value:.5}")).collect();
    format!("after epoch {epoch}, on {samples} samples: {}", found.join(", "))
}

fn checkpoint(report: &Report) -> Option<String> {
    let CheckpointEntry { id, samples, folder } = report.checkpoint.as_ref()?;
    let since = match report.samples.committed.saturating_sub(*samples) {
        0 => String::new(),
        since => format!("; the {since} committed since are not in it"),
    };
    Some(format!("checkpoint {id}, of {samples} samples, in {}{since}", folder.display()))
}

fn model_spread(report: &Report) -> Option<String> {
    let spread = report.model_spread.as_ref()?;
    let (worker, furthest) = spread.furthest()?;
    let (rms, time) = (spread.rms, spread.time_s);
    Some(format!("models {rms:.2e} from their mean at {time:.1} s, {worker} {furthest:.2e}"))
}

/// The loss and the metrics of the final model; `None` if nothing is known of them.
fn final_quality(quality: &FinalQuality) -> Option<String> {
    // A model that was evaluated without a loss has that of its training.
    let loss = if quality.samples == 0 || quality.metrics.contains_key(Metric::LOSS) {
        "loss"
    } else {
        "training loss"
    };
    let mut found: Vec<String> = quality.loss.iter().map(|value| format!("{loss} {value:.5}")).collect();
    found.extend(quality.others().map(|(name, value)| format!("{name} {value:.4}")));
    let on = match quality.samples {
        0 => "in training".to_owned(),
        n => format!("on {n} {} samples", quality.measured_on.name()),
    };
    (!found.is_empty()).then(|| format!("final {} {on}", found.join(", ")))
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a String cannot fail");
}

fn percent(part: u64, whole: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "a percentage for people")]
    let value = if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 };
    format!("{value:.1} %")
}

/// The first and the last few of a list of batch sizes.
fn sizes(sizes: &[u32]) -> String {
    const SHOWN: usize = 5;
    let text = |sizes: &[u32]| sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(" > ");
    if sizes.len() <= SHOWN {
        text(sizes)
    } else {
        format!("{} > ... > {}", sizes[0], text(&sizes[sizes.len() - (SHOWN - 2)..]))
    }
}

/// Left-aligned first column, right-aligned others, two spaces between.
pub(crate) fn push_columns<const N: usize>(out: &mut String, rows: &[[String; N]]) {
    let width: [usize; N] =
        std::array::from_fn(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0));
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            let width = width[i];
            match i {
                0 => push(out, format_args!("{cell:<width$}")),
                _ => push(out, format_args!("  {cell:>width$}")),
            }
        }
        out.push('\n');
    }
}
