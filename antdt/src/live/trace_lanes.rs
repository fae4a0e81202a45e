//! [`TraceLanes`]: what happened in a job as events of Chrome's trace format, which Perfetto shows: a lane for each node, and one for
//! the job.
//!
//! Source: "Trace Event Format" of the Chromium project, recalled: complete events (`X`), instants (`i`), counters (`C`) and
//! metadata (`M`), with times in microseconds.

use std::collections::BTreeSet;
use std::time::Duration;

use antdt_core::{BatchReport, JobTime, NodeId, Role};
use antdt_job::Note;
use serde_json::{Value as Json, json};

use super::totals::PHASES;
use super::view::is_shown;
use crate::master::JobNote;

/// Parts of batches that a trace has: some 60 MB, which browsers still open. Of what comes after, only actions and events are in it.
const PARTS_MAX: usize = 500_000;

/// Lane of the job; workers follow it.
const JOB: u32 = 0;

/// Lane of the first server, after those of all workers that a job can have.
const SERVERS: u32 = 1 << 20;

/// Turns notes into events. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct TraceLanes {
    named: BTreeSet<u32>,
    parts: usize,
}

const fn lane(node: NodeId) -> u32 {
    match node.role {
        Role::Worker => 1 + node.index,
        Role::Server => SERVERS + node.index,
    }
}

#[allow(clippy::cast_precision_loss, reason = "microseconds of a job")]
fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

fn instant(at: JobTime, lane: u32, name: &str, text: &str) -> Json {
    let at = micros(at.since_start());
    json!({ "ph": "i", "s": "t", "pid": 1, "tid": lane, "ts": at, "name": name, "args": { "why": text } })
}

impl TraceLanes {
    /// Returns the events of a note, in no particular order.
    pub(crate) fn note(&mut self, at: JobTime, note: &JobNote) -> Vec<Json> {
        let mut events = Vec::new();
        match note {
            JobNote::Started(start) => {
                let name = format!("antdt {}", start.job);
                events.push(json!({ "ph": "M", "pid": 1, "name": "process_name", "args": { "name": name } }));
                self.name(&mut events, JOB, "job");
            }
            JobNote::Head(note) => self.head_note(&mut events, at, note),
            JobNote::Progress(progress) => {
                let values = json!({ "samples/s": progress.samples_per_second });
                let at = micros(at.since_start());
                events.push(json!({ "ph": "C", "pid": 1, "ts": at, "name": "pace", "args": values }));
            }
            JobNote::Ended(outcome) => events.push(instant(at, JOB, "ended", &format!("{outcome:?}"))),
        }
        events
    }

    fn name(&mut self, events: &mut Vec<Json>, lane: u32, name: &str) {
        if self.named.insert(lane) {
            let args = json!({ "name": name });
            events.push(json!({ "ph": "M", "pid": 1, "tid": lane, "name": "thread_name", "args": args }));
        }
    }

    fn head_note(&mut self, events: &mut Vec<Json>, at: JobTime, note: &Note) {
        match note {
            Note::Action { kind, target, reason } => {
                let lane = target.parse().map_or(JOB, lane);
                events.push(instant(at, lane, kind, reason));
            }
            Note::Event { node, kind, text } if is_shown(*kind) => {
                events.push(instant(at, node.map_or(JOB, lane), kind.name(), text));
            }
            Note::Launched(holder) => {
                self.name(events, lane(holder.node), &holder.node.to_string());
                events.push(instant(at, lane(holder.node), "launched", &holder.to_string()));
            }
            Note::Stored(took) => {
                let (began, took) = (micros((at - *took).since_start()), micros(*took));
                events.push(json!({
                    "ph": "X", "pid": 1, "tid": JOB, "ts": began, "dur": took, "name": "checkpoint",
                }));
            }
            Note::Evaluated { samples, .. } => {
                events.push(instant(at, JOB, "evaluated", &format!("on {samples} samples")));
            }
            Note::Batches(reports) => self.batches(events, at, reports),
            _ => {}
        }
    }

    /// Reports of one heartbeat, oldest first; the newest ended just before `now`.
    fn batches(&mut self, events: &mut Vec<Json>, now: JobTime, reports: &[(BatchReport, f64)]) {
        let mut end = now;
        for (report, _) in reports.iter().rev() {
            let began = end - report.wall();
            let mut at = began;
            let parts = [report.data_wait, report.compute, report.communicate, report.barrier_wait];
            for (name, part) in PHASES.iter().zip(parts).filter(|(_, part)| *part > Duration::ZERO) {
                if self.parts < PARTS_MAX && report.samples > 0 {
                    self.parts += 1;
                    events.push(json!({
                        "ph": "X", "pid": 1, "tid": lane(report.holder.node), "ts": micros(at.since_start()),
                        "dur": micros(part), "name": name,
                        "args": { "step": report.iteration.0, "samples": report.samples },
                    }));
                }
                at = at + part;
            }
            end = began;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::tests::{action, at, batch, event, launched, progress, started};
    use antdt_job::EventKind;

    #[test]
    fn a_trace_has_a_lane_for_each_node_and_what_happened_on_it() {
        let mut lanes = TraceLanes::default();
        let notes = [
            (0, started()),
            (0, launched(1, 0)),
            (500, batch(1, 10, 100)),
            (600, progress(9)),
            (700, event(Some(1), EventKind::Lost)),
            (700, event(Some(1), EventKind::Plan)),
            (800, action("ADJUST_BS")),
            (900, JobNote::Head(Note::Stored(Duration::from_millis(250)))),
        ];
        let events: Vec<Json> = notes.iter().flat_map(|(ms, note)| lanes.note(at(*ms), note)).collect();
        let named = |name: &str| {
            events.iter().find(|event| event["name"] == name).unwrap_or_else(|| panic!("{name}"))
        };
        assert_eq!(named("thread_name")["args"]["name"], "job");
        assert!(events.iter().any(|event| event["args"]["name"] == "worker-1" && event["tid"] == 2));
        let compute = named("compute");
        // It ended 5 ms before the report arrived, which were spent with others.
        assert_eq!(
            (&compute["ts"], &compute["dur"], &compute["tid"]),
            (&json!(395e3), &json!(100e3), &json!(2))
        );
        assert_eq!((&named("lost")["ts"], &named("lost")["tid"]), (&json!(700e3), &json!(2)));
        assert_eq!(named("ADJUST_BS")["args"]["why"], "why not");
        assert_eq!((&named("checkpoint")["ts"], &named("checkpoint")["dur"]), (&json!(650e3), &json!(250e3)));
        assert!(!events.iter().any(|event| event["name"] == "plan"));
    }

    #[test]
    fn a_long_job_has_a_bounded_trace() {
        let mut lanes = TraceLanes { parts: PARTS_MAX - 2, ..TraceLanes::default() };
        let parts = |lanes: &mut TraceLanes| lanes.note(at(500), &batch(1, 10, 100)).len();
        assert_eq!([parts(&mut lanes), parts(&mut lanes)], [2, 0]);
        assert_eq!(lanes.note(at(600), &action("SCALE")).len(), 1);
    }
}
