//! What is wrong on the command line is said in one line.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

#[test]
fn an_argument_that_is_not_utf_8_is_one_line() {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let done = xtask.arg("tidy").arg(OsStr::from_bytes(b"\xff\n")).output().unwrap();
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(said, "error: argument \"\\xFF\\n\" is not UTF-8; name it otherwise\n");
}
