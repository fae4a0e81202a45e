//! `antdt whatif` and `antdt sim`: commands that simulate jobs on a virtual clock.

use std::io;
use std::path::Path;

use antdt_sim::recording::{self, DiffError};

use crate::cli::{CliError, Diff};

pub mod page;

pub mod scenario;
pub mod whatif;

#[cfg(test)]
mod tests;

/// The output of a command that runs no job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// Text for standard output; ends with a newline.
    pub text: String,
    /// Whether the command found nothing wrong; otherwise the exit code is 1.
    pub good: bool,
}

/// Runs `antdt sim diff`: compares two traces.
///
/// # Errors
/// If one of the files cannot be read.
pub fn diff(diff: &Diff) -> Result<CommandOutput, CliError> {
    let refused = |path: &Path, error: &io::Error| {
        CliError::new(format!("{}: {error}; name two traces", path.display()))
    };
    let open = |path: &Path| antdt_rt::open_trace(path).map_err(|error| refused(path, &error));
    let found = recording::diff(open(&diff.left)?, open(&diff.right)?).map_err(|error| match error {
        DiffError::Left(why) => refused(&diff.left, &why),
        DiffError::Right(why) => refused(&diff.right, &why),
    })?;
    Ok(match found {
        Some(difference) => CommandOutput { text: format!("{difference}\n"), good: false },
        None => CommandOutput { text: "the traces are the same, byte for byte\n".to_owned(), good: true },
    })
}
