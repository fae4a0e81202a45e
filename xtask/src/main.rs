//! The project's commands: `cargo xtask <command>`.
//!
//! The same commands run here and in continuous integration; a failing step prints the command that repeats it.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

mod bench;
mod codegen;
mod mutants;
mod sanitize;
mod shell;
mod sim;
mod tidy;
mod verify;

const USAGE: &str = "\
cargo xtask verify                    fmt, clippy, tests, doc tests, tidy, docs, chaos, mutants, sanitizer;
                                      writes nothing but build products
cargo xtask fix                       formats the code and renews what is generated
cargo xtask codegen [--check]         antdt-proto/src/generated from antdt-proto/proto
cargo xtask tidy                      arrows between crates, file heads and other rules of the tree
cargo xtask mutants [--crate NAME] [MUTANT]...
                                      plants defects in a crate; its tests must catch every one
cargo xtask sim --seeds N [--from SEED] | --for SECONDS [--from SEED] | --seed SEED [--trace FILE]
                                      random worlds under all invariants; --seed makes one that fails small
cargo xtask sanitize                  kernels and shared memory under AddressSanitizer
cargo xtask bench [NAME] [FLAGS]      builds and runs a benchmark (default: job); `cargo xtask bench --help` names
                                      them and the flags";

fn main() -> ExitCode {
    let arguments: Result<Vec<String>, OsString> =
        std::env::args_os().skip(1).map(OsString::into_string).collect();
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(argument) => {
            eprintln!("error: argument {argument:?} is not UTF-8; name it otherwise");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["verify"] => verify::verify(root),
        ["fix"] => verify::fix(root),
        ["codegen"] => codegen::run(root, false),
        ["codegen", "--check"] => codegen::run(root, true),
        ["tidy"] => tidy::run(root),
        ["mutants", rest @ ..] => mutants::run(root, rest),
        ["sim", rest @ ..] => sim::run(root, rest),
        ["sanitize"] => {
            println!("{}", sanitize::quietly(root)?);
            Ok(())
        }
        ["bench", rest @ ..] => bench::run(root, rest),
        [] | ["--help" | "-h" | "help", ..] => {
            println!("{USAGE}");
            Ok(())
        }
        other => bail!("`{}` is not a command of xtask\n{USAGE}", other.join(" ")),
    }
}
