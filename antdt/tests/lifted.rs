//! Jobs whose gradients stay on an emulated device, that of `examples/emulated_gpu.rs`.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;

use antdt::report::Report;

mod devices;

use devices::{checkpoints, completed, finish, has_compiler, run};

/// Runs a job of the program with the emulated device, or of the one without any. `environment` is the device's.
fn job(emulated: bool, environment: &[&str], folder: &Path, args: &[&str]) -> Output {
    let log = ["--quiet", "--log", "warn,antdt::worker::lift=info"];
    let mut command = run(emulated.then_some("emulated_gpu"), folder, &[&log[..], args].concat());
    command.envs(environment.iter().map(|name| (name, "1")));
    finish(command.spawn().unwrap())
}

/// A job that trained all of its samples: its report, what it said, and its checkpoints.
fn trained(emulated: bool, environment: &[&str], args: &[&str]) -> (Report, String, BTreeMap<u64, Vec<u32>>) {
    // The same samples in the same steps. Workers start again after each epoch, from its checkpoint.
    let fixed = ["--policy", "none", "--sharding", "static", "--seed", "7", "--data", "synthetic:400"];
    let kept = ["--epochs", "2", "--eval-fraction", "0.25", "--eval-every", "epoch"];
    let often = ["--checkpoint-every", "4steps", "--checkpoint-keep", "90"];
    // Defaults are a workload's own.
    let rule = ["--weight-decay", "0.003", "--learning-rate", "0.01"];
    let folder = tempfile::tempdir().unwrap();
    let output =
        job(emulated, environment, folder.path(), &[&fixed[..], &kept, &often, &rule, args].concat());
    let (report, said) = completed(folder.path(), &output, 800);
    (report, said, checkpoints(folder.path()))
}

/// Asserts that both jobs have the same model to the bit, at each checkpoint that both have taken and at the end.
fn assert_same(
    ours: &(Report, String, BTreeMap<u64, Vec<u32>>),
    host: &(Report, String, BTreeMap<u64, Vec<u32>>),
) {
    assert_eq!(ours.0.final_quality, host.0.final_quality);
    // How many were taken before an epoch's last one depends on the time.
    let common: Vec<u64> = ours.2.keys().filter(|acked| host.2.contains_key(acked)).copied().collect();
    assert!(common.len() >= 2, "{common:?}");
    for acked in common {
        assert!(ours.2[&acked] == host.2[&acked], "the bits differ after {acked} samples");
    }
}

/// What a worker logs whose gradients stay on the device, and one whose gradients do not.
const STAY: &str = "gradients stay on the GPU";
const COPIED: &str = "gradients are copied from the device to the host";

#[test]
fn gradients_that_stay_on_a_device_train_the_model_that_those_on_the_host_do_and_none_is_copied() {
    if !has_compiler() {
        return;
    }
    let two = ["--nproc-per-node", "2", "--global-batch-size", "40"];
    // In buckets, in one bucket, in micro-batches, alone, and with rows of a table, which go by way of the host.
    let pieces = ["--device", "class=small,worker=0-1,batch-max=6"];
    let cases: [(&str, &str, Vec<&str>); 7] = [
        ("mlp", "adam", [&two[..], &["--bucket-bytes", "1024"]].concat()),
        ("mlp", "momentum", two.to_vec()),
        ("mlp", "adamw", [&two[..], &pieces].concat()),
        ("mlp", "sgd", vec!["--nproc-per-node", "1", "--global-batch-size", "20"]),
        ("deepfm", "adagrad", two.to_vec()),
        // A norm of parameters on the device, and of rows on the host; shorter than that of most gradients here.
        ("mlp", "sgd", [&two[..], &["--clip-norm", "0.05"]].concat()),
        ("deepfm", "adagrad", [&two[..], &["--clip-norm", "0.05"]].concat()),
    ];
    for (model, optimizer, args) in cases {
        let lifted = format!("gpu-{model}");
        let of = |name: &'_ str| -> Vec<String> {
            let flags = ["--workload", name, "--optimizer", optimizer];
            flags.iter().chain(&args).map(|text| (*text).to_owned()).collect()
        };
        let (ours, theirs) = (of(&lifted), of(model));
        let ours: Vec<&str> = ours.iter().map(String::as_str).collect();
        let theirs: Vec<&str> = theirs.iter().map(String::as_str).collect();
        let host = trained(false, &[], &theirs);
        assert!(!host.1.contains(STAY) && !host.1.contains(COPIED), "{}", host.1);
        // A copy would end the job.
        let device = trained(true, &["EMULATED_GPU_STRICT"], &ours);
        assert!(device.1.contains(STAY) && !device.1.contains(COPIED), "{}", device.1);
        assert_same(&device, &host);
    }
}

#[test]
fn where_no_group_reduces_on_devices_gradients_go_by_way_of_the_host_to_the_same_model() {
    if !has_compiler() {
        return;
    }
    let two = ["--nproc-per-node", "2", "--global-batch-size", "40", "--optimizer", "adam"];
    let host = trained(false, &[], &[&["--workload", "mlp"][..], &two].concat());
    // On the device, but the groups copy them.
    let staged = trained(true, &["EMULATED_GPU_ALONE"], &[&["--workload", "gpu-mlp"][..], &two].concat());
    assert!(staged.1.contains(STAY), "{}", staged.1);
    assert_same(&staged, &host);
    // On the host from the beginning, with the reason.
    let copied = trained(true, &["EMULATED_GPU_STRICT"], &[&["--workload", "mlp"][..], &two].concat());
    let why = "the workload computes in the host's memory";
    assert!(copied.1.contains(COPIED) && copied.1.contains(why), "{}", copied.1);
    assert_same(&copied, &host);
}

#[test]
fn a_strict_device_notices_a_gradient_that_is_copied_to_the_host() {
    if !has_compiler() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--workload", "gpu-mlp", "--nproc-per-node", "2", "--global-batch-size", "40"];
    let data = ["--data", "synthetic:400", "--max-restarts", "0"];
    let environment = ["EMULATED_GPU_STRICT", "EMULATED_GPU_ALONE"];
    let output = job(true, &environment, folder.path(), &[&flags[..], &data].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("a gradient was to be copied to the host"), "{said}");
}
