//! A realistic report through every form it takes.

use super::*;

fn metrics() -> Metrics {
    let mut metrics = Metrics::default();
    metrics.record(Metric::mean(Metric::LOSS, 0.4312, 4000.0).lower_is_better()).unwrap();
    metrics.record(Metric::whole("auc", 0.7891, 4000.0).higher_is_better()).unwrap();
    metrics.record(Metric::mean("recall/top5", 0.5, 4000.0)).unwrap();
    metrics
}

/// A job of 4 workers with a 4x-slow one that is found at 12 s and again evened out at the end.
fn sample() -> Report {
    let mut report = Report {
        version: "0.1.0".to_owned(),
        job_id: "demo-7".to_owned(),
        job_completion_time_s: 60.0,
        samples: SampleBalance { expected: 120_000, committed: 120_000, ..SampleBalance::default() },
        steps: 468,
        policy: "nd".to_owned(),
        sync: "allreduce".to_owned(),
        seed: 7,
        emulated: true,
        final_quality: FinalQuality {
            measured_on: MeasuredOn::HeldOut,
            ..FinalQuality::of(4000, &metrics())
        },
        ..Report::default()
    };
    let plan = [74, 20, 81, 81];
    for worker in 0..4_u32 {
        let mut entry = WorkerEntry::new(NodeId::worker(worker));
        let slow = if worker == 1 { 4.0 } else { 1.0 };
        let mut t = 0.0;
        let mut shard = 0;
        let mut since_shard = 0.0;
        while t < 60.0 {
            let size = if t < 12.0 { 64 } else { plan[worker as usize] };
            let wobble = 1.0 + 0.04 * (t * 7.0 + f64::from(worker)).sin();
            let compute = f64::from(size) / 800.0 * slow * wobble;
            let step = if t < 12.0 { 0.33 } else { 0.115 };
            entry.note_batch_size(size);
            entry.samples += u64::from(size);
            entry.series.push(t, compute, step, size, u64::from(size));
            t += step;
            if t - since_shard > 0.6 * slow {
                report.shards.push(ShardSpan {
                    worker: entry.id.clone(),
                    epoch: u32::from(t > 30.0),
                    index: shard * 4 + u64::from(worker),
                    from_s: since_shard,
                    to_s: t,
                    outcome: if worker == 2 && (40.0..41.0).contains(&t) {
                        ShardOutcome::Lost
                    } else {
                        ShardOutcome::Done
                    },
                });
                shard += 1;
                since_shard = t;
            }
            if worker == 0 {
                report.loss_curve.push(t, 256, 0.43 + 0.27 * (-t / 15.0).exp() + 0.01 * (t * 13.0).sin());
            }
        }
        report.workers.push(entry);
    }
    report.workers[2].restarts = 1;
    report.actions = vec![
        ActionEntry {
            time_s: 12.0,
            kind: "ADJUST_BS".to_owned(),
            target: "all".to_owned(),
            reason:
                "worker-1 takes 4.00x its peers' time per sample; new batch sizes are expected to cut the step time by 69 %"
                    .to_owned(),
        },
        ActionEntry {
            time_s: 40.5,
            kind: "RESTART".to_owned(),
            target: "worker-2#0".to_owned(),
            reason: "worker-2 ended: killed by signal 9".to_owned(),
        },
    ];
    report.events = vec![
        EventEntry {
            time_s: 0.4,
            node: "worker-0".to_owned(),
            kind: "joined".to_owned(),
            text: "4 workers formed membership 1".to_owned(),
        },
        EventEntry {
            time_s: 11.2,
            node: "worker-1".to_owned(),
            kind: "straggler".to_owned(),
            text: "4.00x its peers' time per sample".to_owned(),
        },
    ];
    report.config.insert("data".to_owned(), "synthetic:40000".to_owned());
    report.config.insert("straggler".to_owned(), "worker=1,slow=4".to_owned());
    report
}

#[test]
fn the_json_has_the_documented_keys_and_reads_back() {
    let report = sample();
    let value = serde_json::to_value(&report).unwrap();
    for key in [
        "/job_completion_time_s",
        "/samples/expected",
        "/samples/committed",
        "/samples/remaining",
        "/samples/lost",
        "/samples/duplicated",
        "/samples/quarantined",
        "/steps",
        "/policy",
        "/sync",
        "/actions/0/time_s",
        "/actions/0/kind",
        "/actions/0/target",
        "/actions/0/reason",
        "/workers/0/id",
        "/workers/0/samples",
        "/workers/0/batch_sizes/0",
        "/workers/0/restarts",
        "/workers/0/times/compute_s",
        "/workers/0/times/data_wait_s",
        "/workers/0/times/communicate_s",
        "/workers/0/times/barrier_wait_s",
        "/final/loss",
        "/final/metrics/auc",
        "/final/metrics/loss",
        "/final/better/auc",
        "/emulated",
    ] {
        assert!(value.pointer(key).is_some(), "{key} is missing");
    }
    assert_eq!(serde_json::from_value::<Report>(value).unwrap(), report);
}

#[test]
fn a_failed_job_reads_back_with_its_reason() {
    let report = Report { outcome: Outcome::Failed { why: "worker-0 ended".to_owned() }, ..sample() };
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap().outcome, report.outcome);
}

#[test]
fn a_balance_is_exact_only_if_nothing_is_lost_or_repeated() {
    let counts = Counts { total: 10, acked: 8, todo: 0, doing: 0, quarantined: 2 };
    assert!(SampleBalance::of(&counts, false, 0).is_exact());
    assert!(!SampleBalance::of(&counts, false, 1).is_exact());
    let unfinished = Counts { acked: 5, doing: 3, ..counts };
    let ended = SampleBalance::of(&unfinished, false, 0);
    assert_eq!((ended.lost, ended.remaining, ended.is_exact()), (3, 0, false));
    let interrupted = SampleBalance::of(&unfinished, true, 0);
    assert_eq!((interrupted.lost, interrupted.remaining, interrupted.is_exact()), (0, 3, true));
    assert!(!SampleBalance::of(&unfinished, true, 1).is_exact());
}

#[test]
fn the_page_needs_nothing_but_itself_and_shows_every_part() {
    let page = html::render(&sample());
    for part in ["Time per batch", "Batch size", "Shards", "Training loss", "Actions", "Events", "Settings"] {
        assert!(page.contains(&format!("<h2>{part}</h2>")), "{part}");
    }
    for foreign in ["http:", "https:", "src=", "@import", "<link"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.contains("new batch sizes are expected to cut the step time by 69 %"));
    for tile in ["<dt>auc ↑</dt><dd>0.7891</dd>", "<dt>recall/top5</dt><dd>0.5000</dd>"] {
        assert!(page.contains(tile), "{tile}");
    }
    assert!(page.contains("every sample accounted for") && page.contains("emulated speed"));
    assert!(!page.contains("NaN"));
}

#[test]
fn text_in_the_report_cannot_become_markup() {
    let mut report = sample();
    let evil = "<script>alert('\"&')</script>";
    report.job_id = evil.to_owned();
    report.outcome = Outcome::Failed { why: evil.to_owned() };
    report.workers[0].id = evil.to_owned();
    report.actions[0].reason = evil.to_owned();
    report.events[0].text = evil.to_owned();
    report.config.insert(evil.to_owned(), evil.to_owned());
    let page = html::render(&report);
    assert!(!page.contains("<script>alert"));
    assert!(page.contains("&lt;script&gt;alert(&#39;&quot;&amp;&#39;)"));
    assert_eq!(page.matches("<script>").count(), 1);
}

#[test]
fn an_empty_report_is_still_a_page_and_a_table() {
    let page = html::render(&Report::default());
    assert!(page.contains("Nothing had to be done") && page.ends_with("</html>\n"));
    assert!(table::render(&Report::default()).contains("0 expected"));
}

#[test]
fn the_table_shows_workers_actions_and_the_balance() {
    let text = table::render(&sample());
    assert!(text.starts_with("worker  "), "{text}");
    assert!(text.contains("64 > 20"), "{text}");
    assert!(text.contains("    12.0s  ADJUST_BS all: worker-1 takes 4.00x"), "{text}");
    assert!(text.contains("completed in 60.0 s: 468 steps, allreduce, policy nd, emulated speed"), "{text}");
    assert!(
        text.contains("120000 expected, 120000 committed, 0 lost, 0 duplicated, 0 quarantined (exact)"),
        "{text}"
    );
    assert!(
        text.contains("final loss 0.43120, auc 0.7891, recall/top5 0.5000 on 4000 held-out samples"),
        "{text}"
    );
}

/// Where models are averaged, a sample that was trained once has a share of what it has in one model.
#[test]
fn averaging_modes_are_told_apart_from_exact_ones_on_the_page_and_in_the_table() {
    for (mode, of_average) in
        [("allreduce", false), ("ps-asp", false), ("local-sgd=3", true), ("d-psgd=ring", true)]
    {
        let report = Report { sync: mode.to_owned(), ..sample() };
        for text in [html::render(&report), table::render(&report)] {
            assert!(text.contains("exact") || text.contains("accounted for"), "{mode}: {text}");
            assert_eq!(text.contains("a share of an average"), of_average, "{mode}: {text}");
        }
    }
}

#[test]
fn nothing_is_said_of_samples_steps_and_policy_of_a_program_that_took_none() {
    let mut report = sample();
    report.config = [("program".to_owned(), "[\"train.py\"]".to_owned())].into();
    let (table, page) = (table::render(&report), html::render(&report));
    assert!(table.starts_with("program ") && table.contains(": a program of your own\n"), "{table}");
    for claim in ["samples:", "policy ", "steps,", "accounted for", "(exact)"] {
        assert!(!table.contains(claim) && !page.contains(claim), "{claim}");
    }
    report.config.insert("data".to_owned(), "samples:9".to_owned());
    assert!(table::render(&report).contains("samples: "));
}

#[test]
fn the_table_counts_samples_after_the_newest_checkpoint() {
    let mut report = sample();
    let kept = |samples| Some(CheckpointEntry { id: 3, samples, folder: "/c".into() });
    report.checkpoint = kept(119_900);
    let text = table::render(&report);
    assert!(
        text.contains("\ncheckpoint 3, of 119900 samples, in /c; the 100 committed since are not in it\n"),
        "{text}"
    );
    report.checkpoint = kept(120_000);
    assert!(table::render(&report).contains("\ncheckpoint 3, of 120000 samples, in /c\n"));
}

#[cfg(feature = "cli")]
#[test]
fn a_job_is_resumed_by_its_own_folder_if_its_checkpoints_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let [report, other] = ["report", "other"].map(|name| Some(folder.path().join(name)));
    let place = folder.path().join("report/run/checkpoints");
    std::fs::create_dir_all(&place).unwrap();
    let entry = CheckpointEntry { id: 3, samples: 9, folder: place.clone() };
    assert_eq!(entry.resumed_by([&report, &None]), folder.path().join("report"));
    assert_eq!(entry.resumed_by([&other, &None]), place, "it has them elsewhere");
}

#[test]
fn the_rest_of_the_last_batch_is_not_the_time_of_a_batch() {
    let mut report = sample();
    let row = |report: &Report| table::render(report).lines().nth(1).map(str::to_owned);
    let before = row(&report);
    report.workers[0].series.push(60.0, 0.001, 0.001, 1, 1);
    assert_eq!(row(&report), before);
}

#[test]
fn a_long_list_of_batch_sizes_is_shortened_in_the_table() {
    let mut report = sample();
    report.workers[0].batch_sizes = (1..=9).collect();
    assert!(table::render(&report).contains("1 > ... > 7 > 8 > 9"));
}

#[test]
fn both_files_are_written_whole_over_older_ones() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("a/b");
    write::prepare(&place).unwrap();
    write(&Report::default(), &place).unwrap();
    write(&sample(), &place).unwrap();
    let json = std::fs::read_to_string(place.join("report.json")).unwrap();
    let read: Report = serde_json::from_str(&json).unwrap();
    assert_eq!((read.job_id, read.shards.len()), (sample().job_id, sample().shards.len()));
    let mut names: Vec<_> = std::fs::read_dir(&place).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["report.html", "report.json"]);
}

#[test]
fn a_folder_that_cannot_be_made_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    for error in [write(&sample(), &file).unwrap_err(), write::prepare(&file.join("x")).unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("file") && text.contains("--report-dir"), "{text}");
    }
}

#[test]
fn a_full_disk_is_said_and_leaves_the_older_report() {
    // A folder in the place of the file makes the last step, the rename, fail.
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("report.json/x")).unwrap();
    let text = write(&sample(), folder.path()).unwrap_err().to_string();
    assert!(text.starts_with("cannot write ") && text.contains("free some space"), "{text}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["report.json"]);
}

#[test]
fn missing_samples_are_named_by_their_ranges_and_a_long_list_is_cut() {
    let entry =
        |i: u64| MissingEntry { epoch: 1, first: 10 * i, last: 10 * i + 3, why: "waiting".to_owned() };
    let mut report = Report { missing: (0..2).map(entry).collect(), ..sample() };
    assert_eq!(report.missing_text(), "0..=3 of epoch 1 (waiting), 10..=13 of epoch 1 (waiting)");
    report.missing = (0..20).map(entry).collect();
    assert!(report.missing_text().ends_with("70..=73 of epoch 1 (waiting), and 12 more ranges"));
    assert_eq!(Report { missing: vec![], ..sample() }.missing_text(), "");
}

#[test]
fn the_spread_of_models_is_the_root_mean_square_of_their_distances() {
    let distances = [(NodeId::worker(0), 0.03), (NodeId::worker(1), 0.04), (NodeId::worker(2), 0.0)].into();
    let spread = ModelSpread::of(7.0, &distances).unwrap();
    assert!((spread.rms - (0.0025_f64 / 3.0).sqrt()).abs() < 1e-12, "{spread:?}");
    assert_eq!(spread.furthest(), Some(("worker-1", 0.04)));
    assert_eq!(ModelSpread::of(7.0, &[].into()), None);
    let report = Report { model_spread: Some(spread), ..Report::default() };
    let text = table::render(&report);
    assert!(text.contains("models 2.89e-2 from their mean at 7.0 s, worker-1 4.00e-2\n"), "{text}");
}
