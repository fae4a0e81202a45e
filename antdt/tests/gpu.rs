//! Jobs whose workers are to compute on GPUs, on whatever machine this is.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::process::{Command, Output};

use antdt::gpu;
use antdt::report::{Outcome, Report};

fn antdt(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_antdt"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANTDT_")) {
        command.env_remove(name);
    }
    let folder = tempfile::tempdir().unwrap();
    command.env("XDG_STATE_HOME", folder.path());
    command.args(args).output().unwrap()
}

const JOB: &[&str] = &["run", "--data", "synthetic:200", "--policy", "none", "--global-batch-size", "40"];

#[test]
fn a_gpu_that_is_not_there_is_refused_in_one_line_with_the_remedy() {
    let there = gpu::count();
    let beyond = format!("cuda:{}", there.as_ref().copied().unwrap_or(0));
    let said = |flags: &[&str]| {
        let output = antdt(&[JOB, flags].concat());
        assert!(!output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    let refused = said(&["--device", &beyond]);
    assert!(refused.contains(&format!("--device = {beyond}: must be ")), "{refused}");
    if let Err(why) = there {
        assert!(refused.contains(&format!("cpu or auto: {why}")), "{refused}");
        let refused = said(&["--nproc-per-node", "gpu"]);
        assert!(
            refused.contains(&format!("--nproc-per-node = gpu: must be a number here: {why}")),
            "{refused}"
        );
    }
}

#[test]
fn with_auto_a_job_trains_every_sample_on_what_the_host_has() {
    let folder = tempfile::tempdir().unwrap();
    let report_dir = folder.path().to_str().unwrap();
    let flags = ["--device", "auto", "--nproc-per-node", "2", "--report-dir", report_dir];
    let output = antdt(&[JOB, &flags].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let report: Report =
        serde_json::from_str(&fs::read_to_string(folder.path().join("report.json")).unwrap()).unwrap();
    assert_eq!(report.outcome, Outcome::Completed);
    assert_eq!((report.samples.expected, report.samples.committed), (200, 200));
    match gpu::all() {
        Ok(gpus) => println!("trained on {gpus:?}"),
        Err(why) => {
            assert_eq!(said.matches(&format!("the workers compute on the CPU: {why}")).count(), 1, "{said}");
        }
    }
}

#[cfg(not(feature = "nccl"))]
#[test]
fn a_command_without_the_feature_refuses_nccl_in_one_line_with_the_remedy() {
    let output = antdt(&[JOB, &["--transport", "nccl"]].concat());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    for part in ["--transport = nccl", "another transport", "built with feature `nccl`"] {
        assert!(said.contains(part), "{said}");
    }
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_command_without_the_feature_refuses_cuda_ipc_in_one_line_with_the_remedy() {
    let output = antdt(&[JOB, &["--transport", "cuda-ipc"]].concat());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    for part in ["--transport = cuda-ipc", "another transport", "built with feature `cuda`"] {
        assert!(said.contains(part), "{said}");
    }
}

#[cfg(feature = "cuda")]
#[test]
fn a_job_over_a_library_between_gpus_on_a_host_without_one_trains_over_messages_and_says_why() {
    if gpu::all().is_ok() {
        println!("skipped, not here: this host has a GPU; `xtask/gpu/run` runs such jobs");
        return;
    }
    let of_all = "this group communicates over its transport";
    over_messages("cuda-ipc", "CUDA IPC", "allreduce", of_all);
    #[cfg(feature = "nccl")]
    {
        over_messages("nccl", "NCCL", "allreduce", of_all);
        // Of each pair all members decide alike what communicator it has: here none.
        over_messages("nccl", "NCCL", "ad-psgd", "groups with this worker communicate over their transport");
    }
}

#[cfg(feature = "cuda")]
fn over_messages(transport: &str, library: &str, sync: &str, how: &str) {
    let folder = tempfile::tempdir().unwrap();
    let report_dir = folder.path().to_str().unwrap();
    let over = ["--transport", transport, "--sync", sync];
    let flags = ["--device", "auto", "--nproc-per-node", "2", "--report-dir", report_dir];
    let output = antdt(&[JOB, &over, &flags].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let report: Report =
        serde_json::from_str(&fs::read_to_string(folder.path().join("report.json")).unwrap()).unwrap();
    assert_eq!((report.samples.expected, report.samples.committed), (200, 200));
    // Each worker says it once; the one that is named says what it lacks.
    assert_eq!(said.matches(&format!("no {library}: {how}")).count(), 2, "{said}");
    let lacking = format!("worker-0#0 has no GPU with {library}: this process computes on no GPU");
    assert!(said.contains(&lacking), "{said}");
}
