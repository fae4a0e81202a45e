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
    command.env("XDG_STATE_HOME", folder.path()).current_dir(folder.path());
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
fn with_auto_a_job_trains_every_sample_on_a_device_of_the_host() {
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

/// A library of the driver, of a host with one GPU.
#[cfg(feature = "cuda")]
const DRIVER: &str = r#"
#include <cstring>
extern "C" int cuInit(unsigned) { return 0; }
extern "C" int cuDeviceGetCount(int *count) { *count = 1; return 0; }
extern "C" int cuDeviceGet(int *device, int at) { *device = at; return 0; }
extern "C" int cuDeviceGetName(char *name, int len, int) { strncpy(name, "Stand-In 1", len); return 0; }
extern "C" int cuDeviceTotalMem_v2(size_t *bytes, int) { *bytes = 1 << 30; return 0; }
"#;

#[cfg(feature = "cuda")]
#[test]
fn a_gpu_for_which_nothing_compiles_ends_the_job_with_the_remedy_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let (text, driver) = (folder.path().join("driver.cpp"), folder.path().join("libcuda.so.1"));
    fs::write(&text, DRIVER).unwrap();
    let built = Command::new("g++").args(["-shared", "-fPIC", "-o"]).arg(&driver).arg(&text).status();
    if !built.is_ok_and(|built| built.success()) {
        return println!("skipped, not here: no g++");
    }
    fs::copy(&driver, folder.path().join("libcuda.so")).unwrap();
    for device in ["cuda:0", "auto"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_antdt"));
        // Without the folder of a compiler that may be here.
        command
            .env("LD_LIBRARY_PATH", folder.path())
            .env("XDG_STATE_HOME", folder.path())
            .current_dir(folder.path());
        let output = command.args(JOB).args(["--device", device]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        if !said.contains("libnvrtc") {
            return println!("skipped, not here: the system has a compiler for GPUs ({said})");
        }
        // A worker finds out, and the job does not try again.
        assert!(!output.status.success() && !said.contains("panicked"), "{said}");
        assert_eq!(said.lines().count(), 2, "{said}");
        for part in ["--device = cuda:0: must be cpu: libnvrtc.so cannot be loaded", "LD_LIBRARY_PATH"] {
            assert!(said.contains(part), "{said}");
        }
    }
    let found = doctor(folder.path());
    assert!(found.contains("GPUs: ") && found.contains("libnvrtc.so cannot be loaded"), "{found}");
}

/// What `doctor` prints on a host that has the libraries of a folder.
#[cfg(feature = "cuda")]
fn doctor(libraries: &std::path::Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_antdt"));
    command.env("LD_LIBRARY_PATH", libraries).env("XDG_STATE_HOME", libraries).current_dir(libraries);
    String::from_utf8(command.arg("doctor").output().unwrap().stdout).unwrap()
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
