//! The page of `antdt whatif`: every policy over the same time axis. It needs nothing but itself.

use antdt_sim::Setup;
use antdt_sim::journal::Point;
use antdt_sim::whatif::Run;

use super::whatif::name;
use crate::report::html::chart::{Bar, Chart, Curve, draw, draw_bars};
use crate::report::html::{COLOURS, STYLE, escape, grouped, section};

/// Marks in a chart at most: beyond, they would be a wall.
const MARKS_MAX: usize = 300;

/// Rows in a table of actions at most.
const ROWS_MAX: usize = 500;

/// The page. Everything that is text is escaped.
pub(super) fn render(trace: &str, setup: &Setup, runs: &[Run], calibration: &str) -> String {
    let end_s = runs.iter().map(|run| run.completed.as_secs_f64()).fold(0.0, f64::max);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>AntDT what if: {trace}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header>\n<h1>What if: <span>{trace}</span></h1>\n\
         <p class=\"hint\">Simulated from seed {}: {}, {} workers, {} samples, {} epochs, {} samples per step.</p>\n\
         <p class=\"hint\">{calibration}.</p>\n\
         </header>\n",
        setup.seed.0,
        setup.sync.name(),
        setup.workers,
        grouped(setup.samples),
        setup.epochs,
        setup.global_batch_size,
        trace = escape(trace),
    );
    let best = runs
        .iter()
        .filter(|run| run.result.is_ok())
        .map(|run| run.completed.as_secs_f64())
        .fold(f64::INFINITY, f64::min);
    summary(&mut page, runs, best, end_s);
    for run in runs {
        lanes(&mut page, run, best, end_s);
    }
    page += concat!(
        "<footer>antdt ",
        env!("CARGO_PKG_VERSION"),
        ". Times are seconds of the job's clock. All charts have the same time axis.</footer>\n\
         </main>\n</body>\n</html>\n"
    );
    page
}

/// Times of the best run from which on one looks wrong.
const WRONG: f64 = 1.5;

/// How a run compares.
fn verdict(run: &Run, best: f64) -> (&'static str, String) {
    let seconds = run.completed.as_secs_f64();
    match &run.result {
        Err(why) => ("bad", format!("failed after {seconds:.1} s: {}", escape(why))),
        Ok(()) if seconds <= best => ("good", format!("{seconds:.1} s, the fastest")),
        Ok(()) if seconds < best * WRONG => ("note", format!("{seconds:.1} s, {:.2} times", seconds / best)),
        Ok(()) => ("bad", format!("{seconds:.1} s, {:.2} times", seconds / best)),
    }
}

/// The moments of the actions with their texts, neighbours in one where there are many.
fn marks(run: &Run, end_s: f64) -> Vec<(f64, String)> {
    let gap = end_s / MARKS_MAX as f64;
    let mut marks: Vec<(f64, String, usize)> = Vec::new();
    for action in &run.actions {
        let at = action.at.as_secs_f64();
        match marks.last_mut() {
            Some((last, _, more)) if at - *last < gap => *more += 1,
            _ => marks.push((at, format!("{} {}: {}", action.kind, action.target, action.reason), 0)),
        }
    }
    let told = |(at, text, more)| match more {
        0 => (at, text),
        more => (at, format!("{text} (and {more} more)")),
    };
    marks.into_iter().map(told).collect()
}

fn summary(page: &mut String, runs: &[Run], best: f64, end_s: f64) {
    let bars: Vec<Bar> = runs
        .iter()
        .map(|run| Bar {
            name: name(run),
            class: verdict(run, best).0,
            to_s: run.completed.as_secs_f64(),
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
        "Bars end at the job completion time. Ticks: actions; point at one for its reason.",
        &(draw_bars(&bars, end_s) + &table),
    );
}

fn lanes(page: &mut String, run: &Run, best: f64, end_s: f64) {
    let marks = marks(run, end_s);
    let curves = |value: &dyn Fn(&Point) -> f64, faint: bool, steps: bool| -> Vec<Curve> {
        (run.series.iter().enumerate())
            .map(|(index, (node, points))| Curve {
                class: format!("c{} w{index}{}", index % COLOURS, if faint { " faint" } else { "" }),
                title: node.to_string(),
                steps,
                points: points.iter().map(|point| (point.at.as_secs_f64(), value(point))).collect(),
            })
            .collect()
    };
    let mut times = curves(&|point| point.wall.as_secs_f64() / f64::from(point.batches), true, false);
    times.extend(curves(&|point| point.compute.as_secs_f64() / f64::from(point.batches), false, false));
    #[allow(clippy::cast_precision_loss, reason = "a batch size for a chart")]
    let sizes = curves(&|point| point.samples as f64 / f64::from(point.batches), false, true);
    let done_s = Some(run.completed.as_secs_f64());
    let draw =
        |unit, curves: &[Curve]| draw(&Chart { unit, from_zero: true, end_s, curves, marks: &marks, done_s });
    let (class, verdict) = verdict(run, best);
    *page += &format!(
        "<section>\n<h2>{}</h2>\n<p class=\"chips\"><b class=\"{class}\">{verdict}</b></p>\n",
        escape(&name(run))
    );
    *page += "<p class=\"hint\">Time per batch. Strong: computing. Faint: waiting for peers included. Dashed: actions.</p>\n";
    *page += &draw(" s", &times);
    *page += "<p class=\"hint\">Batch size of each worker.</p>\n";
    *page += &draw("", &sizes);
    if !run.actions.is_empty() {
        *page += &format!(
            "<details{}>\n<summary>{} actions</summary>\n<div class=\"scroll\"><table>\n<thead><tr><th class=\"n\">time</th>\
             <th class=\"n\">step</th><th>action</th><th>target</th><th>reason</th></tr></thead>\n<tbody>\n",
            if run.actions.len() <= 20 { " open" } else { "" },
            run.actions.len()
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
