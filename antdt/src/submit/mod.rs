//! Carries out `antdt submit`: a folder's file for each scheduler.

use crate::cli::{CliError, Submit, SubmitTarget};
use crate::simulate::CommandOutput;

mod slurm;

/// Submits the job, or prints what would be submitted.
pub(crate) fn run(submit: &Submit) -> Result<CommandOutput, CliError> {
    match &submit.to {
        SubmitTarget::Slurm(batch) => slurm::submit(submit, batch),
    }
}
