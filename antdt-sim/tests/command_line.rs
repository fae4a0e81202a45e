//! What is wrong on the command line is said in one line, and the command that a failure prints does what it says.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

/// What `antdt-sim-chaos` says to these arguments, all of which it must refuse.
fn refused(arguments: &[&[u8]]) -> String {
    let mut chaos = Command::new(env!("CARGO_BIN_EXE_antdt-sim-chaos"));
    let done = chaos.args(arguments.iter().map(|argument| OsStr::from_bytes(argument))).output().unwrap();
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    String::from_utf8(done.stderr).unwrap()
}

#[test]
fn an_argument_that_is_not_utf_8_is_one_line() {
    let said = refused(&[b"--seed", b"1", b"--trace", b"\xff\n"]);
    assert_eq!(said, "argument \"\\xFF\\n\" is not UTF-8; name another file\n");
}

/// `antdt-sim-chaos --seeds` prints it for a seed that fails.
#[test]
fn the_trace_of_a_seed_replays() {
    let folder = tempfile::tempdir().unwrap();
    let mut chaos = Command::new(env!("CARGO_BIN_EXE_antdt-sim-chaos"));
    let done =
        chaos.args(["--seed", "7", "--trace", "seed-7.jsonl"]).current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{said}");
    assert!(said.contains("its recording is in seed-7.jsonl; "), "{said}");
    let recording = antdt_sim::Recording::read(folder.path().join("seed-7.jsonl")).unwrap();
    assert!(recording.entries().unwrap().count() > 20);
}

#[test]
fn a_trace_that_would_not_be_compressed_is_not_called_so() {
    let said = refused(&[b"--seed", b"1", b"--trace", b"a.trace.gz"]);
    assert_eq!(said, "--trace = a.trace.gz: it is not compressed; leave .gz out\n");
}
