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
use antdt_sim::chaos::{self, CaseError, JobEnding, SEEDS_ENOUGH, Tally};
use antdt_sim::shrink::shrink;

#[path = "antdt-sim-chaos/arguments.rs"]
mod arguments;

use arguments::Order;

/// Prints a line. A reader that closes the pipe early, like `head`, is no failure.
macro_rules! say {
    ($($text:tt)*) => {
        drop(writeln!(io::stdout(), $($text)*))
    };
}

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
    let done = match arguments::parse(&arguments) {
        Ok(Order::One { seed, trace }) => one(seed, trace.map(Path::new)),
        Ok(Order::Many { from, count, seconds }) => Ok(many(from, count, seconds)),
        Err(why) => Err(why),
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

/// The job of a seed. Returns whether all invariants hold in it.
fn one(seed: u64, trace: Option<&Path>) -> Result<bool, String> {
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
    if let Some(path) = trace {
        record(path, |file| case.trace(file))?;
        let policy = case.policy().map_err(|error| error.to_string())?;
        let replayed = Recording::read(path).and_then(|recording| recording.replay_with(policy));
        let compared =
            replayed.map_err(|error| format!("{} does not replay: {error}", path.display()))?.compared;
        say!("\nits recording is in {}; {compared} answers and effects replay", path.display());
    }
    Ok(good)
}

/// Writes the recording of a case to a file.
fn record(
    path: &Path,
    trace: impl FnOnce(BufWriter<File>) -> io::Result<BufWriter<File>>,
) -> Result<(), String> {
    let written = File::create(path).and_then(|file| trace(BufWriter::new(file))?.flush());
    written.map_err(|error| format!("--trace = {}: {error}; name another file", path.display()))
}

/// Cases on all processors, for so many seconds at most. Returns whether all invariants hold in all of them, and whether
/// everything that can go wrong did, if there are enough of them.
fn many(from: u64, count: u64, seconds: u64) -> bool {
    let began = Instant::now();
    let (next, events, ran) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let failed: Mutex<Vec<(u64, CaseError)>> = Mutex::new(Vec::new());
    let tally: Mutex<Tally> = Mutex::default();
    let work = || loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        if at >= count || began.elapsed().as_secs() >= seconds {
            return;
        }
        let seed = from.wrapping_add(at);
        match chaos::case(seed).run_counted() {
            Ok((outcome, seen)) => {
                events.fetch_add(outcome.simulated, Ordering::Relaxed);
                lock(&tally).add(&seen);
            }
            Err(error) => {
                say!("seed {seed}: {error}");
                say!("    again: cargo xtask sim --seed {seed} --trace seed-{seed}.jsonl");
                lock(&failed).push((seed, error));
            }
        }
        ran.fetch_add(1, Ordering::Relaxed);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let (ran, events) = (ran.into_inner(), events.into_inner());
    let tally = lock(&tally);
    say!("{tally}");
    let never = if ran >= SEEDS_ENOUGH { tally.missing(&JobEnding::ALL) } else { Vec::new() };
    if !never.is_empty() {
        say!("never seen in {ran} seeds, of which {SEEDS_ENOUGH} must show it: {}", never.join(", "));
    }
    let failed = lock(&failed).len();
    let seconds = began.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    let rate = ran as f64 / seconds;
    say!("{ran} seeds, {events} events in {seconds:.1} s, {rate:.0} seeds/s: {failed} failed");
    failed == 0 && never.is_empty()
}

/// A thread that panicked has counted nothing by halves.
fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
