//! A job as notes, on its page and in its metrics.
#![allow(clippy::print_stderr, reason = "a figure, and what is skipped")]

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use antdt_core::{
    BatchReport, Holder, Incarnation, Iteration, JobTime, Metric, Metrics, NodeId, Phase, PlanVersion,
};
use antdt_job::{EventKind, Note};
use proptest::prelude::*;

use super::metrics::{FAMILIES, WORKERS_MAX, render};
use super::{JobView, page};
use crate::job::JobSpec;
use crate::master::{JobNote, JobStart};
use crate::report::{LiveProgress, LiveShards, Outcome};

pub(super) fn at(ms: u64) -> JobTime {
    JobTime::from_duration(Duration::from_millis(ms))
}

pub(super) fn started() -> JobNote {
    let spec = JobSpec { data: Some("synthetic:90".parse().unwrap()), ..JobSpec::default() };
    let (job, resumed) = ("a \"job\"".to_owned(), None);
    JobNote::Started(Box::new(JobStart { job, spec, run_dir: None, page: None, resumed }))
}

pub(super) fn launched(worker: u32, life: u32) -> JobNote {
    JobNote::Head(Note::Launched(Holder::new(NodeId::worker(worker), Incarnation(life))))
}

pub(super) fn event(node: Option<u32>, kind: EventKind) -> JobNote {
    JobNote::Head(Note::Event { node: node.map(NodeId::worker), kind, text: "as it is".to_owned() })
}

pub(super) fn action(kind: &'static str) -> JobNote {
    JobNote::Head(Note::Action { kind, target: "all".to_owned(), reason: "why not".to_owned() })
}

pub(super) fn batch(worker: u32, samples: u64, compute_ms: u64) -> JobNote {
    let report = BatchReport {
        holder: Holder::new(NodeId::worker(worker), Incarnation(0)),
        sequence: 0,
        iteration: Iteration(0),
        plan: PlanVersion(0),
        phase: Phase::Train,
        samples,
        micro_batches: 1,
        data_wait: Duration::from_millis(1),
        compute: Duration::from_millis(compute_ms),
        communicate: Duration::from_millis(2),
        barrier_wait: Duration::from_millis(3),
    };
    JobNote::Head(Note::Batches(vec![(report, 0.5 * samples as f64)]))
}

pub(super) fn progress(committed: u64) -> JobNote {
    JobNote::Progress(LiveProgress { committed, expected: 1000, ..LiveProgress::default() })
}

fn view(notes: &[(u64, JobNote)]) -> JobView {
    let mut view = JobView::default();
    notes.iter().for_each(|(ms, note)| view.note(at(*ms), note));
    view
}

/// Values by series.
fn series(view: &JobView) -> BTreeMap<String, f64> {
    let text = render(view);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (
            name.replace("{job=\"a \\\"job\\\"\"", "{").replace("{,", "{").replace("{}", ""),
            value.parse().unwrap(),
        )
    });
    series.collect()
}

#[test]
fn a_scrape_says_what_the_notes_said() {
    let view = view(&[
        (0, started()),
        (0, launched(0, 0)),
        (0, launched(1, 0)),
        (1000, event(Some(0), EventKind::Joined)),
        (3000, event(Some(1), EventKind::Joined)),
        (3000, batch(0, 10, 100)),
        (3000, batch(1, 10, 400)),
        (4000, event(Some(1), EventKind::Straggler)),
        (4000, action("ADJUST_BS")),
        (4000, action("WOULD_KILL_RESTART")),
        (4000, action("REFUSED")),
        (4000, progress(300)),
        (5000, event(Some(1), EventKind::Lost)),
        (5000, action("RESTART")),
        (5500, launched(1, 1)),
        (7000, event(Some(1), EventKind::Joined)),
        (7000, event(None, EventKind::Rollback)),
        (7000, progress(200)),
        (8000, event(None, EventKind::Checkpoint)),
        (8000, JobNote::Head(Note::Stored(Duration::from_millis(250)))),
        (9000, progress(1000)),
    ]);
    let told = series(&view);
    for (name, value) in [
        ("antdt_samples_committed_total", 1100.0),
        ("antdt_samples_undone_total", 100.0),
        ("antdt_samples{state=\"committed\"}", 1000.0),
        ("antdt_job_elapsed_seconds", 9.0),
        ("antdt_goodput_seconds_total{category=\"training\"}", 0.5),
        ("antdt_goodput_seconds_total{category=\"communication\"}", 0.01),
        ("antdt_goodput_seconds_total{category=\"startup\"}", 4.0),
        ("antdt_goodput_seconds_total{category=\"recovery\"}", 2.0),
        ("antdt_recovery_duration_seconds_count", 1.0),
        ("antdt_step_duration_seconds_bucket{le=\"0.25\"}", 1.0),
        ("antdt_step_duration_seconds_bucket{le=\"0.5\"}", 2.0),
        ("antdt_step_duration_seconds_bucket{le=\"+Inf\"}", 2.0),
        ("antdt_step_duration_seconds_count", 2.0),
        ("antdt_straggler_detections_total{kind=\"straggler\",scope=\"worker\"}", 1.0),
        ("antdt_controller_actions_total{action=\"ADJUST_BS\",reason=\"policy\",outcome=\"taken\"}", 1.0),
        (
            "antdt_controller_actions_total{action=\"KILL_RESTART\",reason=\"policy\",outcome=\"dry_run\"}",
            1.0,
        ),
        ("antdt_controller_actions_total{action=\"none\",reason=\"policy\",outcome=\"refused\"}", 1.0),
        ("antdt_controller_actions_total{action=\"RESTART\",reason=\"lost_node\",outcome=\"taken\"}", 1.0),
        ("antdt_membership_members{role=\"worker\",state=\"running\"}", 2.0),
        ("antdt_node_losses_total{role=\"worker\"}", 1.0),
        ("antdt_node_restarts_total{role=\"worker\"}", 1.0),
        ("antdt_checkpoints_total{outcome=\"complete\"}", 1.0),
        ("antdt_checkpoint_duration_seconds_sum", 0.25),
        ("antdt_worker_batch_size{worker=\"0\"}", 10.0),
        ("antdt_worker_speed_ratio{worker=\"0\"}", 1.0),
    ] {
        assert_eq!(told.get(name), Some(&value), "{name} in {told:#?}");
    }
}

#[test]
fn a_page_shows_what_changed_since_its_reader_last_looked() {
    let mut view = view(&[(0, started()), (0, launched(0, 0)), (0, launched(1, 0)), (1, action("SCALE"))]);
    view.placed([(NodeId::worker(1), "node-7".to_owned())]);
    let whole = view.state(0);
    assert_eq!((&whole["whole"], whole["nodes"].as_array().unwrap().len()), (&true.into(), 2));
    assert_eq!(whole["nodes"][1][4], "node-7");
    assert_eq!(whole["happened"].as_array().unwrap().len(), 1);

    let seen = view.version();
    view.note(at(5), &event(Some(1), EventKind::Lost));
    let news = view.state(seen);
    assert_eq!(news["whole"], false);
    let rows = news["nodes"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0][0], &rows[0][2]), (1, &"worker-1".into(), &"lost".into()));
    assert_eq!(news["happened"][0][2], "lost");
    let newest = view.state(view.version());
    assert_eq!(newest["nodes"], serde_json::json!([]));

    view.note(at(6), &JobNote::Ended(Outcome::Failed { why: "asked to".to_owned() }));
    assert_eq!(view.state(seen)["outcome"]["why"], "asked to");
}

#[test]
fn a_recovered_link_makes_no_straggler_well() {
    let mut view = view(&[(0, started()), (0, launched(0, 0))]);
    for kind in [EventKind::Straggler, EventKind::SlowLink, EventKind::Recovered] {
        view.note(at(1), &event(Some(0), kind));
    }
    assert_eq!(view.state(0)["nodes"][0][8], true);
    view.note(at(2), &event(Some(0), EventKind::Recovered));
    assert_eq!(view.state(0)["nodes"][0][8], false);
}

/// A job that has done all there is, with so many workers.
pub(super) fn large(workers: u32) -> JobView {
    let mut notes = vec![(0, started())];
    for worker in 0..workers {
        notes.push((0, launched(worker, 0)));
        notes.push((1, event(Some(worker), EventKind::Joined)));
        notes.push((9, batch(worker, 10, 100 + u64::from(worker % 7))));
    }
    for kind in ["ADJUST_BS", "KILL_RESTART", "RESTART", "SCALE", "KILL", "REFUSED", "EXCLUDE_HOST"] {
        notes.push((10, action(kind)));
    }
    let mut metrics = Metrics::default();
    for name in ["loss", "auc"].into_iter().map(str::to_owned).chain((0..100).map(|i| format!("m{i}"))) {
        metrics.record(Metric::mean(&name, 0.5, 9.0)).unwrap();
    }
    notes.push((11, JobNote::Head(Note::Evaluated { samples: 9, metrics })));
    notes.push((12, progress(900)));
    view(&notes)
}

#[test]
fn series_are_bounded_however_many_workers_there_are() {
    let view = large(1000);
    let began = std::time::Instant::now();
    let bytes = render(&view).len();
    let took = began.elapsed();
    let count = series(&view).len();
    eprintln!("1,000 workers: {count} series, {bytes} bytes, rendered in {took:?}");
    assert!(count <= 3_200, "{count}");
    let most = series(&large(WORKERS_MAX + 500)).len();
    assert!(most <= 5_000, "{most}");
}

#[test]
fn every_metric_is_described_and_shown_and_prometheus_finds_no_fault() {
    let text = render(&large(3));
    for family in FAMILIES {
        let of_program = ["antdt_straggler_detections_total", "antdt_training_loss"].contains(&family.name);
        assert!(of_program || text.contains(&format!("# TYPE {} {}\n", family.name, family.kind)), "{text}");
    }
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]);
    promtool.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut checked) = promtool.spawn() else {
        eprintln!("skipped: promtool is not installed");
        return;
    };
    std::io::Write::write_all(&mut checked.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let checked = checked.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
    assert!(checked.status.success() && said.is_empty(), "{said}");
}

#[test]
fn the_documentation_has_the_table_of_metrics() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let Ok(text) = std::fs::read_to_string(file) else { return };
    let rows = FAMILIES.iter().map(|it| format!("| `{}` | {} | {} |\n", it.name, it.kind, it.help));
    let table: String = rows.collect();
    assert!(text.contains(&table), "docs/metrics.md must have this table:\n{table}");
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let page = page::render("abc");
    assert!(page.ends_with("</html>\n") && !page.contains("{nonce}") && !page.contains("{script}"));
    let elsewhere = page.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "src=", "@import", "url(h", "innerHTML"] {
        assert!(!elsewhere.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("nonce=\"abc\"").count(), 2);
    assert!(page::policy("abc").contains("script-src 'nonce-abc'"));
}

fn any_note() -> impl Strategy<Value = JobNote> {
    let worker = 0..3_u32;
    let kind = prop::sample::select(vec![
        EventKind::Joined,
        EventKind::Lost,
        EventKind::Left,
        EventKind::Finished,
        EventKind::Preempted,
        EventKind::Straggler,
        EventKind::Recovered,
        EventKind::Checkpoint,
        EventKind::Rollback,
    ]);
    prop_oneof![
        1 => Just(started()),
        3 => (worker.clone(), 0..4_u32).prop_map(|(worker, life)| launched(worker, life)),
        6 => (worker.clone(), kind).prop_map(|(worker, kind)| event(Some(worker), kind)),
        6 => (worker, 1..40_u64, 0..900_u64).prop_map(|(worker, samples, ms)| batch(worker, samples, ms)),
        2 => prop::sample::select(vec!["ADJUST_BS", "RESTART", "REFUSED"]).prop_map(action),
        4 => (0..1000_u64, 0..50_u64, 0..9_u64).prop_map(|(committed, step, done)| {
            let shards = LiveShards { done, ..LiveShards::default() };
            JobNote::Progress(LiveProgress { committed, step, shards, duplicated: done, ..LiveProgress::default() })
        }),
    ]
}

proptest! {
    /// Whatever happens, in whatever order, counters go up, and what is committed without what was undone is what the ledger has.
    #[test]
    fn a_counter_never_goes_down(notes in prop::collection::vec((0..200_u64, any_note()), 1..80)) {
        let (mut view, mut now, mut before) = (view(&[(0, started())]), 0, BTreeMap::new());
        for (later, note) in notes {
            now += later;
            view.note(at(now), &note);
            let told = series(&view);
            let counts = |name: &str| ["_total", "_sum", "_count", "_bucket"].iter().any(|end| name.split('{').next().unwrap().ends_with(end));
            for (name, value) in told.iter().filter(|(name, _)| counts(name)) {
                let earlier = before.get(name).copied().unwrap_or(0.0);
                prop_assert!(*value >= earlier - 1e-9, "{} fell from {} to {}", name, earlier, value);
            }
            let net = told["antdt_samples_committed_total"] - told["antdt_samples_undone_total"];
            prop_assert_eq!(net, told["antdt_samples{state=\"committed\"}"]);
            before = told;
        }
    }
}
