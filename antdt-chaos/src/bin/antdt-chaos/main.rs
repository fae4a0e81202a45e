//! `antdt-chaos`: runs a job while things go wrong, and says what came of it.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use antdt_chaos::{ChaosError, ChaosRun};
use antdt_rt::{CancellationToken, cancel_on_signal};

mod arguments;

use arguments::Order;

/// Exit code after a refused command line.
const EXIT_REFUSED: u8 = 2;

/// Exit code of a run that was interrupted, as shells have it for an interrupt.
const EXIT_INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let words: Result<Vec<String>, _> = std::env::args_os().map(std::ffi::OsString::into_string).collect();
    let Ok(words) = words else {
        eprintln!("error: an argument is not UTF-8; rename the file that it names");
        return ExitCode::from(EXIT_REFUSED);
    };
    match arguments::parse(words) {
        Ok(Order::Print(text)) => {
            say(&text);
            ExitCode::SUCCESS
        }
        Ok(Order::Run(asked)) => run(&asked),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(EXIT_REFUSED)
        }
    }
}

fn run(asked: &ChaosRun) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(async {
        let stop = CancellationToken::new();
        let signals = tokio::spawn(cancel_on_signal(stop.clone()));
        let mut say = |line: String| say(&format!("{line}\n"));
        let done = antdt_chaos::run(asked, &mut say, &stop).await;
        signals.abort();
        done
    });
    runtime.shutdown_background();
    match done {
        Ok(report) => {
            say(&report.render());
            if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            match error {
                ChaosError::Interrupted => ExitCode::from(EXIT_INTERRUPTED),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Prints a text. A reader that went away does not end the job.
fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
