//! Random worlds by the thousand, or one of them again.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a program, with threads and a clock of its own")]

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use antdt_sim::Recording;
use antdt_sim::chaos::{self, Case, CaseError};
use antdt_sim::shrink::shrink;

/// Prints a line. Whoever reads no further, like `head`, has seen enough; that is no reason to fail.
macro_rules! say {
    ($($text:tt)*) => {
        drop(writeln!(io::stdout(), $($text)*))
    };
}

const USAGE: &str = "\
antdt-chaos --seeds N [--from SEED]   run N random worlds under all invariants
antdt-chaos --seed SEED [--trace FILE]    run one, and if it fails make it small and tell its story; its recording
                                          goes to FILE and is replayed
antdt-chaos --for SECONDS [--from SEED]   run until then";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match &arguments[..] {
        ["--seed", seed] => number("--seed", seed).and_then(|seed| one(seed, None)),
        ["--seed", seed, "--trace", file] => number("--seed", seed).and_then(|seed| one(seed, Some(file))),
        ["--seeds", count] => number("--seeds", count).map(|count| many(0, count, u64::MAX)),
        ["--seeds", count, "--from", from] => {
            number("--seeds", count).and_then(|count| Ok(many(number("--from", from)?, count, u64::MAX)))
        }
        ["--for", seconds] => number("--for", seconds).map(|seconds| many(0, u64::MAX, seconds)),
        ["--for", seconds, "--from", from] => {
            number("--for", seconds).and_then(|seconds| Ok(many(number("--from", from)?, u64::MAX, seconds)))
        }
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

fn number(flag: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{flag} = {text}: must be a whole number\n{USAGE}"))
}

/// One case. Returns whether all invariants hold in it.
fn one(seed: u64, trace: Option<&str>) -> Result<bool, String> {
    let mut case = chaos::case(seed);
    say!("{case}");
    let good = match case.run() {
        Ok(outcome) => {
            let (at, steps) = (outcome.completed, outcome.steps);
            say!("every invariant holds; {steps} steps, complete at {at}: {:?}", outcome.result);
            true
        }
        Err(error) => {
            let shrunk = shrink(&case, &error);
            case = shrunk.case;
            say!("\nsmallest of {} candidates: {case}", shrunk.tries);
            say!("\n{}", case.story());
            false
        }
    };
    if let Some(trace) = trace {
        let path = Path::new(trace);
        record(&case, path).map_err(|error| format!("--trace = {trace}: {error}; name another file"))?;
        let policy = case.policy().map_err(|error| error.to_string())?;
        let replayed = Recording::read(path).and_then(|recording| recording.replay_with(policy));
        let replayed = replayed.map_err(|error| format!("{trace} does not replay: {error}"))?;
        say!("\nits recording is in {trace}; {} answers and effects replay", replayed.compared);
    }
    Ok(good)
}

/// Writes the recording of a case.
fn record(case: &Case, path: &Path) -> io::Result<()> {
    case.trace(BufWriter::new(File::create(path)?))?.flush()
}

/// Cases on all processors, for so many seconds at most. Returns whether all invariants hold in all of them.
fn many(from: u64, count: u64, seconds: u64) -> bool {
    let began = Instant::now();
    let (next, events) = (AtomicU64::new(0), AtomicU64::new(0));
    let failed: Mutex<Vec<(u64, CaseError)>> = Mutex::new(Vec::new());
    let work = || loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        if at >= count || began.elapsed().as_secs() >= seconds {
            return;
        }
        let seed = from.wrapping_add(at);
        match chaos::case(seed).run() {
            Ok(outcome) => drop(events.fetch_add(outcome.simulated, Ordering::Relaxed)),
            Err(error) => {
                say!("seed {seed}: {error}");
                say!("    again: cargo xtask sim --seed {seed}");
                let mut failed = failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                failed.push((seed, error));
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).len();
    let (ran, events) = (next.into_inner().min(count), events.into_inner());
    let seconds = began.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    let rate = ran as f64 / seconds;
    say!("{ran} seeds, {events} events in {seconds:.1} s, {rate:.0} seeds/s: {failed} failed");
    failed == 0
}
