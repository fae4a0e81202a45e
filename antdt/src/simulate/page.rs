//! The HTML page of `antdt whatif`: all policies over the same time axis, in one self-contained file.

use std::time::Duration;

use antdt_core::NodeId;
use antdt_sim::Setup;
use antdt_sim::journal::Point;
use antdt_sim::whatif::Run;

use super::whatif::name;
use crate::report::html::chart::{Bar, Chart, Curve, Mark, draw, draw_bars};
use crate::report::html::{COLOURS, STYLE, escape, grouped, section};

/// Marks in a chart at most: beyond, they would be a wall.
const MARKS_MAX: usize = 300;

/// Rows in a table of actions at most.
const ROWS_MAX: usize = 500;

/// Returns the HTML page of `antdt whatif` for these runs, which all simulate the job in the file `trace`.
/// `notes` are lines to show beside the figures: [`WhatIf::beyond`](antdt_sim::WhatIf::beyond) and
/// [`Calibration::line`](antdt_sim::Calibration::line). All text is escaped.
///
/// A program can also use it for a policy of its own, whose runs come from [`antdt_sim::WhatIf`].
pub fn render(trace: &str, setup: &Setup, runs: &[Run], notes: &[&str]) -> String {
    let end_s = runs.iter().map(|run| run.completed.as_secs_f64()).fold(0.0, f64::max);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>AntDT what if: {trace}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header>\n<h1>What if: <span>{trace}</span></h1>\n\
         <p class=\"hint\">Simulated from seed {}: {}, {}, {} samples, {}, {} samples per step.</p>\n\
         {notes}</header>\n",
        setup.seed.0,
        setup.sync,
        counted(setup.workers.into(), "worker"),
        grouped(setup.samples),
        counted(setup.epochs.into(), "epoch"),
        setup.global_batch_size,
        trace = escape(trace),
        notes =
            notes.iter().map(|note| format!("<p class=\"hint\">{}.</p>\n", escape(note))).collect::<String>(),
    );
    let best = runs
        .iter()
        .filter(|run| run.result.is_ok())
        .map(|run| run.completed.as_secs_f64())
        .fold(f64::INFINITY, f64::min);
    summary(&mut page, runs, best, end_s);
    let scale = Scale::of(runs);
    for run in runs {
        lanes(&mut page, run, best, end_s, &scale);
    }
    page += concat!(
        "<footer>antdt ",
        env!("CARGO_PKG_VERSION"),
        ". Times are seconds of the job's clock. All charts of a kind have the same axes.</footer>\n\
         </main>\n</body>\n</html>\n"
    );
    page
}

/// Times of the best run up to which one is as good: the order of messages alone makes as much.
const AS_GOOD: f64 = 1.02;

/// Times of the best run from which on one looks wrong.
const WRONG: f64 = 1.2;

/// Share of the time axis in which a worker has no batch from which on its curves are broken off: it was away.
const AWAY: f64 = 0.02;

/// How a run compares.
fn verdict(run: &Run, best: f64) -> (&'static str, String) {
    let seconds = run.completed.as_secs_f64();
    match &run.result {
        Err(why) if run.cut_off => ("note", format!("cut off after {seconds:.1} s: {}", escape(why))),
        Err(why) => ("bad", format!("failed after {seconds:.1} s: {}", escape(why))),
        Ok(()) if seconds <= best => ("good", format!("{seconds:.1} s, the fastest")),
        Ok(()) => {
            let times = seconds / best;
            let class = match times {
                ..AS_GOOD => "good",
                ..WRONG => "note",
                _ => "bad",
            };
            (class, format!("{seconds:.1} s, {times:.2} times the fastest"))
        }
    }
}

/// `1 worker`, `2 workers`.
fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// The actions as marks, neighbours in one where there are many; a restart is not hidden in a change of batch sizes.
fn marks(run: &Run, end_s: f64) -> Vec<Mark> {
    let gap = end_s / MARKS_MAX as f64;
    let mut marks: Vec<(Mark, usize)> = Vec::new();
    for action in &run.actions {
        let mark = Mark::new(action.at.as_secs_f64(), &action.kind, &action.target, &action.reason);
        match marks.last_mut() {
            Some((last, more)) if mark.time_s - last.time_s < gap && last.restart >= mark.restart => {
                *more += 1;
            }
            _ => marks.push((mark, 0)),
        }
    }
    for (mark, more) in marks.iter_mut().filter(|(_, more)| *more > 0) {
        mark.text += &format!(" (and {more} more)");
    }
    marks.into_iter().map(|(mark, _)| mark).collect()
}

/// What the value axes of all runs have in common, so that they can be compared.
struct Scale {
    seconds: f64,
    samples: f64,
}

impl Scale {
    /// Of the times, what all but one in a hundred do not exceed: the one batch in which all workers waited for a restart must not
    /// make all others flat.
    fn of(runs: &[Run]) -> Self {
        let points = || runs.iter().flat_map(|run| run.series.values().flatten());
        let mut walls: Vec<f64> = points().map(seconds_of(|point| point.wall)).collect();
        walls.sort_by(f64::total_cmp);
        let most = walls.get((walls.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0);
        let computing = points().map(seconds_of(|point| point.compute)).fold(0.0, f64::max);
        Self { seconds: most.max(computing), samples: points().map(samples_of).fold(0.0, f64::max) }
    }
}

/// Of one batch.
fn seconds_of(what: fn(&Point) -> Duration) -> impl Fn(&Point) -> f64 {
    move |point| what(point).as_secs_f64() / f64::from(point.batches)
}

/// Of one batch.
#[allow(clippy::cast_precision_loss, reason = "a batch size for a chart")]
fn samples_of(point: &Point) -> f64 {
    point.samples as f64 / f64::from(point.batches)
}

/// The values over time, with a value that is none wherever the worker was away.
fn broken_where_away(points: &[Point], value: &dyn Fn(&Point) -> f64, end_s: f64) -> Vec<(f64, f64)> {
    let mut before: Option<f64> = None;
    let mut all = Vec::with_capacity(points.len());
    for point in points {
        let at = point.at.as_secs_f64();
        let begin = at - point.wall.as_secs_f64();
        if before.is_some_and(|before| begin - before > AWAY * end_s) {
            all.push((begin, f64::NAN));
        }
        all.push((at, value(point)));
        before = Some(at);
    }
    all
}

/// Which colour is whose.
fn legend(run: &Run) -> String {
    if run.series.is_empty() {
        return "<p class=\"hint\">Single workers are drawn where there are at most 256.</p>\n".to_owned();
    }
    if run.series.len() > COLOURS {
        let count = run.series.len();
        return format!("<p class=\"hint\">{count} workers; point at a line for its worker.</p>\n");
    }
    let workers = run
        .series
        .keys()
        .map(|node| format!("<span class=\"{}\"><i></i>{}</span>", colour(*node), escape(&node.to_string())));
    format!("<p class=\"legend\">{}</p>\n", workers.collect::<String>())
}

/// The same for a worker in every run.
fn colour(node: NodeId) -> String {
    format!("c{}", node.index as usize % COLOURS)
}

fn summary(page: &mut String, runs: &[Run], best: f64, end_s: f64) {
    let bars: Vec<Bar> = runs
        .iter()
        .map(|run| Bar {
            name: name(run),
            class: verdict(run, best).0,
            to_s: run.completed.as_secs_f64(),
            value: match &run.result {
                Ok(()) => format!("{:.1} s", run.completed.as_secs_f64()),
                Err(_) if run.cut_off => "cut off".to_owned(),
                Err(_) => "failed".to_owned(),
            },
            marks: marks(run, end_s),
        })
        .collect();
    let mut table = String::from(
        "<div class=\"scroll\"><table>\n<thead><tr><th>policy</th><th class=\"n\">completion</th>\
         <th class=\"n\">samples/s</th><th class=\"n\">idle</th><th class=\"n\">steps</th>\
         <th class=\"n\">actions</th></tr></thead>\n<tbody>\n",
    );
    for run in runs {
        let (class, verdict) = verdict(run, best);
        table += &format!(
            "<tr><td>{}</td><td class=\"n\"><b class=\"{class}\">{verdict}</b></td><td class=\"n\">{:.0}</td>\
             <td class=\"n\">{:.1} %</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
            escape(&name(run)),
            run.goodput(),
            100.0 * run.idle_share,
            grouped(run.steps),
            grouped(run.actions.len() as u64),
        );
    }
    table += "</tbody>\n</table></div>\n";
    section(
        page,
        "Until everything is committed",
        "Bars end at the job completion time. Ticks: actions, restarts in red; point at one for its reason.",
        &(draw_bars(&bars, end_s) + &table),
    );
}

fn lanes(page: &mut String, run: &Run, best: f64, end_s: f64, scale: &Scale) {
    let marks = marks(run, end_s);
    let curves = |value: &dyn Fn(&Point) -> f64, faint: bool, steps: bool| -> Vec<Curve> {
        (run.series.iter())
            .map(|(node, points)| Curve {
                class: format!("{}{}", colour(*node), if faint { " faint" } else { "" }),
                title: node.to_string(),
                steps,
                points: broken_where_away(points, value, end_s),
            })
            .collect()
    };
    let mut times = curves(&seconds_of(|point| point.wall), true, false);
    times.extend(curves(&seconds_of(|point| point.compute), false, false));
    let sizes = curves(&samples_of, false, true);
    let done_s = Some(run.completed.as_secs_f64());
    let draw = |unit, high, curves: &[Curve]| {
        draw(&Chart { unit, from_zero: true, end_s, high: Some(high), curves, marks: &marks, done_s })
    };
    let (class, verdict) = verdict(run, best);
    *page += &format!(
        "<section>\n<h2>{}</h2>\n<p class=\"chips\"><b class=\"{class}\">{verdict}</b></p>\n",
        escape(&name(run))
    );
    *page += &legend(run);
    *page += "<p class=\"hint\">Seconds per batch. Strong: computing. Faint: waiting for peers included. Upright: actions, \
              restarts in red; green: everything is committed.</p>\n";
    *page += &draw(" s", scale.seconds, &times);
    *page += "<p class=\"hint\">Samples per batch of each worker.</p>\n";
    *page += &draw("", scale.samples, &sizes);
    if !run.actions.is_empty() {
        *page += &format!(
            "<details{}>\n<summary>{}</summary>\n<div class=\"scroll\"><table>\n<thead><tr><th class=\"n\">time</th>\
             <th class=\"n\">step</th><th>action</th><th>target</th><th>reason</th></tr></thead>\n<tbody>\n",
            if run.actions.len() <= 20 { " open" } else { "" },
            counted(run.actions.len() as u64, "action")
        );
        for action in run.actions.iter().take(ROWS_MAX) {
            *page += &format!(
                "<tr><td class=\"n\">{:.1} s</td><td class=\"n\">{}</td><td><code>{}</code></td><td>{}</td><td>{}</td></tr>\n",
                action.at.as_secs_f64(),
                action.step.map_or_else(|| "–".to_owned(), grouped),
                escape(&action.kind),
                escape(&action.target),
                escape(&action.reason),
            );
        }
        *page += "</tbody>\n</table></div>\n";
        if let Some(more @ 1..) = run.actions.len().checked_sub(ROWS_MAX) {
            *page += &format!("<p class=\"hint\">And {more} more.</p>\n");
        }
        *page += "</details>\n";
    }
    *page += "</section>\n";
}
