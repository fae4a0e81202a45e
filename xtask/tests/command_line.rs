//! What is wrong on the command line is said in one line.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

#[test]
fn an_argument_that_is_not_utf_8_is_one_line() {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let done = xtask.arg("tidy").arg(OsStr::from_bytes(b"\xff\n")).output().unwrap();
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(said, "error: argument \"\\xFF\\n\" is not UTF-8; name it otherwise\n");
}

#[test]
fn checks_of_gpus_say_that_they_were_skipped_and_why_where_there_is_none() {
    if Path::new("/dev/nvidiactl").exists() {
        println!("skipped, not here: this machine has a GPU, and `xtask/gpu/run` would use it");
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/gpu/run");
    let done = Command::new("bash").arg(script).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(said.lines().count() >= 5, "{said}");
    for line in said.lines() {
        assert!(line.contains(": ") && line.contains("SKIPPED: no NVIDIA driver is loaded"), "{line}");
    }
}

#[test]
fn the_script_of_gpu_checks_parses() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/gpu/run");
    let done = Command::new("bash").arg("-n").arg(script).output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
}
