//! [`main`]: a program that runs one benchmark, stores and prints its rows, and says by its exit code what became of them.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::arguments::{Arguments, Name, list};
use crate::entry::State;
use crate::{Bench, Entry, Environment, Rows, Settings, collective, entry, tree};

/// Nothing failed, but something could not be measured or compared.
const INCOMPLETE: u8 = 3;

/// Runs the benchmark that the command line of this process names; `bench` has the benchmarks of this program.
pub fn main(bench: fn(Name) -> Option<Bench>) -> ExitCode {
    let arguments = Arguments::checked(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let code = run(arguments, bench);
    // What failed because everything is being ended is no failure.
    tree::unless_ending();
    code.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(arguments: Arguments, bench: fn(Name) -> Option<Bench>) -> Result<ExitCode> {
    if let Some(control) = arguments.control {
        collective::rank(control, arguments.rank)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.list {
        print!("{}", list());
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.no_run {
        return Ok(ExitCode::SUCCESS);
    }
    let name = arguments.name;
    let Some(bench) = bench(name) else {
        bail!("{name} is a benchmark of {}; run `cargo xtask bench {name}`", name.package());
    };
    if name == Name::Collective && !arguments.peer.is_empty() {
        collective::enter_network()?;
    }
    if name == Name::Survive {
        tree::end_on_signal()?;
    }
    let name = name.to_string();
    let report_dir = arguments.report_dir.unwrap_or_else(|| Path::new("target/bench").join(&name));
    fs::create_dir_all(&report_dir).with_context(|| format!("cannot create {}", report_dir.display()))?;
    let began = Instant::now();
    let settings = Settings {
        antdt: arguments.antdt,
        antdt_bench: std::env::current_exe().context("cannot find this program")?,
        peers: arguments.peer,
        peer_limit: Duration::from_secs(arguments.peer_limit),
        only: arguments.only,
        smoke: arguments.smoke,
        quick: arguments.quick,
        full: arguments.full,
        go_on: arguments.go_on,
        report_dir: report_dir.clone(),
    };
    let environment = Environment::here(&name, settings.mode());
    println!("{environment}");
    let mut rows = Rows::create(&report_dir.join("rows.jsonl"), &environment)?;
    let measured = bench(&settings, &mut rows);
    // What was measured is shown, whatever became of the rest.
    let table = entry::table(rows.entries());
    println!("\n{table}");
    measured?;
    let entries = rows.finish()?;
    write_report(&report_dir.join("bench.md"), &environment, &table)?;
    let json = format!("{}\n", serde_json::to_string_pretty(&entries)?);
    for file in arguments.json.iter().chain([&report_dir.join("bench.json")]) {
        fs::write(file, &json).with_context(|| format!("cannot write {}", file.display()))?;
    }
    println!(
        "{} of {} targets met in {:.0} s; reports in {}",
        entries.iter().filter(|entry| entry.state == State::Ok && entry.target.is_some()).count(),
        entries.iter().filter(|entry| entry.target.is_some()).count(),
        began.elapsed().as_secs_f64(),
        report_dir.display()
    );
    Ok(ExitCode::from(judged(&entries, arguments.allow_missing)))
}

/// Says what is wrong with the rows; the exit code.
fn judged(entries: &[Entry], allow_missing: bool) -> u8 {
    for entry in entries.iter().filter(|entry| entry.state != State::Ok) {
        let said = [
            entry.value.map(|value| format!("{value:.3} {}", entry.unit)),
            entry.target.as_ref().map(|target| format!("target {target}")),
            entry.peer.clone(),
        ];
        let said: Vec<String> = said.into_iter().flatten().collect();
        eprintln!("{}: {}: {}", entry.state, entry.name, said.join(", "));
    }
    if entries.iter().any(|entry| entry.state == State::Failed) {
        return 1;
    }
    let excused = |state| allow_missing && state == State::NotCompared;
    let incomplete = |entry: &Entry| entry.state.is_incomplete() && !excused(entry.state);
    if entries.iter().any(incomplete) { INCOMPLETE } else { 0 }
}

/// The table with what is needed to judge it.
fn write_report(file: &Path, environment: &Environment, table: &str) -> Result<()> {
    let Environment { benchmark, mode, .. } = environment;
    let text = format!(
        "# Benchmark `{benchmark}`, {mode}\n\n{environment} Every run's own report lies in the folder of its name.\n\n\
         ```\n{table}```\n",
    );
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_tells_a_missed_target_from_a_missing_comparison() {
        let met = || Entry::shown("met", 1.0, "s").at_most(2.0);
        let missed = Entry::shown("missed", 3.0, "s").at_most(2.0);
        let missing = || Entry::without("gloo", State::NotCompared, "install python3-torch");
        let stalled = Entry::without("Open MPI", State::Stalled, "no answer");
        let overloaded = missed.clone().unless_overloaded(Some(0.9), 0.5);
        let unresolved = Entry::shown("cost", 2.0, "%").interval_at_most([1.0, 7.0], 5.0);
        assert_eq!(judged(&[met(), unresolved], false), 0);
        assert_eq!(judged(&[met(), missing()], false), 3);
        assert_eq!(judged(&[met(), missing()], true), 0);
        assert_eq!(judged(&[missing(), stalled], true), 3);
        assert_eq!(judged(&[met(), overloaded], false), 3);
        assert_eq!(judged(&[missing(), missed], false), 1);
    }
}
