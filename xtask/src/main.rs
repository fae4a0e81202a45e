//! The project's commands: `cargo xtask <command>`.
//!
//! The same commands run here and in continuous integration; a failing step prints the command that repeats it.
#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use self::features::Features;

mod bench;
mod codegen;
mod dependencies;
mod features;
mod flaky;
mod fuzz;
mod mutants;
mod packages;
mod python;
mod rdma_vm;
mod sanitize;
mod shell;
mod sim;
mod skipped;
mod tidy;
mod verify;

const USAGE: &str = "\
cargo xtask verify [--strict] [--deep] [--rdma]
                                      fmt, tidy, clippy, tests, a few real jobs that are hurt, the Python package, doc
                                      tests, docs, chaos; writes nothing but build products. --strict fails if a test was skipped that this machine could run;
                                      --deep adds all mutants, the sanitizer, the fuzzer and ten times the chaos;
                                      --rdma adds `rdma-vm --quick`
cargo xtask fix                       formats the code and renews what is generated
cargo xtask codegen [--check]         antdt-proto/src/generated from antdt-proto/proto
cargo xtask tidy                      arrows between crates, file heads and other rules of the tree
cargo xtask mutants [--within MINUTES] [NAME]...
                                      plants defects in a crate, all, or those of a crate or of one name; its tests must
                                      catch every one. --within begins no more when the time is up, and takes those first
                                      whose files the newest change touches, then others in turn
cargo xtask sim --seeds N [--from SEED] | --for SECONDS [--from SEED] | --seed SEED [--trace FILE]
                                      random worlds under all invariants; --seed makes one that fails small
cargo xtask fuzz [--seconds N] [TARGET]...
                                      readers of files and messages, fed by a fuzzer, 60 s each
cargo xtask sanitize                  kernels and shared memory under AddressSanitizer
cargo xtask rdma-vm [--mode dummy|veth] [--filter PART] [--quick]
                                      the transport over RDMA against Soft-RoCE, in a guest that QEMU emulates; SKIPPED
                                      where QEMU or packages for it are missing
cargo xtask python                    the tests of the Python package, with the program and the module of this build
cargo xtask wheel                     the package with the program, optimised, as a wheel; wants maturin
cargo xtask bench [NAME] [FLAGS]      builds and runs a benchmark (default: job); `cargo xtask bench --help` names
                                      them and the flags";

fn main() -> ExitCode {
    let arguments: Result<Vec<String>, OsString> =
        env::args_os().skip(1).map(OsString::into_string).collect();
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(argument) => {
            eprintln!("error: argument {argument:?} is not UTF-8; name it otherwise");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode> {
    // As cargo says now: a target folder that several checkouts share holds the program that one of them built.
    let folder = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&folder).parent().expect("xtask lies in the workspace");
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["bench", rest @ ..] = words.as_slice() {
        return bench::run(root, rest);
    }
    match words.as_slice() {
        ["verify", flags @ ..] => verify::verify(root, flags),
        ["fix"] => verify::fix(root),
        ["codegen"] => codegen::run(root, false),
        ["codegen", "--check"] => codegen::run(root, true),
        ["tidy"] => tidy::run(root),
        ["mutants", rest @ ..] => mutants::run(root, rest),
        ["sim", rest @ ..] => sim::run(root, rest),
        ["rdma-vm", flags @ ..] => rdma_vm::run(root, flags),
        ["fuzz", rest @ ..] => fuzz::run(root, rest),
        ["sanitize"] => {
            println!("sanitizer: {}", sanitize::quietly(root)?);
            Ok(())
        }
        ["python"] => {
            println!("python: {}", python::test(root, &Features::here().flags())?);
            Ok(())
        }
        ["wheel"] => python::wheel(root).map(|wheel| println!("{}", wheel.display())),
        [] | ["--help" | "-h" | "help", ..] => {
            println!("{USAGE}");
            Ok(())
        }
        other => bail!("`{}` is not a command of xtask\n{USAGE}", other.join(" ")),
    }
    .map(|()| ExitCode::SUCCESS)
}
