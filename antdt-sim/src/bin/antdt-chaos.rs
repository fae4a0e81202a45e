//! Random worlds by the thousand, or one of them again.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a program, with threads and a clock of its own")]

use std::ffi::OsString;
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
antdt-chaos --seeds N [--from SEED]   run the random worlds of N seeds under all invariants: of each a job, and workers that
                                      average in groups
antdt-chaos --seed SEED [--trace FILE]    run those of one, and make small what fails and tell its story; the recording of
                                          the job goes to FILE and is replayed
antdt-chaos --for SECONDS [--from SEED]   run until then";

fn main() -> ExitCode {
    let arguments: Result<Vec<String>, OsString> =
        std::env::args_os().skip(1).map(OsString::into_string).collect();
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(argument) => {
            eprintln!("argument {argument:?} is not UTF-8; name another file");
            return ExitCode::from(2);
        }
    };
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

/// The cases of one seed. Returns whether all invariants hold in them.
fn one(seed: u64, trace: Option<&str>) -> Result<bool, String> {
    if let Some(trace) = trace.filter(|trace| trace.ends_with(".gz")) {
        // Readers take what is called so for compressed.
        return Err(format!("--trace = {trace}: it is not compressed; leave .gz out"));
    }
    let job = one_job(seed, trace)?;
    let case = chaos::partial_case(seed);
    say!("\n{case}");
    match case.run() {
        Ok(outcome) => {
            let (at, steps, averages) = (outcome.completed, outcome.steps, outcome.averages);
            say!("every invariant holds; {steps} steps and {averages} averages, complete at {at}");
            Ok(job)
        }
        Err(error) => {
            let shrunk = shrink(&case, &error);
            say!("\nsmallest of {} candidates: {}", shrunk.tries, shrunk.case);
            say!("\n{}", shrunk.case.story());
            Ok(false)
        }
    }
}

/// The job of a seed.
fn one_job(seed: u64, trace: Option<&str>) -> Result<bool, String> {
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
        let job = chaos::case(seed).run().map(|outcome| outcome.simulated);
        let groups = chaos::partial_case(seed).run().map(|outcome| outcome.simulated);
        for result in [job, groups] {
            match result {
                Ok(simulated) => drop(events.fetch_add(simulated, Ordering::Relaxed)),
                Err(error) => {
                    say!("seed {seed}: {error}");
                    say!("    again: cargo xtask sim --seed {seed}");
                    let mut failed = failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    failed.push((seed, error));
                }
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
