//! [`ConsoleSink`]: the job on the console. Lines say what is done about its nodes; a terminal has the progress line besides, and where
//! standard error is none, such as a file, lines say how the job starts and how far it is.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::Duration;

use antdt_core::{JobTime, NodeId};
use antdt_job::{EventKind, Note};
use antdt_launch::OutputStream;
use serde_json::{Value as Json, json};

use super::{JobNote, JobStart, NoteSink};
use crate::job::{JobSpec, LogFormat};
use crate::master::PartError;
use crate::master::console::Console;

/// Time between two lines of progress. A log of a day has 2,880 of them.
const PROGRESS_EVERY: Duration = Duration::from_secs(30);

/// Tells the user of the job.
pub(super) struct ConsoleSink {
    console: Console,
    format: LogFormat,
    lines: JobLines,
}

impl ConsoleSink {
    pub(super) fn new(spec: &JobSpec, console: Console) -> Self {
        let shown = match (spec.quiet, std::io::stderr().is_terminal()) {
            (true, _) => Shown::Necessary,
            (false, true) => Shown::Beside,
            (false, false) => Shown::All,
        };
        Self { console, format: spec.log_format, lines: JobLines::new(shown) }
    }
}

impl NoteSink for ConsoleSink {
    fn note(&mut self, at: JobTime, note: &JobNote) -> Result<(), PartError> {
        match note {
            JobNote::Progress(progress) => self.console.progress(*progress),
            JobNote::Head(Note::Action { kind, target, reason }) if self.lines.shown == Shown::Necessary => {
                tracing::info!(kind, target, reason, "action");
            }
            JobNote::Head(Note::Event { kind: EventKind::NoCheckpoint, text, .. }) => {
                tracing::warn!("{text}");
            }
            _ => {}
        }
        if let Some(line) = self.lines.of(at, note) {
            let text = match self.format {
                LogFormat::Text if self.lines.shown != Shown::Necessary => {
                    format!("{:>8.1}s  {}", at.as_secs_f64(), line.text)
                }
                LogFormat::Text => line.text,
                LogFormat::Json => line.json(at),
            };
            self.console.line(OutputStream::Err, text);
        }
        Ok(())
    }
}

/// How much lines say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// What no table shows in the end.
    Necessary,
    /// What the progress line does not show.
    Beside,
    All,
}

/// Decides which lines there are.
#[derive(Debug)]
struct JobLines {
    shown: Shown,
    /// When the next line of progress is due.
    due: JobTime,
    /// Nodes that were lost and have not joined again.
    lost: BTreeSet<NodeId>,
}

/// A line on the console.
#[derive(Debug, PartialEq)]
struct Line {
    kind: &'static str,
    text: String,
    /// What the text says, by name.
    details: Json,
}

impl Line {
    fn json(mut self, at: JobTime) -> String {
        self.details["time_s"] = json!(at.as_secs_f64());
        self.details["kind"] = json!(self.kind);
        self.details["text"] = json!(self.text);
        self.details.to_string()
    }
}

impl JobLines {
    const fn new(shown: Shown) -> Self {
        Self { shown, due: JobTime::ZERO, lost: BTreeSet::new() }
    }

    /// Returns the line about a note, if there is one.
    fn of(&mut self, at: JobTime, note: &JobNote) -> Option<Line> {
        let (kind, text, details) = match note {
            JobNote::Started(start) if self.shown == Shown::All => {
                self.due = at + PROGRESS_EVERY;
                ("started", start_text(start), start_details(start))
            }
            JobNote::Started(start) => {
                let page = start.page.as_deref().filter(|_| self.shown == Shown::Beside).map(page_text);
                let said: Vec<String> = page.into_iter().chain(start.resumed.clone()).collect();
                ("started", Some(said.join("; ")).filter(|text| !text.is_empty())?, start_details(start))
            }
            JobNote::Head(Note::ModeChosen { text, measured: true }) => ("mode", text.clone(), json!({})),
            JobNote::Head(_) | JobNote::Progress(_) if self.shown == Shown::Necessary => return None,
            JobNote::Head(Note::Action { kind, target, reason }) => {
                let details = json!({ "target": target, "reason": reason });
                (*kind, format!("{kind} {target}: {reason}"), details)
            }
            JobNote::Head(Note::Event { node, kind, text }) if self.shows(*node, *kind) => {
                let node = node.map(|node| node.to_string());
                (kind.name(), format!("{}: {text}", kind.name()), json!({ "node": node }))
            }
            JobNote::Progress(progress) if self.shown == Shown::All && self.due <= at => {
                self.due = at + PROGRESS_EVERY;
                ("progress", progress.to_string(), json!(progress))
            }
            // The table and the exit code say how a job ended.
            JobNote::Head(_) | JobNote::Progress(_) | JobNote::Ended(_) => return None,
        };
        Some(Line { kind, text, details })
    }

    /// Whether an event is a death, a recovery, or a change that no action announces.
    fn shows(&mut self, node: Option<NodeId>, kind: EventKind) -> bool {
        match kind {
            EventKind::Lost | EventKind::Preempted => {
                self.lost.extend(node);
                true
            }
            EventKind::Joined => node.is_some_and(|node| self.lost.remove(&node)),
            EventKind::Stalled
            | EventKind::Retired
            | EventKind::Restart
            | EventKind::Rollback
            | EventKind::Memory
            | EventKind::Refused => true,
            // The log has it.
            EventKind::NoCheckpoint
            // What is usual, or what a line of progress counts.
            | EventKind::Left
            | EventKind::Finished
            | EventKind::Late
            | EventKind::Straggler
            | EventKind::GlobalSlowdown
            | EventKind::SlowLink
            | EventKind::Recovered
            | EventKind::Membership
            | EventKind::Plan
            | EventKind::Forecast
            | EventKind::None
            | EventKind::Checkpoint => false,
        }
    }
}

fn start_text(JobStart { job, spec, run_dir, page, resumed }: &JobStart) -> String {
    let data = spec.data.as_ref().map_or_else(|| "its program's".to_owned(), ToString::to_string);
    let servers = if spec.servers > 0 { format!(", servers {}", spec.servers) } else { String::new() };
    let reach = run_dir.as_ref().map_or_else(
        || "no run directory".to_owned(),
        |dir| format!("run directory {0}; antdt status {0} shows it, antdt stop {0} ends it", dir.display()),
    );
    let page = page.as_ref().map(|url| format!("; {}", page_text(url))).unwrap_or_default();
    let resumed = resumed.as_ref().map(|text| format!("; {text}")).unwrap_or_default();
    format!(
        "job {job}: mode {}, policy {}, data {data}, workers {}{servers}; {reach}{page}{resumed}",
        spec.sync, spec.policy, spec.workers
    )
}

fn page_text(url: &str) -> String {
    format!("live page {url}")
}

fn start_details(JobStart { job, spec, run_dir, page, resumed }: &JobStart) -> Json {
    json!({
        "job": job,
        "sync": spec.sync.to_string(),
        "policy": spec.policy,
        "data": spec.data.as_ref().map(ToString::to_string),
        "workers": spec.workers,
        "servers": spec.servers,
        "run_dir": run_dir,
        "page": page,
        "resumed": resumed,
    })
}

#[cfg(test)]
mod tests {
    use antdt_core::{Holder, Incarnation};

    use super::*;
    use crate::report::{LiveProgress, Outcome};

    fn at(seconds: f64) -> JobTime {
        JobTime::ZERO + Duration::from_secs_f64(seconds)
    }

    fn started(resumed: Option<&str>) -> JobNote {
        let spec = JobSpec { workers: 4, data: Some("synthetic:90".parse().unwrap()), ..JobSpec::default() };
        let run_dir = Some("/jobs/a".into());
        JobNote::Started(Box::new(JobStart {
            job: "a".to_owned(),
            spec,
            run_dir,
            page: None,
            resumed: resumed.map(str::to_owned),
        }))
    }

    fn event(kind: EventKind, node: u32) -> JobNote {
        let text = format!("of worker-{node}");
        JobNote::Head(Note::Event { node: Some(NodeId::worker(node)), kind, text })
    }

    fn action() -> JobNote {
        let (target, reason) = ("all".to_owned(), "worker-1 takes 4.00x".to_owned());
        JobNote::Head(Note::Action { kind: "ADJUST_BS", target, reason })
    }

    fn texts(lines: &mut JobLines, notes: &[(f64, JobNote)]) -> Vec<String> {
        notes.iter().filter_map(|(seconds, note)| Some(lines.of(at(*seconds), note)?.text)).collect()
    }

    #[test]
    fn a_log_has_the_start_progress_every_half_minute_and_what_is_done_when_it_is_done() {
        let progress = JobNote::Progress(LiveProgress::default());
        let ticks = [29.8, 30.0, 30.2, 59.8, 70.0, 99.8].map(|seconds| (seconds, progress.clone()));
        let [early, first, second, third, late, later] = ticks;
        let notes = [
            (0.0, started(None)),
            (1.0, event(EventKind::Joined, 1)),
            (2.0, event(EventKind::Straggler, 1)),
            early,
            (29.9, action()),
            first,
            (30.1, event(EventKind::Lost, 1)),
            second,
            (31.0, event(EventKind::Joined, 2)),
            (32.0, event(EventKind::Joined, 1)),
            (33.0, event(EventKind::Joined, 1)),
            third,
            late,
            later,
            (100.0, JobNote::Head(Note::Launched(Holder::new(NodeId::worker(1), Incarnation(2))))),
            (101.0, JobNote::Ended(Outcome::Completed)),
        ];
        let shown = LiveProgress::default().to_string();
        assert_eq!(
            texts(&mut JobLines::new(Shown::All), &notes),
            [
                "job a: mode allreduce, policy predictive, data synthetic:90, workers 4; run directory /jobs/a; antdt status \
                 /jobs/a shows it, antdt stop /jobs/a ends it",
                "ADJUST_BS all: worker-1 takes 4.00x",
                &*shown,
                "lost: of worker-1",
                "joined: of worker-1",
                &*shown,
            ]
        );
    }

    #[test]
    fn terminal_has_what_is_done_and_a_quiet_job_what_no_table_shows() {
        let chosen =
            |measured| JobNote::Head(Note::ModeChosen { text: "--sync auto: ps-bsp".to_owned(), measured });
        let notes = [
            (0.0, started(None)),
            (0.0, started(Some("goes on from checkpoint 3"))),
            (1.0, action()),
            (2.0, event(EventKind::Lost, 1)),
            (50.0, JobNote::Progress(LiveProgress::default())),
            (51.0, chosen(true)),
            (52.0, chosen(false)),
        ];
        let quiet = ["goes on from checkpoint 3", "--sync auto: ps-bsp"];
        assert_eq!(texts(&mut JobLines::new(Shown::Necessary), &notes), quiet);
        let actions = ["ADJUST_BS all: worker-1 takes 4.00x", "lost: of worker-1"];
        let live = [&quiet[..1], &actions, &quiet[1..]].concat();
        assert_eq!(texts(&mut JobLines::new(Shown::Beside), &notes), live);
    }

    #[test]
    fn a_line_of_json_says_the_same_by_name() {
        let mut lines = JobLines::new(Shown::All);
        let mut json = |note: &JobNote| -> Json {
            serde_json::from_str(&lines.of(at(60.5), note).unwrap().json(at(60.5))).unwrap()
        };
        let text = "ADJUST_BS all: worker-1 takes 4.00x";
        let reason = "worker-1 takes 4.00x";
        assert_eq!(
            json(&action()),
            json!({ "time_s": 60.5, "kind": "ADJUST_BS", "target": "all", "reason": reason, "text": text })
        );
        assert_eq!(json(&event(EventKind::Stalled, 1))["node"], "worker-1");
        let progress = LiveProgress { step: 7, ..LiveProgress::default() };
        let shown = json(&JobNote::Progress(progress));
        assert_eq!((&shown["kind"], &shown["step"]), (&json!("progress"), &json!(7)));
        let start = json(&started(Some("goes on")));
        assert_eq!((&start["run_dir"], &start["resumed"]), (&json!("/jobs/a"), &json!("goes on")));
    }
}
