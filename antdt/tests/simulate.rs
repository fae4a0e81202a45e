//! `antdt whatif` and `antdt sim` as processes: what they print, where, and their exit codes.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Exit code, standard output, standard error.
fn antdt(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_antdt"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANTDT_")) {
        command.env_remove(name);
    }
    let output = command.args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn shipped(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../antdt-sim/scenarios");
    folder.join(name).display().to_string()
}

#[test]
fn exit_codes_say_how_it_went() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| -> PathBuf { folder.path().join(name) };
    let even = shipped("even.toml");
    let text = std::fs::read_to_string(&even).unwrap();
    let hasty = file("hasty.toml");
    std::fs::write(
        &hasty,
        text.split("[expect]").next().unwrap().to_owned() + "[expect]\nlongest = \"1s\"\n",
    )
    .unwrap();

    assert_eq!(antdt(&["sim", "--scenario", &even]).0, 0);
    assert_eq!(antdt(&["sim", "--scenario", hasty.to_str().unwrap()]).0, 1);
    assert_eq!(antdt(&["sim", "diff", &even, &even]).0, 0);
    assert_eq!(antdt(&["sim", "diff", &even, hasty.to_str().unwrap()]).0, 1);
    for args in [&["whatif", "--trace", "no/such"][..], &["sim", "--scenario", "no/such"], &["whatif", "--x"]]
    {
        let (code, out, error) = antdt(args);
        assert_eq!((code, out.as_str(), error.lines().count()), (2, "", 1), "{error}");
        assert!(error.starts_with("error: "), "{error}");
    }
}

#[test]
fn a_simulation_that_is_interrupted_says_so_in_one_line() {
    for name in ["INT", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("seed.jsonl");
        // Long enough that no test waits for its end.
        let scenario = folder.path().join("long.toml");
        std::fs::write(&scenario, "[job]\nworkers = 8\nsamples = 4_000_000_000\n[compute]\nspeed = 1000.0\n")
            .unwrap();
        let (scenario, trace_name) = (scenario.display().to_string(), trace.display().to_string());
        let child = Command::new(env!("CARGO_BIN_EXE_antdt"))
            .args(["sim", "--scenario", &scenario, "--trace", &trace_name])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It is at work once it has written something.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while std::fs::metadata(&trace).map_or(0, |trace| trace.len()) == 0 {
            assert!(std::time::Instant::now() < deadline, "it does not begin");
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
        let sent = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(130), "{error}");
        let left = format!("`{trace_name}` may be incomplete, delete it or run the command again");
        assert_eq!(error, format!("error: interrupted; {left}\n"));
        assert!(output.stdout.is_empty());
        // What is there reads as a recording that was cut off.
        let facts = antdt_sim::Recording::read(&trace).unwrap().facts().unwrap();
        assert_eq!((facts.end, facts.outcome), (None, None));
    }
}

#[test]
fn simulations_of_a_recorded_job_stand_beside_the_job_itself() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("job.trace").display().to_string();
    let report = folder.path().join("report").display().to_string();
    let job = [
        "run",
        "--nproc-per-node",
        "3",
        "--data",
        "synthetic:3000",
        "--global-batch-size",
        "96",
        "--emulate-speed",
        "1000",
        "--straggler",
        "worker=1,slow=3",
        "--policy",
        "none",
        "--quiet",
        "--report-dir",
        &report,
        "--record",
        &trace,
    ];
    let (code, _, error) = antdt(&job);
    assert_eq!(code, 0, "{error}");
    let (code, out, error) = antdt(&["whatif", "--trace", &trace]);
    assert_eq!(code, 0, "{error}");
    let rows: Vec<&str> = out.lines().take(4).collect();
    assert!(rows[1].starts_with("recorded (none)"), "{out}");
    assert!(rows[2].starts_with("none") && rows[3].starts_with("predictive"), "{out}");
    let (code, out, error) = antdt(&["whatif", "--trace", &trace, "--workers", "64", "--network", "lan"]);
    assert_eq!(code, 0, "{error}");
    assert!(out.lines().take(4).all(|row| !row.contains("never")), "each job ends: {out}");
    assert!(out.contains("3 workers were recorded; the other 61 are assumed"), "{out}");
}
