//! Carries out `antdt submit`: a folder's file for each scheduler.

use crate::cli::{CliError, Submit, SubmitTarget};
use crate::simulate::CommandOutput;

#[cfg(feature = "kubernetes")]
mod kubernetes;
mod slurm;

/// Submits the job, or prints what would be submitted.
pub(crate) fn run(submit: &Submit) -> Result<CommandOutput, CliError> {
    match &submit.to {
        SubmitTarget::Slurm(batch) => slurm::submit(submit, batch),
        #[cfg(feature = "kubernetes")]
        SubmitTarget::Kubernetes(batch) => kubernetes::submit(submit, batch),
        #[cfg(not(feature = "kubernetes"))]
        SubmitTarget::Kubernetes(_) => Err(CliError::new(
            "--kubernetes: this program was built without it; cargo install --features kubernetes builds it in",
        )),
    }
}
