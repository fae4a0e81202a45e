//! A program that adds a sync mode with a data plane of its own, in one file and one line: `examples/own_mode`.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use antdt::checkpoint::{Checkpoint, Folder};
use antdt::report::{Outcome, Report};
use antdt_job::mode::REGISTRY;
use antdt_sim::recording::Recording;

use waiting::wait_for;

mod waiting;

/// The file with the mode and its data plane.
#[path = "../examples/own_mode/every_second.rs"]
mod every_second;

/// Samples of the example's model.
const SAMPLES: u64 = 1_200;

fn program(args: &[&str]) -> Command {
    let antdt = PathBuf::from(env!("CARGO_BIN_EXE_antdt"));
    let mut command = Command::new(antdt.parent().unwrap().join("examples/own_mode"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANTDT_")) {
        command.env_remove(name);
    }
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finish(mut child: Child) -> Output {
    wait_for("the end of a command", || child.try_wait().unwrap());
    child.wait_with_output().unwrap()
}

/// What a command printed that succeeded.
fn succeed(args: &[&str]) -> String {
    let output = finish(program(args).spawn().unwrap());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn newest(report_dir: &Path) -> Option<Checkpoint> {
    Folder::open(report_dir.join("run/checkpoints")).ok()?.newest().ok()?.checkpoint
}

/// The dense parameter, and each row of the table, of a checkpoint.
fn counts(checkpoint: &Checkpoint) -> (f32, Vec<f32>) {
    let (mut all, mut rows) = (f32::NAN, vec![0.0; usize::try_from(SAMPLES).unwrap()]);
    for portion in checkpoint.portions() {
        let portion = portion.unwrap();
        all = portion.dense[0];
        for (row, count) in portion.tables[0].rows.iter().zip(&portion.tables[0].values) {
            rows[usize::try_from(*row).unwrap()] = *count;
        }
    }
    (all, rows)
}

/// The process of a life of a worker.
fn worker(master: u32, node: &str, life: &str) -> Option<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{master}/task")).into_iter().flatten().flatten();
    let children: Vec<u32> = tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    children.into_iter().find(|pid| {
        let all = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let has = |line: String| all.split(|byte| *byte == 0).any(|found| found == line.as_bytes());
        has(format!("ANTDT_NODE={node}")) && has(format!("ANTDT_INCARNATION={life}"))
    })
}

const MODE: [&str; 4] = ["--sync", "every-second", "--workload", "rows"];

#[test]
fn a_mode_with_a_data_plane_of_its_own_runs_and_counts_each_sample_once_although_a_worker_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (report_dir, trace) = (folder.path().join("report"), folder.path().join("job.trace"));
    let to = ["--report-dir", report_dir.to_str().unwrap(), "--record", trace.to_str().unwrap()];
    let size = ["--optimizer", "sums", "--global-batch-size", "24", "--nproc-per-node", "3", "--epochs", "2"];
    let slowly = ["--policy", "none", "--emulate-speed", "150", "--checkpoint-every", "3steps"];
    let job = program(&[&["run"], &MODE[..], &to, &size, &slowly].concat()).spawn().unwrap();
    // After an odd number of steps sums of rows are carried to the next one.
    wait_for("two checkpoints", || newest(&report_dir).filter(|it| it.manifest().checkpoint.0 >= 2));
    let victim = wait_for("worker 1", || worker(job.id(), "worker-1", "0"));
    assert!(Command::new("kill").args(["-9", &victim.to_string()]).status().unwrap().success());
    wait_for("its replacement", || worker(job.id(), "worker-1", "1"));
    let output = finish(job);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let report: Report =
        serde_json::from_str(&std::fs::read_to_string(report_dir.join("report.json")).unwrap()).unwrap();
    assert_eq!(report.outcome, Outcome::Completed);
    assert!(report.samples.is_exact() && report.samples.committed == 2 * SAMPLES, "{:?}", report.samples);
    assert!(!report.events.iter().any(|event| event.kind == "rollback"), "the others have the model");
    let (all, rows) = counts(&newest(&report_dir).unwrap());
    assert_eq!(all, 2.0 * SAMPLES as f32);
    let wrong: Vec<_> = rows.iter().enumerate().filter(|(_, count)| **count != 2.0).collect();
    assert!(wrong.is_empty(), "{wrong:?}");

    // The machines that replay the recording, with the mode, do the same.
    REGISTRY.register(every_second::parts().entry).unwrap();
    let replayed = Recording::read(&trace).unwrap().replay().unwrap();
    let ledger = replayed.ledger.unwrap().counts();
    assert_eq!((replayed.cut_off, ledger.acked, ledger.total), (false, 2 * SAMPLES, 2 * SAMPLES));
    let table = succeed(&["whatif", "--trace", trace.to_str().unwrap(), "--policy", "none"]);
    assert!(table.contains("none"), "{table}");
}

#[test]
fn a_checkpoint_after_any_step_has_every_sample_of_its_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let size = ["--optimizer", "sums", "--global-batch-size", "24", "--nproc-per-node", "2"];
    let to = [
        "--report-dir",
        first.to_str().unwrap(),
        "--checkpoint-every",
        "1steps",
        "--epochs",
        "1",
        "--emulate-speed",
        "400",
    ];
    succeed(&[&["run"], &MODE[..], &size, &to, &["--checkpoint-keep", "90"]].concat());
    let kept = Folder::open(first.join("run/checkpoints")).unwrap();
    let mut odd = 0;
    for found in kept.list().unwrap().into_iter().filter(|found| found.manifest.is_ok()) {
        let checkpoint = kept.open_checkpoint(found.checkpoint).unwrap();
        let trained = checkpoint.manifest().ledger.acked;
        let (all, rows) = counts(&checkpoint);
        assert_eq!((all, rows.iter().sum::<f32>()), (trained as f32, trained as f32));
        odd += u32::from((trained / 24) % 2 == 1);
    }
    assert!(odd > 0, "sums were carried behind some of them");
    let resumed =
        ["--resume", first.to_str().unwrap(), "--report-dir", second.to_str().unwrap(), "--epochs", "2"];
    succeed(&[&["run"], &MODE[..], &size, &resumed].concat());
    let (all, rows) = counts(&newest(&second).unwrap());
    assert_eq!((all, rows), (2.0 * SAMPLES as f32, vec![2.0; usize::try_from(SAMPLES).unwrap()]));
}

#[test]
fn the_mode_is_simulated_with_all_invariants() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("kills.toml");
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../antdt-sim/scenarios/crash_and_rejoin.toml"
    ));
    let text = text.unwrap().replacen("[job]\n", "[job]\nsync = \"every-second\"\n", 1);
    std::fs::write(&scenario, text).unwrap();
    let scenario = scenario.to_str().unwrap();
    succeed(&["sim", "--scenario", scenario, "--seeds", "4"]);
    // A program without the mode refuses it by its name.
    let output =
        Command::new(env!("CARGO_BIN_EXE_antdt")).args(["sim", "--scenario", scenario]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("every-second"), "{error}");
}
