//! A benchmark that is told to end while its jobs run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use antdt_bench::tree::is_alive;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};

/// Cells that were measured before: what needs no job.
const ROUNDS: &str = r#"{"cell":{"what":{"round":64},"number":0},"jobs":0,"inexact":[],"figures":[0.001],"survivors":0,"replaced":0,"beside":"","chaos":null,"others":null}
{"cell":{"what":{"round":256},"number":0},"jobs":0,"inexact":[],"figures":[0.001],"survivors":0,"replaced":0,"beside":"","chaos":null,"others":null}
"#;

#[test]
fn a_signal_ends_the_jobs_too_and_nodes_whose_master_is_gone() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let folder = tempfile::tempdir().unwrap();
        let (examples, report) = (folder.path().join("examples"), folder.path().join("report"));
        let told = folder.path().join("told");
        fs::create_dir_all(&examples).unwrap();
        fs::create_dir_all(&report).unwrap();
        fs::write(report.join("cells.jsonl"), ROUNDS).unwrap();
        mknodat(CWD, &told, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // A master with a node, and another node whose master has ended.
        let master = format!(
            "#!/bin/sh\nnode=$(sleep 600 >/dev/null 2>&1 & echo $!)\nsleep 600 &\necho $$ $! $node >{}\nwait\n",
            told.display()
        );
        let program = examples.join("counting");
        fs::write(&program, master).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();

        let mut bench = Command::new(env!("CARGO_BIN_EXE_antdt-lab"))
            .args(["survive", "--full", "--continue", "--report-dir"])
            .arg(&report)
            .arg("--antdt")
            .arg(folder.path().join("antdt"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It ends with the line, and begins with the job.
        let pids = fs::read_to_string(&told).unwrap();
        let pids: Vec<Pid> =
            pids.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect();
        assert_eq!(pids.len(), 3);
        assert!(pids.iter().all(|pid| is_alive(*pid)));
        kill_process(Pid::from_child(&bench), signal).unwrap();
        assert_eq!(bench.wait().unwrap().code(), Some(code));
        for pid in pids {
            assert!(!is_alive(pid), "{pid:?} lives on");
        }
    }
}
