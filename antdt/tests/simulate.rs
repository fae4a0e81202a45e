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
fn what_a_recorded_job_would_have_been_stands_beside_what_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("job.trace").display().to_string();
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
        "--record",
        &trace,
    ];
    let (code, _, error) = antdt(&job);
    assert_eq!(code, 0, "{error}");
    let (code, out, error) = antdt(&["whatif", "--trace", &trace]);
    assert_eq!(code, 0, "{error}");
    let rows: Vec<&str> = out.lines().take(4).collect();
    assert!(rows[1].starts_with("recorded (none)"), "{out}");
    assert!(rows[2].starts_with("none") && rows[3].starts_with("nd"), "{out}");
    let (code, out, error) = antdt(&["whatif", "--trace", &trace, "--workers", "64", "--network", "lan"]);
    assert_eq!(code, 0, "{error}");
    assert!(!out.contains("never"), "{out}");
}
