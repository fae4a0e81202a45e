//! `report.html`: one page that needs nothing but itself.
//!
//! The charts are SVG drawn here, not by a script: the page works from a file, prints, and can be compared as text.
//! The few lines of script only hide and show workers.

use std::fmt::{Arguments, Write};

use antdt_core::Better;

use super::{BatchPoint, MeasuredOn, Outcome, Report, WorkerEntry};

pub(crate) mod chart;

use chart::{Chart, Curve, Mark, Timeline, draw, draw_timeline};

pub(crate) const STYLE: &str = include_str!("html/style.css");
const SCRIPT: &str = include_str!("html/script.js");
/// Colours in the style sheet; workers beyond share them.
pub(crate) const COLOURS: usize = 8;

/// Returns the HTML page of a report. Every text of the report is escaped.
pub fn render(report: &Report) -> String {
    let mut page = String::new();
    let title = format!("AntDT job {}", escape(&report.job_id));
    push(
        &mut page,
        format_args!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
        ),
    );
    header(&mut page, report);
    workers(&mut page, report);
    charts(&mut page, report);
    actions(&mut page, report);
    events(&mut page, report);
    config(&mut page, report);
    push(
        &mut page,
        format_args!(
            "<footer>antdt {}. Times are seconds since the job began.</footer>\n</main>\n\
             <script>\n{SCRIPT}</script>\n</body>\n</html>\n",
            escape(&report.version)
        ),
    );
    page
}

fn push(out: &mut String, text: Arguments<'_>) {
    out.write_fmt(text).expect("writing to a String cannot fail");
}

/// Makes text harmless between tags and in quoted attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// `1234567` as `1 234 567`, with spaces that do not break.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

fn header(page: &mut String, report: &Report) {
    let (class, verdict) = match &report.outcome {
        Outcome::Completed => ("good", format!("completed in {:.1} s", report.job_completion_time_s)),
        Outcome::Incomplete { why } | Outcome::Failed { why } => {
            ("bad", format!("failed after {:.1} s: {}", report.job_completion_time_s, escape(why)))
        }
    };
    if report.is_foreign() {
        return header_of_programs(page, report, (class, &verdict));
    }
    let samples = &report.samples;
    let (exact_class, exact) = if samples.is_exact() {
        match report.averages_models() {
            false => ("good", "every sample accounted for"),
            true => ("good", "every sample accounted for, with a share of an average"),
        }
    } else {
        ("bad", "samples do not balance")
    };
    push(
        page,
        format_args!(
            "<header>\n<h1>AntDT job <span>{}</span></h1>\n\
             <p class=\"chips\"><b class=\"{class}\">{verdict}</b> <b class=\"{exact_class}\">{exact}</b>{}</p>\n",
            escape(&report.job_id),
            if report.emulated {
                " <b class=\"note\" title=\"Real gradients are computed, then each worker waits until \
                 samples / speed has passed.\">emulated speed</b>"
            } else {
                ""
            },
        ),
    );
    page.push_str("<dl class=\"tiles\">\n");
    for (name, value) in tiles(report) {
        push(page, format_args!("<div><dt>{name}</dt><dd>{value}</dd></div>\n"));
    }
    push(
        page,
        format_args!(
            "</dl>\n<p class=\"balance\">{} expected = {} committed + {} quarantined + {}{} lost; {} duplicated</p>\n\
             </header>\n",
            grouped(samples.expected),
            grouped(samples.committed),
            grouped(samples.quarantined),
            match samples.remaining {
                0 => String::new(),
                remaining => format!("{} remaining + ", grouped(remaining)),
            },
            grouped(samples.lost),
            grouped(samples.duplicated),
        ),
    );
}

/// Of programs of which nothing is known but how they ended.
fn header_of_programs(page: &mut String, report: &Report, (class, verdict): (&str, &str)) {
    let restarts: u32 = report.workers.iter().map(|worker| worker.restarts).sum();
    push(
        page,
        format_args!(
            "<header>\n<h1>AntDT job <span>{}</span></h1>\n<p class=\"chips\"><b class=\"{class}\">{verdict}</b></p>\n\
             <dl class=\"tiles\">\n<div><dt>restarts</dt><dd>{restarts}</dd></div>\n</dl>\n\
             <p>A program of the user's, which took no samples from AntDT: what it trained is not known here.</p>\n</header>\n",
            escape(&report.job_id),
        ),
    );
}

/// Names and values of the figures at the top of the page.
fn tiles(report: &Report) -> impl Iterator<Item = (String, String)> {
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = if report.job_completion_time_s > 0.0 {
        report.samples.committed as f64 / report.job_completion_time_s
    } else {
        0.0
    };
    let quality = &report.final_quality;
    let restarts: u32 = report.workers.iter().map(|worker| worker.restarts).sum();
    let tiles = [
        ("synchronisation", escape(&report.sync)),
        ("policy", escape(&report.policy)),
        ("steps", grouped(report.steps)),
        ("samples per second", format!("{rate:.0}")),
        ("actions", report.actions.len().to_string()),
        ("restarts", restarts.to_string()),
        ("final loss", quality.loss.map_or("–".to_owned(), |loss| format!("{loss:.4}"))),
    ];
    let on_training = if quality.measured_on == MeasuredOn::Training { " (training)" } else { "" };
    let metrics = quality.others().map(move |(name, value)| {
        let better = match quality.better.get(name) {
            Some(Better::Higher) => " ↑",
            Some(Better::Lower) => " ↓",
            Some(Better::Neither) | None => "",
        };
        (format!("{}{on_training}{better}", escape(name)), format!("{value:.4}"))
    });
    let spread = report.model_spread.iter().map(|spread| ("model spread", format!("{:.2e}", spread.rms)));
    tiles.into_iter().chain(spread).map(|(name, value)| (name.to_owned(), value)).chain(metrics)
}

fn workers(page: &mut String, report: &Report) {
    page.push_str(
        "<section>\n<h2>Workers</h2>\n<p class=\"hint\">The boxes hide and show a worker in the charts.</p>\n\
         <div class=\"scroll\"><table>\n<thead><tr><th>worker</th><th class=\"n\">samples</th>\
         <th class=\"n\">share</th><th class=\"n\">restarts</th><th>batch sizes</th></tr></thead>\n<tbody>\n",
    );
    let total: u64 = report.workers.iter().map(|worker| worker.samples).sum();
    for (i, worker) in report.workers.iter().enumerate() {
        #[allow(clippy::cast_precision_loss, reason = "a percentage for people")]
        let share = 100.0 * worker.samples as f64 / total.max(1) as f64;
        let sizes: Vec<String> = worker.batch_sizes.iter().map(u32::to_string).collect();
        push(
            page,
            format_args!(
                "<tr><td><label class=\"c{}\"><input type=\"checkbox\" checked data-worker=\"w{i}\"><i></i>{}</label>\
                 </td><td class=\"n\">{}</td><td class=\"n\">{share:.1} %</td><td class=\"n\">{}</td>\
                 <td>{}</td></tr>\n",
                i % COLOURS,
                escape(&worker.id),
                grouped(worker.samples),
                worker.restarts,
                sizes.join(" → "),
            ),
        );
    }
    page.push_str("</tbody>\n</table></div>\n</section>\n");
}

fn charts(page: &mut String, report: &Report) {
    let actions = report.actions.iter();
    let marks: Vec<Mark> = actions
        .map(|action| Mark::new(action.time_s, &action.kind, &action.target, &action.reason))
        .collect();
    let end_s = report.job_completion_time_s;
    let chart = |unit, from_zero, curves: &[Curve]| {
        draw(&Chart { unit, from_zero, end_s, high: None, curves, marks: &marks, done_s: None })
    };

    let mut times = curves(report, |point| point.batch_s, true, false);
    times.extend(curves(report, |point| point.compute_s, false, false));
    section(
        page,
        "Time per batch",
        "Strong: computing. Faint: the whole batch, waiting for peers included. Upright: actions, restarts in red.",
        &chart(" s", true, &times),
    );
    let sizes = curves(report, |point| f64::from(point.batch_size), false, true);
    section(page, "Batch size", "Samples per batch of each worker.", &chart("", true, &sizes));
    let rows: Vec<&str> = report.workers.iter().map(|worker| worker.id.as_str()).collect();
    section(
        page,
        "Shards",
        "Who held which shard when. Hatched: given back, lost or failed.",
        &draw_timeline(&Timeline {
            rows: &rows,
            spans: &report.shards,
            end_s,
            colours: COLOURS,
            marks: &marks,
        }),
    );
    let loss = [Curve {
        class: "loss".to_owned(),
        title: "mean training loss".to_owned(),
        steps: false,
        points: report.loss_curve.points().iter().map(|point| (point.time_s, point.loss)).collect(),
    }];
    section(page, "Training loss", "Mean over the samples of each step.", &chart("", false, &loss));
}

/// A curve of each worker: a value of its batches over their times.
fn curves(report: &Report, value: fn(&BatchPoint) -> f64, faint: bool, steps: bool) -> Vec<Curve> {
    let curve = |(i, worker): (usize, &WorkerEntry)| Curve {
        class: format!("c{} w{i}{}", i % COLOURS, if faint { " faint" } else { "" }),
        title: worker.id.clone(),
        steps,
        points: worker.series.points().iter().map(|point| (point.time_s, value(point))).collect(),
    };
    report.workers.iter().enumerate().map(curve).collect()
}

pub(crate) fn section(page: &mut String, title: &str, hint: &str, body: &str) {
    push(page, format_args!("<section>\n<h2>{title}</h2>\n<p class=\"hint\">{hint}</p>\n{body}</section>\n"));
}

fn actions(page: &mut String, report: &Report) {
    page.push_str("<section>\n<h2>Actions</h2>\n");
    if report.actions.is_empty() {
        page.push_str("<p class=\"hint\">Nothing had to be done.</p>\n</section>\n");
        return;
    }
    page.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th class=\"n\">time</th><th>action</th><th>target</th>\
         <th>reason</th></tr></thead>\n<tbody>\n",
    );
    for action in &report.actions {
        push(
            page,
            format_args!(
                "<tr><td class=\"n\">{:.1} s</td><td><code>{}</code></td><td>{}</td><td>{}</td></tr>\n",
                action.time_s,
                escape(&action.kind),
                escape(&action.target),
                escape(&action.reason),
            ),
        );
    }
    page.push_str("</tbody>\n</table></div>\n</section>\n");
}

fn events(page: &mut String, report: &Report) {
    push(
        page,
        format_args!(
            "<section>\n<h2>Events</h2>\n<details{}>\n<summary>{} events</summary>\n<div class=\"scroll\"><table>\n\
             <thead><tr><th class=\"n\">time</th><th>node</th><th>kind</th><th>what</th></tr></thead>\n<tbody>\n",
            if report.events.len() <= 40 { " open" } else { "" },
            report.events.len(),
        ),
    );
    for event in &report.events {
        push(
            page,
            format_args!(
                "<tr><td class=\"n\">{:.1} s</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                event.time_s,
                escape(&event.node),
                escape(&event.kind),
                escape(&event.text),
            ),
        );
    }
    page.push_str("</tbody>\n</table></div>\n</details>\n</section>\n");
}

fn config(page: &mut String, report: &Report) {
    push(
        page,
        format_args!(
            "<section>\n<h2>Settings</h2>\n<div class=\"scroll\"><table class=\"settings\">\n<tbody>\n\
             <tr><th>seed</th><td>{}</td></tr>\n",
            report.seed
        ),
    );
    for (name, value) in report.config.iter().filter(|(name, _)| *name != "seed") {
        push(page, format_args!("<tr><th>{}</th><td>{}</td></tr>\n", escape(name), escape(value)));
    }
    page.push_str("</tbody>\n</table></div>\n</section>\n");
}
