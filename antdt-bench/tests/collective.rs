//! Ranks as the benchmark `collective` starts them: processes that take orders.

use std::path::Path;

use antdt_bench::collective::crew::Crew;
use antdt_bench::collective::order::{Done, Failed, Medium, Prepared, Times, slowest};

fn ours(world: u32, folder: &Path) -> Crew {
    Crew::ours(Path::new(env!("CARGO_BIN_EXE_antdt-bench")), Medium::Tcp, world, folder)
        .expect("ranks on loopback find each other")
}

/// Time on the cores that a process has had, in ticks of the system.
fn ticks(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    // The name, in brackets, may hold blanks; times of user and system are 12th and 13th after it.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number of ticks")).sum()
}

#[test]
fn two_ranks_reduce_eight_bytes_and_say_how_long_it_took() {
    let folder = tempfile::tempdir().unwrap();
    let mut crew = ours(2, folder.path());
    let prepared: Vec<Prepared> = crew.order("prepare heap 8").unwrap();
    assert!(prepared.iter().all(|rank| rank.peak >= rank.before && rank.before > 0));
    let ranks: Vec<Times> = crew.order("time heap 10 3 1").unwrap();
    let times = slowest(&ranks);
    assert!(times.len() == 3 && times.iter().all(|seconds| *seconds > 0.0));
    assert!(ranks.iter().all(|rank| rank.cpu_s > 0.0));
}

#[test]
fn what_would_measure_nothing_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for (args, says) in [
        (&["collective", "--only", "nonsense"][..], "--only = nonsense: no row begins so"),
        (&["shard", "--only", "nonsense"], "--only = nonsense: here it is `recording`"),
        (&["sim", "--only", "kernel"], "--only is for `collective` and `shard`"),
        (&["job", "--peer", "gloo"], "--peer is for `collective`"),
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_antdt-bench"));
        let output = command.args(args).arg("--report-dir").arg(folder.path()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(says), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn a_rank_without_orders_takes_no_core() {
    let folder = tempfile::tempdir().unwrap();
    let (mut crew, mut busy) = (ours(2, folder.path()), ours(2, folder.path()));
    let _: Vec<Prepared> = crew.order("prepare heap 4096").unwrap();
    let _: Vec<Prepared> = busy.order("prepare heap 4194304").unwrap();
    let idle: u64 = crew.pids().into_iter().map(ticks).sum();
    // Others are at work until theirs are many more than the few that a wake-up would cost.
    let working = |busy: &Crew| busy.pids().into_iter().map(ticks).sum::<u64>();
    let begun = working(&busy);
    while working(&busy) < begun + 20 {
        let _: Vec<Times> = busy.order("time heap 1 10 0").unwrap();
    }
    assert_eq!(crew.pids().into_iter().map(ticks).sum::<u64>(), idle);
    let ranks: Vec<Times> = crew.order("time heap 1 1 0").unwrap();
    assert!(ranks.iter().all(|rank| rank.idle_cpu_s < 0.02), "{ranks:?}");
}

#[test]
fn ranks_that_share_memory_reduce_buffers_of_either_kind() {
    let folder = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_antdt-bench"));
    let mut crew = Crew::ours(program, Medium::Shm, 4, folder.path()).unwrap();
    for buffer in ["heap", "own"] {
        let _: Vec<Prepared> = crew.order(&format!("prepare {buffer} 1048576")).unwrap();
        let ranks: Vec<Times> = crew.order(&format!("time {buffer} 1 2 0")).unwrap();
        assert_eq!(slowest(&ranks).len(), 2);
    }
}

#[test]
fn survivors_of_a_killed_rank_name_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut crew = ours(4, folder.path());
    let _: Vec<Done> = crew.order("repeat 1048576").unwrap();
    crew.kill(2).unwrap();
    for rank in [0, 1, 3] {
        let failed: Failed = crew.hear(rank).unwrap();
        assert_eq!(failed.culprit, Some(2), "{}", failed.text);
    }
}

#[test]
fn an_order_that_fails_names_the_rank_and_the_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut crew = ours(2, folder.path());
    let error = crew.order::<Done>("dance").unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("rank 0 of 2") && text.contains("`dance`"), "{text}");
    crew.kill(1).unwrap();
    let error = crew.order::<Times>("time heap 1 1 0").unwrap_err();
    assert!(format!("{error:#}").contains("rank"), "{error:#}");
}

#[test]
fn no_rank_outlives_its_crew() {
    let folder = tempfile::tempdir().unwrap();
    let crew = ours(2, folder.path());
    let pids = crew.pids();
    assert!(pids.iter().all(|pid| Path::new(&format!("/proc/{pid}")).exists()));
    drop(crew);
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
}
