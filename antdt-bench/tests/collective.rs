//! Ranks as the benchmark `collective` starts them: processes that take orders.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use antdt_bench::Entry;
use antdt_bench::collective::crew::Crew;
use antdt_bench::collective::order::{Done, Failed, Medium, Prepared, Times, slowest};
use antdt_bench::entry::State;

fn ours(world: u32, folder: &Path) -> Crew {
    Crew::ours(Path::new(env!("CARGO_BIN_EXE_antdt-bench")), Medium::Tcp, world, folder)
        .expect("ranks on loopback find each other")
}

/// Time on the cores that a process has had, in ticks of the system.
fn ticks(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
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
fn a_filter_that_matches_nothing_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for (args, says) in [
        (&["collective", "--only", "nonsense"][..], "--only = nonsense: no row begins so"),
        (
            &["shard", "--only", "nonsense"],
            "shard is a benchmark of antdt-lab; run `cargo xtask bench shard`",
        ),
        (
            &["sim", "--only", "kernel"],
            "--only is for `job`, `collective`, `pytorch`, `shard`, `policies`, `survive` and `cluster`",
        ),
        (
            &["pytorch", "--only", "nonsense"],
            "--only = nonsense: no part has this name; there are import, step, kill, slower",
        ),
        (&["job", "--peer", "gloo"], "--peer is for `collective`"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_antdt-bench"));
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

/// Puts a program of a few lines into a folder.
fn script(folder: &Path, name: &str, text: &str) {
    let file = folder.join(name);
    fs::write(&file, format!("#!/bin/bash\n{text}\n")).expect("the folder is the test's");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("the file is the test's");
}

/// The rows that were stored, without what they were measured on.
fn stored(reports: &Path) -> Vec<Entry> {
    let text = fs::read_to_string(reports.join("rows.jsonl")).expect("rows are stored");
    text.lines().skip(1).map(|line| serde_json::from_str(line).expect("a line is a row")).collect()
}

/// Processes that run a program of a folder.
fn running(folder: &Path) -> usize {
    let name = folder.display().to_string();
    let commands = fs::read_dir("/proc")
        .expect("this is Linux")
        .filter_map(|process| fs::read_to_string(process.ok()?.path().join("cmdline")).ok());
    commands.filter(|command| command.contains(&name)).count()
}

#[test]
fn a_peer_that_stalls_or_dies_is_ended_and_leaves_its_row_and_the_rest_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let (programs, reports) = (folder.path().join("programs"), folder.path().join("reports"));
    fs::create_dir(&programs).unwrap();
    // Its ranks report and never answer; each leaves a process that would live for an hour.
    let sleeps = format!("exec -a {}/sleeper sleep 3600", programs.display());
    let hello = r#"exec 3<>/dev/tcp/$host/$port; echo "{\"rank\": $rank, \"pid\": $BASHPID}" >&3"#;
    script(
        &programs,
        "mpirun",
        &format!(
            "[ \"$1\" = --version ] && {{ echo mpirun of a test; exit; }}\n\
             host=${{*: -2:1}} port=${{*: -1}}\n\
             for rank in 0 1; do ( {hello}; ( {sleeps} ) & wait ) & done; wait"
        ),
    );
    script(&programs, "mpicc", "touch \"$3\"");
    // Its ranks report and die of the first order.
    script(
        &programs,
        "python3",
        &format!(
            "[ \"$1\" = -c ] && {{ echo PyTorch of a test; exit; }}\n\
             host=$2 port=$3 rank=$4\n{hello}; read -u 3; echo out of luck; exit 1"
        ),
    );
    let words = "collective --quick --peer gloo --peer openmpi --peer-limit 3";
    let mut command = Command::new(env!("CARGO_BIN_EXE_antdt-bench"));
    command.args(words.split(' ')).arg("--report-dir").arg(&reports);
    for size in ["8 B", "64 B", "1 KiB"] {
        command.args(["--only", &format!("tcp, 2 ranks, {size}")]);
    }
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let output = command.env("PATH", path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");

    let rows = stored(&reports);
    let row =
        |name: &str| rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name}: {rows:?}"));
    for peer in ["gloo", "Open MPI"] {
        assert!(row(peer).peer.as_ref().unwrap().contains("of a test"), "{rows:?}");
    }
    for (size, stalls, dies) in [
        ("8 B", "no answer within 3s", "out of luck"),
        ("64 B", "no answer within 3s", "out of luck"),
        ("1 KiB", "not started again", "not started again"),
    ] {
        let title = format!("tcp, 2 ranks, {size}");
        assert!(row(&format!("{title} (9 rounds)")).value.unwrap() > 0.0);
        for (peer, why) in [("Open MPI", stalls), ("gloo", dies)] {
            let row = row(&format!("{title}: {peer} / ours"));
            assert_eq!((row.state, row.value), (State::Stalled, None));
            assert!(row.peer.as_ref().unwrap().contains(why), "{row:?}");
        }
    }
    assert_eq!(running(&programs), 0, "a peer's processes outlive it");
}

#[test]
fn a_peer_that_is_not_installed_is_not_compared_and_fails_unless_that_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let words = "collective --quick --peer openmpi --only";
    for (allow, code) in [(None, 3), (Some("--allow-missing"), 0)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_antdt-bench"));
        command.args(words.split(' ')).arg("tcp, 2 ranks, 8 B").args(allow);
        // No program is in this folder.
        let output =
            command.arg("--report-dir").arg(folder.path()).env("PATH", folder.path()).output().unwrap();
        let rows = stored(folder.path());
        let missing = rows.iter().find(|row| row.name == "Open MPI").unwrap();
        assert_eq!(missing.state, State::NotCompared);
        assert!(missing.peer.as_ref().unwrap().contains("openmpi-bin"), "{missing:?}");
        assert_eq!(output.status.code(), Some(code), "{rows:?}");
    }
}
