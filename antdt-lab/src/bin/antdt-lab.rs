//! Runs one of the benchmarks that measure parts of AntDT.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// As in the `antdt` command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    antdt_bench::program::main(antdt_lab::bench)
}
