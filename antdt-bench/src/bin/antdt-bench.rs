//! Runs one benchmark, prints its table, writes it, and fails if a target was missed.
#![forbid(unsafe_code)]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use antdt_bench::{BENCHES, Entry, Settings, collective, entry};
use anyhow::{Context, Result, bail};
use clap::Parser;

/// As in the `antdt` command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks of AntDT; run by `cargo xtask bench`.
#[derive(Debug, Parser)]
struct Arguments {
    /// Which benchmark.
    #[arg(default_value = "job")]
    name: String,
    /// Be done within three minutes.
    #[arg(long)]
    quick: bool,
    /// Also write the table as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where reports and logs go [default: target/bench/NAME].
    #[arg(long, value_name = "DIR")]
    report_dir: Option<PathBuf>,
    /// Name the benchmarks and exit.
    #[arg(long)]
    list: bool,
    /// Measure beside another system, if it is installed (collective). May be given several times.
    #[arg(long, value_name = "NAME")]
    peer: Vec<collective::Peer>,
    /// Measure only what has this text in its name, such as `tcp, 2 ranks, 64 MiB` (collective) or `recording` (shard). May be
    /// given several times.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// For `rank`: where its orders come from.
    #[arg(long, hide = true)]
    control: Option<SocketAddr>,
    /// For `rank`: which one it is.
    #[arg(long, hide = true, default_value_t = 0)]
    rank: u32,
    /// The program under test; given by `cargo xtask bench`.
    #[arg(long, hide = true, default_value = "antdt")]
    antdt: PathBuf,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
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
        for (name, about, _) in BENCHES {
            println!("{name:<12} {about}");
        }
        return Ok(true);
    }
    let Some((name, _, bench)) = BENCHES.into_iter().find(|(name, ..)| *name == arguments.name) else {
        let names: Vec<&str> = BENCHES.iter().map(|(name, ..)| *name).collect();
        bail!("there is no benchmark `{}`; there is: {}", arguments.name, names.join(", "));
    };
    if !arguments.peer.is_empty() && name != "collective" {
        bail!("--peer is for `collective`; leave it out with `{name}`");
    }
    if !arguments.only.is_empty() && !["collective", "shard"].contains(&name) {
        bail!("--only is for `collective` and `shard`; leave it out with `{name}`");
    }
    let report_dir = arguments.report_dir.unwrap_or_else(|| Path::new("target/bench").join(name));
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
    let entries = bench(&settings)?;
    let table = entry::table(&entries);
    println!("\n{table}");
    write_report(&report_dir.join("bench.md"), name, arguments.quick, &table)?;
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
