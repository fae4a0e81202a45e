//! Real jobs that are killed whole, interrupted, stopped, resumed with other workers in other modes, and scaled while they run.
//!
//! What was trained is counted apart from the ledger: the model of `examples/counting.rs` has one parameter for each sample, which
//! grows by one each time that the sample is in the model.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use antdt::checkpoint::{Checkpoint, Folder};
use antdt::report::{Outcome, Report};

use waiting::wait_for;

mod waiting;

const SAMPLES: u64 = 1_200;

/// The program with the counting job, or the one with DeepFM, without a command.
fn bare_program(counting: bool) -> Command {
    let antdt = PathBuf::from(env!("CARGO_BIN_EXE_antdt"));
    let mut command = match counting {
        true => Command::new(antdt.parent().unwrap().join("examples/counting")),
        false => Command::new(antdt),
    };
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANTDT_")) {
        command.env_remove(name);
    }
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR")).current_dir(env!("CARGO_TARGET_TMPDIR"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `run` of that program, without settings.
fn bare(counting: bool) -> Command {
    let mut command = bare_program(counting);
    command.arg("run");
    command
}

/// The counting job, or DeepFM.
fn program(counting: bool, args: &[&str]) -> Command {
    let mut command = bare(counting);
    if counting {
        command.args(["--workload", "counting", "--optimizer", "sums", "--global-batch-size", "24"]);
    }
    command.args(args);
    command
}

fn finish(mut child: Child) -> Output {
    wait_for("the end of a job", || child.try_wait().unwrap());
    child.wait_with_output().unwrap()
}

fn report(folder: &Path) -> Report {
    serde_json::from_str(&std::fs::read_to_string(folder.join("report.json")).unwrap()).unwrap()
}

fn succeed(command: &mut Command) {
    let output = finish(command.spawn().unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn fail(command: &mut Command) -> String {
    let output = finish(command.spawn().unwrap());
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = error.strip_prefix("error: ").and_then(|rest| rest.strip_suffix('\n'));
    line.filter(|line| !line.contains('\n')).unwrap_or_else(|| panic!("not one line: {error}")).to_owned()
}

fn newest(report_dir: &Path) -> Option<Checkpoint> {
    Folder::open(report_dir.join("run/checkpoints")).ok()?.newest().ok()?.checkpoint
}

/// The parameters of a checkpoint, whatever they were spread over.
fn parameters(checkpoint: &Checkpoint) -> Vec<f32> {
    let mut all = vec![f32::NAN; checkpoint.manifest().job.layout.dense_len()];
    for portion in checkpoint.portions() {
        let portion = portion.unwrap();
        all[portion.dense_from..][..portion.dense.len()].copy_from_slice(&portion.dense);
    }
    all
}

const MODES: [&[&str]; 13] = [
    &["--sync", "allreduce", "--nproc-per-node", "3"],
    &["--sync", "ps-bsp", "--servers", "2", "--nproc-per-node", "2"],
    &["--sync", "ps-asp", "--servers", "3", "--nproc-per-node", "4"],
    &["--sync", "local-sgd=3", "--nproc-per-node", "2"],
    &["--sync", "ps-ssp=1", "--servers", "2", "--nproc-per-node", "3"],
    &["--sync", "ps-backup=1", "--servers", "2", "--nproc-per-node", "3"],
    &["--sync", "d-psgd=ring", "--nproc-per-node", "5"],
    &["--sync", "ad-psgd", "--nproc-per-node", "4"],
    &["--sync", "ripples-static=2", "--nproc-per-node", "4"],
    &["--sync", "ripples=smart:2", "--nproc-per-node", "4"],
    // In the end momentum moves a parameter by 0.5 / (1 - 0.5) of what workers did, so that shares are at most counts here too.
    &["--sync", "diloco=3:rate=0.5:momentum=0.5", "--nproc-per-node", "2"],
    &["--sync", "ad-psgd=overlap", "--nproc-per-node", "4"],
    &["--sync", "allreduce=1", "--nproc-per-node", "3"],
];

/// Whether the mode averages models: then a sample has a share of the model instead of a count.
fn averages(mode: &[&str]) -> bool {
    let averaging = ["local-sgd", "diloco", "d-psgd", "ad-psgd", "ripples"];
    averaging.iter().any(|name| mode[1].starts_with(name))
}

/// How much a sample that was trained once is of the final model, where no worker comes or goes: 1, or an equal share of the mean of
/// models that are averaged by equal weights. `None` where workers average by the samples that each has trained.
fn weight(mode: &[&str]) -> Option<f32> {
    let by_samples = ["local-sgd", "diloco"].iter().any(|name| mode[1].starts_with(name));
    let workers = mode.iter().skip_while(|word| **word != "--nproc-per-node").nth(1).unwrap();
    match (by_samples, averages(mode)) {
        (true, _) => None,
        (false, false) => Some(1.0),
        (false, true) => Some(1.0 / workers.parse::<f32>().unwrap()),
    }
}

/// Ends a job as a power cut would: its master, which would start others, and then its nodes.
fn kill_whole(mut master: Child) {
    let nodes: Vec<u32> = children(master.id());
    master.kill().unwrap();
    master.wait().unwrap();
    for node in nodes {
        kill("-KILL", node);
        wait_for("the end of a node", || (!alive(node)).then_some(()));
    }
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

#[test]
fn a_job_that_is_killed_whole_goes_on_in_any_mode_and_every_sample_is_in_the_model_once_for_each_epoch() {
    for (mode, before) in MODES.into_iter().enumerate() {
        let after = MODES[(mode + 1) % MODES.len()];
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        let to_first = ["--report-dir", first.to_str().unwrap(), "--epochs", "2", "--policy", "none"];
        let slowly = ["--emulate-speed", "80", "--checkpoint-every", "4steps", "--heartbeat", "50ms"];
        let job = program(true, &[before, &to_first, &slowly].concat()).spawn().unwrap();
        wait_for("two checkpoints", || newest(&first).filter(|found| found.manifest().checkpoint.0 >= 2));
        kill_whole(job);

        let kept = newest(&first).unwrap();
        let (trained, counted) = (kept.manifest().ledger.acked, parameters(&kept));
        assert!(trained > 0 && trained < 2 * SAMPLES);
        let near = |sum: f32, expected: f32| (sum - expected).abs() <= expected * 1e-3;
        if let Some(weight) = weight(before) {
            let in_model = counted.iter().sum::<f32>() / weight;
            assert!(
                if weight == 1.0 { in_model == trained as f32 } else { near(in_model, trained as f32) },
                "{before:?}: {in_model} samples are in the model, {trained} in the ledger of the same moment"
            );
        }
        let to_second = ["--report-dir", second.to_str().unwrap(), "--epochs", "2", "--policy", "none"];
        let fast = ["--resume", first.to_str().unwrap(), "--emulate-speed", "2000"];
        succeed(&mut program(true, &[after, &to_second, &fast].concat()));
        let report = report(&second);
        assert_eq!(report.outcome, Outcome::Completed);
        assert!(report.samples.is_exact() && report.samples.committed == 2 * SAMPLES, "{:?}", report.samples);
        assert!(report.resumed.unwrap().contains(&format!("{trained} of {} samples are done", 2 * SAMPLES)));
        let counted = parameters(&newest(&second).unwrap());
        let [least, most] = match (weight(before), weight(after)) {
            (Some(1.0), Some(1.0)) => [2.0, 2.0],
            // One that misses an epoch has less than twice the smaller share, unless that is less than half of the other.
            (Some(first), Some(second)) => [1.998 * first.min(second), 2.002 * first.max(second)],
            _ => [f32::MIN_POSITIVE, 2.0],
        };
        assert!(
            counted.iter().all(|count| (least..=most).contains(count)),
            "{before:?} {after:?}: not from {least} to {most}: {counted:?}"
        );
    }
}

#[test]
fn a_pulled_loop_trains_every_sample_once_with_a_straggler_and_a_worker_that_is_killed() {
    for mode in [
        &["--sync", "allreduce", "--nproc-per-node", "3"][..],
        &["--sync", "ps-bsp", "--servers", "2", "--nproc-per-node", "3"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let report_dir = folder.path().to_str().unwrap();
        let job =
            ["--workload", "pulled", "--optimizer", "sums", "--global-batch-size", "24", "--epochs", "2"];
        let often = ["--checkpoint-every", "4steps", "--heartbeat", "50ms", "--report-dir", report_dir];
        let slowly = ["--emulate-speed", "100", "--straggler", "worker=0,slow=3"];
        let master = bare(true).args([&job, mode, &often, &slowly].concat()).spawn().unwrap();
        wait_for("two checkpoints", || {
            newest(folder.path()).filter(|found| found.manifest().checkpoint.0 >= 2)
        });
        let is_second = |pid: &u32| {
            let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            variables.split(|byte| *byte == 0).any(|variable| variable == b"ANTDT_NODE=worker-1")
        };
        kill("-KILL", children(master.id()).into_iter().find(is_second).unwrap());
        let output = finish(master);
        assert!(output.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
        let report = report(folder.path());
        assert!(report.samples.is_exact() && report.samples.committed == 2 * SAMPLES, "{:?}", report.samples);
        assert_eq!(report.workers.iter().map(|worker| worker.restarts).max(), Some(1), "{mode:?}");
        let counted = parameters(&newest(folder.path()).unwrap());
        assert!(counted.iter().all(|count| *count == 2.0), "{mode:?}: {counted:?}");
    }
}

/// Sends a signal to one process, which may be gone.
fn kill(signal: &str, process: u32) {
    let _ = Command::new("kill").args([signal, &process.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// The number of the job's master among its masters, and its process.
fn master_of(run_dir: &Path) -> Option<(u64, u32)> {
    let text = std::fs::read_to_string(run_dir.join("master.json")).ok()?;
    let file: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some((file["generation"].as_u64()?, u32::try_from(file["pid"].as_u64()?).ok()?))
}

/// Kills the master of a job twice, and has another one take the job over each time.
fn is_taken_over(mode: &[&str], keeps_workers: bool) {
    let folder = tempfile::tempdir().unwrap();
    let (dir, run_dir) = (folder.path().to_str().unwrap(), folder.path().join("run"));
    let args = ["--report-dir", dir, "--epochs", "2", "--policy", "none", "--emulate-speed", "100"];
    let often = ["--checkpoint-every", "4steps", "--heartbeat", "50ms"];
    let mut job = program(true, &[mode, &args, &often].concat()).spawn().unwrap();
    let (mut workers, mut after) = (Vec::new(), 0);
    for generation in 1..=2 {
        let taken = || newest(folder.path()).filter(|found| found.manifest().checkpoint.0 >= after + 2);
        after = wait_for("two checkpoints", taken).manifest().checkpoint.0;
        assert_eq!(master_of(&run_dir).unwrap(), (generation, job.id()));
        let second = fail(&mut resume(dir, &[]));
        assert!(second.contains("runs there"), "its master lives: {second}");
        let nodes = if generation == 1 { children(job.id()) } else { workers.clone() };
        workers = nodes.into_iter().filter(|node| is_worker(*node)).collect();
        job.kill().unwrap();
        job.wait().unwrap();
        assert!(
            !workers.is_empty() && workers.iter().all(|worker| alive(*worker)),
            "{mode:?}: they outlive it"
        );
        if generation == 1 {
            let changed = fail(&mut resume(dir, &["--learning-rate", "0.5"]));
            assert!(changed.contains("learning-rate") && changed.contains("take"), "{changed}");
            let anew = fail(&mut program(true, &[mode, &args].concat()));
            assert!(anew.contains("without a master"), "{anew}");
        }
        job = resume(dir, &[]).spawn().unwrap();
        wait_for("the next master", || {
            assert!(job.try_wait().unwrap().is_none(), "{mode:?}: it ended");
            master_of(&run_dir).filter(|(now, _)| *now == generation + 1)
        });
        if keeps_workers {
            assert!(workers.iter().all(|worker| alive(*worker)), "{mode:?}: workers keep their processes");
        } else {
            for worker in &workers {
                wait_for("the end of a worker with an undone model", || (!alive(*worker)).then_some(()));
            }
            workers =
                wait_for("new workers", || Some(children(job.id())).filter(|all| all.len() >= workers.len()));
        }
    }
    let output = finish(job);
    assert!(output.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
    let report = report(folder.path());
    assert_eq!(report.outcome, Outcome::Completed);
    assert!(report.samples.is_exact() && report.samples.committed == 2 * SAMPLES, "{:?}", report.samples);
    assert!(report.resumed.unwrap().contains("took over"));
    let counted = parameters(&newest(folder.path()).unwrap());
    if averages(mode) {
        assert!(counted.iter().all(|count| *count > 0.0 && *count <= 2.001), "{mode:?}: {counted:?}");
    } else {
        assert!(counted.iter().all(|count| *count == 2.0), "{mode:?}: {counted:?}");
    }
    for worker in workers {
        wait_for("the end of a worker", || (!alive(worker)).then_some(()));
    }
    let left: Vec<String> = std::fs::read_dir(&run_dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, ["checkpoints"], "nothing is left for a successor");
}

/// `antdt run --resume DIR`, with no settings but these.
fn resume(dir: &str, args: &[&str]) -> Command {
    let mut command = bare(true);
    command.args(["--resume", dir]).args(args);
    command
}

fn is_worker(process: u32) -> bool {
    std::fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|line| line.ends_with(b"\0worker\0"))
}

#[test]
fn a_job_with_servers_whose_master_is_killed_is_taken_over_and_its_workers_keep_their_processes() {
    for mode in MODES.into_iter().filter(|mode| mode[1].starts_with("ps-")) {
        is_taken_over(mode, true);
    }
}

#[test]
fn a_job_with_the_model_in_its_workers_whose_master_is_killed_is_taken_over_from_its_newest_checkpoint() {
    for mode in MODES.into_iter().filter(|mode| !mode[1].starts_with("ps-")) {
        is_taken_over(mode, false);
    }
}

/// `antdt master --standby DIR`.
fn standby(dir: &str) -> Child {
    let mut command = bare_program(true);
    command.args(["master", "--standby", dir]).spawn().unwrap()
}

/// A master in waiting, once it waits.
fn waits(dir: &str) -> Child {
    use std::io::Read;
    let mut child = standby(dir);
    let mut said = [0_u8; 11];
    child.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"waiting for");
    child
}

#[test]
fn masters_in_waiting_take_over_one_after_the_other_and_end_with_the_job() {
    for mode in [MODES[1], MODES[0]] {
        let folder = tempfile::tempdir().unwrap();
        let (dir, run_dir) = (folder.path().to_str().unwrap(), folder.path().join("run"));
        let args = ["--report-dir", dir, "--epochs", "2", "--policy", "none", "--emulate-speed", "100"];
        let often = ["--checkpoint-every", "4steps", "--heartbeat", "50ms", "--quiet"];
        let first = program(true, &[mode, &args, &often].concat()).spawn().unwrap();
        wait_for("a checkpoint", || newest(folder.path()));
        let mut waiting: Vec<Child> = (0..3).map(|_| waits(dir)).collect();
        let (mut master, mut nodes) = (first, Vec::new());
        for generation in 2..=3 {
            let all: Vec<u32> = children(master.id()).into_iter().chain(nodes).collect();
            master.kill().unwrap();
            master.wait().unwrap();
            let now = || master_of(&run_dir).filter(|(now, _)| *now == generation);
            let (_, pid) = wait_for("the next master", now);
            let next = waiting.iter().position(|one| one.id() == pid).expect("it is one of those that wait");
            master = waiting.swap_remove(next);
            if generation == 2 && mode[1] == "ps-bsp" {
                let workers: Vec<u32> = all.iter().copied().filter(|node| is_worker(*node)).collect();
                assert!(workers.len() == 2 && workers.iter().all(|worker| alive(*worker)));
            }
            nodes = all;
        }
        let output = finish(master);
        assert!(output.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
        let report = report(folder.path());
        assert!(report.samples.is_exact() && report.samples.committed == 2 * SAMPLES, "{:?}", report.samples);
        let counted = parameters(&newest(folder.path()).unwrap());
        assert!(counted.iter().all(|count| *count == 2.0), "{mode:?}: {counted:?}");
        let output = finish(waiting.pop().unwrap());
        assert!(output.status.success() && waiting.is_empty());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("the job has ended; there is nothing to take over"), "{said}");
        wait_for("the end of all nodes", || nodes.iter().all(|node| !alive(*node)).then_some(()));
    }
}

#[test]
fn a_job_that_is_killed_whole_goes_on_with_a_master_in_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let args = ["--report-dir", dir, "--policy", "none", "--emulate-speed", "100", "--heartbeat", "50ms"];
    let job = program(true, &[MODES[1], &args, &["--checkpoint-every", "4steps"]].concat()).spawn().unwrap();
    wait_for("a checkpoint", || newest(folder.path()));
    let next = waits(dir);
    kill_whole(job);
    let output = finish(next);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(report(folder.path()).samples.is_exact());
    assert!(parameters(&newest(folder.path()).unwrap()).iter().all(|count| *count == 1.0));
}

#[test]
fn a_master_in_waiting_is_refused_without_a_job_and_an_interrupt_ends_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let error = fail(bare_program(true).args(["master", "--standby", dir]));
    assert!(error.contains("no job runs there"), "{error}");
    let args = ["--report-dir", dir, "--nproc-per-node", "2", "--emulate-speed", "200", "--quiet"];
    let job = program(true, &args).spawn().unwrap();
    wait_for("the job", || master_of(&folder.path().join("run")));
    let next = waits(dir);
    kill("-INT", next.id());
    let output = finish(next);
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted; the job goes on"));
    let output = finish(job);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_new_job_is_refused_in_a_directory_whose_journal_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let args =
        ["--report-dir", dir, "--nproc-per-node", "2", "--emulate-speed", "100", "--heartbeat", "50ms"];
    let job = program(true, &args).spawn().unwrap();
    let journal = folder.path().join("run/head.journal");
    // It comes after the address of the master.
    wait_for("the journal", || journal.exists().then_some(()));
    kill_whole(job);
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, &text[..text.len() / 2]).unwrap();
    let error = fail(&mut program(true, &args));
    assert!(error.contains("head.journal") && error.contains("delete the file"), "{error}");
    std::fs::remove_file(&journal).unwrap();
    succeed(program(true, &args).arg("--force"));
}

/// Ends a job and leaves of it what is on the disk after a power cut and another start of the machine.
fn cut_power(job: Child, run_dir: &Path) {
    kill_whole(job);
    for name in ["head.journal", "master.json", "token"] {
        std::fs::write(run_dir.join(name), "").unwrap();
    }
    let file = run_dir.join("job.journal");
    let text = std::fs::read_to_string(&file).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(text.contains(boot.trim()), "{text}");
    let earlier = text.split_once('\n').unwrap().1.replace(boot.trim(), "earlier");
    let sum = crc32c::crc32c(earlier.trim_end_matches('\n').as_bytes());
    std::fs::write(file, format!("{sum:08x}\n{earlier}")).unwrap();
}

#[test]
fn a_job_goes_on_after_a_power_cut_that_left_its_unwritten_files_empty() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let slowly = [
        "--report-dir",
        dir,
        "--nproc-per-node",
        "2",
        "--emulate-speed",
        "100",
        "--checkpoint-every",
        "2steps",
    ];
    let job = program(true, &slowly).spawn().unwrap();
    wait_for("a checkpoint", || newest(folder.path()));
    cut_power(job, &folder.path().join("run"));
    succeed(&mut resume(dir, &["--emulate-speed", "2000"]));
    let report = report(folder.path());
    assert!(report.samples.is_exact() && report.samples.committed == SAMPLES, "{:?}", report.samples);
    assert!(report.resumed.is_some());
}

#[test]
fn a_job_whose_checkpoints_are_elsewhere_is_resumed_by_its_folder_and_goes_on_with_both() {
    for interrupted in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let [dir, own] = ["job", "own"].map(|name| folder.path().join(name));
        let places = ["--report-dir", dir.to_str().unwrap(), "--checkpoint-dir", own.to_str().unwrap()];
        let slowly = ["--nproc-per-node", "2", "--emulate-speed", "100", "--checkpoint-every", "2steps"];
        let job = program(true, &[&places[..], &slowly].concat()).spawn().unwrap();
        wait_for("a checkpoint", || Folder::open(&own).ok()?.newest().ok()?.checkpoint);
        if interrupted {
            kill("-INT", job.id());
            finish(job);
        } else {
            kill_whole(job);
        }
        succeed(&mut resume(dir.to_str().unwrap(), &["--emulate-speed", "2000"]));
        let report = report(&dir);
        assert!(report.samples.is_exact() && report.samples.committed == SAMPLES, "{:?}", report.samples);
        assert_eq!(report.checkpoint.unwrap().folder, own);
        let error = fail(bare(true).args(["--resume", "--report-dir"]).arg(&dir));
        assert!(error.contains("--resume"), "{error}");
    }
}

#[test]
fn an_interrupted_job_takes_a_checkpoint_counts_the_rest_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let args = ["--report-dir", dir, "--nproc-per-node", "2", "--emulate-speed", "300", "--quiet"];
    let job = program(true, &args).spawn().unwrap();
    // Its nodes are there before it says where it is.
    wait_for("the training", || {
        let status = Command::new(env!("CARGO_BIN_EXE_antdt")).args(["status", dir]).output().unwrap();
        let text = String::from_utf8_lossy(&status.stdout).into_owned();
        (text.contains("2 of 2 workers") && !text.contains(" 0 steps")).then_some(())
    });
    let killed = Command::new("kill").args(["-INT", &job.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = finish(job);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let interrupted = report(folder.path());
    let kept = interrupted.checkpoint.expect("a checkpoint");
    let remain = SAMPLES - kept.samples;
    let again = match interrupted.samples.committed - kept.samples {
        0 => String::new(),
        since => format!(", of which {since} were trained after it and are trained again"),
    };
    let expected = format!(
        "error: interrupted; {remain} of {SAMPLES} samples remain after checkpoint {}{again}: go on with --resume {dir}\n",
        kept.id
    );
    assert_eq!(error, expected);
    assert!(
        interrupted.samples.is_exact() && interrupted.samples.remaining > 0 && interrupted.samples.lost == 0
    );

    succeed(&mut program(
        true,
        &["--report-dir", dir, "--nproc-per-node", "1", "--resume", kept.folder.to_str().unwrap()],
    ));
    assert!(report(folder.path()).samples.is_exact());
    assert!(parameters(&newest(folder.path()).unwrap()).iter().all(|count| *count == 1.0));
    // Nothing is left; with more epochs there is.
    let error = fail(&mut program(true, &["--resume", dir, "--quiet"]));
    assert!(
        error.contains("nothing is left to train: 1200 samples of 1 epochs are done; raise --epochs"),
        "{error}"
    );
    succeed(&mut program(
        true,
        &["--report-dir", dir, "--resume", dir, "--epochs", "3", "--nproc-per-node", "2"],
    ));
    assert!(parameters(&newest(folder.path()).unwrap()).iter().all(|count| *count == 3.0));
}

/// Steps come from the workers' reports, samples from the ledger. A worker goes on until its process ends, which is when no report is
/// left: it may have a batch in the ledger that it has not reported yet, and no more.
#[test]
fn the_steps_of_an_interrupted_job_are_those_of_its_samples() {
    // In a step of 10 ms. What is committed in one, and how many may be without a report.
    for (mode, batch, unreported) in
        [(&["--sync", "allreduce"][..], 24, 1), (&["--sync", "ps-asp", "--servers", "1"], 12, 2)]
    {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_str().unwrap();
        let args = ["--report-dir", dir, "--nproc-per-node", "2", "--emulate-speed", "1200", "--quiet"];
        let long = ["--epochs", "100", "--policy", "none"];
        let job = program(true, &[mode, &args, &long].concat()).spawn().unwrap();
        wait_until_it_trains(dir);
        kill("-INT", job.id());
        finish(job);
        let Report { samples, steps, .. } = report(folder.path());
        let committed = samples.committed / batch;
        assert!(steps > 0 && committed <= steps + unreported, "{mode:?}: {steps} of {committed} steps");
    }
}

#[test]
fn an_interrupted_job_that_names_no_folder_has_one_of_its_own_and_goes_on_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |args: &[&str]| {
        let mut job = bare_program(true);
        job.current_dir(folder.path()).arg("run").args(args).arg("--quiet");
        job
    };
    let [workload, optimizer] = [["--workload", "counting"], ["--optimizer", "sums"]];
    let settings = [
        &workload[..],
        &optimizer,
        &["--nproc-per-node", "2", "--emulate-speed", "300", "--checkpoint-every", "2steps", "--epochs", "4"],
    ]
    .concat();
    let job = in_folder(&settings).spawn().unwrap();
    let runs = folder.path().join("runs");
    wait_for("a checkpoint", || newest(&std::fs::read_dir(&runs).ok()?.next()?.ok()?.path()));
    kill("-INT", job.id());
    let output = finish(job);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let (_, dir) = error.trim_end().rsplit_once("go on with --resume ").unwrap_or_else(|| panic!("{error}"));
    assert!(dir.starts_with("runs/counting-"), "{error}");
    succeed(&mut in_folder(&["--resume", dir]));
    assert_eq!(report(&folder.path().join(dir)).samples.committed, 4 * SAMPLES);
    succeed(&mut in_folder(&[&settings[..4], &["--epochs", "1"]].concat()));
    assert_eq!(std::fs::read_dir(folder.path().join("runs")).unwrap().count(), 2);
}

/// `nohup` begins a job that ignores that its terminal closes; another one stops as if it were interrupted.
#[test]
fn a_job_whose_terminal_closes_takes_a_checkpoint_unless_it_is_to_ignore_that() {
    for ignores in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_str().unwrap();
        let mut command =
            program(true, &["--report-dir", dir, "--nproc-per-node", "2", "--emulate-speed", "300"]);
        if ignores {
            let mut under = Command::new("nohup");
            under.arg(command.get_program()).args(command.get_args());
            for (name, value) in command.get_envs() {
                match value {
                    Some(value) => under.env(name, value),
                    None => under.env_remove(name),
                };
            }
            under.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command = under;
        }
        let job = command.spawn().unwrap();
        wait_until_it_trains(dir);
        assert!(Command::new("kill").args(["-HUP", &job.id().to_string()]).status().unwrap().success());
        let output = finish(job);
        let report = report(folder.path());
        assert!(report.samples.is_exact() && report.checkpoint.is_some(), "{report:?}");
        assert_eq!(output.status.success(), ignores, "{output:?}");
        assert_eq!(report.samples.remaining == 0, ignores, "{report:?}");
    }
}

/// A slow job with checkpoints in `dir`, once it trains.
fn trains(dir: &str, args: &[&str]) -> Child {
    let slowly = ["--report-dir", dir, "--nproc-per-node", "2", "--emulate-speed", "300"];
    let job = program(true, &[&slowly, args].concat()).spawn().unwrap();
    wait_until_it_trains(dir);
    job
}

fn wait_until_it_trains(dir: &str) {
    wait_for("the training", || {
        let text = ask(&["status"], Path::new(dir)).ok()?;
        (text.contains("2 of 2 workers") && !text.contains(" 0 steps")).then_some(())
    });
}

#[test]
fn a_job_whose_last_checkpoint_cannot_be_written_fails_and_says_why() {
    for (interrupt, says) in
        [(false, "error: the trained model is in no checkpoint: "), (true, "error: interrupted, and ")]
    {
        let folder = tempfile::tempdir().unwrap();
        let job = trains(folder.path().to_str().unwrap(), &[]);
        // Of another job, as it were, that writes to the same folder.
        let place = folder.path().join("run/checkpoints/00000000000000000001");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("manifest.json"), "{}").unwrap();
        if interrupt {
            kill("-INT", job.id());
        }
        let output = finish(job);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        let last = error.lines().last().unwrap();
        assert!(last.starts_with(says) && last.contains("checkpoint 1 was not "), "{error}");
        assert!(
            error.lines().any(|line| line.contains("WARN") && line.contains("checkpoint 1 was not ")),
            "{error}"
        );
        let Outcome::Failed { why } = report(folder.path()).outcome else { panic!("it failed") };
        assert!(why.contains("is whole already"), "{why}");
    }
}

#[test]
fn a_second_job_in_a_report_folder_that_is_in_use_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let job = trains(dir, &["--seed", "7"]);
    let args = ["--report-dir", dir, "--quiet"];
    let error = fail(&mut program(true, &args));
    assert!(error.contains("runs there") && error.contains("--report-dir"), "{error}");
    let output = finish(job);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = report(folder.path());
    assert_eq!((report.seed, report.samples.committed), (7, SAMPLES));
    assert_eq!(newest(folder.path()).unwrap().manifest().checkpoint.0, 1);
}

#[test]
fn a_new_job_leaves_the_files_of_an_earlier_one_alone_unless_it_is_to_replace_them() {
    let folder = tempfile::tempdir().unwrap();
    let [dir, own] = ["job", "own"].map(|name| folder.path().join(name));
    let [dir_text, own_text] = [&dir, &own].map(|path| path.to_str().unwrap());
    let first = ["--report-dir", dir_text, "--checkpoint-dir", own_text, "--quiet"];
    let others = ["--checkpoint-keep", "1", "--seed", "8", "--quiet"];
    let in_report = ["--report-dir", dir_text];
    let in_checkpoints = ["--checkpoint-dir", own_text];
    succeed(&mut program(true, &first));
    for (place, what) in [(in_report, "the report of a job"), (in_checkpoints, "checkpoints of a job")] {
        let error = fail(&mut program(true, &[&place[..], &others].concat()));
        assert!(error.contains(what) && error.contains("--resume") && error.contains("--force"), "{error}");
    }
    assert_eq!((report(&dir).seed, Folder::open(&own).unwrap().list().unwrap().len()), (0, 1));
    kill_whole(trains(folder.path().join("killed").to_str().unwrap(), &["--epochs", "2"]));
    let killed = folder.path().join("killed");
    let in_killed = ["--report-dir", killed.to_str().unwrap()];
    let error = fail(&mut program(true, &[&in_killed[..], &others].concat()));
    assert!(error.contains("a job that did not end in order"), "{error}");
    for place in [&[in_report, in_checkpoints].concat()[..], &in_killed[..]] {
        succeed(&mut program(true, &[place, &others, &["--force"]].concat()));
    }
    let left = Folder::open(&own).unwrap().list().unwrap();
    assert_eq!((report(&dir).seed, report(&killed).seed, left.len(), left[0].checkpoint.0), (8, 8, 1, 1));
}

#[test]
fn an_interrupted_job_that_is_evaluated_now_and_then_counts_all_its_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let job = trains(folder.path().to_str().unwrap(), &["--epochs", "4", "--eval-every", "epoch"]);
    kill("-INT", job.id());
    let output = finish(job);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains(&format!(" of {} samples remain", 4 * SAMPLES)), "{error}");
    let samples = report(folder.path()).samples;
    assert!(samples.is_exact() && samples.expected == 4 * SAMPLES, "{samples:?}");
}

#[test]
fn an_epoch_that_is_interrupted_as_it_is_evaluated_has_its_evaluation_in_the_resumed_job() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let data = ["--data", "synthetic:20000", "--eval-fraction", "0.9", "--policy", "none", "--quiet"];
    let epochs = ["--epochs", "3", "--eval-every", "epoch", "--nproc-per-node", "2", "--report-dir", dir];
    let job = program(false, &[&data[..], &epochs].concat()).spawn().unwrap();
    // It is taken before the evaluation.
    wait_for("the checkpoint of an epoch", || newest(folder.path()));
    kill("-INT", job.id());
    let output = finish(job);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && error.contains("interrupted"), "{error}");
    assert_eq!(evaluated(&report(folder.path())), [1]);
    succeed(&mut program(false, &["--resume", dir, "--quiet"]));
    assert_eq!(evaluated(&report(folder.path())), [1, 2, 3]);
}

#[test]
fn an_epoch_whose_job_died_before_its_evaluation_is_evaluated_when_the_job_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let every = ["--eval-every", "epoch", "--data", "synthetic:500", "--quiet"];
    succeed(&mut program(false, &[HELD_OUT, &every, &["--epochs", "1", "--report-dir", dir]].concat()));
    let first = report(folder.path());
    let died = || std::fs::remove_file(folder.path().join("run/checkpoints/evaluations.json")).unwrap();
    let resumed = |epochs: &str| {
        succeed(&mut program(false, &["--resume", dir, "--epochs", epochs, "--quiet"]));
        report(folder.path())
    };
    // What a `kill -9` leaves that comes after the last checkpoint of an epoch: the model, and no word of how good it is.
    died();
    let again = resumed("1");
    assert_eq!(evaluated(&again), [1]);
    assert_eq!(again.evaluations[0].metrics, first.evaluations[0].metrics);
    let error = fail(&mut program(false, &["--resume", dir, "--quiet"]));
    assert!(error.contains("nothing is left to train"), "{error}");
    died();
    let more = resumed("3");
    assert_eq!(evaluated(&more), [1, 2, 3]);
    assert!(more.samples.is_exact(), "{:?}", more.samples);
    let text = more.resumed.unwrap();
    assert!(text.contains("the evaluation after epoch 1 comes first"), "{text}");
}

#[test]
fn a_job_goes_on_after_an_evaluation_with_the_workers_and_servers_that_it_was_scaled_to() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let job = slow_job(&[MODES[1], &["--eval-every", "epoch"]].concat(), dir);
    to_servers(&job, 3, dir);
    wait_for("a change of the workers", || ask(&["scale", "3"], dir).ok());
    let output = finish(job);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    counted_twice(dir, false);
    let config = report(dir).config;
    assert_eq!((&*config["nproc-per-node"], &*config["servers"]), ("3", "3"));
    assert_eq!(newest(dir).unwrap().manifest().servers, 3);
}

#[test]
fn a_resumed_job_is_bit_for_bit_the_one_that_was_not_interrupted() {
    is_bit_for_bit_resumed(&["--optimizer", "adam", "--epochs", "2"]);
}

/// Workers' own optimizers start anew; plain SGD has nothing to begin anew with.
#[test]
fn a_resumed_job_goes_on_with_the_moments_of_its_outer_optimizer_bit_for_bit() {
    // With one step between averages no round can end early, as one of a worker that waits for data does; and with one epoch no
    // worker waits for the other's data, in a round that moves the outer optimizer on without it.
    is_bit_for_bit_resumed(&["--sync", "diloco=1", "--optimizer", "sgd", "--epochs", "1"]);
}

fn is_bit_for_bit_resumed(flags: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (whole, cut, resumed) = (path("whole"), path("cut"), path("resumed"));
    let common = [
        "--data",
        "synthetic:4000",
        "--global-batch-size",
        "64",
        "--nproc-per-node",
        "2",
        "--sharding",
        "static",
        "--policy",
        "none",
        "--seed",
        "11",
        "--quiet",
    ];
    let common = [&common[..], flags].concat();
    succeed(&mut program(false, &[&common[..], &["--report-dir", &whole]].concat()));
    let slowly = [
        "--report-dir",
        &cut,
        "--checkpoint-every",
        "10steps",
        "--emulate-speed",
        "2000",
        "--heartbeat",
        "50ms",
    ];
    let job = program(false, &[&common[..], &slowly].concat()).spawn().unwrap();
    wait_for("a checkpoint", || newest(Path::new(&cut)).map(|_| ()));
    kill_whole(job);
    succeed(&mut program(false, &[&common[..], &["--report-dir", &resumed, "--resume", &cut]].concat()));
    let model = |dir: &str| {
        let checkpoint = newest(Path::new(dir)).unwrap();
        let portions: Vec<_> = checkpoint.portions().map(Result::unwrap).collect();
        // The number of steps is that of the worker that wrote the model; where models are averaged, the other may have taken another.
        (checkpoint.manifest().trained.samples, portions)
    };
    assert!(model(&whole) == model(&resumed), "the models differ");
}

/// An average is worth 0.3 s of an emulated network; what is computed takes 4 ms.
const SLOW_NETWORK: &[&str] =
    &["--nproc-per-node", "3", "--emulate-network", "bandwidth=20kB/s", "--algorithm", "ring"];

#[test]
fn a_job_measures_its_first_steps_and_goes_on_in_the_mode_that_suits_it() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let args = ["--report-dir", dir, "--epochs", "2", "--policy", "none", "--heartbeat", "50ms"];
    let choice = ["--sync", "auto=allreduce,local-sgd=8"];
    succeed(&mut program(true, &[&choice, SLOW_NETWORK, &args].concat()));
    counted_twice(folder.path(), true);
    let report = report(folder.path());
    assert_eq!(report.sync, "local-sgd=8");
    let chosen = report.chosen.unwrap();
    assert!(chosen.starts_with("--sync auto: local-sgd=8 ") && chosen.contains("(allreduce "), "{chosen}");
    assert!(report.resumed.unwrap().starts_with("resumed from checkpoint "));
    // One job, with what came before.
    let times: Vec<f64> = report.loss_curve.points().iter().map(|point| point.time_s).collect();
    assert!(
        times.is_sorted()
            && report.loss_curve.points().iter().map(|point| point.samples).sum::<u64>() >= 2 * SAMPLES
    );
    assert!(report.job_completion_time_s >= *times.last().unwrap());
    assert_eq!(report.workers.iter().map(|worker| worker.samples).sum::<u64>(), 2 * SAMPLES);
    assert!(report.workers.iter().all(|worker| worker.restarts == 0));
    assert!(report.shards.is_sorted_by(|a, b| a.from_s <= b.from_s));
}

#[test]
fn a_job_that_may_choose_among_equal_mathematics_only_keeps_them_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let args = ["--report-dir", dir, "--epochs", "2", "--policy", "none", "--heartbeat", "50ms"];
    let often = ["--nproc-per-node", "3", "--emulate-speed", "400", "--control-tick", "50ms"];
    succeed(&mut program(true, &[&["--sync", "auto"], &often[..], &args].concat()));
    counted_twice(folder.path(), false);
    let report = report(folder.path());
    assert_eq!((report.sync.as_str(), report.resumed), ("allreduce", None));
    let chosen = report.chosen.unwrap();
    assert!(
        chosen.starts_with("--sync auto: allreduce ") && chosen.contains("no other one is faster"),
        "{chosen}"
    );
}

#[test]
fn a_resumed_job_knows_its_data_by_the_content_wherever_it_lies() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (dir, data, moved, other) = (path("job"), path("a.tsv"), path("b.tsv"), path("c.tsv"));
    for (path, seed) in [(&data, "1"), (&other, "2")] {
        let mut synth = Command::new(env!("CARGO_BIN_EXE_antdt"));
        synth.args(["data", "synth", "--rows", "2000", "--seed", seed, "--out", path]);
        assert!(synth.stdout(Stdio::null()).status().unwrap().success());
    }
    std::fs::copy(&data, &moved).unwrap();
    // Three labels of as many rows, far from the pieces of a file that are compared without reading it.
    let text = std::fs::read_to_string(&data).unwrap();
    let flipped = text.lines().enumerate().map(|(at, row)| match (at, row.as_bytes()[0]) {
        (100 | 700 | 1500, b'0') => format!("1{}\n", &row[1..]),
        (100 | 700 | 1500, _) => format!("0{}\n", &row[1..]),
        _ => format!("{row}\n"),
    });
    let flipped: String = flipped.collect();
    assert_eq!(flipped.len(), text.len());
    let edited = path("edited.tsv");
    std::fs::write(&edited, flipped).unwrap();
    let cache = path("cache");
    let job = |data: &str, more: &[&str]| {
        let args = ["--data", data, "--cache-dir", &cache, "--global-batch-size", "500", "--quiet"];
        program(false, &[&args[..], more].concat())
    };
    succeed(&mut job(&data, &["--report-dir", &dir]));
    for data in [&other, &edited] {
        let error = fail(&mut job(data, &["--resume", &dir, "--epochs", "2"]));
        assert!(error.contains("the data's fingerprint is "), "{data}: {error}");
    }
    succeed(&mut job(&moved, &["--resume", &dir, "--epochs", "2"]));
}

#[test]
fn settings_not_given_to_a_resumed_job_are_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("job");
    let path = dir.to_str().unwrap();
    let before = ["--sync", "ps-bsp", "--servers", "2", "--nproc-per-node", "3", "--policy", "none"];
    succeed(&mut program(true, &[&before[..], &["--report-dir", path, "--quiet"]].concat()));
    let told = |report: &Report| {
        let settings = ["sync", "nproc-per-node", "servers", "policy", "workload", "optimizer"];
        settings.map(|name| report.config.get(name).cloned().unwrap_or_default())
    };
    // In its folder, and with all settings but one.
    succeed(&mut resume(path, &["--epochs", "2", "--quiet"]));
    assert_eq!(told(&report(&dir)), ["ps-bsp", "3", "2", "none", "counting", "sums"]);
    assert!(parameters(&newest(&dir).unwrap()).iter().all(|count| *count == 2.0));
    // Servers belong to the mode that had them.
    succeed(&mut resume(path, &["--epochs", "3", "--sync", "allreduce", "--quiet"]));
    assert_eq!(told(&report(&dir)), ["allreduce", "3", "0", "none", "counting", "sums"]);
    assert!(parameters(&newest(&dir).unwrap()).iter().all(|count| *count == 3.0));
    let mut show = Command::new(program(true, &[]).get_program());
    let show = show.args(["config", "show", "--origin", "--seed", "5", "--resume", path]).output().unwrap();
    let shown = String::from_utf8_lossy(&show.stdout).into_owned();
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned();
    assert!(line("nproc-per-node = 3").contains("# job resumed from "), "{shown}");
    assert!(line("seed = 5").ends_with("# flag --seed"), "{shown}");
    assert!(line("report-dir = ").contains("# job resumed from "), "{shown}");
}

#[test]
fn a_job_goes_on_from_exactly_the_checkpoint_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, again) = (folder.path().join("job"), folder.path().join("again"));
    let kept = ["--epochs", "3", "--checkpoint-every", "10steps", "--checkpoint-keep", "99", "--quiet"];
    // Slow enough that one checkpoint is complete when the next is due.
    let slowly = ["--emulate-speed", "1000", "--heartbeat", "50ms"];
    let to = ["--report-dir", dir.to_str().unwrap()];
    succeed(&mut program(true, &[MODES[1], &to, &kept, &slowly].concat()));
    let place = dir.join("run/checkpoints");
    let found = Folder::open(&place).unwrap().list().unwrap();
    let oldest = found.last().and_then(|oldest| oldest.manifest.as_ref().ok()).expect("one is kept");
    let done = oldest.trained.samples;
    assert!(found.len() > 2 && done < SAMPLES, "{done} samples in the oldest of {}", found.len());
    let named = place.join(format!("{:020}", oldest.checkpoint.0));
    let named = named.to_str().unwrap();
    // With a folder of its own, and settings as before.
    succeed(&mut resume(named, &["--report-dir", again.to_str().unwrap(), "--quiet"]));
    let gone_back = report(&again);
    let said = format!("resumed from checkpoint {} in ", oldest.checkpoint);
    let counted = format!(": {done} of {} samples are done", 3 * SAMPLES);
    let told = gone_back.resumed.unwrap();
    assert!(told.starts_with(&said) && told.contains(&counted), "{told}");
    assert!(gone_back.samples.is_exact(), "{:?}", gone_back.samples);
    assert!(parameters(&newest(&again).unwrap()).iter().all(|count| *count == 3.0));
    assert_eq!(Folder::open(&place).unwrap().list().unwrap().len(), found.len(), "the others stay");
    // Without one it goes on where it began, above all that are there.
    succeed(&mut resume(named, &["--quiet"]));
    let after = newest(&dir).unwrap();
    assert!(after.manifest().checkpoint > found[0].checkpoint);
    assert!(parameters(&after).iter().all(|count| *count == 3.0));
    // No other stands in for it.
    let torn = Path::new(named).join("ledger.cut");
    std::fs::write(&torn, "").unwrap();
    let error = fail(&mut resume(named, &["--quiet"]));
    assert!(error.starts_with("--resume: ") && error.contains("ledger.cut: it has 0 bytes"), "{error}");
    let nobody = place.join(format!("{:020}", 99_999));
    let error = fail(&mut resume(nobody.to_str().unwrap(), &["--quiet"]));
    assert!(error.contains("has no checkpoint 99999; `antdt model list` shows"), "{error}");
}

#[test]
fn a_worker_may_die_when_the_job_has_long_left_the_checkpoint_that_it_was_resumed_from() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    succeed(&mut program(true, &[MODES[0], &["--report-dir", dir, "--quiet"]].concat()));
    let first = newest(folder.path()).unwrap().manifest().checkpoint;
    let kept = ["--checkpoint-every", "4steps", "--checkpoint-keep", "1", "--epochs", "3", "--quiet"];
    let slowly = ["--emulate-speed", "300", "--heartbeat", "50ms", "--policy", "none"];
    let job = resume(dir, &[&kept[..], &slowly].concat()).spawn().unwrap();
    let is_later = |found: &Checkpoint| found.manifest().checkpoint.0 >= first.0 + 2;
    wait_for("two checkpoints of its own", || newest(folder.path()).filter(is_later));
    let victim = nodes(&job, "worker-1")[0];
    kill_9(victim);
    let output = finish(job);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = report(folder.path());
    let restarts: Vec<u32> = report.workers.iter().map(|worker| worker.restarts).collect();
    assert_eq!(restarts, [0, 1, 0], "its next life came up at once");
    assert!(parameters(&newest(folder.path()).unwrap()).iter().all(|count| *count == 3.0));
}

#[test]
fn a_job_with_a_model_of_another_shape_is_refused_before_it_begins_and_the_report_stays() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("job");
    let data = ["--data", "synthetic:500", "--nproc-per-node", "2", "--sharding", "static", "--quiet"];
    let dir_flag = ["--report-dir", dir.to_str().unwrap()];
    succeed(&mut program(false, &[&data[..], &dir_flag].concat()));
    let before = std::fs::read(dir.join("report.json")).unwrap();
    let file = folder.path().join("other.toml");
    std::fs::write(&file, "[workload.deepfm]\nembedding = 4\n").unwrap();
    let (file, dir_text) = (file.to_str().unwrap(), dir.to_str().unwrap());
    for (args, why) in [
        (["--job", file], " values, trainable) in the checkpoint and "),
        (
            ["--nproc-per-node", "3"],
            "--sharding = static with --nproc-per-node 3: must be as before: static with --nproc-per-node 2",
        ),
    ] {
        let output = finish(
            program(false, &[&["--resume", dir_text, "--epochs", "2"], &args[..]].concat()).spawn().unwrap(),
        );
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.starts_with("error: --resume = ") && error.contains(why), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert_eq!(std::fs::read(dir.join("report.json")).unwrap(), before);
    }
}

#[test]
fn an_unusable_checkpoint_is_refused_in_one_line_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("job");
    let dir = dir.to_str().unwrap();
    succeed(&mut program(true, &["--report-dir", dir, "--epochs", "2", "--quiet"]));
    let place = Path::new(dir).join("run/checkpoints/00000000000000000001");
    let intact: Vec<u8> = std::fs::read(place.join("replica.safetensors")).unwrap();
    for (args, why) in [
        (&["--seed", "8"][..], "the seed is 0 in the checkpoint and 8 in this job; choose the same --seed"),
        (&["--epochs", "1"], "--epochs = 1: must be at least 2: as many have begun"),
        (
            &["--sharding", "static", "--epochs", "3"],
            "--sharding = static with --nproc-per-node 1: must be as before: dynamic",
        ),
    ] {
        let error = fail(&mut program(true, &[&["--resume", dir, "--quiet"], args].concat()));
        assert!(error.starts_with("--resume = ") && error.contains(why), "{error}");
    }
    let other = ["--workload", "deepfm", "--data", "synthetic:1200", "--epochs", "3", "--quiet"];
    let error = fail(&mut program(false, &[&["--resume", dir], &other[..]].concat()));
    assert!(error.contains("the workload is counting in the checkpoint and deepfm in this job"), "{error}");
    let nowhere = folder.path().join("nowhere");
    let error = fail(&mut program(true, &["--resume", nowhere.to_str().unwrap(), "--quiet"]));
    assert!(error.contains("there is no such folder"), "{error}");
    // A torn file: the checkpoint is passed over, and it is said why.
    std::fs::write(place.join("replica.safetensors"), &intact[..intact.len() - 1]).unwrap();
    let error = fail(&mut program(true, &["--resume", dir, "--epochs", "3", "--quiet"]));
    assert!(
        error.contains("there is no whole checkpoint") && error.contains("replica.safetensors"),
        "{error}"
    );
    // A folder that cannot be one.
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = fail(&mut program(true, &["--checkpoint-dir", file.to_str().unwrap(), "--quiet"]));
    assert!(error.starts_with("--checkpoint-dir: "), "{error}");
    // A program of the user's own that brings its own data.
    let error = fail(&mut program(false, &["--checkpoint-dir", dir, "--quiet", "--", "true"]));
    assert!(
        error.starts_with("--checkpoint-dir = ") && error.contains("keep checkpoints of its own"),
        "{error}"
    );
}

#[test]
fn a_folder_of_checkpoints_is_of_one_running_job() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("kept");
    let to = ["--checkpoint-dir", place.to_str().unwrap(), "--quiet"];
    let long = ["--epochs", "3", "--emulate-speed", "20", "--checkpoint-every", "2steps"];
    let first = program(true, &[&to[..], &long].concat()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("a checkpoint", || Folder::open(&place).ok()?.newest().ok()?.checkpoint);
    let error = fail(&mut program(true, &to));
    assert!(error.starts_with("--checkpoint-dir = ") && error.contains("a job that runs keeps"), "{error}");
    let error = fail(program(true, &to).arg("--force"));
    assert!(error.contains("a job that runs keeps"), "{error}");
    // Nor does another one go on in it; with a folder of its own it does.
    let resume = ["--resume", place.to_str().unwrap()];
    assert!(
        fail(&mut program(true, &[&resume[..], &["--quiet"]].concat())).contains("a job that runs keeps")
    );
    kill_whole(first);
    succeed(&mut program(true, &[&resume[..], &["--emulate-speed", "100000", "--quiet"]].concat()));
}

/// What `antdt COMMAND ... DIR` says of a running job; an error of it, in one line.
fn ask(words: &[&str], dir: &Path) -> Result<String, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_antdt")).args(words).arg(dir.join("run")).output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

#[test]
fn worker_that_an_operator_names_is_killed_and_started_again_and_costs_no_sample() {
    let folder = tempfile::tempdir().unwrap();
    let to = ["--report-dir", folder.path().to_str().unwrap(), "--epochs", "2", "--policy", "none"];
    let mode = ["--sync", "allreduce", "--nproc-per-node", "2", "--emulate-speed", "120"];
    let job = program(true, &[&mode[..], &to].concat()).spawn().unwrap();
    let is_said = |words: &str| {
        wait_for(words, || ask(&["status"], folder.path()).ok().filter(|text| text.contains(words)));
    };
    is_said("2 of 2 workers take part");
    let error = ask(&["restart", "worker-7"], folder.path()).unwrap_err();
    assert!(error.contains("worker-7") && error.trim_end().lines().count() == 1, "{error}");
    assert!(ask(&["restart", "worker-1"], folder.path()).unwrap().contains("started again"));
    is_said("worker-1, life 1: running");
    let output = finish(job);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    counted_twice(folder.path(), false);
}

#[test]
fn a_job_is_scaled_up_and_down_in_any_mode_while_those_that_stay_keep_their_processes() {
    for mode in MODES {
        let folder = tempfile::tempdir().unwrap();
        let to = ["--report-dir", folder.path().to_str().unwrap(), "--epochs", "2", "--policy", "none"];
        // Whatever was said above; the last one counts.
        let slowly = ["--nproc-per-node", "2", "--emulate-speed", "120", "--heartbeat", "50ms"];
        let mode = mode
            .iter()
            .position(|word| *word == "--nproc-per-node")
            .map(|at| [&mode[..at], &mode[at + 2..]].concat());
        let mode = mode.unwrap();
        let job = program(true, &[&mode[..], &to, &slowly].concat()).spawn().unwrap();
        let take_part = |workers: &str| {
            wait_for(workers, || ask(&["status"], folder.path()).ok().filter(|text| text.contains(workers)));
        };
        take_part("2 of 2 workers take part");
        let began: Vec<u32> = children(job.id());
        let said = ask(&["scale", "4"], folder.path()).unwrap();
        assert!(said.contains("from 2 to 4 workers"), "{said}");
        take_part("4 of 4 workers take part");
        assert!(began.iter().all(|pid| alive(*pid)), "{mode:?}: nobody was started again");

        let error = ask(&["scale", "25"], folder.path()).unwrap_err();
        assert!(error.contains("--global-batch-size 24") && error.trim_end().lines().count() == 1, "{error}");
        ask(&["scale", "1"], folder.path()).unwrap();
        take_part("1 of 1 workers take part");
        // A worker that has left the job may still be about to exit.
        let left = || began.iter().filter(|pid| alive(**pid)).count();
        wait_for("the end of one worker of those that began", || (left() == began.len() - 1).then_some(()));
        // So that it ends soon; workers that come too late find nothing to do.
        ask(&["scale", "4"], folder.path()).unwrap();

        let output = finish(job);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report = report(folder.path());
        assert!(report.samples.is_exact() && report.samples.committed == 2 * SAMPLES, "{:?}", report.samples);
        let by_worker: u64 = report.workers.iter().map(|worker| worker.samples).sum();
        assert_eq!(by_worker, 2 * SAMPLES, "{mode:?}: those that were added have theirs");
        let counted = parameters(&newest(folder.path()).unwrap());
        let exact = !averages(&mode);
        let fits = |count: &f32| if exact { *count == 2.0 } else { *count > 0.0 && *count <= 2.0 };
        assert!(counted.iter().all(fits), "{mode:?}: {counted:?}");
    }
}

#[test]
fn a_worker_that_joins_gets_its_model_from_all_that_have_the_same_one() {
    let folder = tempfile::tempdir().unwrap();
    let to =
        ["--report-dir", folder.path().to_str().unwrap(), "--log", "antdt=debug", "--log-format", "json"];
    let job = ["--sync", "allreduce", "--nproc-per-node", "3", "--epochs", "2", "--policy", "none"];
    let log = folder.path().join("log");
    let mut job = program(true, &[&job[..], &to, &["--emulate-speed", "120"]].concat());
    let job = job.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let takes_part = |workers: &str| {
        wait_for(workers, || ask(&["status"], folder.path()).ok().filter(|text| text.contains(workers)));
    };
    takes_part("3 of 3 workers take part");
    ask(&["scale", "4"], folder.path()).unwrap();
    takes_part("4 of 4 workers take part");
    let output = finish(job);
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(output.status.success(), "{said}");
    let said: Vec<&str> = said.lines().filter(|line| line.contains("the model is here")).collect();
    assert!(!said.is_empty() && said.iter().all(|line| line.contains("\"givers\":3,")), "{said:?}");
    counted(folder.path(), 2, false);
}

#[test]
fn a_job_takes_a_checkpoint_when_the_user_wants_one() {
    for mode in [MODES[0], MODES[2]] {
        let folder = tempfile::tempdir().unwrap();
        let job = begun(mode, false, folder.path());
        assert!(newest(folder.path()).is_none());
        let said = ask(&["checkpoint"], folder.path()).unwrap();
        let kept = newest(folder.path()).unwrap();
        assert!(said.contains(": checkpoint 1 is complete: ") && said.lines().count() == 1, "{said}");
        let in_model: f32 = parameters(&kept).iter().sum();
        assert!(in_model > 0.0 && in_model == kept.manifest().ledger.acked as f32);
        let output = finish(job);
        assert!(output.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
        counted_twice(folder.path(), false);
        let error = ask(&["checkpoint"], folder.path()).unwrap_err();
        assert!(error.contains("no job runs there") && error.trim_end().lines().count() == 1, "{error}");
    }
}

/// The processes of a job's nodes whose name begins so.
fn nodes(job: &Child, kind: &str) -> Vec<u32> {
    let is_one = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| variable.starts_with(format!("ANTDT_NODE={kind}").as_bytes()))
    };
    children(job.id()).into_iter().filter(is_one).collect()
}

fn kill_9(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// Every sample is in the newest checkpoint's model once for each of two epochs, by the model's own count.
fn counted_twice(dir: &Path, average: bool) {
    counted(dir, 2, average);
}

/// The same for so many epochs.
fn counted(dir: &Path, epochs: u8, average: bool) {
    let (report, due) = (report(dir), f32::from(epochs));
    assert_eq!(report.outcome, Outcome::Completed, "{:?}", report.events);
    let committed = u64::from(epochs) * SAMPLES;
    assert!(report.samples.is_exact() && report.samples.committed == committed, "{:?}", report.samples);
    let counted = parameters(&newest(dir).unwrap());
    let fits = |count: &f32| if average { *count > 0.0 && *count <= due } else { *count == due };
    assert!(counted.iter().all(fits), "{counted:?}");
}

/// A step with the gradients of all four workers has 24 samples, one without the slow worker's 18.
#[test]
fn an_all_reduce_does_not_wait_for_its_backup_and_a_worker_that_is_killed_costs_no_sample() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = slowly(folder.path());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mode = ["--sync", "allreduce=1", "--nproc-per-node", "4", "--straggler", "worker=1,slow=12"];
    let job = program(true, &[&mode[..], &arguments].concat()).spawn().unwrap();
    wait_for("two checkpoints", || newest(folder.path()).filter(|it| it.manifest().checkpoint.0 >= 2));
    kill_9(nodes(&job, "worker-2")[0]);
    let output = finish(job);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    counted_twice(folder.path(), false);
    assert_eq!(rollbacks(folder.path()), Vec::<String>::new(), "the others have the model");
    let report = report(folder.path());
    let restarts: Vec<u32> = report.workers.iter().map(|worker| worker.restarts).collect();
    assert_eq!(restarts, [0, 0, 1, 0]);
    let samples: Vec<u64> = report.workers.iter().map(|worker| worker.samples).collect();
    assert!(
        samples[1] * 3 < samples[0] && samples[1] * 3 < samples[3],
        "the slow one is dropped: {samples:?}"
    );
    assert!(report.steps > 115, "{} steps, where 100 have all samples", report.steps);
}

/// What the report says of rollbacks.
fn rollbacks(dir: &Path) -> Vec<String> {
    let events = report(dir).events.into_iter();
    events.filter(|event| event.kind == "rollback").map(|event| event.text).collect()
}

/// A job of two epochs that takes long enough to be hurt, once it has trained for a while: two checkpoints, or some steps if it
/// takes none.
fn begun(mode: &[&str], checkpoints: bool, dir: &Path) -> Child {
    let to = ["--report-dir", dir.to_str().unwrap(), "--epochs", "2", "--policy", "none"];
    let slowly = ["--emulate-speed", "300", "--heartbeat", "50ms"];
    let every = if checkpoints { "4steps" } else { "end" };
    let job = program(true, &[mode, &to, &slowly, &["--checkpoint-every", every]].concat()).spawn().unwrap();
    if checkpoints {
        wait_for("two checkpoints", || newest(dir).filter(|found| found.manifest().checkpoint.0 >= 2));
    } else {
        wait_for("steps", || {
            ask(&["status"], dir).ok().filter(|text| text.contains("take part") && !text.contains(" 0 steps"))
        });
    }
    job
}

#[test]
fn a_server_that_is_killed_sets_the_job_back_and_every_sample_is_in_the_model_once_for_each_epoch() {
    let with_servers = MODES.into_iter().filter(|mode| mode.contains(&"--servers"));
    for (mode, checkpoints) in with_servers.flat_map(|mode| [(mode, true), (mode, false)]) {
        let folder = tempfile::tempdir().unwrap();
        let job = begun(mode, checkpoints, folder.path());
        let workers = nodes(&job, "worker-");
        kill_9(nodes(&job, "server-1")[0]);
        wait_for("servers that start again", || {
            let again = nodes(&job, "server-");
            (again.len() == mode[3].parse::<usize>().unwrap()).then_some(())
        });
        assert!(workers.iter().all(|worker| alive(*worker)), "{mode:?}: a worker was started again");
        let output = finish(job);
        assert!(output.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
        counted_twice(folder.path(), false);
        let said = rollbacks(folder.path());
        let to = if checkpoints { "went back to checkpoint " } else { "went back to the start of the job" };
        assert!(said.len() == 2 && said[0].contains("server-1 ended") && said[1].starts_with(to), "{said:?}");
        assert!(report(folder.path()).workers.iter().all(|worker| worker.restarts == 0));
    }
}

/// A slow counting job of two epochs, once it trains.
fn slow_job(mode: &[&str], dir: &Path) -> Child {
    let to = ["--report-dir", dir.to_str().unwrap(), "--epochs", "2", "--policy", "none"];
    let slowly = ["--emulate-speed", "100", "--heartbeat", "50ms"];
    let job = program(true, &[mode, &to, &slowly].concat()).spawn().unwrap();
    wait_for("steps", || {
        ask(&["status"], dir).ok().filter(|text| text.contains("take part") && !text.contains(" 0 steps"))
    });
    job
}

/// Asks until the job can have so many servers, and waits until they have their processes.
fn to_servers(job: &Child, servers: usize, dir: &Path) -> String {
    let words = ["scale", "--servers", &servers.to_string()];
    let said = wait_for("a change of the servers", || ask(&words, dir).ok());
    wait_for("so many servers", || (nodes(job, "server-").len() == servers).then_some(()));
    said
}

#[test]
fn servers_hand_over_to_more_of_them_and_to_fewer_and_no_step_is_undone() {
    for mode in MODES.into_iter().filter(|mode| mode.contains(&"--servers")) {
        let folder = tempfile::tempdir().unwrap();
        let job = slow_job(mode, folder.path());
        let before: usize = mode[3].parse().unwrap();
        let (workers, first) = (nodes(&job, "worker-"), nodes(&job, "server-"));
        let said = to_servers(&job, before + 2, folder.path());
        assert!(said.contains(&format!("from {before} to {} servers", before + 2)), "{said}");
        // One that is taken of so many has as many parts.
        let said = wait_for("a checkpoint", || ask(&["checkpoint"], folder.path()).ok());
        let manifest = newest(folder.path()).unwrap().manifest().clone();
        let parts = manifest.files.iter().filter(|file| file.name.starts_with("server-")).count();
        assert_eq!((manifest.servers as usize, parts), (before + 2, before + 2), "{mode:?}: {said}");
        let said = to_servers(&job, 1, folder.path());
        assert!(said.contains(&format!("from {} to 1 servers", before + 2)), "{said}");
        assert!(first.iter().all(|server| !alive(*server)), "{mode:?}: all servers are others");
        assert!(workers.iter().all(|worker| alive(*worker)), "{mode:?}: a worker was started again");

        let output = finish(job);
        assert!(output.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
        counted_twice(folder.path(), false);
        assert_eq!(newest(folder.path()).unwrap().manifest().servers, 1);
        let said = rollbacks(folder.path());
        let undone = |text: &String| {
            text.starts_with("went back to checkpoint ") && text.contains(" 0 are trained again")
        };
        assert!(
            said.len() == 4
                && said[0].contains("servers, as the user wants")
                && undone(&said[1])
                && undone(&said[3]),
            "{mode:?}: {said:?}"
        );
        let report = report(folder.path());
        assert!(report.workers.iter().all(|worker| worker.restarts == 0));
        assert_eq!(report.actions.iter().filter(|action| action.kind == "SCALE").count(), 2);
    }
}

/// Runs a job of eight epochs of which server 1 is slow, with this chance that the policy gives to a restart. Returns the lengths of the
/// servers' parts in its last checkpoint.
fn with_a_slow_server(straggler: &str, restart_cures: &str, dir: &Path) -> Vec<usize> {
    // A label after a fifth of the long window: 4 s of reports. What remains of the job then is longer than a hand-over pays in.
    let file = dir.join("job.toml");
    let settings =
        format!("[policy.nd]\nrestart-cures = {restart_cures}\n[pace-rule.ratio]\nslow-fraction = 0.2\n");
    std::fs::write(&file, settings).unwrap();
    let (to, settings) = (dir.to_str().unwrap(), file.to_str().unwrap());
    let job = ["--job", settings, "--report-dir", to, "--epochs", "8", "--policy", "nd"];
    let pace = ["--emulate-speed", "300", "--heartbeat", "50ms", "--checkpoint-every", "6steps"];
    let slow = ["--straggler", straggler];
    let mut job = program(true, &[MODES[1], &job, &pace, &slow].concat()).spawn().unwrap();
    let workers = wait_for("both workers", || Some(nodes(&job, "worker-")).filter(|found| found.len() == 2));
    wait_for("servers that follow others", || {
        assert!(job.try_wait().unwrap().is_none(), "the job ended without: {:?}", report(dir).events);
        let begun = |action: &str| ask(&["status"], dir).ok().filter(|text| text.contains(action));
        begun("REPARTITION").or_else(|| begun("KILL_RESTART"))
    });
    assert!(workers.iter().all(|worker| alive(*worker)), "a worker was started again");
    let output = finish(job);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    counted(dir, 8, false);
    let report = report(dir);
    assert!(report.workers.iter().all(|worker| worker.restarts == 0));
    let said = rollbacks(dir);
    assert!(said.iter().skip(1).step_by(2).all(|text| text.contains(" 0 are trained again")), "{said:?}");
    let parts = newest(dir).unwrap();
    parts.portions().map(|portion| portion.unwrap().dense.len()).collect()
}

/// What a report says of actions on servers.
fn on_servers(dir: &Path) -> Vec<String> {
    let actions = report(dir).actions.into_iter();
    let of_servers = actions.filter(|action| action.target.starts_with("server-"));
    of_servers.map(|action| format!("{} {}", action.kind, action.target)).collect()
}

#[test]
fn a_slow_server_gets_a_smaller_share_and_every_sample_is_in_the_model_once() {
    let folder = tempfile::tempdir().unwrap();
    let lens = with_a_slow_server("server=1,slow=1000", "0", folder.path());
    assert_eq!(on_servers(folder.path()), ["REPARTITION server-1"]);
    assert_eq!((lens.len(), lens.iter().sum::<usize>()), (2, SAMPLES as usize));
    assert!(lens[1] * 8 < lens[0], "{lens:?}");
    let said = rollbacks(folder.path());
    assert!(said[0].contains("weights of the servers change from equal to 64,"), "{said:?}");
}

#[test]
fn a_slow_server_is_restarted_by_the_policy_and_every_sample_is_in_the_model_once() {
    let folder = tempfile::tempdir().unwrap();
    let lens = with_a_slow_server("server=1,slow=1000,restart=cures", "1", folder.path());
    assert_eq!(on_servers(folder.path()), ["KILL_RESTART server-1"]);
    assert_eq!(lens, [SAMPLES as usize / 2; 2]);
}

#[test]
fn a_job_whose_servers_have_changed_is_taken_over_with_those_that_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = slow_job(MODES[1], folder.path());
    let workers = nodes(&job, "worker-");
    to_servers(&job, 3, folder.path());
    wait_for("a checkpoint", || ask(&["checkpoint"], folder.path()).ok());
    job.kill().unwrap();
    job.wait().unwrap();
    let job = resume(folder.path().to_str().unwrap(), &[]).spawn().unwrap();
    // A job that is taken over changes its servers as any other.
    let said = to_servers(&job, 1, folder.path());
    assert!(said.contains("from 3 to 1 servers"), "{said}");
    assert!(workers.iter().all(|worker| alive(*worker)), "workers keep their processes");
    let output = finish(job);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    counted_twice(folder.path(), false);
}

#[test]
fn a_number_of_servers_that_a_job_cannot_have_is_refused_in_one_line_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let job = slow_job(MODES[1], folder.path());
    let servers = nodes(&job, "server-");
    for (words, why) in [
        (
            ["scale", "--servers", "5000"],
            "does not change to 5000 servers: --servers = 5000: must be at most 4096",
        ),
        (["scale", "--servers", "0"], "a number of servers, at least 1"),
    ] {
        let error = ask(&words, folder.path()).unwrap_err();
        assert!(error.contains(why) && error.trim_end().lines().count() == 1, "{error}");
    }
    let said = ask(&["scale", "--servers", "2"], folder.path()).unwrap();
    assert!(said.contains("has 2 servers already"), "{said}");
    assert_eq!(nodes(&job, "server-"), servers);
    ask(&["stop"], folder.path()).unwrap();
    finish(job);

    let folder = tempfile::tempdir().unwrap();
    let job = slow_job(MODES[0], folder.path());
    let error = ask(&["scale", "--servers", "2"], folder.path()).unwrap_err();
    assert!(error.contains("choose --sync ps-bsp") && error.trim_end().lines().count() == 1, "{error}");
    ask(&["stop"], folder.path()).unwrap();
    finish(job);
}

#[test]
fn workers_that_are_all_killed_go_on_from_the_newest_checkpoint_in_the_same_run() {
    let groups = MODES.into_iter().filter(|mode| !mode.contains(&"--servers"));
    for (mode, checkpoints) in groups.flat_map(|mode| [(mode, true), (mode, false)]) {
        let folder = tempfile::tempdir().unwrap();
        let job = begun(mode, checkpoints, folder.path());
        for worker in nodes(&job, "worker-") {
            kill_9(worker);
        }
        let output = finish(job);
        assert!(output.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
        counted_twice(folder.path(), averages(mode));
        let said = rollbacks(folder.path());
        let to = if checkpoints { "went back to checkpoint " } else { "went back to the start of the job" };
        assert!(
            said.len() == 2 && said[0].contains("all workers were lost") && said[1].starts_with(to),
            "{said:?}"
        );
    }
}

#[test]
fn workers_that_are_all_killed_find_the_model_on_the_servers_and_nothing_is_set_back() {
    for mode in [MODES[1], MODES[2], MODES[4], MODES[5]] {
        let folder = tempfile::tempdir().unwrap();
        let job = begun(mode, true, folder.path());
        let (workers, servers) = (nodes(&job, "worker-"), nodes(&job, "server-"));
        for worker in &workers {
            kill_9(*worker);
        }
        wait_for("other workers", || {
            let others = nodes(&job, "worker-");
            (others.len() == workers.len() && others.iter().all(|it| !workers.contains(it))).then_some(())
        });
        assert!(servers.iter().all(|server| alive(*server)), "{mode:?}: a server was started again");
        let output = finish(job);
        assert!(output.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
        counted_twice(folder.path(), false);
        assert_eq!(rollbacks(folder.path()), [""; 0], "{mode:?}");
    }
}

/// Arguments of a counting job of two epochs with so fast workers.
fn slowly(dir: &Path) -> Vec<String> {
    let to = ["--report-dir", dir.to_str().unwrap(), "--epochs", "2", "--policy", "none"];
    let pace = ["--emulate-speed", "200", "--heartbeat", "50ms", "--checkpoint-every", "4steps"];
    to.into_iter().chain(pace).map(str::to_owned).collect()
}

#[test]
fn a_worker_whose_training_thread_hangs_is_started_again_and_the_count_is_exact() {
    for mode in MODES {
        let folder = tempfile::tempdir().unwrap();
        let arguments = slowly(folder.path());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        // The emulated worker sleeps in the middle of its batch for thirty years, and its heartbeats go on.
        let hang = ["--straggler", "worker=1,slow=1e9,from=1500ms,restart=cures", "--hang-limit", "2s"];
        let job = program(true, &[mode, &arguments, &hang].concat()).spawn().unwrap();
        let survivor = wait_for("a worker", || nodes(&job, "worker-0").first().copied());
        let output = finish(job);
        assert!(output.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(!alive(survivor));
        counted_twice(folder.path(), averages(mode));
        let report = report(folder.path());
        let told = |event: &antdt::report::EventEntry| event.text.contains("worker-1#0 hangs while training");
        assert!(report.events.iter().any(told), "{mode:?}: {:?}", report.events);
        for (worker, entry) in report.workers.iter().enumerate() {
            assert_eq!(entry.restarts, u32::from(worker == 1), "{mode:?}: worker {worker}");
        }
    }
}

#[test]
fn a_worker_that_gets_sigterm_hands_its_work_over_and_another_life_follows() {
    for mode in MODES {
        let folder = tempfile::tempdir().unwrap();
        let job = begun(mode, true, folder.path());
        let (others, victim) = (nodes(&job, "worker-0"), nodes(&job, "worker-1")[0]);
        assert!(Command::new("kill").args(["-TERM", &victim.to_string()]).status().unwrap().success());
        wait_for("its end", || (!alive(victim)).then_some(()));
        let output = finish(job);
        assert!(output.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
        counted_twice(folder.path(), averages(mode));
        let report = report(folder.path());
        let texts: Vec<&str> = report.events.iter().map(|event| event.text.as_str()).collect();
        let told = ["worker-1#0 is told to leave by its platform", "worker-1#0 drained"];
        assert!(told.iter().all(|text| texts.contains(text)), "{mode:?}: {texts:?}");
        assert!(!report.actions.iter().any(|action| action.kind == "RESTART"), "it is no failure");
        assert_eq!(report.workers[0].restarts, 0, "{others:?}");
    }
}

#[test]
fn a_killed_worker_takes_at_most_its_last_step_with_it_and_its_samples_go_to_others() {
    for mode in [MODES[6], MODES[7], MODES[8], MODES[9], MODES[10], MODES[11]] {
        let folder = tempfile::tempdir().unwrap();
        let job = begun(mode, true, folder.path());
        let (others, victim) = (nodes(&job, "worker-0"), nodes(&job, "worker-1")[0]);
        kill_9(victim);
        let next =
            wait_for("its next life", || nodes(&job, "worker-1").into_iter().find(|pid| *pid != victim));
        assert!(others.iter().all(|pid| alive(*pid)) && alive(next), "{mode:?}");
        let output = finish(job);
        assert!(output.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
        counted_twice(folder.path(), true);
        let restarts: Vec<u32> = report(folder.path()).workers.iter().map(|worker| worker.restarts).collect();
        assert_eq!(restarts.iter().sum::<u32>(), restarts[1], "{mode:?}: {restarts:?}");
        assert!(rollbacks(folder.path()).is_empty(), "{mode:?}: the others have the model");
    }
}

/// Without deaths nothing of a sample is lost in the averages: the shares of all workers' models add up to the count.
#[test]
fn the_mean_of_all_models_has_the_same_share_of_every_sample() {
    let exponential = ["--sync", "d-psgd=exp", "--nproc-per-node", "6"];
    for mode in [MODES[6], MODES[7], MODES[8], MODES[9], MODES[11], &exponential[..]] {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_str().unwrap();
        let every =
            ["--report-dir", dir, "--epochs", "2", "--policy", "none", "--checkpoint-every", "5steps"];
        succeed(&mut program(true, &[mode, &every].concat()));
        counted_twice(folder.path(), true);
        let workers: f32 = mode[3].parse().unwrap();
        let counted = parameters(&newest(folder.path()).unwrap());
        let off = counted.iter().map(|share| (share * workers - 2.0).abs()).fold(0.0, f32::max);
        assert!(off < 1e-5, "{mode:?}: off by {off}");
    }
}

#[test]
fn a_server_that_gets_sigterm_hands_over_and_no_step_is_undone() {
    for mode in [MODES[1], MODES[2]] {
        let folder = tempfile::tempdir().unwrap();
        let job = begun(mode, true, folder.path());
        let victim = nodes(&job, "server-1")[0];
        assert!(Command::new("kill").args(["-TERM", &victim.to_string()]).status().unwrap().success());
        wait_for("its end", || (!alive(victim)).then_some(()));
        let output = finish(job);
        assert!(output.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
        counted_twice(folder.path(), false);
        let said = rollbacks(folder.path());
        assert!(said.len() == 2 && said[0].starts_with("server-1 goes, as its platform says"), "{said:?}");
        assert!(
            said[1].starts_with("went back to checkpoint ") && said[1].contains(" 0 are trained again"),
            "{said:?}"
        );
        // Its end was ordered, and counts towards no limit.
        assert!(report(folder.path()).actions.iter().all(|action| action.kind != "RESTART"));
    }
}

#[test]
fn a_worker_that_is_stopped_is_missed_soon_and_started_again_and_the_count_is_exact() {
    for mode in [
        MODES[0], MODES[1], MODES[2], MODES[3], MODES[4], MODES[6], MODES[7], MODES[8], MODES[9], MODES[10],
        MODES[11],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let job = begun(mode, true, folder.path());
        let victim = nodes(&job, "worker-1")[0];
        assert!(Command::new("kill").args(["-STOP", &victim.to_string()]).status().unwrap().success());
        let output = finish(job);
        assert!(output.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
        counted_twice(folder.path(), averages(mode));
        let report = report(folder.path());
        let told = |event: &antdt::report::EventEntry| event.text.contains("worker-1#0 fell silent");
        assert!(report.events.iter().any(told), "{mode:?}: {:?}", report.events);
        assert_eq!(report.workers[0].restarts, 0);
    }
}

/// Devices of two workers that take few samples at once, the second a quarter as fast as the first. A worker beyond them, if there
/// is one, takes all of its batch.
const DEVICES: [&str; 4] = [
    "--device",
    "class=fast,worker=0,speed=400,fixed=10ms,batch-max=5",
    "--device",
    "class=slow,worker=1,speed=100,fixed=10ms,batch-max=3",
];

#[test]
fn batches_in_micro_batches_are_counted_once_when_a_worker_dies_in_the_middle() {
    for mode in MODES.into_iter().filter(|mode| !averages(mode)) {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_str().unwrap();
        let common = ["--report-dir", dir, "--policy", "dd", "--epochs", "2", "--heartbeat", "50ms"];
        let often = ["--checkpoint-every", "6steps", "--emulate-speed", "400", "--control-tick", "50ms"];
        let job = program(true, &[mode, &common, &DEVICES, &often].concat()).spawn().unwrap();
        let reaches = |at: u64| {
            wait_for("a checkpoint", || newest(folder.path()).filter(|it| it.manifest().checkpoint.0 >= at))
        };
        reaches(1);
        for worker in nodes(&job, "worker-1") {
            kill_9(worker);
        }
        reaches(3);
        kill_whole(job);
        let kept = newest(folder.path()).unwrap();
        let trained = kept.manifest().ledger.acked;
        let in_model: f32 = parameters(&kept).iter().sum();
        assert_eq!(in_model, trained as f32, "{mode:?}");
        succeed(&mut program(true, &[mode, &common, &DEVICES, &["--resume", dir]].concat()));
        let report = report(folder.path());
        assert!(report.samples.is_exact() && report.samples.committed == 2 * SAMPLES, "{:?}", report.samples);
        let counted = parameters(&newest(folder.path()).unwrap());
        assert!(counted.iter().all(|count| *count == 2.0), "{counted:?}");
        let said = |what: &str| report.actions.iter().any(|action| action.reason.contains(what));
        // Where each worker keeps its own pace, the policy has nothing to balance.
        let is_in_step = !mode.contains(&"ps-asp") && !mode.contains(&"ps-ssp=1");
        assert_eq!(is_in_step, said("measuring") && said("slow: "), "{mode:?}: {:?}", report.actions);
    }
}

/// DeepFM on rows that are drawn, of which a fifth are held out.
const HELD_OUT: &[&str] = &[
    "--eval-fraction",
    "0.2",
    "--global-batch-size",
    "50",
    "--policy",
    "none",
    "--sharding",
    "static",
    "--nproc-per-node",
    "2",
];

/// The epochs after which the model was evaluated.
fn evaluated(report: &Report) -> Vec<u32> {
    report.evaluations.iter().map(|evaluation| evaluation.epoch).collect()
}

#[test]
fn a_job_that_is_evaluated_now_and_then_trains_bit_for_bit_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for mode in [&["--sync", "allreduce"][..], &["--sync", "ps-bsp", "--servers", "2"]] {
        let trained = |name: &str, args: &[&str]| {
            let dir = folder.path().join(format!("{name}-{}", mode[1]));
            let place = [
                "--data",
                "synthetic:1500",
                "--epochs",
                "5",
                "--quiet",
                "--report-dir",
                dir.to_str().unwrap(),
            ];
            succeed(&mut program(false, &[HELD_OUT, mode, &place, args].concat()));
            (report(&dir), parameters(&newest(&dir).unwrap()))
        };
        let (plain, model) = trained("plain", &[]);
        let (report, same) = trained("evaluated", &["--eval-every", "2"]);
        assert_eq!((evaluated(&report), evaluated(&plain)), (vec![2, 4, 5], vec![]));
        assert!(model.iter().zip(&same).all(|(a, b)| a.to_bits() == b.to_bits()), "{mode:?}");
        assert!(report.samples.is_exact() && report.samples.committed == plain.samples.committed);
        assert_eq!(report.final_quality, plain.final_quality);
        let last = report.evaluations.last().unwrap();
        assert_eq!(last.metrics, report.final_quality.metrics);
        assert!(last.metrics.contains_key("auc") && last.samples > 200, "{last:?}");
        assert_eq!(last.checkpoint, report.checkpoint.map(|checkpoint| checkpoint.id));
        assert_eq!(report.workers.iter().map(|worker| worker.samples).sum::<u64>(), report.samples.committed);
        assert_eq!((report.stopped_early, report.outcome), (None, Outcome::Completed));
    }
}

#[test]
fn a_job_that_is_evaluated_after_an_epoch_counts_every_sample_in_any_mode() {
    for mode in MODES {
        let folder = tempfile::tempdir().unwrap();
        let args =
            ["--report-dir", folder.path().to_str().unwrap(), "--epochs", "2", "--eval-every", "epoch"];
        succeed(&mut program(true, &[mode, &args].concat()));
        counted_twice(folder.path(), averages(mode));
    }
}

#[test]
fn a_job_ends_when_its_evaluations_no_longer_improve_and_knows_them_when_it_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    // A rate with which the model learns its 400 rows by heart.
    let hasty = ["--data", "synthetic:500", "--weight-decay", "0", "--learning-rate", "0.5"];
    let early = ["--eval-every", "epoch", "--early-stopping", "2:auc", "--report-dir", dir, "--quiet"];
    succeed(&mut program(false, &[HELD_OUT, &hasty, &["--epochs", "40"], &early].concat()));
    let first = report(folder.path());
    let epochs = u32::try_from(first.evaluations.len()).unwrap();
    assert_eq!(evaluated(&first), (1..=epochs).collect::<Vec<_>>());
    assert!((3..40).contains(&epochs), "{:?}", first.evaluations);
    assert!(first.samples.is_exact() && first.outcome == Outcome::Completed, "{:?}", first.outcome);
    let why = first.stopped_early.unwrap();
    let best = epochs - 2;
    let expected =
        format!("--early-stopping 2:auc: ended after {epochs} epochs; auc was best after epoch {best}, ");
    assert!(why.starts_with(&expected), "{why}");
    let auc = |epoch: u32| first.evaluations[epoch as usize - 1].metrics["auc"];
    assert!((1..=epochs).all(|epoch| auc(epoch) <= auc(best)));

    let error = fail(&mut program(false, &["--resume", dir, "--quiet"]));
    assert!(error.contains("nothing is left to train: --early-stopping 2:auc: ended after"), "{error}");
    let more = ["--resume", dir, "--quiet", "--early-stopping", "30:auc", "--checkpoint-keep", "31"];
    let until = (epochs + 1).to_string();
    succeed(&mut program(false, &[&more[..], &["--epochs", &until]].concat()));
    let second = report(folder.path());
    assert_eq!(evaluated(&second), (1..=epochs + 1).collect::<Vec<_>>());
    assert_eq!(second.evaluations[..epochs as usize], first.evaluations);
}

#[test]
fn a_metric_that_the_model_does_not_have_ends_the_job_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let early = ["--eval-every", "epoch", "--early-stopping", "2:auk", "--report-dir", dir, "--quiet"];
    let error = fail(&mut program(
        false,
        &[HELD_OUT, &["--data", "synthetic:500", "--epochs", "3"], &early].concat(),
    ));
    let expected =
        "--early-stopping = 2:auk: must name a metric by which the model is judged; it has auc, loss";
    assert!(error.starts_with(expected), "{error}");
}
