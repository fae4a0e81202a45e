//! The `antdt` command.
#![forbid(unsafe_code)]

/// The system's allocator walks all that was freed whenever a list of reports is made; with many simulated workers that is
/// a third of the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    antdt::JobBuilder::new().main()
}
