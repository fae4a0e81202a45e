//! The table that a run prints at its end.

use std::fmt::Write;

use antdt_core::Metric;

use super::{CheckpointEntry, EvaluationEntry, Outcome, Report};

/// Returns the report as text for a terminal: one line per worker, the actions, the balance of samples. Ends
/// with a newline.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
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
    push_columns(&mut out, &rows);
    if !report.actions.is_empty() {
        out.push('\n');
        for action in &report.actions {
            push(
                &mut out,
                format_args!(
                    "{:>8.1}s  {} {}: {}\n",
                    action.time_s, action.kind, action.target, action.reason
                ),
            );
        }
    }
    out.push('\n');
    let samples = &report.samples;
    push(
        &mut out,
        format_args!(
            "{} in {:.1} s: {} steps, {}, policy {}{}\n",
            match &report.outcome {
                Outcome::Completed => "completed".to_owned(),
                Outcome::Incomplete { why } => format!("INCOMPLETE ({why})"),
                Outcome::Failed { why } => format!("FAILED ({why})"),
            },
            report.job_completion_time_s,
            report.steps,
            report.sync,
            report.policy,
            if report.emulated { ", emulated speed" } else { "" },
        ),
    );
    push(
        &mut out,
        format_args!(
            "samples: {} expected, {} committed, {}{} lost, {} duplicated, {} quarantined ({})\n",
            samples.expected,
            samples.committed,
            match samples.remaining {
                0 => String::new(),
                remaining => format!("{remaining} remaining, "),
            },
            samples.lost,
            samples.duplicated,
            samples.quarantined,
            if samples.is_exact() { "exact" } else { "NOT EXACT" },
        ),
    );
    for text in [&report.chosen, &report.resumed, &report.stopped_early].into_iter().flatten() {
        push(&mut out, format_args!("{text}\n"));
    }
    for EvaluationEntry { epoch, samples, metrics, .. } in &report.evaluations {
        let found: Vec<String> = metrics.iter().map(|(name, value)| format!("{name} {value:.5}")).collect();
        let found = found.join(", ");
        push(&mut out, format_args!("after epoch {epoch}, on {samples} samples: {found}\n"));
    }
    if let Some(CheckpointEntry { id, samples, folder }) = &report.checkpoint {
        let since = match report.samples.committed.saturating_sub(*samples) {
            0 => String::new(),
            since => format!("; the {since} committed since are not in it"),
        };
        push(
            &mut out,
            format_args!("checkpoint {id}, of {samples} samples, in {}{since}\n", folder.display()),
        );
    }
    if let Some(spread) = &report.model_spread
        && let Some((worker, furthest)) = spread.furthest()
    {
        push(
            &mut out,
            format_args!(
                "models {:.2e} from their mean at {:.1} s, {worker} {furthest:.2e}\n",
                spread.rms, spread.time_s
            ),
        );
    }
    let quality = &report.final_quality;
    // A model that was evaluated without a loss has that of its training.
    let loss = if quality.samples == 0 || quality.metrics.contains_key(Metric::LOSS) {
        "loss"
    } else {
        "training loss"
    };
    let mut found: Vec<String> = quality.loss.iter().map(|value| format!("{loss} {value:.5}")).collect();
    found.extend(quality.others().map(|(name, value)| format!("{name} {value:.4}")));
    if !found.is_empty() {
        let on = match quality.samples {
            0 => "in training".to_owned(),
            n => format!("on {n} {} samples", quality.measured_on.name()),
        };
        push(&mut out, format_args!("final {} {on}\n", found.join(", ")));
    }
    out
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
