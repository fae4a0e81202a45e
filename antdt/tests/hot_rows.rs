//! Jobs whose workers keep hot rows in the memory of an emulated device, that of `examples/emulated_rows.rs`.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use antdt::report::Report;

mod devices;

use devices::{checkpoints, completed, finish, has_compiler, run, wait_for};

/// The program with the device.
const DEVICE: Option<&str> = Some("emulated_rows");

/// Logs what becomes of hot rows, and no more: there is no reader while a job runs.
const LOG: [&str; 3] = ["--quiet", "--log", "warn,antdt::worker::hot=info"];

/// What a worker logs that has hot rows.
const IS_HOT: &str = "hot rows of the table lie on the GPU";

/// What one logs that cannot have any.
const WARNING: &str = "no hot rows: all rows of the table lie in the host's memory";

#[test]
fn a_job_with_hot_rows_has_the_bits_of_one_without() {
    if !has_compiler() {
        return;
    }
    // The same samples in the same steps. Workers start again after each epoch, from its checkpoint.
    let fixed = ["--policy", "none", "--sharding", "static", "--seed", "7", "--data", "synthetic:600"];
    let evaluated =
        ["--epochs", "3", "--eval-fraction", "0.25", "--eval-every", "epoch", "--checkpoint-every", "4steps"];
    for size in [
        [
            "--nproc-per-node",
            "1",
            "--global-batch-size",
            "50",
            "--optimizer",
            "adagrad",
            "--checkpoint-keep",
            "90",
        ],
        [
            "--nproc-per-node",
            "2",
            "--global-batch-size",
            "60",
            "--optimizer",
            "adam",
            "--checkpoint-keep",
            "90",
        ],
    ] {
        let trained = |hot: &str| {
            let folder = tempfile::tempdir().unwrap();
            let flags = ["--hot-rows", hot];
            let mut job = run(DEVICE, folder.path(), &[&fixed[..], &evaluated, &size, &flags, &LOG].concat());
            let (report, said) = completed(folder.path(), &finish(job.spawn().unwrap()), 1800);
            (report, said, checkpoints(folder.path()))
        };
        let (cold, said, kept) = trained("off");
        assert!(!said.contains("hot rows"), "{said}");
        assert!(kept.len() >= 3 && cold.evaluations.len() == 3, "{} {}", kept.len(), cold.evaluations.len());
        // Fewer than a batch touches, more, and more than are ever touched.
        for slots in ["100", "1500", "1000000"] {
            let (hot, said, found) = trained(slots);
            assert!(said.contains(IS_HOT) && !said.contains(WARNING), "{said}");
            assert_eq!(hot.final_quality, cold.final_quality, "{size:?} {slots}");
            // How many checkpoints were taken before an epoch's last one depends on the time.
            let of = |report: &Report| -> Vec<_> {
                report.evaluations.iter().map(|it| (it.epoch, it.samples, it.metrics.clone())).collect()
            };
            assert_eq!(of(&hot), of(&cold), "{size:?} {slots}");
            let common: Vec<u64> = found.keys().filter(|acked| kept.contains_key(acked)).copied().collect();
            assert!(common.len() >= 3, "{size:?} {slots}: {common:?}");
            for acked in common {
                assert!(
                    found[&acked] == kept[&acked],
                    "{size:?} {slots}: the bits differ after {acked} samples"
                );
            }
        }
    }
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// The process of a worker in its life of that number.
fn worker(master: u32, node: &str, life: &str) -> Option<u32> {
    let is = |pid: u32| {
        let all = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let has = |line: String| all.split(|byte| *byte == 0).any(|found| found == line.as_bytes());
        has(format!("ANTDT_NODE={node}")) && has(format!("ANTDT_INCARNATION={life}"))
    };
    children(master).into_iter().find(|pid| is(*pid))
}

#[test]
fn a_worker_with_hot_rows_that_is_killed_is_replaced_by_one_that_takes_them_over() {
    if !has_compiler() {
        return;
    }
    let said = killed_under_way(|worker, _| worker);
    assert!(!said.contains("the device failed"), "{said}");
}

#[test]
fn a_device_that_dies_under_a_worker_costs_the_worker_a_life_and_the_error_says_how_to_do_without() {
    if !has_compiler() {
        return;
    }
    let said = killed_under_way(|_, kernels| kernels);
    let why = "the device failed: hot rows: rows on a GPU: the program that runs the kernels has ended";
    let line = said.lines().find(|line| line.contains(why)).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("worker-1") && line.contains("; --hot-rows off trains without them"), "{line}");
}

/// A job of two workers with hot rows, during which what `victim` names of the second one dies: the process of the worker or that of
/// its kernels. Returns what the job said.
fn killed_under_way(victim: impl Fn(u32, u32) -> u32) -> String {
    let folder = tempfile::tempdir().unwrap();
    let work =
        ["--nproc-per-node", "2", "--data", "synthetic:2400", "--global-batch-size", "60", "--seed", "7"];
    let flags = ["--emulate-speed", "200", "--hot-rows", "300"];
    let job = run(DEVICE, folder.path(), &[&work[..], &flags, &LOG].concat()).spawn().unwrap();
    let second = wait_for("a worker", || worker(job.id(), "worker-1", "0"));
    let survivor = wait_for("another", || worker(job.id(), "worker-0", "0"));
    // The process with the kernels is there when rows can be hot. Then a second's work.
    let is_kernels =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "rows\n");
    let kernels = wait_for("its kernels", || children(second).into_iter().find(is_kernels));
    std::thread::park_timeout(Duration::from_secs(1));
    let killed = Command::new("kill").args(["-KILL", &victim(second, kernels).to_string()]).status().unwrap();
    assert!(killed.success());
    wait_for("the replacement", || worker(job.id(), "worker-1", "1"));
    assert_eq!(worker(job.id(), "worker-0", "0"), Some(survivor), "the survivor was restarted");
    let (report, said) = completed(folder.path(), &finish(job), 2400);
    let restarts: Vec<u32> = report.workers.iter().map(|worker| worker.restarts).collect();
    assert_eq!(restarts, [0, 1]);
    assert_eq!(said.matches(IS_HOT).count(), 3, "{said}");
    let loss = report.final_quality.loss.unwrap();
    assert!(loss < 0.69, "it learns: {loss}");
    said
}

#[test]
fn devices_that_fail_again_and_again_set_the_job_back_and_every_bit_is_that_of_a_job_without() {
    if !has_compiler() {
        return;
    }
    let work = ["--data", "synthetic:1200", "--global-batch-size", "20", "--policy", "none", "--seed", "7"];
    // A checkpoint is written in less than the time of a few steps.
    let flags = ["--sharding", "static", "--nproc-per-node", "1", "--emulate-speed", "150"];
    let kept = ["--checkpoint-every", "4steps", "--max-restarts", "9"];
    let trained = |hot: &str| {
        let folder = tempfile::tempdir().unwrap();
        let mut job =
            run(DEVICE, folder.path(), &[&work[..], &flags, &kept, &["--hot-rows", hot], &LOG].concat());
        // Some sixteen steps of sixty.
        job.env("EMULATED_ROWS_FAIL_FROM", "90");
        let output = finish(job.spawn().unwrap());
        if String::from_utf8_lossy(&output.stderr).contains("the trained model is in no checkpoint: ") {
            return None;
        }
        let (report, said) = completed(folder.path(), &output, 1200);
        Some((report, said, checkpoints(folder.path())))
    };
    let (cold, _, kept) = trained("off").expect("its device does nothing");
    // One that fails just in the last checkpoint of all ends the job.
    let (hot, said, found) = (0..4).find_map(|_| trained("300")).expect("one of several fails before");
    let restarts = hot.workers[0].restarts;
    assert!((2..30).contains(&restarts) && cold.workers[0].restarts == 0, "{restarts}: {said}");
    assert_eq!(said.matches("the device failed: hot rows: ").count() as u32, restarts, "{said}");
    assert_eq!(hot.final_quality, cold.final_quality);
    let last = |kept: BTreeMap<u64, Vec<u32>>| kept.into_iter().next_back().unwrap();
    assert!(last(found) == last(kept), "the bits differ");
}

#[test]
fn a_job_that_a_device_has_ended_goes_on_without_hot_rows() {
    if !has_compiler() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let work = ["--data", "synthetic:600", "--global-batch-size", "40", "--emulate-speed", "150"];
    let flags = ["--checkpoint-every", "2steps", "--max-restarts", "0", "--hot-rows", "300"];
    // Some eleven steps of fifteen.
    let mut job = run(DEVICE, folder.path(), &[&work[..], &flags, &LOG].concat());
    let ended = finish(job.env("EMULATED_ROWS_FAIL_FROM", "60").spawn().unwrap());
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "{said}");
    // The worker comes upon it, or the writer of its checkpoint.
    for why in [
        "worker-0 ended: exit code 75; it was restarted 0 times already (--max-restarts); it said: the device failed: hot rows: \
         rows on a GPU: operation 6",
        " fails, as a test wants it; --hot-rows off trains without them",
    ] {
        assert!(said.contains(why), "{said}");
    }
    let next = tempfile::tempdir().unwrap();
    let resumed = ["--resume", folder.path().to_str().unwrap(), "--hot-rows", "off"];
    completed(next.path(), &finish(run(DEVICE, next.path(), &resumed).spawn().unwrap()), 600);
}

#[test]
fn a_job_whose_rows_cannot_be_hot_trains_without_and_says_why() {
    let work = ["--data", "synthetic:400", "--global-batch-size", "40", "--policy", "none"];
    let said = |flags: &[&str], emulated: bool, workers: u64| {
        let folder = tempfile::tempdir().unwrap();
        let count = workers.to_string();
        let size = ["--nproc-per-node", count.as_str()];
        let mut job =
            run(DEVICE.filter(|_| emulated), folder.path(), &[&work[..], &size, flags, &LOG].concat());
        let (_, said) = completed(folder.path(), &finish(job.spawn().unwrap()), 400);
        assert_eq!(
            said.matches(WARNING).count() as u64,
            if said.contains(WARNING) { workers } else { 0 },
            "{said}"
        );
        said
    };
    for emulated in [false, true] {
        let nothing = said(&[], emulated, 1);
        assert!(!nothing.contains("hot rows"), "nobody asked for any: {nothing}");
    }
    for wanted in ["100", "auto"] {
        let on_cpu = said(&["--hot-rows", wanted], false, 2);
        let why = "rows cannot lie on a GPU: this worker computes on none (--device)";
        assert_eq!(on_cpu.matches(why).count(), 2, "once for each worker: {on_cpu}");
    }
    let alone = said(&["--hot-rows", "100", "--sync", "local-sgd=2"], true, 2);
    assert!(alone.contains("with --sync local-sgd=2 each worker has a model of its own"), "{alone}");
    let servers = said(&["--hot-rows", "100", "--sync", "ps-asp", "--servers", "1"], true, 1);
    assert!(servers.contains("with --sync ps-asp the servers have them"), "{servers}");
    let dense = said(&["--hot-rows", "100", "--workload", "mlp"], true, 1);
    assert!(!dense.contains("hot rows"), "a model without a table has none: {dense}");
}
