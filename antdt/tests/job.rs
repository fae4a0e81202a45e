//! Whole jobs through the `antdt` command: real processes over loopback, killed, interrupted and fed with nonsense.
//!
//! Nothing here asserts on wall-clock time. Waits are for events, and bounded.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use antdt::job::{EvalEvery, JobSpec};
use antdt::master::{
    self, EventKind, JobError, JobNote, Note, NoteSink, PartError, Programs, Seams, TrainingData,
};
use antdt::report::{Outcome, Report};
use antdt_agent::runtime::{Agent, AgentConfig, AgentError};
use antdt_agent::{Batcher, Gradient, Params, Trainer};
use antdt_burn::click::{LEARNING_RATE, OPTIMIZER, WEIGHT_DECAY};
use antdt_burn::{
    ClickTrainer, DataSource, WorkloadSpec,
    model::{deepfm, gpt, logistic, mlp, mobilenet, resnet20},
};
use antdt_core::{
    Connections, DeviceClass, FetchOutcome, Generation, Holder, Incarnation, JobTime, Metric, Metrics,
    NodeId, NodeInfo, RequestId, SampleRange, Seed,
};
use antdt_launch::runtime::process::ProcessLauncher;
use antdt_model::{Replica, SparseGradient, UpdateRule};
use antdt_proto::{Bearer, Token, v1};
use antdt_rt::{CancellationToken, Packing, TraceSink};
use antdt_shard::runtime::{ClientOptions, ShardClient};
use antdt_shard::{BoxStore, DatasetSpec, Epochs, MemStore, Recovery, ShardLedger, SourceError};
use antdt_sim::recording::{Recording, RecordingError};

use waiting::{LIMIT, wait_for};

mod waiting;

fn antdt(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_antdt"));
    // Settings of the user who runs the tests are no part of them.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANTDT_")) {
        command.env_remove(name);
    }
    // Jobs that are killed leave a run directory behind, which is not to be the user's.
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR")).current_dir(env!("CARGO_TARGET_TMPDIR"));
    command.env("ANTDT_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/data-cache"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the end of a command; ends it after the limit.
fn finish(mut child: Child) -> Output {
    let deadline = Instant::now() + LIMIT;
    // The pipes are small in these tests: a job writes a table and a few lines.
    while child.try_wait().expect("own child").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("own child");
            let output = child.wait_with_output().expect("own child");
            panic!("not over after {LIMIT:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    child.wait_with_output().expect("own child")
}

struct Job {
    folder: tempfile::TempDir,
    child: Child,
}

impl Job {
    fn start(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let report = folder.path().to_str().expect("a plain path").to_owned();
        let child = antdt(&[&["run", "--report-dir", &report], args].concat()).spawn().expect("antdt starts");
        Self { folder, child }
    }

    fn finish(self) -> (Report, Output) {
        let output = finish(self.child);
        let text = std::fs::read_to_string(self.folder.path().join("report.json"))
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
        assert!(self.folder.path().join("report.html").exists());
        (serde_json::from_str(&text).expect("a report"), output)
    }

    /// The process of a node, once it runs.
    fn node(&self, node: &str) -> u32 {
        wait_for(&format!("the process of {node}"), || {
            children(self.child.id())
                .into_iter()
                .find(|pid| variable(*pid, "ANTDT_NODE").as_deref() == Some(node))
        })
    }
}

fn run(args: &[&str]) -> Report {
    let (report, output) = Job::start(args).finish();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(report.outcome, Outcome::Completed);
    report
}

/// The direct children of a process.
fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn variable(pid: u32, name: &str) -> Option<String> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    environ.split(|byte| *byte == 0).find_map(|entry| {
        let (key, value) = std::str::from_utf8(entry).ok()?.split_once('=')?;
        (key == name).then(|| value.to_owned())
    })
}

/// Whether a process is there and not a zombie.
fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().expect("kill");
    assert!(status.success(), "the process {pid} is gone already");
}

fn assert_exact(report: &Report, samples: u64) {
    assert_eq!(report.samples.expected, samples);
    assert_eq!(report.samples.committed, samples);
    assert_eq!((report.samples.lost, report.samples.duplicated, report.samples.quarantined), (0, 0, 0));
    assert_eq!(report.workers.iter().map(|worker| worker.samples).sum::<u64>(), samples);
}

/// Flags of the ways to combine what workers compute.
const MODES: [&[&str]; 13] = [
    &["--sync", "allreduce"],
    &["--sync", "ps-bsp", "--servers", "2"],
    &["--sync", "ps-asp", "--servers", "2"],
    &["--sync", "local-sgd=2"],
    &["--sync", "ps-ssp=1", "--servers", "2"],
    &["--sync", "ps-backup=1", "--servers", "2"],
    &["--sync", "d-psgd=ring"],
    &["--sync", "ad-psgd"],
    &["--sync", "ripples-static=2"],
    &["--sync", "ripples=division:2"],
    &["--sync", "diloco=2"],
    &["--sync", "ad-psgd=overlap"],
    &["--sync", "allreduce=1"],
];

const SMALL: &[&str] =
    &["--nproc-per-node", "3", "--data", "synthetic:1500", "--global-batch-size", "60", "--epochs", "2"];

#[test]
fn every_mode_trains_every_sample_once_and_learns() {
    for mode in MODES {
        let report = run(&[mode, SMALL, &["--seed", "7"]].concat());
        assert_exact(&report, 3000);
        // An average of two steps counts as one.
        let steps = if ["local-sgd=2", "diloco=2"].contains(&mode[1]) { 25 } else { 50 };
        assert!(report.steps >= steps, "{} steps", report.steps);
        let auc = report.final_quality.metrics["auc"];
        assert!(auc > 0.6, "{mode:?}: auc {auc}");
        assert!(!report.emulated && report.sync == mode[1]);
        // Models are apart where there are several.
        let one_model = mode[1].starts_with("allreduce") || mode[1].starts_with("ps-");
        match &report.model_spread {
            None => assert!(one_model, "{mode:?} has no spread"),
            Some(spread) => {
                assert!(!one_model && [2, 3].contains(&spread.workers.len()), "{mode:?}: {spread:?}");
                assert!(spread.rms > 0.0 && spread.rms < 1.0, "{mode:?}: {spread:?}");
            }
        }
    }
}

#[test]
fn every_transport_trains_every_sample_once_and_learns() {
    for transport in ["tcp", "shm"] {
        for mode in [MODES[0], MODES[2]] {
            let report = run(&[mode, SMALL, &["--seed", "7", "--transport", transport]].concat());
            assert_exact(&report, 3000);
            assert_eq!(report.config["transport"], transport);
            let auc = report.final_quality.metrics["auc"];
            assert!(auc > 0.6, "{mode:?} over {transport}: auc {auc}");
        }
    }
}

#[test]
fn a_server_shares_memory_with_its_workers_unless_the_job_says_tcp() {
    for (transport, shares) in [("auto", true), ("tcp", false)] {
        let flags = ["--transport", transport, "--emulate-speed", "1000"];
        let mut job = Job::start(&[MODES[2], SMALL, &flags].concat());
        let maps = format!("/proc/{}/maps", job.node("server-0"));
        let mut seen = false;
        wait_for("the end of the job", || {
            let maps = std::fs::read_to_string(&maps).unwrap_or_default();
            seen |= maps.contains("/memfd:antdt-collective");
            job.child.try_wait().expect("own child")
        });
        let (report, _) = job.finish();
        assert_exact(&report, 3000);
        assert_eq!(seen, shares, "{transport}");
    }
}

#[test]
fn gradients_in_fewer_bytes_train_every_sample_once_and_learn() {
    // The same samples in the same steps: only what travels differs.
    let fixed = ["--sharding", "static", "--policy", "none", "--seed", "7"];
    let loss = |form: &[&str]| {
        let report = run(&[form, MODES[0], SMALL, &fixed].concat());
        assert_exact(&report, 3000);
        report.final_quality.loss.expect("samples were evaluated")
    };
    let whole = loss(&[]);
    let rounded = loss(&["--compress", "bf16"]);
    let largest = loss(&["--compress", "topk=0.05"]);
    assert!((whole - rounded).abs() < 0.01, "{whole} {rounded}");
    // What is left out of a step goes with a later one: another model, which learns. A coin has 0.693.
    assert!((largest - whole).abs() > 1e-6 && largest < 0.68, "{whole} {largest}");
}

/// All-reduce of a small model in several buckets, during the backward pass.
const BUCKETS: &[&str] = &["--sync", "allreduce", "--bucket-bytes", "4096"];

#[test]
fn gradients_that_travel_during_the_backward_pass_train_the_same_model() {
    // The same samples in the same steps, so that only the order of additions differs.
    let fixed = ["--sharding", "static", "--policy", "none", "--seed", "7"];
    let loss = |flags: &[&str]| {
        let report = run(&[flags, SMALL, &fixed].concat());
        assert_exact(&report, 3000);
        report.final_quality.loss.expect("samples were evaluated")
    };
    let (whole, buckets) = (loss(MODES[0]), loss(BUCKETS));
    assert!((whole - buckets).abs() < 1e-4, "{whole} {buckets}");
    let rounded = loss(&[BUCKETS, &["--compress", "bf16"]].concat());
    assert!((whole - rounded).abs() < 0.01, "{whole} {rounded}");
}

#[test]
fn the_synchronous_modes_learn_the_same_and_repeat_bit_by_bit() {
    let one =
        ["--nproc-per-node", "1", "--data", "synthetic:600", "--global-batch-size", "50", "--seed", "3"];
    let ring = run(&[MODES[0], &one].concat());
    let again = run(&[MODES[0], &one].concat());
    let servers = run(&[MODES[1], &one].concat());
    assert_eq!(ring.final_quality, again.final_quality);
    let (a, b) = (ring.final_quality.loss.unwrap(), servers.final_quality.loss.unwrap());
    assert!((a - b).abs() < 1e-5, "{a} {b}");
}

/// What the processes of a job do, in a loop without processes: the same samples in the same order, one replica.
fn plain_loop(rows: u64, batch: u64, epochs: u32, seed: Seed) -> f64 {
    let spec = WorkloadSpec {
        eval_fraction: 0.0,
        ..WorkloadSpec::new(deepfm::MODEL, DataSource::Synthetic { rows })
    };
    let mut trainer = ClickTrainer::open(&spec, seed).unwrap();
    let (layout, model) = (trainer.layout().clone(), seed.derive("model"));
    let dense = trainer.initial_dense(model);
    let rule = UpdateRule::named(OPTIMIZER, LEARNING_RATE).unwrap();
    let rule = UpdateRule { decay: WEIGHT_DECAY, full_batch: Some(batch), ..rule };
    let mut replica = Replica::new(&layout, &rule, model, dense).unwrap();

    let global_batch = u32::try_from(batch).unwrap();
    let mut dataset = DatasetSpec::of_job("train", rows, global_batch, 1, None);
    dataset.epochs = Epochs::Finite(epochs);
    dataset.seed = seed.derive("data");
    let generation = Generation(1);
    let mut ledger = ShardLedger::new(dataset, generation).unwrap();
    let holder = Holder::new(NodeId::worker(0), Incarnation(0));
    ledger.register(holder).unwrap();

    let (mut batcher, mut requests) = (Batcher::new(), 0);
    let (mut values, mut gradient) = (Vec::new(), Gradient::new(&layout));
    loop {
        while batcher.unread() < batch {
            requests += 1;
            match ledger.fetch(holder, generation, RequestId(requests)).unwrap() {
                FetchOutcome::Granted(grant) => batcher.granted(grant),
                FetchOutcome::EndOfData if batcher.unread() == 0 => {
                    let mut found = Metrics::default();
                    trainer.begin_evaluation();
                    for start in (0..rows).step_by(100) {
                        let touched =
                            trainer.load_eval(SampleRange { start, end: (start + 100).min(rows) }).unwrap();
                        values.clear();
                        replica.gather(touched, &mut values).unwrap();
                        trainer.evaluate(Params::host(replica.dense(), &values), &mut found).unwrap();
                    }
                    trainer.end_evaluation(&mut found).unwrap();
                    return found.get(Metric::LOSS).unwrap();
                }
                _ => break,
            }
        }
        let taken = batcher.take(batch);
        let touched = trainer.load(&taken.samples().collect::<Vec<_>>()).unwrap().to_vec();
        values.clear();
        replica.gather(&touched, &mut values).unwrap();
        gradient.compute(&mut trainer, replica.dense(), &values).unwrap();
        let rows = SparseGradient { rows: touched, values: gradient.rows.clone() };
        replica.apply(&gradient.dense, &rows, taken.len()).unwrap();
        batcher.commit(&taken);
        ledger.ack_all(holder, &taken.acks()).unwrap();
    }
}

/// `antdt-burn` shows that this loop follows burn's own modules and optimizer to 1e-5 in every step.
#[test]
fn one_worker_trains_as_a_plain_loop_in_one_process_does() {
    let flags =
        ["--nproc-per-node", "1", "--data", "synthetic:700", "--global-batch-size", "64", "--epochs", "2"];
    let loss = plain_loop(700, 64, 2, Seed(11));
    for mode in &MODES[..2] {
        let report = run(&[*mode, &flags, &["--seed", "11"]].concat());
        let trained = report.final_quality.loss.unwrap();
        assert!((trained - loss).abs() < 1e-5, "{mode:?}: {trained} {loss}");
    }
}

#[test]
fn static_shares_and_xdeepfm_are_accounted_for_too() {
    let report = run(&[MODES[2], SMALL, &["--sharding", "static"]].concat());
    assert_exact(&report, 3000);
    assert!(report.workers.iter().all(|worker| worker.samples == 1000), "{:?}", report.workers);
    let small = [
        "--nproc-per-node",
        "2",
        "--data",
        "synthetic:300",
        "--workload",
        "xdeepfm",
        "--eval-fraction",
        "0.2",
    ];
    let report = run(&small);
    assert_exact(&report, 300);
    assert_eq!(report.final_quality.samples, 60);
}

/// A model without tables: all of it is dense.
#[test]
fn a_dense_model_is_trained_in_every_mode() {
    let folder = tempfile::tempdir().unwrap();
    let [flag, file] = job_of(&folder, "mlp", SMALL_MLP);
    let job = [flag.as_str(), &file, "--data", "synthetic:1500"];
    let size = ["--nproc-per-node", "3", "--global-batch-size", "30", "--epochs", "2", "--seed", "7"];
    for mode in MODES {
        let report = run(&[mode, &job, &size, &["--eval-fraction", "0.2"]].concat());
        assert_exact(&report, 3000);
        assert_eq!(report.final_quality.samples, 300);
        // One of ten classes.
        let accuracy = report.final_quality.metrics["accuracy"];
        assert!(accuracy > 0.4, "{mode:?}: accuracy {accuracy}");
    }
}

/// Settings of a workload, each with its text.
type Sizes<'a> = &'a [(&'a str, &'a str)];

const SMALL_MLP: Sizes<'_> = &[("features", "20"), ("hidden", "16")];
const SMALL_GPT: Sizes<'_> = &[("layers", "1"), ("heads", "2"), ("width", "16"), ("context", "16")];
const SMALL_RESNET: Sizes<'_> = &[("blocks", "1"), ("width", "4"), ("side", "8")];
const SMALL_MOBILENET: Sizes<'_> = &[("width", "4"), ("side", "8")];

/// Writes a job file with a model and its sizes; returns the flag that reads it.
fn job_of(folder: &tempfile::TempDir, workload: &str, sizes: Sizes<'_>) -> [String; 2] {
    let file = folder.path().join("job.toml");
    let mut text = format!("[workload]\nname = \"{workload}\"\n\n[workload.{workload}]\n");
    for (name, value) in sizes {
        text.push_str(&format!("{name} = \"{value}\"\n"));
    }
    std::fs::write(&file, text).unwrap();
    ["--job".into(), file.display().to_string()]
}

/// A job for each: the modes that differ most in where the model is and what is averaged.
#[test]
fn a_model_of_text_is_trained_with_one_model_and_with_several() {
    let folder = tempfile::tempdir().unwrap();
    let [flag, file] = job_of(&folder, "gpt", SMALL_GPT);
    let job = [flag.as_str(), &file, "--data", "synthetic:600", "--seed", "7"];
    let size = ["--nproc-per-node", "3", "--global-batch-size", "30", "--epochs", "2"];
    for mode in [MODES[0], MODES[2], MODES[7]] {
        let report = run(&[mode, &job, &size, &["--eval-fraction", "0.2"]].concat());
        assert_exact(&report, 1200);
        // 256 bytes were as likely before.
        let perplexity = report.final_quality.metrics["perplexity"];
        assert!((1.0..80.0).contains(&perplexity), "{mode:?}: perplexity {perplexity}");
        let loss = report.final_quality.loss.unwrap();
        assert!((perplexity.ln() - loss).abs() < 1e-6, "{perplexity} is not that of a loss of {loss}");
    }
}

/// With running statistics, which are averaged.
#[test]
fn models_of_pictures_are_trained_with_one_model_and_with_several() {
    let folder = tempfile::tempdir().unwrap();
    for (workload, sizes) in [("resnet20", SMALL_RESNET), ("mobilenet", SMALL_MOBILENET)] {
        let [flag, file] = job_of(&folder, workload, sizes);
        let job = [flag.as_str(), &file, "--data", "synthetic:600", "--seed", "7"];
        let size = ["--nproc-per-node", "3", "--global-batch-size", "30", "--eval-fraction", "0.2"];
        // How far sixty asynchronous steps get depends on their order, and may be nowhere: they are twice as many.
        for (mode, epochs) in [(MODES[0], 3), (MODES[2], 6), (MODES[7], 3)] {
            let report = run(&[mode, &job, &size, &["--epochs", &epochs.to_string()]].concat());
            assert_exact(&report, 600 * epochs);
            // One of ten classes: chance is right with a tenth. Of models of their own the steps are too few.
            let accuracy = report.final_quality.metrics["accuracy"];
            let least = if mode == MODES[7] { 0.0 } else { 0.15 };
            assert!(accuracy > least, "{workload}, {mode:?}: accuracy {accuracy}");
            assert!(report.final_quality.loss.is_some_and(f64::is_finite), "{workload}, {mode:?}");
        }
    }
}

/// Gradient descent with all samples in each step, in one process: the loss after `steps` of them.
fn full_batch_loss(spec: &WorkloadSpec, rate: f32, steps: u32, seed: Seed) -> f64 {
    let mut trainer = spec.open(seed, &mut |_| {}).unwrap();
    let (layout, rows) = (trainer.layout().clone(), trainer.train_samples());
    let model = seed.derive("model");
    let rule = UpdateRule::named("sgd", rate).unwrap();
    let dense = trainer.initial_dense(model);
    let mut replica = Replica::new(&layout, &rule, model, dense).unwrap();
    let samples: Vec<u64> = (0..rows).collect();
    let mut gradient = Gradient::new(&layout);
    for _ in 0..steps {
        trainer.load(&samples).unwrap();
        gradient.compute(&mut *trainer, replica.dense(), &[]).unwrap();
        replica.apply(&gradient.dense, &SparseGradient::default(), rows).unwrap();
    }
    let mut found = Metrics::default();
    trainer.begin_evaluation();
    trainer.load_eval(SampleRange { start: 0, end: rows }).unwrap();
    trainer.evaluate(Params::host(replica.dense(), &[]), &mut found).unwrap();
    found.get(Metric::LOSS).unwrap()
}

/// Both have all samples in every step, whatever their order; only the order of additions differs.
#[test]
fn two_workers_train_a_dense_model_as_one_process_does() {
    let folder = tempfile::tempdir().unwrap();
    let of_pictures = |sizes: Sizes<'static>| [sizes, &[("norm", "group")]].concat();
    let sizes = [
        (mlp::MODEL, SMALL_MLP.to_vec()),
        (logistic::MODEL, SMALL_MLP[..1].to_vec()),
        (gpt::MODEL, SMALL_GPT.to_vec()),
        (resnet20::MODEL, of_pictures(SMALL_RESNET)),
        (mobilenet::MODEL, of_pictures(SMALL_MOBILENET)),
    ];
    for (model, sizes) in sizes {
        let spec = WorkloadSpec {
            eval_fraction: 0.0,
            ..WorkloadSpec::new(model, DataSource::Synthetic { rows: 64 })
        };
        let spec = sizes.iter().fold(spec, |spec, (name, value)| spec.with(name, value));
        let [flag, file] = job_of(&folder, model.name, &sizes);
        let loss = |epochs: &str| {
            let job =
                [flag.as_str(), &file, "--workload", model.name, "--data", "synthetic:64", "--seed", "5"];
            let step = ["--global-batch-size", "64", "--optimizer", "sgd", "--learning-rate", "0.1"];
            let fixed = ["--nproc-per-node", "2", "--sharding", "static", "--policy", "none"];
            let report = run(&[MODES[0], &job, &step, &fixed, &["--epochs", epochs]].concat());
            assert_eq!(report.steps, epochs.parse::<u64>().unwrap());
            report.final_quality.loss.unwrap()
        };
        for steps in [1, 4] {
            let (found, expected) = (loss(&steps.to_string()), full_batch_loss(&spec, 0.1, steps, Seed(5)));
            let name = model.name;
            assert!((found - expected).abs() < 1e-6 * expected, "{name}, {steps}: {found} {expected}");
        }
    }
}

/// About five seconds of work, so that there is a middle to die in.
const SLOW: &[&str] = &[
    "--nproc-per-node",
    "3",
    "--data",
    "synthetic:3000",
    "--global-batch-size",
    "60",
    "--emulate-speed",
    "200",
];

#[test]
fn a_killed_worker_is_replaced_and_no_sample_is_lost_or_repeated() {
    for mode in MODES.into_iter().chain([BUCKETS]) {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("job.trace");
        let job = Job::start(&[mode, SLOW, &["--record", trace.to_str().unwrap()]].concat());
        let survivors = [job.node("worker-0"), job.node("worker-2")];
        let victim = job.node("worker-1");
        wait_for("the victim to work", || busy(victim).then_some(()));
        signal(victim, "KILL");
        let replacement = wait_for("the replacement", || {
            children(job.child.id())
                .into_iter()
                .find(|pid| *pid != victim && variable(*pid, "ANTDT_NODE").as_deref() == Some("worker-1"))
        });
        assert!(survivors.into_iter().all(alive), "a survivor was restarted");
        assert_eq!(variable(replacement, "ANTDT_INCARNATION").as_deref(), Some("1"));
        let (report, output) = job.finish();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{mode:?}: {said}");
        for line in
            ["lost: worker-1#0 ended: ", "RESTART worker-1: ", "joined: worker-1#1 registered as process "]
        {
            assert!(said.contains(line), "{line}: {said}");
        }
        assert_exact(&report, 3000);
        let restarts: Vec<u32> = report.workers.iter().map(|worker| worker.restarts).collect();
        assert_eq!(restarts, [0, 1, 0], "{mode:?}");
        assert!(
            report.actions.iter().any(|a| a.kind == "RESTART" && a.target == "worker-1"),
            "{:?}",
            report.actions
        );
        is_replayed(&trace, &report, mode);
    }
}

#[test]
fn a_log_tells_of_the_job_in_the_form_that_was_asked_for_and_a_quiet_one_does_not() {
    let said = |flags: &[&str]| {
        let (report, output) = Job::start(&[MODES[0], SMALL, flags].concat()).finish();
        assert_exact(&report, 3000);
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(said(&["--quiet"]), "");
    let text = said(&["--job-id", "first", "--log", "antdt::master::prepare=debug"]);
    assert!(text.contains(" DEBUG ") && !text.contains('\x1b'), "colours are for terminals: {text}");
    assert!(text.contains("job first: mode allreduce, ") && text.contains("/run ends it\n"), "{text}");
    let lines = said(&["--job-id", "second", "--log-format", "json"]);
    let start: serde_json::Value = serde_json::from_str(lines.lines().next().expect("a line")).unwrap();
    assert_eq!((&start["kind"], &start["job"]), (&"started".into(), &"second".into()));
}

/// Whether a worker is some batches into its work: it has waited, for peers or for its emulated speed, this often.
fn busy(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let waits = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    waits.and_then(|waits| waits.trim().parse::<u32>().ok()).is_some_and(|waits| waits > 100)
}

#[test]
fn a_slow_worker_gets_smaller_batches_and_they_still_add_up() {
    for mode in &MODES[..2] {
        let flags = ["--policy", "nd", "--straggler", "worker=1,slow=4", "--nproc-per-node", "4"];
        let work = ["--data", "synthetic:6000", "--global-batch-size", "80", "--emulate-speed", "1000"];
        let report = run(&[*mode, &flags, &work].concat());
        assert_exact(&report, 6000);
        let adjusted = report.actions.iter().find(|a| a.kind == "ADJUST_BS" && a.reason.contains("worker-1"));
        assert!(adjusted.is_some(), "{:?}", report.actions);
        let last = |i: usize| *report.workers[i].batch_sizes.last().expect("it had a batch size");
        assert!(last(1) < last(0) && last(1) < last(2), "{:?}", report.workers);
        assert_eq!((0..4).map(last).sum::<u32>(), 80);
        assert!(report.emulated);
        assert!(report.events.iter().any(|e| e.kind == "straggler" && e.node == "worker-1"));
    }
}

#[test]
fn at_its_own_pace_a_slow_worker_simply_takes_fewer_shards() {
    let flags = ["--straggler", "worker=1,slow=4", "--nproc-per-node", "4"];
    let work = ["--data", "synthetic:4000", "--global-batch-size", "80", "--emulate-speed", "1000"];
    let report = run(&[MODES[2], &flags, &work].concat());
    assert_exact(&report, 4000);
    let samples: Vec<u64> = report.workers.iter().map(|worker| worker.samples).collect();
    assert!(samples[1] * 2 < samples[0], "{samples:?}");
}

/// Without a bound the others take four times as many.
#[test]
fn a_bound_on_the_lead_holds_the_others_back_to_the_slow_workers_pace() {
    let flags = ["--straggler", "worker=1,slow=4", "--nproc-per-node", "4"];
    let work = ["--data", "synthetic:4000", "--global-batch-size", "80", "--emulate-speed", "1000"];
    let report = run(&[&["--sync", "ps-ssp=1", "--servers", "2"][..], &flags, &work].concat());
    assert_exact(&report, 4000);
    let samples: Vec<u64> = report.workers.iter().map(|worker| worker.samples).collect();
    assert!(samples.iter().all(|one| one * 5 > samples[1] * 4 && samples[1] * 5 > one * 4), "{samples:?}");
}

/// Its pushes come too late, most of them: the others train what it gives back.
#[test]
fn a_step_does_not_wait_for_its_backups_and_every_sample_is_trained_once() {
    let flags = ["--straggler", "worker=1,slow=6", "--nproc-per-node", "4", "--policy", "none"];
    let work = ["--data", "synthetic:4000", "--global-batch-size", "80", "--emulate-speed", "1000"];
    for mode in [&["--sync", "ps-backup=1", "--servers", "2"][..], &["--sync", "allreduce=1"]] {
        let report = run(&[mode, &flags, &work].concat());
        assert_exact(&report, 4000);
        let samples: Vec<u64> = report.workers.iter().map(|worker| worker.samples).collect();
        assert!(samples[1] * 2 < samples[0], "{mode:?}: {samples:?}");
        assert!(report.steps > 55, "{mode:?}: {} steps, where 50 have all samples", report.steps);
    }
}

/// The steps of `ps-bsp` and `allreduce` wait for all workers until the policy says something else.
#[test]
fn a_policy_has_steps_wait_for_fewer_workers_and_every_sample_is_trained_once() {
    let modes = [&["--sync", "ps-bsp", "--servers", "2"][..], &["--sync", "allreduce"]];
    for (policy, mode) in ["backup", "nd+backup"].into_iter().flat_map(|it| modes.map(|mode| (it, mode))) {
        let flags = ["--straggler", "worker=1,slow=6", "--nproc-per-node", "4", "--policy", policy];
        let work = ["--data", "synthetic:6000", "--global-batch-size", "80", "--emulate-speed", "1000"];
        let report = run(&[mode, &flags, &work].concat());
        assert_exact(&report, 6000);
        let first = |kind: &str| {
            let mut of_policy = report.actions.iter().filter(|a| !a.reason.contains("live workers share"));
            of_policy.find(|a| a.kind == kind).map(|a| a.reason.clone())
        };
        let samples: Vec<u64> = report.workers.iter().map(|worker| worker.samples).collect();
        assert!(samples[1] * 2 < samples[0], "{policy} {mode:?}: {samples:?}");
        if policy == "backup" {
            let why = first("BACKUP_WORKERS").unwrap_or_else(|| panic!("{:?}", report.actions));
            assert!(why.starts_with("a step waits for all but 1 workers instead of all but 0"), "{why}");
            assert_eq!(first("ADJUST_BS"), None);
        } else {
            assert!(first("ADJUST_BS").is_some_and(|why| why.contains("worker-1")), "{:?}", report.actions);
        }
    }
}

/// Nothing says beforehand what fits; the workers that are too small for their share find out, and compute it in parts.
#[test]
fn workers_that_run_out_of_memory_get_smaller_batches_and_every_sample_is_trained_once() {
    let devices = ["--device", "class=small,worker=1,memory=12", "--nproc-per-node", "2"];
    let work = ["--data", "synthetic:2000", "--global-batch-size", "80", "--emulate-speed", "1000"];
    let report = run(&[&["--sync", "allreduce", "--policy", "none"][..], &devices, &work].concat());
    assert_exact(&report, 2000);
    let bounds: Vec<&str> = report
        .events
        .iter()
        .filter(|event| event.kind == "memory")
        .map(|event| event.text.as_str())
        .collect();
    // 40, then 20 are too many.
    assert_eq!(bounds.len(), 2, "{bounds:?}");
    assert!(bounds[1].ends_with("workers of class small get at most 10 from now on"), "{bounds:?}");
    assert_eq!(report.workers[1].restarts, 2);
}

#[test]
fn generated_data_written_to_a_file_trains_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("clicks.tsv.gz");
    let out = file.to_str().unwrap();
    let output =
        finish(antdt(&["data", "synth", "--rows", "400", "--seed", "5", "--out", out]).spawn().unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let common = ["--seed", "5", "--global-batch-size", "40"];
    let from_file = run(&[&["--data", out][..], &common].concat());
    let generated = run(&[&["--data", "synthetic:400"][..], &common].concat());
    assert_exact(&from_file, 400);
    assert_eq!(from_file.final_quality.loss, generated.final_quality.loss);
}

#[test]
fn a_batch_of_any_length_is_trained() {
    let report = run(&["--data", "synthetic:9000", "--global-batch-size", "9000"]);
    assert_exact(&report, 9000);
}

#[test]
fn generated_data_replaces_plain_files_only_if_it_may_and_leaves_nothing_half_done() {
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name).display().to_string();
    let kept = folder.path().join("mine.tsv");
    std::fs::write(&kept, "mine\n").unwrap();
    let over = ["data", "synth", "--rows", "9", "--out", &out("mine.tsv")];
    let refused = finish(antdt(&over).spawn().unwrap());
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    let says = "it exists; name another file, or replace it with --force";
    assert_eq!(error, format!("error: --out = {}: {says}\n", kept.display()));
    assert_eq!(
        (refused.status.code(), std::fs::read_to_string(&kept).unwrap().as_str()),
        (Some(2), "mine\n")
    );
    let forced = finish(antdt(&[&over[..], &["--force"]].concat()).spawn().unwrap());
    assert!(forced.status.success(), "{}", String::from_utf8_lossy(&forced.stderr));
    assert_eq!(std::fs::read_to_string(&kept).unwrap().lines().count(), 9);
    std::fs::remove_file(kept).unwrap();

    let refused = finish(antdt(&["data", "synth", "--rows", "9", "--out", "/dev/null"]).spawn().unwrap());
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(error, "error: --out = /dev/null: it is not a regular file; name another file\n");

    let endless = ["data", "synth", "--rows", "18446744073709551615", "--out", &out("rows.tsv")];
    let child = antdt(&endless).spawn().unwrap();
    wait_for("rows", || std::fs::metadata(out("rows.tsv.part")).ok().filter(|part| part.len() > 0));
    signal(child.id(), "INT");
    let output = finish(child);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "error: interrupted; nothing was written\n");
    assert_eq!((output.status.code(), std::fs::read_dir(folder.path()).unwrap().count()), (Some(130), 0));
}

#[test]
fn a_foreign_program_is_started_once_for_each_worker_with_torchruns_variables() {
    let script = "echo rank=$RANK world=$WORLD_SIZE local=$LOCAL_RANK at=$MASTER_ADDR node=$ANTDT_NODE threads=$OMP_NUM_THREADS";
    let run = |workers: &str, threads: Option<&str>| {
        let mut command = antdt(&["run", "--nproc_per_node", workers, "--", "sh", "-c", script]);
        command.env_remove("OMP_NUM_THREADS").envs(threads.map(|threads| ("OMP_NUM_THREADS", threads)));
        finish(command.spawn().unwrap())
    };
    let output = run("3", None);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for rank in 0..3 {
        let line = format!(
            "[worker-{rank}] rank={rank} world=3 local={rank} at=127.0.0.1 node=worker-{rank} threads=1\n"
        );
        assert!(text.contains(&line), "{text}");
    }
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("OMP_NUM_THREADS=1 for each worker where several share")
    );
    for (workers, threads, seen) in [("2", Some("5"), "threads=5\n"), ("1", None, "threads=\n")] {
        let output = run(workers, threads);
        assert!(String::from_utf8_lossy(&output.stdout).contains(seen), "{output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("OMP_NUM_THREADS"), "{output:?}");
    }
}

/// A program of the examples. Built along with the tests of the package: `cargo test -p antdt`, without `--test`.
fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().expect("this test");
    let program = tests.ancestors().nth(2).expect("target/PROFILE").join("examples").join(name);
    assert!(program.is_file(), "build it first: cargo build -p antdt --example {name}");
    program
}

/// Ends a job of an example with the environment that a job of `antdt` has. Its exit code, and what it said.
fn own(name: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let command = antdt(args);
    let mut own = Command::new(example(name));
    own.args(command.get_args()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => own.env(name, value),
            None => own.env_remove(name),
        };
    }
    let output = finish(own.spawn().expect("it starts"));
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), said(&output.stdout), said(&output.stderr))
}

#[test]
fn an_action_of_ones_own_reaches_the_trainers_of_all_workers_at_one_iteration() {
    let modes = [
        ("allreduce", "halfway", "0.02", (5.0, 0.05), &[][..]),
        ("ps-bsp", "halfway", "0.02", (5.0, 0.05), &["--servers", "2"]),
        ("ps-asp", "halfway", "0.02", (5.0, 0.05), &["--servers", "1"]),
        ("local-sgd=2", "halfway", "0.02", (5.0, 0.05), &[]),
        // An action on one node: a third of each step's samples fits 5, the others 3. The samples of a worker differ from step to
        // step, and so does their weight: a small rate averages over some.
        ("allreduce", "chief-halfway", "0.004", (11.0 / 3.0, 0.4), &[]),
    ];
    for (sync, policy, rate, (expected, off), servers) in modes {
        let folder = tempfile::tempdir().unwrap();
        let (report, model) = (folder.path().join("report"), folder.path().join("model.safetensors"));
        let [report_dir, out] = [&report, &model].map(|path| path.to_str().unwrap());
        let job =
            ["run", "--workload", "line", "--policy", policy, "--sync", sync, "--report-dir", report_dir];
        let size = ["--nproc-per-node", "3", "--global-batch-size", "60", "--emulate-speed", "1500"];
        let times =
            ["--heartbeat", "100ms", "--control-tick", "50ms", "--optimizer", "sgd", "--learning-rate", rate];
        let (code, _, errors) = own("own_action", &[&job[..], &size, &times, servers].concat());
        assert_eq!(code, Some(0), "{sync}: {errors}");
        let text = std::fs::read_to_string(report.join("report.json")).unwrap();
        let told: Report = serde_json::from_str(&text).unwrap();
        assert_exact(&told, 9_999);
        let slopes: Vec<_> = told.actions.iter().filter(|action| action.kind == "SLOPE").collect();
        assert!(
            matches!(&slopes[..], [one] if one.reason == "half of it is done"),
            "{sync}: {:?}",
            told.actions
        );
        let (code, _, errors) = own("own_action", &["model", "export", report_dir, "--out", out]);
        assert_eq!(code, Some(0), "{errors}");
        // The only parameter stands at the end. If one worker of three still fitted 3, the slope would be in between.
        let bytes = std::fs::read(&model).unwrap();
        let slope = f32::from_le_bytes(*bytes.last_chunk().unwrap());
        assert!((slope - expected).abs() < off, "{sync}, {policy}: the slope is {slope}");
    }
}

#[test]
fn a_loop_of_40_lines_that_antdt_does_not_own_pulls_its_batches_and_trains() {
    let source = include_str!("../examples/foreign_loop.rs");
    assert!(source.lines().filter(|line| !line.trim().is_empty()).count() <= 40);

    for (sync, servers) in [("allreduce", &[][..]), ("ps-bsp", &["--servers", "2"]), ("local-sgd=2", &[])] {
        let folder = tempfile::tempdir().unwrap();
        let (report, model) = (folder.path().join("report"), folder.path().join("model.safetensors"));
        let [report_dir, out] = [&report, &model].map(|path| path.to_str().unwrap());
        let job =
            ["run", "--workload", "line", "--sync", sync, "--report-dir", report_dir, "--learning-rate", "1"];
        let size = ["--nproc-per-node", "3", "--global-batch-size", "60", "--straggler", "worker=0,slow=2"];
        let (code, _, errors) = own("foreign_loop", &[&job[..], &size, servers].concat());
        assert_eq!(code, Some(0), "{sync}: {errors}");
        let text = std::fs::read_to_string(report.join("report.json")).unwrap();
        assert_exact(&serde_json::from_str(&text).unwrap(), 9_999);
        let (code, _, errors) = own("foreign_loop", &["model", "export", report_dir, "--out", out]);
        assert_eq!(code, Some(0), "{errors}");
        let slope = f32::from_le_bytes(*std::fs::read(&model).unwrap().last_chunk().unwrap());
        assert!((slope - 3.0).abs() < 0.01, "{sync}: the slope is {slope}");
    }
}

#[test]
fn a_program_of_25_lines_has_a_policy_a_pace_rule_and_a_trainer_of_its_own() {
    let source = include_str!("../examples/own_parts.rs");
    assert!(source.lines().filter(|line| !line.trim().is_empty()).count() <= 25);

    let own = |args: &[&str]| own("own_parts", args);
    let folder = tempfile::tempdir().unwrap();
    let (record, report) = (folder.path().join("trace"), folder.path().join("report"));
    let (record, report) = (record.to_str().unwrap(), report.to_str().unwrap());
    // Without --data: the trainer makes its samples. Slow enough for windows to fill and for a tick or two.
    let job = ["run", "--workload", "line", "--policy", "chief", "--pace-rule", "everyone"];
    let size = ["--nproc-per-node", "3", "--global-batch-size", "60", "--emulate-speed", "1500"];
    let times = ["--heartbeat", "100ms", "--control-tick", "50ms", "--learning-rate", "1"];
    let out = ["--report-dir", report, "--record", record];
    let (code, _, errors) = own(&[&job[..], &size, &times, &out].concat());
    assert_eq!(code, Some(0), "{errors}");
    let text = std::fs::read_to_string(folder.path().join("report/report.json")).unwrap();
    let report: Report = serde_json::from_str(&text).unwrap();
    // Only the trainer knows how many there are, and what fits them.
    assert_exact(&report, 9_999);
    assert!(report.final_quality.loss.expect("it has losses") < 1e-3, "{:?}", report.final_quality);
    // Only the rule finds all of them slow at once, and only the policy answers so.
    let answered = |reason: &str| reason.contains("the chief takes what it can");
    let adjusted = report.actions.iter().any(|action| action.kind == "ADJUST_BS" && answered(&action.reason));
    assert!(adjusted, "{:?}", report.actions);
    let header = std::fs::read_to_string(record).unwrap();
    assert!(header.lines().next().unwrap().contains(r#""rule":{"name":"everyone"}"#), "{header}");

    // The same names in the other commands of the program, and only there.
    let (_, listed, _) = own(&["policies"]);
    assert!(listed.contains("chief: all to one"), "{listed}");
    let (code, table, errors) = own(&["whatif", "--trace", record, "--policy", "chief,none"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(table.contains("chief"), "{table}");
    let foreign = finish(antdt(&["whatif", "--trace", record]).spawn().unwrap());
    let errors = String::from_utf8_lossy(&foreign.stderr).into_owned();
    assert!(errors.contains("unknown pace-rule `everyone`"), "{errors}");
}

#[test]
fn no_stream_of_a_job_is_opened_around_the_wrapper_of_its_program() {
    // Two workers have a stream each to the master, and one between them or one each to the server.
    let all_reduce = [("worker Opened", 3), ("worker Accepted", 1), ("run Accepted", 2)];
    let with_server =
        [("worker Opened", 4), ("server Opened", 1), ("server Accepted", 2), ("run Accepted", 3)];
    let modes = [(&["allreduce"][..], &all_reduce[..]), (&["ps-bsp", "--servers", "1"], &with_server)];
    for (sync, least) in modes {
        let folder = tempfile::tempdir().unwrap();
        let (notes, report) = (folder.path().join("streams"), folder.path().join("report"));
        let job = ["run", "--nproc-per-node", "2", "--transport", "tcp", "--data", "synthetic:1000"];
        let out = ["--report-dir", report.to_str().unwrap(), "--sync"];
        let mut command = Command::new(example("masked"));
        command.args(job).args(out).args(sync).env("MASKED_STREAMS", &notes).stdin(Stdio::null());
        let output = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let notes = std::fs::read_to_string(notes).unwrap();
        for (stream, least) in least {
            let count = notes.lines().filter(|line| line == stream).count();
            assert!(count >= *least, "{count} of {stream}:\n{notes}");
        }
    }
}

#[test]
fn program_has_a_launcher_of_its_own_that_a_job_names_and_whose_processes_start_again() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let report = report.to_str().unwrap();
    let job =
        ["run", "--launcher", "nice", "--nproc-per-node", "2", "--data", "synthetic:1000", "--epochs", "2"];
    let evaluations = ["--eval-every", "epoch", "--eval-fraction", "0.1", "--report-dir", report];
    let (code, _, errors) = own("own_launcher", &[&job[..], &evaluations].concat());
    assert_eq!(code, Some(0), "{errors}");
    let text = std::fs::read_to_string(folder.path().join("report/report.json")).unwrap();
    let report: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(report.evaluations.len(), 2, "{:?}", report.evaluations);
    assert_eq!((report.outcome, report.samples.lost, report.samples.duplicated), (Outcome::Completed, 0, 0));
    let (_, listed, _) = own("own_launcher", &["launchers"]);
    assert!(
        listed.contains("  [launcher.nice]\n  level = 10  #") && listed.contains("[launcher.ssh]"),
        "{listed}"
    );
    let foreign = finish(antdt(&job).spawn().unwrap());
    let errors = String::from_utf8_lossy(&foreign.stderr).into_owned();
    assert!(errors.contains("--launcher = nice"), "{errors}");
}

#[test]
fn secret_reaches_nodes_by_a_private_file_that_ends_with_them() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.01; done", go.display());
    let ours = ["--data", "synthetic:3000", "--sync", "ps-asp", "--servers", "1", "--emulate-speed", "300"];
    // The second job cannot be taken over, and its files are nowhere on a disk.
    for (flags, nodes) in
        [(&ours[..], &["worker-0", "server-0"][..]), (&["--", "sh", "-c", &script][..], &["worker-0"][..])]
    {
        let job = Job::start(&[&["--nproc-per-node", "1"][..], flags].concat());
        let token = job.folder.path().join("run/token");
        let token = wait_for("the token", || std::fs::read_to_string(&token).ok());
        let paths: Vec<String> = nodes
            .iter()
            .map(|node| {
                let pid = job.node(node);
                for readable in ["environ", "cmdline"] {
                    let bytes = std::fs::read(format!("/proc/{pid}/{readable}")).unwrap();
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    assert!(!text.contains(token.trim()), "{node}: {text}");
                }
                let path = variable(pid, "ANTDT_NODE_FILE").expect("it is set");
                let file = std::fs::read_to_string(&path).unwrap();
                assert!(file.contains(token.trim()), "{node}: the file has the secret");
                let mode = std::fs::metadata(&path).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{path}");
                path
            })
            .collect();
        if flags.contains(&"sh") {
            std::fs::write(&go, "").unwrap();
        }
        let (report, _) = job.finish();
        assert_eq!(report.outcome, Outcome::Completed);
        for path in paths {
            assert!(!Path::new(&path).exists(), "{path}");
        }
    }
}

#[test]
fn a_program_of_60_lines_has_a_mode_a_format_a_launcher_and_a_policy_of_its_own() {
    let source = include_str!("../examples/own_program.rs");
    assert!(source.lines().filter(|line| !line.trim().is_empty()).count() <= 60);

    let own = |args: &[&str]| own("own_program", args);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let row = |number: u32| format!("{},{},shop-{}\n", u32::from(number % 90 > 40), number % 90, number % 7);
    std::fs::write(
        path("visits.csv"),
        "bought,age,shop\n".to_owned() + &(0..3_000).map(row).collect::<String>(),
    )
    .unwrap();
    let (data, record, report) = (path("visits.csv"), path("trace"), path("report"));
    let job =
        ["run", "--workload", "logistic", "--data", &data, "--format", "visits", "--eval-fraction", "0.1"];
    let parts = ["--sync", "every-third", "--launcher", "nice", "--policy", "calm", "--nproc-per-node", "2"];
    let out = ["--report-dir", &report, "--record", &record];
    let (code, _, errors) = own(&[&job[..], &parts, &out].concat());
    assert_eq!(code, Some(0), "{errors}");
    let told: Report =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("report/report.json")).unwrap())
            .unwrap();
    assert_exact(&told, 2_700);
    assert_eq!((&*told.sync, &*told.policy), ("every-third", "calm"));

    // Recordings and the simulator of the program know the mode, and only they do.
    let (code, table, errors) = own(&["whatif", "--trace", &record, "--policy", "calm,none"]);
    assert!(code == Some(0) && table.contains("calm"), "{table}{errors}");
    let foreign = finish(antdt(&["whatif", "--trace", &record]).spawn().unwrap());
    let errors = String::from_utf8_lossy(&foreign.stderr).into_owned();
    assert!(errors.contains("every-third"), "{errors}");
    std::fs::write(
        path("scenario.toml"),
        "[job]\nsync = \"every-third\"\nsamples = 5000\n[compute]\nspeed = 1000\n",
    )
    .unwrap();
    let (code, text, errors) = own(&["sim", "--scenario", &path("scenario.toml")]);
    assert_eq!(code, Some(0), "{text}{errors}");
}

/// What a job is recorded to.
#[derive(Debug, Clone, Default)]
struct Tape(Arc<Mutex<Vec<u8>>>);

impl Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl TraceSink for Tape {
    fn cut(&mut self, len: u64) -> std::io::Result<()> {
        self.0.lock().unwrap().truncate(usize::try_from(len).expect("it fits in memory"));
        Ok(())
    }
}

/// Runs a job with so many samples whose master is in this process.
fn run_here(spec: &JobSpec, samples: u64, seams: Seams) -> Result<Report, JobError> {
    let node = |name: &str| (PathBuf::from(env!("CARGO_BIN_EXE_antdt")), vec![name.into()]);
    let (worker, server) = (node("worker"), node("server"));
    let programs = Programs { worker, server, env: Vec::new(), layout: None, foreign: false };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let data = Some(TrainingData::of(samples));
    runtime.block_on(master::run(spec, data, &programs, seams, CancellationToken::new()))
}

#[test]
fn a_ledger_and_a_recording_are_kept_where_the_program_says() {
    let folder = tempfile::tempdir().unwrap();
    let (log, tape, kept) = (MemStore::default(), Tape::default(), Arc::new(Mutex::new(None)));
    let (to_log, to_tape, data) = (log.clone(), tape.clone(), Arc::clone(&kept));
    let seams = Seams {
        store: Some(Arc::new(move |_, dataset| {
            *data.lock().unwrap() = Some(dataset.clone());
            Ok(BoxStore::new(to_log.clone()))
        })),
        recorder: Arc::new(move |_| Ok(Some((Box::new(to_tape.clone()), Packing::Plain)))),
        ..Seams::default()
    };
    let spec = JobSpec {
        workers: 2,
        data: Some(antdt::job::DataSpec::Synthetic { rows: 1000 }),
        run_dir: Some(folder.path().join("run")),
        quiet: true,
        ..JobSpec::default()
    };
    let report = run_here(&spec, 1000, seams).unwrap();
    assert_exact(&report, 1000);

    let mut recovery = Recovery::new(kept.lock().unwrap().clone().expect("the factory was called")).unwrap();
    for record in log.records() {
        recovery.apply(&record).unwrap();
    }
    assert_eq!(recovery.finish(Generation(2)).unwrap().counts().acked, 1000);

    let trace = folder.path().join("trace");
    std::fs::write(&trace, &*tape.0.lock().unwrap()).unwrap();
    Recording::read(&trace).unwrap().replay().unwrap();
}

#[test]
fn a_program_with_its_own_launcher_store_and_recorder_gets_evaluations_and_chooses_its_mode() {
    let folder = tempfile::tempdir().unwrap();
    let launched = Arc::new(Mutex::new(0));
    let count = Arc::clone(&launched);
    let seams = Seams {
        launcher: Some(Arc::new(move |outlets| {
            *count.lock().unwrap() += 1;
            Box::new(ProcessLauncher::new(outlets))
        })),
        store: Some(Arc::new(|_, _| Ok(BoxStore::new(MemStore::default())))),
        recorder: Arc::new(|_| Ok(Some((Box::new(Tape::default()), Packing::Plain)))),
        connections: Connections::default(),
        sinks: Vec::new(),
    };
    let spec = JobSpec {
        workers: 2,
        sync: "auto".parse().unwrap(),
        data: Some(antdt::job::DataSpec::Synthetic { rows: 1000 }),
        eval_fraction: 0.5,
        eval_every: EvalEvery::Epochs(1),
        epochs: 2,
        run_dir: Some(folder.path().join("run")),
        quiet: true,
        ..JobSpec::default()
    };
    let report = run_here(&spec, 500, seams).unwrap();
    assert_exact(&report, 1000);
    let epochs: Vec<u32> = report.evaluations.iter().map(|evaluation| evaluation.epoch).collect();
    assert_eq!(epochs, [1, 2]);
    assert!(report.chosen.is_some_and(|chosen| chosen.starts_with("--sync auto: allreduce")));
    assert!(*launched.lock().unwrap() > 0, "it is that launcher");
}

/// A sink that is told what its function is told.
struct Told<F>(F);

impl<F: FnMut(&JobNote) -> Result<(), PartError> + Send> NoteSink for Told<F> {
    fn note(&mut self, _at: JobTime, note: &JobNote) -> Result<(), PartError> {
        (self.0)(note)
    }
}

#[test]
fn a_sink_of_a_program_is_told_all_in_order_and_broken_sinks_end_no_job() {
    let folder = tempfile::tempdir().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&told);
    let seams = Seams {
        sinks: vec![
            Arc::new(|_| Ok(None)),
            Arc::new(|_| Ok(Some(Box::new(Told(|_: &JobNote| panic!("a defect of the sink")))))),
            Arc::new(|_| Ok(Some(Box::new(Told(|_: &JobNote| Err("the disk is full".into())))))),
            Arc::new(move |_| {
                let to = Arc::clone(&to);
                Ok(Some(Box::new(Told(move |note: &JobNote| {
                    to.lock().unwrap().push(note.clone());
                    Ok(())
                }))))
            }),
        ],
        ..Seams::default()
    };
    let spec = JobSpec {
        workers: 2,
        data: Some(antdt::job::DataSpec::Synthetic { rows: 1000 }),
        eval_fraction: 0.5,
        eval_every: EvalEvery::Epochs(1),
        epochs: 2,
        run_dir: Some(folder.path().join("run")),
        quiet: true,
        ..JobSpec::default()
    };
    let report = run_here(&spec, 500, seams).unwrap();
    assert_exact(&report, 1000);

    let told = told.lock().unwrap();
    assert!(matches!(&told[0], JobNote::Started(start) if start.run_dir == spec.run_dir), "{:?}", told[0]);
    assert!(matches!(told.last(), Some(JobNote::Ended(Outcome::Completed))), "{:?}", told.last());
    let first = |is: fn(&Note) -> bool| {
        let of_head = |note: &JobNote| matches!(note, JobNote::Head(note) if is(note));
        told.iter().position(of_head).expect("the sink was told")
    };
    let order = [
        first(|note| matches!(note, Note::Launched(_))),
        first(|note| matches!(note, Note::Event { kind: EventKind::Joined, .. })),
        first(|note| matches!(note, Note::Published(_))),
        first(|note| matches!(note, Note::Batches(_))),
        first(|note| matches!(note, Note::Event { kind: EventKind::Checkpoint, .. })),
        first(|note| matches!(note, Note::EpochEvaluated(_))),
        first(|note| matches!(note, Note::NextEpochs(2))),
        first(|note| matches!(note, Note::Completed)),
    ];
    assert!(order.is_sorted(), "{order:?}");
    assert!(told.iter().any(|note| matches!(note, JobNote::Progress(_))));
    // The report is made of the same notes.
    let events = |note: &JobNote| match note {
        JobNote::Head(Note::Event { text, .. }) => Some(text.clone()),
        _ => None,
    };
    assert!(told.iter().filter_map(events).eq(report.events.into_iter().map(|event| event.text)));
}

#[test]
fn a_part_that_cannot_be_had_refuses_the_job() {
    let spec = JobSpec { data: Some(antdt::job::DataSpec::Synthetic { rows: 10 }), ..JobSpec::default() };
    let seams = Seams { store: Some(Arc::new(|_, _| Err("no disk".into()))), ..Seams::default() };
    let refused = |seams| run_here(&spec, 10, seams).unwrap_err().to_string();
    assert_eq!(refused(seams), "the ledger store cannot be used: no disk");
    let seams = Seams { sinks: vec![Arc::new(|_| Err("no port".into()))], ..Seams::default() };
    assert_eq!(refused(seams), "the sink cannot be used: no port");
}

#[test]
fn a_trainer_of_ones_own_gets_the_same_care() {
    let program = example("linear");
    let program = ["--", program.to_str().expect("a plain path")];
    let flags = ["--nproc-per-node", "3", "--data", "synthetic:3000", "--global-batch-size", "60"];
    let report = run(&[&flags[..], &program].concat());
    assert_exact(&report, 3000);
    // The noise of the data is 0.01.
    let found = &report.final_quality;
    assert!(found.loss.is_some_and(|loss| loss < 0.001) && found.metrics["worst_error"] < 0.1, "{found:?}");
    assert_eq!(report.final_quality.samples, 100);
}

#[test]
fn a_foreign_program_that_fails_fails_the_job_with_its_last_words() {
    let script = "echo error: no such luck >&2; exit 1";
    let job = ["run", "--quiet", "--max-restarts", "0", "--", "sh", "-c", script];
    let output = finish(antdt(&job).spawn().unwrap());
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = "error: worker-0 ended: exit code 1; no program is started again with --max-restarts 0; it said: no such luck";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn foreign_programs_are_started_again_together_when_one_fails_in_any_way() {
    // The first life of rank 1 fails once the others have spoken, and they wait for it for ever.
    let script = "echo life $RANK.$TORCHELASTIC_RESTART_COUNT; touch $SPOKEN/$RANK; \
                  case $RANK.$TORCHELASTIC_RESTART_COUNT in \
                  1.0) until [ -e $SPOKEN/0 ] && [ -e $SPOKEN/2 ]; do sleep 0.05; done; exit 1;; \
                  *.0) sleep 98763;; esac";
    let spoken = tempfile::tempdir().unwrap();
    let job = ["run", "--nproc-per-node", "3", "--", "sh", "-c", script];
    let output = finish(antdt(&job).env("SPOKEN", spoken.path()).spawn().unwrap());
    let [said, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{said}{errors}");
    for rank in 0..3 {
        for life in 0..2 {
            let line = format!("[worker-{rank}] life {rank}.{life}");
            assert_eq!(said.matches(&line).count(), 1, "{line}: {said}");
        }
    }
    assert!(said.contains("worker-1#0 ended (exit code 1)") && !said.contains("samples:"), "{said}");
}

#[test]
fn nonsense_ends_in_one_clear_line_that_names_the_field_and_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let narrow = folder.path().join("narrow.tsv");
    std::fs::write(&narrow, "1\t2\t3\t4\t5\t6\t7\t8\t9\t10\t11\t12\n").unwrap();
    let narrow = narrow.to_str().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let job_file = folder.path().join("job.toml");
    std::fs::write(&job_file, "epoch = 3\n").unwrap();
    let job_file = job_file.to_str().unwrap();
    let ok = ["--data", "synthetic:100"];
    let cases: Vec<(Vec<&str>, &[&str])> = vec![
        (vec!["run", "--data", "/no/such/file.tsv"], &["/no/such/file.tsv"]),
        (vec!["run", ok[0], ok[1], "--bind", "0.0.0.0"], &["--advertise", "reach this machine"]),
        (
            vec!["run", ok[0], ok[1], "--advertise", "no-such-host.invalid"],
            &[
                "--advertise = no-such-host.invalid: it has no address",
                "by which the nodes reach this machine",
            ],
        ),
        // The master listens at 127.0.0.1 only.
        (vec!["run", ok[0], ok[1], "--advertise", "127.0.0.2"], &["--advertise = 127.0.0.2", "its own port"]),
        (
            vec!["run", ok[0], ok[1], "--eval-fraction", "0.001"],
            &["--eval-fraction = 0.001: must be larger, to hold out one of 100 rows"],
        ),
        (vec!["run", ok[0], ok[1], "--bind", "127.0.0.1:80"], &["--bind", "without a port"]),
        (vec!["run", ok[0], ok[1], "--bind", "no-such-host.invalid"], &["--bind", "no-such-host.invalid"]),
        (vec!["run", ok[0], ok[1], "--master-grace", "10ms"], &["--master-grace", "two heartbeats"]),
        (vec!["run", ok[0], ok[1], "--run-dir", "/proc/no"], &["--run-dir", "/proc/no", "write to"]),
        (vec!["status", "/no/such/folder"], &["/no/such/folder", "no job runs there"]),
        (vec!["stop", "/no/such/folder"], &["/no/such/folder", "--run-dir"]),
        (vec!["run", "--data", narrow, "--format", "criteo"], &["narrow.tsv", "12", "40"]),
        (vec!["run", ok[0], ok[1], "--straggler", "worker=9,slow=2"], &["--straggler", "worker"]),
        (vec!["run", ok[0], ok[1], "--straggler", "worker=0,slow=2,from=10"], &["from", "10s"]),
        (vec!["run", ok[0], ok[1], "--global-batch-size", "0"], &["--global-batch-size", "at least"]),
        (vec!["run", ok[0], ok[1], "--master-port", &port], &["--master-port", "another port"]),
        (vec!["run", ok[0], ok[1], "--policy", "dn"], &["--policy", "nd"]),
        (
            vec!["run", ok[0], ok[1], "--transport", "smh"],
            &["--transport", "auto, tcp, shm, rdma, rdma-cm, nccl, cuda-ipc", "did you mean `shm`"],
        ),
        (vec!["run", ok[0], ok[1], "--sync", "ps-asp"], &["--servers", "at least 1"]),
        (vec!["run", ok[0], ok[1], "--sync", "ps-ssp"], &["--sync = ps-ssp", "such as ps-ssp=2"]),
        (vec!["run", ok[0], ok[1], "--sync", "ps-ssp=-1", "--servers", "1"], &["--sync = ps-ssp=-1", "0 to"]),
        (
            vec!["run", ok[0], ok[1], "--sync", "ps-backup=3", "--servers", "1", "--nproc-per-node", "3"],
            &["--sync = ps-backup=3", "below that of the workers, 3", "--nproc-per-node"],
        ),
        (
            vec!["run", ok[0], ok[1], "--sync", "allreduce=3", "--nproc-per-node", "3"],
            &["--sync = allreduce=3", "below that of the workers, 3", "--nproc-per-node"],
        ),
        (vec!["run", ok[0], ok[1], "--sync", "allreduce=0"], &["--sync = allreduce=0", "allreduce, or"]),
        (
            vec!["run", ok[0], ok[1], "--sync", "ps-backup=0"],
            &["--sync = ps-backup=0", "such as ps-backup=1"],
        ),
        (vec!["run", ok[0], ok[1], "--epoch", "2"], &["--epochs"]),
        (vec!["run", "--job", job_file, ok[0], ok[1]], &["epoch", "epochs"]),
        (vec!["run", ok[0], ok[1], "--report-dir", "/proc/no"], &["/proc/no"]),
        (
            vec!["run", ok[0], ok[1], "--record", "/proc/no/trace"],
            &["--record = /proc/no/trace", "folder does not exist", "make it"],
        ),
        (vec!["run"], &["--data"]),
        (
            vec!["run", "--sync", "ps-asp", "--servers", "1", "--", "sh"],
            &["--sync = ps-asp", "keeps the model in the workers"],
        ),
        (vec!["worker"], &["ANTDT_", "antdt run"]),
        (vec!["run", "--", "/no/such/program"], &["/no/such/program"]),
        (vec!["data", "synth", "--rows", "5", "--out", "/no/such/folder/x.tsv"], &["/no/such/folder/x.tsv"]),
    ];
    for (args, expected) in cases {
        let child = antdt(&args).spawn().unwrap();
        let pid = child.id();
        let output = finish(child);
        let said = String::from_utf8_lossy(&output.stderr);
        // Of the state of other processes, or of this one.
        let code = if ["status", "stop", "worker"].contains(&args[0]) { None } else { Some(2) };
        assert!(code.is_none_or(|code| output.status.code() == Some(code)), "{args:?}: {output:?}");
        assert!(!output.status.success(), "{args:?} succeeded");
        assert!(output.status.code().is_some_and(|code| code != 101), "{args:?} panicked: {said}");
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        assert_eq!(lines.len(), 1, "{args:?} said {said}");
        assert!(lines[0].starts_with("error: "), "{args:?} said {said}");
        for word in expected {
            assert!(lines[0].contains(word), "{args:?} said {said}, without {word}");
        }
        assert!(children(pid).is_empty());
    }
}

/// The processes of a running job, by node.
fn nodes(job: &Job, names: &[&'static str]) -> BTreeMap<&'static str, u32> {
    names.iter().map(|name| (*name, job.node(name))).collect()
}

#[test]
fn an_interrupt_ends_the_job_and_leaves_no_process() {
    let job = Job::start(&[MODES[1], SLOW].concat());
    let pids = nodes(&job, &["worker-0", "worker-1", "worker-2", "server-0", "server-1"]);
    signal(job.child.id(), "INT");
    let (report, output) = job.finish();
    assert!(!output.status.success());
    assert_eq!(report.outcome, Outcome::Failed { why: "interrupted".to_owned() });
    for (node, pid) in pids {
        wait_for(&format!("the end of {node}"), || (!alive(pid)).then_some(()));
    }
}

#[test]
fn a_job_tells_where_it_stands_and_is_stopped_through_its_run_directory() {
    let job = Job::start(&[MODES[1], SLOW].concat());
    let pids = nodes(&job, &["worker-0", "worker-1", "worker-2", "server-0", "server-1"]);
    let report = job.folder.path().to_str().unwrap().to_owned();
    let run_dir = job.folder.path().join("run");
    let says = wait_for("samples to be committed", || {
        let output = finish(antdt(&["status", &report]).spawn().unwrap());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let says = String::from_utf8(output.stdout).unwrap();
        (!says.contains(", 0 steps") && says.contains("3 of 3 workers")).then_some(says)
    });
    assert!(says.contains("samples committed") && says.contains("of 3000"), "{says}");
    for node in pids.keys() {
        assert!(says.contains(&format!("{node}, life 0: running")), "{says}");
    }
    assert!(says.contains(&format!("on {}", antdt::host::name())), "{says}");

    // Another token reaches nothing.
    let token = std::fs::read_to_string(run_dir.join("token")).unwrap();
    std::fs::write(run_dir.join("token"), "guessed").unwrap();
    let output = finish(antdt(&["stop", run_dir.to_str().unwrap()]).spawn().unwrap());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("refuses the token"), "{said}");
    std::fs::write(run_dir.join("token"), token).unwrap();

    let output = finish(antdt(&["stop", run_dir.to_str().unwrap()]).spawn().unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (report, output) = job.finish();
    assert!(!output.status.success());
    assert_eq!(report.outcome, Outcome::Failed { why: "interrupted".to_owned() });
    for (node, pid) in pids {
        wait_for(&format!("the end of {node}"), || (!alive(pid)).then_some(()));
    }
    assert!(!run_dir.exists());
}

/// What `antdt status FLAGS DIR` says of a running job, once it says this of it.
fn says(job: &Job, flags: &[&str], word: &str) -> String {
    let report = job.folder.path().to_str().unwrap();
    wait_for(word, || {
        let output = finish(antdt(&[&["status"], flags, &[report]].concat()).spawn().unwrap());
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.success() && text.contains(word)).then_some(text)
    })
}

fn stop(job: Job) -> Report {
    let dir = job.folder.path().join("run");
    let output = finish(antdt(&["stop", dir.to_str().unwrap()]).spawn().unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    job.finish().0
}

/// Four workers, of which the second is four times slower; long enough to be looked at.
const STRAGGLER: &[&str] = &[
    "--nproc-per-node",
    "4",
    "--data",
    "synthetic:40000",
    "--global-batch-size",
    "80",
    "--emulate-speed",
    "1000",
    "--straggler",
    "worker=1,slow=4",
];

#[test]
fn a_running_job_names_its_straggler_the_evidence_and_the_actions() {
    let job = Job::start(&[MODES[0], STRAGGLER].concat());
    let text = says(&job, &["--diagnose"], "done since");
    assert!(text.contains("worker-1 is a straggler: it takes") && text.contains("ADJUST_BS"), "{text}");
    assert!(text.contains("at this pace since") && text.contains("newest decision"), "{text}");
    // What the system says of its host stands beside it.
    says(&job, &["--diagnose"], "CPUs of the host");
    let json = says(&job, &["--diagnose", "--json"], "stragglers");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["stragglers"], serde_json::json!(["worker-1"]), "{json:#}");
    let slow = &json["nodes"][1];
    let [busy, memory] = ["host_busy", "memory_bytes"].map(|key| slow["load"][key].as_f64().unwrap());
    assert!((0.0..=1.0).contains(&busy) && memory > 0.0, "{slow:#}");
    let [low, ratio, high] = ["ratio_low", "ratio", "ratio_high"].map(|key| slow[key].as_f64().unwrap());
    assert!(low > 1.0 && low < ratio && ratio < high && ratio > 1.3, "{slow:#}");
    assert!(slow["done"].as_array().unwrap().iter().any(|done| done["kind"] == "ADJUST_BS"), "{slow:#}");
    stop(job);

    let refused = finish(antdt(&["status", "--json"]).spawn().unwrap());
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && why.contains("--diagnose"), "{why}");
}

#[test]
fn a_dry_run_names_the_actions_of_the_policy_and_does_nothing() {
    let job = Job::start(&[MODES[0], STRAGGLER, &["--dry-run"]].concat());
    let text = says(&job, &[], "WOULD_ADJUST_BS");
    assert!(
        text.contains("policy predictive, dry run") && text.contains("not carried out (--dry-run)"),
        "{text}"
    );
    let text = says(&job, &["--diagnose"], "done since");
    assert!(text.contains("worker-1 is a straggler") && text.contains("WOULD_ADJUST_BS"), "{text}");
    let report = stop(job);
    let would =
        report.actions.iter().filter(|a| a.kind == "WOULD_ADJUST_BS" && a.reason.contains("worker-1"));
    assert_eq!(would.count(), 1, "once, for as long as it would do the same: {:?}", report.actions);
    assert!(report.workers.iter().all(|worker| worker.batch_sizes == [20]), "{:?}", report.workers);
    // All wait for the straggler, in every step, and it for none.
    let [own, peer] = [1, 0].map(|worker: usize| report.workers[worker].times);
    assert!(own.compute_s > peer.compute_s && own.barrier_wait_s < peer.barrier_wait_s, "{own:?} {peer:?}");
}

#[test]
fn no_service_of_the_master_answers_a_call_without_the_token() {
    let job = Job::start(&[MODES[0], SLOW].concat());
    let run_dir = job.folder.path().join("run");
    let (master, token) = wait_for("the run directory", || antdt::run_dir::read(&run_dir).ok());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let shards = ShardClient::connect(&master.address, "train", ClientOptions::default()).unwrap();
        let refused = shards.status().await.unwrap_err();
        assert!(matches!(&refused, SourceError::Rejected(why) if why.contains("no token")), "{refused}");
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", master.address)).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let guess = Bearer::new(&Token::new("guess").unwrap());
        let mut control = v1::control_client::ControlClient::new(guess.over(channel));
        let refused = control.register(v1::RegisterRequest::default()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    });
    let config = |token| AgentConfig {
        master: master.address.clone(),
        job: master.job.clone(),
        token,
        connections: Connections::default(),
        info: NodeInfo {
            holder: Holder::new(NodeId::worker(0), Incarnation(7)),
            host: String::new(),
            device: DeviceClass::default(),
            memory_bytes: None,
            batch_size_min: 1,
            batch_size_max: 1,
        },
        data_address: String::new(),
        call_timeout: LIMIT,
        master_timeout: LIMIT,
    };
    let refused = Agent::connect(config(Token::new("guess").unwrap()), |_| {}).unwrap_err();
    assert!(matches!(refused, AgentError::Unauthorized { .. }), "{refused}");
    // It is the token that is wrong, and nothing else: with it a call is answered.
    let shards = runtime.block_on(async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", master.address)).unwrap();
        let channel = Bearer::new(&token).over(endpoint.connect().await.unwrap());
        ShardClient::over(channel, "train", ClientOptions::default()).status().await.unwrap()
    });
    assert_eq!(shards.len(), 1);
    signal(job.child.id(), "INT");
    job.finish();
}

#[test]
fn a_job_without_a_report_is_found_in_the_state_folder_of_its_user() {
    let state = tempfile::tempdir().unwrap();
    let with_state = |args: &[&str]| {
        let mut command = antdt(args);
        // A run directory in a folder that other runs of this test use is refused if one of them was killed.
        command.env("XDG_STATE_HOME", state.path()).current_dir(state.path());
        command.spawn().unwrap()
    };
    let none = finish(with_state(&["status"]));
    assert!(String::from_utf8_lossy(&none.stderr).contains("error: no job"));
    let job = with_state(&["run", "--quiet", "--job-id", "a/b", "--", "sh", "-c", "sleep 1000"]);
    let says = wait_for("the job", || {
        let output = finish(with_state(&["status"]));
        let says = String::from_utf8(output.stdout).unwrap();
        says.contains("worker-0, life 0: running").then_some(says)
    });
    assert!(says.starts_with("job a/b: "), "{says}");
    assert!(state.path().join("antdt/a_b/token").exists());
    assert!(finish(with_state(&["stop"])).status.success());
    assert_eq!(finish(job).status.code(), Some(1));
    assert!(!state.path().join("antdt/a_b").exists());
}

#[test]
fn a_program_has_the_grace_that_the_job_gives_it_and_is_named_when_that_is_used_up() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    // The second one starts again what the signal ends.
    let script = "trap 'sleep 4; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let stubborn = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    for (script, grace, ends) in [
        // By default half a minute.
        (script, &[][..], &["saved"][..]),
        (
            stubborn,
            &["--grace", "1s"],
            &["worker-0 did not exit within --grace = 1s", "is killed", "; it stood at: ", "sh "],
        ),
    ] {
        let state = tempfile::tempdir().unwrap();
        let words = [&["run", "--quiet", "--run-dir", place], grace, &["--", "sh", "-c", script]].concat();
        let job = antdt(&words).env("XDG_STATE_HOME", state.path()).spawn().unwrap();
        wait_for("the job", || {
            children(job.id()).into_iter().find(|child| variable(*child, "RANK").is_some())
        });
        wait_for("the trap", || {
            let asked = finish(antdt(&["status", place]).spawn().unwrap());
            String::from_utf8_lossy(&asked.stdout).contains("running").then_some(())
        });
        std::thread::sleep(Duration::from_millis(500));
        signal(job.id(), "INT");
        let output = finish(job);
        let says = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(ends.iter().all(|end| says.contains(end)), "{says}");
    }
}

#[test]
fn nothing_that_a_program_starts_outlives_it_or_shares_its_rank_whoever_dies_first() {
    // One process of its own session, one of its group.
    let script = "setsid sleep 98765 & sleep 98764 & echo up; wait";
    for victim in ["program", "supervisor", "master", "none"] {
        let script =
            if victim == "none" { script.replace("wait", "sleep 0.2; exit 75") } else { script.to_owned() };
        let job = format!("leaves-{victim}-{}", std::process::id());
        let words = ["run", "--quiet", "--job-id", &job, "--max-restarts", "2"];
        let master = antdt(&[&words[..], &["--", "sh", "-c", &script]].concat()).spawn().unwrap();
        let of_job = || -> Vec<u32> {
            let pids = std::fs::read_dir("/proc").unwrap().flatten();
            let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            pids.filter(|pid| alive(*pid) && variable(*pid, "ANTDT_JOB_ID").as_deref() == Some(&*job))
                .collect()
        };
        let sleeps = |pids: Vec<u32>| -> Vec<u32> {
            let is_sleep = |pid: &u32| {
                std::fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.starts_with(b"sleep\0987"))
            };
            pids.into_iter().filter(is_sleep).collect()
        };
        if victim != "none" {
            let first = wait_for("both processes", || Some(sleeps(of_job())).filter(|pids| pids.len() == 2));
            let supervisor = children(master.id())[0];
            match victim {
                "program" => signal(children(supervisor)[0], "KILL"),
                "supervisor" => signal(supervisor, "KILL"),
                _ => signal(master.id(), "KILL"),
            }
            if victim != "master" {
                // Of the next life.
                let next = wait_for("the next life", || {
                    let pids = sleeps(of_job());
                    assert!(pids.len() <= 2, "{victim}: two lives of one rank: {pids:?}");
                    (pids.len() == 2 && pids != first).then_some(pids)
                });
                assert!(next.iter().all(|pid| !first.contains(pid)), "{victim}: {first:?} {next:?}");
                signal(master.id(), "TERM");
            }
        }
        let output = finish(master);
        assert!(!output.status.success(), "{victim}");
        if victim == "master" {
            wait_for("the end of all", || of_job().is_empty().then_some(()));
        }
        assert_eq!(of_job(), [0_u32; 0], "{victim}");
    }
}

#[test]
fn jobs_are_found_without_a_name_wherever_their_run_directory_is() {
    let state = tempfile::tempdir().unwrap();
    let with_state = |args: &[&str]| {
        let mut command = antdt(args);
        command.env("XDG_STATE_HOME", state.path());
        command.spawn().unwrap()
    };
    let says = |args: &[&str]| {
        let output = finish(with_state(args));
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert_eq!(says(&["jobs"]), "no job of this user runs on this host\n");
    let [first, second] = ["first", "second"].map(|name| state.path().join(name));
    let begin = |dir: &Path, name| {
        let dir = dir.to_str().unwrap();
        with_state(&["run", "--quiet", "--job-id", name, "--report-dir", dir, "--", "sh", "-c", "sleep 1000"])
    };
    let one = begin(&first, "one");
    wait_for("the job", || says(&["status"]).contains("worker-0, life 0: running").then_some(()));
    let other = begin(&second, "other");
    let all = wait_for("both jobs", || Some(says(&["jobs"])).filter(|all| all.lines().count() == 2));
    let lines: Vec<&str> = all.lines().collect();
    let begins = |name: &str, dir: &Path| format!("{name}  {}  master ", dir.join("run").display());
    assert!(
        lines[0].starts_with(&begins("one", &first)) && lines[1].starts_with(&begins("other", &second)),
        "{all}"
    );
    assert!(says(&["stop"]).contains("several jobs run"));
    assert!(says(&["stop", first.to_str().unwrap()]).contains("job one is stopped"));
    assert!(says(&["stop"]).contains("job other is stopped"));
    for job in [one, other] {
        assert_eq!(finish(job).status.code(), Some(1));
    }
    assert_eq!(std::fs::read_dir(state.path().join("antdt")).unwrap().count(), 0);
}

#[test]
fn the_doctor_shows_the_deadlines_of_a_job_and_looks_at_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let ask = |args: &[&str]| {
        let output = finish(antdt(&[&["doctor"], args].concat()).spawn().unwrap());
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        (output.status.code(), text)
    };
    let (code, text) = ask(&["--step", "100ms"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("of a job with default settings") && text.contains("in order for "), "{text}");
    for what in ["ports", "run directory", "shared memory", "open files", "clock", "control group", "python"]
    {
        assert!(text.contains(&format!("{what}: ")), "{what}: {text}");
    }
    let (code, text) = ask(&[dir]);
    assert!(code == Some(2) && text.contains("no job runs there"), "{text}");

    let job = Job::start(&[MODES[0], SLOW, &["--run-dir", dir, "--master-grace", "2s"]].concat());
    wait_for("the job", || folder.path().join("master.json").exists().then_some(()));
    let (code, text) = ask(&[dir]);
    assert!(code == Some(1) && text.contains("deadlines of the job"), "{text}");
    assert!(text.contains("not in order: peer 30s is not below master 2s"), "{text}");
    job.finish();
}

#[test]
fn a_foreign_program_ends_with_a_master_that_is_killed() {
    let mut child = antdt(&["run", "--quiet", "--", "sleep", "1000"]).spawn().unwrap();
    let is_sleep = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep")
    };
    let programs = || children(child.id()).into_iter().flat_map(children);
    let node = wait_for("the program", || programs().find(is_sleep));
    assert_eq!(variable(node, "ANTDT_LAUNCHER_PID"), None, "it is not the program's");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the end of the program", || (!alive(node)).then_some(()));
}

#[test]
fn a_job_runs_over_ipv6_and_by_name() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped, not here: this machine has no IPv6 loopback");
        return;
    }
    for mode in [MODES[0], MODES[2]] {
        let report = run(&[mode, SMALL, &["--bind", "::1"]].concat());
        assert_exact(&report, 3000);
    }
    for mode in [MODES[0], MODES[1]] {
        let report = run(&[mode, SMALL, &["--bind", "0.0.0.0", "--advertise", "localhost"]].concat());
        assert_exact(&report, 3000);
    }
}

#[test]
fn output_without_a_reader_does_not_keep_the_job_from_ending() {
    let chatter = "while :; do echo 0123456789012345678901234567890123456789; done";
    let child = antdt(&["run", "--quiet", "--", "sh", "-c", chatter]).spawn().unwrap();
    let pid = child.id();
    let node = wait_for("the program", || children(pid).into_iter().next());
    // Its lines fill the pipe, which is never read, and then every queue up to the program, which then waits.
    wait_for("the program to wait", || waiting_in_write(node).then_some(()));
    signal(pid, "INT");
    let output = finish(child);
    assert!(String::from_utf8_lossy(&output.stderr).contains("error: interrupted"));
    wait_for("the end of the program", || (!alive(node)).then_some(()));
}

/// Whether a process sleeps and has not got any further for a while.
fn waiting_in_write(pid: u32) -> bool {
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit(')').next().unwrap_or("").to_owned();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // State, then user and system time: fields 3, 14 and 15 of the file.
        (fields.first() == Some(&"S")).then(|| (fields[11].to_owned(), fields[12].to_owned()))
    };
    let before = ticks();
    std::thread::park_timeout(Duration::from_millis(200));
    before.is_some() && before == ticks()
}

/// Kills the master of a job and waits until none of its nodes is left.
fn ends_with_its_master(args: &[&str]) {
    let mut job = Job::start(&[MODES[2], SLOW, args].concat());
    let pids = nodes(&job, &["worker-0", "worker-1", "worker-2", "server-0", "server-1"]);
    job.child.kill().unwrap();
    job.child.wait().unwrap();
    for (node, pid) in pids {
        wait_for(&format!("the end of {node}"), || (!alive(pid)).then_some(()));
    }
}

#[test]
fn a_slow_network_card_is_named_at_its_links_and_no_other_link_is() {
    let network = "bandwidth=20MB/s,latency=0ms,slow=2:2MB/s";
    let report = run(&[
        &["--nproc-per-node", "4", "--sync", "allreduce", "--algorithm", "ring", "--policy", "nd"],
        &["--workload", "deepfm", "--data", "synthetic:3200", "--global-batch-size", "64", "--epochs", "1"],
        &["--emulate-network", network, "--heartbeat", "200ms"][..],
    ]
    .concat());
    let slow = report.events.iter().filter(|event| event.kind == "slow-link");
    let receiver = |text: &str| text.split(" to ").nth(1)?.split(',').next().map(str::to_owned);
    let links: BTreeSet<(String, Option<String>)> =
        slow.map(|event| (event.node.clone(), receiver(&event.text))).collect();
    // Those of the ring carry most; rows and votes go to all members.
    for (from, to) in [("worker-1", "worker-2"), ("worker-2", "worker-3")] {
        assert!(links.contains(&(from.to_owned(), Some(to.to_owned()))), "{links:?}");
    }
    let is_of_the_card =
        |(from, to): &(String, Option<String>)| from == "worker-2" || to.as_deref() == Some("worker-2");
    assert!(links.iter().all(is_of_the_card), "{links:?}");
}

#[test]
fn no_node_outlives_a_killed_master_that_can_have_no_successor() {
    // Far longer than the test may take: it is the kernel that ends them.
    ends_with_its_master(&["--emulate-network", "bandwidth=1GB/s,latency=1us", "--master-grace", "1h"]);
}

#[test]
fn nodes_that_no_other_master_takes_over_end_by_themselves() {
    ends_with_its_master(&["--master-grace", "2s"]);
}

#[test]
fn a_lost_server_that_may_not_be_started_again_fails_the_job_and_counts_the_loss() {
    let job = Job::start(&[MODES[1], SLOW, &["--max-restarts", "0"]].concat());
    let server = job.node("server-1");
    let worker = job.node("worker-0");
    wait_for("a worker to work", || busy(worker).then_some(()));
    signal(server, "KILL");
    let (report, output) = job.finish();
    assert!(!output.status.success());
    let Outcome::Failed { why } = report.outcome else { panic!("it completed without its parameters") };
    assert!(
        why.contains("server-1") && why.contains("parameters") && why.contains("--max-restarts"),
        "{why}"
    );
}

/// Checks the recording of a job whose worker 1 was killed: the machines that replay it do exactly the same, the facts are those of
/// the report, and a difference that is planted is found.
fn is_replayed(trace: &Path, report: &Report, mode: &[&str]) {
    let recording = Recording::read(trace).unwrap();
    let replayed = recording.replay().unwrap_or_else(|error| panic!("{mode:?}: {error}"));
    assert!(!replayed.cut_off);
    let counts = replayed.ledger.expect("the job had samples").counts();
    assert_eq!((counts.acked, counts.total), (3000, 3000));

    let facts = recording.facts().unwrap();
    assert_eq!((facts.outcome, facts.steps), (Some(Ok(())), report.steps), "{mode:?}");
    assert!((facts.completed.unwrap().as_secs_f64() - report.job_completion_time_s).abs() < 1e-6);
    let actions: Vec<(&str, &str)> =
        facts.actions.iter().map(|a| (a.kind.as_str(), a.reason.as_str())).collect();
    let reported: Vec<(&str, &str)> =
        report.actions.iter().map(|a| (a.kind.as_str(), a.reason.as_str())).collect();
    assert_eq!(actions, reported, "{mode:?}");
    let killed: Vec<Holder> = facts.ends.iter().filter(|end| !end.expected).map(|end| end.life).collect();
    assert_eq!(killed, [Holder::new(NodeId::worker(1), Incarnation(0))], "{mode:?}: {:?}", facts.ends);

    // One answer among thousands says something else.
    let text = std::fs::read_to_string(trace).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let answers = lines.iter().enumerate().filter(|(_, line)| line.contains("\"seed\":"));
    let planted = answers.map(|(index, _)| index).nth(20).expect("twenty shards were granted");
    lines[planted] = lines[planted].replacen("\"seed\":", "\"seed\":1", 1);
    std::fs::write(trace, lines.join("\n") + "\n").unwrap();
    match recording.replay() {
        Err(RecordingError::Parted { parting, .. }) => assert_eq!(parting.entry, planted as u64),
        other => panic!("{mode:?}: not found: {other:?}"),
    }
}

#[test]
fn a_recording_of_a_killed_master_can_be_replayed() {
    for name in ["job.trace", "job.trace.gz"] {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join(name);
        let mut job = Job::start(&[MODES[0], SLOW, &["--record", trace.to_str().unwrap()]].concat());
        let facts = || Recording::read_with(&trace, antdt_rt::open_trace).ok()?.facts().ok();
        wait_for("a batch in the recording", || facts().filter(|facts| !facts.batches.is_empty()));
        job.child.kill().unwrap();
        job.child.wait().unwrap();
        let recording = Recording::read_with(&trace, antdt_rt::open_trace).unwrap();
        let replayed = recording.replay().unwrap();
        assert!(replayed.cut_off && replayed.compared > 0);
        let facts = facts().unwrap();
        assert!(facts.end.is_none() && facts.outcome.is_none() && !facts.batches.is_empty());
    }
}

#[test]
fn the_recording_of_an_interrupted_job_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("job.trace");
    let job = Job::start(&[MODES[0], SLOW, &["--record", trace.to_str().unwrap()]].concat());
    let facts = || Recording::read(&trace).ok()?.facts().ok();
    wait_for("a batch in the recording", || facts().filter(|facts| !facts.batches.is_empty()));
    signal(job.child.id(), "INT");
    let (report, _) = job.finish();
    assert!(matches!(report.outcome, Outcome::Failed { .. }), "{:?}", report.outcome);
    let replayed = Recording::read(&trace).unwrap().replay().unwrap();
    assert!(!replayed.cut_off);
    assert!(facts().unwrap().outcome.unwrap().is_err());
}

/// The disk is full before the job is over: no file may be longer than 128 blocks.
#[test]
fn a_full_disk_ends_the_recording_with_one_line_and_not_the_job() {
    for name in ["job.trace", "job.trace.gz"] {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join(name);
        // Shared memory counts as a file here.
        let program = "trap '' XFSZ; ulimit -f 128; exec \"$@\"";
        let job = ["run", "--record", trace.to_str().unwrap(), "--quiet", "--data", "synthetic:20000"];
        // All that it keeps beside the recording has room.
        let kept = folder.path().join("kept");
        let small = ["--workload", "logistic", "--checkpoint-dir", kept.to_str().unwrap()];
        let mode = ["--nproc-per-node", "2", "--transport", "tcp", "--global-batch-size", "32"];
        let mut command = Command::new("sh");
        command.args(["-c", program, "sh", env!("CARGO_BIN_EXE_antdt")]).args(job).args(mode).args(small);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = finish(child);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let told: Vec<&str> = error.lines().filter(|line| line.contains("the recording ends here")).collect();
        assert_eq!(told.len(), 1, "{error}");
        assert!(told[0].contains("File too large") && told[0].contains("the job goes on"), "{error}");
        assert!(std::fs::metadata(&trace).unwrap().len() <= 128 << 10);

        let recording = Recording::read_with(&trace, antdt_rt::open_trace).unwrap();
        let replayed = recording.replay().unwrap();
        assert!(replayed.cut_off && replayed.compared > 100, "{replayed:?}");
    }
}

/// Where real rows are, if they are.
fn real_data(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("ANTDT_DATA").map(|folder| PathBuf::from(folder).join(name));
    let folder = folder.filter(|folder| folder.is_dir());
    if folder.is_none() {
        eprintln!("skipped: set ANTDT_DATA to a folder that has {name}");
    }
    folder
}

#[test]
fn real_clicks_are_accounted_for_over_three_epochs() {
    let Some(folder) = real_data("criteo_1tb_day11_3k") else { return };
    let flags = ["--nproc-per-node", "4", "--epochs", "3", "--global-batch-size", "128"];
    let report = run(&[&["--data", folder.to_str().unwrap()][..], &flags].concat());
    assert_exact(&report, 9000);
}

#[test]
fn census_rows_reach_the_known_auc() {
    let Some(folder) = real_data("uci_adult") else { return };
    let flags = ["--nproc-per-node", "4", "--epochs", "2", "--eval-fraction", "0.2", "--seed", "1"];
    let report = run(&[&["--data", folder.to_str().unwrap()][..], &flags].concat());
    assert_exact(&report, 26_049 * 2);
    let auc = report.final_quality.metrics["auc"];
    assert!(auc >= 0.89, "auc {auc}");
}
