//! Jobs under a real Slurm: its hosts are network namespaces with addresses and process trees of their own.
//!
//! Needs root, `ip`, and Slurm with munge; without them the tests say that they are skipped.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failure here is the test's")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use antdt::report::{Outcome, Report};

use cluster::Cluster;

use waiting::wait_for;

mod waiting;

#[path = "slurm/cluster.rs"]
mod cluster;

/// Hosts with two workers each.
const HOSTS: u32 = 3;

/// Samples of every job.
const SAMPLES: u64 = 3000;

/// The cluster, or why there is none.
fn cluster() -> Option<Cluster> {
    match Cluster::start(HOSTS) {
        Ok(cluster) => Some(cluster),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// What trains on each host, with no word on the hosts. So many samples of a worker take a second.
fn command(speed: u32) -> Vec<String> {
    let speed = format!("--emulate-speed={speed}");
    let data = format!("synthetic:{SAMPLES}");
    let words = [
        env!("CARGO_BIN_EXE_antdt"),
        "run",
        "--nproc-per-node=2",
        "--data",
        &data,
        "--global-batch-size=60",
        "--policy=none",
        &speed,
        "--grace=1s",
        "--checkpoint-every=500ms",
    ];
    words.map(str::to_owned).to_vec()
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// What `antdt status` says of a job.
fn status(cluster: &Cluster, folder: &Path) -> Option<String> {
    let antdt = env!("CARGO_BIN_EXE_antdt");
    let output = cluster.on(0, &[antdt, "status", folder.to_str().unwrap()]).output().unwrap();
    output.status.success().then(|| text(&output))
}

fn report(folder: &Path) -> Report {
    serde_json::from_str(&std::fs::read_to_string(folder.join("report.json")).unwrap()).unwrap()
}

fn assert_exact(report: &Report) {
    assert_eq!(report.outcome, Outcome::Completed);
    let samples = &report.samples;
    assert_eq!((samples.expected, samples.committed), (SAMPLES, SAMPLES));
    assert_eq!((samples.lost, samples.duplicated, samples.quarantined), (0, 0, 0));
}

/// What is left of the job: its processes, and the file with its secret.
fn assert_nothing_is_left(cluster: &Cluster) {
    for host in 0..HOSTS {
        wait_for("the end of all processes", || cluster.pids(host, "antdt run").is_empty().then_some(()));
    }
    let files = std::fs::read_dir(cluster.folder()).unwrap().map(|file| file.unwrap().path());
    let secrets: Vec<PathBuf> =
        files.filter(|file| file.to_string_lossy().contains(".antdt-slurm")).collect();
    assert_eq!(secrets, Vec::<PathBuf>::new());
}

#[test]
fn job_of_a_step_needs_no_flag_and_a_host_that_lost_its_program_gets_it_back() {
    let Some(cluster) = cluster() else { return };
    let srun = ["srun", "--nodes=3", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"].map(str::to_owned);
    let step: Vec<String> = srun.into_iter().chain(command(100)).collect();
    let job = cluster.run(&step.iter().map(String::as_str).collect::<Vec<_>>()).spawn().unwrap();
    let folder = cluster.folder().join("runs/slurm-1");
    let says = wait_for("a step", || status(&cluster, &folder).filter(|says| !says.contains(", 0 steps")));
    for worker in 0..2 * HOSTS {
        let line = format!("worker-{worker}, life 0: running on {}", Cluster::name(worker / 2));
        assert!(says.contains(&line), "{says}");
    }
    let agents = cluster.pids(1, "antdt run");
    assert_eq!(agents.len(), 1, "one task on each host");
    assert!(Command::new("kill").args(["-KILL", &agents[0]]).status().unwrap().success());
    let output = job.wait_with_output().unwrap();
    let report = report(&folder);
    assert_exact(&report);
    let restarts: Vec<u32> = report.workers.iter().map(|worker| worker.restarts).collect();
    assert_eq!(restarts, [0, 0, 1, 1, 0, 0], "{}", text(&output));
    assert_nothing_is_left(&cluster);
}

#[test]
fn job_that_gets_notice_takes_a_checkpoint_and_goes_on_after_it_when_slurm_starts_it_again() {
    let Some(cluster) = cluster() else { return };
    let antdt = env!("CARGO_BIN_EXE_antdt");
    let notice = format!("{antdt} checkpoint runs/slurm-$SLURM_JOB_ID/run; scontrol requeue $SLURM_JOB_ID");
    let script = format!("#!/bin/sh\ntrap '{notice}' USR1\nsrun {} &\nwait; wait\n", command(30).join(" "));
    std::fs::write(cluster.folder().join("job.sh"), script).unwrap();
    let sbatch = ["sbatch", "--parsable", "--nodes=3", "--ntasks-per-node=1", "--requeue", "job.sh"];
    let id = text(&cluster.run(&sbatch).output().unwrap()).trim().to_owned();
    let folder = cluster.folder().join(format!("runs/slurm-{id}"));
    wait_for("a checkpoint", || {
        let checkpoints = std::fs::read_dir(folder.join("run/checkpoints")).ok()?;
        checkpoints.flatten().any(|file| file.path().join("manifest.json").exists()).then_some(())
    });
    // As before the time limit, and at a preemption.
    assert!(cluster.run(&["scancel", "--batch", "--signal=USR1", &id]).status().unwrap().success());
    // A busy controller may not answer; between two starts, a job has states that squeue does not show unasked.
    let state = || {
        let output = cluster.run(&["squeue", "-h", "--states=all", "-j", &id, "-o", "%T"]).output().unwrap();
        if output.status.success() { text(&output).trim().to_owned() } else { "UNKNOWN".to_owned() }
    };
    wait_for("the end of its first part", || (!["RUNNING", "UNKNOWN"].contains(&&*state())).then_some(()));
    // A job that is queued again has failed until its last processes are gone.
    let mut looks = 0;
    wait_for("the next start", || match &*state() {
        "PENDING" => {
            // It is held for a while, unless somebody says otherwise.
            cluster.run(&["scontrol", "update", "job", &id, "StartTime=now"]).output().unwrap();
            None
        }
        "RUNNING" => Some(()),
        ended @ ("COMPLETED" | "FAILED") => {
            looks += 1;
            let said = || std::fs::read_to_string(cluster.folder().join(format!("slurm-{id}.out")));
            assert!(looks < 1_000, "{ended} and not started again: {}", said().unwrap_or_default());
            None
        }
        _ => None,
    });
    wait_for("the end of the job", || ["COMPLETED", "FAILED"].contains(&&*state()).then_some(()));
    let report = report(&folder);
    assert_exact(&report);
    assert!(report.resumed.is_some(), "it began anew");
    assert_nothing_is_left(&cluster);
}

/// Ids of parts of a job that have this state.
fn parts(cluster: &Cluster, job: &str, state: &str) -> Vec<String> {
    let output =
        cluster.run(&["squeue", "-h", "-r", "--states=all", "-j", job, "-o", "%i %T"]).output().unwrap();
    let said = text(&output);
    let parts = said.lines().filter_map(|line| line.split_once(' ').filter(|(_, is)| *is == state));
    parts.map(|(part, _)| part.to_owned()).collect()
}

/// Waits until a part of a job runs, and has a checkpoint of its own.
fn await_part(cluster: &Cluster, job: &str, part: u32) {
    let part = format!("{job}_{part}");
    wait_for(&part, || parts(cluster, job, "RUNNING").contains(&part).then_some(()));
    let folder = cluster.folder().join(format!("runs/slurm-{job}/run/checkpoints"));
    let newest = || {
        let folders = std::fs::read_dir(&folder).ok()?.flatten();
        folders
            .filter(|folder| folder.path().join("manifest.json").exists())
            .map(|folder| folder.file_name())
            .max()
    };
    let before = newest();
    wait_for("a checkpoint of it", || newest().filter(|newest| Some(newest) > before.as_ref()));
}

#[test]
fn submitted_job_goes_on_in_its_next_part_after_a_notice_and_after_the_loss_of_its_first_host() {
    let Some(cluster) = cluster() else { return };
    let words = command(30);
    let submit = [env!("CARGO_BIN_EXE_antdt"), "submit", "--slurm", "--parts=4", "--", "--nnodes=3"];
    let submit: Vec<&str> = submit.into_iter().chain(words[2..].iter().map(String::as_str)).collect();
    let said = text(&cluster.run(&submit).output().unwrap());
    let job = said.split("as job ").nth(1).and_then(|said| said.split(';').next()).expect(&said).to_owned();
    await_part(&cluster, &job, 1);
    // As before the time limit, and at a preemption.
    // It gives the signal to a part of an array, and complains.
    cluster.run(&["scancel", "--batch", "--signal=USR1", &format!("{job}_1")]).output().unwrap();
    await_part(&cluster, &job, 2);
    for what in ["slurm_script", "antdt run"] {
        for pid in cluster.pids(0, what) {
            Command::new("kill").args(["-KILL", &pid]).status().unwrap();
        }
    }
    await_part(&cluster, &job, 3);
    wait_for("the end of its last part", || parts(&cluster, &job, "RUNNING").is_empty().then_some(()));
    let said = std::fs::read_to_string(cluster.folder().join(format!("slurm-{job}.out"))).unwrap();
    let report = report(&cluster.folder().join(format!("runs/slurm-{job}")));
    assert_exact(&report);
    assert!(report.resumed.is_some(), "it began anew: {said}");
    assert!(said.contains("part 3 of 4 on") && !said.contains("part 4 of 4"), "{said}");
    assert_eq!(parts(&cluster, &job, "PENDING"), Vec::<String>::new());
    assert_nothing_is_left(&cluster);
}

#[test]
fn several_tasks_on_a_host_are_refused_with_the_remedy() {
    let Some(cluster) = cluster() else { return };
    let srun =
        ["srun", "--nodes=2", "--ntasks=4", env!("CARGO_BIN_EXE_antdt"), "run", "--data", "synthetic:9"];
    let output = cluster.run(&srun).output().unwrap();
    let said = text(&output);
    assert!(said.contains("error: srun started 4 tasks on 2 hosts"), "{said}");
    assert!(!cluster.folder().join("runs").exists());
}
