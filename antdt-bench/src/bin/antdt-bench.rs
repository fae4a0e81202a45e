//! Runs one benchmark, prints its table, writes it, and fails if a target was missed.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use antdt_bench::arguments::{Arguments, list};
use antdt_bench::{Entry, Settings, collective, entry};
use anyhow::{Context, Result};

/// As in the `antdt` command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = Arguments::checked(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match run(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every target was met.
fn run(arguments: Arguments) -> Result<bool> {
    if let Some(control) = arguments.control {
        collective::rank(control, arguments.rank)?;
        return Ok(true);
    }
    if arguments.list {
        print!("{}", list());
        return Ok(true);
    }
    let name = arguments.name.to_string();
    let report_dir = arguments.report_dir.unwrap_or_else(|| Path::new("target/bench").join(&name));
    fs::create_dir_all(&report_dir).with_context(|| format!("cannot create {}", report_dir.display()))?;
    let began = Instant::now();
    let settings = Settings {
        antdt: arguments.antdt,
        antdt_bench: std::env::current_exe().context("cannot find this program")?,
        peers: arguments.peer,
        only: arguments.only,
        quick: arguments.quick,
        report_dir: report_dir.clone(),
    };
    let entries = arguments.name.bench()(&settings)?;
    let table = entry::table(&entries);
    println!("\n{table}");
    write_report(&report_dir.join("bench.md"), &name, arguments.quick, &table)?;
    let json = format!("{}\n", serde_json::to_string_pretty(&entries)?);
    for file in arguments.json.iter().chain([&report_dir.join("bench.json")]) {
        fs::write(file, &json).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let missed: Vec<&Entry> = entries.iter().filter(|entry| !entry.ok).collect();
    println!(
        "{} of {} targets met in {:.0} s; reports in {}",
        entries.iter().filter(|entry| entry.ok && entry.target.is_some()).count(),
        entries.iter().filter(|entry| entry.target.is_some()).count(),
        began.elapsed().as_secs_f64(),
        report_dir.display()
    );
    for entry in &missed {
        let target = entry.target.as_deref().unwrap_or_default();
        eprintln!("missed: {} = {:.3} {}, target {target}", entry.name, entry.value, entry.unit);
    }
    Ok(missed.is_empty())
}

/// The table with what is needed to judge it.
fn write_report(file: &Path, name: &str, quick: bool, table: &str) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mode = if quick { "quick" } else { "full" };
    let text = format!(
        "# Benchmark `{name}`, {mode}\n\nantdt {}, {} {}, {cores} cores. Every run's own report lies in the folder of \
         its name.\n\n```\n{table}```\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
    );
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
