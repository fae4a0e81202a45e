//! Commands without side effects on a job, which end where a signal comes.

use std::path::PathBuf;
use std::process::ExitCode;

use antdt_rt::{CancellationToken, cancel_on_signal};

use super::{EXIT_INTERRUPTED, complain, print};
use crate::cli::CliError;
use crate::simulate::CommandOutput;

/// Says what an interrupted simulation leaves of the files that it was to write.
pub(super) fn incomplete(files: Vec<PathBuf>) -> String {
    let left: Vec<String> = files
        .into_iter()
        .filter(|file| file.exists())
        .map(|file| format!("`{}` may be incomplete, delete it or run the command again", file.display()))
        .collect();
    if left.is_empty() { "nothing was written".to_owned() } else { left.join("; ") }
}

/// Runs a command without side effects on a job to its end, or until a signal. After a signal `interrupted` cleans up and
/// says what is left on the disk.
pub(super) fn compute(
    work: impl FnOnce() -> Result<CommandOutput, CliError> + Send + 'static,
    interrupted: impl FnOnce() -> String,
) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&error);
            return ExitCode::FAILURE;
        }
    };
    let stop = CancellationToken::new();
    let done = runtime.block_on(async {
        // Before anything is begun that would have to be cleared away.
        tokio::spawn(cancel_on_signal(stop.clone()));
        let work = tokio::task::spawn_blocking(work);
        tokio::select! {
            done = work => Some(done),
            () = stop.cancelled() => None,
        }
    });
    // It ends with the process.
    runtime.shutdown_background();
    match done {
        Some(Ok(done)) => answer(done),
        // A panic has said what it is.
        Some(Err(_)) => ExitCode::FAILURE,
        None => {
            complain(&format_args!("interrupted; {}", interrupted()));
            ExitCode::from(EXIT_INTERRUPTED)
        }
    }
}

/// Prints what it came to.
fn answer(answer: Result<CommandOutput, CliError>) -> ExitCode {
    match answer {
        Ok(CommandOutput { text, good }) => match print(&text) {
            Ok(()) if good => ExitCode::SUCCESS,
            Ok(()) => ExitCode::FAILURE,
            Err(error) => {
                complain(&format_args!("standard output: {error}"));
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            complain(&error);
            ExitCode::from(CliError::EXIT_CODE)
        }
    }
}
